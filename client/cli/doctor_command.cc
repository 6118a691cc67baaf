// doctor: what is wrong with this machine, and what to do about it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/doctor.h"
#include "client/cli/server_address.h"

namespace sparsed::cli {

std::string_view Name(Finding::Status status) {
  switch (status) {
    case Finding::Status::kOk:
      return "ok";
    case Finding::Status::kNote:
      return "note";
    case Finding::Status::kWarning:
      return "warning";
    case Finding::Status::kProblem:
      return "problem";
  }
  return "";
}

Report Describe(const Findings& findings) {
  Report report{{{"findings", Json::array()}}, ""};
  const auto count = [&findings](Finding::Status status) {
    return std::ranges::count(findings, status, &Finding::status);
  };
  for (const Finding& finding : findings) {
    Json json = {
        {"check", finding.check}, {"status", Name(finding.status)}, {"what", finding.what}};
    report.text +=
        Wrapped(fmt::format("{:8} {:9} {}", Name(finding.status), finding.check, finding.what),
                std::string(19, ' '));
    if (!finding.remedy.empty()) {
      json["remedy"] = finding.remedy;
      report.text += Wrapped(fmt::format("{:18} -> {}", "", finding.remedy), std::string(22, ' '));
    }
    report.json["findings"].push_back(std::move(json));
  }
  const auto problems = count(Finding::Status::kProblem);
  const auto warnings = count(Finding::Status::kWarning);
  report.json["problems"] = problems;
  report.json["warnings"] = warnings;
  report.text += fmt::format("\n{} problem{}, {} warning{}\n", problems, problems == 1 ? "" : "s",
                             warnings, warnings == 1 ? "" : "s");
  report.exit_code = problems > 0 ? kOtherFailure : kSuccess;
  return report;
}

void AddDoctor(CLI::App& app, Invocation& invocation) {
  CLI::App* doctor = app.add_subcommand(
      "doctor",
      "Look for what keeps a server on this machine from starting or makes it slow: driver, "
      "libraries, limits, permissions, ports, disk, a GPU that others use. Works without a server; "
      "exits with 1 if there is a problem");
  doctor->footer(ExampleLines(
      {"sparsectl doctor --data-dir=/tmp || true", "sparsectl doctor -o json || true"}));
  constexpr const char* kStandardFolder = "/var/lib/sparsed";
  auto folder = std::make_shared<std::string>(kStandardFolder);
  auto metrics = std::make_shared<std::string>("127.0.0.1:7471");
  CLI::Option* asked =
      doctor
          ->add_option("--data-dir", *folder,
                       "The server's data folder, as its flag of this name has it; unsaid, "
                       "the one that the server which answers has open, if that "
                       "is to be seen")
          ->type_name("FOLDER")
          ->capture_default_str();
  doctor
      ->add_option("--metrics-listen", *metrics,
                   "Where the server has its metrics, as its flag of this name has it")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  doctor->callback([&invocation, folder, metrics, asked] {
    const std::string problem = AddressProblem(invocation.server);
    if (!problem.empty()) throw CLI::ValidationError("--server", problem);
    invocation.run_here = [&invocation, folder, metrics, asked]() -> absl::StatusOr<Report> {
      Findings findings;
      const std::vector<RunningServer> servers = RunningServers("/proc");
      const bool answers = CheckServer(invocation.server, invocation.options, findings);
      CheckOtherServers(invocation.server, servers, findings);
      CheckPort("/proc", invocation.server, "the server", answers, servers, findings);
      if (!answers) CheckPort("/proc", *metrics, "metrics", false, servers, findings);
      const RunningServer* const server = answers ? ServerAt(invocation.server, servers) : nullptr;
      CheckGpus("", server, findings);
      CheckMachine("/proc", findings);
      CheckLimits("/proc", findings);
      const bool said = asked->count() > 0;
      const std::optional<std::string> in_use =
          said || server == nullptr ? std::nullopt : DataFolderOf("/proc", *server);
      CheckDataFolder(in_use.value_or(*folder), said || in_use.has_value(), findings);
      return Describe(findings);
    };
  });
}

}  // namespace sparsed::cli
