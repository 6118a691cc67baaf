#include "tests/gpu/gpu.h"

#include <cstdio>
#include <cstdlib>

namespace sparsed::test {
namespace {

std::string& Reason() {
  static std::string reason;
  return reason;
}

}  // namespace

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

Gpu::Gpu(cuda::DeviceInfo info, cuda::Stream stream)
    : info_(std::move(info)), stream_(std::move(stream)), memory_(cuda::DeviceMemory(stream_)) {}

Gpu* Gpu::Get() {
  static Gpu* const gpu = []() -> Gpu* {
    absl::StatusOr<cuda::DeviceInfo> info = cuda::ProbeDevice(0);
    if (!info.ok()) {
      Reason() = info.status().ToString();
      return nullptr;
    }
    absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create();
    if (!stream.ok()) {
      Reason() = stream.status().ToString();
      return nullptr;
    }
    return new Gpu(*std::move(info), *std::move(stream));
  }();
  return gpu;
}

const std::string& Gpu::WhyNot() { return Reason(); }

Buffer Gpu::Allocate(size_t bytes) {
  absl::StatusOr<Buffer> buffer = memory_->Allocate(bytes);
  Must(buffer.status());
  return *std::move(buffer);
}

Buffer Gpu::Upload(const void* data, size_t bytes) {
  Buffer buffer = Allocate(bytes);
  Must(stream_.Copy(buffer.mutable_data(), data, bytes));
  Must(stream_.Synchronize());
  return buffer;
}

void Gpu::Download(void* to, const void* from, size_t bytes) {
  Must(stream_.Copy(to, from, bytes));
  Must(stream_.Synchronize());
}

Layout Gpu::Upload(const Layout& layout) {
  Layout placed = layout;
  for (Array& array : placed.arrays) array.buffer = Upload(array.buffer.data(), array.bytes());
  return placed;
}

}  // namespace sparsed::test
