// SpGEMM by diagonals: C = S * T without searching, sorting or atomics.
//
// Idea: the product of a diagonal of S and one of T lies in one diagonal of C, row by row (the DIA
// method of Xie et al., "A Pattern-Based SpGEMM Library for Multi-Core and Many-Core
// Architectures", Algorithm 2). With the values of both laid out by diagonals, neighbouring
// threads, which have neighbouring rows of C, read neighbouring values, whatever the diagonals.
// Masks of 64 bits say which diagonals a row has: where all rows of a warp have all of them,
// nothing is looked at but values; elsewhere a padded place is never read, so that C has an entry
// only where there are products. Layout in: "dia" of both; `prepare` pairs their diagonals.
// Threads: one for a row of C, which goes through C's diagonals in order, and through the pairs
// that make each. The rows' exact sizes come from the masks. Needs: at most 64 diagonals of either
// and 128 of C. Wins: on bands and stencils, by several times.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/products.cuh"
#include "kernels/cuda/spgemm/spgemm.h"
#include "kernels/formats/diagonals.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostDiagonals = DiagonalsView::kMostMaskBits;
constexpr int kMostOfResult = 128;

/// A diagonal of S and one of T, for row 0: where their values are.
struct DiagonalPair {
  int64_t s, t;
};

/// An operand on the device.
struct Operand {
  const uint64_t* masks;  // of each row: which diagonals it has
  const void* values;     // row 0 of the first diagonal
  uint64_t full;          // the mask of all diagonals
  int64_t rows;
};

/// What `prepare` leaves on the device.
struct Diagonals {
  Operand s, t;
  const DiagonalPair* pairs;   // those of each diagonal of C, and in it by that of S
  const uchar2* ranks;         // which diagonals of S and T each pair has
  const int32_t* pair_begins;  // of each diagonal of C, and the end
  const int32_t* c_offsets;    // column - row of each diagonal of C, ascending
  const int32_t* s_offsets;
  int s_count, c_count, pair_count;
  int staged;  // diagonals of C, at once
};

struct Prepared {
  Buffer tables;
  Diagonals diagonals = {};
};

/// Where the stages begin behind the pairs and their ranks.
__host__ __device__ constexpr size_t StagesBegin(int pairs) {
  return (pairs * (sizeof(DiagonalPair) + sizeof(uchar2)) + 255) / 256 * 256;
}

// ---- Rows

/// Which pairs a row of C has.
struct RowPairs {
  uint64_t s_mask;
  bool full;  // all

  __device__ RowPairs(const Diagonals& d, int64_t row, const int32_t* s_offsets)
      : s_mask(d.s.masks[row]) {
    full = s_mask == d.s.full;
    for (int i = 0; i < d.s_count && full; ++i) {
      full = d.t.masks[row + s_offsets[i]] == d.t.full;
    }
  }
  /// Without branches, so that several can be on their way.
  __device__ bool Have(const Diagonals& d, int64_t row, const int32_t* s_offsets,
                       uchar2 ranks) const {
    const int64_t k = min(max(row + s_offsets[ranks.x], int64_t{0}), d.t.rows - 1);
    return ((s_mask >> ranks.x & d.t.masks[k] >> ranks.y) & 1) != 0;
  }
};

/// row_nnz[i] = entries of C's row i; *products: of all rows.
__global__ void __launch_bounds__(kThreads)
    CountEntries(const Diagonals d, int64_t rows, int64_t* row_nnz, unsigned long long* products) {
  extern __shared__ uchar2 all_ranks[];
  __shared__ int32_t s_offsets[kMostDiagonals], pair_begins[kMostOfResult + 1];
  __shared__ unsigned long long of_block;
  for (int i = threadIdx.x; i < d.pair_count; i += kThreads) all_ranks[i] = d.ranks[i];
  for (int i = threadIdx.x; i < d.s_count; i += kThreads) s_offsets[i] = d.s_offsets[i];
  for (int i = threadIdx.x; i <= d.c_count; i += kThreads) pair_begins[i] = d.pair_begins[i];
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  unsigned long long mine = 0;
  if (row < rows) {
    const RowPairs pairs(d, row, s_offsets);
    int entries = 0;
    if (pairs.full) {
      entries = d.c_count;
      mine = d.pair_count;
    } else {
      for (int c = 0; c < d.c_count; ++c) {
        int present = 0;
#pragma unroll 4
        for (int p = pair_begins[c]; p < pair_begins[c + 1]; ++p) {
          present += pairs.Have(d, row, s_offsets, all_ranks[p]);
        }
        entries += present > 0;
        mine += present;
      }
    }
    row_nnz[row] = entries;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    mine += __shfl_xor_sync(0xffffffffu, mine, distance);
  }
  if (threadIdx.x % 32 == 0 && mine > 0) atomicAdd(&of_block, mine);
  __syncthreads();
  if (threadIdx.x == 0 && of_block > 0) atomicAdd(products, of_block);
}

