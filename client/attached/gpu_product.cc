// Products that are queued in the caller's streams.
#include <bit>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "client/attached/layout_product.h"
#include "kernels/cuda/capture.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/exportable_memory.h"

namespace sparsed {
inline namespace client {
namespace {

/// Of so many runs, one is timed: events around each would cost more than a launch.
constexpr int64_t kTimedEvery = 64;
/// Streams that a product remembers, if they are not all in use; it then forgets one that was not
/// used for long.
constexpr size_t kMostStreams = 64;

/// Lets go of what kernels may still use, which takes a while, on a thread of its own. What a graph
/// kept comes here, too: the thread that ends a graph may call nothing of CUDA's.
class Undertaker {
 public:
  /// Lives as long as the process does.
  static Undertaker& Get() {
    static auto* const undertaker = new Undertaker;
    return *undertaker;
  }

  void LetGo(std::function<void()> gone) {
    const MutexLock lock(mutex_);
    waiting_.push_back(std::move(gone));
    changed_.NotifyAll();
  }

 private:
  Undertaker() {
    std::thread([this] { Run(); }).detach();
  }

  [[noreturn]] void Run() {
    const cuda::CaptureScope whatever_others_capture;
    MutexLock lock(mutex_);
    while (true) {
      while (waiting_.empty()) changed_.Wait(mutex_);
      std::function<void()> gone = std::move(waiting_.front());
      waiting_.pop_front();
      lock.Unlock();
      gone();
      gone = nullptr;
      lock.Lock();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
};

template <typename T>
std::shared_ptr<T> LetGoLater(T* object) {
  return std::shared_ptr<T>(object,
                            [](T* gone) { Undertaker::Get().LetGo([gone] { delete gone; }); });
}

/// Work goes into a stream of the caller's.
class StreamSite : public Site {
 public:
  StreamSite(void* stream, MemorySource& memory)
      : stream_(cuda::Stream::Of(stream)), memory_(memory) {}

  Context context() const override {
    Context context;
    context.stream = stream_.handle();
    return context;
  }
  MemorySource& memory() override { return memory_; }
  absl::Status Gather(const int64_t* order, int64_t count, ElementType type, const void* from,
                      void* to) override {
    Array positions;
    positions.type = ElementType::kI64;
    positions.length = count;
    positions.buffer = Buffer(
        std::shared_ptr<std::byte>(std::shared_ptr<std::byte>(),
                                   reinterpret_cast<std::byte*>(const_cast<int64_t*>(order))),
        static_cast<size_t>(count) * sizeof(int64_t));
    return cuda::GatherElements(stream_, positions, type, from, to);
  }
  absl::Status Scatter(const int64_t* order, int64_t count, ElementType type, const void* from,
                       void* to) override {
    return cuda::ScatterElements(stream_, {order, static_cast<size_t>(count)}, type, from, to);
  }
  absl::Status PlaceValues(const Layout& layout, ElementType type, const void* csr_values,
                           void* slots) override {
    return cuda::PlaceValues(stream_, layout, type, csr_values, slots);
  }
  absl::Status CopyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                        size_t row_bytes, size_t rows) override {
    return stream_.CopyRows(to, to_pitch, from, from_pitch, row_bytes, rows);
  }

 protected:
  cuda::Stream& stream() { return stream_; }

 private:
  cuda::Stream stream_;
  MemorySource& memory_;
};

/// One run's, of which a graph is made. What it has stays as it is for as long as the graph.
class GraphSite final : public StreamSite {
 public:
  using StreamSite::StreamSite;
  absl::Status Settle() override { return absl::OkStatus(); }
  bool keeps() const override { return false; }
};

/// Measures some of the kernels that are queued for one problem, and says what to account for all
/// of them. Thread-safe.
class KernelClock final : public ExportedProduct::Clock {
 public:
  explicit KernelClock(int gpu) : gpu_(gpu) {}
  ~KernelClock() override {
    const cuda::DeviceScope scope(gpu_);  // whoever drops it, wherever
    begin_.reset();
    end_.reset();
  }

  absl::Status Timed(cuda::Stream& stream, const std::function<absl::Status()>& queue) {
    if (!Begin(stream)) return queue();
    absl::Status status = queue();
    End(stream, status);
    return status;
  }

  /// For one more run: what it is to be accounted with, and those before it that were not yet.
  std::chrono::nanoseconds Account() {
    const MutexLock lock(mutex_);
    ++unaccounted_;
    // To ask costs as much as to launch: after 1, 2, 4, ... runs.
    if (stage_ == Stage::kEnded && std::has_single_bit(++since_timed_) &&
        end_->Passed().value_or(false)) {
      stage_ = Stage::kIdle;
      each_ = std::chrono::nanoseconds(
          static_cast<int64_t>(1e6 * end_->MillisecondsSince(*begin_).value_or(0)));
    }
    if (each_.count() == 0) return {};
    return each_ * std::exchange(unaccounted_, 0);
  }

 private:
  enum class Stage : uint8_t {
    kIdle,
    kBegun,  ///< a thread queues what is measured
    kEnded,  ///< both were recorded, and not read
  };

  bool Begin(cuda::Stream& stream) {
    const MutexLock lock(mutex_);
    // Not the first, which loads the kernel.
    if (runs_++ % kTimedEvery != 1 || stage_ != Stage::kIdle) return false;
    for (std::optional<cuda::Event>* event : {&begin_, &end_}) {
      if (event->has_value()) continue;
      absl::StatusOr<cuda::Event> made = cuda::Event::Create();
      if (!made.ok()) return false;
      event->emplace(*std::move(made));
    }
    if (!begin_->Record(stream).ok()) return false;
    stage_ = Stage::kBegun;
    return true;
  }

  void End(cuda::Stream& stream, const absl::Status& queued) {
    const MutexLock lock(mutex_);
    stage_ = queued.ok() && end_->Record(stream).ok() ? Stage::kEnded : Stage::kIdle;
    since_timed_ = 0;
  }

  const int gpu_;
  Mutex mutex_;
  std::optional<cuda::Event> begin_ ABSL_GUARDED_BY(mutex_), end_ ABSL_GUARDED_BY(mutex_);
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kIdle;
  uint64_t since_timed_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t runs_ ABSL_GUARDED_BY(mutex_) = 0, unaccounted_ ABSL_GUARDED_BY(mutex_) = 0;
  /// Of a run, as the last that was timed took; 0: unknown.
  std::chrono::nanoseconds each_ ABSL_GUARDED_BY(mutex_){0};
};

/// All runs' that are queued in one stream, one after the other.
class QueueSite final : public StreamSite {
 public:
  QueueSite(void* stream, MemorySource& memory, std::shared_ptr<KernelClock> clock)
      : StreamSite(stream, memory), clock_(std::move(clock)) {}
  /// Waits for what was queued, which uses its memory.
  ~QueueSite() override { Settle().IgnoreError(); }

  absl::Status Settle() override { return passed_ ? passed_->Synchronize() : absl::OkStatus(); }
  bool keeps() const override { return true; }
  absl::Status Timed(const std::function<absl::Status()>& kernel) override {
    return clock_->Timed(stream(), kernel);
  }

  ExportedProduct::Accounted Run(const std::function<absl::Status(Site&)>& work) {
    if (!passed_) {
      absl::StatusOr<cuda::Event> event = cuda::Event::CreateUntimed();
      if (!event.ok()) return event.status();
      passed_.emplace(*std::move(event));
    }
    absl::Status status = work(*this);
    // Also of what went wrong midway.
    const absl::Status recorded = passed_->Record(stream());
    if (status.ok()) status = recorded;
    if (!status.ok()) return status;
    return clock_->Account();
  }

  Mutex mutex;        ///< held by who uses it
  uint64_t used = 0;  ///< when, as its product counts; guarded by the product

 private:
  const std::shared_ptr<KernelClock> clock_;
  std::optional<cuda::Event> passed_;
};

class GpuProduct final : public LayoutProduct, public std::enable_shared_from_this<GpuProduct> {
 public:
  GpuProduct(LayoutKernel kernel, const Problem& problem, std::shared_ptr<const Layout> layout,
             ExportedProduct::Memory memory, int gpu, std::shared_ptr<KernelClock> clock)
      : LayoutProduct(kernel, problem, std::move(layout), std::move(memory)),
        gpu_(gpu),
        clock_(std::move(clock)),
        workspaces_(*this) {}

  /// On the undertaker's thread.
  ~GpuProduct() override {
    const cuda::DeviceScope scope(gpu_);
    const MutexLock lock(mutex_);
    sites_.clear();
  }

 private:
  /// Memory of the GPU that any stream may use at once.
  class Workspaces final : public MemorySource {
   public:
    explicit Workspaces(const GpuProduct& product) : product_(product) {}
    absl::StatusOr<Buffer> Allocate(size_t bytes) override { return product_.Allocate(bytes); }

   private:
    const GpuProduct& product_;
  };

  /// What a graph keeps.
  struct Captured {
    Captured(std::shared_ptr<const GpuProduct> of, void* stream)
        : product(std::move(of)), site(stream, product->workspaces_) {}
    const std::shared_ptr<const GpuProduct> product;
    GraphSite site;  ///< goes first
  };

  Accounted At(const Where& where, const Work& work) const override {
    const cuda::DeviceScope scope(gpu_);
    const cuda::CaptureScope whatever_others_capture;
    const absl::StatusOr<bool> captured = cuda::IsCaptured(cuda::Stream::Of(where.stream));
    if (!captured.ok()) return captured.status();
    if (*captured) return Capture(where.stream, work);
    const absl::StatusOr<std::shared_ptr<QueueSite>> site = SiteOf(where.stream);
    if (!site.ok()) return site.status();
    const MutexLock lock((*site)->mutex);
    return (*site)->Run(work);
  }

  Accounted Capture(void* stream, const Work& work) const {
    const std::shared_ptr<Captured> captured = LetGoLater(new Captured(shared_from_this(), stream));
    // First: if the work fails midway, what it queued is part of the graph all the same.
    absl::Status status = cuda::KeepWithGraph(cuda::Stream::Of(stream), captured);
    if (status.ok()) status = work(captured->site);
    if (!status.ok()) return status;
    return std::nullopt;
  }

  absl::StatusOr<std::shared_ptr<QueueSite>> SiteOf(void* stream) const {
    const absl::StatusOr<cuda::QueueId> id = cuda::IdOf(cuda::Stream::Of(stream));
    if (!id.ok()) return id.status();
    const MutexLock lock(mutex_);
    std::shared_ptr<QueueSite>& site = sites_[*id];
    if (site == nullptr) site = std::make_shared<QueueSite>(stream, workspaces_, clock_);
    site->used = ++now_;
    std::shared_ptr<QueueSite> found = site;
    if (sites_.size() > kMostStreams) ForgetOneLocked();
    return found;
  }

  /// Some of the streams are no more, but nobody knows which.
  void ForgetOneLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto oldest = sites_.end();
    for (auto it = sites_.begin(); it != sites_.end(); ++it) {
      // Others get it from here alone, so nobody has it, nor can get it meanwhile.
      if (it->second.use_count() > 1) continue;
      if (oldest == sites_.end() || it->second->used < oldest->second->used) oldest = it;
    }
    if (oldest == sites_.end()) return;
    // Before the product, which lets go of itself there, too: its memory is the product's.
    Undertaker::Get().LetGo([gpu = gpu_, site = std::move(oldest->second)]() mutable {
      const cuda::DeviceScope scope(gpu);
      site = nullptr;
    });
    sites_.erase(oldest);
  }

  absl::StatusOr<Buffer> Allocate(size_t bytes) const {
    const cuda::CaptureScope whatever_others_capture;
    const MutexLock lock(allocating_);
    if (!stream_) {
      absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create();
      if (!stream.ok()) return stream.status();
      stream_.emplace(*std::move(stream));
      source_ = cuda::DeviceMemory(*stream_);
    }
    absl::StatusOr<Buffer> buffer = source_->Allocate(bytes);
    if (!buffer.ok()) return buffer;
    if (absl::Status there = stream_->Synchronize(); !there.ok()) return there;
    return buffer;
  }

  const int gpu_;
  const std::shared_ptr<KernelClock> clock_;
  mutable Workspaces workspaces_;
  mutable Mutex allocating_;
  mutable std::optional<cuda::Stream> stream_ ABSL_GUARDED_BY(allocating_);
  mutable std::unique_ptr<MemorySource> source_ ABSL_GUARDED_BY(allocating_);
  mutable Mutex mutex_;
  mutable std::map<cuda::QueueId, std::shared_ptr<QueueSite>> sites_ ABSL_GUARDED_BY(mutex_);
  mutable uint64_t now_ ABSL_GUARDED_BY(mutex_) = 0;
};

class MappedGpuMemory final : public MappedMemory {
 public:
  explicit MappedGpuMemory(Buffer memory)
      : MappedMemory(memory.data(), memory.size()), memory_(std::move(memory)) {}

 private:
  const Buffer memory_;
};

}  // namespace

std::shared_ptr<const ExportedProduct> MakeGpuProduct(
    LayoutKernel kernel, const Problem& problem, std::shared_ptr<const Layout> layout,
    ExportedProduct::Memory memory, int gpu, std::shared_ptr<ExportedProduct::Clock>& clock) {
  if (clock == nullptr) clock = std::make_shared<KernelClock>(gpu);
  return LetGoLater(new GpuProduct(kernel, problem, std::move(layout), std::move(memory), gpu,
                                   std::static_pointer_cast<KernelClock>(clock)));
}

absl::StatusOr<std::string> GpuUuid(int gpu) { return cuda::DeviceUuid(gpu); }

absl::StatusOr<std::shared_ptr<const MappedMemory>> MapGpuMemory(const Descriptor& file,
                                                                 size_t bytes, int gpu) {
  const cuda::DeviceScope scope(gpu);
  const cuda::CaptureScope whatever_others_capture;
  absl::StatusOr<Buffer> memory = cuda::Import(file, bytes);
  if (!memory.ok()) return memory.status();
  return std::make_shared<const MappedGpuMemory>(*std::move(memory));
}

absl::Status CopyBetween(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t row_bytes, size_t rows, int gpu, void* stream) {
  const cuda::DeviceScope scope(gpu);
  const cuda::CaptureScope whatever_others_capture;
  cuda::Stream copies = cuda::Stream::Of(stream);
  const absl::StatusOr<bool> captured = cuda::IsCaptured(copies);
  if (!captured.ok()) return captured.status();
  if (*captured) {
    return absl::FailedPreconditionError(
        "a product that cannot run here cannot become part of a graph");
  }
  const absl::Status queued = copies.CopyRows(to, to_pitch, from, from_pitch, row_bytes, rows);
  const absl::Status done = copies.Synchronize();
  return queued.ok() ? done : queued;
}

}  // namespace client
}  // namespace sparsed
