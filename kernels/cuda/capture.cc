#include "kernels/cuda/capture.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <utility>

#include "kernels/cuda/check.h"

namespace sparsed::cuda {
namespace {

cudaStream_t AsStream(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

}  // namespace

CaptureScope::CaptureScope() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  before_ = mode;
}

CaptureScope::~CaptureScope() {
  auto mode = static_cast<cudaStreamCaptureMode>(before_);
  cudaThreadExchangeStreamCaptureMode(&mode);
}

absl::StatusOr<QueueId> IdOf(const Stream& stream) {
  unsigned long long id = 0;  // NOLINT(google-runtime-int): CUDA's
  const absl::Status status = ToStatus(cudaStreamGetId(AsStream(stream), &id), "asking a stream");
  if (!status.ok()) return status;
  QueueId queue = {.stream = id};
  if (AsStream(stream) == cudaStreamPerThread) {
    static std::atomic<uint64_t> threads = 0;
    thread_local const uint64_t own = ++threads;
    queue.thread = own;
  }
  return queue;
}

absl::StatusOr<bool> IsCaptured(const Stream& stream) {
  cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
  const absl::Status status =
      ToStatus(cudaStreamIsCapturing(AsStream(stream), &captured), "asking a stream");
  if (!status.ok()) return status;
  return captured != cudaStreamCaptureStatusNone;
}

absl::Status KeepWithGraph(const Stream& stream, std::shared_ptr<const void> kept) {
  cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  absl::Status status = ToStatus(
      cudaStreamGetCaptureInfo(AsStream(stream), &captured, nullptr, &graph), "asking a stream");
  if (!status.ok()) return status;
  if (captured != cudaStreamCaptureStatusActive || graph == nullptr) {
    return absl::FailedPreconditionError("the stream is not captured");
  }
  using Kept = std::shared_ptr<const void>;
  auto* const holder = new Kept(std::move(kept));
  cudaUserObject_t object = nullptr;
  status = ToStatus(cudaUserObjectCreate(
                        &object, holder, [](void* gone) { delete static_cast<Kept*>(gone); },
                        /*initialRefcount=*/1, cudaUserObjectNoDestructorSync),
                    "keeping what a graph uses");
  if (!status.ok()) {
    delete holder;
    return status;
  }
  status = ToStatus(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove),
                    "keeping what a graph uses");
  if (!status.ok()) cudaUserObjectRelease(object, 1);
  return status;
}

}  // namespace sparsed::cuda
