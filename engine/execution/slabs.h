// SpMM on a GPU that has no room for all of it: slabs of K columns, as wide as there is room for.
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
struct SlabProduct {
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

/// A slab's operand goes up while the one before is multiplied, and its result comes down
/// meanwhile.
class SlabMultiplication {
 public:
  SlabMultiplication(const SlabProduct& product, GpuBackend& gpu, Lane& lane, const Token& token)
      : product_(product), gpu_(gpu), lane_(lane), token_(token) {}

  /// RESOURCE_EXHAUSTED if not even narrow slabs fit, UNIMPLEMENTED if no kernel serves them; both
  /// before anything was computed. Nothing is under way afterwards.
  absl::Status Run();
  /// Of those that ran.
  int64_t width() const { return width_; }
  std::string_view kernel() const { return kernel_->name(); }

 private:
  struct Slab {
    Array b, c;
    int64_t first = 0, width = 0;  ///< columns; width 0: nothing in flight
  };

  int64_t k() const { return product_.b.shape.cols; }
  Problem ProblemOf(int64_t width) const;
  BoundRun Bind(Slab& slab, int64_t width) const;
  /// Memory for two slabs as wide as possible, and the kernel's workspace for them.
  absl::Status Reserve();
  absl::Status ReserveFor(int64_t width);
  /// The plan's kernel, or the first of the layout's that serves slabs of both widths.
  std::optional<LayoutKernel> FindKernel(int64_t width, int64_t rest) const;
  absl::Status Queue(Slab& slab, cuda::Stream& stream);
  absl::Status BringDown(Slab& slab, cuda::Stream& stream);

  const SlabProduct& product_;
  GpuBackend& gpu_;
  Lane& lane_;
  const Token& token_;
  std::optional<LayoutKernel> kernel_;
  int64_t width_ = 0;
  std::array<Slab, 2> slabs_;
};

}  // namespace sparsed::engine
