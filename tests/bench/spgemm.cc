// SpGEMM, C = S*S (S*S^T if S is not square), f32, rows sorted: every kernel of the CPU next to
// SuiteSparse:GraphBLAS, alternating in one run. A line of JSON for each matrix and number of
// threads, and a last one with the geometric means. `plan` is the kernel that the service chooses
// by itself, `ratio` GraphBLAS's time over that kernel's.
//
// Ours is timed as the engine runs it: analyse, then block of rows by block of rows into scratch,
// compacted into a result of the size of the bound; GraphBLAS with its result sorted and complete.
// Both allocate their result within the time, each from its own allocator, which may have memory at
// hand; operands are ready before.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#ifdef SPARSED_HAS_GRAPHBLAS
#include <complex>
extern "C" {
#include <GraphBLAS.h>
}
#endif

#include "engine/catalog/catalog.h"
#include "engine/catalog/dense_catalog.h"
#include "engine/execution/executor.h"
#include "engine/memory/budget.h"
#include "engine/preparation/preparation.h"
#include "engine/preparation/trial.h"
#include "engine/store/store.h"
#include "kernels/kernel_table.h"
#include "kernels/spgemm_blocks.h"
#include "tests/generate.h"
#include "tests/matrix_market.h"
#include "tests/product_formats.h"

namespace sparsed {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr Problem kProblem = {.operation = Operation::kSpgemm, .type = ElementType::kF32};

/// S and T in f32.
struct Operands {
  test::Pattern s;
  std::vector<float> s_values;
  test::Pattern t;
  std::vector<float> t_values;

  SpgemmArguments arguments() const {
    return {s.view(), s_values.data(), t.view(), t_values.data()};
  }
};

Operands MakeOperands(test::Pattern pattern, const std::vector<double>& values) {
  Operands operands;
  operands.s_values.assign(values.begin(), values.end());
  if (pattern.rows == pattern.cols) {
    operands.t = pattern;
    operands.t_values = operands.s_values;
  } else {
    std::vector<int64_t> source;
    operands.t = test::Transpose(pattern, &source);
    for (const int64_t p : source) operands.t_values.push_back(operands.s_values[p]);
  }
  operands.s = std::move(pattern);
  return operands;
}

Operands MakePair(test::Pattern s, test::Pattern t) {
  Operands operands;
  const std::vector<double> s_values = test::RandomValues(s.nnz(), 2);
  const std::vector<double> t_values = test::RandomValues(t.nnz(), 3);
  operands.s_values.assign(s_values.begin(), s_values.end());
  operands.t_values.assign(t_values.begin(), t_values.end());
  operands.s = std::move(s);
  operands.t = std::move(t);
  return operands;
}

/// An uninitialised array from the engine's memory, which keeps large blocks for the next request.
template <typename T>
class Block {
 public:
  Block() = default;
  Block(engine::Budget& budget, int64_t size) {
    absl::StatusOr<Buffer> buffer =
        budget.Source(engine::MemoryUse::kRequests).Allocate(static_cast<size_t>(size) * sizeof(T));
    if (!buffer.ok()) {
      std::fprintf(stderr, "%s\n", buffer.status().ToString().c_str());
      std::exit(1);
    }
    buffer_ = *std::move(buffer);
  }
  T* get() { return reinterpret_cast<T*>(buffer_.mutable_data()); }
  size_t bytes() const { return buffer_.size(); }

