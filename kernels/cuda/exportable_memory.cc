#include "kernels/cuda/exportable_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/device.h"
#include "kernels/cuda/driver_function.h"

namespace sparsed::cuda {
namespace {

struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_address = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemRetainAllocationHandle) retain = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  bool complete = false;

  static const Driver& Get() {
    static const Driver driver;
    return driver;
  }

 private:
  Driver() {
    complete = FindInDriver("cuMemGetAllocationGranularity", granularity) &&
               FindInDriver("cuMemCreate", create) && FindInDriver("cuMemRelease", release) &&
               FindInDriver("cuMemAddressReserve", reserve) &&
               FindInDriver("cuMemAddressFree", free_address) && FindInDriver("cuMemMap", map) &&
               FindInDriver("cuMemUnmap", unmap) && FindInDriver("cuMemSetAccess", set_access) &&
               FindInDriver("cuMemRetainAllocationHandle", retain) &&
               FindInDriver("cuMemExportToShareableHandle", export_handle) &&
               FindInDriver("cuMemImportFromShareableHandle", import_handle) &&
               FindInDriver("cuDeviceGetAttribute", attribute);
  }
};

absl::Status ToStatus(CUresult error, std::string_view doing) {
  if (error == CUDA_SUCCESS) return absl::OkStatus();
  const std::string message =
      fmt::format("{}: CUDA driver error {}", doing, static_cast<int>(error));
  if (error == CUDA_ERROR_OUT_OF_MEMORY) return absl::ResourceExhaustedError(message);
  if (error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_INVALID_HANDLE) {
    return absl::InvalidArgumentError(message);
  }
  // Whether the device is lost, the next call of the runtime's says.
  return absl::InternalError(message);
}

int PresentDevice() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

CUmemAllocationProp PropertiesOf(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

absl::Status NoSuchMemory() {
  return absl::UnimplementedError("this GPU has no memory that other processes can map");
}

/// Maps all of `handle`, and takes it over.
absl::StatusOr<Buffer> Map(CUmemGenericAllocationHandle handle, size_t bytes, size_t rounded,
                           CUmemAccess_flags access) {
  const Driver& driver = Driver::Get();
  const int device = PresentDevice();
  CUdeviceptr at = 0;
  absl::Status status =
      ToStatus(driver.reserve(&at, rounded, 0, 0, 0), "reserving addresses of the GPU");
  if (!status.ok()) {
    driver.release(handle);
    return status;
  }
  status = ToStatus(driver.map(at, rounded, 0, handle, 0), "mapping memory of the GPU");
  // The mapping keeps it.
  driver.release(handle);
  CUmemAccessDesc description = {};
  description.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  description.location.id = device;
  description.flags = access;
  const bool mapped = status.ok();
  if (mapped) {
    status = ToStatus(driver.set_access(at, rounded, &description, 1),
                      "opening mapped memory of the GPU");
  }
  if (!status.ok()) {
    if (mapped) driver.unmap(at, rounded);
    driver.free_address(at, rounded);
    return status;
  }
  auto* const data = reinterpret_cast<std::byte*>(at);
  return Buffer(std::shared_ptr<std::byte>(data,
                                           [device, rounded](std::byte* memory) {
                                             const DeviceScope scope(device);
                                             const auto address =
                                                 reinterpret_cast<CUdeviceptr>(memory);
                                             Driver::Get().unmap(address, rounded);
                                             Driver::Get().free_address(address, rounded);
                                           }),
                bytes);
}

}  // namespace

size_t ExportGranularity() {
  const Driver& driver = Driver::Get();
  const int device = PresentDevice();
  int supported = 0;
  if (!driver.complete ||
      driver.attribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                       device) != CUDA_SUCCESS ||
      supported == 0) {
    return 0;
  }
  const CUmemAllocationProp properties = PropertiesOf(device);
  size_t bytes = 0;
  if (driver.granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS) {
    return 0;
  }
  return bytes;
}

absl::StatusOr<Buffer> AllocateExportable(size_t bytes) {
  if (bytes == 0) return Buffer();
  const size_t granularity = ExportGranularity();
  if (granularity == 0) return NoSuchMemory();
  const size_t rounded = (bytes + granularity - 1) / granularity * granularity;
  const CUmemAllocationProp properties = PropertiesOf(PresentDevice());
  CUmemGenericAllocationHandle handle = 0;
  absl::Status status = ToStatus(Driver::Get().create(&handle, rounded, &properties, 0),
                                 fmt::format("allocating {} bytes on the GPU", rounded));
  if (!status.ok()) return status;
  return Map(handle, bytes, rounded, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

absl::StatusOr<Descriptor> Export(const Buffer& memory) {
  const Driver& driver = Driver::Get();
  if (!driver.complete) return NoSuchMemory();
  CUmemGenericAllocationHandle handle = 0;
  auto* const at = const_cast<std::byte*>(memory.data());
  absl::Status status =
      ToStatus(driver.retain(&handle, at), "finding the allocation that memory of the GPU is of");
  if (!status.ok()) return status;
  int file = -1;
  status =
      ToStatus(driver.export_handle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
               "exporting memory of the GPU");
  driver.release(handle);
  if (!status.ok()) return status;
  return Descriptor(file);
}

absl::StatusOr<Buffer> Import(const Descriptor& exported, size_t bytes, Access access) {
  const size_t granularity = ExportGranularity();
  if (granularity == 0) return NoSuchMemory();
  if (!exported.open() || bytes == 0) {
    return absl::InvalidArgumentError("there is no memory of a GPU to import");
  }
  const size_t rounded = (bytes + granularity - 1) / granularity * granularity;
  CUmemGenericAllocationHandle handle = 0;
  const auto file = reinterpret_cast<void*>(static_cast<uintptr_t>(exported.fd()));
  absl::Status status =
      ToStatus(Driver::Get().import_handle(&handle, file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
               "importing memory of the GPU");
  if (!status.ok()) return absl::InvalidArgumentError(std::string(status.message()));
  return Map(handle, bytes, rounded,
             access == Access::kReadWrite ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                          : CU_MEM_ACCESS_FLAGS_PROT_READ);
}

absl::Status SynchronizeDevice() {
  const cudaError_t error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("waiting for the GPU: {}", cudaGetErrorString(error)));
}

}  // namespace sparsed::cuda
