// sparsed_corpus: named sparse patterns made from seeds, and what every candidate of the service
// reaches on them. See docs/corpus.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>

#include "kernels/device_id.h"
#include "kernels/features/features.h"
#include "tools/corpus/corpus_list.h"
#include "tools/corpus/estimate.h"
#include "tools/corpus/journal.h"
#include "tools/corpus/measure.h"
#include "tools/corpus/records.h"
#include "tools/exit_codes.h"
#include "tools/matrix_file.h"

namespace sparsed::corpus {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// Times that a pattern may end the program before it is left out.
constexpr int kMostAttempts = 3;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string Sentence(const absl::Status& status) { return std::string(status.message()); }

/// Which patterns.
struct Selection {
  std::string files;
  std::vector<std::string> families;
  int64_t min_nnz = 0, max_nnz = 0;
  size_t limit = 0;
  std::string part = "1/1";
};

void AddSelection(CLI::App& command, Selection& selection) {
  command.add_option("--files", selection.files,
                     "Also the .mtx and .npz files of this folder, plain or compressed, as family "
                     "\"real\"");
  command.add_option("--families", selection.families, "Only these, as `list` has them")
      ->delimiter(',');
  command
      .add_option("--min-nnz", selection.min_nnz,
                  "Only patterns of at least so many expected nonzeros; files are not asked")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--max-nnz", selection.max_nnz, "Likewise of at most so many; 0: any")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--limit", selection.limit, "So many at the most; 0: all");
}

struct Part {
  size_t index = 0, count = 1;
};

/// "2/5".
absl::StatusOr<Part> ParsePart(const std::string& text) {
  Part part;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, part.index);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == '/') {
    const auto second = std::from_chars(first.ptr + 1, end, part.count);
    if (second.ec == std::errc() && second.ptr == end && part.index >= 1 &&
        part.index <= part.count) {
      --part.index;
      return part;
    }
  }
  return absl::InvalidArgumentError(
      fmt::format("--part: \"{}\" is not I/N, such as 2/5, I from 1 to N", text));
}

absl::StatusOr<std::vector<CorpusPattern>> AllPatterns(const std::string& files) {
  std::vector<CorpusPattern> patterns = GeneratedPatterns();
  if (files.empty()) return patterns;
  absl::StatusOr<std::vector<CorpusPattern>> real = PatternsOfFiles(files);
  if (!real.ok()) return real.status();
  std::ranges::move(*real, std::back_inserter(patterns));
  return patterns;
}

absl::StatusOr<std::vector<CorpusPattern>> Select(const Selection& selection) {
  const absl::StatusOr<Part> part = ParsePart(selection.part);
  if (!part.ok()) return part.status();
  absl::StatusOr<std::vector<CorpusPattern>> patterns = AllPatterns(selection.files);
  if (!patterns.ok()) return patterns;
  std::set<std::string> families;
  for (const CorpusPattern& pattern : *patterns) families.insert(pattern.family);
  for (const std::string& family : selection.families) {
    if (families.contains(family)) continue;
    return absl::InvalidArgumentError(fmt::format("--families: there is no \"{}\"; there are: {}",
                                                  family, fmt::join(families, ", ")));
  }
  std::erase_if(*patterns, [&](const CorpusPattern& pattern) {
    const bool known = pattern.nnz > 0;
    return (!selection.families.empty() &&
            std::ranges::count(selection.families, pattern.family) == 0) ||
           (known && pattern.nnz < selection.min_nnz) ||
           (known && selection.max_nnz > 0 && pattern.nnz > selection.max_nnz);
  });
  return patterns;
}

/// In an order that mixes families, so that what is done when time is up is a sample of all.
void MixAndCut(const Selection& selection, std::vector<CorpusPattern>& patterns) {
  std::ranges::sort(patterns, {}, [](const CorpusPattern& p) { return std::pair(p.seed, p.name); });
  const Part part = ParsePart(selection.part).value_or(Part());
  std::vector<CorpusPattern> mine;
  for (size_t i = part.index; i < patterns.size(); i += part.count) {
    if (selection.limit > 0 && mine.size() == selection.limit) break;
    mine.push_back(std::move(patterns[i]));
  }
  patterns = std::move(mine);
}

Json Description(const CorpusPattern& p) {
  return {{"name", p.name},     {"family", p.family}, {"group", p.group},
          {"parent", p.parent}, {"rows", p.rows},     {"cols", p.cols},
          {"nnz", p.nnz},       {"seed", p.seed},     {"parameters", p.parameters}};
}

