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
// Layout in: plain CSR of S, "dia" of T. A row of C belongs to one thread. Wins on bands and
// stencils, where diagonals are full or nearly so.
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

/// Which diagonals C has, and the pairs that make them.
absl::Status PairDiagonals(std::span<const int32_t> s_offsets, std::span<const int32_t> t_offsets,
                           ProductDiagonals& product, MemorySource& memory) {
  const auto count = static_cast<int64_t>(s_offsets.size() * t_offsets.size());
  if (count > kMostPairs) {
    return absl::FailedPreconditionError(
        fmt::format("{} diagonals times {} are more than {} pairs to go through", s_offsets.size(),
                    t_offsets.size(), kMostPairs));
  }
  absl::Status status = product.pairs.Allocate(memory, count);
  status.Update(product.c_offsets.Allocate(memory, RoundUp(count, kDiagonalRows)));
  status.Update(product.pair_begin.Allocate(memory, count + 1));
  if (!status.ok()) return status;
  const auto pairs = product.pairs.span();
  int64_t pair = 0;
  for (size_t s = 0; s < s_offsets.size(); ++s) {
    for (size_t t = 0; t < t_offsets.size(); ++t) {
      pairs[pair++] = {static_cast<int32_t>(s), static_cast<int32_t>(t)};
    }
  }
  const auto sum = [&](const DiagonalPair& p) { return int64_t{s_offsets[p.s]} + t_offsets[p.t]; };
  std::sort(pairs.begin(), pairs.end(), [&](const DiagonalPair& a, const DiagonalPair& b) {
    return std::pair(sum(a), a.s) < std::pair(sum(b), b.s);
  });
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0 && sum(pairs[i]) == sum(pairs[i - 1])) continue;
    product.pair_begin[product.c_count] = static_cast<int32_t>(i);
    // Of a diagonal outside of C, nothing is ever an entry.
    product.c_offsets[product.c_count++] = static_cast<int32_t>(std::clamp<int64_t>(
        sum(pairs[i]), std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
  }
  product.pair_begin[product.c_count] = static_cast<int32_t>(count);
  std::fill(product.c_offsets.data() + product.c_count,
            product.c_offsets.data() + product.c_offsets.size(), 0);
  return absl::OkStatus();
}

/// S stays in CSR, but what its diagonals are must be known.
absl::StatusOr<Array> DiagonalsOfS(const Context& context, const SpgemmArguments& arguments,
                                   const DiagonalsView& t, MemorySource& memory) {
  const bool same = arguments.left.column_indices.data() == arguments.right.column_indices.data();
  if (!same) {
    BuildContext building;
    building.memory = &memory;
    building.stop = context.stop;
    const int64_t most = kMostPairs / std::max<int64_t>(t.count(), 1);
    return FindDiagonals(arguments.left, std::min(kMostDiagonals, most), building);
  }
  auto offsets = AllocateArray(memory, "offsets", ElementType::kI32, t.count());
  if (offsets.ok()) std::ranges::copy(t.offsets, offsets->MutableAs<int32_t>().begin());
  return offsets;
}

template <typename T>
absl::StatusOr<std::shared_ptr<void>> PrepareOf(const Context& context,
                                                const SpgemmArguments& arguments,
                                                MemorySource& memory) {
  const DiagonalsView t = ViewDiagonals(*arguments.right_format.layout);
  auto product = std::make_shared<ProductDiagonals>();
  absl::StatusOr<Array> s_offsets = DiagonalsOfS(context, arguments, t, memory);
  if (!s_offsets.ok()) return s_offsets.status();
  product->s_offsets = *std::move(s_offsets);
  product->s_count = product->s_offsets.length;
  const absl::Status paired =
      PairDiagonals(std::as_const(product->s_offsets).As<int32_t>(), t.offsets, *product, memory);
  if (!paired.ok()) return paired;
  product->space_bytes =
      DiagonalSpace<T>(BumpAllocator(nullptr), product->s_count, product->c_count).bytes;
  absl::StatusOr<Buffer> spaces =
      memory.Allocate(product->space_bytes * static_cast<size_t>(context.threads));
  if (!spaces.ok()) return spaces.status();
  product->spaces = *std::move(spaces);
  if (absl::Status status = UnlessStopped(context); !status.ok()) return status;
  return std::static_pointer_cast<void>(std::move(product));
}

/// No row has more entries than C has diagonals.
absl::Status Analyse(const Context& context, const SpgemmArguments& arguments,
                     std::span<int64_t> row_bounds, int64_t* products) {
  absl::Status status = AnalyseProducts(context, arguments, row_bounds, products);
  const bool cut = context.progress != nullptr && !context.progress->finished;
  if (!status.ok() || cut) return status;
  const int64_t most = static_cast<const ProductDiagonals*>(context.prepared)->c_count;
  for (int64_t& bound : row_bounds) bound = std::min(bound, most);
  return status;
}

template <typename T>
struct DiagonalPhases {
  static constexpr auto Prepare = PrepareOf<T>;

  static size_t Workspace(const SpgemmArguments& /*arguments*/) { return 0; }

  static absl::Status Numeric(const NumericCall& call) {
    const auto& product = *static_cast<const ProductDiagonals*>(call.context.prepared);
    const SpgemmFormat& t = call.arguments.right_format;
    const DiagonalOperands<T> operands = {product, product.s_offsets.template As<int32_t>().data(),
                                          ViewDiagonals(*t.layout),
                                          static_cast<const T*>(t.values)};
    return ShareRows(call, [&](int thread, PieceQueue& pieces) {
      RunDiagonals(RowJob<T>(call), operands, thread, pieces);
    });
  }
};

}  // namespace

SpgemmKernel DiagonalsSpgemm() {
  SpgemmKernel kernel = MakeSpgemmKernel<DiagonalPhases>("cpu.dia.diagonals");
  kernel.analyse = Analyse;
  kernel.layout_kind = kDiagonals;
  return kernel;
}

}  // namespace sparsed::cpu
