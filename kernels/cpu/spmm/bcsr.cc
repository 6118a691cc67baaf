// SpMM from dense blocks: C = alpha * S * B + beta * C.
//
// Idea: register blocking (Im, Yelick and Vuduc, "Sparsity", IJHPCA 2004) of a product with many
// columns. A row of blocks keeps `height` rows of sums in registers, as many vectors wide as there
// are registers for; a row of B is read once for all of them, a block's place once for all columns.
// Padding is multiplied as well. It is zero, and shows only where an infinity or a NaN of B meets
// it: then a sum is NaN, and the rows are summed again from the nonzeros alone, by the masks.
//
// Layout in: "bcsr" of any height and width. Threads: a row of blocks belongs to one thread, parts
// of about equal work are handed out as threads come; nothing is cut inside a row. Needs: no
// workspace, no alignment. Wins where nonzeros lie in blocks, which finite elements with several
// unknowns a vertex have, for any K but 1.
#include "kernels/formats/bcsr.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/spmm/spmm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/spmm/bcsr.cc"
#include "hwy/foreach_target.h"
// foreach_target comes first.
#include <algorithm>
#include <bit>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/spmm/csr_parts.h"
#include "kernels/cpu/spmm/store-inl.h"
#include "kernels/cpu/stored-inl.h"
#include "kernels/cpu/tail-inl.h"

#ifndef SPARSED_KERNELS_CPU_SPMM_BCSR_CC_
#define SPARSED_KERNELS_CPU_SPMM_BCSR_CC_
namespace sparsed::cpu {

/// Not owned.
template <typename T>
struct BlockProduct {
  BcsrView s;
  const T* values = nullptr;
  const T* b = nullptr;
  int64_t ldb = 0;
  T* c = nullptr;
  int64_t ldc = 0;
  int64_t k = 0;
  SumOf<T> alpha = 1;
  SumOf<T> beta = 0;
  bool prefetch = false;  ///< fetch rows of B some blocks ahead
  bool stream = false;    ///< as in CsrProduct
};

}  // namespace sparsed::cpu
#endif  // once

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Vectors of a column block: as many as there are registers for, of its rows of sums, a row of B
/// and a place of the block; 8, 4, 2 or 1.
constexpr int MostVectors(int height) {
  constexpr int kRegisters = HWY_MAX_BYTES >= 64 ? 32 : 16;
  const auto fit = static_cast<unsigned>((kRegisters - 1) / (height + 1));
  return std::clamp(static_cast<int>(std::bit_floor(fit)), 1, 8);
}

/// Columns of C that stay in registers; the last vector may be masked.
template <class D, int kHeight, int kVectors, bool kMasked, typename T>
struct BlockSlab {
  using V = hn::Vec<D>;
  using Sum = hn::TFromD<D>;
  static constexpr int64_t kBytes = kVectors * hn::MaxLanes(D()) * sizeof(T);

