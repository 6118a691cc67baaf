// SpGEMM from CSR where columns come in clusters: C = S * T, with T's rows as words of 32 columns.
//
// Idea: what costs a row of C is less its products than finding where they belong. Where T's
// nonzeros lie next to each other, as in web graphs, several share a word of 32 columns, and the
// pattern of a row of C is the union of some words (the compression of Deveci, Trott and
// Rajamanickam, "Multithreaded sparse matrix-matrix multiplication for many-core and GPU
// architectures", Parallel Computing 2018). Rows are counted by adding up words' masks
// in a table, and computed by bitmaps (bitmap_rows.cuh).
// Layout in: plain CSR of both.
// Needs: T's words, 8 bytes each, 4 bytes a row of T and 5 for 8 nonzeros; lists of rows as row
// bins.
// Wins: over row bins where a word has some two nonzeros or more (docs/kernels-cuda.md). Sums
// depend on the order in which lanes come.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/running_sum.h"
#include "kernels/cuda/spgemm/binned_rows.cuh"
#include "kernels/cuda/spgemm/bitmap_rows.cuh"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/spgemm.h"

namespace sparsed::cuda {
namespace {

// Fewer nonzeros of T in a word than 3 / 2 are not worth the words.
constexpr int64_t kLeastNonzeros = 3, kOfWords = 2;

// ---- Words of T

constexpr int kThreads = 256;

// heads: a bit for each nonzero that begins a row.
__global__ void __launch_bounds__(kThreads)
    MarkRows(const int64_t* offsets, int64_t rows, uint32_t* heads) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  const int64_t begin = offsets[row];
  if (begin < offsets[row + 1]) atomicOr(heads + begin / 32, 1u << (begin % 32));
}

// heads: ... and for each that begins a word, a warp for 32 of them; counts: how many in each 32.
__global__ void __launch_bounds__(kThreads)
    MarkWords(const int32_t* columns, int64_t nnz, uint32_t* heads, int64_t* counts) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool begins = at > 0 && at < nnz &&
                      __ldg(columns + at - 1) / kWordColumns != __ldg(columns + at) / kWordColumns;
  const unsigned found = __ballot_sync(0xffffffffu, begins);
  if (threadIdx.x % 32 != 0 || at >= nnz) return;
  const uint32_t all = heads[at / 32] | found;
  heads[at / 32] = all;
  counts[at / 32] = __popc(all);
}

// A thread for each row and for each nonzero.
__global__ void __launch_bounds__(kThreads)
    FillWords(const int64_t* offsets, const int32_t* columns, int64_t rows, int64_t nnz,
              const uint32_t* heads, const int64_t* before, int32_t* word_offsets, Word* words) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto word_of = [&](int64_t i, uint32_t set) {
    return static_cast<int32_t>(before[i / 32]) + __popc(set & Below(static_cast<uint32_t>(i)));
  };
  const int64_t parts = (nnz + 31) / 32;
  if (at <= rows) {
    const int64_t begin = offsets[at];
    word_offsets[at] =
        begin < nnz ? word_of(begin, heads[begin / 32]) : static_cast<int32_t>(before[parts]);
  }
  if (at - threadIdx.x % 32 >= nnz) return;
  const int lane = threadIdx.x % 32;
  const uint32_t set = heads[at / 32];
  // Where this nonzero's word ends, among the 32 of the warp.
  const uint32_t later = set & ~Below(lane) & ~(1u << lane);
  const int end = later != 0 ? __ffs(static_cast<int>(later)) - 1
                             : static_cast<int>(min(nnz - at + lane, int64_t{32}));
  const int32_t column = at < nnz ? __ldg(columns + at) : 0;
  uint32_t mask = at < nnz ? 1u << (column % kWordColumns) : 0;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_down_sync(0xffffffffu, mask, distance);
    if (lane + distance < end) mask |= other;
  }
  if (at >= nnz || (set >> lane & 1) == 0) return;
  // The last one goes on behind them.
  if (later == 0 && at / 32 + 1 < parts) {
    const int64_t first = (at / 32 + 1) * 32;
    const uint32_t next = heads[first / 32];
    const int64_t last =
        next != 0 ? first + __ffs(static_cast<int>(next)) - 1 : min(first + 32, nnz);
    for (int64_t i = first; i < last; ++i) mask |= 1u << (__ldg(columns + i) % kWordColumns);
  }
  words[word_of(at, set)] = {column / kWordColumns, mask};
}

