#include "tests/bench/bare_kernel.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/bound_run.h"
#include "kernels/cuda/device.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"

namespace sparsed::bench {
namespace {

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

/// A place as kernels see it.
class KernelPlace : public Place {
 public:
  /// A copy of what is on the host.
  virtual Buffer Copy(const void* from, size_t bytes) = 0;
  virtual MemorySource& memory() = 0;

  float* Floats(std::span<const float> values) override {
    floats_.push_back(Copy(values.data(), values.size_bytes()));
    return reinterpret_cast<float*>(floats_.back().mutable_data());
  }

 protected:
  std::vector<Buffer> floats_;
};

class HostPlace final : public KernelPlace {
 public:
  Buffer Copy(const void* from, size_t bytes) override {
    Buffer copy = HeapMemory().Allocate(bytes).value();
    if (bytes > 0) std::memcpy(copy.mutable_data(), from, bytes);
    return copy;
  }
  MemorySource& memory() override { return HeapMemory(); }
  void Back(std::span<float> to, const float* from) override {
    std::copy(from, from + to.size(), to.begin());
  }
  void Put(float* to, std::span<const float> from) override {
    std::copy(from.begin(), from.end(), to);
  }
  void Wait() override {}
  void* stream() const override { return nullptr; }
};

class GpuPlace final : public KernelPlace {
 public:
  explicit GpuPlace(int gpu)
      : scope_(gpu),
        stream_(cuda::Stream::Create().value()),
        memory_(cuda::DeviceMemory(stream_)) {}
  ~GpuPlace() override { floats_.clear(); }

  Buffer Copy(const void* from, size_t bytes) override {
    absl::StatusOr<Buffer> copy = memory_->Allocate(bytes);
    Must(copy.status());
    Must(stream_.Copy(copy->mutable_data(), from, bytes));
    Must(stream_.Synchronize());
    return *std::move(copy);
  }
  MemorySource& memory() override { return *memory_; }
  void Back(std::span<float> to, const float* from) override {
    Must(stream_.Copy(to.data(), from, to.size_bytes()));
    Must(stream_.Synchronize());
  }
  void Put(float* to, std::span<const float> from) override {
    Must(stream_.Copy(to, from.data(), from.size_bytes()));
    Must(stream_.Synchronize());
  }
  void Wait() override { Must(stream_.Synchronize()); }
  void* stream() const override { return stream_.handle(); }

 private:
  const cuda::DeviceScope scope_;
  cuda::Stream stream_;
  const std::unique_ptr<MemorySource> memory_;
};

class BothWays final : public PinnedCopies {
 public:
  BothWays(int gpu, size_t bytes)
      : scope_(gpu),
        in_(cuda::Stream::Create().value()),
        out_(cuda::Stream::Create().value()),
        memory_(cuda::DeviceMemory(in_)) {
    for (Buffer* buffer : {&host_[0], &host_[1]}) {
      *buffer = cuda::PinnedMemory().Allocate(bytes).value();
      std::memset(buffer->mutable_data(), 1, bytes);
    }
    for (Buffer* buffer : {&device_[0], &device_[1]}) *buffer = memory_->Allocate(bytes).value();
    Must(in_.Synchronize());
  }

  void Run(int count) override {
    for (int i = 0; i < count; ++i) {
      Must(in_.Copy(device_[0].mutable_data(), host_[0].data(), host_[0].size()));
      Must(out_.Copy(host_[1].mutable_data(), device_[1].data(), host_[1].size()));
    }
    Must(in_.Synchronize());
    Must(out_.Synchronize());
  }

 private:
  const cuda::DeviceScope scope_;
  cuda::Stream in_, out_;
  const std::unique_ptr<MemorySource> memory_;
  std::array<Buffer, 2> host_, device_;
};

class OnLayout final : public BareKernel {
 public:
  OnLayout(KernelPlace& place, LayoutKernel kernel, std::shared_ptr<const Layout> layout,
           Buffer values)
      : place_(place), kernel_(kernel), layout_(std::move(layout)), values_(std::move(values)) {}