std::string Quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

absl::Status List(const Selection& selection, bool json) {
  absl::StatusOr<std::vector<CorpusPattern>> patterns = Select(selection);
  if (!patterns.ok()) return patterns.status();
  if (selection.limit > 0 && patterns->size() > selection.limit) {
    patterns->resize(selection.limit);
  }
  bool first = true;
  for (const CorpusPattern& pattern : *patterns) {
    const Json described = Description(pattern);
    if (json) {
      fmt::print("{}\n", described.dump(-1, ' ', false, Json::error_handler_t::replace));
      continue;
    }
    std::vector<std::string> names, values;
    for (const auto& [name, value] : described.items()) {
      names.push_back(name);
      values.push_back(value.is_string() ? Quoted(value.get<std::string>()) : value.dump());
    }
    if (std::exchange(first, false)) fmt::print("{}\n", fmt::join(names, ","));
    fmt::print("{}\n", fmt::join(values, ","));
  }
  return absl::OkStatus();
}

struct WriteOptions {
  std::vector<std::string> names;
  std::string files, folder, ending = "npz";
};

absl::Status WriteFiles(const WriteOptions& options) {
  const absl::StatusOr<std::vector<CorpusPattern>> patterns = AllPatterns(options.files);
  if (!patterns.ok()) return patterns.status();
  std::vector<const CorpusPattern*> wanted;
  for (const std::string& name : options.names) {
    const auto found = std::ranges::find(*patterns, name, &CorpusPattern::name);
    if (found == patterns->end()) {
      return absl::NotFoundError(
          fmt::format("there is no pattern \"{}\"; `sparsed_corpus list` has all names", name));
    }
    wanted.push_back(&*found);
  }
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) {
    return absl::InvalidArgumentError(
        fmt::format("--out: {}: {}", options.folder, error.message()));
  }
  for (const CorpusPattern* const pattern : wanted) {
    absl::StatusOr<Pattern> made = Make(*pattern);
    if (!made.ok()) return made.status();
    const std::string path = fmt::format("{}/{}.{}", options.folder, pattern->name, options.ending);
    const int64_t nnz = made->nnz();
    const absl::Status written =
        tools::WritePattern(path, made->rows, made->cols, std::move(made->row_offsets),
                            std::move(made->column_indices));
    if (!written.ok()) return written;
    fmt::print("wrote {}: {} x {}, {} nonzeros\n", path, made->rows, made->cols, nnz);
  }
  return absl::OkStatus();
}

struct Estimating {
  std::vector<std::string> directories;
  std::string device = "cuda";
  std::vector<std::string> signatures, types = {"f32"};
  int repeat = 9;
};

absl::StatusOr<std::vector<ProblemSignature>> SignaturesOf(const std::vector<std::string>& texts,
                                                           const std::vector<std::string>& types) {
  std::vector<ProblemSignature> signatures;
  for (const std::string& type : types) {
    for (const std::string& text : texts) {
      const absl::StatusOr<ProblemSignature> c = ParseSignature(text, type);
      if (!c.ok()) return absl::InvalidArgumentError("--signatures: " + Sentence(c.status()));
      signatures.push_back(*c);
    }
  }
  return signatures;
}

/// Adds to a pattern's line what rules and models say of it.
using Says = std::function<absl::Status(const Features& features, Json& line)>;

absl::StatusOr<Says> SaysOf(const Estimating& estimating) {
  absl::StatusOr<std::vector<ProblemSignature>> signatures =
      SignaturesOf(estimating.signatures, estimating.types);
  if (!signatures.ok()) return signatures.status();
  const bool cuda = estimating.device == "cuda";
  for (ProblemSignature& c : *signatures) c.device = cuda ? DeviceKind::kCuda : DeviceKind::kCpu;
  std::vector<std::shared_ptr<const engine::Model>> models;
  for (const std::string& directory : estimating.directories) {
    absl::StatusOr<std::shared_ptr<const engine::Model>> model = engine::Model::Load(directory);
    if (!model.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("--model: {}: {}", directory, Sentence(model.status())));
    }
    models.push_back(*std::move(model));
  }
  return [=, signatures = *std::move(signatures), models = std::move(models),
          repeat = estimating.repeat](const Features& features, Json& line) {
    for (const ProblemSignature& c : signatures) {
      // A pattern that is not square has no square.
      if (c.operation == Operation::kSpgemm && features.rows != features.cols) continue;
      const absl::StatusOr<Json> said = EstimatesOf(c, features, models, repeat);
      if (!said.ok()) return said.status();
      line["estimates"].push_back(*said);
    }
    return absl::OkStatus();
  };
}

