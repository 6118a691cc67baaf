// Built in place of this module where there is no CUDA compiler: no kernels, no device.
#include "kernels/cuda/capture.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/exportable_memory.h"
#include "kernels/cuda/ipc_memory.h"
#include "kernels/cuda/probes.h"
#include "kernels/cuda/stream_words.h"

namespace sparsed::cuda {
namespace {

absl::Status NotBuilt() { return absl::UnavailableError("this build has no CUDA"); }

class NoMemory : public MemorySource {
 public:
  absl::StatusOr<Buffer> Allocate(size_t /*bytes*/) override { return NotBuilt(); }
};

}  // namespace

std::span<const SpmmKernel> SpmmKernels() { return {}; }
std::span<const SddmmKernel> SddmmKernels() { return {}; }
std::span<const SpgemmKernel> SpgemmKernels() { return {}; }

DeviceScope::DeviceScope(int /*ordinal*/) {}
DeviceScope::~DeviceScope() = default;

absl::StatusOr<DeviceInfo> ProbeDevice(int /*ordinal*/) {
  const absl::Status status = CheckTraces(FindTraces());
  return status.ok() ? NotBuilt() : status;
}

absl::StatusOr<std::string> DeviceUuid(int /*ordinal*/) {
  const absl::Status status = CheckTraces(FindTraces());
  return status.ok() ? NotBuilt() : status;
}

absl::StatusOr<PoolState> ReadPool() { return NotBuilt(); }
absl::StatusOr<size_t> FreeBytes() { return NotBuilt(); }
absl::Status TrimPool(size_t) { return NotBuilt(); }
absl::Status AllowPeer(int) { return NotBuilt(); }

absl::StatusOr<Stream> Stream::Create(StreamPriority /*priority*/) { return NotBuilt(); }
Stream::~Stream() = default;
absl::Status Stream::Copy(void*, const void*, size_t) { return NotBuilt(); }
absl::Status Stream::Fill(void*, unsigned char, size_t) { return NotBuilt(); }
absl::Status Stream::FillRows(void*, size_t, unsigned char, size_t, size_t) { return NotBuilt(); }
absl::Status Stream::CopyRows(void*, size_t, const void*, size_t, size_t, size_t) {
  return NotBuilt();
}
absl::Status Stream::Synchronize() { return NotBuilt(); }

absl::StatusOr<double> QueueProbe(Stream&, Probe, std::span<std::byte>, int) { return NotBuilt(); }

absl::Status PlaceValues(Stream&, const Layout&, ElementType, const void*, void*) {
  return NotBuilt();
}

absl::Status GatherElements(Stream&, const Array&, ElementType, const void*, void*) {
  return NotBuilt();
}
absl::Status ScatterElements(Stream&, std::span<const int64_t>, ElementType, const void*, void*) {
  return NotBuilt();
}

absl::Status WeightedSum(Stream&, std::span<const WeightedTerm>, ElementType, const Dense&) {
  return NotBuilt();
}

absl::Status GatherRows(Stream&, std::span<const int64_t>, ElementType, const ConstDense&,
                        const Dense&) {
  return NotBuilt();
}
absl::Status ScatterRows(Stream&, std::span<const int64_t>, ElementType, const ConstDense&,
                         const Dense&) {
  return NotBuilt();
}

absl::Status RowSoftmax(Stream&, std::span<const int64_t>, ElementType, double, const ConstDense&,
                        const Dense&) {
  return NotBuilt();
}
absl::Status RowSoftmaxGradient(Stream&, std::span<const int64_t>, ElementType, double,
                                const ConstDense&, const ConstDense&, const Dense&) {
  return NotBuilt();
}

absl::Status ScaleNonzeros(Stream&, const NonzeroScaling&, ElementType) { return NotBuilt(); }
absl::Status TotalNonzeros(Stream&, const NonzeroTotals&, ElementType) { return NotBuilt(); }

absl::Status ComputeRowProducts(const Context&, const RowProducts&, ElementType) {
  return NotBuilt();
}
size_t RowProductsWorkspace(const RowProducts&, ElementType) { return 0; }
absl::Status ComputeHeadDots(const Context&, const HeadDots&, ElementType) { return NotBuilt(); }

absl::Status ComputeEdgeAttention(const Context&, const EdgeAttention&, ElementType) {
  return NotBuilt();
}
size_t EdgeAttentionWorkspace(const EdgeAttention&, ElementType) { return 0; }
absl::Status ComputeEdgeAttentionGradient(const Context&, const EdgeAttentionGradient&,
                                          ElementType) {
  return NotBuilt();
}
size_t EdgeAttentionWorkspace(const EdgeAttentionGradient&, ElementType) { return 0; }

absl::StatusOr<size_t> RunningSumWorkspace(int64_t) { return NotBuilt(); }
absl::Status RunningSum(const Context&, const int64_t*, int64_t, int64_t*) { return NotBuilt(); }

absl::StatusOr<Event> Event::Create() { return NotBuilt(); }
absl::StatusOr<Event> Event::CreateUntimed() { return NotBuilt(); }
Event::~Event() = default;
absl::Status Event::Record(const Stream&) { return NotBuilt(); }
absl::Status Event::Hold(const Stream&) const { return NotBuilt(); }
absl::Status Event::Synchronize() const { return NotBuilt(); }
absl::StatusOr<bool> Event::Passed() const { return NotBuilt(); }
absl::StatusOr<float> Event::MillisecondsSince(const Event&) const { return NotBuilt(); }

std::unique_ptr<MemorySource> DeviceMemory(const Stream&) { return std::make_unique<NoMemory>(); }

MemorySource& PinnedMemory() {
  static NoMemory source;
  return source;
}

size_t ExportGranularity() { return 0; }
absl::StatusOr<Buffer> AllocateExportable(size_t /*bytes*/) { return NotBuilt(); }
absl::StatusOr<Descriptor> Export(const Buffer& /*memory*/) { return NotBuilt(); }
absl::StatusOr<Buffer> Import(const Descriptor& /*exported*/, size_t /*bytes*/, Access /*access*/) {
  return NotBuilt();
}
absl::Status SynchronizeDevice() { return NotBuilt(); }

bool IsDeviceMemory(const void* /*data*/) { return false; }
std::optional<Allocation> AllocationOf(const void* /*data*/) { return std::nullopt; }
absl::StatusOr<IpcHandle> HandleOf(const Allocation& /*allocation*/) { return NotBuilt(); }
absl::StatusOr<Buffer> OpenIpcMemory(const IpcHandle& /*handle*/) { return NotBuilt(); }

absl::Status QueueWrite(const Stream& /*stream*/, uint32_t* /*word*/, uint32_t /*value*/) {
  return NotBuilt();
}
absl::Status QueueWait(const Stream& /*stream*/, const uint32_t* /*word*/, uint32_t /*value*/) {
  return NotBuilt();
}

CaptureScope::CaptureScope() {}
CaptureScope::~CaptureScope() = default;
absl::StatusOr<QueueId> IdOf(const Stream& /*stream*/) { return NotBuilt(); }
absl::StatusOr<bool> IsCaptured(const Stream& /*stream*/) { return NotBuilt(); }
absl::Status KeepWithGraph(const Stream& /*stream*/, std::shared_ptr<const void> /*kept*/) {
  return NotBuilt();
}

absl::StatusOr<Buffer> PinHost(Buffer /*memory*/) { return NotBuilt(); }
bool IsPinned(const void* /*host*/) { return false; }

}  // namespace sparsed::cuda
