#include "kernels/cuda/device.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/capture.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/running_sum.h"

namespace sparsed::cuda {
namespace {

/// Bytes between the beginnings of a copy's rows, on every device of CUDA's (cudaDevAttrMaxPitch).
constexpr size_t kMostPitch = (size_t{1} << 31) - 1;

cudaStream_t AsStream(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t AsEvent(void* handle) { return static_cast<cudaEvent_t>(handle); }

class StreamMemory : public MemorySource {
 public:
  explicit StreamMemory(cudaStream_t stream) : stream_(stream) { cudaGetDevice(&ordinal_); }

  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    if (bytes == 0) return Buffer();
    void* data = nullptr;
    const cudaError_t error = cudaMallocAsync(&data, bytes, stream_);
    if (error != cudaSuccess) {
      return ToStatus(error, fmt::format("allocating {} bytes on the GPU", bytes));
    }
    return Buffer(std::shared_ptr<std::byte>(
                      static_cast<std::byte*>(data),
                      [stream = stream_, ordinal = ordinal_](std::byte* memory) {
                        const DeviceScope scope(ordinal);  // whoever drops it, wherever
                        cudaFreeAsync(memory, stream);
                      }),
                  bytes);
  }

 private:
  cudaStream_t stream_;
  int ordinal_ = 0;
};

class PinnedSource : public MemorySource {
 public:
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    if (bytes == 0) return Buffer();
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
    if (error != cudaSuccess) {
      return ToStatus(error, fmt::format("allocating {} bytes of pinned host memory", bytes));
    }
    return Buffer(std::shared_ptr<std::byte>(static_cast<std::byte*>(data),
                                             [](std::byte* memory) { cudaFreeHost(memory); }),
                  bytes);
  }
};

absl::Status DefaultPool(cudaMemPool_t* pool) {
  int device = 0;
  absl::Status status = ToStatus(cudaGetDevice(&device), "finding the GPU");
  if (!status.ok()) return status;
  return ToStatus(cudaDeviceGetDefaultMemPool(pool, device), "finding the pool");
}

/// What an error of the driver's means to whoever installed it.
std::string Words(cudaError_t error) {
  int driver = 0;
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
      driver > 0) {
    return fmt::format("it is for CUDA {}.{} and this build needs {}.{}: install a newer driver",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
  }
  return cudaGetErrorString(error);
}

absl::Status CountDevices(int* count) {
  const Traces traces = FindTraces();
  if (absl::Status status = CheckTraces(traces); !status.ok()) return status;
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  return DriverRefuses(traces, Words(error));
}

std::string UuidOf(const cudaDeviceProp& properties) {
  return std::string(properties.uuid.bytes, sizeof(properties.uuid.bytes));
}

/// Of what a stream that is captured into a graph, or another one meanwhile, does not let happen.
bool IsOfCapture(cudaError_t error) {
  return error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
}

/// What every later call answers, too, or success.
cudaError_t ErrorThatStays() {
  const CaptureScope whatever_others_capture;
  // To query it while a blocking stream is captured would spoil that; to ask this does not.
  cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(cudaStreamLegacy, &captured);
  if (error == cudaSuccess) error = cudaStreamQuery(cudaStreamLegacy);
  cudaGetLastError();
  return error == cudaErrorNotReady || IsOfCapture(error) ? cudaSuccess : error;
}

absl::Status CheckOrdinal(int ordinal) {
  int count = 0;
  if (absl::Status status = CountDevices(&count); !status.ok()) return status;
  if (ordinal >= 0 && ordinal < count) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("there is no GPU cuda:{}: this machine has {}", ordinal, count));
}

}  // namespace

absl::Status ToStatus(cudaError_t error, std::string_view doing) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // or the next launch would seem to have failed
  const std::string message = fmt::format("{}: {}", doing, cudaGetErrorString(error));
  if (IsOfCapture(error)) return absl::FailedPreconditionError(message);
  if (ErrorThatStays() != cudaSuccess) return absl::UnavailableError(message);
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::Status Settled(void* stream, absl::Status status) {
  if (!status.ok()) cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
  return status;
}

int Multiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 1;
  }
  return count;
}