/// The features of patterns, as they are now: measurements stay good when features change.
absl::Status WriteFeatures(const Selection& selection, const std::string& path, bool maps,
                           const Estimating& estimating) {
  const absl::StatusOr<Says> says = SaysOf(estimating);
  if (!says.ok()) return says.status();
  absl::StatusOr<std::vector<CorpusPattern>> patterns = Select(selection);
  if (!patterns.ok()) return patterns.status();
  MixAndCut(selection, *patterns);
  std::ofstream out(path);
  const auto write = [&](const Json& line) {
    out << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
    return out ? absl::OkStatus()
               : absl::UnavailableError(fmt::format("--out: {}: cannot be written", path));
  };
  if (absl::Status s = write({{"line", "features"}, {"format", 1}}); !s.ok()) return s;
  BuildContext context;
  context.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  context.memory = &HeapMemory();
  size_t failed = 0;
  for (const CorpusPattern& pattern : *patterns) {
    Json line = {{"line", "pattern"},
                 {"pattern", pattern.name},
                 {"family", pattern.family},
                 {"group", pattern.group}};
    const absl::StatusOr<Pattern> made = Make(pattern);
    const absl::StatusOr<Features> features =
        made.ok() ? ComputeFeatures(made->view(), context) : made.status();
    if (features.ok()) {
      line["features"] = ToJson(*features, maps);
      if (absl::Status s = (*says)(*features, line); !s.ok()) return s;
    } else {
      line["failed"] = Sentence(features.status());
      ++failed;
    }
    if (absl::Status s = write(line); !s.ok()) return s;
  }
  fmt::print("features of {} patterns, {} failed\n", patterns->size() - failed, failed);
  return absl::OkStatus();
}

struct MeasureArguments {
  Selection selection;
  std::string out, device = "cpu";
  std::vector<std::string> signatures = {"spmm:32",  "spmm:128",  "spmm:512", "spmm^T:128",
                                         "sddmm:32", "sddmm:128", "spgemm"};
  std::vector<std::string> types = {"f32"};
  std::vector<std::string> pipelines;
  MeasureOptions options;
  double stop_after = 0;
  bool maps = false;
};

/// What measurements of one file have in common.
Json RunOf(const MeasureArguments& arguments, const Measurer& measurer) {
  std::vector<std::string> signatures;
  for (const ProblemSignature& c : arguments.options.signatures) signatures.push_back(ToString(c));
  Json run = {{"format", 1},
              {"device", arguments.device},
              {"device_model", measurer.device_model()},
              {"classes", signatures},
              {"explore", arguments.options.explore},
              {"threads", arguments.options.threads},
              {"trial_budget_ms", arguments.options.trial_budget_ms},
              {"seconds_per_pattern", arguments.options.seconds},
              {"maps", arguments.maps}};
  if (!arguments.pipelines.empty()) run["recipes"] = arguments.pipelines;
  if (!arguments.options.model.empty()) {
    run["selector"] = arguments.options.model;
    run["expected_requests"] = arguments.options.expected_requests;
  }
  return run;
}

/// The members of the line that ends a pattern, after its measurements were written. An error ends
/// the run.
absl::StatusOr<Json> MeasureOne(const CorpusPattern& pattern, const MeasureArguments& arguments,
                                Measurer& measurer, Journal& journal) {
  Json end = Description(pattern);
  end.erase("name");
  const auto begin = Clock::now();
  const absl::StatusOr<Pattern> made = Make(pattern);
  if (!made.ok()) {
    end["failed"] = Sentence(made.status());
    return end;
  }
  end["rows"] = made->rows;
  end["cols"] = made->cols;
  end["nnz"] = made->nnz();
  end["make_seconds"] = SecondsSince(begin);
  const absl::StatusOr<Measured> measured = measurer.Measure(*made);
  if (absl::Status lost = measurer.device_status(); !lost.ok()) return lost;
  if (!measured.ok()) {
    end["failed"] = Sentence(measured.status());
    return end;
  }
  for (const engine::Measurement& measurement : measured->measurements) {
    Json line = {{"family", pattern.family}, {"group", pattern.group}};
    line.update(ToJson(measurement));
    if (absl::Status s = journal.AddMeasurement(pattern.name, line); !s.ok()) return s;
  }
  end["measurements"] = measured->measurements.size();
  end["seconds"] = measured->seconds;
  if (measured->features != nullptr) {
    end["features"] = ToJson(*measured->features, arguments.maps);
  }
  return end;
}

