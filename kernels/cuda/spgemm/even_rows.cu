// SpGEMM of short rows of even length: a thread a row.
//
// Idea: with operands in ELLPACK-R (Vazquez, Fernandez, Garzon, CCPE 2011: columns and values lie
// entry by entry, with the rows' lengths), neighbouring threads, which have neighbouring rows of C,
// read neighbouring entries of S and, where neighbouring rows ask for neighbouring ones, of T. Each
// thread keeps its row of C as a sorted list in shared memory and merges one row of T after the
// other into it: no team has to wait for its lanes, and nothing is hashed.
// Layout in: plain CSR of both; `prepare` makes ELLPACK-R of them.
// Threads: one for a row; a warp writes its rows together.
// Needs: at most 64 products in any row, by the longest rows of both, and operands that take no
// more than five times CSR's memory so. Wins: on meshes, roads and multigrid, whose rows are short
// and alike.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/longest_row.h"
#include "kernels/cuda/spgemm/products.cuh"
#include "kernels/cuda/spgemm/spgemm.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kStride = kThreads + 1;  // entries of a list: a warp reads across lists, too
constexpr int kMostEntries = 64;

/// A matrix in ELLPACK-R on the device: entry j of row i is at j * rows + i.
struct EllRows {
  const uint8_t* lengths;
  const int32_t* columns;
  const void* values;
  int64_t rows;
};

struct Prepared {
  Buffer lengths, memory;
  EllRows s = {}, t = {};
  int capacity = 0;  ///< of a row's list
};

// ---- Preparation

template <typename T>
__global__ void __launch_bounds__(kThreads)
    LayOutRows(const int64_t* offsets, const int32_t* csr_columns, const T* csr_values,
               int64_t rows, uint8_t* lengths, int32_t* columns, T* values) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  const int64_t begin = offsets[row];
  const auto length = static_cast<int>(offsets[row + 1] - begin);
  lengths[row] = static_cast<uint8_t>(length);
#pragma unroll 4
  for (int j = 0; j < length; ++j) {
    columns[j * rows + row] = csr_columns[begin + j];
    values[j * rows + row] = csr_values[begin + j];
  }
}

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