/// Of C's diagonals that are staged at once, at most.
template <typename T>
constexpr int kStaged = static_cast<int>(128 / sizeof(T));

/// Sums of one diagonal and a warp's rows, on their way to where they lie one row after another.
template <typename T>
struct Stage {
  T sums[32 + 1];
};

/// The tables besides take a part of a block's shared memory, too.
constexpr int kTableBytes = 4 << 10;

/// In shared memory: pairs, their ranks, and the warps' stages.
template <typename T>
size_t SharedBytes(const Diagonals& d) {
  return StagesBegin(d.pair_count) + kThreads / 32 * d.staged * sizeof(Stage<T>);
}

/// Writes the diagonals from c on, of which each lane's row has those in `mask`, to `out` of that
/// lane and on. Neighbouring lanes write neighbouring entries.
template <typename T>
__device__ inline void WriteRows(const RowTarget<T>& rows, int64_t row, const int32_t* c_offsets,
                                 int diagonals, const Stage<T>* stages, unsigned mask,
                                 int64_t out) {
  const int lane = threadIdx.x % 32;
  const int width = diagonals <= 8 ? 8 : diagonals <= 16 ? 16 : 32;  // lanes for a row
  const int c = lane % width;
  for (int r = lane / width; r < 32; r += 32 / width) {
    const unsigned set = __shfl_sync(0xffffffffu, mask, r);
    const int64_t begin = __shfl_sync(0xffffffffu, out, r);
    if ((set >> c & 1) == 0) continue;
    const int64_t at = begin + __popc(set & ((1u << c) - 1));
    rows.columns[at] = static_cast<int32_t>(row - lane + r + c_offsets[c]);
    rows.values[at] = stages[c].sums[r];
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) SumRows(const RowTarget<T> rows, const Diagonals d) {
  extern __shared__ DiagonalPair pairs[];
  auto* const all_ranks = reinterpret_cast<uchar2*>(pairs + d.pair_count);
  __shared__ int32_t s_offsets[kMostDiagonals], c_offsets[kMostOfResult],
      pair_begins[kMostOfResult + 1];
  for (int i = threadIdx.x; i < d.pair_count; i += kThreads) {
    pairs[i] = d.pairs[i];
    all_ranks[i] = d.ranks[i];
  }
  for (int i = threadIdx.x; i < d.s_count; i += kThreads) s_offsets[i] = d.s_offsets[i];
  for (int i = threadIdx.x; i < d.c_count; i += kThreads) c_offsets[i] = d.c_offsets[i];
  for (int i = threadIdx.x; i <= d.c_count; i += kThreads) pair_begins[i] = d.pair_begins[i];
  __syncthreads();
  const int lane = threadIdx.x % 32;
  auto* const stages =
      reinterpret_cast<Stage<T>*>(reinterpret_cast<std::byte*>(pairs) + StagesBegin(d.pair_count)) +
      threadIdx.x / 32 * d.staged;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i - lane < rows.count;
       i += stride) {
    const bool active = i < rows.count;
    // Others sum the last row once more.
    const int64_t row = rows.first + min(i, rows.count - 1);
    const T* const s_values = static_cast<const T*>(d.s.values) + row;
    const T* const t_values = static_cast<const T*>(d.t.values) + row;
    const RowPairs of_row(d, row, s_offsets);
    const bool full = __all_sync(0xffffffffu, of_row.full);
    const int64_t begin = active ? rows.row_begin[i] : 0;
    int64_t out = begin;
    for (int first = 0; first < d.c_count; first += d.staged) {
      const int diagonals = min(d.staged, d.c_count - first);
      unsigned mask = 0;
      for (int c = 0; c < diagonals; ++c) {
        const int pair_end = pair_begins[first + c + 1];
        T sum = 0;
        bool present = full;
        if (full) {
#pragma unroll 4
          for (int p = pair_begins[first + c]; p < pair_end; ++p) {
            const DiagonalPair pair = pairs[p];
            sum += __ldg(s_values + pair.s) * __ldg(t_values + pair.t);
          }
        } else {
#pragma unroll 4
          for (int p = pair_begins[first + c]; p < pair_end; ++p) {
            const bool have = of_row.Have(d, row, s_offsets, all_ranks[p]);
            const T* const s_value = s_values + pairs[p].s;
            const T product = __ldg(s_value) * __ldg(have ? t_values + pairs[p].t : s_value);
            sum += have ? product : T(0);
            present |= have;
          }
        }
        stages[c].sums[lane] = sum;
        mask |= static_cast<unsigned>(present && active) << c;
      }
      __syncwarp();
      WriteRows(rows, rows.first + i, c_offsets + first, diagonals, stages, mask, out);
      out += __popc(mask);
      __syncwarp();
    }
    if (active) rows.row_nnz[i] = out - begin;
  }
}

