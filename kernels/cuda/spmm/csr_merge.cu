// SpMM from CSR, plain or with permuted rows: C = alpha * S * B + beta * C.
//
// Idea: merge-path balance (Merrill and Garland, SC 2016): rows and nonzeros together are cut into
// segments of equal length, so that long rows are split and empty ones cost their share. Loads of
// several nonzeros are in flight whatever rows they belong to, which is what short rows need.
// Layout in: "csr".
// Threads: a group of 1 to 16 lanes takes a segment and all columns, 16 bytes a lane (one element,
// if rows are not aligned). A segment that begins inside a row leaves its sum of that row to the
// segment where the row began: in shared memory within a block, in the workspace between blocks,
// where a second kernel adds it. Needs: a row of C and a row number for each block. Wins: at K of
// at most 64 bytes on power-law graphs.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 8;  // nonzeros of a group whose operand rows are loaded at once

template <typename T>
struct Product {
  const int64_t* row_offsets;
  const int32_t* columns;
  const int32_t* row_order;  // null: identity
  const T* values;
  const T* b;
  T* c;
  int64_t rows, nnz, ldb, ldc, k;
  int items;  // rows and nonzeros of a segment
  T alpha, beta;
  T* carries;           // a row for each block
  int64_t* carry_rows;  // for each block: the layout row it begins inside of, or -1
  int64_t carry_stride;
};

template <typename T, int kWidth>
__device__ inline void Emit(const Product<T>& p, int64_t row, int64_t column,
                            const Vector<T, kWidth>& sum) {
  const int64_t target = p.row_order == nullptr ? row : p.row_order[row];
  auto* out = reinterpret_cast<Vector<T, kWidth>*>(p.c + target * p.ldc + column);
  Vector<T, kWidth> result;
  if (p.beta == T(0)) {
    for (int i = 0; i < kWidth; ++i) result.at[i] = p.alpha * sum.at[i];
  } else {
    result = *out;
    for (int i = 0; i < kWidth; ++i) result.at[i] = p.alpha * sum.at[i] + p.beta * result.at[i];
  }
  *out = result;
}

template <typename T, int kWidth>
__device__ inline void AddTo(const Product<T>& p, int64_t row, int64_t column,
                             const Vector<T, kWidth>& sum) {
  const int64_t target = p.row_order == nullptr ? row : p.row_order[row];
  auto* out = reinterpret_cast<Vector<T, kWidth>*>(p.c + target * p.ldc + column);
  Vector<T, kWidth> result = *out;
  for (int i = 0; i < kWidth; ++i) result.at[i] += p.alpha * sum.at[i];
  *out = result;
}

