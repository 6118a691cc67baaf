// SpGEMM by merging rows: for rows of few terms.
//
// Idea: each lane of a team has one nonzero of S's row and walks through its row of T, whose
// columns ascend. The least of the lanes' columns is the next one of C, and its value the sum over
// the lanes that have it (row merging: Gremse, Hofter, Schwen, Kiessling, Naumann, SIAM J. Sci.
// Comput. 2015). Nothing is stored but what comes out, in order, and sums are made in one order.
// Layout in: plain CSR of both. `prepare` looks how many terms rows have.
// Threads: 8 lanes for a row where none has more than 8 terms, else 32. Lanes collect a team's
// entries and write them together.
// Needs: at most 32 nonzeros in a row of S.
// Wins: where a few long rows are merged.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/longest_row.h"
#include "kernels/cuda/spgemm/products.cuh"
#include "kernels/cuda/spgemm/spgemm.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFewTerms = 8;
constexpr int kMostTerms = 32;
constexpr int32_t kEnd = std::numeric_limits<int32_t>::max();  // no column

struct Prepared {
  Buffer memory;
  int most_terms = 0;  ///< of a row
};

/// bounds[row] = products, at most `cols`.
__global__ void __launch_bounds__(kThreads)
    BoundRows(const int64_t* s_offsets, const int32_t* s_columns, const int64_t* t_offsets,
              int64_t rows, int64_t cols, int64_t* bounds, unsigned long long* products) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  unsigned long long sum = 0;
  if (row < rows) {
    const int64_t end = s_offsets[row + 1];
    for (int64_t j = s_offsets[row]; j < end; ++j) {
      const int32_t k = s_columns[j];
      sum += t_offsets[k + 1] - t_offsets[k];
    }
    bounds[row] = min(static_cast<int64_t>(sum), cols);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (threadIdx.x % 32 == 0 && sum > 0) atomicAdd(products, sum);
}

template <typename T>
struct Rows {
  SparsePair<T> pair;
  int64_t first, count;      // of C
  const int64_t* row_begin;  // numeric only
  int32_t* columns;
  T* values;
  int64_t* row_nnz;
};

template <typename T, int kLanes, bool kNumeric>
__global__ void __launch_bounds__(kThreads) MergeRows(const Rows<T> rows) {
  const int lane = threadIdx.x % kLanes;
  const unsigned team = GroupMask<kLanes>();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  if (i >= rows.count) return;  // a whole team
  const SparsePair<T>& p = rows.pair;
  const int64_t nonzero = p.s_offsets[rows.first + i] + lane;
  int64_t at = 0, end = 0;
  T scale = 0;
  if (nonzero < p.s_offsets[rows.first + i + 1]) {
    const int32_t k = __ldg(p.s_columns + nonzero);
    at = __ldg(p.t_offsets + k);
    end = __ldg(p.t_offsets + k + 1);
    if constexpr (kNumeric) scale = __ldg(p.s_values + nonzero);
  }
  // The column behind is on its way while this one waits for its turn.
  const auto column_at = [&](int64_t position) {
    return position < end ? __ldg(p.t_columns + position) : kEnd;
  };
  int32_t column = column_at(at), next = column_at(at + 1);
  int64_t out = 0;
  if constexpr (kNumeric) out = rows.row_begin[i];
  int64_t entries = 0;
  int32_t kept_column = 0;  // of the team's last kLanes entries, this lane's
  T kept_value = 0;
  const auto write = [&](int count) {
    if constexpr (kNumeric) {
      if (lane < count) {
        rows.columns[out + entries - count + lane] = kept_column;
        rows.values[out + entries - count + lane] = kept_value;
      }
    }
  };
  while (true) {
    const int32_t least = __reduce_min_sync(team, column);
    if (least == kEnd) break;
    T sum = 0;
    if (column == least) {
      if constexpr (kNumeric) sum = scale * __ldg(p.t_values + at);
      ++at;
      column = next;
      next = column_at(at + 1);
    }
    if constexpr (kNumeric) {
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(team, sum, distance);
      }
      if (lane == entries % kLanes) {
        kept_column = least;
        kept_value = sum;
      }
    }
    ++entries;
    if (entries % kLanes == 0) write(kLanes);
  }
  write(static_cast<int>(entries % kLanes));
  if (lane == 0) rows.row_nnz[i] = entries;
}

