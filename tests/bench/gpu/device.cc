#include "tests/bench/gpu/device.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/device.h"

namespace sparsed::test {
namespace {

class Cpu final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override { return "CPU, " + std::to_string(threads_) + " threads"; }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override { return HeapMemory().Allocate(bytes); }
  absl::Status Copy(void* to, const void* from, size_t bytes) override {
    constexpr size_t kPiece = size_t{1} << 20;
#pragma omp parallel for schedule(static) num_threads(threads_)
    for (size_t at = 0; at < bytes; at += kPiece) {
      std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at,
                  std::min(kPiece, bytes - at));
    }
    return absl::OkStatus();
  }
  absl::Status Fill(void* to, unsigned char byte, size_t bytes) override {
    if (bytes > 0) std::memset(to, byte, bytes);
    return absl::OkStatus();
  }
  absl::Status Finish() override { return absl::OkStatus(); }
  Context ContextWith(std::span<std::byte> workspace) override {
    return {.threads = threads_, .workspace = workspace};
  }
  absl::StatusOr<double> Milliseconds(const std::function<absl::Status()>& call) override {
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status status = call();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    if (!status.ok()) return status;
    return taken.count();
  }

 private:
  const int threads_ = omp_get_max_threads();
};

class Gpu final : public Device {
 public:
  static absl::StatusOr<std::unique_ptr<Device>> Open() {
    auto info = cuda::ProbeDevice(0);
    if (!info.ok()) return info.status();
    auto stream = cuda::Stream::Create();
    if (!stream.ok()) return stream.status();
    auto begin = cuda::Event::Create();
    if (!begin.ok()) return begin.status();
    auto end = cuda::Event::Create();
    if (!end.ok()) return end.status();
    return std::unique_ptr<Device>(
        new Gpu(info->name, *std::move(stream), *std::move(begin), *std::move(end)));
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return name_; }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override { return memory_->Allocate(bytes); }
  absl::Status Copy(void* to, const void* from, size_t bytes) override {
    return stream_.Copy(to, from, bytes);
  }
  absl::Status Fill(void* to, unsigned char byte, size_t bytes) override {
    return stream_.Fill(to, byte, bytes);
  }
  absl::Status Finish() override { return stream_.Synchronize(); }
  Context ContextWith(std::span<std::byte> workspace) override {
    return {.workspace = workspace, .stream = stream_.handle()};
  }
  absl::StatusOr<double> Milliseconds(const std::function<absl::Status()>& call) override {
    absl::Status status = begin_.Record(stream_);
    if (status.ok()) status = call();
    if (status.ok()) status = end_.Record(stream_);
    if (status.ok()) status = Finish();
    if (!status.ok()) return status;
    const auto taken = end_.MillisecondsSince(begin_);
    if (!taken.ok()) return taken.status();
    return *taken;
  }

 private:
  Gpu(std::string name, cuda::Stream stream, cuda::Event begin, cuda::Event end)
      : name_(std::move(name)),
        stream_(std::move(stream)),
        memory_(cuda::DeviceMemory(stream_)),
        begin_(std::move(begin)),
        end_(std::move(end)) {}

  const std::string name_;
  cuda::Stream stream_;
  std::unique_ptr<MemorySource> memory_;
  cuda::Event begin_, end_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(DeviceKind kind) {
  if (kind == DeviceKind::kCuda) return Gpu::Open();
  return std::make_unique<Cpu>();
}

absl::StatusOr<double> Device::MedianMilliseconds(int rounds,
                                                  const std::function<absl::Status()>& call) {
  std::vector<double> times;
  for (int round = 0; round < rounds + 1; ++round) {
    const absl::StatusOr<double> taken = Milliseconds(call);
    if (!taken.ok()) return taken;
    if (round > 0) times.push_back(*taken);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

absl::StatusOr<Buffer> Device::Upload(const void* data, size_t bytes) {
  absl::StatusOr<Buffer> buffer = Allocate(bytes);
  if (!buffer.ok()) return buffer;
  absl::Status status = Copy(buffer->mutable_data(), data, bytes);
  if (status.ok()) status = Finish();
  if (!status.ok()) return status;
  return buffer;
}

absl::StatusOr<Layout> Device::Upload(const Layout& layout) {
  Layout placed = layout;
  for (Array& array : placed.arrays) {
    absl::StatusOr<Buffer> buffer = Upload(array.buffer.data(), array.bytes());
    if (!buffer.ok()) return buffer.status();
    array.buffer = *std::move(buffer);
  }
  return placed;
}

absl::StatusOr<double> Device::CopyRate() {
  const size_t bytes = size_t{1} << (kind() == DeviceKind::kCuda ? 30 : 28);
  absl::StatusOr<Buffer> from = Allocate(bytes), to = Allocate(bytes);
  if (!from.ok()) return from.status();
  if (!to.ok()) return to.status();
  absl::Status status = Fill(from->mutable_data(), 0, bytes);
  if (!status.ok()) return status;
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    const auto taken = Milliseconds([&] { return Copy(to->mutable_data(), from->data(), bytes); });
    if (!taken.ok()) return taken.status();
    if (i >= 2) times.push_back(*taken);
  }
  std::nth_element(times.begin(), times.begin() + 3, times.end());
  return 2.0 * static_cast<double>(bytes) / times[3] / 1e6;
}

}  // namespace sparsed::test