// Rows that end before merge-path position `diagonal`, searched in [low, high].
__device__ inline int64_t RowsBefore(const int64_t* row_offsets, int64_t nnz, int64_t diagonal,
                                     int64_t low, int64_t high) {
  low = max(low, diagonal - nnz);
  high = min(high, diagonal);
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (row_offsets[middle + 1] <= diagonal - middle - 1) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

template <typename T, int kWidth, int kGroup>
__global__ void __launch_bounds__(kThreads) MergeRows(const Product<T> p) {
  constexpr int kGroups = kThreads / kGroup;
  __shared__ int64_t first_row[kGroups + 1];
  __shared__ int64_t head_rows[kGroups];
  __shared__ Vector<T, kWidth> heads[kThreads];
  const int group = threadIdx.x / kGroup;
  const int lane = threadIdx.x % kGroup;
  const unsigned mask = GroupMask<kGroup>();
  const int64_t path = p.rows + p.nnz;
  const int64_t block_begin = static_cast<int64_t>(blockIdx.x) * kGroups * p.items;

  if (threadIdx.x % 32 == 0 && threadIdx.x < 64) {  // the block's two ends
    const int end = threadIdx.x == 0 ? 0 : kGroups;
    first_row[end] =
        RowsBefore(p.row_offsets, p.nnz,
                   min(path, block_begin + static_cast<int64_t>(end) * p.items), 0, p.rows);
  }
  __syncthreads();
  const int64_t block_low = first_row[0], block_high = first_row[kGroups];
  if (threadIdx.x > 0 && threadIdx.x < kGroups) {
    first_row[threadIdx.x] = RowsBefore(
        p.row_offsets, p.nnz, min(path, block_begin + static_cast<int64_t>(threadIdx.x) * p.items),
        block_low, block_high);
  }
  __syncthreads();

  const int64_t begin = min(path, block_begin + static_cast<int64_t>(group) * p.items);
  const int64_t end = min(path, begin + p.items);
  int64_t row = first_row[group];
  const int64_t end_row = first_row[group + 1];
  int64_t position = begin - row;
  const int64_t end_position = end - end_row;
  const int64_t column = static_cast<int64_t>(lane) * kWidth;
  const bool inside = column < p.k;
  const T* const b = p.b + column;

  bool in_head = row < p.rows && begin < end && position > p.row_offsets[row];
  const int64_t head_row = in_head ? row : -1;
  Vector<T, kWidth> head = {}, sum = {};
  int64_t row_end = row < p.rows ? p.row_offsets[row + 1] : p.nnz;
  int64_t next_end = row + 1 < p.rows ? p.row_offsets[row + 2] : p.nnz;

  const auto finish_row = [&] {
    if (in_head) {
      head = sum;
      in_head = false;
    } else if (inside) {
      Emit(p, row, column, sum);
    }
    sum = {};
    ++row;
    row_end = next_end;
    next_end = row + 1 < p.rows ? p.row_offsets[row + 2] : p.nnz;
  };

  constexpr int kChunk = kGroup < kInFlight ? kInFlight : kGroup;
  constexpr int kHeld = kChunk / kGroup;
  for (; position < end_position; position += kChunk) {
    int32_t held_column[kHeld];
    T held_value[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int64_t at = position + i * kGroup + lane;
      held_column[i] = at < end_position ? p.columns[at] : 0;
      held_value[i] = at < end_position ? p.values[at] : T(0);
    }
    const int count = static_cast<int>(min(static_cast<int64_t>(kChunk), end_position - position));
#pragma unroll 1
    for (int done = 0; done < count; done += kInFlight) {
      Vector<T, kWidth> rows[kInFlight];
      T values[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int from = kHeld == 1 ? done + i : i % kGroup;
        const int64_t source =
            __shfl_sync(mask, held_column[kHeld == 1 ? 0 : i / kGroup], from, kGroup);
        values[i] = __shfl_sync(mask, held_value[kHeld == 1 ? 0 : i / kGroup], from, kGroup);
        rows[i] = {};
        if (inside && done + i < count) {
          rows[i] = *reinterpret_cast<const Vector<T, kWidth>*>(b + source * p.ldb);
        }
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (done + i < count) {
          while (position + done + i == row_end) finish_row();
#pragma unroll
          for (int j = 0; j < kWidth; ++j) sum.at[j] += values[i] * rows[i].at[j];
        }
      }
    }
  }
  while (row < end_row) finish_row();
  // What was begun of a row that ends in a later segment.
  if (in_head) {
    head = sum;
  } else if (inside && row < p.rows && begin < end && end_position > p.row_offsets[row]) {
    Emit(p, row, column, sum);
  }

  heads[threadIdx.x] = head;
  if (lane == 0) head_rows[group] = head_row;
  __syncthreads();
  if (group == 0 && lane == 0) p.carry_rows[blockIdx.x] = head_row;
  if (head_row < 0 || (group > 0 && head_rows[group - 1] == head_row)) return;
  for (int other = group + 1; other < kGroups && head_rows[other] == head_row; ++other) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) head.at[j] += heads[other * kGroup + lane].at[j];
  }
  if (!inside) return;
  if (group > 0) {
    AddTo(p, head_row, column, head);  // its first segment is in this block
  } else {
    *reinterpret_cast<Vector<T, kWidth>*>(p.carries + blockIdx.x * p.carry_stride + column) = head;
  }
}

// One thread for each block and column: the first block of a row's chain adds the whole chain.
template <typename T>
__global__ void AddCarries(const Product<T> p, int64_t blocks) {
  const int64_t column = threadIdx.x;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (block >= blocks || column >= p.k) return;
  const int64_t row = p.carry_rows[block];
  if (row < 0 || p.carry_rows[block - 1] == row) return;  // block 0 begins with row 0
  T sum = 0;
  int64_t other = block;
  while (other < blocks && p.carry_rows[other] == row) {
    T part[8];
    bool same = true;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      same = same && other + i < blocks && p.carry_rows[other + i] == row;
      part[i] = same ? p.carries[(other + i) * p.carry_stride + column] : T(0);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += part[i];
    other += 8;
    if (!same) break;
  }
  const int64_t target = p.row_order == nullptr ? row : p.row_order[row];
  p.c[target * p.ldc + column] += p.alpha * sum;
}

