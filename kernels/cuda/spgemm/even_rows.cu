// SpGEMM of short rows of even length: a thread a row.
//
// Idea: with operands in ELLPACK-R (Vazquez, Fernandez, Garzon, CCPE 2011: columns and values lie
// entry by entry, with the rows' lengths), neighbouring threads, which have neighbouring rows of C,
// read neighbouring entries of S and, where neighbouring rows ask for neighbouring ones, of T. Each
// thread keeps its row of C as a sorted list in shared memory and merges one row of T after the
// other into it: no team has to wait for its lanes, and nothing is hashed.
// Layout in: "ellpack_r" of both.
// Threads: one for a row; a warp writes its rows together.
// Needs: at most 64 products in any row, by the longest rows of both. Wins: on meshes, roads and
// multigrid, whose rows are short and alike.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/products.cuh"
#include "kernels/cuda/spgemm/spgemm.h"
#include "kernels/formats/ell.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kStride = kThreads + 1;  // entries of a list: a warp reads across lists, too
constexpr int kMostEntries = 64;

/// A matrix in ELLPACK-R on the device: entry j of row i is at j * rows + i.
struct EllRows {
  const int32_t* lengths;
  const int32_t* columns;
  const void* values;
  int64_t rows;
};

// ---- Rows

/// Merges the row of C into its list; how many entries it has. kNumeric: with sums.
template <typename T, bool kNumeric>
__device__ inline int MergeRow(const EllRows& s, const EllRows& t, int64_t row, int32_t* columns,
                               T* sums, int* products) {
  int entries = 0;
  const int terms = s.lengths[row];
  for (int i = 0; i < terms; ++i) {
    const int64_t k = __ldg(s.columns + i * s.rows + row);
    T scale = 0;
    if constexpr (kNumeric) scale = __ldg(static_cast<const T*>(s.values) + i * s.rows + row);
    const int length = t.lengths[k];
    *products += length;
    int at = 0;  // the list's entries before it are of smaller columns
    for (int j = 0; j < length; ++j) {
      const int32_t column = __ldg(t.columns + j * t.rows + k);
      T product = 0;
      if constexpr (kNumeric)
        product = scale * __ldg(static_cast<const T*>(t.values) + j * t.rows + k);
      while (at < entries && columns[at * kStride] < column) ++at;
      if (at < entries && columns[at * kStride] == column) {
        if constexpr (kNumeric) sums[at * kStride] += product;
      } else {
        for (int to = entries; to > at; --to) {
          columns[to * kStride] = columns[(to - 1) * kStride];
          if constexpr (kNumeric) sums[to * kStride] = sums[(to - 1) * kStride];
        }
        columns[at * kStride] = column;
        if constexpr (kNumeric) sums[at * kStride] = product;
        ++entries;
      }
      ++at;
    }
  }
  return entries;
}

__global__ void __launch_bounds__(kThreads)
    CountEntries(const EllRows s, const EllRows t, int64_t* row_nnz, unsigned long long* products) {
  extern __shared__ int32_t lists[];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  int mine = 0;
  if (row < s.rows) {
    row_nnz[row] = MergeRow<float, false>(s, t, row, lists + threadIdx.x, nullptr, &mine);
  }
  const unsigned of_warp = __reduce_add_sync(0xffffffffu, static_cast<unsigned>(mine));
  if (threadIdx.x % 32 == 0 && of_warp > 0) atomicAdd(products, of_warp);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumRows(const EllRows s, const EllRows t, const RowTarget<T> to, int capacity) {
  extern __shared__ __align__(8) unsigned char shared[];
  T* const sums = reinterpret_cast<T*>(shared);
  auto* const columns = reinterpret_cast<int32_t*>(sums + capacity * kStride);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  int entries = 0, products = 0;
  int64_t out = 0;
  if (i < to.count) {
    entries =
        MergeRow<T, true>(s, t, to.first + i, columns + threadIdx.x, sums + threadIdx.x, &products);
    to.row_nnz[i] = entries;
    out = to.row_begin[i];
  }
  __syncwarp();
  // Lanes that write one row together.
  const auto most = static_cast<int>(__reduce_max_sync(0xffffffffu, entries));
  const int width = most <= 8 ? 8 : most <= 16 ? 16 : 32;
  const int lane = threadIdx.x % 32;
  for (int r = lane / width; r < 32; r += 32 / width) {
    const int of_row = __shfl_sync(0xffffffffu, entries, r);
    const int64_t begin = __shfl_sync(0xffffffffu, out, r);
    const int list = static_cast<int>(threadIdx.x) - lane + r;
    for (int c = lane % width; c < of_row; c += width) {
      to.columns[begin + c] = columns[c * kStride + list];
      to.values[begin + c] = sums[c * kStride + list];
    }
  }
}

// ---- Phases

int64_t LongestRow(const CsrView& csr) {
  int64_t longest = 0;
  for (int64_t row = 0; row < csr.rows; ++row) {
    longest = std::max(longest, csr.row_offsets[row + 1] - csr.row_offsets[row]);
  }
  return longest;
}

/// Of the longest rows of both.
absl::Status CheckLengths(int64_t s, int64_t t) {
  // Long rows do not become short ones where the other matrix is empty.
  if (std::max({s * t, s, t}) <= kMostEntries) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("rows of up to ", s, " and ", t,
                                                    " nonzeros: a row may have more than ",
                                                    kMostEntries, " products"));
}

