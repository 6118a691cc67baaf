// C = S * T by SuiteSparse:GraphBLAS (Davis, ACM TOMS 45:4, 2019, and 49:3, 2023), where it is
// installed.
//
// Idea: the library knows no ranges of rows, so it makes the whole product beforehand, with sorted
// rows; counts are read off it and rows copied out of it. It is opened by its soname when the
// kernel table is first read, and allocates by functions given to it, so that what a product takes
// comes from the memory of that product's request.
// Layout in: plain CSR of both, copied into its own arrays with 64-bit columns.
// Threads: the caller's team. It cannot be stopped while it multiplies.
// Needs: C with 64-bit columns, both factors likewise, and what the library works with.
// Wins: docs/results-cpu.md has it beside ours.
#include <GraphBLAS.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/spgemm.h"
#include "kernels/scratch.h"

namespace sparsed::cpu {
namespace {

// ---- Memory

/// Where allocations of the calling thread come from; null: the heap. Threads that the library
/// starts itself allocate next to nothing.
thread_local MemorySource* thread_memory = nullptr;

/// While it lives, the calling thread's allocations come from `memory`.
class AllocateFrom {
 public:
  explicit AllocateFrom(MemorySource& memory) { thread_memory = &memory; }
  ~AllocateFrom() { thread_memory = nullptr; }
  AllocateFrom(const AllocateFrom&) = delete;
  AllocateFrom& operator=(const AllocateFrom&) = delete;
};

/// What precedes each allocation, in its own memory.
struct Head {
  Buffer buffer;
  size_t bytes = 0;  ///< that were asked for
};
constexpr size_t kHeadBytes = 64;
/// More take seconds, during which nothing can be stopped.
constexpr int64_t kMostProducts = 100'000'000;
static_assert(sizeof(Head) <= kHeadBytes);

Head* HeadOf(void* data) {
  return reinterpret_cast<Head*>(static_cast<std::byte*>(data) - kHeadBytes);
}

void* Allocate(size_t bytes) {
  MemorySource& memory = thread_memory != nullptr ? *thread_memory : HeapMemory();
  absl::StatusOr<Buffer> buffer = memory.Allocate(kHeadBytes + bytes);
  if (!buffer.ok()) return nullptr;
  std::byte* const begin = buffer->mutable_data();
  new (begin) Head{*std::move(buffer), bytes};
  return begin + kHeadBytes;
}

void* AllocateZeros(size_t count, size_t size) {
  void* const data = Allocate(count * size);
  if (data != nullptr) std::memset(data, 0, count * size);
  return data;
}

void Free(void* data) {
  if (data == nullptr) return;
  const Buffer last = std::move(HeadOf(data)->buffer);
  HeadOf(data)->~Head();
}

void* Reallocate(void* data, size_t bytes) {
  void* const larger = Allocate(bytes);
  if (data == nullptr || larger == nullptr) return larger;
  std::memcpy(larger, data, std::min(bytes, HeadOf(data)->bytes));
  Free(data);
  return larger;
}

struct FreeArray {
  void operator()(void* data) const { Free(data); }
};
template <typename T>
using OwnArray = std::unique_ptr<T[], FreeArray>;

template <typename T>
OwnArray<T> AllocateOwn(int64_t count) {
  return OwnArray<T>(static_cast<T*>(Allocate(static_cast<size_t>(count) * sizeof(T))));
}

// ---- The library

/// The functions that are used. All are there or none.
struct Library {
  decltype(&GxB_init) init;
  decltype(&GxB_Global_Option_set) set_global;
  decltype(&GrB_Matrix_new) new_matrix;
  decltype(&GrB_Matrix_free) free_matrix;
  decltype(&GrB_Matrix_wait) wait;
  decltype(&GrB_Descriptor_new) new_descriptor;
  decltype(&GrB_Descriptor_free) free_descriptor;
  decltype(&GxB_Desc_set) set;
  decltype(&GxB_Matrix_pack_CSR) pack;
  decltype(&GxB_Matrix_unpack_CSR) unpack;
  decltype(&GrB_mxm) multiply;
  GrB_Type* f32;
  GrB_Type* f64;
  GrB_Semiring* plus_times_f32;
  GrB_Semiring* plus_times_f64;
};

/// Null if the library or a symbol is missing, or somebody else in the process has begun with it,
/// with other memory.
const Library* Open() {
  static const Library* const opened = []() -> const Library* {
    const std::string name = fmt::format("libgraphblas.so.{}", GxB_IMPLEMENTATION_MAJOR);
    void* const handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle == nullptr) return nullptr;
    static Library l;
    const auto load = [handle](const char* symbol, auto& to) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(handle, symbol));
      return to != nullptr;
    };
    const bool complete =
        load("GxB_init", l.init) && load("GxB_Global_Option_set", l.set_global) &&
        load("GrB_Matrix_new", l.new_matrix) && load("GrB_Matrix_free", l.free_matrix) &&
        load("GrB_Matrix_wait", l.wait) && load("GrB_Descriptor_new", l.new_descriptor) &&
        load("GrB_Descriptor_free", l.free_descriptor) && load("GxB_Desc_set", l.set) &&
        load("GxB_Matrix_pack_CSR", l.pack) && load("GxB_Matrix_unpack_CSR", l.unpack) &&
        load("GrB_mxm", l.multiply) && load("GrB_FP32", l.f32) && load("GrB_FP64", l.f64) &&
        load("GrB_PLUS_TIMES_SEMIRING_FP32", l.plus_times_f32) &&
        load("GrB_PLUS_TIMES_SEMIRING_FP64", l.plus_times_f64);
    if (!complete ||
        l.init(GrB_BLOCKING, Allocate, AllocateZeros, Reallocate, Free) != GrB_SUCCESS) {
      return nullptr;
    }
    // What is freed goes back to where it came from, not into a pool for other products.
    int64_t no_pool[64] = {};
    return l.set_global(GxB_MEMORY_POOL, no_pool) == GrB_SUCCESS ? &l : nullptr;
  }();
  return opened;
}