int ItemsFor(const Layout& layout) {
  return layout.rows + layout.nnz < (int64_t{1} << 21) ? 64 : 128;
}

// Blocks for groups of `group` lanes.
int64_t Blocks(const Layout& layout, int group) {
  const int64_t items = static_cast<int64_t>(ItemsFor(layout)) * (kThreads / group);
  return (layout.rows + layout.nnz + items - 1) / items;
}

constexpr int64_t kMostBytes = 64;  // of a row of C
constexpr int kWidestGroup = 16;

// Whatever the alignment of the operands turns out to be, which the group depends on: the widest
// group has the most blocks.
size_t Workspace(const Problem& /*problem*/, const Layout& layout, int /*threads*/) {
  return static_cast<size_t>(Blocks(layout, kWidestGroup)) * (kMostBytes + sizeof(int64_t));
}

template <typename T, int kWidth, int kGroup>
absl::Status Launch(cudaStream_t stream, const Layout& layout, const Product<T>& product) {
  const int64_t blocks = Blocks(layout, kGroup);
  MergeRows<T, kWidth, kGroup><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(product);
  if (blocks > 1) {
    AddCarries<T>
        <<<static_cast<unsigned>((blocks + 15) / 16), dim3(16, 16), 0, stream>>>(product, blocks);
  }
  return ToStatus(cudaGetLastError(), "starting SpMM");
}

template <typename T, int kWidth>
absl::Status LaunchGroup(cudaStream_t stream, const Layout& layout, const Product<T>& product) {
  const int64_t lanes = (product.k + kWidth - 1) / kWidth;
  if constexpr (kWidth == 1) {
    if (lanes > 8) return Launch<T, kWidth, kWidestGroup>(stream, layout, product);
    if (lanes > 4) return Launch<T, kWidth, 8>(stream, layout, product);
  }
  if (lanes > 2) return Launch<T, kWidth, 4>(stream, layout, product);
  if (lanes > 1) return Launch<T, kWidth, 2>(stream, layout, product);
  return Launch<T, kWidth, 1>(stream, layout, product);
}

template <typename T>
absl::Status RunOf(const Context& context, const SpmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  if (layout.rows == 0 || arguments.c.cols == 0) return absl::OkStatus();
  const CsrView s = ViewCsr(layout);
  Product<T> product = {.row_offsets = s.row_offsets.data(),
                        .columns = s.column_indices.data(),
                        .row_order = s.row_order.empty() ? nullptr : s.row_order.data(),
                        .values = static_cast<const T*>(arguments.values),
                        .b = static_cast<const T*>(arguments.b.data),
                        .c = static_cast<T*>(arguments.c.data),
                        .rows = layout.rows,
                        .nnz = layout.nnz,
                        .ldb = arguments.b.leading_dimension,
                        .ldc = arguments.c.leading_dimension,
                        .k = arguments.c.cols,
                        .items = ItemsFor(layout),
                        .alpha = static_cast<T>(arguments.alpha),
                        .beta = static_cast<T>(arguments.beta),
                        .carries = reinterpret_cast<T*>(context.workspace.data()),
                        .carry_rows = nullptr,
                        .carry_stride = kMostBytes / static_cast<int64_t>(sizeof(T))};
  product.carry_rows = reinterpret_cast<int64_t*>(product.carries + Blocks(layout, kWidestGroup) *
                                                                        product.carry_stride);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (RowsAreWide<T>(product.b, product.ldb, product.k) &&
      RowsAreWide<T>(product.c, product.ldc, product.k)) {
    return LaunchGroup<T, kWidest<T>>(stream, layout, product);
  }
  return LaunchGroup<T, 1>(stream, layout, product);
}

absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? RunOf<float>(context, arguments)
                                           : RunOf<double>(context, arguments);
}

bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && !IsHalf(problem.type) &&
         problem.operation == Operation::kSpmm && !problem.transposed && layout.kind == kCsr &&
         problem.k * static_cast<int64_t>(SizeOf(problem.type)) <= kMostBytes;
}

}  // namespace

SpmmKernel CsrMergeSpmm() {
  return {.name = "cuda.csr.merge",
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports,
          .workspace = Workspace,
          .run = Run};
}

}  // namespace sparsed::cuda
