#include "engine/execution/device_queues.h"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/memory/device.h"
#include "kernels/cuda/stream_words.h"

namespace sparsed::engine {
namespace {

using Clock = DeviceQueue::Clock;

/// What was queued is looked at so often, for what it keeps to be let go.
constexpr std::chrono::milliseconds kLook{1};
/// A caller's stream is looked at all the time at first, then after naps of this part of the time
/// that it has been waited for: that is how late it is seen.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kNapPart = 32;
constexpr std::chrono::microseconds kLeastNap{5}, kLongestNap{1000};

/// The words go round.
bool Reached(uint32_t word, uint32_t number) { return static_cast<int32_t>(word - number) >= 0; }

}  // namespace

/// Of one queue. Where more than one lock is held, the keeper's is the last.
class DeviceQueue::State {
 public:
  State(Device& device, Backend& backend, Buffer page, DeviceSlot own, std::string_view tenant)
      : device_(device),
        backend_(backend),
        tenant_(tenant),
        page_(std::move(page)),
        own_(std::move(own)),
        slot_{.backend = &backend, .threads = 1, .gpu = &own_, .workspace = {}, .queues = true} {}

  ~State() {
    const cuda::DeviceScope scope(device_.ordinal());
    Drain();
    own_.prepared.Clear();
    slot_.workspace = Buffer();
    // Streams and events go here, with their GPU.
    std::optional<DeviceSlot> gone(std::move(own_));
    events_.clear();
  }

  DeviceId device() const { return backend_.id(); }
  const std::string& tenant() const { return tenant_; }

  absl::Status Reserve(size_t bytes) {
    const MutexLock lock(mutex_);
    if (bytes <= slot_.workspace.size()) return absl::OkStatus();
    const cuda::DeviceScope scope(device_.ordinal());
    MemorySource& memory = backend_.memory(MemoryUse::kRequests);
    absl::StatusOr<Buffer> larger = memory.Allocate(bytes);
    // Those that wait were promised what there is.
    if (!larger.ok() && !waiting_.empty()) return larger.status();
    if (absl::Status s = backend_.Settle(slot_); !s.ok()) return s;
    if (!larger.ok()) return Grow(slot_.workspace, bytes, memory);
    slot_.workspace = *std::move(larger);
    return absl::OkStatus();
  }

  /// `*waits`: for the caller's stream.
  absl::Status Take(Request request, bool* waits) {
    Gone gone;
    const MutexLock lock(mutex_);
    if (!broken_.ok()) return broken_;
    if (waiting_.size() + running_.size() >= kMostRequests) RetireLocked(gone);
    // A kernel's time, as if it were run by whoever takes the request.
    if (waiting_.size() + running_.size() >= kMostRequests && !running_.empty()) {
      const absl::Status passed = running_.front().events.end.Synchronize();
      if (passed.ok()) EndFirstLocked(gone);
    }
    if (waiting_.size() + running_.size() >= kMostRequests) {
      return absl::ResourceExhaustedError(fmt::format(
          "{} requests of this queue have not ended, which is the most", kMostRequests));
    }
    if (request.number == last_ || !Reached(request.number, last_)) {
      return absl::InvalidArgumentError(fmt::format(
          "the queue's request {} does not come after its last one, {}", request.number, last_));
    }
    last_ = request.number;
    waiting_.push_back(std::move(request));
    BeginLocked(gone);
    *waits = !waiting_.empty();
    return absl::OkStatus();
  }

  void Close() {
    Gone gone;
    const MutexLock lock(mutex_);
    closed_ = true;
    if (broken_.ok()) broken_ = absl::AbortedError("the queue was closed");
    for (Request& request : waiting_) gone.push_back(std::move(request));
    waiting_.clear();
  }

  /// What a look at it finds.
  struct Seen {
    bool waits = false;  ///< for the caller's stream
    bool runs = false;
    bool moved = false;  ///< something began or ended
    bool over = false;   ///< it is closed, and nothing runs any more
  };
  Seen Look(Clock::time_point now) {
    Gone gone;
    const MutexLock lock(mutex_);
    const size_t before = waiting_.size();
    RetireLocked(gone);
    BeginLocked(gone);
    Seen seen;
    seen.moved = !gone.empty() || waiting_.size() != before;
    if (!waiting_.empty() && now >= waiting_.front().until) {
      BreakLocked(absl::AbortedError(fmt::format(
                      "the queue's request {} waited for the caller's stream for too long",
                      waiting_.front().number)),
                  gone);
    }
    seen.waits = !waiting_.empty();
    seen.runs = !running_.empty();
    seen.over = closed_ && !seen.runs;
    return seen;
  }

  /// Waits for what has begun.
  void Drain() {
    Gone gone;
    const cuda::DeviceScope scope(device_.ordinal());
    const MutexLock lock(mutex_);
    backend_.Settle(slot_).IgnoreError();
    for (Running& running : running_) gone.push_back(std::move(running.request));
    running_.clear();
  }