absl::StatusOr<std::string> Pipeline(const Problem& /*problem*/, const CsrView& left,
                                     const CsrView& right) {
  if (absl::Status s = CheckLengths(LongestRow(left), LongestRow(right)); !s.ok()) return s;
  return std::string(kEllpackR);
}

EllRows RowsOf(const SpgemmFormat& format) {
  const EllView ell = ViewEll(*format.layout);
  return {ell.lengths.data(), ell.columns.data(), format.values, ell.rows};
}

/// Entries of a row's list.
int CapacityOf(const SpgemmArguments& arguments) {
  return static_cast<int>(ViewEll(*arguments.left_format.layout).width *
                          ViewEll(*arguments.right_format.layout).width);
}

/// There is nothing to prepare, only to refuse.
absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& /*context*/, const Problem& problem,
                                              const SpgemmArguments& arguments,
                                              MemorySource& /*memory*/) {
  const int64_t s = ViewEll(*arguments.left_format.layout).width;
  const int64_t t = ViewEll(*arguments.right_format.layout).width;
  if (absl::Status status = CheckLengths(s, t); !status.ok()) return status;
  const size_t entry = sizeof(int32_t) + SizeOf(problem.type);
  if (static_cast<size_t>(s * t) * kStride * entry > static_cast<size_t>(MostSharedBytes())) {
    return absl::FailedPreconditionError(
        absl::StrCat("lists of ", s * t, " entries take more shared memory than there is"));
  }
  return nullptr;
}

absl::Status Analyse(const Context& context, const SpgemmArguments& arguments,
                     std::span<int64_t> row_bounds, int64_t* products) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  cudaError_t error = cudaMemsetAsync(products, 0, sizeof(*products), stream);
  if (error == cudaSuccess && arguments.left.rows > 0) {
    CountEntries<<<BlocksFor(arguments.left.rows, kThreads), kThreads,
                   CapacityOf(arguments) * kStride * sizeof(int32_t), stream>>>(
        RowsOf(arguments.left_format), RowsOf(arguments.right_format), row_bounds.data(),
        reinterpret_cast<unsigned long long*>(products));
    error = cudaGetLastError();
  }
  return ToStatus(error, "analysing SpGEMM of even rows");
}

template <typename T>
absl::Status Compute(const RowsCall& call) {
  if (call.range.begin == call.range.end) return absl::OkStatus();
  const RowTarget<T> to = TargetOf<T>(call);
  const int capacity = CapacityOf(call.arguments);
  const size_t shared = capacity * kStride * (sizeof(int32_t) + sizeof(T));
  cudaError_t error = cudaSuccess;
  if (shared > size_t{48} << 10) {
    // The same for every launch: it is the function's, and others may be launching it.
    error = cudaFuncSetAttribute(SumRows<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 MostSharedBytes());
  }
  if (error == cudaSuccess) {
    SumRows<T><<<BlocksFor(to.count, kThreads), kThreads, shared,
                 static_cast<cudaStream_t>(call.context.stream)>>>(
        RowsOf(call.arguments.left_format), RowsOf(call.arguments.right_format), to, capacity);
    error = cudaGetLastError();
  }
  return ToStatus(error, "starting SpGEMM of even rows");
}

}  // namespace

SpgemmKernel EvenRowsSpgemm() {
  return {.name = "cuda.ell.even_rows",
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = IsPlainSpgemm,
          .workspace = NoSpgemmWorkspace,
          .analyse = Analyse,
          .symbolic = BoundsAreExact,
          .numeric = NumericByType<Compute<float>, Compute<double>>,
          .prepare = Prepare,
          .layout_kind = kEllpackR,
          .left_too = true,
          .pipeline = Pipeline};
}

}  // namespace sparsed::cuda
