// SpMM from adaptive sparse tiles: C = alpha * S * B + beta * C.
//
// Idea: Hong et al., PPoPP'19: the rows of B that a panel's rows share are copied into shared
// memory, once for the panel, and multiplied from there; the sparse remainder gathers them one by
// one. Shared memory delivers four times what the L2 cache does. Unlike there, a panel is tall, its
// sums stay in registers over all tiles and the remainder, and the tiles are of equal size.
// Layout in: "aspt", panels of at most 256 rows. A remainder in an order of its own (the second
// round of Jiang et al., PPoPP'20) is added to C afterwards, by a kernel of csr_rows.cu.
// Threads: a block a panel and column block (128 or 256 bytes); column blocks are gridDim.y, one
// after another. A group of 8 lanes, 16 or twice 16 bytes each, owns 4 rows. While a tile of the
// panel's dense columns is multiplied, the next is copied asynchronously, and so are each row's
// next nonzeros: a group takes those of a row up to the first that is not of the tile.
// Needs: no workspace, but what a second round needs. Values aligned to 16 bytes. Shared memory:
// 416 bytes a thread, 448 for f64. Wins: where a panel's rows share columns, but neighbours do not,
// and are of about equal length: dense-ish scattered patterns (more in f64), and by little. Its
// limit is the rate at which shared memory is read, 16 bytes a lane for each nonzero, of which it
// reaches 70 %; more than half of that are rows of B. Loses on power laws, where a block waits for
// the group with the longest row, and on small patterns, where the first tiles are waited for.
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/remainder.h"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/spmm/slice.cuh"
#include "kernels/cuda/spmm/spmm.h"
#include "kernels/formats/aspt.h"

namespace sparsed::cuda {
namespace {

constexpr unsigned kWarp = 0xffffffffu;
constexpr int kGroup = 8;
constexpr int kGroups = 32 / kGroup;  // of a warp
constexpr int kOwnRows = 4;           // of a group
constexpr int kMostThreads = 512;
constexpr int kMostPanelRows = kMostThreads / kGroup * kOwnRows;
constexpr int kTileBytesPerThread = 160;

template <typename T>
struct Product {
  const int64_t* panel_offsets;
  const int32_t* panel_columns;
  const int64_t* dense_offsets;
  const int32_t* dense_indices;
  const int64_t* remainder_offsets;  // null: the remainder is left out
  const int32_t* remainder_columns;
  const int32_t* row_order;  // null: identity
  const T* values;
  const T* b;
  T* c;
  int64_t rows, dense_nnz, ldc, k;
  uint32_t b_stride;  // bytes from one row of B to the next
  int panel;          // rows
  T alpha, beta;
};

__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// For all that were committed, except by the last commit.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

/// 16 bytes of shared memory. An address in 32 bits saves what pointers cost.
__device__ inline void LoadShared(uint32_t from, float* to) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "r"(from)
               : "memory");
}
__device__ inline void LoadShared(uint32_t from, double* to) {
  asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];"
               : "=d"(to[0]), "=d"(to[1])
               : "r"(from)
               : "memory");
}

/// A lane's part of a row in shared memory, `from` being the address of its first column.
template <typename Part>
__device__ inline void ReadRow(uint32_t from, typename Part::Element (&row)[Part::kWidth]) {
  using T = typename Part::Element;
  if constexpr (Part::kIsAligned) {
#pragma unroll
    for (int j = 0; j < Part::kWidth; j += kWidest<T>) {
      LoadShared(from + Part::Offset(j) * static_cast<int>(sizeof(T)), row + j);
    }
  } else {
#pragma unroll
    for (int j = 0; j < Part::kWidth; ++j) {
      row[j] = *static_cast<const T*>(__cvta_shared_to_generic(from + Part::Offset(j) * sizeof(T)));
    }
  }
}

/// Dense columns of a panel, a column block of whose rows of B is in shared memory.
struct Tile {
  int first, end;
  uint32_t at;  // address of the lane's first column
};

/// A warp's part of the tiles that are copied to shared memory. It knows the next one's columns
/// before it copies them.
template <typename Part>
class TileCopies {
  using T = typename Part::Element;
  static constexpr int kRowBytes = Part::kColumns * static_cast<int>(sizeof(T));
  static constexpr int kOfWarp = 32 * kTileBytesPerThread / kRowBytes;
  static constexpr int kHeld = (kOfWarp + 31) / 32;
  static_assert(kOfWarp % kGroups == 0);