 private:
  /// Let go of after the locks: it may be the last of gigabytes.
  using Gone = std::vector<Request>;
  struct Events {
    cuda::Event begin, end;
  };
  struct Running {
    Request request;
    Events events;
  };

  std::atomic_ref<uint32_t> word(size_t index) {
    return std::atomic_ref(reinterpret_cast<uint32_t*>(page_.mutable_data())[index]);
  }

  absl::StatusOr<Events> TakeEventsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!events_.empty()) {
      Events events = std::move(events_.back());
      events_.pop_back();
      return events;
    }
    absl::StatusOr<cuda::Event> begin = cuda::Event::Create(), end = cuda::Event::Create();
    if (!begin.ok()) return begin.status();
    if (!end.ok()) return end.status();
    return Events{*std::move(begin), *std::move(end)};
  }

  void BeginLocked(Gone& gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!waiting_.empty() && Reached(word(DeviceQueues::kBegin).load(std::memory_order_acquire),
                                        waiting_.front().number)) {
      const cuda::DeviceScope scope(device_.ordinal());
      Request request = std::move(waiting_.front());
      waiting_.pop_front();
      absl::StatusOr<Events> events = TakeEventsLocked();
      absl::Status status = events.status();
      if (status.ok()) status = events->begin.Record(own_.stream);
      if (status.ok()) status = request.run(slot_);
      if (status.ok()) status = events->end.Record(own_.stream);
      if (status.ok()) {
        status = cuda::QueueWrite(
            own_.stream, &reinterpret_cast<uint32_t*>(page_.mutable_data())[DeviceQueues::kEnd],
            request.number);
      }
      if (!status.ok()) {
        gone.push_back(std::move(request));
        return BreakLocked(backend_.Checked(std::move(status)), gone);
      }
      running_.push_back({std::move(request), *std::move(events)});
    }
  }

  void RetireLocked(Gone& gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const cuda::DeviceScope scope(device_.ordinal());
    while (!running_.empty()) {
      Running& first = running_.front();
      const absl::StatusOr<bool> passed = first.events.end.Passed();
      if (!passed.ok()) return BreakLocked(backend_.Checked(passed.status()), gone);
      if (!*passed) return;
      EndFirstLocked(gone);
    }
  }

  /// The stream has passed it.
  void EndFirstLocked(Gone& gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Running& first = running_.front();
    const absl::StatusOr<float> milliseconds =
        first.events.end.MillisecondsSince(first.events.begin);
    if (milliseconds.ok()) first.request.ended(*milliseconds);
    events_.push_back(std::move(first.events));
    gone.push_back(std::move(first.request));
    running_.pop_front();
  }

  /// The caller's stream goes on, and the caller hears of it.
  void BreakLocked(absl::Status why, Gone& gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const cuda::DeviceScope scope(device_.ordinal());
    if (broken_.ok()) {
      broken_ = absl::IsUnavailable(why)
                    ? why
                    : absl::AbortedError(
                          fmt::format("the queue is broken: {}", std::string(why.message())));
    }
    // What runs uses what would go, and writes lower numbers.
    backend_.Settle(slot_).IgnoreError();
    for (Running& running : running_) gone.push_back(std::move(running.request));
    running_.clear();
    for (Request& request : waiting_) gone.push_back(std::move(request));
    waiting_.clear();
    word(DeviceQueues::kFailed).store(last_, std::memory_order_release);
    word(DeviceQueues::kEnd).store(last_, std::memory_order_release);
  }

  Device& device_;
  Backend& backend_;
  const std::string tenant_;
  Mutex mutex_;
  Buffer page_;
  DeviceSlot own_;
  WorkerSlot slot_ ABSL_GUARDED_BY(mutex_);
  std::deque<Request> waiting_ ABSL_GUARDED_BY(mutex_);
  std::deque<Running> running_ ABSL_GUARDED_BY(mutex_);
  std::vector<Events> events_ ABSL_GUARDED_BY(mutex_);  ///< to be used again
  uint32_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

/// Looks at all queues while there is something to be seen.
class DeviceQueues::Keeper {
 public:
  Keeper(Device& device, Backend& backend) : device_(device), backend_(backend) {}

  absl::StatusOr<std::shared_ptr<DeviceQueue::State>> Open(Buffer page, std::string_view tenant) {
    const cuda::DeviceScope scope(device_.ordinal());
    absl::StatusOr<DeviceSlot> slot = DeviceSlot::Create(cuda::StreamPriority::kMiddle);
    if (!slot.ok()) return backend_.Checked(slot.status());
    auto state = std::make_shared<DeviceQueue::State>(device_, backend_, std::move(page),
                                                      *std::move(slot), tenant);
    const MutexLock lock(mutex_);
    if (closing_) return absl::UnavailableError("the server is shutting down");
    const auto own = static_cast<size_t>(std::ranges::count(
        queues_, tenant, [](const auto& queue) -> std::string_view { return queue->tenant(); }));
    if (const size_t left = kMost - queues_.size(); own >= left) {
      return absl::ResourceExhaustedError(fmt::format(
          "{} queues are open on {}, {} of them this tenant's; of {} it has at most as many as are "
          "left for others; close some",
          queues_.size(), Name(backend_.id()), own, kMost));
    }
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    queues_.push_back(state);
    return state;
  }