DeviceScope::DeviceScope(int ordinal) {
  int present = 0;
  if (cudaGetDevice(&present) != cudaSuccess || present == ordinal) return;
  // What fails here fails again in the first call on it, which tells.
  if (cudaSetDevice(ordinal) == cudaSuccess) before_ = present;
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) cudaSetDevice(before_);
}

absl::StatusOr<std::string> DeviceUuid(int ordinal) {
  if (absl::Status status = CheckOrdinal(ordinal); !status.ok()) return status;
  cudaDeviceProp properties;
  const absl::Status status =
      ToStatus(cudaGetDeviceProperties(&properties, ordinal), "describing the GPU");
  if (!status.ok()) return status;
  return UuidOf(properties);
}

absl::StatusOr<DeviceInfo> ProbeDevice(int ordinal) {
  absl::Status status = CheckOrdinal(ordinal);
  if (!status.ok()) return status;
  const DeviceScope scope(ordinal);
  cudaDeviceProp properties;
  status = ToStatus(cudaGetDeviceProperties(&properties, ordinal), "describing the GPU");
  if (!status.ok()) return status;
  if (CheckKernelImage() != cudaSuccess) {
    cudaGetLastError();
    return absl::UnavailableError(fmt::format(
        "this build has no kernels for {} (compute capability {}.{}), but for {}: build with "
        "SPARSED_CUDA_ARCHITECTURES={}{}",
        properties.name, properties.major, properties.minor, ThisBuild().architectures,
        properties.major, properties.minor));
  }
  DeviceInfo info;
  status = ToStatus(cudaMemGetInfo(&info.free_bytes, &info.total_bytes), "reading its memory");
  if (!status.ok()) return status;
  int kilohertz = 0;
  status = ToStatus(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, ordinal),
                    "reading its clock");
  if (!status.ok()) return status;
  info.clock_hz = 1e3 * kilohertz;
  int driver = 0;
  status = ToStatus(cudaDriverGetVersion(&driver), "reading the driver's version");
  if (!status.ok()) return status;
  info.driver = fmt::format("{}.{}", driver / 1000, driver % 1000 / 10);
  info.name = properties.name;
  info.uuid = UuidOf(properties);
  info.multiprocessors = properties.multiProcessorCount;
  info.l2_bytes = static_cast<size_t>(properties.l2CacheSize);
  info.shared_bytes_per_block = properties.sharedMemPerBlockOptin;
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  // Freed memory stays in the pool, or every request would ask the driver again.
  cudaMemPool_t pool = nullptr;
  uint64_t keep = UINT64_MAX;
  status = ToStatus(cudaDeviceGetDefaultMemPool(&pool, ordinal), "opening its memory pool");
  if (status.ok()) {
    status = ToStatus(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
                      "setting up its memory pool");
  }
  if (!status.ok()) return status;
  return info;
}

absl::StatusOr<PoolState> ReadPool() {
  cudaMemPool_t pool = nullptr;
  absl::Status status = DefaultPool(&pool);
  uint64_t reserved = 0, used = 0;
  if (status.ok()) {
    status = ToStatus(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved),
                      "reading the pool");
  }
  if (status.ok()) {
    status = ToStatus(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used),
                      "reading the pool");
  }
  if (!status.ok()) return status;
  return PoolState{reserved, used};
}

absl::StatusOr<size_t> FreeBytes() {
  size_t free = 0, total = 0;
  const absl::Status status = ToStatus(cudaMemGetInfo(&free, &total), "reading the GPU's memory");
  if (!status.ok()) return status;
  return free;
}

absl::Status TrimPool(size_t keep) {
  cudaMemPool_t pool = nullptr;
  const absl::Status status = DefaultPool(&pool);
  if (!status.ok()) return status;
  return ToStatus(cudaMemPoolTrimTo(pool, keep), "trimming the pool");
}

absl::Status AllowPeer(int peer) {
  int ordinal = 0, possible = 0;
  absl::Status status = ToStatus(cudaGetDevice(&ordinal), "asking for the thread's GPU");
  if (status.ok()) {
    status = ToStatus(cudaDeviceCanAccessPeer(&possible, peer, ordinal), "asking for peer access");
  }
  if (!status.ok()) return status;
  if (possible == 0) {
    return absl::UnimplementedError(
        fmt::format("GPU {} cannot read the memory of GPU {}", peer, ordinal));
  }
  cudaMemPool_t pool = nullptr;
  if (status = DefaultPool(&pool); !status.ok()) return status;
  cudaMemAccessDesc access = {};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = peer;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  return ToStatus(cudaMemPoolSetAccess(pool, &access, 1), "allowing peer access");
}