template <typename T>
absl::Status PrepareOf(cudaStream_t stream, const SpgemmArguments& arguments, MemorySource& memory,
                       Prepared& prepared) {
  const CsrView& left = arguments.left;
  const CsrView& right = arguments.right;
  const bool same = IsSquare(arguments);
  const size_t s_lengths = RoundUp(left.rows), t_lengths = same ? 0 : RoundUp(right.rows);
  absl::StatusOr<Buffer> lengths = memory.Allocate(256 + s_lengths + t_lengths);
  if (!lengths.ok()) return lengths.status();
  prepared.lengths = *std::move(lengths);
  auto* const longest = reinterpret_cast<unsigned*>(prepared.lengths.mutable_data());
  cudaError_t error = FindLongestRow(stream, left, longest);
  if (error == cudaSuccess) error = FindLongestRow(stream, right, longest + 1);
  unsigned most[2] = {};
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(most, longest, sizeof(most), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (absl::Status s = ToStatus(error, "finding the longest rows"); !s.ok()) return s;
  // Long rows do not become short ones where the other matrix is empty.
  if (std::max({uint64_t{most[0]} * most[1], uint64_t{most[0]}, uint64_t{most[1]}}) >
      kMostEntries) {
    return absl::FailedPreconditionError(absl::StrCat("rows of up to ", most[0], " and ", most[1],
                                                      " nonzeros: a row may have more than ",
                                                      kMostEntries, " products"));
  }
  prepared.capacity = static_cast<int>(most[0] * most[1]);
  if (prepared.capacity * kStride * (sizeof(int32_t) + sizeof(T)) >
      static_cast<size_t>(MostSharedBytes())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "lists of ", prepared.capacity, " entries take more shared memory than there is"));
  }
  const auto array_bytes = [](const CsrView& csr, unsigned width, size_t element) {
    return RoundUp(static_cast<size_t>(csr.rows) * width * element);
  };
  const auto bytes_of = [&](const CsrView& csr, unsigned width) {
    return array_bytes(csr, width, sizeof(int32_t)) + array_bytes(csr, width, sizeof(T));
  };
  for (const auto& [csr, width] : {std::pair(&left, most[0]), std::pair(&right, most[1])}) {
    if (bytes_of(*csr, width) > kMostFormatGrowth * CsrBytes(*csr, sizeof(T))) {
      return absl::FailedPreconditionError(absl::StrCat(
          "with rows of ", width, " entries, ", csr->rows, " x ", csr->cols, " with ", csr->nnz(),
          " nonzeros would take more than ", kMostFormatGrowth, " times CSR's memory"));
    }
  }
  absl::StatusOr<Buffer> arrays =
      memory.Allocate(bytes_of(left, most[0]) + (same ? 0 : bytes_of(right, most[1])));
  if (!arrays.ok()) return arrays.status();
  prepared.memory = *std::move(arrays);
  std::byte* at = prepared.memory.mutable_data();
  auto* length_at = reinterpret_cast<uint8_t*>(prepared.lengths.mutable_data()) + 256;
  const auto lay_out = [&](const CsrView& csr, const void* values, unsigned width) {
    auto* const columns = reinterpret_cast<int32_t*>(
        std::exchange(at, at + array_bytes(csr, width, sizeof(int32_t))));
    auto* const laid_out =
        reinterpret_cast<T*>(std::exchange(at, at + array_bytes(csr, width, sizeof(T))));
    uint8_t* const row_lengths = std::exchange(length_at, length_at + RoundUp(csr.rows));
    if (error == cudaSuccess && csr.rows > 0) {
      LayOutRows<<<BlocksFor(csr.rows, kThreads), kThreads, 0, stream>>>(
          csr.row_offsets.data(), csr.column_indices.data(), static_cast<const T*>(values),
          csr.rows, row_lengths, columns, laid_out);
      error = cudaGetLastError();
    }
    return EllRows{row_lengths, columns, laid_out, csr.rows};
  };
  prepared.s = lay_out(left, arguments.left_values, most[0]);
  prepared.t = same ? prepared.s : lay_out(right, arguments.right_values, most[1]);
  return ToStatus(error, "laying out even rows");
}

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& problem,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  const auto prepare = problem.type == ElementType::kF64 ? PrepareOf<double> : PrepareOf<float>;
  return PrepareIn<Prepared>(context, [&](Prepared& prepared) {
    return prepare(static_cast<cudaStream_t>(context.stream), arguments, memory, prepared);
  });
}

const Prepared& PreparedOf(const Context& context) {
  return *static_cast<const Prepared*>(context.prepared);
}

absl::Status Analyse(const Context& context, const SpgemmArguments& arguments,
                     std::span<int64_t> row_bounds, int64_t* products) {
  const Prepared& prepared = PreparedOf(context);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  cudaError_t error = cudaMemsetAsync(products, 0, sizeof(*products), stream);
  if (error == cudaSuccess && arguments.left.rows > 0) {
    CountEntries<<<BlocksFor(arguments.left.rows, kThreads), kThreads,
                   prepared.capacity * kStride * sizeof(int32_t), stream>>>(
        prepared.s, prepared.t, row_bounds.data(), reinterpret_cast<unsigned long long*>(products));
    error = cudaGetLastError();
  }
  return ToStatus(error, "analysing SpGEMM of even rows");
}

template <typename T>
absl::Status Compute(const RowsCall& call) {
  if (call.range.begin == call.range.end) return absl::OkStatus();
  const Prepared& prepared = PreparedOf(call.context);
  const RowTarget<T> to = TargetOf<T>(call);
  const size_t shared = prepared.capacity * kStride * (sizeof(int32_t) + sizeof(T));
  cudaError_t error = cudaSuccess;
  if (shared > size_t{48} << 10) {
    // The same for every launch: it is the function's, and others may be launching it.
    error = cudaFuncSetAttribute(SumRows<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 MostSharedBytes());
  }
  if (error == cudaSuccess) {
    SumRows<T><<<BlocksFor(to.count, kThreads), kThreads, shared,
                 static_cast<cudaStream_t>(call.context.stream)>>>(prepared.s, prepared.t, to,
                                                                   prepared.capacity);
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
          .prepare = Prepare};
}

}  // namespace sparsed::cuda