struct Prepared {
  Buffer marks, words;
  RowWords rows;
};

absl::Status MakeWords(const Context& context, const CsrView& t, MemorySource& memory,
                       Prepared& prepared) {
  const int64_t nnz = t.nnz();
  if (absl::Status s = CheckBitmapRows(t); !s.ok()) return s;
  if (nnz == 0) return absl::FailedPreconditionError("the right matrix has no nonzeros");
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const int64_t parts = (nnz + 31) / 32;
  size_t sum_bytes = 0;
  cudaError_t error = RunningSum(stream, nullptr, parts, nullptr, nullptr, &sum_bytes);
  uint32_t* heads = nullptr;
  int64_t *counts = nullptr, *before = nullptr;
  std::byte* workspace = nullptr;
  const auto take_marks = [&](Parts& all) {
    heads = all.Take<uint32_t>(parts);
    counts = all.Take<int64_t>(parts);
    before = all.Take<int64_t>(parts + 1);
    workspace = all.Take<std::byte>(static_cast<int64_t>(sum_bytes));
  };
  if (absl::Status s = TakeParts(memory, prepared.marks, take_marks); !s.ok()) return s;
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(heads, 0, static_cast<size_t>(parts) * sizeof(*heads), stream);
  }
  if (error == cudaSuccess) {
    MarkRows<<<BlocksFor(t.rows, kThreads), kThreads, 0, stream>>>(t.row_offsets.data(), t.rows,
                                                                   heads);
    MarkWords<<<BlocksFor(nnz, kThreads), kThreads, 0, stream>>>(t.column_indices.data(), nnz,
                                                                 heads, counts);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) {
    error = RunningSum(stream, counts, parts, before, workspace, &sum_bytes);
  }
  int64_t count = 0;
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(&count, before + parts, sizeof(count), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (absl::Status s = ToStatus(error, "counting words"); !s.ok()) return s;
  if (nnz * kOfWords < count * kLeastNonzeros) {
    return absl::FailedPreconditionError(absl::StrCat("the right matrix has ", nnz, " nonzeros in ",
                                                      count, " words of ", kWordColumns,
                                                      " columns: they are not near to each other"));
  }
  int32_t* offsets = nullptr;
  Word* words = nullptr;
  const auto take_words = [&](Parts& all) {
    offsets = all.Take<int32_t>(t.rows + 1);
    words = all.Take<Word>(count);
  };
  if (absl::Status s = TakeParts(memory, prepared.words, take_words); !s.ok()) return s;
  FillWords<<<BlocksFor(std::max(nnz, t.rows + 1), kThreads), kThreads, 0, stream>>>(
      t.row_offsets.data(), t.column_indices.data(), t.rows, nnz, heads, before, offsets, words);
  prepared.rows = {offsets, words};
  return ToStatus(cudaGetLastError(), "filling words");
}

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& /*problem*/,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  return PrepareIn<Prepared>(context, [&](Prepared& prepared) {
    return MakeWords(context, arguments.right, memory, prepared);
  });
}

const RowWords& WordsOf(const Context& context) {
  return static_cast<const Prepared*>(context.prepared)->rows;
}

absl::Status Symbolic(const Context& context, const SpgemmArguments& arguments, RowRange range,
                      std::span<int64_t> row_nnz) {
  Rows<float> rows = RowsOf<float>(arguments, range);
  rows.row_nnz = row_nnz.data();
  return CountRowsByBitmaps(context, rows, range.end - range.begin, WordsOf(context));
}

template <typename T>
absl::Status Compute(const RowsCall& call) {
  return AddRowsByBitmaps(call.context, RowsOf<T>(call), call.range.end - call.range.begin,
                          WordsOf(call.context));
}

}  // namespace

SpgemmKernel RowWordsSpgemm() {
  return {.name = "cuda.csr.row_words",
          .device = DeviceKind::kCuda,
          .deterministic = false,
          .supports = IsPlainSpgemm,
          .workspace = BinnedRowsWorkspace,
          .analyse = CountProducts,
          .symbolic = Symbolic,
          .numeric = NumericByType<Compute<float>, Compute<double>>,
          .prepare = Prepare};
}

}  // namespace sparsed::cuda
