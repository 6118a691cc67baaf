// GPU memory that a server on this machine shares with its callers: requests use it where it is,
// and products are queued in the caller's streams, while neither process waits for the other.
//
//   auto client = sparsed::Client::Connect("unix:/run/sparsed.sock");
//   auto memory = sparsed::GpuMemory::Open(*client, /*gpu=*/0);
//   auto b = memory->Allocate(n, k), c = memory->Allocate(m, k);
//   sparsed::QueuedMatrix graph(*memory, client->MatrixNamed("cora"));
//   ...                                                    // kernels in `stream` that write b
//   graph.Spmm(sparsed::GpuStream{stream}, b->ConstView(), c->View());
//   ...                                                    // kernels in `stream` that read c
//
// Of the library that knows CUDA (CMake's sparsed::attached).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsed/attached.h"
#include "sparsed/client.h"
#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

class GpuMemoryState;
class SharedBlock;

/// A dense matrix, row-major and without gaps, in a GPU's memory that the server allocated. Calls
/// of its client take it as they take any view, whole or in parts that begin at a multiple of 64
/// bytes; their operands must have been written before, and the host reads nothing of it. Copies
/// share it. With the last of them it goes, once nothing of this process's runs on the GPU any
/// more.
class GpuMatrix {
 public:
  void* data() const { return data_; }  ///< of the GPU; zeros at first
  ValueType type() const { return type_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  /// As calls take it.
  MutableDenseView View() const { return {data(), type_, rows_, cols_}; }
  DenseView ConstView() const { return {data(), type_, rows_, cols_}; }

 private:
  friend class GpuMemory;
  GpuMatrix(std::shared_ptr<SharedBlock> block, void* data, ValueType type, int64_t rows,
            int64_t cols)
      : block_(std::move(block)), data_(data), type_(type), rows_(rows), cols_(cols) {}

  std::shared_ptr<SharedBlock> block_;
  void* data_;
  ValueType type_;
  int64_t rows_;
  int64_t cols_;
};

struct GpuMemoryOptions {
  /// Of what FreeBytes gave back, so much is kept for the next AllocateBytes.
  size_t kept_bytes = size_t{256} << 20;
};

/// Memory of one GPU, from a server that serves from it. Counts there as shared memory of the
/// GPU's, in multiples of 2 MiB, and the tenant's; of one process at most --connection-memory. What
/// a server that has died had given stays this process's, but no request finds it any more. A cheap
/// handle, thread-safe. Not to be used in a child after fork().
class GpuMemory {
 public:
  /// `gpu` as this process counts those that it sees (cudaGetDevice). FAILED_PRECONDITION if the
  /// server is on another machine, has no local socket or another GPU; PERMISSION_DENIED;
  /// UNAVAILABLE.
  static absl::StatusOr<GpuMemory> Open(const Client& client, int gpu,
                                        const GpuMemoryOptions& options = {});

  /// INVALID_ARGUMENT for sizes that make no sense, RESOURCE_EXHAUSTED without memory.
  absl::StatusOr<GpuMatrix> Allocate(int64_t rows, int64_t cols,
                                     ValueType type = ValueType::kF32) const;

  /// For a framework's allocator: memory that may be used in `stream` from its present end on. May
  /// be what was freed in the same stream, or anywhere long ago; its contents are anything.
  absl::StatusOr<void*> AllocateBytes(size_t bytes, GpuStream stream = {}) const;
  /// Gives it back at the present end of `stream`: what was queued there before may use it still.
  /// INVALID_ARGUMENT if AllocateBytes did not return it.
  absl::Status FreeBytes(void* data, GpuStream stream = {}) const;
  /// Gives what is kept for the next AllocateBytes back to the server.
  void Trim() const;

 private:
  friend class QueuedMatrix;
  explicit GpuMemory(std::shared_ptr<GpuMemoryState> state) : state_(std::move(state)) {}

  std::shared_ptr<GpuMemoryState> state_;
};

/// What a product that was queued tells, besides the plan. Its timings are zero if it was queued.
struct QueuedResult : ComputeResult {
  /// It is done when the stream has passed it; false: it was done before the call returned.
  bool queued = false;
  /// Of operands and result that are in other memory than GpuMemory's: copied there on the GPU, or
  /// back, in the stream.
  int64_t copied_bytes = 0;
  /// Of operands and result that this process allocated itself (cudaMalloc), and the server used
  /// where they are, as its operator lets it (--trust-caller-gpu-memory). Such memory is to stay
  /// allocated until the stream has passed the product.
  int64_t in_place_bytes = 0;
};

/// A matrix on the server, whose products are queued in streams of the caller's. They run in the
/// server's process, one after the other for each stream, in its order. A cheap handle, usable from
/// many threads.
class QueuedMatrix {
 public:
  QueuedMatrix(GpuMemory memory, Matrix matrix)
      : memory_(std::move(memory)), matrix_(std::move(matrix)) {}

  const Matrix& matrix() const { return matrix_; }

  /// Queues the product in the stream, and returns once the server has it: what the stream does
  /// after it waits for its end, on the GPU. All operands, also those among the options, and the
  /// result are in the GPU's memory. What the server cannot queue waits for the stream, and is done
  /// when this returns. In a stream that is captured: FAILED_PRECONDITION. INVALID_ARGUMENT for
  /// operands that are not views. ABORTED if products that this stream waited for since the last
  /// call did not come to their end, as the server has gone or lost the GPU: their results are
  /// anything, and nothing of this one was done.
  absl::StatusOr<QueuedResult> Spmm(GpuStream stream, const DenseView& b, const MutableDenseView& c,
                                    const SpmmOptions& spmm = {}) const;
  absl::StatusOr<QueuedResult> Sddmm(GpuStream stream, const DenseView& a, const DenseView& b,
                                     const MutableDenseView& values,
                                     const SddmmOptions& sddmm = {}) const;

 private:
  GpuMemory memory_;
  Matrix matrix_;
};

}  // namespace client
}  // namespace sparsed