 private:
  Buffer buffer_;
};

/// C, one block after the other.
struct Result {
  Block<int32_t> columns;
  Block<float> values;
  Block<int64_t> row_offsets;
  int64_t nnz = 0;
  int64_t products = 0;
};

/// Memory that a worker slot of the engine has at hand before a request comes.
struct Scratch {
  Block<std::byte> workspace;
  Block<int32_t> columns;
  Block<float> values;
};

/// Nothing if the matrices don't suit the kernel's format.
std::optional<Result> Multiply(engine::Budget& budget, const SpgemmKernel& kernel,
                               const SpgemmArguments& arguments, int threads, int64_t block_entries,
                               Scratch& scratch) {
  const Problem& problem = kProblem;
  const size_t workspace = kernel.workspace(problem, arguments, threads);
  if (workspace > scratch.workspace.bytes()) {
    scratch.workspace = Block<std::byte>(budget, static_cast<int64_t>(workspace));
  }
  Context context = {.threads = threads, .workspace = {scratch.workspace.get(), workspace}};
  std::shared_ptr<void> prepared;
  if (kernel.prepare != nullptr) {
    absl::StatusOr<std::shared_ptr<void>> made =
        kernel.prepare(context, problem, arguments, budget.Source(engine::MemoryUse::kRequests));
    if (absl::IsFailedPrecondition(made.status())) return std::nullopt;
    if (!made.ok()) std::abort();
    prepared = *std::move(made);
    context.prepared = prepared.get();
  }
  const int64_t rows = arguments.left.rows;
  Result result;
  std::vector<int64_t> row_bounds(rows);
  if (!kernel.analyse(context, arguments, row_bounds, &result.products).ok()) std::abort();
  const int64_t bound = std::accumulate(row_bounds.begin(), row_bounds.end(), int64_t{0});
  result.columns = Block<int32_t>(budget, bound);
  result.values = Block<float>(budget, bound);
  result.row_offsets = Block<int64_t>(budget, rows + 1);
  int64_t* const row_offsets = result.row_offsets.get();
  row_offsets[0] = 0;
  std::vector<int64_t> row_begin;
  std::vector<int64_t> row_nnz;
  RowRange block;
  for (int64_t row = 0; row < rows; row = block.end) {
    block = NextRowBlock(row_bounds, row, block_entries);
    const auto block_rows = static_cast<size_t>(block.end - block.begin);
    row_begin.resize(block_rows + 1);
    row_nnz.resize(block_rows);
    const int64_t room = PlaceRowBlock(row_bounds, block, row_begin);
    if (static_cast<size_t>(room) * sizeof(float) > scratch.values.bytes()) {
      scratch.columns = Block<int32_t>(budget, room);
      scratch.values = Block<float>(budget, room);
    }
    if (!kernel
             .numeric(context, problem, arguments, block, row_begin, scratch.columns.get(),
                      scratch.values.get(), row_nnz)
             .ok()) {
      std::abort();
    }
    for (size_t i = 0; i < block_rows; ++i) {
      row_offsets[block.begin + i + 1] = row_offsets[block.begin + i] + row_nnz[i];
    }
    result.nnz += CompactRowBlock(
        {row_begin, row_nnz, scratch.columns.get(), scratch.values.get(), problem.type}, threads,
        result.columns.get() + result.nnz, result.values.get() + result.nnz);
  }
  return result;
}

using engine::Median;

/// A kernel so many times slower than the default one is not run again.
constexpr double kHopeless = 3;
/// Rounds after the first, however long they take.
constexpr int kLeastRounds = 3;

/// Milliseconds by the clock, and of processors: the second tells little of threads, but does not
/// count what other programs take from one.
struct Times {
  std::vector<double> wall, cpu;

