// SDDMM from CSR, plain or with permuted rows: O = S .* (A * B^T).
//
// Idea: equal numbers of nonzeros for everybody. Both rows of several nonzeros are in flight at
// once; a row of A is fetched again only where the row changes or the next few nonzeros begin. The
// sums of eight nonzeros are reduced over the lanes together, which leaves one in each lane.
// Layout in: "csr"; one of S^T has the operands' parts swapped.
// Threads: a group of 2 to 8 lanes takes 32 consecutive nonzeros, 16 bytes a lane (one element, if
// rows are not aligned), and goes through K in steps of 8 lanes.
// Needs: no workspace.
// Wins: on graphs and short rows, less as K grows; rows of like length (bands, FEM, uniform) do
// better on cuSPARSE. Slabs of K are for a B that the L2 cache does not hold: a launch each, which
// adds to the results of the last.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/sddmm/sddmm.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kItems = 32;
constexpr int kInFlight = 8;  // nonzeros of a group whose rows are loaded at once

template <typename T>
struct Dots {
  const int64_t* row_offsets;
  const int32_t* columns;
  const int32_t* row_order;
  const int32_t* source32;  // at most one of the two; both null: CSR's order
  const int64_t* source64;
  const T* values;  // null: 1
  const T* a;
  const T* b;
  T* out;
  int64_t rows, nnz, lda, ldb;
  int64_t k_begin, k_end;
};

// Sums each of `sums` over the group; afterwards lane l holds those of [first, first + kLeft).
template <typename T, int kGroup>
__device__ inline int ReduceTogether(T (&sums)[kInFlight], int lane, unsigned mask) {
  int count = kInFlight, first = 0;
#pragma unroll
  for (int offset = kGroup / 2; offset > 0; offset /= 2) {
    const bool upper = (lane & offset) != 0;
    count /= 2;
#pragma unroll
    for (int i = 0; i < kInFlight / 2; ++i) {
      if (i < count) {
        const T mine = upper ? sums[i + count] : sums[i];
        const T theirs = upper ? sums[i] : sums[i + count];
        sums[i] = mine + __shfl_xor_sync(mask, theirs, offset, kGroup);
      }
    }
    if (upper) first += count;
  }
  return first;
}

template <typename T, int kWidth, int kGroup>
__global__ void __launch_bounds__(kThreads) RowDots(const Dots<T> d) {
  static_assert(kGroup <= kInFlight);
  constexpr int kGroups = kThreads / kGroup;
  __shared__ int64_t ends[2];
  const int lane = threadIdx.x % kGroup;
  const unsigned mask = GroupMask<kGroup>();
  const int64_t block_begin = static_cast<int64_t>(blockIdx.x) * kGroups * kItems;
  if (threadIdx.x % 32 == 0 && threadIdx.x < 64) {
    const int64_t at = threadIdx.x == 0
                           ? block_begin
                           : min(block_begin + static_cast<int64_t>(kGroups) * kItems, d.nnz) - 1;
    ends[threadIdx.x / 32] = UpperBound(d.row_offsets, 0, d.rows, at);
  }
  __syncthreads();
  const int64_t begin = block_begin + threadIdx.x / kGroup * kItems;
  const int64_t end = min(begin + kItems, d.nnz);
  if (begin >= end) return;
  int64_t row = UpperBound(d.row_offsets, ends[0], ends[1], begin) - 1;
  int64_t row_end = d.row_offsets[row + 1];

  for (int64_t position = begin; position < end; position += kInFlight) {
    const T* a_rows[kInFlight];
    const T* b_rows[kInFlight];
    bool fresh[kInFlight];  // another row of A than the nonzero before
    T sums[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      // Beyond the end the last nonzero is repeated; nothing of it is written.
      const int64_t at = min(position + i, end - 1);
      fresh[i] = i == 0;
      while (at >= row_end) {
        row_end = d.row_offsets[++row + 1];
        fresh[i] = true;
      }
      if (fresh[i]) {
        a_rows[i] = d.a + (d.row_order == nullptr ? row : d.row_order[row]) * d.lda;
      } else {
        a_rows[i] = a_rows[i > 0 ? i - 1 : 0];
      }
      b_rows[i] = d.b + d.columns[at] * d.ldb;
      sums[i] = 0;
    }
    for (int64_t k = d.k_begin + lane * kWidth; k < d.k_end; k += kGroup * kWidth) {
      Vector<T, kWidth> a[kInFlight], b[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        b[i] = *reinterpret_cast<const Vector<T, kWidth>*>(b_rows[i] + k);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (fresh[i]) {
          a[i] = *reinterpret_cast<const Vector<T, kWidth>*>(a_rows[i] + k);
        } else {
          a[i] = a[i > 0 ? i - 1 : 0];
        }
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sums[i] += a[i].at[j] * b[i].at[j];
      }
    }
    __syncwarp(mask);
    const int first = ReduceTogether<T, kGroup>(sums, lane, mask);
#pragma unroll
    for (int i = 0; i < kInFlight / kGroup; ++i) {
      const int64_t at = position + first + i;
      if (at >= end) continue;
      T result = sums[i];
      if (d.values != nullptr) result *= d.values[at];
      const int64_t target = d.source32 != nullptr   ? d.source32[at]
                             : d.source64 != nullptr ? d.source64[at]
                                                     : at;
      d.out[target] = d.k_begin == 0 ? result : d.out[target] + result;
    }
  }
}

