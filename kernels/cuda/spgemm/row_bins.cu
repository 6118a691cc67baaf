// SpGEMM from CSR: C = S * T, rows of C in bins by how many entries they may have.
//
// Idea: a row's products are shared evenly among the lanes of a team (products.cuh), whatever the
// lengths of T's rows. Short rows of C are added up in hash tables in shared memory, several rows
// to a block, and put in order by counting the smaller columns (binning and tables as in NSPARSE,
// Nagasaka et al., ICPP 2017, and spECK, Parger et al., PPoPP 2020); if the row's columns are close
// to each other, each has its own slot of the table. Longer rows mark their columns in a bitmap
// over the columns that they span: its bits in order are the row in order, so that nothing is
// sorted. Values are added up in shared memory, either at the place that the bits before a column
// give it, after a first pass over the products for the bits alone, or one for each column of a
// window of some thousand, in one pass. A row that spans more goes window by window; windows in
// which it has nothing are left out, and every row ends whatever its size.
// Layout in: plain CSR of both.
// Threads: 8 lanes for a row of up to 32 entries, 16 up to 64, a warp up to 128, blocks of 128
// threads up to 1,024 (of 4,096 where nothing is added up yet) and of 512 beyond. Blocks stay, and
// take the next row when they are done with one, those of the longest rows first.
// Needs: a list of rows for each bin. Of boolean products and of counts of pairs, which multiply
// ones, values of ones.
// Wins: over cuSPARSE on all that was measured, most where rows have many products and columns
// meet; a little behind the fastest of others on plane grids (docs/kernels-cuda.md). Sums depend on
// the order in which lanes come.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "kernels/cuda/check.h"
#include "kernels/cuda/side_streams.h"
#include "kernels/cuda/spgemm/binned_rows.cuh"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/spgemm.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;

// Computes each bin's rows, those of the largest first.
template <typename Semiring, bool kNumeric>
absl::Status LaunchRows(const Context& context, const Rows<typename Semiring::Element>& rows,
                        int64_t count) {
  if (count == 0) return absl::OkStatus();
  // In the symbolic phase nothing is added up, and what is known of a row is a bound.
  constexpr BinLimits kLimits = {
      {kTinyRow, kSmallRow, kShortRow, kFairRow, kNumeric ? kMiddleRow : 4096, 8192},
      {32, 32, 32, 32, 256, INT32_MAX}};
  const auto stream = static_cast<cudaStream_t>(context.stream);
  absl::StatusOr<SideStreams::Lease> lease = SideStreams::Borrow(stream);
  if (!lease.ok()) return lease.status();
  SideStreams& sides = **lease;
  Bins bins;
  cudaError_t error = FillBins(context, rows, count, kLimits, &bins);
  if (error == cudaSuccess) error = sides.Fork(stream, 2);
  // When the longest rows are left with a few, others fill the device.
  if (error == cudaSuccess) {
    error = LaunchLongRows<Semiring, kNumeric>(sides[0], rows, count, bins, kLastBin, kLongBin);
  }
  if (error == cudaSuccess) {
    error = LaunchMiddleRows<Semiring, kNumeric>(sides[1], rows, count, bins);
  }
  if (error == cudaSuccess) {
    error = LaunchShortRows<Semiring, kNumeric>(stream, rows, count, bins, kMiddleBin);
  }
  const cudaError_t joined = sides.Join(stream);
  if (error == cudaSuccess) error = joined;
  return ToStatus(error, "starting SpGEMM");
}

bool Supports(const Problem& problem) { return IsFloatSpgemm(problem) && !problem.masked; }

bool CountsPairs(Semiring semiring) {
  return semiring == Semiring::kBoolean || semiring == Semiring::kPlusPair;
}

// What counts pairs multiplies ones.
struct Ones {
  Buffer values;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) FillWithOnes(T* values, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) values[i] = 1;
}

constexpr int kRowLanes = 8;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    FillRowsWithOnes(const int64_t* row_begin, const int64_t* row_nnz, int64_t rows, T* values) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kRowLanes;
  if (row >= rows) return;
  const int64_t begin = row_begin[row], end = begin + row_nnz[row];
  for (int64_t i = begin + threadIdx.x % kRowLanes; i < end; i += kRowLanes) {
    values[i] = 1;
  }
}

template <typename T>
absl::StatusOr<std::shared_ptr<void>> MakeOnes(cudaStream_t stream, int64_t count,
                                               MemorySource& memory) {
  absl::StatusOr<Buffer> values = memory.Allocate(static_cast<size_t>(count) * sizeof(T));
  if (!values.ok()) return values.status();
  auto ones = std::make_shared<Ones>();
  ones->values = *std::move(values);
  if (count > 0) {
    FillWithOnes<<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
        reinterpret_cast<T*>(ones->values.mutable_data()), count);
  }
  const absl::Status status = ToStatus(cudaGetLastError(), "preparing SpGEMM");
  if (!status.ok()) return Settled(stream, status);
  return std::static_pointer_cast<void>(ones);
}

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& problem,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  if (!CountsPairs(problem.semiring)) return std::shared_ptr<void>();
  const auto make = problem.type == ElementType::kF64 ? MakeOnes<double> : MakeOnes<float>;
  return make(static_cast<cudaStream_t>(context.stream),
              std::max(arguments.left.nnz(), arguments.right.nnz()), memory);
}

absl::Status Symbolic(const Context& context, const SpgemmArguments& arguments, RowRange range,
                      std::span<int64_t> row_nnz) {
  Rows<float> rows = RowsOf<float>(arguments, range);
  rows.row_nnz = row_nnz.data();
  return LaunchRows<SumProduct<float>, false>(context, rows, range.end - range.begin);
}

template <typename T>
absl::Status Compute(const RowsCall& call) {
  Rows<T> rows = RowsOf<T>(call);
  if (CountsPairs(call.semiring)) {
    const auto& ones = *static_cast<const Ones*>(call.context.prepared);
    rows.pair.s_values = rows.pair.t_values = reinterpret_cast<const T*>(ones.values.data());
  }
  const int64_t count = call.range.end - call.range.begin;
  if (call.semiring == Semiring::kMinPlus) {
    return LaunchRows<MinPlus<T>, true>(call.context, rows, count);
  }
  absl::Status status = LaunchRows<SumProduct<T>, true>(call.context, rows, count);
  if (!status.ok() || call.semiring != Semiring::kBoolean || count == 0) return status;
  FillRowsWithOnes<<<BlocksFor(count * kRowLanes, kThreads), kThreads, 0,
                     static_cast<cudaStream_t>(call.context.stream)>>>(rows.row_begin, rows.row_nnz,
                                                                       count, rows.values);
  return ToStatus(cudaGetLastError(), "starting SpGEMM");
}

}  // namespace

SpgemmKernel RowBinsSpgemm() {
  return {.name = "cuda.csr.row_bins",
          .device = DeviceKind::kCuda,
          .deterministic = false,
          .supports = Supports,
          .workspace = BinnedRowsWorkspace,
          .analyse = AnalyseRows,
          .symbolic = Symbolic,
          .numeric = NumericByType<Compute<float>, Compute<double>>,
          .prepare = Prepare};
}

}  // namespace sparsed::cuda
