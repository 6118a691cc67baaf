// SpMM on a GPU that has no room for all of it: blocks of its columns, as wide as there is room
// for.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "engine/execution/executor_impl.h"
#include "engine/execution/gpu_backend.h"
#include "engine/execution/placed_dense.h"
#include "engine/execution/token.h"

namespace sparsed::engine {

/// C = alpha * op(S) * B + beta * C, S on the GPU and the others in host memory. Outlives the
/// multiplication.
struct ColumnBlockProduct {
  struct Host {
    Array array;
    DenseShape shape;
  };
  const Resolved& plan;
  const PlacedSparse& sparse;
  Host b;
  Host old;  ///< C's old value, which stays as it is; read if beta is not 0
  Host result;
  double alpha = 1, beta = 0;
  MemoryOwner& owner;  ///< who pays
};

/// A column block's operand goes up while the one before is multiplied, and its result comes down
/// meanwhile.
class ColumnBlockMultiplication {
 public:
  ColumnBlockMultiplication(const ColumnBlockProduct& product, GpuBackend& gpu, WorkerSlot& slot,
                            const Token& token)
      : product_(product), gpu_(gpu), slot_(slot), token_(token) {}

  /// RESOURCE_EXHAUSTED if not even narrow column blocks fit, UNIMPLEMENTED if no kernel serves
  /// them; both before anything was computed. Nothing is under way afterwards.
  absl::Status Run();
  /// Of those that ran.
  int64_t width() const { return width_; }
  std::string_view kernel() const { return kernel_->name(); }

 private:
  struct ColumnBlock {
    Array b, c;
    int64_t first = 0, width = 0;  ///< columns; width 0: nothing in flight
  };

  int64_t k() const { return product_.b.shape.cols; }
  Problem ProblemOf(int64_t width) const;
  BoundRun Bind(ColumnBlock& block, int64_t width) const;
  /// Memory for two column blocks as wide as possible, and the kernel's workspace for them.
  absl::Status Reserve();
  absl::Status ReserveFor(int64_t width);
  /// The plan's kernel, or the first of the layout's that serves column blocks of both widths.
  std::optional<LayoutKernel> FindKernel(int64_t width, int64_t rest) const;
  absl::Status Queue(ColumnBlock& block, cuda::Stream& stream);
  absl::Status BringDown(ColumnBlock& block, cuda::Stream& stream);

  const ColumnBlockProduct& product_;
  GpuBackend& gpu_;
  WorkerSlot& slot_;
  const Token& token_;
  std::optional<LayoutKernel> kernel_;
  int64_t width_ = 0;
  std::array<ColumnBlock, 2> blocks_;
};

}  // namespace sparsed::engine
