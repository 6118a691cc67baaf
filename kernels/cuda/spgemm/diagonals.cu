// SpGEMM by diagonals: C = S * T without searching, sorting or atomics.
//
// Idea: the product of a diagonal of S and one of T lies in one diagonal of C, row by row (the DIA
// method of Xie et al., "A Pattern-Based SpGEMM Library for Multi-Core and Many-Core
// Architectures", Algorithm 2). With the values of both laid out by diagonals, neighbouring
// threads, which have neighbouring rows of C, read neighbouring values, whatever the diagonals.
// Masks of 64 bits say which diagonals a row has: where all rows of a warp have all of them,
// nothing is looked at but values; elsewhere a padded place is never read, so that C has an entry
// only where there are products. Layout in: plain CSR of both. `prepare` finds the diagonals and
// lays out the values. Threads: one for a row of C, which goes through C's diagonals in order, and
// through the pairs that make each. The rows' exact sizes come from the masks. Needs: at most 64
// diagonals of either and 128 of C; values by diagonals may take five times CSR's memory. Wins: on
// bands and stencils, by several times.
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

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostDiagonals = 64;  // of an operand: bits of a mask
constexpr int kMostOfResult = 128;
constexpr int64_t kMostColumns = std::numeric_limits<int32_t>::max();

/// A diagonal of S and one of T, for row 0: where their values are.
struct DiagonalPair {
  int64_t s, t;
};

/// An operand on the device.
struct Operand {
  const uint64_t* masks;  // of each row: which diagonals it has
  const void* values;     // by diagonals, as many as there are rows of each
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
  Buffer marks, memory;
  Diagonals diagonals = {};
};

/// Where the stages begin behind the pairs and their ranks.
__host__ __device__ constexpr size_t StagesBegin(int pairs) {
  return (pairs * (sizeof(DiagonalPair) + sizeof(uchar2)) + 255) / 256 * 256;
}

// ---- Preparation

/// A power of two, for rows of this mean length.
int LanesFor(const CsrView& csr) { return csr.nnz() <= 8 * csr.rows ? 2 : 8; }

/// marks[column - row + rows] = 1 for each nonzero.
__global__ void __launch_bounds__(kThreads)
    MarkDiagonals(const int64_t* offsets, const int32_t* columns, int64_t rows, int lanes,
                  uint8_t* marks) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / lanes;
  if (row >= rows) return;
  const int64_t end = offsets[row + 1];
#pragma unroll 4
  for (int64_t j = offsets[row] + threadIdx.x % lanes; j < end; j += lanes) {
    uint8_t* const mark = marks + (columns[j] - row + rows);
    // Mostly it is there, and a line that nobody writes stays in the caches.
    if (*mark == 0) *mark = 1;
  }
}

/// Lists what is marked, in any order; *count may exceed the room for it.
__global__ void __launch_bounds__(kThreads)
    ListDiagonals(const uint4* marks, int64_t quads, int32_t* list, int32_t* count) {
  const int64_t quad = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (quad >= quads) return;
  const uint4 marked = marks[quad];
  const uint32_t words[4] = {marked.x, marked.y, marked.z, marked.w};
  for (int i = 0; i < 16; ++i) {
    if ((words[i / 4] >> (i % 4 * 8) & 0xff) == 0) continue;
    const int32_t place = atomicAdd(count, 1);
    if (place < kMostDiagonals) list[place] = static_cast<int32_t>(quad * 16 + i);
  }
}

__global__ void RankDiagonals(const int32_t* list, int count, uint8_t* ranks) {
  if (static_cast<int>(threadIdx.x) < count) {
    ranks[list[threadIdx.x]] = static_cast<uint8_t>(threadIdx.x);
  }
}

/// Each row's mask, and its values into their diagonals.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    LayOutRows(const int64_t* offsets, const int32_t* columns, const T* values, int64_t rows,
               int lanes, const uint8_t* ranks, uint64_t* masks, T* by_diagonal) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / lanes;
  const bool active = row < rows;
  const int64_t begin = active ? offsets[row] : 0, end = active ? offsets[row + 1] : 0;
  uint64_t mask = 0;
#pragma unroll 4
  for (int64_t j = begin + threadIdx.x % lanes; j < end; j += lanes) {
    const int rank = ranks[columns[j] - row + rows];
    mask |= uint64_t{1} << rank;
    by_diagonal[rank * rows + row] = values[j];
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    mask |= __shfl_xor_sync(0xffffffffu, mask, distance);
  }
  if (active && threadIdx.x % lanes == 0) masks[row] = mask;
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

/// Little enough for any matrix.
constexpr int64_t kFreeBytes = int64_t{1} << 20;

/// Whether so much may be kept for the sake of this matrix.
absl::Status CheckGrowth(const CsrView& csr, size_t element, int64_t bytes) {
  const auto csr_bytes = static_cast<int64_t>(CsrBytes(csr, element));
  if (bytes <= std::max(kMostFormatGrowth * csr_bytes, kFreeBytes)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      csr.rows, " x ", csr.cols, " with ", csr.nnz(), " nonzeros would take ", bytes,
      " bytes by diagonals, more than ", kMostFormatGrowth, " times CSR's ", csr_bytes));
}

