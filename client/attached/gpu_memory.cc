#include "sparsed/gpu_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "client/attached/caller_memory.h"
#include "client/attached/exported_product.h"
#include "client/attached/gpu_queue.h"
#include "client/attached/gpu_streams.h"
#include "client/src/arrays.h"
#include "client/src/compute_calls.h"
#include "client/src/connection.h"
#include "client/src/convert.h"

namespace sparsed {
inline namespace client {
namespace {

/// Between two looks at whether the server is there: without it, streams that wait for it go on.
constexpr std::chrono::milliseconds kLook{200};
/// What the server hands over comes in multiples of it.
constexpr size_t kMultiple = size_t{2} << 20;
/// Queues that are kept, if they are not all in use.
constexpr size_t kMostQueues = 32;

absl::Status NotAView() {
  return absl::InvalidArgumentError(
      "what runs in a stream takes operands in the GPU's memory, none that the server holds");
}

template <typename View>
size_t Pitch(const View& view) {
  return static_cast<size_t>(view.leading_dimension == 0 ? view.cols : view.leading_dimension) *
         SizeOf(view.type);
}
/// As an operand one column has none: values of S may have no gaps.
template <typename View>
bool HasGaps(const View& view) {
  return view.cols == 1 && view.leading_dimension > 1;
}
template <typename View>
size_t RowBytes(const View& view) {
  return static_cast<size_t>(view.cols) * SizeOf(view.type);
}

}  // namespace

/// What the handles share: the connection, blocks to be used again, and a queue for each stream.
class GpuMemoryState {
 public:
  GpuMemoryState(std::shared_ptr<Connection> connection, int gpu, std::string uuid,
                 const GpuMemoryOptions& options)
      : connection_(std::move(connection)),
        gpu_(gpu),
        uuid_(std::move(uuid)),
        options_(options),
        callers_(std::make_shared<CallerMemory>(shared(), gpu_, uuid_)) {
    shared().Ask(callers_);
  }

  ~GpuMemoryState() {
    // While somebody still sees to it that streams of a server that died go on.
    while (Busy()) std::this_thread::sleep_for(kLook / 100);
    {
      const MutexLock lock(mutex_);
      closing_ = true;
      changed_.NotifyAll();
    }
    if (keeper_.joinable()) keeper_.join();
  }

  int gpu() const { return gpu_; }
  const std::shared_ptr<Connection>& connection() const { return connection_; }
  SharedMemory& shared() const { return *connection_->shared_memory(); }

  absl::StatusOr<std::shared_ptr<SharedBlock>> Allocate(size_t bytes) {
    absl::StatusOr<std::shared_ptr<SharedBlock>> block = Ask(bytes);
    if (!absl::IsResourceExhausted(block.status())) return block;
    Trim();
    return Ask(bytes);
  }

  absl::StatusOr<void*> AllocateBytes(size_t bytes, void* stream) {
    if (bytes == 0) return absl::InvalidArgumentError("no bytes of memory to allocate");
    if (bytes > std::numeric_limits<size_t>::max() / 2) {
      return absl::ResourceExhaustedError(fmt::format("{} bytes are not to be had", bytes));
    }
    const absl::StatusOr<StreamId> id = IdOfStream(gpu_, stream);
    if (!id.ok()) return id.status();
    const size_t rounded = (bytes + kMultiple - 1) / kMultiple * kMultiple;
    std::list<Kept> gone;  // without the lock, which takes a while
    {
      const MutexLock lock(mutex_);
      // One that is not much larger.
      for (auto next = kept_.begin(); next != kept_.end();) {
        const auto it = next++;
        const size_t size = it->block->size();
        if (!shared().Find(it->block->data(), size)) {  // its server has gone
          kept_bytes_ -= size;
          gone.splice(gone.end(), kept_, it);
          continue;
        }
        if (size < rounded || size > rounded + rounded / 4) continue;
        if (it->stream != *id && !it->freed->Passed()) continue;
        std::shared_ptr<SharedBlock> block = std::move(it->block);
        kept_bytes_ -= size;
        kept_.erase(it);
        void* const data = block->data();
        given_[data] = std::move(block);
        return data;
      }
    }
    absl::StatusOr<std::shared_ptr<SharedBlock>> block = Allocate(rounded);
    if (!block.ok()) return block.status();
    void* const data = (*block)->data();
    const MutexLock lock(mutex_);
    given_[data] = *std::move(block);
    return data;
  }

  absl::Status FreeBytes(void* data, void* stream) {
    const absl::StatusOr<StreamId> id = IdOfStream(gpu_, stream);
    if (!id.ok()) return id.status();
    absl::StatusOr<std::unique_ptr<StreamPoint>> freed = StreamPoint::Of(gpu_, stream);
    std::list<Kept> gone;  // go without the lock, which takes a while
    const MutexLock lock(mutex_);
    auto found = given_.extract(data);
    if (found.empty()) {
      return absl::InvalidArgumentError("the memory is not, or no longer, of AllocateBytes");
    }
    gone.push_back({std::move(found.mapped()), *id, nullptr});
    if (!freed.ok()) return absl::OkStatus();  // it goes, once nothing is under way
    gone.front().freed = *std::move(freed);
    kept_bytes_ += gone.front().block->size();
    kept_.splice(kept_.begin(), gone);
    while (kept_bytes_ > options_.kept_bytes) {
      kept_bytes_ -= kept_.back().block->size();
      gone.splice(gone.begin(), kept_, std::prev(kept_.end()));
    }
    return absl::OkStatus();
  }

  void Trim() {
    std::list<Kept> gone;
    const MutexLock lock(mutex_);
    gone.swap(kept_);
    kept_bytes_ = 0;
  }

  /// The stream's queue; opened, if there is none. ABORTED, once, if the last one broke.
  absl::StatusOr<std::shared_ptr<GpuQueue>> QueueOf(void* stream) {
    const absl::StatusOr<StreamId> id = IdOfStream(gpu_, stream);
    if (!id.ok()) return id.status();
    std::vector<std::shared_ptr<GpuQueue>> gone;
    {
      const MutexLock lock(mutex_);
      const auto found = queues_.find(*id);
      if (found != queues_.end()) {
        const absl::Status status = found->second->status();
        if (status.ok() && found->second->alive()) return found->second;
        gone.push_back(std::move(found->second));
        queues_.erase(found);
        if (!status.ok()) {
          broken_.push_back(gone.back());
          return status;
        }
      }
      // Some of the streams are no more, but nobody knows which.
      while (queues_.size() >= kMostQueues) {
        const auto idle = std::ranges::find_if(queues_, [](const auto& entry) {
          return entry.second.use_count() == 1 && entry.second->idle();
        });
        if (idle == queues_.end()) break;
        gone.push_back(std::move(idle->second));
        queues_.erase(idle);
      }
    }
    absl::StatusOr<std::shared_ptr<LocalSocket>> socket = shared().Socket();
    if (!socket.ok()) return socket.status();
    absl::StatusOr<std::shared_ptr<GpuQueue>> queue =
        GpuQueue::Open(gpu_, uuid_, *std::move(socket));
    if (!queue.ok()) return queue;
    const MutexLock lock(mutex_);
    if (!keeper_.joinable()) keeper_ = std::thread([this] { Keep(); });
    // Another thread that uses the stream may have been faster.
    return queues_.emplace(*id, *std::move(queue)).first->second;
  }

  /// Where requests can use it where it is, if they can.
  template <typename View>
  std::optional<SharedMemory::Place> InPlace(const View& view) const {
    const size_t bytes = static_cast<size_t>(view.rows - 1) * Pitch(view) + RowBytes(view);
    std::optional<SharedMemory::Place> place = shared().Find(view.data, bytes);
    if (place && !place->block->on_gpu()) place.reset();
    return place;
  }

 private:
  struct Kept {
    std::shared_ptr<SharedBlock> block;
    StreamId stream;
    std::unique_ptr<StreamPoint> freed;
  };

  absl::StatusOr<std::shared_ptr<SharedBlock>> Ask(size_t bytes) {
    absl::StatusOr<std::shared_ptr<LocalSocket>> socket = shared().Socket();
    if (!socket.ok()) return socket.status();
    v1::LocalRequest request;
    request.mutable_allocate()->set_gpu(uuid_);
    request.mutable_allocate()->set_bytes(bytes);
    const absl::StatusOr<LocalSocket::Reply> reply = (*socket)->Ask(std::move(request));
    if (!reply.ok()) return reply.status();
    absl::StatusOr<std::unique_ptr<SharedBlock>> block = MapSharedOnGpu(reply->file, bytes, gpu_);
    if (!block.ok()) {
      v1::LocalRequest forget;
      forget.mutable_forget()->set_region(reply->message.region());
      (*socket)->Send(std::move(forget));
      return block.status();
    }
    return shared().Adopt(*std::move(block), *std::move(socket), reply->message.region());
  }

  void Keep() {
    MutexLock lock(mutex_);
    while (!closing_) {
      changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kLook);
      for (const auto& [id, queue] : queues_) queue->Look();
      // A stream that waits in vain may come to its wait late.
      for (const auto& queue : broken_) queue->Look();
    }
  }

  bool Busy() {
    const MutexLock lock(mutex_);
    return std::ranges::any_of(queues_, [](const auto& entry) { return !entry.second->idle(); });
  }

  const std::shared_ptr<Connection> connection_;
  const int gpu_;
  const std::string uuid_;
  const GpuMemoryOptions options_;
  const std::shared_ptr<CallerMemory> callers_;
  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<void*, std::shared_ptr<SharedBlock>> given_ ABSL_GUARDED_BY(mutex_);
  std::list<Kept> kept_ ABSL_GUARDED_BY(mutex_);  ///< the last one freed first
  size_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<StreamId, std::shared_ptr<GpuQueue>> queues_ ABSL_GUARDED_BY(mutex_);
  /// Whose streams may yet come to their waits.
  std::vector<std::shared_ptr<GpuQueue>> broken_ ABSL_GUARDED_BY(mutex_);
  std::thread keeper_;
};

namespace {

/// A matrix as requests use it: where it is, or a copy.
template <typename View>
class Staged {
 public:
  Staged(const GpuMemory& memory, GpuStream stream) : memory_(memory), stream_(stream) {}
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  ~Staged() {
    if (copy_ != nullptr) memory_.FreeBytes(copy_, stream_).IgnoreError();
  }

