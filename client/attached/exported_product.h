// A product that this process computes itself: a kernel of the server's, on its layout and values.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "client/attached/memory_file.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed {
inline namespace client {

/// Which kernels this process has; see KernelsId of kernels/kernels_id.h.
const std::string& KernelsHere();
/// As cuda::DeviceUuid of kernels/cuda/device.h.
absl::StatusOr<std::string> GpuUuid(int gpu);
/// Maps memory of a GPU that another process exported, for reading. INVALID_ARGUMENT.
absl::StatusOr<std::shared_ptr<const MappedMemory>> MapGpuMemory(const Descriptor& file,
                                                                 size_t bytes, int gpu);
/// FAILED_PRECONDITION while the stream is captured into a graph: what runs elsewhere is no part of
/// it.
absl::Status CheckNotPartOfGraph(int gpu, void* stream);
/// Copies what the stream has written, or is to read, between the GPU and the host; waits.
/// FAILED_PRECONDITION while the stream is captured into a graph.
absl::Status CopyBetween(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t row_bytes, size_t rows, int gpu, void* stream);

/// A row-major matrix of the caller's; elements between the beginnings of two rows.
struct DenseMemory {
  void* data = nullptr;
  int64_t rows = 0, cols = 0, leading_dimension = 0;
};

/// Thread-safe. Keeps what it runs on mapped.
class ExportedProduct {
 public:
  struct Memory {
    std::shared_ptr<const void> lease;                          ///< goes after all of them
    std::shared_ptr<const MappedMemory> arrays, values, order;  ///< `order` may be null
  };
  /// How long a problem's runs take, as far as that is known. Products of it that follow each other
  /// have the same.
  class Clock {
   public:
    virtual ~Clock() = default;
  };
  /// `run` serves `problem`, on the GPU (the process's number) or the CPU; `clock` is that of the
  /// products before it, or null, and that of the next. INVALID_ARGUMENT if what the server said
  /// does not fit together; UNIMPLEMENTED if this process has no such kernel.
  static absl::StatusOr<std::shared_ptr<const ExportedProduct>> Make(
      const v1::ExportedRun& run, const v1::ProblemClass& problem, std::optional<int> gpu,
      Memory memory, std::shared_ptr<Clock>& clock);
  virtual ~ExportedProduct() = default;

  /// For each nonzero of CSR its place in the order that S was sent in, where kernels read it;
  /// null: that is CSR's.
  virtual const int64_t* order() const = 0;

  /// On the CPU: with that many threads of OpenMP, and it is done when this returns. On a GPU: it
  /// is queued in the stream (cudaStream_t) or, while that is captured, becomes part of its graph,
  /// which keeps all that it needs of this process's and of the server's.
  struct Where {
    int threads = 1;
    void* stream = nullptr;
  };
  /// Nanoseconds of the device to account for: on a GPU an estimate, as only some runs are timed.
  /// None: nothing ran, but a graph will. RESOURCE_EXHAUSTED without memory to work in.
  using Accounted = absl::StatusOr<std::optional<std::chrono::nanoseconds>>;

  /// c = alpha * op(S) * b + beta * old, where `old` is c if null, and overlaps it with no byte
  /// else. Shapes are those of the problem. `own` (null: none) is what S's values are instead, one
  /// column without gaps, in the order that S was sent in.
  virtual Accounted Spmm(const DenseMemory& b, const DenseMemory& c, const DenseMemory* old,
                         const DenseMemory* own, double alpha, double beta,
                         const Where& where) const = 0;
  /// out = S .* (a * b^T), one column, in the order that S was sent in; `unscaled`: of ones in the
  /// place of S's values.
  virtual Accounted Sddmm(const DenseMemory& a, const DenseMemory& b, const DenseMemory& out,
                          const DenseMemory* own, bool unscaled, const Where& where) const = 0;
};

}  // namespace client
}  // namespace sparsed
