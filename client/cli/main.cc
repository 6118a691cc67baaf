// sparsectl: the command line client.
#include <fmt/format.h>
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/help_text.h"
#include "client/cli/command_line.h"
#include "client/cli/command_walk.h"
#include "client/cli/commands.h"
#include "client/cli/completion.h"
#include "client/cli/former_flags.h"
#include "client/cli/missing_name.h"
#include "client/cli/output.h"
#include "client/cli/quota_waits.h"
#include "client/cli/server_address.h"
#include "client/cli/usage_error.h"

namespace sparsed::cli {
namespace {

/// Prints what a program or a person wants to know of a failure.
/// On standard error. Where that takes nothing (a full disk), nobody can be told.
void Say(const std::string& text) { (void)std::fputs(text.c_str(), stderr); }

int Fail(OutputFormat format, std::string_view code, std::string_view message, int exit_code,
         std::string_view request_id = "") {
  Json error = ErrorJson(code, message);
  if (!request_id.empty()) error["error"]["request_id"] = std::string(request_id);
  if (ForPrograms(format) && WriteOut(Formatted(error, format)).ok()) return exit_code;
  Say(request_id.empty() ? fmt::format("sparsectl: {}\n", message)
                         : fmt::format("sparsectl: {} (request {})\n", message, request_id));
  return exit_code;
}

int Fail(OutputFormat format, const absl::Status& status) {
  return Fail(format, absl::StatusCodeToString(status.code()), std::string(status.message()),
              ExitCode(status), RequestId(status).value_or(""));
}

int FailUsage(OutputFormat format, const std::string& what) {
  return Fail(
      format, "USAGE",
      ForPrograms(format) ? what : what + (what.ends_with('?') ? " See --help" : "; see --help"),
      kWrongUse);
}

/// INVALID_ARGUMENT where a file that says who calls, or whom, is not there.
absl::Status FilesAreThere(const ClientOptions& options) {
  const std::string& ca = options.tls.ca == "system" ? "" : options.tls.ca;
  for (const std::string& path :
       {ca, options.tls.certificate, options.tls.key, options.token_file}) {
    if (!path.empty() && access(path.c_str(), F_OK) != 0) {
      return absl::InvalidArgumentError(fmt::format("{}: {}", path, std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Report> RunCommand(const Invocation& invocation) {
  if (invocation.run_here) return invocation.run_here();
  if (absl::Status there = FilesAreThere(invocation.options); !there.ok()) return there;
  const absl::StatusOr<Client> client = Client::Connect(invocation.server, invocation.options);
  if (!client.ok()) return client.status();
  absl::StatusOr<Report> report = invocation.run(*client);
  if (!report.ok()) return Hints(invocation.server, invocation.options).Suggested(report.status());
  return report;
}

/// For --verbose. From several threads.
void PrintRequest(const std::string& method, const std::string& id) {
  Say(fmt::format("request {}  {}\n", id, method.substr(method.rfind('/') + 1)));
}

int Run(Invocation& invocation) {
  if (invocation.verbose) invocation.options.on_request = PrintRequest;
  FitOutput(invocation.output);
  if (!invocation.sort.empty() && !invocation.lists) {
    return FailUsage(invocation.output, "--sort is for commands that list things, such as list");
  }
  // Commands that ask no server do not care what the environment says of one.
  if (!invocation.run_here) {
    const std::string problem = AddressProblem(invocation.server);
    if (!problem.empty()) return FailUsage(invocation.output, "--server: " + problem);
  }
  // Held by the calls, too: one that was cancelled may still tell of its retry.
  const auto waits = std::make_shared<QuotaWaits>();
  invocation.options.on_retry = [waits](const absl::Status& why, std::chrono::nanoseconds pause) {
    waits->Add(why, pause, QuotaWaits::Clock::now());
  };
  absl::StatusOr<Report> report = RunCommand(invocation);
  Say(waits->Text());
  if (!report.ok()) return Fail(invocation.output, report.status());
  const int exit_code = report->exit_code;
  Say(report->problems);
  if (!invocation.sort.empty() && report->listing.has_value()) {
    const absl::Status sorted = report->listing->Sort(invocation.sort);
    if (!sorted.ok()) return FailUsage(invocation.output, std::string(sorted.message()));
  }
  absl::Status printed = Print(*std::move(report), invocation.output);
  return printed.ok() ? exit_code : Fail(OutputFormat::kText, printed);
}

void AddServerOptions(CLI::App& app, Invocation& invocation) {
  app.add_option("-s,--server", invocation.server, "host:port or unix:/path")
      ->envname("SPARSED_SERVER")
      ->capture_default_str();
  app.add_option("--gateway", invocation.options.gateway,
                 "host:port of an HTTP proxy that connects to servers which cannot be reached from "
                 "here, also to the nodes of a cluster; off: none")
      ->envname("SPARSED_GATEWAY")
      ->type_name("HOST:PORT");
  const auto file = [&app](const char* flag, std::string& path, const char* environment,
                           const char* what) {
    app.add_option(flag, path, what)->envname(environment)->type_name("FILE");
  };
  file("--tls-ca", invocation.options.tls.ca, "SPARSED_TLS_CA",
       "Speak TLS, with a server that these authorities vouch for; \"system\": the machine's");
  file("--tls-certificate", invocation.options.tls.certificate, "SPARSED_TLS_CERTIFICATE",
       "A certificate that says who calls");
  file("--tls-key", invocation.options.tls.key, "SPARSED_TLS_KEY", "Its private key");
  app.add_option("--tls-server-name", invocation.options.tls.server_name,
                 "The name that the server's certificate is for (default: the host of --server)")
      ->envname("SPARSED_TLS_SERVER_NAME")
      ->type_name("NAME");
  file("--token-file", invocation.options.token_file, "SPARSED_TOKEN_FILE",
       "A file with the token that says who calls; SPARSED_TOKEN may hold the token "
       "itself, which no flag does, as others see the flags of a process");
  app.add_option("--priority", invocation.options.priority,
                 "Of products that wait at the server, 0 to 7: of your own the highest goes first")
      ->type_name("N")
      ->check(Between(0, 7))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--timeout",
         [&invocation](const std::string& text) {
           invocation.options.default_timeout = *ParseTimeout(text);
           invocation.options.connect_timeout =
               std::min(invocation.options.connect_timeout,
                        std::chrono::ceil<std::chrono::milliseconds>(*ParseTimeout(text)));
         },
         "How long each call may take, such as 500ms, 30s or 5m (default: as long as it does, and "
         "10s to reach the server)")
      ->envname("SPARSED_TIMEOUT")
      ->type_name("TIME")
      ->check([](const std::string& text) { return Refusal(ParseTimeout(text)); });
}

void AddOutputOptions(CLI::App& app, Invocation& invocation) {
  CLI::Option* output = OneOf(
      app.add_option_function<std::string>(
          "-o,--output",
          [&invocation](const std::string& text) { invocation.output = *ParseOutputFormat(text); },
          "text; wide, with all columns and nothing cut to fit the terminal; json, one object on a "
          "line, also for failures; or yaml"),
      {"text", "wide", "json", "yaml"});
  app.add_flag_callback(
         "--json", [&invocation] { invocation.output = OutputFormat::kJson; },
         "The same as -o json")
      ->excludes(output);
  app.add_flag("-v,--verbose", invocation.verbose,
               "Say on standard error by which id the server's log knows each request");
  app.add_option("--sort", invocation.sort,
                 "Sort what is listed by this column; -COLUMN from the greatest down")
      ->type_name("COLUMN");
}

/// What a command line that makes no sense asks for as its output, too.
OutputFormat OutputOf(std::span<char* const> words) {
  OutputFormat format = OutputFormat::kText;
  for (size_t i = 1; i < words.size(); ++i) {
    std::string_view word = words[i];
    if (word == "--json") format = OutputFormat::kJson;
    std::string_view value;
    if ((word == "-o" || word == "--output") && i + 1 < words.size()) value = words[i + 1];
    for (const std::string_view flag : {"--output=", "-o="}) {
      if (word.starts_with(flag)) value = word.substr(flag.size());
    }
    format = ParseOutputFormat(value).value_or(format);
  }
  return format;
}

/// Of a line that has no end yet: what its words, or else the environment, say of the server and of
/// the way there. What makes no sense is passed over.
void TakeServerOptions(CLI::App& app, std::span<const std::string> words) {
  for (CLI::Option* option : app.get_options()) {
    if (!TakesValue(*option)) continue;
    const std::vector<std::string> names = NamesOf(*option);
    std::optional<std::string> value;
    if (const char* set = getenv(option->get_envname().c_str()); set != nullptr) value = set;
    for (size_t i = 0; i < words.size(); ++i) {
      for (const std::string& name : names) {
        if (words[i].starts_with(name + "=")) value = words[i].substr(name.size() + 1);
        if (words[i] == name && i + 1 < words.size()) value = words[i + 1];
      }
    }
    if (!value) continue;
    try {
      option->add_result(*value);
      option->run_callback();
    } catch (const CLI::Error&) {
      continue;
    }
  }
}

/// For a shell's function: what may come next. Says nothing of what goes wrong.
int CompleteWords(CLI::App& app, Invocation& invocation, std::span<char* const> words) {
  std::vector<std::string> present = WithPresentNames(words);
  // Behind it there are commands alone.
  const bool help = present.size() > 1 && present.front() == "help";
  if (help) present.erase(present.begin());
  if (!present.empty()) TakeServerOptions(app, std::span(present).first(present.size() - 1));
  const auto names = [&invocation, help](const std::string& type, const CLI::App& command) {
    if (help) return std::vector<std::string>();
    if (type == "COLUMN") {
      std::vector<std::string> columns;
      for (const Listing::Column& column : invocation.columns[&command]) {
        columns.push_back(column.Word());
      }
      return columns;
    }
    invocation.options.max_attempts = 1;
    invocation.options.connect_timeout = std::chrono::seconds(1);
    const absl::StatusOr<Client> client = Client::Connect(invocation.server, invocation.options);
    if (!client.ok()) return std::vector<std::string>();
    return NamesLike(*client, type == "BUFFER"  ? "buffer named "
                              : type == "MODEL" ? "model named "
                                                : "matrix named ");
  };
  Completions completions = Complete(app, present, names);
  // A flag's former name stays as it is typed.
  if (!present.empty() && present.back() != words.back()) {
    const std::string_view typed = words.back();
    const size_t shown = std::min(present.back().find('='), present.back().size());
    for (Completion& one : completions.words) {
      one.word.replace(0, shown, typed.substr(0, typed.find('=')));
    }
  }
  return WriteOut(Lines(completions)).ok() ? kSuccess : kOtherFailure;
}

/// gRPC takes memory for each piece of a message and gives it back. glibc would return what is free
/// at the end of its heap to the system each time, to be given zeroed pages anew: that takes as
/// long as the rest of a result's way.
void KeepFreeMemory() {
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
}

int Main(int argc, char** argv) {
  KeepFreeMemory();
  // gRPC reports what it does to reach a server on standard error; our own sentence says it all.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);

  CLI::App app("Talks to sparsed, which holds sparse matrices and multiplies with them.");
  app.name("sparsectl");
  app.footer(ExitCodesText() + ExampleLines({"sparsectl generate matrix 2708x2708 --out=cora.mtx",
                                             "sparsectl upload cora.mtx --replace --wait",
                                             "sparsectl generate dense 2708x128 --out=B.npy",
                                             "sparsectl spmm cora --operand=B.npy --out=C.npy",
                                             "sparsectl list -o wide", "sparsectl spmm --help"}));
  Invocation invocation;
  AddServerOptions(app, invocation);
  AddOutputOptions(app, invocation);
  app.set_version_flag("-V,--version", "sparsectl " SPARSED_VERSION, "Print the version and exit");
  app.require_subcommand(1);
  app.fallthrough();
  AddCommands(app, invocation);

  const std::span<char* const> words(argv, static_cast<size_t>(argc));
  if (words.size() > 1 && std::string_view(words[1]) == "complete-words") {
    return CompleteWords(app, invocation, words.subspan(2));
  }
  const OutputFormat format = OutputOf(words);
  // CLI11 would take the next word for it: a script's --name=$EMPTY --discard names what it makes
  // "--discard".
  for (const std::string_view word : words) {
    if (word.starts_with("--") && word.find('=') == word.size() - 1) {
      return FailUsage(format, fmt::format("{} lacks its value", word.substr(0, word.size() - 1)));
    }
  }
  std::vector<std::string> named = WithPresentNames(words);
  if (const absl::Status help = TakeHelp(app, named); !help.ok()) {
    return FailUsage(format, std::string(help.message()));
  }
  std::vector<const char*> present;
  present.reserve(named.size());
  for (const std::string& word : named) present.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(present.size()), present.data());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      return FailUsage(format, AsTyped(UsageSentence(app, error), words));
    }
    std::ostringstream help;
    app.exit(error, help, help);
    const absl::Status printed = WriteOut(WrappedHelp(help.str(), TerminalColumns(STDOUT_FILENO)));
    return printed.ok() ? kSuccess : Fail(OutputFormat::kText, printed);
  }
  return Run(invocation);
}

}  // namespace
}  // namespace sparsed::cli

int main(int argc, char** argv) { return sparsed::cli::Main(argc, argv); }