  static HWY_INLINE void Load(const T* HWY_RESTRICT b, Tail<D> tail, V (&row)[kVectors]) {
    const D d;
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      const T* const at = b + v * hn::Lanes(d);
      row[v] = kMasked && v + 1 == kVectors ? tail.Load(at) : LoadStored(d, at);
    }
  }

  /// Columns from `column` on of one row of C, from nonzeros alone.
  static HWY_NOINLINE void RowOfNonzeros(const BlockProduct<T>& product, int64_t block_row, int i,
                                         int64_t column, Tail<D> tail) {
    const D d;
    const auto [height, width] = product.s.shape;
    V sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
    const int64_t end = product.s.block_offsets[block_row + 1];
    for (int64_t at = product.s.block_offsets[block_row]; at < end; ++at) {
      const T* const values = product.values + (at * height + i) * width;
      unsigned bits = static_cast<unsigned>(product.s.masks[at] >> (8 * i)) & 0xff;
      for (; bits != 0; bits &= bits - 1) {
        const int j = std::countr_zero(bits);
        V row[kVectors];
        Load(product.b + (product.s.block_columns[at] * width + j) * product.ldb + column, tail,
             row);
        const V scale = hn::Set(d, static_cast<Sum>(values[j]));
        for (int v = 0; v < kVectors; ++v) sum[v] = hn::MulAdd(scale, row[v], sum[v]);
      }
    }
    StoreScaled<kMasked>(d, product, product.c + (block_row * height + i) * product.ldc + column,
                         tail, sum);
  }

  static HWY_INLINE void Prefetch(const BlockProduct<T>& product, int64_t at, int64_t column) {
    const int64_t width = product.s.shape.width;
    const int64_t ahead = std::max<int64_t>(16 / product.s.shape.places(), 2);
    const int64_t first =
        product.s.block_columns[std::min(at + ahead, product.s.blocks() - 1)] * width;
    const int64_t rows = std::min(width, product.s.cols - first);
    for (int64_t j = 0; j < rows; ++j) {
      const T* const b = product.b + (first + j) * product.ldb + column;
      for (int64_t byte = 0; byte < kBytes; byte += 128) {
        hwy::Prefetch(reinterpret_cast<const char*>(b) + byte);
      }
    }
  }

  static void Rows(const BlockProduct<T>& product, RowRange block_rows, int64_t column,
                   Tail<D> tail) {
    const D d;
    const BcsrView& s = product.s;
    const int64_t width = s.shape.width;
    for (int64_t block_row = block_rows.begin; block_row < block_rows.end; ++block_row) {
      V sums[kHeight][kVectors];
      HWY_UNROLL(8)
      for (int i = 0; i < kHeight; ++i) {
        HWY_UNROLL(8)
        for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::Zero(d);
      }
      const int64_t end = s.block_offsets[block_row + 1];
      for (int64_t at = s.block_offsets[block_row]; at < end; ++at) {
        if (product.prefetch) Prefetch(product, at, column);
        const int64_t first = s.block_columns[at] * width;
        const int64_t columns = std::min(width, s.cols - first);
        const T* value = product.values + at * kHeight * width;
        const T* b = product.b + first * product.ldb + column;
        for (int64_t j = 0; j < columns; ++j, ++value, b += product.ldb) {
          V row[kVectors];
          Load(b, tail, row);
          HWY_UNROLL(8)
          for (int i = 0; i < kHeight; ++i) {
            const V scale = hn::Set(d, static_cast<Sum>(value[i * width]));
            HWY_UNROLL(8)
            for (int v = 0; v < kVectors; ++v) {
              sums[i][v] = hn::MulAdd(scale, row[v], sums[i][v]);
            }
          }
        }
      }
      V all = hn::Zero(d);
      HWY_UNROLL(8)
      for (int i = 0; i < kHeight; ++i) {
        HWY_UNROLL(8)
        for (int v = 0; v < kVectors; ++v) all = hn::Add(all, sums[i][v]);
      }
      const int64_t c_row = block_row * kHeight;
      const bool by_masks = !hn::AllFalse(d, hn::IsNaN(all));
      HWY_UNROLL(8)
      for (int i = 0; i < kHeight; ++i) {
        if (c_row + i >= s.rows) break;
        if (HWY_UNLIKELY(by_masks)) {
          RowOfNonzeros(product, block_row, i, column, tail);
        } else {
          StoreScaled<kMasked>(d, product, product.c + (c_row + i) * product.ldc + column, tail,
                               sums[i]);
        }
      }
    }
  }
};

/// Columns [column, k) of C: column blocks as wide as they can be, then narrower ones.
template <class D, int kHeight, int kVectors, typename T>
void RunSlabs(const BlockProduct<T>& product, RowRange block_rows, int64_t column) {
  constexpr int64_t kLanes = hn::MaxLanes(D());
  for (; column + kVectors * kLanes <= product.k; column += kVectors * kLanes) {
    BlockSlab<D, kHeight, kVectors, false, T>::Rows(product, block_rows, column, Tail<D>(0));
  }
  if (column == product.k) return;
  if constexpr (kVectors > 1) {
    RunSlabs<D, kHeight, kVectors / 2>(product, block_rows, column);
  } else if constexpr (kNativeMasks) {
    BlockSlab<D, kHeight, 1, true, T>::Rows(product, block_rows, column,
                                            Tail<D>(product.k - column));
  } else if constexpr (kLanes > 1) {
    RunSlabs<hn::CappedTag<SumOf<T>, 1>, kHeight, 1>(product, block_rows, column);
  }
}

template <int kHeight = kMostBlockSide, typename T>
void MultiplyBlocksOf(const BlockProduct<T>& product, RowRange block_rows) {
  if (product.s.shape.height == kHeight) {
    RunSlabs<hn::ScalableTag<SumOf<T>>, kHeight, MostVectors(kHeight)>(product, block_rows, 0);
  } else if constexpr (kHeight > 1) {
    MultiplyBlocksOf<kHeight - 1>(product, block_rows);
  }
}

