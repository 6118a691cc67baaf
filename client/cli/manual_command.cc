// manual: writes the manual pages that are installed. The build runs it; help does not show it.
#include <fmt/format.h>

#include <memory>
#include <sstream>

#include "client/cli/command_line.h"
#include "client/cli/man_page.h"
#include "client/cli/output_file.h"

namespace sparsed::cli {

void AddManual(CLI::App& app, Invocation& invocation) {
  CLI::App* manual = app.add_subcommand("manual", "Write the manual pages")->group("");
  auto folder = std::make_shared<std::string>();
  manual->add_option("FOLDER", *folder, "Where to")->required();
  manual->callback([&app, &invocation, folder] {
    invocation.run_here = [&app, folder]() -> absl::StatusOr<Report> {
      // "sparsectl 1.2.3"
      const std::string version = app.version();
      Report report;
      for (const auto& [name, page] : ManPages(app, version.substr(version.rfind(' ') + 1))) {
        absl::StatusOr<OutputFile> file = OutputFile::Create(*folder + "/" + name);
        if (!file.ok()) return file.status();
        if (absl::Status status = file->Write(page); !status.ok()) return status;
        if (absl::Status status = file->Commit(); !status.ok()) return status;
        report.json["pages"].push_back(name);
        report.text += name + "\n";
      }
      return report;
    };
  });
}

}  // namespace sparsed::cli
