// SpMV, which is SpMM with one column, from CSR, plain or with permuted rows:
// y = alpha * S * x + beta * y.
//
// Idea: S is read once and in order, at the rate of memory, whatever the rows' lengths.
//   vector_parts   parts of equally many nonzeros, one for each block: all products first, into
//                  shared memory, then the rows by groups of lanes that fit their mean length; long
//                  ones by whole warps (CSR-stream and CSR-vector, Greathouse and Daga, SC 2014).
//                  Of a row that begins in one part and ends in another, parts leave their sums in
//                  memory; a second kernel adds them up in their order.
//   vector_rows    a group of 1 to 32 lanes for two rows, by the mean length of all.
// Layout in: "csr".
// Needs: for parts, four numbers each. Where their rows begin depends on the pattern alone, so it
// is found once for many runs. Nothing for rows. Wins: parts wherever rows differ in length, rows
// where they do not.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/spmm/slice.cuh"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {
namespace {

constexpr unsigned kWarp = 0xffffffffu;

template <typename T>
struct Product {
  const int64_t* row_offsets;
  const int32_t* columns;
  const int32_t* row_order;  // null: identity
  const T* values;
  const T* x;
  T* y;
  int64_t rows, nnz, ldy;
  uint32_t x_stride;  // bytes from one element of x to the next
  SumOf<T> alpha, beta;
  bool aligned;  // columns and values can be read by fours

