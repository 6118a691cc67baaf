#include "engine/memory/pieces.h"

#include <iterator>
#include <utility>

namespace sparsed::engine {

absl::StatusOr<std::unique_ptr<Pieces>> Pieces::Create(Staging& staging) {
  absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create();
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<Pieces>(new Pieces(staging, *std::move(stream)));
}

Pieces::~Pieces() { Drain().IgnoreError(); }

StagingBlock Pieces::TakeBlock(size_t bytes) {
  if (bytes > staging_.block_bytes()) return StagingBlock();
  StagingBlock block = staging_.TryTake();
  if (block) return block;
  Recycle();
  return staging_.TryTake();
}

absl::Status Pieces::Send(void* to, StagingBlock block, size_t bytes) {
  std::vector<Sent> done;  // freed after the lock
  const MutexLock lock(mutex_);
  done = TakeDoneLocked();
  if (absl::Status s = stream_.Copy(to, block.data(), bytes); !s.ok()) return s;
  absl::StatusOr<cuda::Event> mark = MarkLocked();
  absl::Status marked = mark.status();
  Sent sent{std::nullopt, std::move(block), {}};
  if (mark.ok()) sent.done = *std::move(mark);
  sent_.push_back(std::move(sent));
  return marked;
}

absl::Status Pieces::Await(const cuda::Stream& stream) {
  const MutexLock lock(mutex_);
  absl::StatusOr<cuda::Event> mark = MarkLocked();
  if (!mark.ok()) return mark.status();
  const absl::Status held = mark->Hold(stream);
  events_.push_back(*std::move(mark));
  return held;
}

void Pieces::KeepUntilSent(std::vector<Buffer> buffers) {
  const MutexLock lock(mutex_);
  absl::StatusOr<cuda::Event> mark = MarkLocked();
  Sent sent{std::nullopt, {}, std::move(buffers)};
  if (mark.ok()) sent.done = *std::move(mark);
  sent_.push_back(std::move(sent));
}

void Pieces::Recycle() {
  std::vector<Sent> done;  // freed after the lock
  const MutexLock lock(mutex_);
  done = TakeDoneLocked();
}

absl::Status Pieces::Drain() {
  size_t end = 0;
  {
    const MutexLock lock(mutex_);
    if (sent_.empty()) return absl::OkStatus();
    end = taken_ + sent_.size();
  }
  if (absl::Status s = stream_.Synchronize(); !s.ok()) return s;
  std::vector<Sent> done;  // freed after the lock
  const MutexLock lock(mutex_);
  if (end > taken_) done = TakeFirstLocked(end - taken_);
  return absl::OkStatus();
}

absl::StatusOr<cuda::Event> Pieces::MarkLocked() {
  if (events_.empty()) {
    absl::StatusOr<cuda::Event> event = cuda::Event::Create();
    if (!event.ok()) return event;
    events_.push_back(*std::move(event));
  }
  if (absl::Status s = events_.back().Record(stream_); !s.ok()) return s;
  cuda::Event event = std::move(events_.back());
  events_.pop_back();
  return event;
}

std::vector<Pieces::Sent> Pieces::TakeDoneLocked() {
  size_t done = 0;
  for (size_t i = 0; i < sent_.size(); ++i) {
    if (!sent_[i].done.has_value()) continue;
    const absl::StatusOr<bool> passed = sent_[i].done->Passed();
    // What an event cannot say, one behind it may: they pass in order.
    if (!passed.ok()) continue;
    if (!*passed) break;
    done = i + 1;
  }
  return TakeFirstLocked(done);
}

std::vector<Pieces::Sent> Pieces::TakeFirstLocked(size_t count) {
  const auto end = sent_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<Sent> taken(std::make_move_iterator(sent_.begin()), std::make_move_iterator(end));
  sent_.erase(sent_.begin(), end);
  taken_ += count;
  for (Sent& sent : taken) {
    if (sent.done.has_value()) events_.push_back(*std::exchange(sent.done, std::nullopt));
  }
  return taken;
}

}  // namespace sparsed::engine
