#include "kernels/cuda/ipc_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <bit>
#include <iterator>
#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/driver_function.h"

namespace sparsed::cuda {
namespace {

static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle));

struct Driver {
  decltype(&cuCtxGetCurrent) context = nullptr;
  decltype(&cuPointerGetAttributes) attributes = nullptr;
  decltype(&cuMemGetAddressRange) range = nullptr;
  decltype(&cuIpcGetMemHandle) get = nullptr;
  decltype(&cuIpcOpenMemHandle) open = nullptr;
  decltype(&cuIpcCloseMemHandle) close = nullptr;
  bool complete = false;

  static const Driver& Get() {
    static const Driver driver;
    return driver;
  }

 private:
  Driver() {
    complete = FindInDriver("cuCtxGetCurrent", context) &&
               FindInDriver("cuPointerGetAttributes", attributes) &&
               FindInDriver("cuMemGetAddressRange", range) &&
               FindInDriver("cuIpcGetMemHandle", get) && FindInDriver("cuIpcOpenMemHandle", open) &&
               FindInDriver("cuIpcCloseMemHandle", close);
  }
};

/// The thread's GPU; -1: the driver is not to be asked. It tells nothing to a thread that has no
/// context, as one that has not used the GPU yet.
int ReadyDevice() {
  const Driver& driver = Driver::Get();
  int device = 0;
  CUcontext context = nullptr;
  if (!driver.complete || cudaGetDevice(&device) != cudaSuccess) {
    cudaGetLastError();
    return -1;
  }
  if (driver.context(&context) == CUDA_SUCCESS && context != nullptr) return device;
  if (cudaSetDevice(device) == cudaSuccess) return device;
  cudaGetLastError();
  return -1;
}

/// What the driver knows of a pointer; zeros of one that is none of its.
struct Facts {
  unsigned type = 0;  ///< CUmemorytype
  int device = -1;
  unsigned long long id = 0;
  int has_handle = 0;
  int managed = 0;  ///< the host's as well

  bool of_device() const { return type == CU_MEMORYTYPE_DEVICE && managed == 0; }
};
Facts FactsOf(const void* data) {
  Facts facts;
  CUpointer_attribute asked[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* answers[] = {&facts.type, &facts.device, &facts.id, &facts.has_handle, &facts.managed};
  if (Driver::Get().attributes(std::size(asked), asked, answers,
                               reinterpret_cast<CUdeviceptr>(data)) != CUDA_SUCCESS) {
    return {};
  }
  return facts;
}

absl::Status DoesNotOpen(std::string_view why) {
  return absl::InvalidArgumentError(fmt::format(
      "the handle does not open: {}; it has to be of memory that another process allocated on this "
      "GPU with cudaMalloc, and has not freed",
      why));
}

}  // namespace

bool IsDeviceMemory(const void* data) { return ReadyDevice() >= 0 && FactsOf(data).of_device(); }

std::optional<Allocation> AllocationOf(const void* data) {
  const int device = ReadyDevice();
  if (device < 0) return std::nullopt;
  const Facts facts = FactsOf(data);
  if (!facts.of_device() || facts.device != device || facts.has_handle == 0) return std::nullopt;
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  if (Driver::Get().range(&begin, &bytes, reinterpret_cast<CUdeviceptr>(data)) != CUDA_SUCCESS) {
    return std::nullopt;
  }
  return Allocation{reinterpret_cast<std::byte*>(begin), bytes, facts.id};
}

absl::StatusOr<IpcHandle> HandleOf(const Allocation& allocation) {
  CUipcMemHandle handle = {};
  if (ReadyDevice() < 0 ||
      Driver::Get().get(&handle, reinterpret_cast<CUdeviceptr>(allocation.begin)) != CUDA_SUCCESS) {
    return absl::InvalidArgumentError("this memory has no handle that another process can open");
  }
  return std::bit_cast<IpcHandle>(handle);
}

absl::StatusOr<Buffer> OpenIpcMemory(const IpcHandle& handle) {
  const int device = ReadyDevice();
  if (device < 0) return absl::UnimplementedError("this GPU's driver opens no handles");
  const Driver& driver = Driver::Get();
  CUdeviceptr at = 0;
  if (const CUresult error = driver.open(&at, std::bit_cast<CUipcMemHandle>(handle),
                                         CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
      error != CUDA_SUCCESS) {
    return DoesNotOpen(fmt::format("CUDA driver error {}", static_cast<int>(error)));
  }
  std::shared_ptr<std::byte> memory(reinterpret_cast<std::byte*>(at), [device](std::byte* mapped) {
    const DeviceScope scope(device);
    if (ReadyDevice() >= 0) Driver::Get().close(reinterpret_cast<CUdeviceptr>(mapped));
  });
  if (FactsOf(memory.get()).device != device) return DoesNotOpen("it is of another GPU");
  // How much is there is what this process's own driver says.
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  if (driver.range(&begin, &bytes, at) != CUDA_SUCCESS || at - begin >= bytes) {
    return DoesNotOpen("its size is not known");
  }
  return Buffer(std::move(memory), bytes - (at - begin));
}

}  // namespace sparsed::cuda