  void Measure(const std::function<void()>& work) {
    const auto begin = Clock::now();
    const std::clock_t cpu_begin = std::clock();
    work();
    const std::chrono::duration<double, std::milli> elapsed = Clock::now() - begin;
    const double cpu_seconds = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
    wall.push_back(elapsed.count());
    cpu.push_back(1e3 * cpu_seconds);
  }
};

/// The kernel over sections, "cpu.incsr.sections", of S columns in blocks of b; its name has both.
template <int64_t kColumns, int64_t kBlock>
SpgemmKernel SectionsOf() {
  static const std::string name =
      "cpu.incsr.sections S=" + std::to_string(kColumns) + " b=" + std::to_string(kBlock);
  SpgemmKernel kernel = *FindSpgemmKernel("cpu.incsr.sections");
  kernel.name = name;
  kernel.pipeline = [](const Problem&, const CsrView&,
                       const CsrView&) -> absl::StatusOr<std::string> {
    return "incsr(columns=" + std::to_string(kColumns) + ",block=" + std::to_string(kBlock) + ")";
  };
  return kernel;
}

/// What is measured: all kernels, the default one, or that one and sections of every shape.
std::vector<SpgemmKernel> Contenders(bool all, bool sections) {
  std::vector<SpgemmKernel> kernels;
  for (const SpgemmKernel& kernel : SpgemmKernels()) {
    if (kernel.device != DeviceKind::kCpu || !kernel.supports(kProblem)) continue;
    if (kernels.empty() || (all && !sections)) kernels.push_back(kernel);
  }
  if (sections) {
    for (const auto make : {SectionsOf<4, 4>, SectionsOf<8, 4>, SectionsOf<16, 4>,
                            SectionsOf<32, 4>, SectionsOf<8, 8>, SectionsOf<16, 8>,
                            SectionsOf<32, 8>, SectionsOf<16, 16>, SectionsOf<32, 16>}) {
      kernels.push_back(make());
    }
  }
  return kernels;
}

/// The kernel that the service chooses by itself for the pair, and what it measured.
struct Choice {
  std::string kernel;  ///< empty: it could not
  Json trials;         ///< milliseconds by kernel
};
Choice Choose(const Operands& operands, int threads) {
  const std::unique_ptr<engine::Store> store = engine::MakeInMemoryStore();
  engine::Budget budget(int64_t{32} << 30, int64_t{16} << 30);
  engine::Catalog catalog(*store, budget);
  engine::DenseCatalog dense(*store, budget);
  engine::Observer observer;
  engine::Executor executor({.slots = 1, .threads_per_slot = threads}, catalog, dense, budget,
                            observer);
  engine::Preparation preparation(engine::PreparationOptions(), catalog, *store, budget, executor,
                                  observer);
  const auto insert = [&](const char* name, const test::Pattern& pattern,
                          const std::vector<float>& values) {
    engine::UploadHeader header;
    header.tenant = std::string("bench");
    header.name = name;
    header.rows = pattern.rows;
    header.cols = pattern.cols;
    header.nnz = pattern.nnz();
    return catalog.Insert(header, test::MakeArray("row_offsets", pattern.row_offsets),
                          test::MakeArray("column_indices", pattern.column_indices),
                          test::MakeArray("values", values));
  };
  const absl::StatusOr<engine::MatrixLease> s = insert("S", operands.s, operands.s_values);
  const absl::StatusOr<engine::MatrixLease> t = insert("T", operands.t, operands.t_values);
  if (!s.ok() || !t.ok()) return {};
  const Problem& problem = kProblem;
  preparation.RequestTrial({(*s)->pattern(), (*t)->pattern()}, problem);
  while (preparation.pending() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto found = (*s)->pattern()->plans().Find(SignatureOf(problem),
                                                   engine::PatternPair{(*t)->pattern()->hash()});
  executor.Close();
  Choice choice;
  if (found.exact) choice.kernel = found.plan->plan.kernel;
  for (const engine::Measurement& m : (*s)->pattern()->trials().measurements()) {
    choice.trials[m.kernel] = {{"ms", m.median_ms}, {"default_ms", m.baseline_ms}};
  }
  return choice;
}

#ifdef SPARSED_HAS_GRAPHBLAS
class GraphBlas {
 public:
  explicit GraphBlas(const Operands& operands)
      : s_(Import(operands.s, operands.s_values)), t_(Import(operands.t, operands.t_values)) {
    GrB_Descriptor_new(&sorted_);
    GxB_Desc_set(sorted_, GxB_SORT, true);
  }
  ~GraphBlas() {
    Forget();
    GrB_Matrix_free(&s_);
    GrB_Matrix_free(&t_);
    GrB_Descriptor_free(&sorted_);
  }
  GraphBlas(const GraphBlas&) = delete;
  GraphBlas& operator=(const GraphBlas&) = delete;

  void Multiply(int threads) {
    GxB_Global_Option_set(GxB_GLOBAL_NTHREADS, threads);
    GrB_Index rows = 0;
    GrB_Index cols = 0;
    GrB_Matrix_nrows(&rows, s_);
    GrB_Matrix_ncols(&cols, t_);
    GrB_Matrix_new(&c_, GrB_FP32, rows, cols);
    const GrB_Info info =
        GrB_mxm(c_, nullptr, nullptr, GrB_PLUS_TIMES_SEMIRING_FP32, s_, t_, sorted_);
    if (info != GrB_SUCCESS) std::abort();
    GrB_Matrix_wait(c_, GrB_MATERIALIZE);
  }
  int64_t nnz() const {
    GrB_Index count = 0;
    GrB_Matrix_nvals(&count, c_);
    return static_cast<int64_t>(count);
  }
  void Forget() { GrB_Matrix_free(&c_); }

 private:
  static GrB_Matrix Import(const test::Pattern& pattern, const std::vector<float>& values) {
    GrB_Matrix matrix = nullptr;
    const std::vector<GrB_Index> offsets(pattern.row_offsets.begin(), pattern.row_offsets.end());
    const std::vector<GrB_Index> columns(pattern.column_indices.begin(),
                                         pattern.column_indices.end());
    GrB_Matrix_import_FP32(&matrix, GrB_FP32, pattern.rows, pattern.cols, offsets.data(),
                           columns.data(), values.data(), offsets.size(), columns.size(),
                           values.size(), GrB_CSR_FORMAT);
    GrB_Matrix_wait(matrix, GrB_MATERIALIZE);
    return matrix;
  }

  GrB_Matrix s_;
  GrB_Matrix t_;
  GrB_Matrix c_ = nullptr;
  GrB_Descriptor sorted_ = nullptr;
};
#endif

struct Options {
  std::vector<std::string> files;
  std::string generated = "all";
  std::vector<int> threads = {1, 2};
  int repeats = 5;
  double seconds = 6;
  int64_t block_entries = 0;  ///< 0: what the engine takes
  int64_t min_nnz = 100'000;
  int64_t max_products = 300'000'000;
  bool all_kernels = true;
  bool sections = false;
};

/// Geometric means of GraphBLAS's time over ours.
struct Summary {
  std::map<std::string, std::vector<double>> ratios;

  void Print() const {
    for (const auto& [group, values] : ratios) {
      double logarithms = 0;
      for (const double v : values) logarithms += std::log(v);
      const Json line = {{"summary", group},
                         {"measurements", values.size()},
                         {"geometric_mean_ratio", std::exp(logarithms / values.size())},
                         {"min_ratio", *std::min_element(values.begin(), values.end())}};
      std::printf("%s\n", line.dump().c_str());
    }
  }
};

void Measure(const std::string& name, const std::string& group, const Operands& operands,
             const Options& options, Summary& summary) {
  const SpgemmArguments arguments = operands.arguments();
  std::vector<SpgemmKernel> kernels;
  // As a server has them: made once, whatever the number of products.
  std::map<std::string_view, test::ProductFormats> formats;
  for (const SpgemmKernel& kernel : Contenders(options.all_kernels, options.sections)) {
    BuildContext building;
    building.threads = options.threads.back();
    building.memory = &HeapMemory();
    absl::StatusOr<test::ProductFormats> made =
        test::MakeFormats(kernel, kProblem, arguments, building);
    if (absl::IsFailedPrecondition(made.status())) continue;
    if (!made.ok()) std::abort();
    formats[kernel.name] = *std::move(made);
    kernels.push_back(kernel);
  }
#ifdef SPARSED_HAS_GRAPHBLAS
  GraphBlas graphblas(operands);
#endif
  for (const int threads : options.threads) {
    const int64_t block_entries =
        options.block_entries > 0 ? options.block_entries : RowBlockEntries(threads);
    engine::Budget budget(int64_t{32} << 30, 0);
    Scratch scratch;
    std::map<std::string_view, Times> times;
    int64_t nnz = -1;
    int64_t products = 0;
    const auto begin = Clock::now();
    std::set<std::string_view> hopeless;
    // The first round only warms up, and shows who need not come again.
    for (int round = 0; round <= options.repeats; ++round) {
      for (const SpgemmKernel& kernel : kernels) {
        if (hopeless.contains(kernel.name)) continue;
        std::optional<Result> result;
        SpgemmArguments of_kernel = arguments;
        formats[kernel.name].AddTo(of_kernel);
        times[kernel.name].Measure(
            [&] { result = Multiply(budget, kernel, of_kernel, threads, block_entries, scratch); });
        if (!result) {
          hopeless.insert(kernel.name);
          times.erase(kernel.name);
          continue;
        }
        if (round == 0 && times[kernel.name].cpu[0] > kHopeless * times[kernels[0].name].cpu[0]) {
          hopeless.insert(kernel.name);
        }
        if (nnz >= 0 && nnz != result->nnz) {
          std::fprintf(stderr, "%s: %ld entries by %s, not %ld\n", name.c_str(), result->nnz,
                       std::string(kernel.name).c_str(), nnz);
          std::exit(1);
        }
        nnz = result->nnz;
        products = result->products;
      }
#ifdef SPARSED_HAS_GRAPHBLAS
      times["graphblas"].Measure([&] { graphblas.Multiply(threads); });
      if (graphblas.nnz() != nnz) {
        std::fprintf(stderr, "%s: %ld entries here, %ld in GraphBLAS\n", name.c_str(), nnz,
                     graphblas.nnz());
        std::exit(1);
      }
      graphblas.Forget();
#endif
      if (round == 0) {
        for (auto& [name, list] : times) {
          if (!hopeless.contains(name)) list = {};
        }
      }
      const std::chrono::duration<double> elapsed = Clock::now() - begin;
      if (round >= kLeastRounds && elapsed.count() > options.seconds) break;
    }
    // What has to be moved at the least: S and T once, C once.
    const double roofline_bytes =
        8.0 * static_cast<double>(arguments.left.nnz() + arguments.right.nnz() + nnz);
    Json line = {{"matrix", name},
                 {"group", group},
                 {"threads", threads},
                 {"rows", arguments.left.rows},
                 {"nnz", arguments.left.nnz()},
                 {"products", products},
                 {"nnz_c", nnz},
                 {"floor_mb", roofline_bytes / 1e6}};
    const Choice choice = options.sections ? Choice() : Choose(operands, threads);
    const std::string& plan = choice.kernel;
    if (!options.sections) {
      line["plan"] = plan;
      line["trials"] = choice.trials;
    }
    const double ours =
        Median(times[times.contains(plan) ? std::string_view(plan) : kernels[0].name].wall);
    for (const auto& [what, list] : times) {
      line["ms"][std::string(what)] = Median(list.wall);
      line["min_ms"][std::string(what)] = *std::min_element(list.wall.begin(), list.wall.end());
      line["cpu_ms"][std::string(what)] = Median(list.cpu);
      line["runs"][std::string(what)] = list.wall.size();
    }
    line["million_products_per_second"] = static_cast<double>(products) / ours / 1e3;
    line["gb_per_second_of_floor"] = roofline_bytes / ours / 1e6;
    if (times.contains("graphblas")) {
      line["ratio"] = Median(times["graphblas"].wall) / ours;
      summary.ratios[group + ", threads " + std::to_string(threads)].push_back(line["ratio"]);
    }
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
}

void MeasureGenerated(const Options& options, Summary& summary) {
  const std::pair<const char*, std::function<test::Pattern()>> generated[] = {
      {"band-200k-15", [] { return test::Band(200'000, 15); }},
      {"stencil-1024x1024", [] { return test::Stencil(1024, 1024); }},
      {"uniform-100k-16", [] { return test::Uniform(100'000, 100'000, 16, 1); }},
      {"rmat-16-8", [] { return test::Rmat(16, 8, 1); }},
  };
  for (const auto& [name, make] : generated) {
    if (options.generated != "all" && options.generated != name) continue;
    test::Pattern pattern = make();
    const std::vector<double> values = test::RandomValues(pattern.nnz(), 2);
    Measure(name, "generated", MakeOperands(std::move(pattern), values), options, summary);
  }
  // A window of sums that no second-level cache holds, for rows too long to be hashed.
  constexpr const char* kWide = "wide-1500k";
  if (options.generated == "all" || options.generated == kWide) {
    Measure(kWide, "generated",
            MakePair(test::Uniform(1000, 20'000, 64, 1), test::Uniform(20'000, 1'500'000, 400, 2)),
            options, summary);
  }
}

void MeasureFile(const std::string& path, const Options& options, Summary& summary) {
  auto matrix = test::ReadMatrixMarket(path);
  if (!matrix) {
    std::fprintf(stderr, "%s: not a readable real coordinate file\n", path.c_str());
    return;
  }
  if (matrix->pattern.nnz() < options.min_nnz) return;
  const Operands operands = MakeOperands(std::move(matrix->pattern), matrix->values);
  const SpgemmArguments arguments = operands.arguments();
  std::vector<int64_t> bounds(arguments.left.rows);
  int64_t products = 0;
  if (!SpgemmKernels().front().analyse(Context(), arguments, bounds, &products).ok()) std::abort();
  if (products > options.max_products) return;
  std::string name = std::filesystem::path(path).filename();
  Measure(name.substr(0, name.find(".mtx")), "real", operands, options, summary);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("SpGEMM next to SuiteSparse:GraphBLAS");
  app.add_option("matrices", options.files, "Matrix Market files, plain or .gz");
  app.add_option("--generated", options.generated, "Generated matrices: all, none or a name");
  app.add_option("--threads", options.threads, "Numbers of threads");
  app.add_option("--repeats", options.repeats, "Most rounds for a matrix");
  app.add_option("--seconds", options.seconds, "Most seconds for a matrix, after the first round");
  app.add_option("--block-entries", options.block_entries, "Entries of scratch for a row block");
  app.add_option("--min-nnz", options.min_nnz, "Smallest real matrix");
  app.add_option("--max-products", options.max_products, "Most products of a real matrix");
  app.add_flag("--all-kernels,!--default-kernel", options.all_kernels,
               "All kernels of ours, or the default one only");
  app.add_flag("--sections", options.sections, "The default kernel, and InCSR with every S and b");
  CLI11_PARSE(app, argc, argv);
#ifdef SPARSED_HAS_GRAPHBLAS
  GrB_init(GrB_NONBLOCKING);
#endif
  Summary summary;
  MeasureGenerated(options, summary);
  for (const std::string& file : options.files) MeasureFile(file, options, summary);
  summary.Print();
#ifdef SPARSED_HAS_GRAPHBLAS
  GrB_finalize();
#endif
  return 0;
}

}  // namespace
}  // namespace sparsed

int main(int argc, char** argv) { return sparsed::Main(argc, argv); }
