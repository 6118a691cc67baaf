#include "kernels/cuda/stream_words.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "kernels/cuda/driver_function.h"

namespace sparsed::cuda {
namespace {

struct Driver {
  decltype(&cuStreamWriteValue32) write = nullptr;
  decltype(&cuStreamWaitValue32) wait = nullptr;
  bool complete = false;

  static const Driver& Get() {
    static const Driver driver;
    return driver;
  }

 private:
  Driver() {
    complete =
        FindInDriver("cuStreamWriteValue32", write) && FindInDriver("cuStreamWaitValue32", wait);
  }
};

absl::Status ToStatus(CUresult error, const char* doing) {
  if (error == CUDA_SUCCESS) return absl::OkStatus();
  const std::string message =
      fmt::format("{}: CUDA driver error {}", doing, static_cast<int>(error));
  if (error == CUDA_ERROR_NOT_SUPPORTED) return absl::UnimplementedError(message);
  // Whether the device is lost, the next call of the runtime's says.
  return absl::InternalError(message);
}

/// As the device sees it.
absl::StatusOr<CUdeviceptr> AddressOf(const uint32_t* word) {
  void* address = nullptr;
  if (cudaHostGetDevicePointer(&address, const_cast<uint32_t*>(word), 0) != cudaSuccess) {
    cudaGetLastError();
    return absl::InvalidArgumentError("the word is in no memory that is pinned for the GPU");
  }
  return reinterpret_cast<CUdeviceptr>(address);
}

absl::Status NoWords() {
  return absl::UnimplementedError("streams of this GPU's driver write and await no words");
}

}  // namespace

absl::Status QueueWrite(const Stream& stream, uint32_t* word, uint32_t value) {
  const Driver& driver = Driver::Get();
  if (!driver.complete) return NoWords();
  const absl::StatusOr<CUdeviceptr> address = AddressOf(word);
  if (!address.ok()) return address.status();
  return ToStatus(driver.write(static_cast<CUstream>(stream.handle()), *address, value,
                               CU_STREAM_WRITE_VALUE_DEFAULT),
                  "queueing the write of a word");
}

absl::Status QueueWait(const Stream& stream, const uint32_t* word, uint32_t value) {
  const Driver& driver = Driver::Get();
  if (!driver.complete) return NoWords();
  const absl::StatusOr<CUdeviceptr> address = AddressOf(word);
  if (!address.ok()) return address.status();
  return ToStatus(driver.wait(static_cast<CUstream>(stream.handle()), *address, value,
                              CU_STREAM_WAIT_VALUE_GEQ),
                  "queueing the wait for a word");
}

}  // namespace sparsed::cuda