absl::Status ToStatus(GrB_Info info, std::string_view doing) {
  if (info == GrB_SUCCESS) return absl::OkStatus();
  const std::string message = fmt::format("GraphBLAS, {}: error {}", doing, static_cast<int>(info));
  return info == GrB_OUT_OF_MEMORY ? absl::ResourceExhaustedError(message)
                                   : absl::FailedPreconditionError(message);
}

template <typename Handle, GrB_Info (*const Library::*kFree)(Handle*)>
struct FreeHandle {
  void operator()(Handle handle) const { (Open()->*kFree)(&handle); }
};
using OwnMatrix = std::unique_ptr<std::remove_pointer_t<GrB_Matrix>,
                                  FreeHandle<GrB_Matrix, &Library::free_matrix>>;
using OwnDescriptor = std::unique_ptr<std::remove_pointer_t<GrB_Descriptor>,
                                      FreeHandle<GrB_Descriptor, &Library::free_descriptor>>;

// ---- The product

/// Where the rows of C are.
struct ProductRows {
  OwnArray<GrB_Index> offsets, columns;  ///< none: C has no entries

  int64_t begin(int64_t row) const {
    return offsets == nullptr ? 0 : static_cast<int64_t>(offsets[row]);
  }
  int64_t entries(int64_t row) const { return begin(row + 1) - begin(row); }
};
template <typename T>
struct WholeProduct : ProductRows {
  OwnArray<T> values;
  bool one_value = false;  ///< of all entries
};

const ProductRows& RowsOf(const Context& context) {
  return *static_cast<const ProductRows*>(context.prepared);
}

template <typename T>
GrB_Type TypeOf() {
  return sizeof(T) == sizeof(float) ? *Open()->f32 : *Open()->f64;
}