absl::Status FindTerms(cudaStream_t stream, const CsrView& left, MemorySource& memory,
                       Prepared& prepared) {
  absl::StatusOr<Buffer> buffer = memory.Allocate(sizeof(unsigned));
  if (!buffer.ok()) return buffer.status();
  prepared.memory = *std::move(buffer);
  auto* const most = reinterpret_cast<unsigned*>(prepared.memory.mutable_data());
  cudaError_t error = FindLongestRow(stream, left, most);
  unsigned terms = 0;
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(&terms, most, sizeof(terms), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (absl::Status s = ToStatus(error, "counting terms"); !s.ok()) return s;
  if (terms > kMostTerms) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a row of the left matrix has ", terms, " nonzeros, more than ", kMostTerms, " to merge"));
  }
  prepared.most_terms = static_cast<int>(terms);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& /*problem*/,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  return PrepareIn<Prepared>(context, [&](Prepared& prepared) {
    return FindTerms(static_cast<cudaStream_t>(context.stream), arguments.left, memory, prepared);
  });
}

absl::Status Analyse(const Context& context, const SpgemmArguments& arguments,
                     std::span<int64_t> row_bounds, int64_t* products) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const int64_t rows = arguments.left.rows;
  cudaError_t error = cudaMemsetAsync(products, 0, sizeof(*products), stream);
  if (error == cudaSuccess && rows > 0) {
    BoundRows<<<BlocksFor(rows, kThreads), kThreads, 0, stream>>>(
        arguments.left.row_offsets.data(), arguments.left.column_indices.data(),
        arguments.right.row_offsets.data(), rows, arguments.right.cols, row_bounds.data(),
        reinterpret_cast<unsigned long long*>(products));
    error = cudaGetLastError();
  }
  return ToStatus(error, "analysing SpGEMM by merging");
}

template <typename T, bool kNumeric>
absl::Status Compute(const RowsCall& call) {
  if (call.range.begin == call.range.end) return absl::OkStatus();
  Rows<T> rows = {};
  rows.pair = PairOf<T>(call.arguments);
  rows.first = call.range.begin;
  rows.count = call.range.end - call.range.begin;
  rows.row_begin = call.row_begin.data();
  rows.columns = call.column_indices;
  rows.values = static_cast<T*>(call.values);
  rows.row_nnz = call.row_nnz.data();
  const auto stream = static_cast<cudaStream_t>(call.context.stream);
  if (static_cast<const Prepared*>(call.context.prepared)->most_terms <= kFewTerms) {
    MergeRows<T, kFewTerms, kNumeric>
        <<<BlocksFor(rows.count * kFewTerms, kThreads), kThreads, 0, stream>>>(rows);
  } else {
    MergeRows<T, kMostTerms, kNumeric>
        <<<BlocksFor(rows.count * kMostTerms, kThreads), kThreads, 0, stream>>>(rows);
  }
  return ToStatus(cudaGetLastError(), "starting SpGEMM by merging");
}

absl::Status Symbolic(const Context& context, const SpgemmArguments& arguments, RowRange range,
                      std::span<int64_t> row_nnz) {
  return Compute<float, false>({context, arguments, range, row_nnz});
}

}  // namespace

SpgemmKernel MergeSpgemm() {
  return {.name = "cuda.csr.merged_rows",
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = IsPlainSpgemm,
          .workspace = NoSpgemmWorkspace,
          .analyse = Analyse,
          .symbolic = Symbolic,
          .numeric = NumericByType<Compute<float, true>, Compute<double, true>>,
          .prepare = Prepare};
}

}  // namespace sparsed::cuda
