// upload.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "client/cli/command_line.h"
#include "client/cli/command_walk.h"
#include "client/cli/commands.h"
#include "client/cli/matrix_file.h"
#include "client/cli/matrix_writer.h"
#include "client/cli/metis_partition.h"
#include "client/cli/permutation.h"
#include "client/cli/progress_bar.h"
#include "client/cli/suggestion.h"

namespace sparsed::cli {
namespace {

struct UploadArguments {
  std::vector<std::string> files;
  std::string name;  ///< empty: the file's name without its endings
  std::string type = "f32";
  bool wait = false;
  bool replace = false;
  std::string time_to_live;  ///< "7d"; empty: it stays
  std::string permutation;   ///< a file with an order of rows and columns; empty: as they are
  int shards = 1;
  int replicas = 0;  ///< 0: as the one that it replaces, or as the nodes say
  /// "metis", or a file with the shard of each row; empty: parts of as many nonzeros.
  std::string partition;
  std::vector<std::string> expect;  ///< "spmm:128", "spmm^T:64:tf32", "sddmm:32", "spgemm"
  ReadOptions read;
  std::string flags;  ///< as they were given, but for --name and --format
};

std::string NameFor(const UploadArguments& arguments, const std::string& file) {
  return arguments.name.empty() ? NameOfFile(file) : arguments.name;
}

std::string Source(const MatrixFile& file) {
  return fmt::format("{}{}{}", Description(file.format), file.compression.empty() ? "" : ", ",
                     file.compression);
}

/// A command in the message pipes the matrix into another upload: with the name and the flags of
/// this one.
absl::Status WithFlags(const absl::Status& status, const UploadArguments& arguments,
                       const std::string& path) {
  constexpr std::string_view kUpload = "sparsectl upload - ", kName = "--name=";
  std::string text(status.message());
  const size_t upload = text.find(kUpload);
  const size_t name = upload == text.npos ? upload : text.find(kName, upload);
  if (name == text.npos) return status;
  const size_t end = std::min(text.find_first_of(" \n;", name), text.size());
  text.replace(
      name, end - name,
      fmt::format("{}{}{}", kName, arguments.name.empty() ? SuggestedName(path) : arguments.name,
                  arguments.flags));
  // The command may have said already that indices count from 1.
  if (arguments.read.one_based) text.erase(upload + kUpload.size(), name - upload - kUpload.size());
  return absl::Status(status.code(), text);
}

absl::StatusOr<std::vector<int32_t>> PartitionFor(const UploadArguments& arguments,
                                                  const CsrMatrix& matrix) {
  constexpr const char* kMetis = "metis";
  if (arguments.partition != kMetis) {
    auto parts = ReadPartition(arguments.partition, matrix.rows, arguments.shards);
    std::error_code error;
    if (parts.ok() || std::filesystem::exists(arguments.partition, error)) return parts;
    const std::array<std::string, 1> known = {kMetis};
    return absl::Status(parts.status().code(),
                        fmt::format("--partition: {}{}", std::string(parts.status().message()),
                                    DidYouMean(arguments.partition, known)));
  }
  return MetisPartition({matrix.rows, matrix.cols, matrix.row_offsets, matrix.column_indices},
                        arguments.shards);
}

absl::StatusOr<Report> UploadOne(const Client& client, const UploadArguments& arguments,
                                 const std::string& path, UploadOptions options) {
  ReadOptions read = arguments.read;
  std::string announced;
  read.announce = [&announced](const std::string& note) {
    announced = note;
    fmt::print(stderr, "note    {}\n", note);
  };
  absl::StatusOr<MatrixFile> file = ReadMatrixFile(path, read);
  if (!file.ok()) return WithFlags(file.status(), arguments, path);
  if (!arguments.permutation.empty()) {
    const absl::StatusOr<std::vector<int32_t>> order =
        ReadPermutation(arguments.permutation, file->matrix.rows);
    if (!order.ok()) return order.status();
    absl::StatusOr<CsrMatrix> permuted = PermuteSymmetrically(file->matrix, *order);
    if (!permuted.ok()) return permuted.status();
    file->matrix = *std::move(permuted);
  }
  options.values_are_ones = file->ones;
  options.shards = arguments.shards;
  std::vector<int32_t> partition;
  if (!arguments.partition.empty()) {
    auto parts = PartitionFor(arguments, file->matrix);
    if (!parts.ok()) return parts.status();
    partition = *std::move(parts);
    options.partition = partition;
  }

  const std::string name = NameFor(arguments, path);
  ProgressBar bar;
  options.progress = [&bar](int64_t sent, int64_t total) { bar.Show("uploading", sent, total); };
  const auto begin = std::chrono::steady_clock::now();
  const absl::StatusOr<Matrix> matrix = client.Upload(name, file->matrix.View(), options);
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  if (!matrix.ok()) return matrix.status();
  const absl::StatusOr<MatrixInfo> info = matrix->Info();
  if (!info.ok()) return info.status();
  Report report{ToJson(*info), fmt::format("uploaded {}: {}, in {} ({})\n", name, Summary(*info),
                                           Milliseconds(elapsed), Source(*file))};
  for (const std::string& note : Sentences(*file)) {
    if (note != announced) report.text += fmt::format("note    {}\n", note);
  }
  AddNote(MissingCopies(*info), report);
  report.json["file"] = ToJson(*file);
  report.json["file"]["path"] = path;
  report.json["upload_ns"] = std::chrono::nanoseconds(elapsed).count();
  return report;
}

/// Replaces the description of a matrix by that of the prepared one.
absl::Status WaitFor(const Client& client, const std::string& name, Report& report) {
  if (absl::Status status = WaitReady(client.MatrixNamed(name)); !status.ok()) return status;
  absl::StatusOr<Report> ready = DescribeReady(client, name);
  if (!ready.ok()) return ready.status();
  for (const char* kept : {"file", "upload_ns"}) ready->json[kept] = report.json[kept];
  report.json = std::move(ready->json);
  report.text += ready->text;
  return absl::OkStatus();
}

/// The error of one file of several says what was done before it.
absl::Status After(const std::vector<std::string>& uploaded, const absl::Status& status) {
  if (uploaded.empty()) return status;
  return absl::Status(status.code(),
                      fmt::format("{} (uploaded before it: {})", std::string(status.message()),
                                  fmt::join(uploaded, ", ")));
}

absl::StatusOr<Report> Upload(const Client& client, const UploadArguments& arguments) {
  UploadOptions options;
  options.replace = arguments.replace;
  options.replicas = arguments.replicas;
  if (!arguments.time_to_live.empty()) {
    const auto time_to_live = ParseDuration(arguments.time_to_live);
    if (!time_to_live.ok()) return time_to_live.status();
    options.time_to_live = *time_to_live;
  }
  absl::StatusOr<std::vector<ProblemSignature>> expected = ParseSignatures(arguments.expect);
  if (!expected.ok()) return expected.status();
  options.expected = *std::move(expected);
  std::vector<Report> reports;
  std::vector<std::string> names;
  for (const std::string& file : arguments.files) {
    absl::StatusOr<Report> report = UploadOne(client, arguments, file, options);
    if (!report.ok()) return After(names, report.status());
    reports.push_back(*std::move(report));
    names.push_back(NameFor(arguments, file));
  }
  const bool tf32 = std::ranges::any_of(options.expected, &ProblemSignature::allow_tf32);
  Report all{{{"matrices", Json::array()}}, ""};
  for (size_t i = 0; i < reports.size(); ++i) {
    if (arguments.wait) {
      if (absl::Status status = WaitFor(client, names[i], reports[i]); !status.ok()) return status;
    }
    if (tf32) AddTf32Note(client, *arguments.read.type, reports[i]);
    all.text += reports[i].text;
    all.json["matrices"].push_back(reports[i].json);
  }
  return reports.size() == 1 ? std::move(reports.front()) : all;
}

std::string ForShell(const std::string& word) {
  if (word.find_first_not_of(std::string(kNameCharacters) + "=,^~") == word.npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// " --undirected --type=f64": what was typed, also of the commands around it, for a command that
/// pipes the same matrix into another upload. That one's format is its content's.
std::string TypedFlags(const CLI::App* command) {
  std::string text;
  for (; command != nullptr; command = command->get_parent()) {
    for (const CLI::Option* flag : FlagsIn(*command)) {
      const std::string name = NamesOf(*flag).back();
      if (flag->count() == 0 || name == "--name" || name == "--format") continue;
      if (!TakesValue(*flag)) {
        text += " " + name;
        continue;
      }
      const char* const environment =
          flag->get_envname().empty() ? nullptr : getenv(flag->get_envname().c_str());
      for (const std::string& value : flag->results()) {
        if (environment != nullptr && value == environment) continue;
        text += fmt::format(" {}={}", name, ForShell(value));
      }
    }
  }
  return text;
}

/// Throws CLI::ValidationError where one name would be of two matrices, or of none.
void CheckNames(const UploadArguments& arguments) {
  if (!arguments.name.empty() && arguments.files.size() > 1) {
    throw CLI::ValidationError("--name",
                               "there are several files: their names are those of the "
                               "matrices");
  }
  // TENANT~NAME is another tenant's.
  if (arguments.name.find_first_not_of(std::string(kNameCharacters) + '~') != std::string::npos) {
    throw CLI::ValidationError(
        "--name", fmt::format("\"{}\" is no name: names of matrices have letters, digits and "
                              "._:/@+- alone",
                              arguments.name));
  }
  std::vector<std::string> names;
  for (const std::string& file : arguments.files) {
    if (file == ByteSource::kStandardInput && arguments.name.empty()) {
      throw CLI::ValidationError("-",
                                 "what comes on standard input has no name; give it one: "
                                 "--name=NAME");
    }
    const std::string name = NameFor(arguments, file);
    if (arguments.name.empty() && name.find_first_not_of(kNameCharacters) != name.npos) {
      throw CLI::ValidationError(
          file,
          fmt::format("names of matrices have letters, digits and ._:/@+- alone; give {} one"
                      ": --name={}",
                      arguments.files.size() > 1 ? "it, by itself," : "it", SuggestedName(file)));
    }
    if (std::ranges::find(names, name) != names.end()) {
      throw CLI::ValidationError(file, fmt::format("another of the files is called {}, too", name));
    }
    names.push_back(name);
  }
}

void AddReadOptions(CLI::App* upload, const std::shared_ptr<UploadArguments>& up) {
  upload
      ->add_option_function<std::string>(
          "--format", [up](const std::string& text) { up->read.format = *ParseFileFormat(text); },
          "Read it as that (default: as its content says)")
      ->type_name("mtx|npz|edges|npy|metis")
      ->check([](const std::string& text) { return Refusal(ParseFileFormat(text)); });
  upload->add_flag("--one-based", up->read.one_based,
                   "Indices of an edge list or .npy array count from 1");
  upload->add_flag("--undirected", up->read.undirected,
                   "An edge of an edge list or .npy array is one in both directions");
  upload
      ->add_option("--weight-column", up->read.weight_column,
                   "Column of an edge list that has the values, counted from 1; 0: values are 1 "
                   "(default: the third if there are three)")
      ->check([](const std::string& text) {
        int column = 0;
        return CLI::detail::lexical_cast(text, column) && column != 1 && column != 2 &&
                       column >= 0 && column <= 64
                   ? std::string()
                   : fmt::format("\"{}\" is neither 0 nor a column from 3 to 64", text);
      });
  upload
      ->add_option_function<std::string>(
          "--shape", [up](const std::string& text) { up->read.shape = ParseShape(text); },
          "ROWSxCOLUMNS of the matrix of an edge list or .npy array (default: square, up to the "
          "greatest index)")
      ->check([](const std::string& text) {
        return ParseShape(text)
                   ? std::string()
                   : fmt::format("\"{}\" is not ROWSxCOLUMNS, such as 1000x128, each up to {}",
                                 text, kMaxDimension);
      });
}

}  // namespace

void AddUpload(CLI::App& app, Invocation& invocation) {
  CLI::App* upload = app.add_subcommand(
      "upload",
      "Store matrices from files: Matrix Market (.mtx), SciPy archives (.npz), edge lists (.txt, "
      ".csv, .tsv), NumPy arrays of entries (.npy), METIS graphs (.graph), plain or compressed by "
      "gzip, xz or Zstandard; what a file is its content says");
  upload->footer(ExampleLines(
      {"sparsectl generate matrix 1000x1000 --out=g.mtx.gz",
       "sparsectl upload g.mtx.gz --replace --wait", "sparsectl download g --out=h.npz",
       "sparsectl upload h.npz --replace --type=f16 --tune-for=spmm:128 --tune-for=spmm^T:128",
       "printf '# a path\\n0 1\\n1 2\\n' > path.txt",
       "sparsectl upload path.txt --replace --undirected",
       "printf 'from,to,weight\\n1,2,0.5\\n2,3,1.5\\n' > weighted.csv",
       "sparsectl upload weighted.csv --replace --one-based --shape=3x3",
       "gzip -c path.txt | sparsectl upload - --name=directed --replace",
       "sparsectl upload g.mtx.gz h.npz path.txt --replace"}));
  auto up = std::make_shared<UploadArguments>();
  upload->add_option("FILE", up->files, "The files; - is standard input")->required();
  upload->add_option("--name", up->name,
                     "Its name on the server, if there is one file (default: the file's)");
  upload
      ->add_option(
          "--type", up->type,
          fmt::format("Type of its values: {}. Numbers beyond its range are refused", kTypes))
      ->check(CheckType)
      ->capture_default_str();
  AddReadOptions(upload, up);
  upload->add_flag("--wait", up->wait, "Wait until it is prepared");
  upload->add_option(
      "--permutation", up->permutation,
      "An order of rows and columns, as sparsed_reorder writes it: requests speak of "
      "the matrix in that order");
  CLI::Option* const shards =
      upload
          ->add_option("--shards", up->shards,
                       "Cut its rows into so many parts, which different nodes of a cluster keep, "
                       "where no node has room for all (1 to 1024)")
          ->check(CLI::Range(1, 1024))
          ->capture_default_str();
  upload
      ->add_option("--partition", up->partition,
                   "metis, which makes shards of a mesh or of a graph with communities that name "
                   "few rows of each other's; or a file with the shard of each row, from 0, a line "
                   "each, as METIS's gpmetis writes it (default: parts with as many nonzeros "
                   "each)")
      ->needs(shards);
  upload
      ->add_option(
          "--replicas", up->replicas,
          "Nodes of a cluster that are to have it, each of its shards if it has some (1 to "
          "16; default: as many as the one that it replaces, or as the nodes' --replicas "
          "says)")
      ->check(CLI::Range(1, 16));
  upload->add_flag("--replace", up->replace, "Replace a matrix of this name");
  upload
      ->add_option("--time-to-live", up->time_to_live,
                   "Delete it once nothing has used it for so long, such as 90s, 10m, 24h or 7d "
                   "(default: it stays)")
      ->check([](const std::string& text) { return Refusal(ParseDuration(text)); });
  AddTuneFor(upload, up->expect, "spmm:128");
  upload->callback([&invocation, up, upload] {
    CheckNames(*up);
    up->flags = TypedFlags(upload);
    up->read.type = *ParseType(up->type);
    invocation.run = [up](const Client& client) { return Upload(client, *up); };
  });
}

}  // namespace sparsed::cli