template <typename T>
absl::StatusOr<OwnMatrix> Import(const Context& context, const CsrView& csr, const T* values) {
  GrB_Matrix matrix = nullptr;
  absl::Status status =
      ToStatus(Open()->new_matrix(&matrix, TypeOf<T>(), csr.rows, csr.cols), "a matrix");
  if (!status.ok()) return status;
  OwnMatrix own(matrix);
  auto offsets = AllocateOwn<GrB_Index>(csr.rows + 1);
  auto columns = AllocateOwn<GrB_Index>(csr.nnz());
  auto copies = AllocateOwn<T>(csr.nnz());
  if (offsets == nullptr || columns == nullptr || copies == nullptr) {
    return absl::ResourceExhaustedError(
        fmt::format("no memory to hand {} nonzeros to GraphBLAS", csr.nnz()));
  }
#pragma omp parallel for num_threads(context.threads) if (context.threads > 1)
  for (int64_t row = 0; row < csr.rows; ++row) {
    if (context.stopped()) continue;
    const int64_t begin = csr.row_offsets[row], end = csr.row_offsets[row + 1];
    offsets[row] = begin;
    std::copy(csr.column_indices.data() + begin, csr.column_indices.data() + end,
              columns.get() + begin);
    std::copy(values + begin, values + end, copies.get() + begin);
  }
  offsets[csr.rows] = csr.nnz();
  if (status = UnlessStopped(context); !status.ok()) return status;
  GrB_Index* offsets_given = offsets.release();
  GrB_Index* columns_given = columns.release();
  void* values_given = copies.release();
  const GrB_Index nnz = csr.nnz();
  status = ToStatus(Open()->pack(matrix, &offsets_given, &columns_given, &values_given,
                                 (csr.rows + 1) * sizeof(GrB_Index), nnz * sizeof(GrB_Index),
                                 nnz * sizeof(T), /*iso=*/false, /*jumbled=*/false, nullptr),
                    "taking a matrix");
  // Null, if they were taken.
  for (void* given :
       {static_cast<void*>(offsets_given), static_cast<void*>(columns_given), values_given}) {
    Free(given);
  }
  if (!status.ok()) return status;
  return own;
}

template <typename T>
absl::Status Multiply(const Context& context, const SpgemmArguments& arguments,
                      WholeProduct<T>& product) {
  const Library& library = *Open();
  const CsrView &left = arguments.left, &right = arguments.right;
  absl::StatusOr<OwnMatrix> s = Import(context, left, static_cast<const T*>(arguments.left_values));
  if (!s.ok()) return s.status();
  absl::StatusOr<OwnMatrix> other = OwnMatrix();
  const bool is_square = left.row_offsets.data() == right.row_offsets.data() &&
                         arguments.left_values == arguments.right_values;
  if (!is_square) other = Import(context, right, static_cast<const T*>(arguments.right_values));
  if (!other.ok()) return other.status();
  const GrB_Matrix t = is_square ? s->get() : other->get();
  GrB_Matrix result = nullptr;
  absl::Status status =
      ToStatus(library.new_matrix(&result, TypeOf<T>(), left.rows, right.cols), "the result");
  if (!status.ok()) return status;
  const OwnMatrix c(result);
  GrB_Descriptor descriptor = nullptr;
  status = ToStatus(library.new_descriptor(&descriptor), "a descriptor");
  if (!status.ok()) return status;
  const OwnDescriptor own(descriptor);
  status = ToStatus(library.set(descriptor, GxB_SORT, 1), "sorted rows");
  status.Update(ToStatus(library.set(descriptor, GxB_DESCRIPTOR_NTHREADS, context.threads),
                         "how many threads"));
  if (!status.ok()) return status;
  const GrB_Semiring semiring =
      sizeof(T) == sizeof(float) ? *library.plus_times_f32 : *library.plus_times_f64;
  status = ToStatus(library.multiply(result, nullptr, nullptr, semiring, s->get(), t, descriptor),
                    "multiplying");
  if (status.ok()) status = ToStatus(library.wait(result, GrB_MATERIALIZE), "multiplying");
  if (!status.ok()) return status;
  s->reset();
  other->reset();
  GrB_Index *offsets = nullptr, *columns = nullptr;
  void* values = nullptr;
  GrB_Index offset_bytes = 0, column_bytes = 0, value_bytes = 0;
  // Without a place for whether they are sorted they will be.
  status = ToStatus(library.unpack(result, &offsets, &columns, &values, &offset_bytes,
                                   &column_bytes, &value_bytes, &product.one_value,
                                   /*jumbled=*/nullptr, descriptor),
                    "handing the result out");
  product.offsets.reset(offsets);
  product.columns.reset(columns);
  product.values.reset(static_cast<T*>(values));
  return status;
}

