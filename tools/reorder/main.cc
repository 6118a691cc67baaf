// sparsed_reorder: orders the rows and columns of a matrix so that products move fewer bytes.
//
// A hypergraph of the multiplications, cut into parts that fit a cache (Algorithm 3 of Kurt et al.,
// HiPC 2017), says in which part most products of each row and column are; rows of a part follow
// each other (Algorithm 4). See docs/data-movement.md.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "kernels/data_movement/movement.h"
#include "kernels/data_movement/product_hypergraph.h"
#include "tools/exit_codes.h"
#include "tools/matrix_file.h"
#include "tools/reorder/dense_product.h"
#include "tools/reorder/memory_counter.h"
#include "tools/reorder/square.h"
#include "tools/reorder/zoltan_partition.h"

namespace sparsed::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string file;
  std::string order_out;
  std::string operation = "spgemm";
  uint64_t cache_bytes = uint64_t{3} << 19;  // 1.5 MiB: the paper's GPU
  int64_t max_products = 1'000'000;
  int max_parts = 4096;
  int64_t value_bytes = 4;
  int64_t line_bytes = 64;
  int64_t k = 128;
  int runs = 5;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  bool json = false;
};

double MiB(double bytes) { return bytes / (1 << 20); }

Json ToJson(const Movement& m) {
  return {{"flops", m.flops},
          {"footprint_bytes", m.footprint_bytes},
          {"partition_bytes", m.partition_bytes},
          {"moved_bytes", m.moved_bytes},
          {"intensity", m.moved_bytes > 0 ? m.flops / m.moved_bytes : 0},
          {"greatest_intensity", m.footprint_bytes > 0 ? m.flops / m.footprint_bytes : 0},
          {"estimate", m.estimate}};
}

/// What SpMV, SpMM and SpGEMM with the matrix move.
absl::StatusOr<Json> Movements(const SparseMatrix& matrix, const Options& options) {
  BuildContext context;
  context.memory = &HeapMemory();
  MovementSpec spec{.k = 1,
                    .value_bytes = options.value_bytes,
                    .cache_bytes = static_cast<int64_t>(options.cache_bytes),
                    .line_bytes = options.line_bytes,
                    .max_steps = int64_t{1} << 26};
  const absl::StatusOr<Movement> spmv = ModelMovement(ViewOf(matrix), spec, context);
  if (!spmv.ok()) return spmv.status();
  spec.k = options.k;
  const absl::StatusOr<Movement> spmm = ModelMovement(ViewOf(matrix), spec, context);
  if (!spmm.ok()) return spmm.status();
  spec.operation = Operation::kSpgemm;
  const absl::StatusOr<Movement> spgemm = ModelMovement(ViewOf(matrix), spec, context);
  if (!spgemm.ok()) return spgemm.status();
  return Json{{"spmv", ToJson(*spmv)}, {"spmm", ToJson(*spmm)}, {"spgemm", ToJson(*spgemm)}};
}

/// Squares `matrix`, and takes note of the seconds, if they are fewer, and of the bytes that the
/// CPU counted; null where it does not count.
absl::StatusOr<Square> Counted(const SparseMatrix& matrix, const Options& options, double& best,
                               Json& bytes) {
  // It counts this thread and those that begin from now on: one thread, to be exact.
  const MemoryCounter counter;
  absl::StatusOr<Square> square = MultiplyBySelf(matrix, options.threads);
  if (!square.ok()) return square;
  best = std::min(best, square->seconds);
  if (const std::optional<double> misses = counter.misses(); misses.has_value()) {
    bytes = *misses * static_cast<double>(options.line_bytes);
  }
  return square;
}

/// Seconds of squaring before and after, turn by turn, and of putting rows and columns back, which
/// ends with the very same result.
absl::StatusOr<Json> SquareTimes(const SparseMatrix& matrix, const SparseMatrix& reordered,
                                 const std::vector<int32_t>& order, const Options& options) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  double before_seconds = kNever, after_seconds = kNever, back_seconds = kNever, entries = 0;
  Json before_bytes, after_bytes;
  for (int run = 0; run < options.runs; ++run) {
    const auto before = Counted(matrix, options, before_seconds, before_bytes);
    if (!before.ok()) return before.status();
    const auto after = Counted(reordered, options, after_seconds, after_bytes);
    if (!after.ok()) return after.status();
    const Square back = PutBack(after->result, order, options.threads);
    back_seconds = std::min(back_seconds, back.seconds);
    if (back.result.row_offsets != before->result.row_offsets ||
        back.result.column_indices != before->result.column_indices) {
      return absl::InternalError("the square of the reordered matrix is another one");
    }
    entries = static_cast<double>(back.result.nnz());
  }
  return Json{{"before_seconds", before_seconds},
              {"after_seconds", after_seconds},
              {"put_back_seconds", back_seconds},
              {"put_back_bytes", 2 * entries * static_cast<double>(4 + options.value_bytes)},
              {"before_counted_bytes", before_bytes},
              {"after_counted_bytes", after_bytes},
              {"threads", options.threads}};
}