 public:
  static constexpr int kParts = kOwnRows - 1;

  /// `b` points at the lane's first column, of `elements`.
  __device__ TileCopies(const int32_t* columns, int count, const T* b, uint32_t stride,
                        int elements)
      : columns_(columns), count_(count), b_(b), stride_(stride), elements_(elements) {
    Hold();
  }
  __device__ static int TileColumns() { return static_cast<int>(blockDim.x) / 32 * kOfWarp; }
  /// Begins to copy one of kParts parts of the next tile; `to` is the address of the lane's part of
  /// its first row.
  __device__ void Copy(uint32_t to, int part) {
    const int first =
        static_cast<int>(threadIdx.x) / 32 * kOfWarp + static_cast<int>(threadIdx.x) % 32 / kGroup;
    const int count = elements_ == 0 ? 0 : count_ - next_ - first;
    to += first * kRowBytes;
#pragma unroll
    for (int i = 0; i < kOfWarp; i += kGroups) {
      if (i * kParts / kOfWarp != part) continue;
      const int32_t column =
          __shfl_sync(kWarp, held_[i / 32], i % 32 + static_cast<int>(threadIdx.x) % 32 / kGroup);
      if (i < count) CopyRow(column, to + i * kRowBytes);
    }
    if (part < kParts - 1) return;
    next_ += TileColumns();
    Hold();
  }

 private:
  __device__ void CopyRow(int32_t column, uint32_t to) const {
    const T* const row = RowAt(b_, column, stride_);
    constexpr int kStep = Part::kIsAligned ? kWidest<T> : 1;
    constexpr int kBytes = kStep * static_cast<int>(sizeof(T));
#pragma unroll
    for (int j = 0; j < Part::kWidth; j += kStep) {
      const int at = Part::Offset(j);
      if (j < elements_) CopyAsync<kBytes>(to + at * static_cast<int>(sizeof(T)), row + at);
    }
  }
  __device__ void Hold() {
    const int first = next_ + static_cast<int>(threadIdx.x) / 32 * kOfWarp;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int at = first + h * 32 + static_cast<int>(threadIdx.x) % 32;
      held_[h] = at < count_ ? __ldg(columns_ + at) : 0;
    }
  }

  const int32_t* columns_;
  int count_, next_ = 0;
  const T* b_;
  uint32_t stride_;
  int elements_;
  int32_t held_[kHeld];
};

/// The next dense nonzeros of a row of each group of a warp, in shared memory. What the groups read
/// or write at once is in different banks.
template <typename T>
struct alignas(16) Chunk {
  static constexpr int kCount = 2 * kGroup;  // of each group; lane l looks after l and l + kGroup
  int32_t indices[kGroups][kCount + 8];
  T values[kGroups][kCount + (sizeof(T) == 4 ? 8 : 4)];
};

/// sum += the products of the first `count` nonzeros that a chunk has of a group.
template <typename Part>
__device__ inline void AddChunk(const Tile& tile, const Chunk<typename Part::Element>& chunk,
                                int count, SliceSum<Part>& sum) {
  using T = typename Part::Element;
  constexpr int kRowBytes = Part::kColumns * static_cast<int>(sizeof(T));
  const uint32_t rows_at = tile.at - static_cast<uint32_t>(tile.first) * kRowBytes;
  const int member = static_cast<int>(threadIdx.x) % 32 / kGroup;
  const int32_t* indices = chunk.indices[member];
  const T* values = chunk.values[member];
  // Those behind are read ahead; a chunk has room for that.
  Vector<int32_t, 4> index = *reinterpret_cast<const Vector<int32_t, 4>*>(indices);
  Vector<T, 4> value = *reinterpret_cast<const Vector<T, 4>*>(values);
#pragma unroll 1
  for (; count > 0; count -= 4) {
    T rows[4][Part::kWidth];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) ReadRow<Part>(rows_at + index.at[i] * kRowBytes, rows[i]);
    }
    const Vector<T, 4> scale = value;
    index = *reinterpret_cast<const Vector<int32_t, 4>*>(indices += 4);
    value = *reinterpret_cast<const Vector<T, 4>*>(values += 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= count) continue;
