#include "client/attached/gpu_streams.h"

#include <utility>

#include "kernels/cuda/capture.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/exportable_memory.h"

namespace sparsed {
inline namespace client {
namespace {

class EventPoint final : public StreamPoint {
 public:
  EventPoint(int gpu, cuda::Event event) : gpu_(gpu), event_(std::move(event)) {}
  bool Passed() const override {
    const cuda::DeviceScope scope(gpu_);
    const cuda::CaptureScope whatever_others_capture;
    return event_.Passed().value_or(true);  // of a lost GPU nothing comes any more
  }

 private:
  const int gpu_;
  const cuda::Event event_;
};

}  // namespace

absl::StatusOr<StreamId> IdOfStream(int gpu, void* stream) {
  const cuda::DeviceScope scope(gpu);
  const absl::StatusOr<cuda::QueueId> id = cuda::IdOf(cuda::Stream::Of(stream));
  if (!id.ok()) return id.status();
  return StreamId{id->stream, id->thread};
}

absl::Status CheckNotCaptured(int gpu, void* stream) {
  const cuda::DeviceScope scope(gpu);
  const absl::StatusOr<bool> captured = cuda::IsCaptured(cuda::Stream::Of(stream));
  if (!captured.ok()) return captured.status();
  if (!*captured) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a product that runs on the server cannot become part of a graph; attach to the matrix "
      "(sparsed/attached.h) for that");
}

absl::Status QueueCopy(int gpu, void* stream, void* to, size_t to_pitch, const void* from,
                       size_t from_pitch, size_t row_bytes, size_t rows) {
  const cuda::DeviceScope scope(gpu);
  return cuda::Stream::Of(stream).CopyRows(to, to_pitch, from, from_pitch, row_bytes, rows);
}

absl::Status AwaitStream(int gpu, void* stream) {
  const cuda::DeviceScope scope(gpu);
  return cuda::Stream::Of(stream).Synchronize();
}

absl::StatusOr<std::unique_ptr<StreamPoint>> StreamPoint::Of(int gpu, void* stream) {
  const cuda::DeviceScope scope(gpu);
  const cuda::CaptureScope whatever_others_capture;
  absl::StatusOr<cuda::Event> event = cuda::Event::CreateUntimed();
  if (!event.ok()) return event.status();
  if (absl::Status s = event->Record(cuda::Stream::Of(stream)); !s.ok()) return s;
  return std::make_unique<EventPoint>(gpu, *std::move(event));
}

absl::StatusOr<std::unique_ptr<SharedBlock>> MapSharedOnGpu(const Descriptor& file, size_t bytes,
                                                            int gpu) {
  const cuda::DeviceScope scope(gpu);
  const cuda::CaptureScope whatever_others_capture;
  absl::StatusOr<Buffer> memory = cuda::Import(file, bytes, cuda::Access::kReadWrite);
  if (!memory.ok()) return memory.status();
  std::byte* const data = memory->mutable_data();
  return SharedBlock::OfGpu(
      data, bytes, std::shared_ptr<void>(data, [gpu, kept = *std::move(memory)](void*) mutable {
        const cuda::DeviceScope scope(gpu);
        const cuda::CaptureScope whatever_others_capture;
        cuda::SynchronizeDevice().IgnoreError();
        kept = Buffer();
      }));
}

}  // namespace client
}  // namespace sparsed