/// Likewise of a dense operand, whose rows must be put into the order first.
absl::StatusOr<Json> DenseProductTimes(const SparseMatrix& matrix, const SparseMatrix& reordered,
                                       const std::vector<int32_t>& order, const Options& options) {
  const int64_t k = options.operation == "spmv" ? 1 : options.k;
  const absl::StatusOr<DenseTimes> times =
      TimeDenseProducts(matrix, reordered, order, k, options.threads, 4 * options.runs);
  if (!times.ok()) return times.status();
  return Json{{"before_seconds", times->before},
              {"after_seconds", times->after},
              {"put_back_seconds", times->permute},
              {"put_back_bytes", 4 * static_cast<double>(matrix.rows * k * 4)},
              {"threads", options.threads}};
}

std::string MovementsText(std::string_view title, const Json& movements) {
  std::string text = fmt::format("{:<10}{:>12}{:>12}{:>12}{:>10}{:>10}\n", title, "LEAST MiB",
                                 "PARTS MiB", "MOVED MiB", "FLOP/B", "AT MOST");
  for (const auto& [name, m] : movements.items()) {
    text += fmt::format("{:<10}{:>12.2f}{:>12.2f}{:>12.2f}{:>10.3f}{:>10.3f}{}\n", name,
                        MiB(m["footprint_bytes"]), MiB(m["partition_bytes"]), MiB(m["moved_bytes"]),
                        m["intensity"].get<double>(), m["greatest_intensity"].get<double>(),
                        m["estimate"].get<bool>() ? "  estimate" : "");
  }
  return text;
}

std::string TimesText(std::string_view product, const Json& times) {
  const double before = times["before_seconds"], after = times["after_seconds"],
               back = times["put_back_seconds"];
  std::string text = fmt::format(
      "\n{} on {} threads: {:.2f} ms before, {:.2f} ms after ({:.2f}x), and {:.2f} ms to put what "
      "is "
      "permuted back ({:.2f}x with it)\n",
      product, times["threads"].get<int>(), 1e3 * before, 1e3 * after, before / after, 1e3 * back,
      before / (after + back));
  if (!times.contains("before_counted_bytes")) return text;
  if (times["before_counted_bytes"].is_null()) {
    return text + "the machine does not let us count cache misses\n";
  }
  return text + fmt::format("counted     {:.2f} MiB before, {:.2f} MiB after\n",
                            MiB(times["before_counted_bytes"]), MiB(times["after_counted_bytes"]));
}

std::string Text(const Json& report) {
  const Json& partition = report["partition"];
  std::string text = fmt::format(
      "{}: {} x {}, {} nonzeros, cache {:.2f} MiB\n"
      "hypergraph  {}, {} of {:.0f} products{}\n"
      "partition   {} parts, {:.1f} s: {:.3f} times the least bytes{}\n\n",
      report["file"].get<std::string>(), report["rows"].get<int64_t>(),
      report["rows"].get<int64_t>(), report["nnz"].get<int64_t>(), MiB(report["cache_bytes"]),
      report["operation"].get<std::string>(), partition["products"].get<int64_t>(),
      partition["all_products"].get<double>(),
      partition["estimate"].get<bool>() ? ": rows sampled, an estimate" : "",
      partition["parts"].get<int>(), partition["seconds"].get<double>(),
      partition["upper_bound_ratio"].get<double>(),
      partition["fits"].get<bool>() ? "" : ", and some parts exceed the cache");
  if (partition["parts"].get<int>() == 1) {
    text += "All of it fits the cache: the order stays as it is.\n\n";
  }
  text +=
      MovementsText("before", report["before"]) + '\n' + MovementsText("after", report["after"]);
  return text + TimesText(report["operation"].get<std::string>(), report["times"]);
}

absl::StatusOr<ProductHypergraph> BuildGraph(const CsrView& csr, const Options& options) {
  if (options.operation == "spgemm") return BuildSpgemmGraph(csr, csr, options.max_products);
  return BuildSpmmGraph(csr, options.max_products);
}

NetBytes BytesOf(const Options& options) {
  if (options.operation == "spgemm") return SpgemmNetBytes(options.value_bytes);
  return SpmmNetBytes(options.operation == "spmv" ? 1 : options.k, options.value_bytes);
}

