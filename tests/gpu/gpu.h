// The GPU for tests and benchmarks: layouts and operands there and back.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/cuda/device.h"
#include "kernels/layout.h"

namespace sparsed::test {

class Gpu {
 public:
  /// Null where there is none; WhyNot then has the reason. One for the program.
  static Gpu* Get();
  static const std::string& WhyNot();

  const cuda::DeviceInfo& info() const { return info_; }
  cuda::Stream& stream() { return stream_; }
  MemorySource& memory() { return *memory_; }

  /// Aborts without memory, as everything here does when the device fails.
  Buffer Allocate(size_t bytes);
  Buffer Upload(const void* data, size_t bytes);
  void Download(void* to, const void* from, size_t bytes);
  /// The layout with its arrays on the device.
  Layout Upload(const Layout& layout);

 private:
  Gpu(cuda::DeviceInfo info, cuda::Stream stream);

  cuda::DeviceInfo info_;
  cuda::Stream stream_;
  std::unique_ptr<MemorySource> memory_;
};

/// Ends the program with the message if it is an error.
void Must(const absl::Status& status);

}  // namespace sparsed::test
