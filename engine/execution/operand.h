// Dense operands of requests: where their bytes are, and how they get to where a kernel reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/execution/call.h"
#include "engine/execution/gpu_backend.h"
#include "engine/execution/operand_memory.h"
#include "engine/execution/placed_dense.h"
#include "engine/execution/token.h"
#include "engine/memory/array_assembler.h"
#include "engine/memory/lazy_array.h"

namespace sparsed::engine {

/// An operand whose bytes come in the request's stream: put together in the memory of the GPU that
/// will use it, if its first bytes find room there, else on the host. Until it is complete any
/// number of threads feed it, then a worker slot has it.
class StreamedOperand {
 public:
  /// `gpu` may be null; it and `host`, memory for requests, which `owner` pays for, outlive this.
  /// Takes memory as bytes come.
  StreamedOperand(std::string name, const DenseShape& shape, uint32_t stream_array, GpuBackend* gpu,
                  MemorySource& host, const MemoryOwner& owner);
  ~StreamedOperand();
  StreamedOperand(const StreamedOperand&) = delete;
  StreamedOperand& operator=(const StreamedOperand&) = delete;

  uint32_t stream_array() const { return stream_array_; }
  /// As Call::Claim.
  absl::StatusOr<ClaimedBytes> Claim(uint64_t offset, uint64_t size);
  bool complete() const;
  /// "operand B has 12 of 4096 bytes".
  std::string Missing() const;
  size_t announced() const { return bytes_; }
  size_t counted() const;

  /// In host memory; it was put together there, or brought there.
  absl::StatusOr<Array> OnHost();
  /// Where the backend's kernels read it. A GPU is the one that it was made for; work queued in the
  /// worker slot's stream may use it.
  absl::StatusOr<PlacedDense> On(Backend& backend, WorkerSlot& slot, const Token& token);
  /// All that was sent to the GPU is there: the stream of a worker slot that it was placed for has
  /// passed.
  void Settled();
  /// It takes none of the GPU's memory, but while a worker slot uses it.
  bool on_host() const;
  /// From the GPU to the host, if it is there. CANCELLED, or why `token` stopped.
  absl::Status MoveToHost(const Token& token);

 private:
  /// Bytes that came when all blocks to the device were taken: a worker slot takes them there.
  struct Late {
    size_t offset, size;
    Buffer bytes;
  };
  /// What one takes besides its bytes, roughly: they may be few.
  static constexpr size_t kLateBytes = 256;

  /// `size` claimed bytes are written; those in a block are yet to go `to` the device.
  absl::Status Written(std::byte* to, StagingBlock block, size_t size);
  absl::Status TakeArray();

  const DenseShape shape_;
  const size_t bytes_;
  const uint32_t stream_array_;
  GpuBackend* const gpu_;
  MemorySource& host_;

  mutable Mutex mutex_;                            ///< not held while bytes are copied
  OperandMemory* memory_ ABSL_GUARDED_BY(mutex_);  ///< the assembler's
  ArrayAssembler assembler_ ABSL_GUARDED_BY(mutex_);
  size_t written_ ABSL_GUARDED_BY(mutex_) = 0;   ///< bytes, of those that were claimed
  bool on_gpu_ ABSL_GUARDED_BY(mutex_) = false;  ///< known with its first bytes
  bool pieces_under_way_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Late> late_ ABSL_GUARDED_BY(mutex_);
  size_t late_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  ///< of all that came late, with kLateBytes each

  // The worker slot's, once it took them from above.
  bool taken_ = false;
  Array array_;
  std::vector<Late> to_bring_;
};

/// One that will come in the stream, to a device that is not known yet.
struct AnnouncedOperand {
  std::string name;
  uint32_t stream_array = 0;
};

/// A dense operand of a request, wherever it comes from.
struct Operand {
  using Announced = AnnouncedOperand;
  using Streamed = std::unique_ptr<StreamedOperand>;
  using Held = std::shared_ptr<LazyArray>;
  using Shared = Array;  ///< in host memory that the caller maps, too
  /// In a GPU's memory that the caller maps, too.
  struct SharedOnGpu {
    Array array;
    GpuBackend* gpu;
    MemorySource* host;  ///< for requests, where it is needed elsewhere
  };

  /// On several GPUs.
  struct Fetched {
    std::shared_ptr<const FetchedRows> rows;
    std::vector<GpuBackend*> gpus;  ///< that have the parts; null: the host
    MemorySource* host;             ///< for requests, where it is needed there
    MemoryOwner* owner;
  };

  DenseShape shape;
  std::variant<Announced, Streamed, Held, Shared, SharedOnGpu, Fetched> source;

  /// Null if it comes from elsewhere.
  StreamedOperand* streamed() const {
    const auto* const streamed = std::get_if<Streamed>(&source);
    return streamed == nullptr ? nullptr : streamed->get();
  }
  LazyArray* held() const {
    const auto* const held = std::get_if<Held>(&source);
    return held == nullptr ? nullptr : held->get();
  }
  /// Wherever that is.
  const Array* shared() const {
    const auto* const on_gpu = std::get_if<SharedOnGpu>(&source);
    return on_gpu != nullptr ? &on_gpu->array : std::get_if<Shared>(&source);
  }
  /// Where it is shared; null: not in a GPU's memory.
  GpuBackend* gpu() const {
    const auto* const on_gpu = std::get_if<SharedOnGpu>(&source);
    return on_gpu == nullptr ? nullptr : on_gpu->gpu;
  }

  absl::StatusOr<PlacedDense> On(Backend& backend, WorkerSlot& slot, const Token& token) const;
  absl::StatusOr<Array> OnHost() const;
};

}  // namespace sparsed::engine