// ---- Launches

/// C's diagonals and the pairs that make them, as the device has them.
struct Tables {
  std::vector<DiagonalPair> pairs;
  std::vector<uchar2> ranks;
  std::vector<int32_t> pair_begins, c_offsets;
};

/// A factor's diagonals, and where their values are.
struct Factor {
  std::vector<int32_t> offsets;
  int64_t stride;
};

absl::StatusOr<Tables> PairDiagonals(const Factor& s, const Factor& t) {
  Tables tables;
  std::vector<std::pair<int64_t, uchar2>> sums;  // column - row in C
  for (size_t i = 0; i < s.offsets.size(); ++i) {
    for (size_t j = 0; j < t.offsets.size(); ++j) {
      sums.push_back({int64_t{s.offsets[i]} + t.offsets[j],
                      make_uchar2(static_cast<uint8_t>(i), static_cast<uint8_t>(j))});
    }
  }
  std::sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second.x) < std::pair(b.first, b.second.x);
  });
  for (size_t p = 0; p < sums.size(); ++p) {
    const auto [sum, ranks] = sums[p];
    if (p == 0 || sum != sums[p - 1].first) {
      tables.pair_begins.push_back(static_cast<int32_t>(p));
      // Of a diagonal outside of C, nothing is ever an entry.
      tables.c_offsets.push_back(static_cast<int32_t>(std::clamp<int64_t>(
          sum, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max())));
    }
    tables.pairs.push_back({ranks.x * s.stride, ranks.y * t.stride + s.offsets[ranks.x]});
    tables.ranks.push_back(ranks);
  }
  tables.pair_begins.push_back(static_cast<int32_t>(sums.size()));
  if (tables.c_offsets.size() > kMostOfResult) {
    return absl::FailedPreconditionError(
        absl::StrCat(s.offsets.size(), " and ", t.offsets.size(), " diagonals make ",
                     tables.c_offsets.size(), " of the product, more than ", kMostOfResult));
  }
  return tables;
}

/// Queues what brings the factor's diagonals to the host.
absl::StatusOr<Factor> FactorOf(const SpgemmFormat& format, cudaStream_t stream) {
  const DiagonalsView view = ViewDiagonals(*format.layout);
  if (view.count() > kMostDiagonals) {
    return absl::FailedPreconditionError(
        absl::StrCat(view.count(), " diagonals, more than ", kMostDiagonals));
  }
  Factor factor = {std::vector<int32_t>(view.count()), view.stride};
  const cudaError_t error =
      cudaMemcpyAsync(factor.offsets.data(), view.offsets.data(), view.offsets.size_bytes(),
                      cudaMemcpyDeviceToHost, stream);
  if (absl::Status s = ToStatus(error, "copying diagonals"); !s.ok()) return s;
  return factor;
}

Operand OperandOf(const SpgemmFormat& format, const Problem& problem) {
  const DiagonalsView view = ViewDiagonals(*format.layout);
  const auto* const values = static_cast<const std::byte*>(format.values);
  return {reinterpret_cast<const uint64_t*>(view.row_masks.data()),
          values + DiagonalsView::kMargin * SizeOf(problem.type),
          view.count() == 64 ? ~uint64_t{0} : (uint64_t{1} << view.count()) - 1, view.rows};
}