  /// Memory for one that is not in place.
  absl::Status Copy(const View& view) {
    const absl::StatusOr<void*> copy =
        memory_.AllocateBytes(static_cast<size_t>(view.rows) * RowBytes(view), stream_);
    if (!copy.ok()) return copy.status();
    copy_ = *copy;
    return absl::OkStatus();
  }
  bool copied() const { return copy_ != nullptr; }
  View Of(const View& view) const {
    return copied() ? View(static_cast<decltype(view.data)>(copy_), view.type, view.rows, view.cols)
                    : view;
  }

 private:
  const GpuMemory& memory_;
  const GpuStream stream_;
  void* copy_ = nullptr;
};

}  // namespace

absl::StatusOr<GpuMemory> GpuMemory::Open(const Client& client, int gpu,
                                          const GpuMemoryOptions& options) {
  absl::StatusOr<std::string> uuid = GpuUuid(gpu);
  if (!uuid.ok()) return absl::FailedPreconditionError(uuid.status().message());
  const absl::StatusOr<LocalAddress> address = client.connection_->FindLocalAddress();
  if (!address.ok()) return address.status();
  if (address->path.empty()) {
    return absl::FailedPreconditionError(
        "the server has no local socket (its --local-listen), so it shares no memory");
  }
  auto state = std::make_shared<GpuMemoryState>(client.connection_, gpu, *std::move(uuid), options);
  if (absl::StatusOr<std::shared_ptr<LocalSocket>> socket = state->shared().Socket();
      !socket.ok()) {
    return socket.status();
  }
  return GpuMemory(std::move(state));
}

absl::StatusOr<GpuMatrix> GpuMemory::Allocate(int64_t rows, int64_t cols, ValueType type) const {
  const auto element = static_cast<int64_t>(SizeOf(type));
  if (rows < 0 || cols < 1 || rows > std::numeric_limits<int64_t>::max() / element / cols) {
    return absl::InvalidArgumentError(
        fmt::format("{} x {} {} make no dense matrix", rows, cols, Name(type)));
  }
  absl::StatusOr<std::shared_ptr<SharedBlock>> block =
      state_->Allocate(static_cast<size_t>(std::max<int64_t>(rows * cols * element, 1)));
  if (!block.ok()) return block.status();
  void* const data = (*block)->data();
  return GpuMatrix(*std::move(block), data, type, rows, cols);
}

absl::StatusOr<void*> GpuMemory::AllocateBytes(size_t bytes, GpuStream stream) const {
  return state_->AllocateBytes(bytes, stream.handle);
}
absl::Status GpuMemory::FreeBytes(void* data, GpuStream stream) const {
  return state_->FreeBytes(data, stream.handle);
}
void GpuMemory::Trim() const { state_->Trim(); }

namespace {

/// One product in a stream, its operands and its result where requests use them.
class StreamProduct {
 public:
  StreamProduct(const GpuMemory& memory, GpuMemoryState& state, GpuStream stream)
      : memory_(memory), state_(state), stream_(stream) {}

