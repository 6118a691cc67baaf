// Every kernel on given and generated matrices, side by side in one run: a line of JSON for each
// measurement with the median of single calls. Caches are not flushed. Results are checked on
// sampled rows against float64 sums; a wrong one is marked, and the program ends with 1.
//
//   sparsed_bench spmm sddmm --generated rmat18 band16 --k 32,128 > measured.jsonl
//   sparsed_bench pack matrices.xz *.mtx.gz && sparsed_bench spmm --pack matrices.xz
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/pipeline.h"
#include "tests/bench/gpu/builds.h"
#include "tests/bench/gpu/expected.h"
#include "tests/bench/gpu/generated.h"
#include "tests/bench/gpu/iterations.h"
#include "tests/bench/gpu/measure.h"
#include "tests/bench/gpu/spgemm.h"
#include "tests/matrix_market.h"
#include "tests/matrix_pack.h"

namespace sparsed::test {
namespace {

struct Options {
  std::vector<std::string> files;
  std::vector<std::string> packs;
  std::vector<std::string> generated;
  std::vector<std::string> only;
  int64_t least_nonzeros = 0;
  int64_t corner = 0;  ///< 0: whole matrices
  std::string device = "cuda";
  std::optional<double> deadline;
  Settings settings = {
      .operations = {}, .pipelines = {}, .kernels = {}, .widths = {32, 128, 512}, .types = {"f32"}};
  std::string pack_out;
};

int Fail(const std::string& why) {
  std::fprintf(stderr, "sparsed_bench: %s\n", why.c_str());
  return 1;
}

/// A matrix by name, made or read when its turn comes.
struct Source {
  std::string name;
  std::function<absl::StatusOr<NamedPattern>()> get;
};

absl::StatusOr<NamedPattern> ReadFile(const std::string& file, const std::string& name) {
  std::optional<Matrix> matrix = ReadMatrixMarket(file);
  if (!matrix) {
    return absl::NotFoundError(fmt::format(
        "cannot read {}: it is missing, or no real, integer or pattern coordinate file of Matrix "
        "Market",
        file));
  }
  return NamedPattern{name, std::move(matrix->pattern)};
}

std::string NameOf(const std::string& file) {
  const std::string name = std::filesystem::path(file).filename();
  return name.substr(0, name.find(".mtx"));
}

/// All that the flags name.
absl::StatusOr<std::vector<Source>> Sources(const Options& options) {
  std::vector<Source> sources;
  for (const std::string& file : options.files) {
    const std::string name = NameOf(file);
    sources.push_back({name, [file, name] { return ReadFile(file, name); }});
  }
  for (const std::string& pack : options.packs) {
    auto patterns = ReadMatrixPack(pack);
    if (!patterns.ok()) return patterns.status();
    for (NamedPattern& pattern : *patterns) {
      const auto shared = std::make_shared<NamedPattern>(std::move(pattern));
      sources.push_back(
          {shared->name, [shared]() -> absl::StatusOr<NamedPattern> { return *shared; }});
    }
  }
  std::vector<std::string> generated = options.generated;
  if (generated == std::vector<std::string>{"all"}) generated = GeneratedNames();
  for (const std::string& name : generated) {
    sources.push_back({name, [name]() -> absl::StatusOr<NamedPattern> {
                         return NamedPattern{name, *Generated(name)};
                       }});
  }
  if (!options.only.empty()) {
    std::erase_if(sources, [&](const Source& source) {
      return std::find(options.only.begin(), options.only.end(), source.name) == options.only.end();
    });
  }
  return sources;
}

int Pack(const Options& options) {
  std::vector<NamedPattern> patterns;
  int64_t nonzeros = 0;
  for (const std::string& file : options.files) {
    auto matrix = ReadFile(file, NameOf(file));
    if (!matrix.ok()) return Fail(std::string(matrix.status().message()));
    if (matrix->pattern.nnz() < options.least_nonzeros) continue;
    nonzeros += matrix->pattern.nnz();
    patterns.push_back(*std::move(matrix));
  }
  const absl::Status status = WriteMatrixPack(options.pack_out, patterns);
  if (!status.ok()) return Fail(std::string(status.message()));
  std::fprintf(stderr, "%s: %zu of %zu matrices, %lld nonzeros, %llu bytes; values are not kept\n",
               options.pack_out.c_str(), patterns.size(), options.files.size(),
               static_cast<long long>(nonzeros),
               static_cast<unsigned long long>(std::filesystem::file_size(options.pack_out)));
  return 0;
}

/// The first `size` rows and columns.
Pattern Corner(const Pattern& pattern, int64_t size) {
  Pattern corner{size, size, {0}, {}};
  for (int64_t row = 0; row < size; ++row) {
    const int64_t end = row < pattern.rows ? pattern.row_offsets[row + 1] : 0;
    for (int64_t p = row < pattern.rows ? pattern.row_offsets[row] : 0; p < end; ++p) {
      if (pattern.column_indices[p] >= size) break;
      corner.column_indices.push_back(pattern.column_indices[p]);
    }
    corner.row_offsets.push_back(corner.nnz());
  }
  return corner;
}

int MeasureAll(Options options) {
  Schedule schedule(options.deadline);
  for (const std::string& pipeline : options.settings.pipelines) {
    const auto parsed = ParsePipeline(pipeline);
    if (!parsed.ok()) return Fail(std::string(parsed.status().message()));
  }
  const auto sources = Sources(options);
  if (!sources.ok()) return Fail(std::string(sources.status().message()));
  if (sources->empty()) {
    return Fail("no matrix to measure: name some by --generated, --pack or --matrix (--help)");
  }
  const std::vector<std::string>& operations = options.settings.operations;
  const auto asks = [&](std::string_view operation) {
    return std::find(operations.begin(), operations.end(), operation) != operations.end();
  };
  const bool spgemm = asks("spgemm") || asks("spgemm^T");
  const bool build = asks("build"), iteration = asks("iteration");
  if ((spgemm || build || iteration) && operations.size() > 1) {
    return Fail("spgemm, build and iteration are measured alone");
  }
  if (build && (options.device == "cpu" || options.settings.pipelines.empty())) {
    return Fail("build needs a GPU and --pipeline");
  }
  if (options.corner > 0 && operations != std::vector<std::string>{"spgemm"}) {
    return Fail("--corner is for spgemm");
  }
  if (spgemm && options.device == "cpu") return Fail("bench_spgemm measures spgemm on the CPU");
  auto device = Device::Open(options.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu);
  if (!device.ok()) {
    return Fail(fmt::format("{} (--device=cpu measures the CPU's kernels)",
                            std::string(device.status().message())));
  }
  if (options.settings.copy_rate == 0) {
    const auto rate = (*device)->CopyRate();
    if (!rate.ok()) return Fail(std::string(rate.status().message()));
    options.settings.copy_rate = *rate;
  }
  std::fprintf(stderr, "%s, copies at %.0f GB/s\n", (*device)->name().c_str(),
               options.settings.copy_rate);
  int wrong = 0;
  std::vector<NamedPattern> corners;
  for (const Source& source : *sources) {
    if (schedule.over()) {
      schedule.LeaveOut(source.name + ": no time");
      continue;
    }
    const auto matrix = source.get();
    if (!matrix.ok()) return Fail(std::string(matrix.status().message()));
    if (matrix->pattern.nnz() < options.least_nonzeros) continue;
    if (options.corner > 0) {
      corners.push_back({matrix->name, Corner(matrix->pattern, options.corner)});
      continue;
    }
    const auto result =
        spgemm ? MeasureSpgemm(**device, options.settings, schedule, *matrix)
               : (build       ? MeasureBuilds
                  : iteration ? MeasureIterations
                              : Measure)(**device, options.settings, schedule, *matrix);
    if (!result.ok()) return Fail(std::string(result.status().message()));
    wrong += *result;
  }
  for (const NamedPattern& left : corners) {
    for (const NamedPattern& right : corners) {
      const auto result = MeasureSpgemm(**device, options.settings, schedule, left, &right);
      if (!result.ok()) return Fail(std::string(result.status().message()));
      wrong += *result;
    }
  }
  for (const std::string& what : schedule.left_out()) {
    std::fprintf(stderr, "left out: %s\n", what.c_str());
  }
  if (wrong > 0) return Fail(fmt::format("{} results were wrong", wrong));
  return 0;
}

void AddOptions(CLI::App& app, Options& options) {
  Settings& settings = options.settings;
  app.add_option("--matrix", options.files, "Matrix Market files, plain or .gz");
  app.add_option("--pack", options.packs, "files that `sparsed_bench pack` made");
  app.add_option("--generated", options.generated,
                 fmt::format("generated matrices: {}, or all", fmt::join(GeneratedNames(), ", ")))
      ->check([](const std::string& name) {
        const std::vector<std::string> names = GeneratedNames();
        const bool known =
            name == "all" || std::find(names.begin(), names.end(), name) != names.end();
        return known ? ""
                     : fmt::format("there is no generated matrix {}, but {}", name,
                                   fmt::join(names, ", "));
      });
  app.add_option("--only", options.only, "of all these, only the matrices of these names");
  app.add_option("--least-nonzeros", options.least_nonzeros, "no matrix with fewer");
  app.add_option("--corner", options.corner,
                 "spgemm: of all the matrices the first so many rows and columns, each times each")
      ->check(CLI::PositiveNumber);
  app.add_option("--k", settings.widths, "widths of the dense operands, with commas")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, Operand<float>::kMostWidth))
      ->capture_default_str();
  app.add_option("--type", settings.types,
                 "f32, f64, f16, bf16, tf32 (spmm in f32 that may be rounded), several with commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "f64", "f16", "bf16", "tf32"}))
      ->capture_default_str();
  app.add_option("--pipeline,--recipe", settings.pipelines,
                 "layouts to measure besides \"csr\" (and \"transpose\" for spmm^T), such as "
                 "\"lsh_cluster > aspt\"; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--kernel", settings.kernels,
                 "only kernels that have one of these in their names; ratios to cuSPARSE need its "
                 "kernels, too");
  app.add_option("--device", options.device)
      ->check(CLI::IsMember({"cuda", "cpu"}))
      ->capture_default_str();
  app.add_option("--rounds", settings.rounds, "calls of which the median is taken")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app.add_option("--copy-rate", settings.copy_rate,
                 "GB/s that the roofline is counted with; without it, measured at the start");
  app.add_option("--deadline", options.deadline,
                 "seconds after which nothing new begins; what is left out is said at the end");
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Times every kernel on every matrix and prints a line of JSON for each measurement; a "
      "summary goes to standard error. Several operations may be named.");
  Options options;
  app.require_subcommand(1, 3);
  AddOptions(app, options);
  for (const auto& [name, what] :
       {std::pair{"spmm", "C = S * B"}, std::pair{"spmm^T", "C = S^T * B"},
        std::pair{"sddmm", "O = S .* (A * B^T)"},
        std::pair{"spgemm", "C = S * S, or S * S^T if S is not square; on a GPU"},
        std::pair{"spgemm^T", "C = S * S^T; on a GPU"},
        std::pair{"build", "layouts, made by the CPU alone and with a GPU"},
        std::pair{"iteration", "C = S * B and D = S^T * C, from one layout and from two"}}) {
    app.add_subcommand(name, what)->fallthrough();
  }
  CLI::App* const pack = app.add_subcommand(
      "pack", "Put the patterns of Matrix Market files into one small file, without their values");
  pack->add_option("out", options.pack_out, "the file to write")->required();
  pack->add_option("files", options.files, "Matrix Market files, plain or .gz")->required();
  pack->fallthrough();
  CLI11_PARSE(app, argc, argv);
  const std::vector<CLI::App*> commands = app.get_subcommands();
  if (pack->parsed()) {
    if (commands.size() > 1) return Fail("pack and operations do not go together");
    return Pack(options);
  }
  for (const CLI::App* command : commands) {
    options.settings.operations.push_back(command->get_name());
  }
  return MeasureAll(std::move(options));
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) { return sparsed::test::Main(argc, argv); }