  __device__ SumOf<T> Times(int32_t column, SumOf<T> value) const {
    return value * Widen(ReadOnly(RowAt(x, column, x_stride)));
  }
  __device__ void Store(int64_t row, SumOf<T> sum) const {
    T& to = y[(row_order == nullptr ? row : row_order[row]) * ldy];
    to = Narrow<T>(beta == SumOf<T>(0) ? alpha * sum : alpha * sum + beta * Widen(to));
  }
};

// The sum over a group's lanes, in its first one. All lanes of the warp take part.
template <int kGroup, typename Sum>
__device__ inline Sum AddLanes(Sum sum) {
#pragma unroll
  for (int distance = kGroup / 2; distance > 0; distance /= 2) {
    sum += __shfl_down_sync(kWarp, sum, distance, kGroup);
  }
  return sum;
}

// --- vector_rows ---

constexpr int kRowThreads = 256;
constexpr int kRowsOfGroup = 2;

template <typename T, int kGroup>
__global__ void __launch_bounds__(kRowThreads) VectorRows(const Product<T> p) {
  using Sum = SumOf<T>;
  const int64_t group = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kGroup;
  const int lane = threadIdx.x % kGroup;
  const int64_t first = group * kRowsOfGroup;
  int64_t at[kRowsOfGroup], end[kRowsOfGroup];
#pragma unroll
  for (int r = 0; r < kRowsOfGroup; ++r) {
    const bool there = first + r < p.rows;
    at[r] = there ? __ldg(p.row_offsets + first + r) + lane : 0;
    end[r] = there ? __ldg(p.row_offsets + first + r + 1) : 0;
  }
  // A nonzero a lane of each row, loaded together; most rows have no more.
  int32_t column[kRowsOfGroup];
  Sum value[kRowsOfGroup], sum[kRowsOfGroup];
#pragma unroll
  for (int r = 0; r < kRowsOfGroup; ++r) {
    if (at[r] < end[r]) {
      column[r] = __ldg(p.columns + at[r]);
      value[r] = Widen(ReadOnly(p.values + at[r]));
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsOfGroup; ++r) {
    sum[r] = at[r] < end[r] ? p.Times(column[r], value[r]) : Sum(0);
  }
#pragma unroll
  for (int r = 0; r < kRowsOfGroup; ++r) {
    int64_t i = at[r] + kGroup;
    for (; i + 3 * kGroup < end[r]; i += 4 * kGroup) {
      Sum products[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        products[j] =
            p.Times(__ldg(p.columns + i + j * kGroup), Widen(ReadOnly(p.values + i + j * kGroup)));
      }
      sum[r] += products[0] + products[1] + (products[2] + products[3]);
    }
    for (; i < end[r]; i += kGroup) {
      sum[r] += p.Times(__ldg(p.columns + i), Widen(ReadOnly(p.values + i)));
    }
    sum[r] = AddLanes<kGroup>(sum[r]);
    if (lane == 0 && first + r < p.rows) p.Store(first + r, sum[r]);
  }
}

template <typename T, int kGroup>
void LaunchRows(cudaStream_t stream, const Product<T>& product) {
  constexpr int64_t kPerBlock = kRowThreads / kGroup * kRowsOfGroup;
  VectorRows<T, kGroup><<<static_cast<unsigned>((product.rows + kPerBlock - 1) / kPerBlock),
                          kRowThreads, 0, stream>>>(product);
}

template <typename T>
absl::Status RunRows(cudaStream_t stream, const Product<T>& product) {
  const int64_t mean = product.nnz / product.rows;
  if (mean < 2) {
    LaunchRows<T, 1>(stream, product);
  } else if (mean < 4) {
    LaunchRows<T, 2>(stream, product);
  } else if (mean < 8) {
    LaunchRows<T, 4>(stream, product);
  } else if (mean < 16) {
    LaunchRows<T, 8>(stream, product);
  } else if (mean < 32) {
    LaunchRows<T, 16>(stream, product);
  } else {
    LaunchRows<T, 32>(stream, product);
  }
  return ToStatus(cudaGetLastError(), "starting SpMV");
}

// --- vector_parts ---

// What is found once for many runs, and what parts leave behind: an element for each part.
template <typename T>
struct Parts {
  int64_t* first_rows;  // the first row that begins in the part or behind it; one more at the end
  int64_t* tail_rows;   // the row that goes on behind the part, -1: none
  SumOf<T>* tails;      // the part's sum of that row
  SumOf<T>* heads;      // the part's sum of the row that an earlier part began

  Parts(std::byte* memory, int64_t count)
      : first_rows(reinterpret_cast<int64_t*>(memory)),
        tail_rows(first_rows + count + 1),
        tails(reinterpret_cast<SumOf<T>*>(tail_rows + count)),
        heads(tails + count) {}
  static size_t Bytes(int64_t count) {
    return static_cast<size_t>(2 * count + 1) * sizeof(int64_t) +
           static_cast<size_t>(2 * count) * sizeof(SumOf<T>);
  }
};

template <typename T>
struct PartsProduct {
  Product<T> p;
  Parts<T> parts;
  int64_t count;  // of parts
  int part;       // nonzeros
};

constexpr int kFindThreads = 128;

// The last part also has the rows behind all nonzeros.
__global__ void FindFirstRows(const int64_t* row_offsets, int64_t rows, int64_t count, int part,
                              int64_t* first_rows) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kFindThreads + threadIdx.x;
  if (i > count) return;
  first_rows[i] = i == count ? rows : UpperBound(row_offsets, 0, rows, i * part - 1);
}

// A part's products and rows. The rows that begin in it are its own. Before them comes the head:
// what an earlier part's row has here.
template <typename T, int kThreads, int kItems>
class Part {
 public:
  using Sum = SumOf<T>;
  static constexpr int kNonzeros = kThreads * kItems;
  /// Rows of more nonzeros in the part for each lane of a group are left to a warp each.
  static constexpr int kLong = 16;

  struct Shared {
    alignas(Vector<Sum, 4>) Sum products[kNonzeros];
    int ends[kNonzeros];  // of the head and the first rows, among the products
    int long_count;
    int long_rows[kNonzeros / kLong + 1];
  };

  __device__ Part(const PartsProduct<T>& product, Shared& shared)
      : p_(product.p),
        parts_(product.parts),
        shared_(shared),
        begin_(static_cast<int64_t>(blockIdx.x) * kNonzeros),
        end_(min(begin_ + kNonzeros, product.p.nnz)),
        first_(__ldg(product.parts.first_rows + blockIdx.x)),
        count_(__ldg(product.parts.first_rows + blockIdx.x + 1) - first_) {}