  /// What the request is to name for `view`.
  absl::StatusOr<DenseView> Stage(const DenseView& view, const char* what) {
    if (const auto bytes = BytesOf(view, what); !bytes.ok()) return bytes.status();
    if (view.rows == 0 || view.cols == 0) {
      empty_ = true;
      return view;
    }
    if (!HasGaps(view) && InPlace(view)) return view;
    Staged<DenseView>& staged = operands_.emplace_back(memory_, stream_);
    if (absl::Status s = staged.Copy(view); !s.ok()) return s;
    const DenseView copy = staged.Of(view);
    if (absl::Status s = Copy(const_cast<void*>(copy.data), copy, view.data, view); !s.ok()) {
      return s;
    }
    return copy;
  }
  /// Likewise for the result, with what it holds if that is read.
  absl::StatusOr<MutableDenseView> StageResult(const MutableDenseView& view, const char* what,
                                               bool reads) {
    if (const auto bytes = BytesOf(view, what); !bytes.ok()) return bytes.status();
    result_ = view;
    if (view.rows == 0 || view.cols == 0) {
      empty_ = true;
      return view;
    }
    // What it holds is an operand, then.
    if (!(reads && HasGaps(view)) && InPlace(view)) return view;
    if (absl::Status s = staged_result_.Copy(view); !s.ok()) return s;
    const MutableDenseView copy = staged_result_.Of(view);
    if (reads) {
      if (absl::Status s = Copy(copy.data, copy, view.data, view); !s.ok()) return s;
    }
    return copy;
  }