absl::StatusOr<Json> Reorder(const Options& options) {
  const absl::StatusOr<SparseMatrix> matrix = ReadMatrix(options.file);
  if (!matrix.ok()) return matrix.status();
  if (matrix->rows != matrix->cols) {
    return absl::InvalidArgumentError(
        fmt::format("{} is {} x {}: rows and columns cannot have one order", options.file,
                    matrix->rows, matrix->cols));
  }
  const CsrView csr = ViewOf(*matrix);
  const absl::StatusOr<ProductHypergraph> graph = BuildGraph(csr, options);
  if (!graph.ok()) return graph.status();
  // A sample of the products gets its share of the cache.
  const double share = graph->all_products == 0
                           ? 1
                           : static_cast<double>(graph->products.size()) / graph->all_products;
  const auto cache = static_cast<int64_t>(static_cast<double>(options.cache_bytes) * share);
  const auto begin = std::chrono::steady_clock::now();
  const auto partition =
      PartitionForCache(*graph, cache, BytesOf(options), options.max_parts, ZoltanPartition);
  if (!partition.ok()) return partition.status();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const std::vector<int32_t> order =
      MajorityOrder(*graph, csr, partition->part_of, partition->parts);
  const SparseMatrix reordered = PermuteSymmetrically(*matrix, order);
  if (!options.order_out.empty()) {
    if (absl::Status s = WriteOrder(options.order_out, order); !s.ok()) return s;
  }
  const PartitionCost& cost = partition->cost;
  Json report = {
      {"file", options.file},
      {"rows", matrix->rows},
      {"nnz", matrix->nnz()},
      {"operation", options.operation},
      {"cache_bytes", options.cache_bytes},
      {"k", options.k},
      {"partition",
       {{"products", graph->products.size()},
        {"all_products", graph->all_products},
        {"estimate", graph->sampled},
        {"parts", partition->parts},
        {"seconds", seconds.count()},
        {"fits", cost.largest_part_bytes <= static_cast<double>(cache)},
        {"upper_bound_ratio",
         cost.footprint_bytes > 0 ? cost.upper_bound_bytes / cost.footprint_bytes : 1}}}};
  absl::StatusOr<Json> before = Movements(*matrix, options);
  if (!before.ok()) return before.status();
  absl::StatusOr<Json> after = Movements(reordered, options);
  if (!after.ok()) return after.status();
  report["before"] = *std::move(before);
  report["after"] = *std::move(after);
  absl::StatusOr<Json> times = options.operation == "spgemm"
                                   ? SquareTimes(*matrix, reordered, order, options)
                                   : DenseProductTimes(*matrix, reordered, order, options);
  if (!times.ok()) return times.status();
  report["times"] = *std::move(times);
  return report;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Orders the rows and columns of a square matrix so that products with it move fewer bytes, "
      "and says what they move before and after.");
  app.add_option("FILE", options.file,
                 "A file of any format that sparsectl uploads, by its content")
      ->required();
  app.add_option("--out", options.order_out,
                 "Where the order goes, for sparsectl upload --permutation: line r says which row "
                 "becomes row r, both from 0");
  app.add_option("--for", options.operation, "The product whose hypergraph is cut")
      ->check(CLI::IsMember({"spmv", "spmm", "spgemm"}))
      ->capture_default_str();
  app.add_option("--cache", options.cache_bytes, "Bytes of the cache, as in 50MB or 1536KB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(uint64_t{1} << 10, uint64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--max-products", options.max_products,
                 "Products in the hypergraph; with more of them, rows are sampled")
      ->check(CLI::Range(int64_t{1}, int64_t{500'000'000}))
      ->capture_default_str();
  app.add_option("--max-parts", options.max_parts, "Parts at most, fitting the cache or not")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--value-bytes", options.value_bytes, "Bytes of a value")
      ->check(CLI::IsMember({2, 4, 8}))
      ->capture_default_str();
  app.add_option("--line", options.line_bytes, "Bytes that the cache fetches at once")
      ->check(CLI::Range(4, 4096))
      ->capture_default_str();
  app.add_option("--k", options.k, "Width of SpMM's operand")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Of the products that are timed")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--json", options.json, "Print one JSON object");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUse;
  }

  const Zoltan zoltan;
  const absl::StatusOr<Json> report = Reorder(options);
  if (!report.ok()) return ExitWith("sparsed_reorder", report.status());
  fmt::print("{}", options.json ? report->dump() + "\n" : Text(*report));
  return 0;
}

}  // namespace
}  // namespace sparsed::tools

int main(int argc, char** argv) { return sparsed::tools::Main(argc, argv); }
