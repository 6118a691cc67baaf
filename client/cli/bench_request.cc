#include "client/cli/bench_request.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/machine.h"

namespace sparsed::cli {
namespace {

/// What a killed bench leaves on the server goes by itself after that.
constexpr std::chrono::minutes kTimeToLive{10};

}  // namespace

BenchRequests::BenchRequests(const Client& client, const MatrixInfo& matrix,
                             const BenchOptions& options)
    : client_(client), matrix_(matrix), options_(options) {}

BenchRequests::~BenchRequests() {
  for (const DenseMatrix& held : held_) held.Delete().IgnoreError();
}

absl::StatusOr<std::unique_ptr<BenchRequests>> BenchRequests::Make(const Client& client,
                                                                   const MatrixInfo& matrix,
                                                                   const BenchOptions& options) {
  std::unique_ptr<BenchRequests> requests(new BenchRequests(client, matrix, options));
  if (absl::Status status = requests->Prepare(); !status.ok()) return status;
  return requests;
}

double BenchRequests::flops() const {
  if (options_.operation == Operation::kSpgemm) return 0;
  return 2.0 * static_cast<double>(matrix_.nnz) * static_cast<double>(options_.k);
}

absl::Status BenchRequests::Prepare() {
  if (options_.operation == Operation::kSpgemm) return absl::OkStatus();
  const bool spmm = options_.operation == Operation::kSpmm;
  const int64_t result_rows = !spmm                ? matrix_.nnz
                              : options_.transpose ? matrix_.cols
                                                   : matrix_.rows;
  const int64_t result_cols = spmm ? options_.k : 1;
  if (options_.transport != BenchTransport::kHeld) {
    const double bytes = static_cast<double>(options_.workers) * static_cast<double>(result_rows) *
                         static_cast<double>(result_cols) *
                         static_cast<double>(SizeOf(matrix_.type));
    absl::Status fits = CheckFitsMemory(
        fmt::format("{} results of {} x {}", options_.workers, result_rows, result_cols), bytes,
        "fewer at once (--concurrency), a smaller --k, or --transport=held");
    if (!fits.ok()) return fits;
  }
  if (!spmm) {
    absl::StatusOr<Operand> left = MakeOperand(matrix_.rows, "a", 1);
    if (!left.ok()) return left.status();
    left_ = *std::move(left);
  }
  absl::StatusOr<Operand> right =
      MakeOperand(options_.transpose ? matrix_.rows : matrix_.cols, "b", 2);
  if (!right.ok()) return right.status();
  right_ = *std::move(right);
  for (int worker = 0; worker < options_.workers; ++worker) {
    absl::StatusOr<Destination> result = MakeResult(result_rows, result_cols, worker);
    if (!result.ok()) return result.status();
    results_.push_back(*std::move(result));
  }
  return absl::OkStatus();
}

absl::StatusOr<Operand> BenchRequests::MakeOperand(int64_t rows, const char* what, uint64_t seed) {
  absl::StatusOr<NpyArray> numbers = RandomDense(matrix_.type, rows, options_.k, seed);
  if (!numbers.ok()) return numbers.status();
  if (options_.transport == BenchTransport::kHeld) {
    absl::StatusOr<DenseMatrix> held =
        client_.PutDense(fmt::format("bench.{}.{}", getpid(), what), numbers->View(),
                         {.owner = "bench", .time_to_live = kTimeToLive});
    if (!held.ok()) return held.status();
    held_.push_back(*held);
    return *std::move(held);
  }
  if (options_.transport == BenchTransport::kShared) {
    absl::StatusOr<SharedMatrix> shared = client_.AllocateShared(rows, options_.k, matrix_.type);
    if (!shared.ok()) return shared.status();
    std::visit(
        [&]<typename T>(const std::vector<T>& values) {
          std::copy(values.begin(), values.end(), static_cast<T*>(shared->data()));
        },
        numbers->values);
    shared_.push_back(*shared);
    return shared->ConstView();
  }
  arrays_.push_back(std::make_unique<NpyArray>(*std::move(numbers)));
  return arrays_.back()->View();
}

absl::StatusOr<Destination> BenchRequests::MakeResult(int64_t rows, int64_t cols, int worker) {
  if (options_.transport == BenchTransport::kHeld) {
    absl::StatusOr<DenseMatrix> held =
        client_.PutZeros(fmt::format("bench.{}.c{}", getpid(), worker), matrix_.type, rows, cols,
                         {.owner = "bench", .time_to_live = kTimeToLive});
    if (!held.ok()) return held.status();
    held_.push_back(*held);
    return *std::move(held);
  }
  if (options_.transport == BenchTransport::kShared) {
    absl::StatusOr<SharedMatrix> shared = client_.AllocateShared(rows, cols, matrix_.type);
    if (!shared.ok()) return shared.status();
    shared_.push_back(*shared);
    return shared->View();
  }
  absl::StatusOr<NpyArray> array = NpyArray::Zeros(matrix_.type, rows, cols, false);
  if (!array.ok()) return array.status();
  arrays_.push_back(std::make_unique<NpyArray>(*std::move(array)));
  return arrays_.back()->MutableView();
}

absl::StatusOr<LoadSample> BenchRequests::Run(int worker) const {
  const Matrix matrix = client_.MatrixNamed(options_.name);
  if (options_.operation == Operation::kSpgemm) {
    const absl::StatusOr<SpgemmResult> how =
        matrix.Spgemm(matrix, [](const RowBlock&) { return absl::OkStatus(); });
    if (!how.ok()) return how.status();
    return LoadSample{how->timings, how->plan, Transport::kStream, 0};
  }
  const Destination& result = results_[static_cast<size_t>(worker)];
  const absl::StatusOr<ComputeResult> how =
      options_.operation == Operation::kSpmm
          ? matrix.Spmm(*right_, result,
                        {.transpose = options_.transpose, .allow_tf32 = options_.allow_tf32})
          : matrix.Sddmm(*left_, *right_, result);
  if (!how.ok()) return how.status();
  return LoadSample{how->timings, how->plan, how->transport, flops()};
}

}  // namespace sparsed::cli
