// What SpGEMM's kernels share before they launch anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/bump_allocator.h"
#include "kernels/cuda/check.h"
#include "kernels/kernel_table.h"

namespace sparsed::cuda {

/// SpGEMM in f32 or f64 on a GPU.
inline bool IsFloatSpgemm(const Problem& problem) {
  return problem.operation == Operation::kSpgemm && problem.device == DeviceKind::kCuda &&
         (problem.type == ElementType::kF32 || problem.type == ElementType::kF64);
}
/// ... sums of products, all of them.
inline bool IsPlainSpgemm(const Problem& problem) {
  return IsFloatSpgemm(problem) && problem.semiring == Semiring::kSumProduct && !problem.masked;
}

inline size_t NoSpgemmWorkspace(const Problem& /*problem*/, const SpgemmArguments& /*arguments*/,
                                int /*threads*/) {
  return 0;
}

/// SpgemmKernel::symbolic where analysis has found the rows' exact sizes.
inline absl::Status BoundsAreExact(const Context& /*context*/, const SpgemmArguments& /*arguments*/,
                                   RowRange /*range*/, std::span<int64_t> /*row_nnz*/) {
  return absl::OkStatus();
}

/// What `numeric` is asked, and `symbolic`, which has no place for entries.
struct RowsCall {
  const Context& context;
  const SpgemmArguments& arguments;
  RowRange range;
  std::span<int64_t> row_nnz;
  Semiring semiring = Semiring::kSumProduct;
  std::span<const int64_t> row_begin = {};
  int32_t* column_indices = nullptr;
  void* values = nullptr;
};

/// SpgemmKernel::numeric by one function for f32 and one for f64.
template <absl::Status (*kF32)(const RowsCall&), absl::Status (*kF64)(const RowsCall&)>
absl::Status NumericByType(const Context& context, const Problem& problem,
                           const SpgemmArguments& arguments, RowRange range,
                           std::span<const int64_t> row_begin, int32_t* column_indices,
                           void* values, std::span<int64_t> row_nnz) {
  const RowsCall call = {context,          arguments, range,          row_nnz,
                         problem.semiring, row_begin, column_indices, values};
  return problem.type == ElementType::kF64 ? kF64(call) : kF32(call);
}

/// CANCELLED once the context is stopped.
inline absl::Status StillWanted(const Context& context) {
  return context.stopped() ? absl::CancelledError("the product was cancelled") : absl::OkStatus();
}

/// SpgemmKernel::prepare: what `make(prepared)` leaves in a Prepared. After an error that goes only
/// when the stream is done.
template <typename Prepared, typename Make>
absl::StatusOr<std::shared_ptr<void>> PrepareIn(const Context& context, Make make) {
  if (absl::Status s = StillWanted(context); !s.ok()) return s;
  auto prepared = std::make_shared<Prepared>();
  absl::Status status = make(*prepared);
  if (!status.ok()) return Settled(context.stream, std::move(status));
  return std::static_pointer_cast<void>(prepared);
}

/// What a kernel prepares, in one allocation.
using Parts = BumpAllocator<256>;

/// Memory for what `lay_out`, called with Parts, takes from them.
template <typename LayOut>
absl::Status TakeParts(MemorySource& memory, Buffer& buffer, LayOut lay_out) {
  Parts sizes(nullptr);
  lay_out(sizes);
  absl::StatusOr<Buffer> taken = memory.Allocate(sizes.bytes());
  if (!taken.ok()) return taken.status();
  buffer = *std::move(taken);
  Parts parts(buffer.mutable_data());
  lay_out(parts);
  return absl::OkStatus();
}

/// Blocks of a grid with so many threads.
inline unsigned BlocksFor(int64_t threads, int block) {
  return static_cast<unsigned>((threads + block - 1) / block);
}

/// Arrays that share an allocation begin at multiples of this.
inline size_t RoundUp(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace sparsed::cuda