template <typename T, int kWidth, int kGroup>
void Launch(cudaStream_t stream, const Dots<T>& d) {
  constexpr int64_t kPerBlock = static_cast<int64_t>(kThreads / kGroup) * kItems;
  const auto blocks = static_cast<unsigned>((d.nnz + kPerBlock - 1) / kPerBlock);
  RowDots<T, kWidth, kGroup><<<blocks, kThreads, 0, stream>>>(d);
}

template <typename T, int kWidth>
void LaunchGroup(cudaStream_t stream, const Dots<T>& d) {
  const int64_t k = d.k_end - d.k_begin;
  if (k <= 2 * kWidth) return Launch<T, kWidth, 2>(stream, d);
  if (k <= 4 * kWidth) return Launch<T, kWidth, 4>(stream, d);
  Launch<T, kWidth, 8>(stream, d);
}

template <typename T>
absl::Status RunOf(int64_t slab, const Context& context, const SddmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  if (layout.nnz == 0) return absl::OkStatus();
  const CsrView s = ViewCsr(layout);
  const ConstDense& a = layout.transposed ? arguments.b : arguments.a;
  const ConstDense& b = layout.transposed ? arguments.a : arguments.b;
  Dots<T> d = {.row_offsets = s.row_offsets.data(),
               .columns = s.column_indices.data(),
               .row_order = s.row_order.empty() ? nullptr : s.row_order.data(),
               .source32 = nullptr,
               .source64 = nullptr,
               .values = static_cast<const T*>(arguments.values),
               .a = static_cast<const T*>(a.data),
               .b = static_cast<const T*>(b.data),
               .out = static_cast<T*>(arguments.out),
               .rows = layout.rows,
               .nnz = layout.nnz,
               .lda = a.leading_dimension,
               .ldb = b.leading_dimension,
               .k_begin = 0,
               .k_end = 0};
  if (const Array* source = layout.Find(kValueSource); source != nullptr) {
    if (source->type == ElementType::kI32) {
      d.source32 = source->As<int32_t>().data();
    } else {
      d.source64 = source->As<int64_t>().data();
    }
  }
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const int64_t k = arguments.a.cols;
  const bool wide = RowsAreWide<T>(d.a, d.lda, k) && RowsAreWide<T>(d.b, d.ldb, k);
  // One launch even if K is 0: it writes zeros.
  do {
    d.k_end = slab == 0 ? k : std::min(k, d.k_begin + slab);
    if (wide) {
      LaunchGroup<T, kWidest<T>>(stream, d);
    } else {
      LaunchGroup<T, 1>(stream, d);
    }
    d.k_begin = d.k_end;
  } while (d.k_begin < k);
  return ToStatus(cudaGetLastError(), "starting SDDMM");
}

template <int kSlab>
absl::Status Run(const Context& context, const Problem& problem, const SddmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? RunOf<float>(kSlab, context, arguments)
                                           : RunOf<double>(kSlab, context, arguments);
}

template <int kSlab>
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSddmm &&
         layout.kind == kCsr && (kSlab == 0 || problem.k > kSlab);
}

size_t Workspace(const Problem& /*problem*/, const Layout& /*layout*/, int /*threads*/) {
  return 0;
}

template <int kSlab>
SddmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports<kSlab>,
          .workspace = Workspace,
          .run = Run<kSlab>};
}

}  // namespace

SddmmKernel CsrSddmm() { return Kernel<0>("cuda.csr.dots"); }
SddmmKernel CsrSlab128Sddmm() { return Kernel<128>("cuda.csr.dots_slab128"); }
SddmmKernel CsrSlab32Sddmm() { return Kernel<32>("cuda.csr.dots_slab32"); }

}  // namespace sparsed::cuda