  /// `send` sends the request to the place in a queue that it is given (none: empty).
  template <typename Send>
  absl::StatusOr<QueuedResult> Run(const Send& send) {
    absl::StatusOr<QueuedResult> done = Queue(send);
    if (!done.ok() && !MayRunLater(done.status())) return done;
    if (!done.ok()) {
      if (absl::Status s = AwaitStream(state_.gpu(), stream_.handle); !s.ok()) return s;
      absl::StatusOr<ComputeResult> ran = send("");
      if (!ran.ok()) return ran.status();
      done = QueuedResult{*std::move(ran)};
    }
    if (staged_result_.copied()) {
      const MutableDenseView copy = staged_result_.Of(result_);
      if (absl::Status s = Copy(result_.data, result_, copy.data, copy); !s.ok()) return s;
      if (!done->queued) {
        if (absl::Status s = AwaitStream(state_.gpu(), stream_.handle); !s.ok()) return s;
      }
    }
    done->copied_bytes = copied_;
    done->in_place_bytes = in_place_;
    return done;
  }

 private:
  template <typename View>
  bool InPlace(const View& view) {
    std::optional<SharedMemory::Place> place = state_.InPlace(view);
    if (!place) return false;
    if (place->foreign) in_place_ += view.rows * static_cast<int64_t>(RowBytes(view));
    places_.push_back(*std::move(place));
    return true;
  }
  template <typename To, typename From>
  absl::Status Copy(void* to, const To& to_view, const void* from, const From& from_view) {
    copied_ += to_view.rows * static_cast<int64_t>(RowBytes(to_view));
    return QueueCopy(state_.gpu(), stream_.handle, to, Pitch(to_view), from, Pitch(from_view),
                     RowBytes(to_view), static_cast<size_t>(to_view.rows));
  }

  /// It was not queued, for want of room, of a kernel, or of what queues need.
  static bool MayRunLater(const absl::Status& status) {
    return absl::IsResourceExhausted(status) || absl::IsUnimplemented(status) ||
           absl::IsNotFound(status);
  }