  __device__ void Run() {
    for (int64_t i = threadIdx.x; i <= count_ && i < kNonzeros; i += kThreads) {
      shared_.ends[i] = ReadEnd(i);
    }
    if (threadIdx.x == 0) shared_.long_count = 0;
    Multiply();
    __syncthreads();
    const int64_t mean = (end_ - begin_) / (count_ + 1);
    if (mean < 4) {
      SumRows<1>();
    } else if (mean < 16) {
      SumRows<4>();
    } else {
      SumRows<16>();
    }
    __syncthreads();
    for (int i = threadIdx.x / 32; i < shared_.long_count; i += kThreads / 32) {
      SumRow<32>(shared_.long_rows[i], true);
    }
  }

 private:
  // Where row i of the part ends among the products: 0 is the head, i > 0 row first_ + i - 1.
  // Without rows of its own all of the part is head.
  __device__ int ReadEnd(int64_t i) const {
    const int64_t end = count_ == 0 ? end_ : min(__ldg(p_.row_offsets + first_ + i), end_);
    return static_cast<int>(end - begin_);
  }
  __device__ int End(int64_t i) const { return i < kNonzeros ? shared_.ends[i] : ReadEnd(i); }
  // Whether the last row goes on behind the part.
  __device__ bool HasTail() const {
    return count_ > 0 && __ldg(p_.row_offsets + first_ + count_) > end_;
  }

  __device__ void Multiply() {
#pragma unroll
    for (int item = 0; item < kItems; item += 4) {
      const int at = item * kThreads + threadIdx.x * 4;
      const int64_t position = begin_ + at;
      if (p_.aligned && position + 4 <= end_) {
        const Vector<int32_t, 4> columns = LoadVector<int32_t, 4>(p_.columns + position);
        const Vector<T, 4> values = LoadVector<T, 4>(p_.values + position);
        Vector<Sum, 4> products;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          products.at[j] = p_.Times(columns.at[j], Widen(values.at[j]));
        }
        *reinterpret_cast<Vector<Sum, 4>*>(shared_.products + at) = products;
      } else {
        for (int j = 0; j < 4 && position + j < end_; ++j) {
          shared_.products[at + j] =
              p_.Times(__ldg(p_.columns + position + j), Widen(ReadOnly(p_.values + position + j)));
        }
      }
    }
  }

  // The group's lanes, all of a warp, call it together; `there` says whether the group has a row.
  template <int kGroup>
  __device__ void SumRow(int64_t i, bool there) {
    const int lane = threadIdx.x % kGroup;
    const int begin = there && i > 0 ? End(i - 1) : 0;
    const int end = there ? End(i) : 0;
    const bool is_long = kGroup < 32 && end - begin > kLong * kGroup;
    Sum sum = 0;
    if (!is_long) {
      for (int at = begin + lane; at < end; at += kGroup) sum += shared_.products[at];
    }
    sum = AddLanes<kGroup>(sum);
    if (!there || lane != 0) return;
    if (is_long) {
      shared_.long_rows[atomicAdd(&shared_.long_count, 1)] = static_cast<int>(i);
      return;
    }
    const bool tail = i == count_ && HasTail();
    if (i == count_) parts_.tail_rows[blockIdx.x] = tail ? first_ + i - 1 : -1;
    if (i == 0) {
      parts_.heads[blockIdx.x] = sum;
    } else if (tail) {
      parts_.tails[blockIdx.x] = sum;
    } else {
      p_.Store(first_ + i - 1, sum);
    }
  }

  template <int kGroup>
  __device__ void SumRows() {
    constexpr int kGroups = kThreads / kGroup;
    const int64_t rounds = (count_ + kGroups) / kGroups;  // of count_ + 1
    for (int64_t round = 0; round < rounds; ++round) {
      const int64_t i = round * kGroups + threadIdx.x / kGroup;
      SumRow<kGroup>(i, i <= count_);
    }
  }