#pragma unroll
      for (int j = 0; j < Part::kWidth; ++j) sum.at[j] += scale.at[i] * rows[i][j];
    }
  }
}

/// How many lanes of the group say yes. Called by whole warps.
__device__ inline int CountOfGroup(bool yes) {
  return __popc(__ballot_sync(kWarp, yes) & GroupMask<kGroup>());
}

template <typename T, bool kAligned, int kPieces>
__global__ void __launch_bounds__(kMostThreads, 1) Tiles(const Product<T> p) {
  using Part = Slice<T, kAligned, kGroup, kPieces>;
  constexpr int kRowBytes = Part::kColumns * static_cast<int>(sizeof(T));
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const int stage_bytes = static_cast<int>(blockDim.x) * kTileBytesPerThread;
  const int lane = threadIdx.x % kGroup;
  const int group = threadIdx.x / kGroup, groups = static_cast<int>(blockDim.x) / kGroup;
  const int64_t first = Part::First(blockIdx.y, lane);
  const int elements = Part::Count(p.k, first);
  unsigned char* const lane_rows = shared_bytes + Part::First(0, lane) * sizeof(T);
  const auto lane_address = static_cast<uint32_t>(__cvta_generic_to_shared(lane_rows));
  Chunk<T>* const chunks =
      reinterpret_cast<Chunk<T>*>(shared_bytes + 2 * stage_bytes) + threadIdx.x / 32 * kOwnRows;
  // Lanes without columns read those of the first one.
  const T* const b = p.b + (elements > 0 ? first : Part::First(blockIdx.y, 0));

  const int64_t panel_begin = p.panel_offsets[blockIdx.x];
  const int dense_columns = static_cast<int>(p.panel_offsets[blockIdx.x + 1] - panel_begin);
  TileCopies<Part> copies(p.panel_columns + panel_begin, dense_columns, b, p.b_stride, elements);
#pragma unroll
  for (int part = 0; part < copies.kParts; ++part) copies.Copy(lane_address, part);

  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * p.panel;
  const int rows = static_cast<int>(min(p.rows - first_row, int64_t{p.panel}));
  const int64_t base = p.dense_offsets[first_row];
  const int32_t* const indices = p.dense_indices + base;
  const T* const values = p.values + base;
  // Where a row's next nonzeros are, and where it ends. A chunk of them is always on its way: that
  // of the last row is waited for by itself, all others together with the tile.
  int at[kOwnRows] = {}, end[kOwnRows] = {};
  const int member = static_cast<int>(threadIdx.x) % 32 / kGroup;
  const auto fetch = [&](int r) {
#pragma unroll
    for (int i = lane; i < Chunk<T>::kCount; i += kGroup) {
      if (at[r] + i >= end[r]) continue;
      const auto address = [](const void* in_shared) {
        return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared));
      };
      CopyAsync<4>(address(&chunks[r].indices[member][i]), indices + at[r] + i);
      CopyAsync<sizeof(T)>(address(&chunks[r].values[member][i]), values + at[r] + i);
    }
  };
#pragma unroll
  for (int r = 0; r < kOwnRows; ++r) {
    const int row = group * kOwnRows + r;
    if (row < rows) {
      at[r] = static_cast<int>(__ldg(p.dense_offsets + first_row + row) - base);
      end[r] = static_cast<int>(__ldg(p.dense_offsets + first_row + row + 1) - base);
    }
    fetch(r);
    if (r >= kOwnRows - 2) CommitCopies();
  }

  SliceSum<Part> sums[kOwnRows];
  Tile tile = {0, 0, lane_address};
  int stage = 0;