absl::StatusOr<Stream> Stream::Create(StreamPriority priority) {
  // The highest is the least number; where there are but two, the middle one is low.
  int low = 0, high = 0;
  absl::Status status =
      ToStatus(cudaDeviceGetStreamPriorityRange(&low, &high), "asking for priorities");
  if (!status.ok()) return status;
  const int number = priority == StreamPriority::kLow    ? low
                     : priority == StreamPriority::kHigh ? high
                                                         : low + (high - low) / 2;
  cudaStream_t stream = nullptr;
  status = ToStatus(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, number),
                    "creating a stream");
  if (!status.ok()) return status;
  return Stream(stream);
}

Stream::~Stream() {
  if (handle_ == nullptr || !owned_) return;
  cudaStreamSynchronize(AsStream(handle_));
  cudaStreamDestroy(AsStream(handle_));
}

absl::Status Stream::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return ToStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, AsStream(handle_)),
                  "copying");
}

absl::Status Stream::Fill(void* to, unsigned char byte, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return ToStatus(cudaMemsetAsync(to, byte, bytes, AsStream(handle_)), "filling");
}

absl::Status Stream::FillRows(void* to, size_t pitch, unsigned char byte, size_t row_bytes,
                              size_t rows) {
  if (row_bytes == 0 || rows == 0) return absl::OkStatus();
  return ToStatus(cudaMemset2DAsync(to, pitch, byte, row_bytes, rows, AsStream(handle_)),
                  "filling rows");
}

absl::Status Stream::CopyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t row_bytes, size_t rows) {
  if (row_bytes == 0 || rows == 0) return absl::OkStatus();
  // Rows that lie further apart than a copy takes are few: memory has no room for many.
  if (std::max(to_pitch, from_pitch) > kMostPitch) {
    absl::Status status;
    for (size_t row = 0; row < rows && status.ok(); ++row) {
      status = Copy(static_cast<std::byte*>(to) + row * to_pitch,
                    static_cast<const std::byte*>(from) + row * from_pitch, row_bytes);
    }
    return status;
  }
  return ToStatus(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, row_bytes, rows,
                                    cudaMemcpyDefault, AsStream(handle_)),
                  "copying rows");
}

absl::Status Stream::Synchronize() {
  return ToStatus(cudaStreamSynchronize(AsStream(handle_)), "waiting for the GPU");
}

absl::Status PlaceValues(Stream& stream, const Layout& layout, ElementType type,
                         const void* csr_values, void* slots) {
  const Array* const source = layout.Find(kValueSource);
  if (source == nullptr) {
    return stream.Copy(slots, csr_values, static_cast<size_t>(layout.value_slots) * SizeOf(type));
  }
  if (layout.value_slots == 0) return absl::OkStatus();
  return ToStatus(GatherElements(AsStream(stream.handle()), type, *source, csr_values, slots,
                                 layout.value_slots),
                  "placing values in a layout");
}

absl::Status GatherElements(Stream& stream, const Array& order, ElementType type, const void* from,
                            void* to) {
  if (order.length == 0) return absl::OkStatus();
  return ToStatus(GatherElements(AsStream(stream.handle()), type, order, from, to, order.length),
                  "putting values in order");
}

absl::Status ScatterElements(Stream& stream, std::span<const int64_t> order, ElementType type,
                             const void* from, void* to) {
  if (order.empty()) return absl::OkStatus();
  return ToStatus(ScatterElements(AsStream(stream.handle()), type, order.data(), from, to,
                                  static_cast<int64_t>(order.size())),
                  "putting values in order");
}

absl::Status GatherRows(Stream& stream, std::span<const int64_t> order, ElementType type,
                        const ConstDense& from, const Dense& to) {
  if (order.empty() || to.cols == 0) return absl::OkStatus();
  return ToStatus(GatherRows(AsStream(stream.handle()), order, type, from, to),
                  "putting rows in order");
}

