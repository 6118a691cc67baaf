// Memory of a GPU that other processes may map: CUDA's virtual memory, handed over by descriptor.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "kernels/array.h"

namespace sparsed::cuda {

/// Exportable memory of the thread's GPU comes in multiples of so many bytes; 0: it has none, as
/// its driver or its operating system cannot hand it over.
size_t ExportGranularity();

/// Uninitialised memory of the thread's GPU, `bytes` and what is left of the last multiple; any
/// stream may use it at once. Its last reference is dropped when nothing queued uses it any more.
/// RESOURCE_EXHAUSTED, UNIMPLEMENTED where there is no such memory.
absl::StatusOr<Buffer> AllocateExportable(size_t bytes);

/// What stands for all of an exportable allocation, which `memory` is or is a part of, in any
/// process. Who holds it, or has it mapped, keeps the memory, whatever becomes of this process.
/// INVALID_ARGUMENT for other memory.
absl::StatusOr<Descriptor> Export(const Buffer& memory);

enum class Access : bool { kRead, kReadWrite };
/// Maps `bytes` of what another process exported, on the thread's GPU, which is the one that they
/// are of. For reading alone: a kernel that writes them fails, and with it all that this process
/// does on the GPU. INVALID_ARGUMENT if the descriptor stands for no such memory, or for less.
absl::StatusOr<Buffer> Import(const Descriptor& exported, size_t bytes,
                              Access access = Access::kRead);

/// Waits for all that this process has under way on the thread's GPU: what it uses of memory that
/// was imported may go then.
absl::Status SynchronizeDevice();

}  // namespace sparsed::cuda
