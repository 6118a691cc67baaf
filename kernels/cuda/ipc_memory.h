// Memory of a GPU that a process allocated for itself (cudaMalloc), in another process: CUDA's
// legacy handles. Unlike exportable memory, nothing makes whoever allocated it keep it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/array.h"

namespace sparsed::cuda {

/// What stands for all of an allocation in other processes.
using IpcHandle = std::array<char, 64>;

/// An allocation of this process's that others can open.
struct Allocation {
  std::byte* begin = nullptr;
  size_t bytes = 0;
  uint64_t id = 0;  ///< no other of this process has it, before or after
  bool operator==(const Allocation&) const = default;
};

/// Whether it is memory of the thread's GPU, or of another one, that the host does not reach.
bool IsDeviceMemory(const void* data);
/// The allocation of the thread's GPU that `data` lies in. None: it lies in none, or in one that
/// has no handle (virtual memory, pools of cudaMallocAsync, managed memory, another process's).
std::optional<Allocation> AllocationOf(const void* data);
/// INVALID_ARGUMENT if it has none.
absl::StatusOr<IpcHandle> HandleOf(const Allocation& allocation);

/// Maps what another process allocated on the thread's GPU, all of it, until the last copy of the
/// buffer goes, which waits for nothing: what uses it has ended. A handle that is mapped already is
/// not to be opened again. What becomes of the bytes when the other process frees them meanwhile is
/// not defined. INVALID_ARGUMENT if the handle stands for nothing (any more), for memory of this
/// process or of another GPU.
absl::StatusOr<Buffer> OpenIpcMemory(const IpcHandle& handle);

}  // namespace sparsed::cuda