  const Product<T>& p_;
  const Parts<T>& parts_;
  Shared& shared_;
  const int64_t begin_, end_;
  const int64_t first_, count_;
};

template <typename T, int kThreads, int kItems>
__global__ void __launch_bounds__(kThreads) VectorParts(const PartsProduct<T> product) {
  using Part = Part<T, kThreads, kItems>;
  __shared__ typename Part::Shared shared;
  Part(product, shared).Run();
}

// Of rows that go on behind their part: a lane adds up what is in a few parts, a warp more.
constexpr int kCarryThreads = 128;
constexpr int kFewParts = 8;

template <typename T>
__global__ void __launch_bounds__(kCarryThreads) AddCarries(const PartsProduct<T> product) {
  AwaitTheKernelBefore();
  using Sum = SumOf<T>;
  const Product<T>& p = product.p;
  const int64_t part = static_cast<int64_t>(blockIdx.x) * kCarryThreads + threadIdx.x;
  const int64_t row = part < product.count ? product.parts.tail_rows[part] : -1;
  const int64_t last = row < 0 ? part : (p.row_offsets[row + 1] - 1) / product.part;
  Sum sum = row < 0 ? Sum(0) : product.parts.tails[part];
  const bool few = last - part <= kFewParts;
  if (row >= 0 && few) {
    for (int64_t i = part + 1; i <= last; ++i) sum += product.parts.heads[i];
    p.Store(row, sum);
  }
  unsigned many = __ballot_sync(kWarp, !few);
  for (; many != 0; many &= many - 1) {
    const int lane = __ffs(static_cast<int>(many)) - 1;
    const int64_t from = __shfl_sync(kWarp, part, lane), to = __shfl_sync(kWarp, last, lane);
    Sum rest = 0;
#pragma unroll 4
    for (int64_t i = from + 1 + threadIdx.x % 32; i <= to; i += 32) {
      rest += product.parts.heads[i];
    }
    rest = AddLanes<32>(rest);
    rest = __shfl_sync(kWarp, rest, 0);
    if (static_cast<int>(threadIdx.x % 32) == lane) p.Store(row, sum + rest);
  }
}

// Small matrices are cut into more parts than large ones: there are many multiprocessors.
constexpr int64_t kSmall = int64_t{1} << 21;
constexpr int kSmallThreads = 128, kSmallItems = 4;
constexpr int kLargeThreads = 256, kLargeItems = 8;

int PartOf(int64_t nnz) {
  return nnz < kSmall ? kSmallThreads * kSmallItems : kLargeThreads * kLargeItems;
}
int64_t PartCount(int64_t nnz) {
  return std::max<int64_t>((nnz + PartOf(nnz) - 1) / PartOf(nnz), 1);
}

cudaError_t LaunchFind(cudaStream_t stream, const Layout& layout, int64_t* first_rows) {
  const int64_t count = PartCount(layout.nnz);
  FindFirstRows<<<static_cast<unsigned>(count / kFindThreads + 1), kFindThreads, 0, stream>>>(
      ViewCsr(layout).row_offsets.data(), layout.rows, count, PartOf(layout.nnz), first_rows);
  return cudaGetLastError();
}

template <typename T>
absl::Status RunParts(const Context& context, const Layout& layout, const Product<T>& product) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const bool found = context.prepared != nullptr;
  std::byte* const memory =
      found ? static_cast<Buffer*>(context.prepared)->mutable_data() : context.workspace.data();
  const int64_t count = PartCount(product.nnz);
  const PartsProduct<T> parts = {product, Parts<T>(memory, count), count, PartOf(product.nnz)};
  cudaError_t error = cudaSuccess;
  if (!found) error = LaunchFind(stream, layout, parts.parts.first_rows);
  if (error != cudaSuccess) return ToStatus(error, "starting SpMV");
  const auto blocks = static_cast<unsigned>(count);
  if (product.nnz < kSmall) {
    VectorParts<T, kSmallThreads, kSmallItems><<<blocks, kSmallThreads, 0, stream>>>(parts);
  } else {
    VectorParts<T, kLargeThreads, kLargeItems><<<blocks, kLargeThreads, 0, stream>>>(parts);
  }
  error = cudaGetLastError();
  if (error == cudaSuccess && count > 1) {
    error = LaunchOverlapping(stream, dim3((blocks + kCarryThreads - 1) / kCarryThreads),
                              dim3(kCarryThreads), AddCarries<T>, parts);
  }
  return ToStatus(error, "starting SpMV");
}