int64_t MarksOf(const CsrView& csr) { return static_cast<int64_t>(RoundUp(csr.rows + csr.cols)); }

/// Finds the matrix's diagonals: column - row, ascending. `marks`, of MarksOf bytes, have their
/// ranks afterwards.
absl::StatusOr<std::vector<int32_t>> FindDiagonals(const CsrView& csr, uint8_t* marks,
                                                   int32_t* list, cudaStream_t stream) {
  cudaError_t error = cudaMemsetAsync(marks, 0, MarksOf(csr), stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(list, 0, sizeof(*list), stream);
  if (error == cudaSuccess && csr.nnz() > 0) {
    const int lanes = LanesFor(csr);
    MarkDiagonals<<<BlocksFor(csr.rows * lanes, kThreads), kThreads, 0, stream>>>(
        csr.row_offsets.data(), csr.column_indices.data(), csr.rows, lanes, marks);
    const auto quads = MarksOf(csr) / static_cast<int64_t>(sizeof(uint4));
    ListDiagonals<<<BlocksFor(quads, kThreads), kThreads, 0, stream>>>(
        reinterpret_cast<const uint4*>(marks), quads, list + 1, list);
    error = cudaGetLastError();
  }
  int32_t found[1 + kMostDiagonals];
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(found, list, sizeof(found), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (absl::Status s = ToStatus(error, "finding diagonals"); !s.ok()) return s;
  if (found[0] > kMostDiagonals) {
    return absl::FailedPreconditionError(absl::StrCat("a matrix of ", csr.nnz(), " nonzeros has ",
                                                      found[0], " diagonals, more than ",
                                                      kMostDiagonals));
  }
  std::vector<int32_t> diagonals(found + 1, found + 1 + found[0]);
  std::sort(diagonals.begin(), diagonals.end());
  error = cudaMemcpyAsync(list, diagonals.data(), diagonals.size() * sizeof(int32_t),
                          cudaMemcpyHostToDevice, stream);
  if (error == cudaSuccess) {
    RankDiagonals<<<1, kMostDiagonals, 0, stream>>>(list, found[0], marks);
    error = cudaGetLastError();
  }
  if (absl::Status s = ToStatus(error, "ranking diagonals"); !s.ok()) return s;
  for (int32_t& diagonal : diagonals) diagonal -= static_cast<int32_t>(csr.rows);
  return diagonals;
}

/// C's diagonals and the pairs that make them, as the device has them.
struct Tables {
  std::vector<DiagonalPair> pairs;
  std::vector<uchar2> ranks;
  std::vector<int32_t> pair_begins, c_offsets;
};

absl::StatusOr<Tables> PairDiagonals(const std::vector<int32_t>& s, int64_t s_rows,
                                     const std::vector<int32_t>& t, int64_t t_rows) {
  Tables tables;
  std::vector<std::pair<int64_t, uchar2>> sums;  // column - row in C
  for (size_t i = 0; i < s.size(); ++i) {
    for (size_t j = 0; j < t.size(); ++j) {
      sums.push_back(
          {int64_t{s[i]} + t[j], make_uchar2(static_cast<uint8_t>(i), static_cast<uint8_t>(j))});
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
      tables.c_offsets.push_back(static_cast<int32_t>(
          std::clamp<int64_t>(sum, std::numeric_limits<int32_t>::min(), kMostColumns)));
    }
    tables.pairs.push_back({ranks.x * s_rows, ranks.y * t_rows + s[ranks.x]});
    tables.ranks.push_back(ranks);
  }
  tables.pair_begins.push_back(static_cast<int32_t>(sums.size()));
  if (tables.c_offsets.size() > kMostOfResult) {
    return absl::FailedPreconditionError(
        absl::StrCat(s.size(), " and ", t.size(), " diagonals make ", tables.c_offsets.size(),
                     " of the product, more than ", kMostOfResult));
  }
  return tables;
}

template <typename T>
absl::Status PrepareOf(cudaStream_t stream, const SpgemmArguments& arguments, MemorySource& memory,
                       Prepared& prepared) {
  const CsrView& left = arguments.left;
  const CsrView& right = arguments.right;
  const bool same = IsSquare(arguments);
  for (const CsrView* csr : {&left, &right}) {
    if (csr->rows + csr->cols > kMostColumns) {
      return absl::FailedPreconditionError("too large for diagonals");
    }
    if (absl::Status s = CheckGrowth(*csr, sizeof(T), MarksOf(*csr)); !s.ok()) return s;
  }
  constexpr size_t kList = 512;
  static_assert(kList >= (1 + kMostDiagonals) * sizeof(int32_t));
  absl::StatusOr<Buffer> buffer =
      memory.Allocate(kList + MarksOf(left) + (same ? 0 : MarksOf(right)));
  if (!buffer.ok()) return buffer.status();
  prepared.marks = *std::move(buffer);
  auto* const list = reinterpret_cast<int32_t*>(prepared.marks.mutable_data());
  uint8_t* const s_ranks = reinterpret_cast<uint8_t*>(list) + kList;
  uint8_t* const t_ranks = same ? s_ranks : s_ranks + MarksOf(left);
  const absl::StatusOr<std::vector<int32_t>> s = FindDiagonals(left, s_ranks, list, stream);
  if (!s.ok()) return s.status();
  const absl::StatusOr<std::vector<int32_t>> t =
      same ? s : FindDiagonals(right, t_ranks, list, stream);
  if (!t.ok()) return t.status();
  const absl::StatusOr<Tables> tables = PairDiagonals(*s, left.rows, *t, right.rows);
  if (!tables.ok()) return tables.status();

  const auto value_bytes = [](const CsrView& csr, size_t diagonals) {
    return RoundUp(diagonals * csr.rows * sizeof(T));
  };
  const auto mask_bytes = [](const CsrView& csr) { return RoundUp(csr.rows * sizeof(uint64_t)); };
  const auto bytes_of = [&](const CsrView& csr, size_t diagonals) {
    return value_bytes(csr, diagonals) + mask_bytes(csr);
  };
  const auto grown = [&](const CsrView& csr, size_t diagonals) {
    return CheckGrowth(csr, sizeof(T), static_cast<int64_t>(bytes_of(csr, diagonals)));
  };
  if (absl::Status status = grown(left, s->size()); !status.ok()) return status;
  if (absl::Status status = grown(right, t->size()); !status.ok()) return status;
  size_t bytes = bytes_of(left, s->size()) + (same ? 0 : bytes_of(right, t->size()));
  const auto add = [&bytes]<typename E>(const std::vector<E>& array) {
    bytes += RoundUp(array.size() * sizeof(E));
  };
  add(tables->pairs), add(tables->ranks), add(tables->pair_begins), add(tables->c_offsets), add(*s);
  absl::StatusOr<Buffer> laid_out = memory.Allocate(bytes);
  if (!laid_out.ok()) return laid_out.status();
  prepared.memory = *std::move(laid_out);
  std::byte* at = prepared.memory.mutable_data();
  cudaError_t error = cudaSuccess;
  const auto lay_out = [&](const CsrView& csr, const void* values, size_t diagonals,
                           const uint8_t* ranks) {
    auto* const masks = reinterpret_cast<uint64_t*>(std::exchange(at, at + mask_bytes(csr)));
    auto* const by_diagonal =
        reinterpret_cast<T*>(std::exchange(at, at + value_bytes(csr, diagonals)));
    if (error == cudaSuccess && csr.rows > 0) {
      const int lanes = LanesFor(csr);
      LayOutRows<<<BlocksFor(csr.rows * lanes, kThreads), kThreads, 0, stream>>>(
          csr.row_offsets.data(), csr.column_indices.data(), static_cast<const T*>(values),
          csr.rows, lanes, ranks, masks, by_diagonal);
      error = cudaGetLastError();
    }
    return Operand{masks, by_diagonal,
                   diagonals == 64 ? ~uint64_t{0} : (uint64_t{1} << diagonals) - 1, csr.rows};
  };
  const auto copy = [&]<typename E>(const std::vector<E>& array) {
    const size_t size = array.size() * sizeof(E);
    auto* const there = reinterpret_cast<E*>(std::exchange(at, at + RoundUp(size)));
    if (error == cudaSuccess) {
      error = cudaMemcpyAsync(there, array.data(), size, cudaMemcpyHostToDevice, stream);
    }
    return there;
  };
  Diagonals& d = prepared.diagonals;
  d.s = lay_out(left, arguments.left_values, s->size(), s_ranks);
  d.t = same ? d.s : lay_out(right, arguments.right_values, t->size(), t_ranks);
  d.pairs = copy(tables->pairs);
  d.ranks = copy(tables->ranks);
  d.pair_begins = copy(tables->pair_begins);
  d.c_offsets = copy(tables->c_offsets);
  d.s_offsets = copy(*s);
  d.s_count = static_cast<int>(s->size());
  d.c_count = static_cast<int>(tables->c_offsets.size());
  d.pair_count = static_cast<int>(tables->pairs.size());
  d.staged = std::min(d.c_count, kStaged<T>);
  if (SharedBytes<T>(d) > static_cast<size_t>(MostSharedBytes() - kTableBytes)) {
    return absl::FailedPreconditionError(
        absl::StrCat(d.pair_count, " pairs of diagonals take more shared memory than there is"));
  }
  return ToStatus(error, "laying out by diagonals");
}

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& problem,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  const auto prepare = problem.type == ElementType::kF64 ? PrepareOf<double> : PrepareOf<float>;
  return PrepareIn<Prepared>(context, [&](Prepared& prepared) {
    return prepare(static_cast<cudaStream_t>(context.stream), arguments, memory, prepared);
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
          .prepare = Prepare};
}

}  // namespace sparsed::cuda
