// SpMM from CSR, plain or with permuted rows: C = alpha * S * B + beta * C.
//
// Idea: merge-path balance (Merrill and Garland, SC 2016): rows and nonzeros together are cut into
// segments of equal length, so that long rows are split and empty ones cost their share. Loads of
// several nonzeros are in flight whatever rows they belong to, which is what short rows need.
// Layout in: "csr".
// Threads: a group of 1 to 32 lanes takes a segment and the columns of one slab, 16 bytes a lane
// (one element, if rows are not aligned); gridDim.y counts slabs of K. A segment that begins inside
// a row leaves its sum of that row to the segment where the row began: in shared memory within a
// block, in the workspace between blocks, where a second kernel adds it.
// Needs: a slab's row and a row number for each block and slab.
// Wins: at small K on graphs and short rows. Narrow slabs are for a B that the L2 cache does not
// hold; as measured they cost more in instructions than they save in memory.
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
  T* carries;           // a row of slabs * slab elements for each block
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
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kGroup + lane) * kWidth;
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
  if (group == 0 && lane == 0 && blockIdx.y == 0) p.carry_rows[blockIdx.x] = head_row;
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
  const int64_t column = static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x;
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

// Lanes of a group for slabs of at most `slab` elements of K.
int GroupFor(int64_t k, int64_t slab, int width) {
  int group = 1;
  while (group < 32 && static_cast<int64_t>(group) * width < std::min(k, slab)) group *= 2;
  return group;
}

int ItemsFor(const Layout& layout) {
  return layout.rows + layout.nnz < (int64_t{1} << 21) ? 64 : 128;
}

// Blocks for groups of `group` lanes.
int64_t Blocks(const Layout& layout, int group) {
  const int64_t items = static_cast<int64_t>(ItemsFor(layout)) * (kThreads / group);
  return (layout.rows + layout.nnz + items - 1) / items;
}

int64_t PaddedWidth(int64_t k) { return (k + 127) / 128 * 128; }

// Whatever the alignment of the operands turns out to be, which the group depends on: the widest
// group has the most blocks.
template <int kSlab>
size_t Workspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  const int64_t blocks = Blocks(layout, 32);
  return static_cast<size_t>(blocks) *
         (sizeof(int64_t) + static_cast<size_t>(PaddedWidth(problem.k)) * SizeOf(problem.type));
}

template <typename T, int kWidth, int kGroup>
absl::Status Launch(cudaStream_t stream, const Layout& layout, const Product<T>& product) {
  const int64_t blocks = Blocks(layout, kGroup);
  const int64_t slabs = (product.k + kGroup * kWidth - 1) / (kGroup * kWidth);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(slabs));
  MergeRows<T, kWidth, kGroup><<<grid, kThreads, 0, stream>>>(product);
  if (blocks > 1) {
    const dim3 carry_grid(static_cast<unsigned>((blocks + 7) / 8),
                          static_cast<unsigned>((product.k + 31) / 32));
    AddCarries<T><<<carry_grid, dim3(32, 8), 0, stream>>>(product, blocks);
  }
  return ToStatus(cudaGetLastError(), "starting SpMM");
}

template <typename T, int kWidth>
absl::Status LaunchGroup(int group, cudaStream_t stream, const Layout& layout,
                         const Product<T>& product) {
  switch (group) {
    case 1:
      return Launch<T, kWidth, 1>(stream, layout, product);
    case 2:
      return Launch<T, kWidth, 2>(stream, layout, product);
    case 4:
      return Launch<T, kWidth, 4>(stream, layout, product);
    case 8:
      return Launch<T, kWidth, 8>(stream, layout, product);
    case 16:
      return Launch<T, kWidth, 16>(stream, layout, product);
    default:
      return Launch<T, kWidth, 32>(stream, layout, product);
  }
}

template <typename T>
absl::Status RunOf(int64_t slab, const Context& context, const SpmmArguments& arguments) {
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
                        .carries = nullptr,
                        .carry_rows = reinterpret_cast<int64_t*>(context.workspace.data()),
                        .carry_stride = PaddedWidth(arguments.c.cols)};
  product.carries = reinterpret_cast<T*>(product.carry_rows + Blocks(layout, 32));
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const bool wide = RowsAreWide<T>(product.b, product.ldb, product.k) &&
                    RowsAreWide<T>(product.c, product.ldc, product.k);
  if (wide) {
    return LaunchGroup<T, kWidest<T>>(GroupFor(product.k, slab, kWidest<T>), stream, layout,
                                      product);
  }
  return LaunchGroup<T, 1>(GroupFor(product.k, slab, 1), stream, layout, product);
}

template <int kSlab>
absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? RunOf<float>(kSlab, context, arguments)
                                           : RunOf<double>(kSlab, context, arguments);
}

// A slab that is as wide as the next wider kernel's would be the same kernel twice.
template <int kSlab>
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSpmm &&
         !problem.transposed && layout.kind == kCsr && (kSlab == 128 || problem.k > kSlab);
}

template <int kSlab>
SpmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports<kSlab>,
          .workspace = Workspace<kSlab>,
          .run = Run<kSlab>};
}

}  // namespace

SpmmKernel CsrSpmm() { return Kernel<128>("cuda.csr.merge"); }
SpmmKernel CsrSlab64Spmm() { return Kernel<64>("cuda.csr.merge_slab64"); }
SpmmKernel CsrSlab32Spmm() { return Kernel<32>("cuda.csr.merge_slab32"); }
SpmmKernel CsrSlab16Spmm() { return Kernel<16>("cuda.csr.merge_slab16"); }

}  // namespace sparsed::cuda
