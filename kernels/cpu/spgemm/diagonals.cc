// C = S * T by diagonals: the product of a diagonal of S and one of T lies in one diagonal of C,
// row by row, so that a vector of rows is multiplied at once without looking at a column (the DIA
// method of Xie et al., "A Pattern-Based SpGEMM Library for Multi-Core and Many-Core
// Architectures", Algorithm 2).
//
// For 64 rows of C at a time: S's rows are laid out by diagonal; each diagonal of C is summed in
// registers over its pairs of diagonals; its 64 presence bits are the rows where S and T both have
// an entry, so that a padded zero never meets an infinity; then rows are gathered over the
// diagonals, whose columns ascend, and those without an entry are left out.
//
// Layout in: plain CSR of both; T is laid out by diagonals once for a product. A row of C belongs
// to one thread. Wins on bands and stencils, where diagonals are full or nearly so.
#include "kernels/cpu/spgemm/diagonals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "kernels/cpu/spgemm/spgemm.h"

namespace sparsed::cpu {
namespace {

/// More pairs of diagonals than this are more work to go through than their products.
constexpr int64_t kMostPairs = int64_t{1} << 18;
/// Nor is it worth while to find more of one matrix.
constexpr int64_t kMostDiagonals = int64_t{1} << 14;

int32_t Offset(int32_t column, int64_t row) {
  return static_cast<int32_t>(column - row);  // both are below 2^31
}

/// Puts the matrix's diagonals, ascending, into `offsets`; how many, or -1 if there is no room for
/// all. If it is stopped, some of them.
int64_t FindDiagonals(const Context& context, const CsrView& csr, std::span<int32_t> offsets) {
  int64_t count = 0;
  const int32_t* before = nullptr;
  int64_t length_before = 0;
  for (int64_t row = 0; row < csr.rows && !context.stopped(); ++row) {
    const int64_t length = csr.row_offsets[row + 1] - csr.row_offsets[row];
    const int32_t* const columns = csr.column_indices.data() + csr.row_offsets[row];
    // Most rows have the diagonals of the row before them.
    bool same = length == length_before;
    if (same) {
      int32_t difference = 0;
      for (int64_t i = 0; i < length; ++i) difference |= (columns[i] - before[i]) ^ 1;
      same = difference == 0;
    }
    before = columns;
    length_before = length;
    if (same) continue;
    int32_t* at = offsets.data();
    for (int64_t i = 0; i < length; ++i) {
      const int32_t offset = Offset(columns[i], row);
      at = std::lower_bound(at, offsets.data() + count, offset);
      if (at < offsets.data() + count && *at == offset) continue;
      if (count == static_cast<int64_t>(offsets.size())) return -1;
      std::copy_backward(at, offsets.data() + count, offsets.data() + count + 1);
      *at = offset;
      ++count;
    }
  }
  return count;
}

/// Finds the diagonals, if keeping the matrix by diagonals is allowed.
template <typename T>
absl::Status FindSuitingDiagonals(const Context& context, const CsrView& csr, MemorySource& memory,
                                  Scratch<int32_t>& offsets, int64_t& count) {
  const int64_t csr_bytes = CsrBytes<T>(csr);
  const int64_t most =
      std::min({kMostFormatGrowth * csr_bytes /
                    std::max<int64_t>(csr.rows * static_cast<int64_t>(sizeof(T)), 1),
                csr.rows + csr.cols, kMostDiagonals});
  if (absl::Status status = offsets.Allocate(memory, most); !status.ok()) return status;
  count = FindDiagonals(context, csr, offsets.span());
  if (count >= 0) return UnlessStopped(context);
  return absl::FailedPreconditionError(
      fmt::format("a matrix of {} nonzeros has more than {} diagonals: at most {} are kept, in at "
                  "most {} times "
                  "CSR's memory",
                  csr.nnz(), most, kMostDiagonals, kMostFormatGrowth));
}

/// Which diagonals C has, and the pairs that make them.
absl::Status PairDiagonals(ProductDiagonals& operands, MemorySource& memory) {
  const int64_t count = operands.s_count * operands.t_count;
  if (count > kMostPairs) {
    return absl::FailedPreconditionError(
        fmt::format("{} diagonals times {} are more than {} pairs to go through", operands.s_count,
                    operands.t_count, kMostPairs));
  }
  absl::Status status = operands.pairs.Allocate(memory, count);
  status.Update(operands.c_offsets.Allocate(memory, RoundUp(count, kDiagonalRows)));
  status.Update(operands.pair_begin.Allocate(memory, count + 1));
  if (!status.ok()) return status;
  const auto pairs = operands.pairs.span();
  int64_t pair = 0;
  for (int32_t s = 0; s < operands.s_count; ++s) {
    for (int32_t t = 0; t < operands.t_count; ++t) pairs[pair++] = {s, t};
  }
  const auto sum = [&](const DiagonalPair& p) {
    return int64_t{operands.s_offsets[p.s]} + operands.t_offsets[p.t];
  };
  std::sort(pairs.begin(), pairs.end(), [&](const DiagonalPair& a, const DiagonalPair& b) {
    return std::pair(sum(a), a.s) < std::pair(sum(b), b.s);
  });
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0 && sum(pairs[i]) == sum(pairs[i - 1])) continue;
    operands.pair_begin[operands.c_count] = static_cast<int32_t>(i);
    // Of a diagonal outside of C, nothing is ever an entry.
    operands.c_offsets[operands.c_count++] = static_cast<int32_t>(std::clamp<int64_t>(
        sum(pairs[i]), std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
  }
  operands.pair_begin[operands.c_count] = static_cast<int32_t>(count);
  std::fill(operands.c_offsets.data() + operands.c_count,
            operands.c_offsets.data() + operands.c_offsets.size(), 0);
  return absl::OkStatus();
}

template <typename T>
absl::Status LayOut(const Context& context, const CsrView& t, const T* values,
                    DiagonalOperands<T>& operands, MemorySource& memory) {
  // An odd number of lines, so that one row's values don't all fall into one set of a cache.
  constexpr int64_t kLine = 64 / sizeof(T);
  operands.t_stride = RoundUp(t.rows + 2 * kDiagonalRows, 2 * kLine) + kLine;
  operands.t_words = RoundUp(t.rows, 64) / 64 + 3;
  absl::Status status = operands.t_values.Allocate(memory, operands.t_count * operands.t_stride);
  status.Update(operands.t_bits.Allocate(memory, operands.t_count * operands.t_words));
  if (!status.ok()) return status;
  for (int64_t d = 0; d < operands.t_count; ++d) {
    T* const diagonal = operands.t_values.data() + d * operands.t_stride;
    std::fill(diagonal, diagonal + kDiagonalRows, T{0});
    std::fill(diagonal + kDiagonalRows + t.rows, diagonal + operands.t_stride, T{0});
    uint64_t* const bits = operands.t_bits.data() + d * operands.t_words;
    bits[0] = bits[operands.t_words - 2] = bits[operands.t_words - 1] = 0;
  }
  const int32_t* const offsets = operands.t_offsets.data();
  constexpr int64_t kPieceRows = 64 * 16;
#pragma omp parallel for num_threads(context.threads) schedule(static) if (context.threads > 1)
  for (int64_t piece = 0; piece < t.rows; piece += kPieceRows) {
    if (context.stopped()) continue;
    const int64_t end = std::min(piece + kPieceRows, t.rows);
    for (int64_t begin = piece; begin < end; begin += 64) {
      const int64_t word = 1 + begin / 64;
      const int64_t last = std::min(begin + 64, end);
      const bool full =
          t.row_offsets[last] - t.row_offsets[begin] == (last - begin) * operands.t_count;
      const uint64_t present = full ? ~uint64_t{0} >> (64 - (last - begin)) : 0;
      for (int64_t d = 0; d < operands.t_count; ++d) {
        operands.t_bits[d * operands.t_words + word] = present;
        T* const diagonal = operands.t_values.data() + d * operands.t_stride + kDiagonalRows;
        if (!full) std::fill(diagonal + begin, diagonal + last, T{0});
      }
      for (int64_t row = begin; row < last; ++row) {
        T* const to = operands.t_values.data() + kDiagonalRows + row;
        const int64_t entry = t.row_offsets[row];
        if (full) {
          for (int64_t d = 0; d < operands.t_count; ++d) {
            to[d * operands.t_stride] = values[entry + d];
          }
          continue;
        }
        int64_t d = 0;
        for (int64_t i = entry; i < t.row_offsets[row + 1]; ++i, ++d) {
          const int32_t offset = Offset(t.column_indices[i], row);
          while (offsets[d] < offset) ++d;
          to[d * operands.t_stride] = values[i];
          operands.t_bits[d * operands.t_words + word] |= uint64_t{1} << (row - begin);
        }
      }
    }
  }
  return UnlessStopped(context);
}

template <typename T>
absl::StatusOr<std::shared_ptr<void>> PrepareOf(const Context& context,
                                                const SpgemmArguments& arguments,
                                                MemorySource& memory) {
  auto operands = std::make_shared<DiagonalOperands<T>>();
  absl::Status status = FindSuitingDiagonals<T>(context, arguments.left, memory,
                                                operands->s_offsets, operands->s_count);
  if (status.ok()) {
    status = FindSuitingDiagonals<T>(context, arguments.right, memory, operands->t_offsets,
                                     operands->t_count);
  }
  if (status.ok()) status = PairDiagonals(*operands, memory);
  if (status.ok()) {
    status = LayOut(context, arguments.right, static_cast<const T*>(arguments.right_values),
                    *operands, memory);
  }
  if (!status.ok()) return status;
  operands->space_bytes =
      DiagonalSpace<T>(BumpAllocator(nullptr), operands->s_count, operands->c_count).bytes;
  absl::StatusOr<Buffer> spaces =
      memory.Allocate(operands->space_bytes * static_cast<size_t>(context.threads));
  if (!spaces.ok()) return spaces.status();
  operands->spaces = *std::move(spaces);
  return std::shared_ptr<ProductDiagonals>(std::move(operands));
}

/// No row has more entries than C has diagonals.
absl::Status Analyse(const Context& context, const SpgemmArguments& arguments,
                     std::span<int64_t> row_bounds, int64_t* products) {
  absl::Status status = AnalyseProducts(context, arguments, row_bounds, products);
  const int64_t most = static_cast<const ProductDiagonals*>(context.prepared)->c_count;
  for (int64_t& bound : row_bounds) bound = std::min(bound, most);
  return status;
}

template <typename T>
struct DiagonalPhases {
  static constexpr auto Prepare = PrepareOf<T>;

  static size_t Workspace(const SpgemmArguments& /*arguments*/) { return 0; }

  static absl::Status Numeric(const NumericCall& call) {
    const auto& operands = static_cast<const DiagonalOperands<T>&>(
        *static_cast<const ProductDiagonals*>(call.context.prepared));
    return ShareRows(call, [&](int thread, PieceQueue& pieces) {
      RunDiagonals(RowJob<T>(call), operands, thread, pieces);
    });
  }
};

}  // namespace

SpgemmKernel DiagonalsSpgemm() {
  SpgemmKernel kernel = MakeSpgemmKernel<DiagonalPhases>("cpu.dia.diagonals");
  kernel.analyse = Analyse;
  return kernel;
}

}  // namespace sparsed::cpu
