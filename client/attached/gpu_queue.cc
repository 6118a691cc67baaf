#include "client/attached/gpu_queue.h"

#include <chrono>
#include <thread>
#include <utility>

#include "kernels/cuda/capture.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/exportable_memory.h"
#include "kernels/cuda/stream_words.h"

namespace sparsed {
inline namespace client {
namespace {

/// Words of the page.
constexpr size_t kBegin = 0, kEnd = 1, kFailed = 2;
constexpr size_t kPageBytes = 4096;
/// Requests that have not ended: fewer than a server takes.
constexpr uint32_t kMostRequests = 96;
/// Between two looks at how many there are.
constexpr std::chrono::microseconds kNap{20};

}  // namespace

/// Pinned, for as long as it is the queue's.
class GpuQueue::Page {
 public:
  static absl::StatusOr<std::unique_ptr<Page>> Make() {
    absl::StatusOr<std::shared_ptr<SharedBlock>> block = SharedBlock::Make(kPageBytes);
    if (!block.ok()) return block.status();
    absl::StatusOr<Buffer> pinned = cuda::PinHost(Buffer(
        std::shared_ptr<std::byte>((*block)->data(), [kept = *block](std::byte*) {}), kPageBytes));
    if (!pinned.ok()) return pinned.status();
    return std::unique_ptr<Page>(new Page(*std::move(block), *std::move(pinned)));
  }
  int file() const { return block_->file(); }
  uint32_t* at(size_t word) { return reinterpret_cast<uint32_t*>(pinned_.mutable_data()) + word; }
  uint32_t Read(size_t word) { return std::atomic_ref(*at(word)).load(std::memory_order_acquire); }
  void Write(size_t word, uint32_t value) {
    std::atomic_ref(*at(word)).store(value, std::memory_order_release);
  }

 private:
  Page(std::shared_ptr<SharedBlock> block, Buffer pinned)
      : block_(std::move(block)), pinned_(std::move(pinned)) {}
  const std::shared_ptr<SharedBlock> block_;
  Buffer pinned_;
};

GpuQueue::GpuQueue(int gpu, std::shared_ptr<LocalSocket> socket, std::unique_ptr<Page> page,
                   std::string name)
    : gpu_(gpu), socket_(std::move(socket)), page_(std::move(page)), name_(std::move(name)) {}

absl::StatusOr<std::shared_ptr<GpuQueue>> GpuQueue::Open(int gpu, const std::string& uuid,
                                                         std::shared_ptr<LocalSocket> socket) {
  const cuda::DeviceScope scope(gpu);
  const cuda::CaptureScope whatever_others_capture;
  absl::StatusOr<std::unique_ptr<Page>> page = Page::Make();
  if (!page.ok()) return page.status();
  v1::LocalRequest request;
  request.mutable_open_queue()->set_gpu(uuid);
  const absl::StatusOr<LocalSocket::Reply> reply = socket->Ask(std::move(request), (*page)->file());
  if (!reply.ok()) return reply.status();
  return std::shared_ptr<GpuQueue>(
      new GpuQueue(gpu, std::move(socket), *std::move(page), reply->message.queue()));
}

GpuQueue::~GpuQueue() {
  // What has not begun when the server hears that it is closed never does.
  while (!idle() && alive()) std::this_thread::sleep_for(kNap);
  page_->Write(kEnd, taken_);
  {
    // The stream may not have come to its last wait, which reads the page.
    const cuda::DeviceScope scope(gpu_);
    const cuda::CaptureScope whatever_others_capture;
    cuda::SynchronizeDevice().IgnoreError();
  }
  v1::LocalRequest request;
  request.mutable_close_queue()->set_queue(name_);
  socket_->Send(std::move(request));
}

absl::Status GpuQueue::status() {
  Look();
  if (page_->Read(kFailed) == 0 && !cut_off_) return absl::OkStatus();
  return absl::AbortedError(
      "the server did not bring the products that were queued in this stream to their end: it has "
      "gone, has lost the GPU, or the stream came too late; their results are anything");
}

absl::StatusOr<std::string> GpuQueue::Begin(void* stream) {
  while (Left() > static_cast<int32_t>(kMostRequests) && status().ok()) {
    std::this_thread::sleep_for(kNap);
  }
  if (absl::Status s = status(); !s.ok()) return s;
  const uint32_t number = given_ + 1;
  if (absl::Status s = cuda::QueueWrite(cuda::Stream::Of(stream), page_->at(kBegin), number);
      !s.ok()) {
    return s;
  }
  given_ = number;
  std::string place = name_;
  for (size_t i = 0; i < sizeof(number); ++i) place += static_cast<char>(number >> (8 * i));
  return place;
}

absl::Status GpuQueue::End(void* stream) {
  taken_ = given_.load();
  return cuda::QueueWait(cuda::Stream::Of(stream), page_->at(kEnd), taken_);
}

void GpuQueue::Look() {
  if (alive()) return;
  if (!idle()) cut_off_ = true;
  // Again and again: a server that lives, but not its connection, may write what it had begun.
  if (cut_off_) page_->Write(kEnd, taken_);
}

bool GpuQueue::idle() const { return Left() <= 0; }

// Less than none: the server ran one whose reply was lost.
int32_t GpuQueue::Left() const { return static_cast<int32_t>(taken_ - page_->Read(kEnd)); }

}  // namespace client
}  // namespace sparsed