size_t PartsWorkspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  const int64_t count = PartCount(layout.nnz);
  return problem.type == ElementType::kF64 ? Parts<double>::Bytes(count)
                                           : Parts<float>::Bytes(count);
}

absl::StatusOr<std::shared_ptr<void>> PrepareParts(const Context& context, const Problem& problem,
                                                   const SpmmArguments& arguments,
                                                   MemorySource& memory) {
  absl::StatusOr<Buffer> buffer = memory.Allocate(PartsWorkspace(problem, arguments.layout, 1));
  if (!buffer.ok()) return buffer.status();
  const absl::Status status =
      ToStatus(LaunchFind(static_cast<cudaStream_t>(context.stream), arguments.layout,
                          reinterpret_cast<int64_t*>(buffer->mutable_data())),
               "preparing SpMV");
  if (!status.ok()) return Settled(context.stream, status);
  return std::make_shared<Buffer>(*std::move(buffer));
}

// --- both ---

template <bool kParts, typename T>
absl::Status RunOf(const Context& context, const SpmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  if (layout.rows == 0) return absl::OkStatus();
  const absl::StatusOr<uint32_t> stride = RowStride<T>(arguments.b);
  if (!stride.ok()) return stride.status();
  const CsrView s = ViewCsr(layout);
  const auto at = [](const void* data) { return reinterpret_cast<uintptr_t>(data); };
  const Product<T> product = {.row_offsets = s.row_offsets.data(),
                              .columns = s.column_indices.data(),
                              .row_order = s.row_order.empty() ? nullptr : s.row_order.data(),
                              .values = static_cast<const T*>(arguments.values),
                              .x = static_cast<const T*>(arguments.b.data),
                              .y = static_cast<T*>(arguments.c.data),
                              .rows = layout.rows,
                              .nnz = layout.nnz,
                              .ldy = arguments.c.leading_dimension,
                              .x_stride = *stride,
                              .alpha = static_cast<SumOf<T>>(arguments.alpha),
                              .beta = static_cast<SumOf<T>>(arguments.beta),
                              .aligned = at(s.column_indices.data()) % 16 == 0 &&
                                         at(arguments.values) % alignof(Vector<T, 4>) == 0};
  if constexpr (kParts) return RunParts(context, layout, product);
  return RunRows(static_cast<cudaStream_t>(context.stream), product);
}

template <bool kParts>
absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  return VisitFloat(problem.type,
                    [&]<typename T>(T) { return RunOf<kParts, T>(context, arguments); });
}

// A part has all empty rows before its last one, so there must not be too many of them.
constexpr int64_t kMostRows = 4;  // for each nonzero

template <bool kParts>
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSpmm &&
         problem.k == 1 && !problem.transposed && layout.kind == kCsr &&
         (!kParts || layout.rows <= kMostRows * layout.nnz);
}

template <bool kParts>
SpmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports<kParts>,
          .workspace = kParts ? PartsWorkspace : NoWorkspace,
          .run = Run<kParts>,
          .prepare = kParts ? PrepareParts : nullptr};
}

}  // namespace

std::span<const SpmmKernel> CsrVectorSpmm() {
  static const SpmmKernel kernels[] = {Kernel<true>("cuda.csr.vector_parts"),
                                       Kernel<false>("cuda.csr.vector_rows")};
  return kernels;
}

}  // namespace sparsed::cuda
