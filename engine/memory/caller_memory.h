// Memory of GPUs that processes of this machine allocated for themselves, used where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/cuda/ipc_memory.h"

namespace sparsed::engine {

/// Each handle is opened once, for all who ask for it, and closed when nobody uses it any more.
/// Counts in no budget: it is the callers'. Thread-safe; buffers may outlive it.
class CallerMemory {
 public:
  CallerMemory();
  ~CallerMemory();
  CallerMemory(const CallerMemory&) = delete;
  CallerMemory& operator=(const CallerMemory&) = delete;

  /// The first `bytes` (> 0) of what a process allocated on GPU `ordinal`. `allocation` is that
  /// process's number for it, which tells it from one that has its place now: handles of both may
  /// be the same. INVALID_ARGUMENT for a handle that does not open, or stands for less;
  /// FAILED_PRECONDITION while another allocation of this handle is used. May take milliseconds.
  absl::StatusOr<Buffer> Open(int ordinal, const cuda::IpcHandle& handle, uint64_t allocation,
                              size_t bytes);

 private:
  using Key = std::pair<int, cuda::IpcHandle>;  ///< the GPU, and the handle
  class State;
  const std::shared_ptr<State> state_;  ///< the buffers', too
};

}  // namespace sparsed::engine