absl::Status ScatterRows(Stream& stream, std::span<const int64_t> order, ElementType type,
                         const ConstDense& from, const Dense& to) {
  if (order.empty() || to.cols == 0) return absl::OkStatus();
  return ToStatus(ScatterRows(AsStream(stream.handle()), order, type, from, to),
                  "putting rows in order");
}

absl::Status WeightedSum(Stream& stream, std::span<const WeightedTerm> terms, ElementType type,
                         const Dense& to) {
  if (to.rows == 0 || to.cols == 0) return absl::OkStatus();
  return ToStatus(WeightedSum(AsStream(stream.handle()), terms, type, to), "a weighted sum");
}

absl::Status RunningSum(const Context& context, const int64_t* from, int64_t count, int64_t* to) {
  size_t bytes = context.workspace.size();
  return ToStatus(
      RunningSum(AsStream(context.stream), from, count, to, context.workspace.data(), &bytes),
      "adding up");
}

absl::StatusOr<size_t> RunningSumWorkspace(int64_t count) {
  size_t bytes = 0;
  const absl::Status status =
      ToStatus(RunningSum(nullptr, nullptr, count, nullptr, nullptr, &bytes), "adding up");
  if (!status.ok()) return status;
  return std::max<size_t>(bytes, 1);
}

absl::StatusOr<Event> Event::CreateUntimed() {
  cudaEvent_t event = nullptr;
  const absl::Status status =
      ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  if (!status.ok()) return status;
  return Event(event);
}

absl::StatusOr<Event> Event::Create() {
  cudaEvent_t event = nullptr;
  const absl::Status status = ToStatus(cudaEventCreate(&event), "creating an event");
  if (!status.ok()) return status;
  return Event(event);
}

Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(AsEvent(handle_));
}

absl::Status Event::Record(const Stream& stream) {
  return ToStatus(cudaEventRecord(AsEvent(handle_), AsStream(stream.handle())),
                  "recording an event");
}

absl::Status Event::Hold(const Stream& stream) const {
  return ToStatus(cudaStreamWaitEvent(AsStream(stream.handle()), AsEvent(handle_)),
                  "waiting for an event");
}

absl::Status Event::Synchronize() const {
  return ToStatus(cudaEventSynchronize(AsEvent(handle_)), "waiting for an event");
}

absl::StatusOr<bool> Event::Passed() const {
  const cudaError_t error = cudaEventQuery(AsEvent(handle_));
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // or the next launch would seem to have failed
    return false;
  }
  const absl::Status status = ToStatus(error, "asking an event");
  if (!status.ok()) return status;
  return true;
}

absl::StatusOr<float> Event::MillisecondsSince(const Event& begin) const {
  float milliseconds = 0;
  const absl::Status status =
      ToStatus(cudaEventElapsedTime(&milliseconds, AsEvent(begin.handle_), AsEvent(handle_)),
               "reading an event");
  if (!status.ok()) return status;
  return milliseconds;
}

std::unique_ptr<MemorySource> DeviceMemory(const Stream& stream) {
  return std::make_unique<StreamMemory>(AsStream(stream.handle()));
}

MemorySource& PinnedMemory() {
  static PinnedSource source;
  return source;
}

absl::StatusOr<Buffer> PinHost(Buffer memory) {
  std::byte* const data = memory.mutable_data();
  const size_t bytes = memory.size();
  const absl::Status pinned = ToStatus(cudaHostRegister(data, bytes, cudaHostRegisterPortable),
                                       fmt::format("pinning {} bytes of host memory", bytes));
  if (!pinned.ok()) return pinned;
  int ordinal = 0;
  cudaGetDevice(&ordinal);
  return Buffer(std::shared_ptr<std::byte>(data,
                                           [ordinal, kept = std::move(memory)](std::byte* at) {
                                             // Whoever drops it, wherever: no other GPU is opened
                                             // for that.
                                             const DeviceScope scope(ordinal);
                                             cudaHostUnregister(at);
                                           }),
                bytes);
}

bool IsPinned(const void* host) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) {
    cudaGetLastError();  // nobody else is to be told
    return false;
  }
  return attributes.type == cudaMemoryTypeHost;
}

}  // namespace sparsed::cuda
