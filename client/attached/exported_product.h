// A product that this process computes itself: a kernel of the server's, on its layout and values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/attached/memory_file.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed {
inline namespace client {

/// Which kernels this process has; see KernelsId of kernels/kernels_id.h.
const std::string& KernelsHere();

/// A row-major matrix of the caller's; elements between the beginnings of two rows.
struct DenseMemory {
  void* data = nullptr;
  int64_t rows = 0, cols = 0, leading_dimension = 0;
};

/// Thread-safe. Keeps what it runs on mapped.
class ExportedProduct {
 public:
  struct Memory {
    std::shared_ptr<const MappedFile> arrays, values, order;  ///< `order` may be null
  };
  /// `run` serves `problem`. INVALID_ARGUMENT if what the server said does not fit together;
  /// UNIMPLEMENTED if this process has no such kernel.
  static absl::StatusOr<std::shared_ptr<const ExportedProduct>> Make(
      const v1::ExportedRun& run, const v1::ProblemClass& problem, Memory memory);
  virtual ~ExportedProduct() = default;

  /// c = alpha * op(S) * b + beta * c; `threads` of OpenMP. Shapes are those of the problem.
  /// RESOURCE_EXHAUSTED without memory to work in.
  virtual absl::Status Spmm(const DenseMemory& b, const DenseMemory& c, double alpha, double beta,
                            int threads) const = 0;
  /// out = S .* (a * b^T), one column, in the order that S was sent in; `unscaled`: of ones in the
  /// place of S's values.
  virtual absl::Status Sddmm(const DenseMemory& a, const DenseMemory& b, const DenseMemory& out,
                             bool unscaled, int threads) const = 0;
};

}  // namespace client
}  // namespace sparsed