  /// A request was taken. One that runs is looked at soon enough by who looks now and then.
  void Wake(bool waits) {
    const MutexLock lock(mutex_);
    if (!waits && !asleep_) return;
    awake_ = true;
    changed_.NotifyAll();
  }

  void Close() {
    std::vector<std::shared_ptr<DeviceQueue::State>> all;
    {
      const MutexLock lock(mutex_);
      closing_ = true;
      changed_.NotifyAll();
      all = queues_;
    }
    if (thread_.joinable()) thread_.join();
    for (const auto& queue : all) {
      queue->Close();
      queue->Drain();
    }
    all.clear();
    {
      const MutexLock lock(mutex_);
      all.swap(queues_);
    }
  }

  int64_t count() const {
    const MutexLock lock(mutex_);
    return static_cast<int64_t>(queues_.size());
  }

 private:
  void Run() {
    const cuda::DeviceScope scope(device_.ordinal());
    // Naps are no longer than asked for.
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    Clock::time_point moved = Clock::now();
    MutexLock lock(mutex_);
    while (!closing_) {
      std::vector<std::shared_ptr<DeviceQueue::State>> all = queues_;
      // Somebody else may have waited for long; who comes is looked at closely.
      if (std::exchange(awake_, false)) moved = Clock::now();
      lock.Unlock();
      const Clock::time_point now = Clock::now();
      DeviceQueue::State::Seen any;
      std::vector<std::shared_ptr<DeviceQueue::State>> over;
      for (const auto& queue : all) {
        const DeviceQueue::State::Seen seen = queue->Look(now);
        any.waits |= seen.waits;
        any.runs |= seen.runs;
        any.moved |= seen.moved;
        if (seen.over) over.push_back(queue);
      }
      all.clear();
      if (any.moved || !any.waits) moved = now;
      lock.Lock();
      for (const auto& queue : over) std::erase(queues_, queue);
      lock.Unlock();
      over.clear();  // not in the lock: their streams go
      if (any.waits && now - moved < kSpin) {
        std::this_thread::yield();
        lock.Lock();
        continue;
      }
      lock.Lock();
      if (closing_ || awake_) continue;
      if (any.waits) {
        changed_.WaitUntil(mutex_, now + std::clamp<Clock::duration>((now - moved) / kNapPart,
                                                                     kLeastNap, kLongestNap));
      } else if (any.runs) {
        changed_.WaitUntil(mutex_, now + kLook);
      } else {
        asleep_ = true;
        while (!closing_ && !awake_) changed_.Wait(mutex_);
        asleep_ = false;
      }
    }
  }

  Device& device_;
  Backend& backend_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;   ///< it is to look again
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;  ///< until it is told to
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<DeviceQueue::State>> queues_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

DeviceQueue::DeviceQueue(std::shared_ptr<State> state, std::shared_ptr<DeviceQueues::Keeper> keeper)
    : state_(std::move(state)), keeper_(std::move(keeper)) {}
DeviceQueue::~DeviceQueue() { Close(); }
DeviceId DeviceQueue::device() const { return state_->device(); }
absl::Status DeviceQueue::Reserve(size_t workspace_bytes) {
  return state_->Reserve(workspace_bytes);
}
absl::Status DeviceQueue::Take(Request request) {
  bool waits = false;
  absl::Status taken = state_->Take(std::move(request), &waits);
  if (taken.ok()) keeper_->Wake(waits);
  return taken;
}
void DeviceQueue::Close() {
  state_->Close();
  keeper_->Wake(/*waits=*/true);
}

DeviceQueues::DeviceQueues(Device& device, Backend& backend)
    : keeper_(std::make_shared<Keeper>(device, backend)) {}
DeviceQueues::~DeviceQueues() { Close(); }

absl::StatusOr<std::shared_ptr<DeviceQueue>> DeviceQueues::Open(Buffer page,
                                                                std::string_view tenant) {
  absl::StatusOr<std::shared_ptr<DeviceQueue::State>> state =
      keeper_->Open(std::move(page), tenant);
  if (!state.ok()) return state.status();
  return std::shared_ptr<DeviceQueue>(new DeviceQueue(*std::move(state), keeper_));
}

void DeviceQueues::Close() { keeper_->Close(); }
int64_t DeviceQueues::count() const { return keeper_->count(); }

}  // namespace sparsed::engine
