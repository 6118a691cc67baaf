// Runs that are queued in the caller's streams.
#include <algorithm>
#include <bit>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/attached/site.h"
#include "kernels/cuda/capture.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/exportable_memory.h"

namespace sparsed {
inline namespace client {
namespace {

/// Of so many runs, one is timed: events around each would cost more than a launch. A prime number,
/// as chains come in turns.
constexpr int64_t kTimedEvery = 61;
/// Streams that are remembered, if they are not all in use; then one is forgotten that was not used
/// for long.
constexpr size_t kMostStreams = 64;
/// What a stream's runs used and may use again.
constexpr size_t kMostKept = 64;

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

template <typename View>
bool IsColumn(const View& view) {
  return view.cols == 1 && view.leading_dimension == 1;
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
  absl::Status Gather(std::span<const int64_t> order, ElementType type, const ConstDense& from,
                      const Dense& to) override {
    return cuda::GatherRows(stream_, order, type, from, to);
  }
  absl::Status Scatter(std::span<const int64_t> order, ElementType type, const ConstDense& from,
                       const Dense& to) override {
    if (IsColumn(from) && IsColumn(to)) {
      return cuda::ScatterElements(stream_, order, type, from.data, to.data);
    }
    return cuda::ScatterRows(stream_, order, type, from, to);
  }
  absl::Status PlaceValues(const Layout& layout, ElementType type, const void* csr_values,
                           void* slots) override {
    return cuda::PlaceValues(stream_, layout, type, csr_values, slots);
  }
  absl::Status CopyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                        size_t row_bytes, size_t rows) override {
    if (row_bytes == 0 || rows == 0) return absl::OkStatus();
    return stream_.CopyRows(to, to_pitch, from, from_pitch, row_bytes, rows);
  }
  absl::Status ComputeRowProducts(const RowProducts& products, ElementType type) override {
    const absl::StatusOr<Context> there = ContextWith(cuda::RowProductsWorkspace(products, type));
    return there.ok() ? cuda::ComputeRowProducts(*there, products, type) : there.status();
  }
  absl::Status ComputeHeadDots(const HeadDots& dots, ElementType type) override {
    return cuda::ComputeHeadDots(context(), dots, type);
  }
  absl::Status RowSoftmax(std::span<const int64_t> row_offsets, ElementType type, double scale,
                          const ConstDense& x, const Dense& y) override {
    return cuda::RowSoftmax(stream_, row_offsets, type, scale, x, y);
  }
  absl::Status RowSoftmaxGradient(std::span<const int64_t> row_offsets, ElementType type,
                                  double scale, const ConstDense& y, const ConstDense& dy,
                                  const Dense& dx) override {
    return cuda::RowSoftmaxGradient(stream_, row_offsets, type, scale, y, dy, dx);
  }
  absl::Status ScaleNonzeros(const NonzeroScaling& scaling, ElementType type) override {
    return cuda::ScaleNonzeros(stream_, scaling, type);
  }
  absl::Status TotalNonzeros(const NonzeroTotals& totals, ElementType type) override {
    return cuda::TotalNonzeros(stream_, totals, type);
  }
  absl::Status ComputeEdgeAttention(const EdgeAttention& attention, ElementType type) override {
    const absl::StatusOr<Context> there =
        ContextWith(cuda::EdgeAttentionWorkspace(attention, type));
    return there.ok() ? cuda::ComputeEdgeAttention(*there, attention, type) : there.status();
  }
  absl::Status ComputeEdgeAttentionGradient(const EdgeAttentionGradient& gradient,
                                            ElementType type) override {
    const absl::StatusOr<Context> there = ContextWith(cuda::EdgeAttentionWorkspace(gradient, type));
    return there.ok() ? cuda::ComputeEdgeAttentionGradient(*there, gradient, type) : there.status();
  }
  absl::Status WeightedSum(std::span<const WeightedTerm> terms, ElementType type,
                           const Dense& to) override {
    return cuda::WeightedSum(stream_, terms, type, to);
  }

 protected:
  cuda::Stream& stream() { return stream_; }

 private:
  absl::StatusOr<Context> ContextWith(size_t workspace) {
    if (absl::Status grown = Grow(scratch, workspace); !grown.ok()) return grown;
    Context there = context();
    there.workspace = {scratch.mutable_data(), scratch.size()};
    return there;
  }

  cuda::Stream stream_;
  MemorySource& memory_;
};

/// One run's, of which a graph is made. What it has stays as it is for as long as the graph.
class GraphSite final : public StreamSite {
 public:
  using StreamSite::StreamSite;
  bool keeps() const override { return false; }
  void Keep(const std::shared_ptr<const void>& used) override { kept_.push_back(used); }

 private:
  std::vector<std::shared_ptr<const void>> kept_;
};

/// Measures some of the runs that are queued, which are of one problem, say, and says what to
/// account for all of them. Thread-safe.
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
  QueueSite(void* stream, MemorySource& memory, Timing timing, std::shared_ptr<KernelClock> clock)
      : StreamSite(stream, memory), timing_(timing), clock_(std::move(clock)) {}
  /// Waits for what was queued, which uses its memory. The stream itself may be no more.
  ~QueueSite() override {
    if (passed_) passed_->Synchronize().IgnoreError();
  }

  bool keeps() const override { return true; }
  void Keep(const std::shared_ptr<const void>& used) override {
    if (std::ranges::find(kept_, used) == kept_.end()) kept_.push_back(used);
  }
  absl::Status Settle() override {
    if (absl::Status done = stream().Synchronize(); !done.ok()) return done;
    std::erase_if(kept_, [](const auto& kept) { return kept.use_count() == 1; });
    return absl::OkStatus();
  }
  absl::Status Timed(const std::function<absl::Status()>& kernel) override {
    return timing_ == Timing::kKernels ? clock_->Timed(stream(), kernel) : kernel();
  }

  ExportedProduct::Accounted Run(const Sites::Work& work, int gpu) {
    if (!passed_) {
      absl::StatusOr<cuda::Event> event = cuda::Event::CreateUntimed();
      if (!event.ok()) return event.status();
      passed_.emplace(*std::move(event));
    }
    LetGoOfOld(gpu);
    absl::Status status = timing_ == Timing::kRuns
                              ? clock_->Timed(stream(), [&] { return work(*this); })
                              : work(*this);
    // Also of what went wrong midway.
    const absl::Status recorded = passed_->Record(stream());
    if (status.ok()) status = recorded;
    if (!status.ok()) return status;
    return clock_->Account();
  }

  Mutex mutex;        ///< held by who uses it
  uint64_t used = 0;  ///< when, as the sites count; guarded by them

 private:
  /// What nobody else has any more, once the stream has passed what was queued before.
  void LetGoOfOld(int gpu) {
    const bool too_many = kept_.size() > kMostKept;
    const auto old = std::stable_partition(kept_.begin(), kept_.end(), [&](const auto& kept) {
      return !too_many && kept.use_count() > 1;
    });
    if (old == kept_.end()) return;
    auto gone = std::make_shared<std::vector<std::shared_ptr<const void>>>(
        std::move_iterator(old), std::move_iterator(kept_.end()));
    kept_.erase(old, kept_.end());
    absl::StatusOr<cuda::Event> event = cuda::Event::CreateUntimed();
    if (!event.ok() || !event->Record(stream()).ok()) {
      passed_->Synchronize().IgnoreError();  // of the run before
      return;
    }
    LetGo(gpu, [gone = std::move(gone),
                passed = std::make_shared<cuda::Event>(*std::move(event))]() mutable {
      passed->Synchronize().IgnoreError();
      gone = nullptr;
      passed = nullptr;
    });
  }

  const Timing timing_;
  const std::shared_ptr<KernelClock> clock_;
  std::vector<std::shared_ptr<const void>> kept_;
  std::optional<cuda::Event> passed_;
};

class GpuSites final : public Sites, public std::enable_shared_from_this<GpuSites> {
 public:
  GpuSites(int gpu, Timing timing, std::shared_ptr<KernelClock> clock)
      : gpu_(gpu), timing_(timing), clock_(std::move(clock)), workspaces_(*this) {}