absl::Status Measure(MeasureArguments& arguments) {
  const std::optional<DeviceId> device = ParseDeviceId(arguments.device);
  if (!device) {
    return absl::InvalidArgumentError(
        fmt::format("--device: \"{}\" is no device; expected cpu or cuda:N", arguments.device));
  }
  arguments.options.device = *device;
  absl::StatusOr<std::vector<ProblemSignature>> signatures =
      SignaturesOf(arguments.signatures, arguments.types);
  if (!signatures.ok()) return signatures.status();
  arguments.options.signatures = *std::move(signatures);
  for (const std::string& pipeline : arguments.pipelines) {
    absl::StatusOr<engine::Asked> asked = engine::ParseAsked(pipeline, "");
    if (!asked.ok()) return absl::InvalidArgumentError("--pipeline: " + Sentence(asked.status()));
    arguments.options.asked.push_back(*std::move(asked));
  }
  absl::StatusOr<std::vector<CorpusPattern>> patterns = Select(arguments.selection);
  if (!patterns.ok()) return patterns.status();
  MixAndCut(arguments.selection, *patterns);
  absl::StatusOr<std::unique_ptr<Measurer>> measurer = Measurer::Open(arguments.options);
  if (!measurer.ok()) return measurer.status();
  absl::StatusOr<Journal> journal = Journal::Open(arguments.out, RunOf(arguments, **measurer));
  if (!journal.ok()) return journal.status();
  if (absl::Status status = journal->ForgetWhenInterrupted(); !status.ok()) return status;
  const auto begin = Clock::now();
  size_t failed = 0, measured = 0, known = 0;
  for (const CorpusPattern& pattern : *patterns) {
    if (journal->IsDone(pattern.name)) {
      ++known;
      continue;
    }
    if (arguments.stop_after > 0 && SecondsSince(begin) >= arguments.stop_after) break;
    absl::StatusOr<Json> end = Json::object();
    if (const int attempts = journal->attempts(pattern.name); attempts >= kMostAttempts) {
      *end = {{"failed", fmt::format("the program ended {} times within it", attempts)}};
    } else {
      if (absl::Status status = journal->Begin(pattern.name); !status.ok()) return status;
      end = MeasureOne(pattern, arguments, **measurer, *journal);
      if (!end.ok()) return end.status();
    }
    if (absl::Status status = journal->End(pattern.name, *end); !status.ok()) return status;
    ++measured;
    failed += end->contains("failed") ? 1 : 0;
    fmt::print(
        stderr, "{}/{} {}: {}\n", known + measured, patterns->size(), pattern.name,
        end->contains("failed")
            ? (*end)["failed"].get<std::string>()
            : fmt::format("{} nonzeros, {} measurements, {:.1f} s", (*end)["nnz"].get<int64_t>(),
                          (*end)["measurements"].get<size_t>(), (*end)["seconds"].get<double>()));
  }
  fmt::print("{} patterns measured, {} of them failed, {} done before, {} left\n", measured, failed,
             known, patterns->size() - known - measured);
  return absl::OkStatus();
}