template <typename T>
absl::StatusOr<std::shared_ptr<void>> PrepareOf(const Context& context,
                                                const SpgemmArguments& arguments,
                                                MemorySource& memory) {
  auto product = std::make_shared<WholeProduct<T>>();
  if (arguments.left.nnz() > 0 && arguments.right.nnz() > 0) {
    Scratch<int64_t> bounds;
    if (absl::Status s = bounds.Allocate(memory, arguments.left.rows); !s.ok()) return s;
    int64_t products = 0;
    if (absl::Status s = AnalyseProducts(context, arguments, bounds.span(), &products); !s.ok()) {
      return s;
    }
    if (products > kMostProducts) {
      return absl::FailedPreconditionError(
          fmt::format("{} products are more than the {} that may be made without a stop", products,
                      kMostProducts));
    }
    const AllocateFrom from(memory);
    absl::Status status = Multiply(context, arguments, *product);
    if (status.ok()) status = UnlessStopped(context);
    if (!status.ok()) return status;
  }
  return std::shared_ptr<ProductRows>(std::move(product));
}

template <typename T>
struct GraphblasPhases {
  static constexpr auto Prepare = PrepareOf<T>;

  static size_t Workspace(const SpgemmArguments& /*arguments*/) { return 0; }

  static absl::Status Numeric(const NumericCall& call) {
    const auto& product = static_cast<const WholeProduct<T>&>(RowsOf(call.context));
    const RowJob<T> job(call);
    return ShareRows(call, [&](int /*thread*/, PieceQueue& pieces) {
      RowRange piece;
      while (pieces.Next(&piece)) {
        for (int64_t row = piece.begin; row < piece.end; ++row) {
          if (pieces.stopped()) return;
          const int64_t from = product.begin(row), entries = product.entries(row);
          const RowSlot<T> slot = job.Slot(row, row + 1);
          for (int64_t i = 0; i < entries; ++i) {
            slot.columns[i] = static_cast<int32_t>(product.columns[from + i]);
            slot.values[i] = product.values[product.one_value ? 0 : from + i];
          }
          job.row_nnz[row] = entries;
        }
      }
    });
  }
};

absl::Status Analyse(const Context& context, const SpgemmArguments& arguments,
                     std::span<int64_t> row_bounds, int64_t* products) {
  absl::Status status = AnalyseProducts(context, arguments, row_bounds, products);
  const bool cut = context.progress != nullptr && !context.progress->finished;
  if (!status.ok() || cut) return status;
  for (size_t row = 0; row < row_bounds.size(); ++row) {
    row_bounds[row] = RowsOf(context).entries(static_cast<int64_t>(row));
  }
  return status;
}

absl::Status Symbolic(const Context& context, const SpgemmArguments& arguments, RowRange range,
                      std::span<int64_t> row_nnz) {
  if (context.prepared == nullptr) {
    return RowGroupsSpgemm().symbolic(context, arguments, range, row_nnz);
  }
  for (int64_t row = range.begin; row < range.end; ++row) {
    row_nnz[row - range.begin] = RowsOf(context).entries(row);
  }
  return UnlessStopped(context);
}

SpgemmKernel Kernel() {
  SpgemmKernel kernel = MakeSpgemmKernel<GraphblasPhases>("cpu.graphblas.mxm");
  kernel.deterministic = false;
  kernel.from_library = true;
  kernel.analyse = Analyse;
  kernel.symbolic = Symbolic;
  return kernel;
}

}  // namespace

std::span<const SpgemmKernel> GraphblasSpgemm() {
  static const std::vector<SpgemmKernel> kernels =
      Open() == nullptr ? std::vector<SpgemmKernel>() : std::vector<SpgemmKernel>{Kernel()};
  return kernels;
}

}  // namespace sparsed::cpu