  /// Waits for what was queued.
  ~GpuSites() override {
    const cuda::DeviceScope scope(gpu_);
    const cuda::CaptureScope whatever_others_capture;
    const MutexLock lock(mutex_);
    sites_.clear();
  }

  ExportedProduct::Accounted At(const ExportedProduct::Where& where, const Work& work) override {
    const cuda::DeviceScope scope(gpu_);
    const cuda::CaptureScope whatever_others_capture;
    const absl::StatusOr<bool> captured = cuda::IsCaptured(cuda::Stream::Of(where.stream));
    if (!captured.ok()) return captured.status();
    if (*captured) return Capture(where.stream, work);
    const absl::StatusOr<std::shared_ptr<QueueSite>> site = SiteOf(where.stream);
    if (!site.ok()) return site.status();
    const MutexLock lock((*site)->mutex);
    return (*site)->Run(work, gpu_);
  }

 private:
  /// Memory of the GPU that any stream may use at once.
  class Workspaces final : public MemorySource {
   public:
    explicit Workspaces(GpuSites& sites) : sites_(sites) {}
    absl::StatusOr<Buffer> Allocate(size_t bytes) override { return sites_.Allocate(bytes); }

   private:
    GpuSites& sites_;
  };

  /// What a graph keeps.
  struct Captured {
    Captured(std::shared_ptr<GpuSites> of, void* stream)
        : sites(std::move(of)), site(stream, sites->workspaces_) {}
    const std::shared_ptr<GpuSites> sites;
    GraphSite site;  ///< goes first
  };