absl::Status Pair(cudaStream_t stream, const Problem& problem, const SpgemmArguments& arguments,
                  MemorySource& memory, Prepared& prepared) {
  const SpgemmFormat& left = arguments.left_format;
  const SpgemmFormat& right = arguments.right_format;
  const bool same =
      ViewDiagonals(*left.layout).offsets.data() == ViewDiagonals(*right.layout).offsets.data();
  const absl::StatusOr<Factor> s = FactorOf(left, stream);
  if (!s.ok()) return s.status();
  const absl::StatusOr<Factor> other = same ? Factor() : FactorOf(right, stream);
  if (!other.ok()) return other.status();
  cudaError_t error = cudaStreamSynchronize(stream);
  if (absl::Status status = ToStatus(error, "copying diagonals"); !status.ok()) return status;
  const Factor& t = same ? *s : *other;
  const absl::StatusOr<Tables> tables = PairDiagonals(*s, t);
  if (!tables.ok()) return tables.status();

  Diagonals& d = prepared.diagonals;
  d.s = OperandOf(left, problem);
  d.t = OperandOf(right, problem);
  d.s_count = static_cast<int>(s->offsets.size());
  d.c_count = static_cast<int>(tables->c_offsets.size());
  d.pair_count = static_cast<int>(tables->pairs.size());
  const bool is_f64 = problem.type == ElementType::kF64;
  d.staged = std::min(d.c_count, is_f64 ? kStaged<double> : kStaged<float>);
  const size_t shared = is_f64 ? SharedBytes<double>(d) : SharedBytes<float>(d);
  if (shared > static_cast<size_t>(MostSharedBytes() - kTableBytes)) {
    return absl::FailedPreconditionError(
        absl::StrCat(d.pair_count, " pairs of diagonals take more shared memory than there is"));
  }
  // In one piece, so that one copy brings them all.
  std::vector<std::byte> host;
  const auto lay_out = [&](std::byte* begin, bool copies) {
    Parts parts(begin);
    const auto take = [&]<typename E>(const std::vector<E>& table, const E*& at) {
      E* const to = parts.Take<E>(static_cast<int64_t>(table.size()));
      if (copies) std::copy(table.begin(), table.end(), to);
      at = to;
    };
    take(tables->pairs, d.pairs);
    take(tables->ranks, d.ranks);
    take(tables->pair_begins, d.pair_begins);
    take(tables->c_offsets, d.c_offsets);
    take(s->offsets, d.s_offsets);
    return parts.bytes();
  };
  host.resize(lay_out(nullptr, false));
  lay_out(host.data(), true);
  absl::StatusOr<Buffer> buffer = memory.Allocate(host.size());
  if (!buffer.ok()) return buffer.status();
  prepared.tables = *std::move(buffer);
  lay_out(prepared.tables.mutable_data(), false);
  error = cudaMemcpyAsync(prepared.tables.mutable_data(), host.data(), host.size(),
                          cudaMemcpyHostToDevice, stream);
  return ToStatus(error, "pairing diagonals");
}

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& problem,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  return PrepareIn<Prepared>(context, [&](Prepared& prepared) {
    return Pair(static_cast<cudaStream_t>(context.stream), problem, arguments, memory, prepared);
  });
}

const Diagonals& DiagonalsOf(const Context& context) {
  return static_cast<const Prepared*>(context.prepared)->diagonals;
}

absl::Status Analyse(const Context& context, const SpgemmArguments& arguments,
                     std::span<int64_t> row_bounds, int64_t* products) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const int64_t rows = arguments.left.rows;
  const Diagonals& d = DiagonalsOf(context);
  cudaError_t error = cudaMemsetAsync(products, 0, sizeof(*products), stream);
  if (error == cudaSuccess && rows > 0) {
    CountEntries<<<BlocksFor(rows, kThreads), kThreads, d.pair_count * sizeof(uchar2), stream>>>(
        d, rows, row_bounds.data(), reinterpret_cast<unsigned long long*>(products));
    error = cudaGetLastError();
  }
  return ToStatus(error, "analysing SpGEMM by diagonals");
}

template <typename T>
absl::Status Compute(const RowsCall& call) {
  if (call.range.begin == call.range.end) return absl::OkStatus();
  const Diagonals& d = DiagonalsOf(call.context);
  const RowTarget<T> rows = TargetOf<T>(call);
  const size_t shared = SharedBytes<T>(d);
  cudaError_t error = cudaSuccess;
  if (shared > size_t{40} << 10) {
    // The same for every launch: it is the function's, and others may be launching it.
    error = cudaFuncSetAttribute(SumRows<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 MostSharedBytes() - kTableBytes);
  }
  if (error == cudaSuccess) {
    // Blocks stay for some rows: each of them reads the tables.
    constexpr unsigned kMost = 4096;
    SumRows<T><<<std::min(BlocksFor(rows.count, kThreads), kMost), kThreads, shared,
                 static_cast<cudaStream_t>(call.context.stream)>>>(rows, d);
    error = cudaGetLastError();
  }
  return ToStatus(error, "starting SpGEMM by diagonals");
}

}  // namespace

SpgemmKernel DiagonalsSpgemm() {
  return {.name = "cuda.dia.diagonals",
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = IsPlainSpgemm,
          .workspace = NoSpgemmWorkspace,
          .analyse = Analyse,
          .symbolic = BoundsAreExact,
          .numeric = NumericByType<Compute<float>, Compute<double>>,
          .prepare = Prepare,
          .layout_kind = kDiagonals,
          .left_too = true};
}

}  // namespace sparsed::cuda