void MultiplyBlocksF32(const BlockProduct<float>& product, RowRange block_rows) {
  MultiplyBlocksOf(product, block_rows);
}
void MultiplyBlocksF64(const BlockProduct<double>& product, RowRange block_rows) {
  MultiplyBlocksOf(product, block_rows);
}
void MultiplyBlocksF16(const BlockProduct<Float16>& product, RowRange block_rows) {
  MultiplyBlocksOf(product, block_rows);
}
void MultiplyBlocksBF16(const BlockProduct<BFloat16>& product, RowRange block_rows) {
  MultiplyBlocksOf(product, block_rows);
}

}  // namespace
}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {
namespace {

HWY_EXPORT(MultiplyBlocksF32);
HWY_EXPORT(MultiplyBlocksF64);
HWY_EXPORT(MultiplyBlocksF16);
HWY_EXPORT(MultiplyBlocksBF16);

void MultiplyBlocks(const BlockProduct<float>& product, RowRange block_rows) {
  HWY_DYNAMIC_DISPATCH(MultiplyBlocksF32)(product, block_rows);
}
void MultiplyBlocks(const BlockProduct<double>& product, RowRange block_rows) {
  HWY_DYNAMIC_DISPATCH(MultiplyBlocksF64)(product, block_rows);
}
void MultiplyBlocks(const BlockProduct<Float16>& product, RowRange block_rows) {
  HWY_DYNAMIC_DISPATCH(MultiplyBlocksF16)(product, block_rows);
}
void MultiplyBlocks(const BlockProduct<BFloat16>& product, RowRange block_rows) {
  HWY_DYNAMIC_DISPATCH(MultiplyBlocksBF16)(product, block_rows);
}

template <typename T>
BlockProduct<T> MakeBlockProduct(const SpmmArguments& arguments) {
  const BcsrView s = ViewBcsr(arguments.layout);
  const CsrView blocks = {.rows = s.block_rows(),
                          .cols = (s.cols + s.shape.width - 1) / s.shape.width,
                          .row_offsets = s.block_offsets,
                          .column_indices = s.block_columns,
                          .row_order = {}};
  const int64_t row_bytes = arguments.b.cols * static_cast<int64_t>(sizeof(T));
  return {.s = s,
          .values = static_cast<const T*>(arguments.values),
          .b = static_cast<const T*>(arguments.b.data),
          .ldb = arguments.b.leading_dimension,
          .c = static_cast<T*>(arguments.c.data),
          .ldc = arguments.c.leading_dimension,
          .k = arguments.b.cols,
          .alpha = static_cast<SumOf<T>>(arguments.alpha),
          .beta = static_cast<SumOf<T>>(arguments.beta),
          .prefetch = ShouldPrefetch(blocks, s.shape.width * row_bytes),
          .stream = ShouldStream<T>(arguments)};
}

template <typename T>
absl::Status RunOf(const Context& context, const SpmmArguments& arguments) {
  PartLoop loop(context);
  if (arguments.layout.rows == 0) return loop.Finish();
  const BlockProduct<T> product = MakeBlockProduct<T>(arguments);
  const std::span<const int64_t> offsets = product.s.block_offsets;
  const int64_t parts = PartCount(arguments.layout.rows, arguments.layout.value_slots, product.k);
  const bool all = loop.Run(parts, [&](int64_t part) {
    MultiplyBlocks(product,
                   {PartBegin(offsets, part, parts).row, PartBegin(offsets, part + 1, parts).row});
    // Streamed stores are ordered with nothing else.
    if (product.stream) hwy::FlushStream();
  });
  return all ? loop.Finish() : loop.Cut();
}

absl::Status RunBcsrSpmm(const Context& context, const Problem& problem,
                         const SpmmArguments& arguments) {
  return VisitFloat(problem.type, [&]<typename T>(T) { return RunOf<T>(context, arguments); });
}

bool SupportsBcsr(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSpmm && !problem.transposed &&
         problem.device == DeviceKind::kCpu && layout.kind == kBcsr && IsFloat(problem.type);
}

}  // namespace

SpmmKernel BcsrSpmm() {
  return {.name = "cpu.bcsr.blocks",
          .layout_kind = kBcsr,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = SupportsBcsr,
          .workspace = NoWorkspace,
          .run = RunBcsrSpmm,
          .resumes = true};
}

}  // namespace sparsed::cpu
#endif