  ExportedProduct::Accounted Capture(void* stream, const Work& work) {
    const std::shared_ptr<Captured> captured =
        LetGoLater(new Captured(shared_from_this(), stream), gpu_);
    // First: if the work fails midway, what it queued is part of the graph all the same.
    absl::Status status = cuda::KeepWithGraph(cuda::Stream::Of(stream), captured);
    if (status.ok()) status = work(captured->site);
    if (!status.ok()) return status;
    return std::nullopt;
  }

  absl::StatusOr<std::shared_ptr<QueueSite>> SiteOf(void* stream) {
    const absl::StatusOr<cuda::QueueId> id = cuda::IdOf(cuda::Stream::Of(stream));
    if (!id.ok()) return id.status();
    const MutexLock lock(mutex_);
    std::shared_ptr<QueueSite>& site = sites_[*id];
    if (site == nullptr) site = std::make_shared<QueueSite>(stream, workspaces_, timing_, clock_);
    site->used = ++now_;
    std::shared_ptr<QueueSite> found = site;
    if (sites_.size() > kMostStreams) ForgetOneLocked();
    return found;
  }

  /// Some of the streams are no more, but nobody knows which.
  void ForgetOneLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto oldest = sites_.end();
    for (auto it = sites_.begin(); it != sites_.end(); ++it) {
      // Others get it from here alone, so nobody has it, nor can get it meanwhile.
      if (it->second.use_count() > 1) continue;
      if (oldest == sites_.end() || it->second->used < oldest->second->used) oldest = it;
    }
    if (oldest == sites_.end()) return;
    // Before what its runs use, and before these sites, whose memory it has: they go there, too.
    LetGo(gpu_, [site = std::move(oldest->second)]() mutable { site = nullptr; });
    sites_.erase(oldest);
  }

  absl::StatusOr<Buffer> Allocate(size_t bytes) {
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
  const Timing timing_;
  const std::shared_ptr<KernelClock> clock_;
  Workspaces workspaces_;
  Mutex allocating_;
  std::optional<cuda::Stream> stream_ ABSL_GUARDED_BY(allocating_);
  std::unique_ptr<MemorySource> source_ ABSL_GUARDED_BY(allocating_);
  Mutex mutex_;
  std::map<cuda::QueueId, std::shared_ptr<QueueSite>> sites_ ABSL_GUARDED_BY(mutex_);
  uint64_t now_ ABSL_GUARDED_BY(mutex_) = 0;
};

class MappedGpuMemory final : public MappedMemory {
 public:
  explicit MappedGpuMemory(Buffer memory)
      : MappedMemory(memory.data(), memory.size()), memory_(std::move(memory)) {}

 private:
  const Buffer memory_;
};

}  // namespace

void LetGo(int gpu, std::function<void()> destroy) {
  Undertaker::Get().LetGo([gpu, destroy = std::move(destroy)]() mutable {
    const cuda::DeviceScope scope(gpu);
    destroy();
    destroy = nullptr;
  });
}

std::shared_ptr<Sites> MakeGpuSites(int gpu, Timing timing,
                                    std::shared_ptr<ExportedProduct::Clock>& clock) {
  if (clock == nullptr) clock = std::make_shared<KernelClock>(gpu);
  return std::make_shared<GpuSites>(gpu, timing, std::static_pointer_cast<KernelClock>(clock));
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

absl::Status CheckNotPartOfGraph(int gpu, void* stream) {
  const cuda::DeviceScope scope(gpu);
  const absl::StatusOr<bool> captured = cuda::IsCaptured(cuda::Stream::Of(stream));
  if (!captured.ok()) return captured.status();
  if (!*captured) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a product that cannot run here cannot become part of a graph");
}

absl::Status CopyBetween(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t row_bytes, size_t rows, int gpu, void* stream) {
  if (absl::Status s = CheckNotPartOfGraph(gpu, stream); !s.ok()) return s;
  const cuda::DeviceScope scope(gpu);
  const cuda::CaptureScope whatever_others_capture;
  cuda::Stream copies = cuda::Stream::Of(stream);
  const absl::Status queued = copies.CopyRows(to, to_pitch, from, from_pitch, row_bytes, rows);
  const absl::Status done = copies.Synchronize();
  return queued.ok() ? done : queued;
}

}  // namespace client
}  // namespace sparsed