  void Run(const float* b, float* c, int64_t k, int threads) override {
    const int64_t rows = layout_->transposed ? layout_->cols : layout_->rows;
    const int64_t cols = layout_->transposed ? layout_->rows : layout_->cols;
    RunArguments arguments;
    arguments.values = values_.data();
    arguments.dense[0] = {b, cols, k, k};
    arguments.result = {c, rows, k, k};
    const DeviceKind device = place_.stream() == nullptr ? DeviceKind::kCpu : DeviceKind::kCuda;
    const BoundRun run(kernel_, {.type = ElementType::kF32, .k = k, .device = device}, layout_,
                       arguments);
    Context context;
    context.threads = threads;
    context.stream = place_.stream();
    if (run.prepares() && k != prepared_for_) {
      auto prepared = run.Prepare(context, place_.memory());
      prepared_ = prepared.ok() ? *std::move(prepared) : nullptr;
      prepared_for_ = k;
    }
    context.prepared = prepared_.get();
    const size_t bytes = context.prepared == nullptr ? run.Workspace(threads) : 0;
    if (workspace_.size() < bytes) workspace_ = place_.memory().Allocate(bytes).value();
    context.workspace = {workspace_.mutable_data(), workspace_.size()};
    if (const absl::Status status = run.Run(context); !status.ok()) std::cerr << status << "\n";
  }

 private:
  KernelPlace& place_;
  const LayoutKernel kernel_;
  const std::shared_ptr<const Layout> layout_;
  const Buffer values_;
  Buffer workspace_;
  std::shared_ptr<void> prepared_;
  int64_t prepared_for_ = -1;  ///< this width
};

}  // namespace

std::unique_ptr<PinnedCopies> PinnedCopies::Make(int gpu, size_t bytes) {
  return std::make_unique<BothWays>(gpu, bytes);
}

std::unique_ptr<Place> Place::Host() { return std::make_unique<HostPlace>(); }
std::unique_ptr<Place> Place::Gpu(int gpu) { return std::make_unique<GpuPlace>(gpu); }

std::unique_ptr<BareKernel> BareKernel::Make(Place& place, const std::string& plan, int64_t rows,
                                             int64_t cols, std::span<const int64_t> row_offsets,
                                             std::span<const int32_t> column_indices,
                                             std::span<const float> values) {
  const size_t slash = plan.find(" / ");
  const std::string pipeline = plan.substr(0, slash);
  const std::optional<LayoutKernel> kernel =
      FindLayoutKernel(Operation::kSpmm, slash == std::string::npos ? "" : plan.substr(slash + 3));
  const auto parsed = ParsePipeline(pipeline);
  if (!kernel || !parsed.ok()) {
    std::cerr << "no kernel and layout for " << plan << "\n";
    return nullptr;
  }
  BuildContext context;
  context.memory = &HeapMemory();
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  context.threads = threads;
  auto built = BuildLayout(*parsed, {rows, cols, row_offsets, column_indices, {}}, context);
  if (!built.ok() || built->skipped) {
    std::cerr << "cannot build " << pipeline << "\n";
    return nullptr;
  }
  auto& there = static_cast<KernelPlace&>(place);
  auto layout = std::make_shared<Layout>(std::move(built->layout));
  Buffer slots =
      HeapMemory().Allocate(static_cast<size_t>(layout->value_slots) * sizeof(float)).value();
  PlaceValues(*layout, ElementType::kF32, values.data(), slots.mutable_data(), threads);
  slots = there.Copy(slots.data(), slots.size());
  for (Array& array : layout->arrays) array.buffer = there.Copy(array.buffer.data(), array.bytes());
  return std::make_unique<OnLayout>(there, *kernel, std::move(layout), std::move(slots));
}

}  // namespace sparsed::bench
