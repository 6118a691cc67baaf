// Where kernels are measured: the GPU or the CPU, with its memory and its clock.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed::test {

class Device : public MemorySource {
 public:
  /// UNAVAILABLE, with the reason, if there is no such device.
  static absl::StatusOr<std::unique_ptr<Device>> Open(DeviceKind kind);
  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;
  /// Between the device and the host or within the device. May be queued: Finish waits.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes) = 0;
  virtual absl::Status Fill(void* to, unsigned char byte, size_t bytes) = 0;
  virtual absl::Status Finish() = 0;
  virtual Context ContextWith(std::span<std::byte> workspace) = 0;
  /// What one call takes, of whatever it queues. Ends with Finish.
  virtual absl::StatusOr<double> Milliseconds(const std::function<absl::Status()>& call) = 0;

  /// The median of `rounds` such calls, after one that does not count.
  absl::StatusOr<double> MedianMilliseconds(int rounds, const std::function<absl::Status()>& call);

  /// Finished copies of host memory.
  absl::StatusOr<Buffer> Upload(const void* data, size_t bytes);
  absl::StatusOr<Layout> Upload(const Layout& layout);
  /// GB/s of copies within the device, read and written bytes both counted.
  absl::StatusOr<double> CopyRate();
};

}  // namespace sparsed::test