void AddMeasure(CLI::App& command, MeasureArguments& arguments) {
  AddSelection(command, arguments.selection);
  MeasureOptions& options = arguments.options;
  options.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  command
      .add_option("--out", arguments.out,
                  "The file of JSON lines; one that is there is gone on with")
      ->required();
  command.add_option("--device", arguments.device, "cpu or cuda:N")->capture_default_str();
  command.add_option("--part", arguments.selection.part, "I/N: the I-th of N equal parts")
      ->capture_default_str();
  command
      .add_option("--signatures,--classes", arguments.signatures,
                  "Problem signatures, as spmm:128, spmm^T:64, spmm:128:tf32, sddmm:32, spgemm")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--types", arguments.types, "Types of values: f32, f64, f16, bf16")
      ->delimiter(',')
      ->capture_default_str();
  CLI::Option* const explore = command.add_flag(
      "--explore", options.explore, "Also what rules and earlier trials of the pattern rule out");
  command
      .add_option("--model", options.model,
                  "Directory of a trained model that chooses what is tried, in the place of rules")
      ->excludes(explore);
  command
      .add_option("--expected-requests", options.expected_requests,
                  "What a signature is expected to serve, over which a model's choice must pay")
      ->check(CLI::PositiveNumber)
      ->needs("--model")
      ->capture_default_str();
  command
      .add_option(
          "--pipeline,--recipe", arguments.pipelines,
          "Only this transform pipeline, and plain CSR; may be repeated. Signatures that it does "
          "not serve are an error")
      ->excludes(explore)
      ->excludes("--model");
  command.add_flag("--maps", arguments.maps, "Write the density maps of 128 x 128 tiles, too");
  command
      .add_option("--seconds-per-pattern", options.seconds,
                  "After which no further layout is built; 0: no limit")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--stop-after", arguments.stop_after,
                  "Seconds after which no further pattern is begun; 0: no limit")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--trial-budget-ms", options.trial_budget_ms,
                  "Milliseconds that the trials of a signature may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--threads", options.threads, "Of builds and of CPU kernels")
      ->check(CLI::Range(1, 1024));
  command.add_option("--memory", options.memory_bytes, "Bytes of the host's memory, as in 16GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{1} << 20, int64_t{1} << 44))
      ->capture_default_str();
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Sparse patterns made from seeds, with names, families and groups, and what every candidate "
      "of "
      "the service reaches on them.");
  app.require_subcommand(1);
  absl::Status status;

  Selection listed;
  std::string format = "csv";
  CLI::App* const list =
      app.add_subcommand("list", "Names, families, groups and expected sizes of all patterns");
  AddSelection(*list, listed);
  list->add_option("--format", format, "csv or jsonl: a line a pattern")
      ->check(CLI::IsMember({"csv", "jsonl"}))
      ->capture_default_str();
  list->callback([&] { status = List(listed, format == "jsonl"); });

  WriteOptions written;
  CLI::App* const write = app.add_subcommand("write", "Makes patterns and writes them to files");
  write->add_option("NAME", written.names, "As `list` has them")->required();
  write->add_option("--out", written.folder, "The folder, made if it is not there")->required();
  write->add_option("--files", written.files, "As of `list`");
  write->add_option("--format", written.ending, "Of the files, as their names end")
      ->check(CLI::IsMember({"npz", "mtx", "mtx.gz", "mtx.xz", "mtx.zst"}))
      ->capture_default_str();
  write->callback([&] { status = WriteFiles(written); });

  Selection described;
  std::string features_path;
  bool maps = false;
  CLI::App* const features =
      app.add_subcommand("features", "Computes the features of patterns, without measuring");
  AddSelection(*features, described);
  features->add_option("--part", described.part, "I/N: the I-th of N equal parts")
      ->capture_default_str();
  features->add_option("--out", features_path, "The file of JSON lines, written anew")->required();
  features->add_flag("--maps", maps, "Write the density maps of 128 x 128 tiles, too");
  Estimating estimating;
  features->add_option(
      "--model", estimating.directories,
      "Also what the trained model of this directory estimates of --signatures, and "
      "how long that takes it; may be repeated");
  features
      ->add_option("--signatures,--classes", estimating.signatures,
                   "Also what the rules let through of these, as `measure` has them")
      ->delimiter(',');
  features->add_option("--types", estimating.types, "Of --signatures: f32, f64, f16, bf16")
      ->delimiter(',')
      ->capture_default_str();
  features->add_option("--device", estimating.device, "Of --signatures: cpu or cuda; none is used")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  features->add_option("--repeat", estimating.repeat, "Estimates, of which the median is taken")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  features->callback([&] { status = WriteFeatures(described, features_path, maps, estimating); });

  MeasureArguments measured;
  CLI::App* const measure = app.add_subcommand(
      "measure", "Measures every candidate on the patterns, and goes on where it was stopped");
  AddMeasure(*measure, measured);
  measure->callback([&] { status = Measure(measured); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : tools::kWrongUse;
  }
  if (status.ok()) return 0;
  return tools::ExitWith("sparsed_corpus", status);
}

}  // namespace
}  // namespace sparsed::corpus

int main(int argc, char** argv) { return sparsed::corpus::Main(argc, argv); }