#pragma unroll 1
  while (tile.end < dense_columns) {
    tile.first = tile.end;
    tile.end = min(tile.first + copies.TileColumns(), dense_columns);
    tile.at = lane_address + stage;
    stage = stage_bytes - stage;
    WaitForCopies();
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      if (r < copies.kParts) {
        copies.Copy(lane_address + stage, r);
      } else {
        WaitForCopies();
        __syncwarp();
      }
      Chunk<T>& chunk = chunks[r];
      while (true) {
        int count = 0;
#pragma unroll
        for (int i = lane; i < Chunk<T>::kCount; i += kGroup) {
          count += CountOfGroup(at[r] + i < end[r] && chunk.indices[member][i] < tile.end);
        }
        AddChunk(tile, chunk, count, sums[r]);
        __syncwarp();
        at[r] += count;
        if (!__any_sync(kWarp, count == Chunk<T>::kCount)) break;
          // A chunk was not enough: the next is waited for.
#pragma unroll
        for (int i = lane; i < Chunk<T>::kCount; i += kGroup) {
          if (at[r] + i >= end[r]) continue;
          chunk.indices[member][i] = __ldg(indices + at[r] + i);
          chunk.values[member][i] = __ldg(values + at[r] + i);
        }
        __syncwarp();
      }
      fetch(r);
      if (r >= kOwnRows - 2) CommitCopies();
    }
  }

  // The sums wait in shared memory while the remainder is gathered.
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kOwnRows; ++r) {
    T* const place = reinterpret_cast<T*>(lane_rows + (r * groups + group) * kRowBytes);
#pragma unroll
    for (int j = 0; j < Part::kWidth; ++j) place[Part::Offset(j)] = sums[r].at[j];
  }
  if (elements == 0) return;
#pragma unroll 1
  for (int r = 0; r < kOwnRows; ++r) {
    const int64_t row = first_row + group * kOwnRows + r;
    if (row >= first_row + rows) break;
    SliceSum<Part> sum;
    ReadRow<Part>(lane_address + (r * groups + group) * kRowBytes, sum.at);
    if (p.remainder_offsets != nullptr) {
      const int64_t begin = __ldg(p.remainder_offsets + row);
      const int64_t count = __ldg(p.remainder_offsets + row + 1) - begin;
      AddNonzeros<8 / kPieces, 1>(b, p.b_stride, p.remainder_columns + begin,
                                  PlainValues<T>{p.values + p.dense_nnz + begin},
                                  static_cast<int>(count), elements, sum);
    }
    const int64_t target = p.row_order == nullptr ? row : p.row_order[row];
    sum.Emit(p.c + target * p.ldc + first, elements, p.alpha, p.beta);
  }
}

int Threads(int64_t panel) {
  const int64_t groups = (panel + kOwnRows - 1) / kOwnRows;
  return static_cast<int>((groups * kGroup + 31) / 32 * 32);
}

template <typename T>
int SharedBytes(int threads) {
  return 2 * threads * kTileBytesPerThread +
         threads / 32 * kOwnRows * static_cast<int>(sizeof(Chunk<T>));
}

template <typename T, bool kAligned, int kPieces>
absl::Status Launch(cudaStream_t stream, const Product<T>& product, int64_t panels) {
  constexpr int64_t kColumns = Slice<T, kAligned, kGroup, kPieces>::kColumns;
  const int threads = Threads(product.panel);
  const int bytes = SharedBytes<T>(threads);
  const auto kernel = Tiles<T, kAligned, kPieces>;
  const cudaError_t error =
      // The same for every launch: it is the function's, and others may be launching it.
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MostSharedBytes());
  if (error != cudaSuccess) return ToStatus(error, "reserving shared memory");
  const dim3 grid(static_cast<unsigned>(panels),
                  static_cast<unsigned>((product.k + kColumns - 1) / kColumns));
  kernel<<<grid, threads, bytes, stream>>>(product);
  return ToStatus(cudaGetLastError(), "starting SpMM from adaptive sparse tiles");
}

template <typename T, bool kAligned>
absl::Status LaunchSlabs(cudaStream_t stream, const Product<T>& product, int64_t panels) {
  // Wide column blocks read a nonzero's index and value less often, narrow ones are more blocks.
  constexpr int64_t kEnoughRows = 16 * 1024;
  const int64_t bytes = product.k * static_cast<int64_t>(sizeof(T));
  if (bytes <= 128 || panels * product.panel * (bytes / 256) < kEnoughRows) {
    return Launch<T, kAligned, 1>(stream, product, panels);
  }
  return Launch<T, kAligned, 2>(stream, product, panels);
}

