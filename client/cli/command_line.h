// What the commands of sparsectl add to its command line.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/commands.h"
#include "client/cli/output.h"
#include "client/cli/report.h"
#include "sparsed/client.h"

namespace sparsed::cli {

/// What the command line asks for.
struct Invocation {
  std::string server = "127.0.0.1:7470";
  OutputFormat output = OutputFormat::kText;
  std::string sort;  ///< of listings: a column; empty: as they come
  bool verbose = false;
  ClientOptions options;
  std::function<absl::StatusOr<Report>(const Client&)> run;
  std::function<absl::StatusOr<Report>()> run_here;  ///< in its place: it needs no server
  bool lists = false;                                ///< what --sort can sort
  /// Of each command that lists things, the columns: the same whatever is asked for.
  std::map<const CLI::App*, std::vector<Listing::Column>> columns;
};

inline constexpr const char* kTypes = "f32, f64, f16 or bf16";

/// The sentence of a bad value.
template <typename T>
std::string Refusal(const absl::StatusOr<T>& parsed) {
  return parsed.ok() ? std::string() : std::string(parsed.status().message());
}

/// A type's name.
std::string CheckType(const std::string& text);

/// `examples` are whole commands, without "sparsectl" in front.
CLI::App* AddCommand(CLI::App& app, const char* name, const char* description,
                     std::initializer_list<const char*> examples);
/// Examples that are lines for the shell; each works where those before it have run.
std::string ExampleLines(std::initializer_list<const char*> lines);

CLI::Option* AddName(CLI::App* command, std::string& name);
/// `standard` is what is tuned for where nothing is said.
void AddTuneFor(CLI::App* command, std::vector<std::string>& signatures, const char* standard);
/// --format, which needs `out`, the option of the path.
void AddOutputFormat(CLI::App* command, CLI::Option* out, OutputArguments& output);
CLI::Option* AddOut(CLI::App* group, OutputArguments& output);
/// Throws CLI::ValidationError if nothing can be written there.
void CheckOutput(const OutputArguments& output);

/// A whole number in [least, most].
CLI::Validator Between(int64_t least, int64_t most);
/// Likewise a number that need not be whole.
CLI::Validator BetweenReals(double least, double most);
/// Of a file for a dense matrix: what is wrong with its name; empty: nothing.
std::string IsNpyFile(const std::string& path);
/// Its value has to be one of these words, which help and completion show.
CLI::Option* OneOf(CLI::Option* option, const std::vector<std::string>& words);

using DeleteOne = std::function<absl::Status(const Client&, const std::string& name)>;
/// A command "delete" of `app`, which takes several names; `type_name` is what they are of.
void AddDeleteOf(CLI::App& app, Invocation& invocation, const char* what, const char* names_are,
                 const char* type_name, DeleteOne delete_one);

/// All of them.
void AddCommands(CLI::App& app, Invocation& invocation);

void AddBench(CLI::App& app, Invocation& invocation);
void AddBuffers(CLI::App& app, Invocation& invocation);
void AddCluster(CLI::App& app, Invocation& invocation);
/// To "cluster".
void AddClusterStats(CLI::App& cluster, Invocation& invocation);
void AddCompletion(CLI::App& app, Invocation& invocation);
void AddCopy(CLI::App& app, Invocation& invocation);
void AddDelete(CLI::App& app, Invocation& invocation);
void AddDoctor(CLI::App& app, Invocation& invocation);
void AddManual(CLI::App& app, Invocation& invocation);
void AddModel(CLI::App& app, Invocation& invocation);
void AddRecord(CLI::App& app, Invocation& invocation);
void AddRename(CLI::App& app, Invocation& invocation);
void AddSddmm(CLI::App& app, Invocation& invocation);
void AddSpmm(CLI::App& app, Invocation& invocation);
void AddTop(CLI::App& app, Invocation& invocation);
void AddUpload(CLI::App& app, Invocation& invocation);
void AddWatch(CLI::App& app, Invocation& invocation);
void AddDownload(CLI::App& app, Invocation& invocation);
void AddSpgemm(CLI::App& app, Invocation& invocation);
void AddSlow(CLI::App& app, Invocation& invocation);
void AddSnapshot(CLI::App& app, Invocation& invocation);

}  // namespace sparsed::cli
