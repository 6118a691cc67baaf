// delete, rename, copy.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/missing_name.h"

namespace sparsed::cli {
namespace {

/// One after another; those that cannot be deleted keep none of the others.
Report DeleteAll(const Client& client, const std::vector<std::string>& names,
                 const DeleteOne& delete_one, Hints& hints) {
  Report report;
  std::vector<std::pair<std::string, absl::Status>> failed;
  std::vector<std::string> deleted;
  for (const std::string& name : names) {
    const absl::Status status = delete_one(client, name);
    if (status.ok()) {
      deleted.push_back(name);
      report.text += fmt::format("deleted {}\n", name);
      continue;
    }
    failed.emplace_back(name, status);
  }
  // Once all are deleted that can be: none of these is suggested.
  for (const auto& [name, status] : failed) report.Failed(hints.Suggested(status), name);
  report.json["deleted"] =
      names.size() == 1 && !deleted.empty() ? Json(names.front()) : Json(deleted);
  return report;
}

Report NamedReport(const MatrixInfo& info, std::string_view name, std::string_view verb) {
  Report report{ToJson(info),
                fmt::format("{} {} to {}: {}\n", verb, name, info.name, Summary(info))};
  AddNote(MissingCopies(info), report);
  return report;
}

}  // namespace

void AddDeleteOf(CLI::App& app, Invocation& invocation, const char* what, const char* names_are,
                 const char* type_name, DeleteOne delete_one) {
  CLI::App* sub = app.add_subcommand("delete", what);
  auto names = std::make_shared<std::vector<std::string>>();
  sub->add_option("NAME", *names, names_are)->type_name(type_name)->required();
  sub->callback([&invocation, names, delete_one = std::move(delete_one)] {
    invocation.run = [&invocation, names,
                      delete_one](const Client& client) -> absl::StatusOr<Report> {
      if (names->size() > 1) {
        Hints hints(invocation.server, invocation.options);
        return DeleteAll(client, *names, delete_one, hints);
      }
      if (absl::Status status = delete_one(client, names->front()); !status.ok()) return status;
      return Report{{{"deleted", names->front()}}, fmt::format("deleted {}\n", names->front())};
    };
  });
}

void AddDelete(CLI::App& app, Invocation& invocation) {
  AddDeleteOf(app, invocation, "Delete matrices from the server", "The matrices", "MATRIX",
              [](const Client& client, const std::string& name) {
                return client.MatrixNamed(name).Delete();
              });
  app.get_subcommand("delete")->footer(ExampleLines(
      {"sparsectl generate matrix 30x30 --out=a.mtx", "sparsectl upload a.mtx --replace",
       "sparsectl copy a b --replace", "sparsectl delete a b"}));
}

void AddRename(CLI::App& app, Invocation& invocation) {
  CLI::App* rename = app.add_subcommand(
      "rename",
      "Give a matrix another name, at once for everybody: what is prepared, whom it is shared with "
      "and requests under way go on");
  rename->footer(ExampleLines({"sparsectl generate matrix 30x30 --out=a.mtx",
                               "sparsectl upload a.mtx --replace", "sparsectl rename a new",
                               "sparsectl rename new a"}));
  auto name = std::make_shared<std::string>();
  auto to = std::make_shared<std::string>();
  AddName(rename, *name);
  rename->add_option("NEW_NAME", *to, "What it is called then; no matrix has this name")
      ->type_name("TEXT")
      ->required();
  rename->callback([&invocation, name, to] {
    invocation.run = [name, to](const Client& client) -> absl::StatusOr<Report> {
      const absl::StatusOr<MatrixInfo> info = client.MatrixNamed(*name).RenameAsync(*to).Wait();
      if (!info.ok()) return info.status();
      return NamedReport(*info, *name, "renamed");
    };
  });
}

void AddCopy(CLI::App& app, Invocation& invocation) {
  CLI::App* copy = app.add_subcommand(
      "copy",
      "Make another matrix of one: with the values that it has now, and pattern, layouts and plans "
      "in common");
  copy->footer(ExampleLines({"sparsectl generate matrix 30x30 --out=a.mtx",
                             "sparsectl upload a.mtx --replace", "sparsectl copy a b --replace"}));
  auto name = std::make_shared<std::string>();
  auto to = std::make_shared<std::string>();
  auto options = std::make_shared<CopyOptions>();
  AddName(copy, *name);
  copy->add_option("NEW_NAME", *to, "The copy's name")->type_name("TEXT")->required();
  copy->add_flag("--replace", options->replace, "Replace a matrix of that name");
  copy->callback([&invocation, name, to, options] {
    invocation.run = [name, to, options](const Client& client) -> absl::StatusOr<Report> {
      const absl::StatusOr<MatrixInfo> info =
          client.MatrixNamed(*name).CopyAsync(*to, *options).Wait();
      if (!info.ok()) return info.status();
      return NamedReport(*info, *name, "copied");
    };
  });
}

}  // namespace sparsed::cli