/// C += alpha * the remainder * B, its rows in their own order.
absl::Status AddRemainder(const Context& context, const Problem& problem,
                          const SpmmArguments& arguments) {
  const AsptView s = ViewAspt(arguments.layout);
  const auto targets =
      RemainderTargets(static_cast<cudaStream_t>(context.stream), s, context.workspace);
  if (!targets.ok()) return targets.status();
  const auto bytes = reinterpret_cast<std::byte*>(const_cast<int32_t*>(*targets));
  const Layout remainder = RemainderRows(
      arguments.layout, Array{"row_order", ElementType::kI32, s.rows,
                              Buffer(std::shared_ptr<std::byte>(bytes, [](std::byte*) {}),
                                     static_cast<size_t>(s.rows) * sizeof(int32_t))});
  Context rest = context;
  rest.workspace = context.workspace.subspan(RemainderTargetBytes(arguments.layout));
  return CsrRowsFor(problem, remainder)
      .run(rest, problem,
           {remainder,
            static_cast<const std::byte*>(arguments.values) +
                s.dense_nnz() * static_cast<int64_t>(SizeOf(problem.type)),
            arguments.b, arguments.c, arguments.alpha, 1});
}

template <typename T>
absl::Status RunOf(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  const AsptView s = ViewAspt(arguments.layout);
  if (s.rows == 0 || arguments.c.cols == 0) return absl::OkStatus();
  const absl::StatusOr<uint32_t> stride = RowStride<T>(arguments.b);
  if (!stride.ok()) return stride.status();
  const bool second_round = !s.remainder_order.empty();
  const Product<T> product = {
      .panel_offsets = s.panel_offsets.data(),
      .panel_columns = s.panel_columns.data(),
      .dense_offsets = s.dense_row_offsets.data(),
      .dense_indices = s.dense_indices.data(),
      .remainder_offsets = second_round ? nullptr : s.remainder_row_offsets.data(),
      .remainder_columns = s.remainder_columns.data(),
      .row_order = s.row_order.empty() ? nullptr : s.row_order.data(),
      .values = static_cast<const T*>(arguments.values),
      .b = static_cast<const T*>(arguments.b.data),
      .c = static_cast<T*>(arguments.c.data),
      .rows = s.rows,
      .dense_nnz = s.dense_nnz(),
      .ldc = arguments.c.leading_dimension,
      .k = arguments.c.cols,
      .b_stride = *stride,
      .panel = static_cast<int>(s.panel),
      .alpha = static_cast<T>(arguments.alpha),
      .beta = static_cast<T>(arguments.beta)};
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const bool aligned = RowsAreWide<T>(product.b, arguments.b.leading_dimension, product.k) &&
                       RowsAreWide<T>(product.c, product.ldc, product.k);
  const absl::Status status = aligned ? LaunchSlabs<T, true>(stream, product, s.panels())
                                      : LaunchSlabs<T, false>(stream, product, s.panels());
  return status.ok() && second_round && !s.remainder_columns.empty()
             ? AddRemainder(context, problem, arguments)
             : status;
}

absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? RunOf<float>(context, problem, arguments)
                                           : RunOf<double>(context, problem, arguments);
}

size_t Workspace(const Problem& problem, const Layout& layout, int threads) {
  if (layout.Find("remainder_order") == nullptr) return 0;
  const Layout remainder = RemainderRows(layout, std::nullopt);
  return RemainderTargetBytes(layout) +
         CsrRowsFor(problem, remainder).workspace(problem, remainder, threads);
}

bool Supports(const Problem& problem, const Layout& layout) {
  if (problem.device != DeviceKind::kCuda || IsHalf(problem.type) ||
      problem.operation != Operation::kSpmm || problem.k > kMostSpmmWidth || problem.transposed ||
      layout.kind != kAspt || layout.Parameter("panel") > kMostPanelRows ||
      layout.nnz > std::numeric_limits<int32_t>::max()) {
    return false;
  }
  const int threads = Threads(layout.Parameter("panel"));
  return (problem.type == ElementType::kF32 ? SharedBytes<float>(threads)
                                            : SharedBytes<double>(threads)) <= MostSharedBytes();
}

}  // namespace

SpmmKernel AsptSpmm() {
  return {.name = "cuda.aspt.tiles",
          .layout_kind = kAspt,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports,
          .workspace = Workspace,
          .run = Run};
}

}  // namespace sparsed::cuda
