// completion: for shells.
#include <memory>

#include "client/cli/command_line.h"
#include "client/cli/completion.h"

namespace sparsed::cli {

void AddCompletion(CLI::App& app, Invocation& invocation) {
  CLI::App* completion = app.add_subcommand(
      "completion",
      "Print a shell's function that completes commands, flags, and names that the server knows");
  completion->footer(
      ExampleLines({"source <(sparsectl completion bash)", "sparsectl completion zsh > _sparsectl",
                    "sparsectl completion fish > sparsectl.fish"}));
  auto shell = std::make_shared<std::string>();
  OneOf(completion->add_option("SHELL", *shell, "Whose"), {"bash", "zsh", "fish"})->required();
  completion->callback([&invocation, shell] {
    invocation.run_here = [shell]() -> absl::StatusOr<Report> {
      const std::string script = CompletionScript(*shell);
      return Report{{{"shell", *shell}, {"script", script}}, script};
    };
  });
}

}  // namespace sparsed::cli