  template <typename Send>
  absl::StatusOr<QueuedResult> Queue(const Send& send) {
    if (empty_) return absl::UnimplementedError("what is empty is in no memory");
    absl::StatusOr<std::shared_ptr<GpuQueue>> queue = state_.QueueOf(stream_.handle);
    if (!queue.ok()) return queue.status();
    const MutexLock lock((*queue)->mutex());
    const absl::StatusOr<std::string> place = (*queue)->Begin(stream_.handle);
    if (!place.ok()) return place.status();
    absl::StatusOr<ComputeResult> taken = send(*place);
    if (!taken.ok()) return taken.status();
    if (absl::Status s = (*queue)->End(stream_.handle); !s.ok()) return s;
    QueuedResult result{*std::move(taken)};
    result.timings = {};
    result.queued = true;
    return result;
  }

  const GpuMemory& memory_;
  GpuMemoryState& state_;
  const GpuStream stream_;
  std::list<Staged<DenseView>> operands_;
  Staged<MutableDenseView> staged_result_{memory_, stream_};
  MutableDenseView result_{nullptr, ValueType::kF32, 0, 0};
  bool empty_ = false;
  std::vector<SharedMemory::Place> places_;  ///< that the request names, kept until it is sent
  int64_t copied_ = 0, in_place_ = 0;
};

/// Null: it is not there.
absl::StatusOr<const DenseView*> ViewOf(const std::optional<Operand>& operand) {
  if (!operand) return nullptr;
  const auto* const view = std::get_if<DenseView>(&*operand);
  if (view == nullptr) return NotAView();
  return view;
}

}  // namespace

absl::StatusOr<QueuedResult> QueuedMatrix::Spmm(GpuStream stream, const DenseView& b,
                                                const MutableDenseView& c,
                                                const SpmmOptions& spmm) const {
  GpuMemoryState& state = *memory_.state_;
  if (absl::Status s = CheckNotCaptured(state.gpu(), stream.handle); !s.ok()) return s;
  const absl::StatusOr<const DenseView*> old = ViewOf(spmm.accumulate), own = ViewOf(spmm.values);
  if (!old.ok()) return old.status();
  if (!own.ok()) return own.status();
  StreamProduct product(memory_, state, stream);
  SpmmOptions there = spmm;
  const absl::StatusOr<DenseView> from = product.Stage(b, "b");
  if (!from.ok()) return from.status();
  const bool reads = spmm.beta != 0 && *old == nullptr;
  const absl::StatusOr<MutableDenseView> to = product.StageResult(c, "c", reads);
  if (!to.ok()) return to.status();
  if (spmm.beta != 0 && *old != nullptr) {
    const absl::StatusOr<DenseView> before = product.Stage(**old, "SpmmOptions::accumulate");
    if (!before.ok()) return before.status();
    there.accumulate = *before;
  }
  if (*own != nullptr) {
    const absl::StatusOr<DenseView> values = product.Stage(**own, "SpmmOptions::values");
    if (!values.ok()) return values.status();
    there.values = *values;
  }
  return product.Run([&](const std::string& place) {
    return client::Spmm(state.connection(), matrix_.name(), *from, *to, there, {}, place).Wait();
  });
}

absl::StatusOr<QueuedResult> QueuedMatrix::Sddmm(GpuStream stream, const DenseView& a,
                                                 const DenseView& b, const MutableDenseView& values,
                                                 const SddmmOptions& sddmm) const {
  GpuMemoryState& state = *memory_.state_;
  if (absl::Status s = CheckNotCaptured(state.gpu(), stream.handle); !s.ok()) return s;
  const absl::StatusOr<const DenseView*> own = ViewOf(sddmm.values);
  if (!own.ok()) return own.status();
  StreamProduct product(memory_, state, stream);
  SddmmOptions there = sddmm;
  const absl::StatusOr<DenseView> left = product.Stage(a, "a"), right = product.Stage(b, "b");
  if (!left.ok()) return left.status();
  if (!right.ok()) return right.status();
  const absl::StatusOr<MutableDenseView> to = product.StageResult(values, "values", false);
  if (!to.ok()) return to.status();
  if (*own != nullptr) {
    const absl::StatusOr<DenseView> scale = product.Stage(**own, "SddmmOptions::values");
    if (!scale.ok()) return scale.status();
    there.values = *scale;
  }
  return product.Run([&](const std::string& place) {
    return client::Sddmm(state.connection(), matrix_.name(), *left, *right, *to, there, {}, place)
        .Wait();
  });
}

}  // namespace client
}  // namespace sparsed
