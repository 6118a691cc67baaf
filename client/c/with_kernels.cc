// Products run in this process where it can attach to their matrix, else on the server.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>
#include <variant>

#include "client/c/local.h"
#include "client/c/steps.h"
#include "client/src/time_left.h"
#include "sparsed/attached.h"
#include "sparsed/gpu_memory.h"

namespace sparsed::c {
namespace {

using Clock = std::chrono::steady_clock;

/// After something was refused, for so long nobody asks again; twice as long after each time.
constexpr std::chrono::seconds kFirstPause{3}, kLongestPause{48};
/// For what this server is. A product waits for no more than that on top.
constexpr std::chrono::milliseconds kInfoTimeout{500};
/// As many as a process sees.
constexpr int kMostGpus = 64;

absl::Status NoSuchGpu(int gpu) {
  return absl::InvalidArgumentError(
      fmt::format("there is no GPU {}; a process sees at most {}", gpu, kMostGpus));
}

/// What is thrown for want of memory or of a thread is why there is none.
template <typename T, typename Make>
absl::StatusOr<T> Made(const Make& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(error.what());
  }
}

/// Something that is made when it is first used and stays, or was refused a moment ago.
template <typename T>
class Lazy {
 public:
  ~Lazy() { delete made_.load(); }

  /// Null: not there. Whoever comes while it is made goes without.
  template <typename Make>
  const T* Get(const Make& make) {
    if (const T* made = made_.load(std::memory_order_acquire)) return made;
    if (Clock::now().time_since_epoch().count() < again_.load(std::memory_order_relaxed) ||
        making_.exchange(true, std::memory_order_acquire)) {
      return nullptr;
    }
    absl::StatusOr<T> made = Made<T>(make);
    // What does not exist may be there with the next call.
    if (!made.ok() && !absl::IsNotFound(made.status())) {
      again_.store((Clock::now() + pause_).time_since_epoch().count(), std::memory_order_relaxed);
      pause_ = std::min(2 * pause_, kLongestPause);
    }
    const T* const known = made.ok() ? Keep(*std::move(made)) : nullptr;
    making_.store(false, std::memory_order_release);
    return known;
  }

  /// Makes it now, whatever was refused.
  template <typename Make>
  absl::Status Insist(const Make& make) {
    if (made_.load(std::memory_order_acquire) != nullptr) return absl::OkStatus();
    absl::StatusOr<T> made = Made<T>(make);
    if (made.ok()) Keep(*std::move(made));
    return made.status();
  }

 private:
  /// The first one stays.
  const T* Keep(T made) {
    auto* const kept = new T(std::move(made));
    const T* before = nullptr;
    if (made_.compare_exchange_strong(before, kept, std::memory_order_acq_rel)) return kept;
    delete kept;
    return before;
  }

  std::atomic<const T*> made_ = nullptr;
  std::atomic<bool> making_ = false;
  std::chrono::seconds pause_ = kFirstPause;  ///< of who makes it
  std::atomic<Clock::rep> again_ = Clock::time_point::min().time_since_epoch().count();
};

/// Of each GPU one, made when it is first asked for.
template <typename T>
class OfEachGpu {
 public:
  ~OfEachGpu() {
    for (std::atomic<T*>& one : all_) delete one.load();
  }
  /// `gpu` is below kMostGpus.
  T& operator[](int gpu) {
    std::atomic<T*>& place = all_[static_cast<size_t>(gpu)];
    if (T* const there = place.load(std::memory_order_acquire)) return *there;
    auto made = std::make_unique<T>();
    T* before = nullptr;
    if (!place.compare_exchange_strong(before, made.get(), std::memory_order_acq_rel)) {
      return *before;
    }
    return *made.release();
  }

 private:
  std::array<std::atomic<T*>, kMostGpus> all_{};
};

const DenseView& ViewOf(const Operand& operand) { return std::get<DenseView>(operand); }
const MutableDenseView& ViewOf(const Destination& destination) {
  return std::get<MutableDenseView>(destination);
}

/// Whether a server computes on the CPU, so that its plans are for that.
bool ServesFromCpu(const ServerInfo& server) {
  return std::ranges::none_of(server.devices, [](const DeviceInfo& device) {
    return device.unavailable.empty() && device.name.rfind("cuda", 0) == 0;
  });
}

}  // namespace

bool HasKernels() { return true; }

class LocalClient::Gpus {
 public:
  /// Memory of that GPU, from the server; null: refused.
  const GpuMemory* Memory(const Client& client, int gpu) {
    return memory_[gpu].Get([&] { return GpuMemory::Open(client, gpu); });
  }
  absl::StatusOr<GpuMemory> MemoryOrWhyNot(const Client& client, int gpu) {
    if (gpu < 0 || gpu >= kMostGpus) return NoSuchGpu(gpu);
    const auto open = [&] { return GpuMemory::Open(client, gpu); };
    if (absl::Status s = memory_[gpu].Insist(open); !s.ok()) return s;
    return *memory_[gpu].Get(open);
  }

 private:
  OfEachGpu<Lazy<GpuMemory>> memory_;
};

LocalClient::LocalClient(Client client, const LocalOptions& options)
    : client_(std::move(client)), options_(options), gpus_(std::make_unique<Gpus>()) {}
LocalClient::~LocalClient() = default;

absl::StatusOr<void*> LocalClient::AllocateOnGpu(const Place& place, size_t bytes) {
  const absl::StatusOr<GpuMemory> memory = gpus_->MemoryOrWhyNot(client_, place.gpu);
  if (!memory.ok()) return memory.status();
  return memory->AllocateBytes(bytes, GpuStream{place.stream});
}

absl::Status LocalClient::FreeOnGpu(const Place& place, void* data) {
  const absl::StatusOr<GpuMemory> memory = gpus_->MemoryOrWhyNot(client_, place.gpu);
  if (!memory.ok()) return memory.status();
  return memory->FreeBytes(data, GpuStream{place.stream});
}

absl::StatusOr<ComputeResult> LocalClient::Run(const Place& place, const Chain& chain,
                                               const CallOptions& options) {
  if (place.gpu < 0) return client_.Run(chain, options);
  return AttachedMatrix::RunOverHost(client_, chain, place.gpu, GpuStream{place.stream});
}

class LocalMatrix::Attachments {
 public:
  explicit Attachments(const LocalMatrix& matrix) : matrix_(matrix) {}

  /// The matrix attached on the CPU; null: it is not. For a call that has so much time left.
  const AttachedMatrix* OnCpu(const TimeLeft& time) {
    return cpu_.Get([this, &time]() -> absl::StatusOr<AttachedMatrix> {
      const LocalClient& local = *matrix_.client();
      if (!local.options().attach) return absl::FailedPreconditionError("nobody wants it");
      const absl::StatusOr<ServerInfo> server =
          local.client().GetServerInfo({.timeout = time.AtMost(kInfoTimeout)});
      if (!server.ok()) return server.status();
      if (!ServesFromCpu(*server)) return absl::FailedPreconditionError("the server has a GPU");
      return Attach(std::nullopt, time.rest().timeout);
    });
  }
  /// Likewise, on a GPU.
  const AttachedMatrix* OnGpu(int gpu, const TimeLeft& time) {
    if (!matrix_.client()->options().attach && !insisted_) return nullptr;
    return gpus_[gpu].Get([&] { return Attach(gpu, time.rest().timeout); });
  }

  absl::Status Insist(int gpu) {
    if (gpu < 0) return cpu_.Insist([this] { return Attach(std::nullopt); });
    if (gpu >= kMostGpus) return NoSuchGpu(gpu);
    insisted_ = true;
    return gpus_[gpu].Insist([&] { return Attach(gpu); });
  }

 private:
  absl::StatusOr<AttachedMatrix> Attach(
      std::optional<int> gpu, std::optional<std::chrono::nanoseconds> timeout = {}) const {
    const LocalClient& local = *matrix_.client();
    return AttachedMatrix::Attach(
        local.client(), matrix_.matrix().name(),
        {.threads = local.options().threads, .gpu = gpu, .timeout = timeout});
  }

  const LocalMatrix& matrix_;
  Lazy<AttachedMatrix> cpu_;
  OfEachGpu<Lazy<AttachedMatrix>> gpus_;
  std::atomic<bool> insisted_ = false;
};

LocalMatrix::LocalMatrix(std::shared_ptr<LocalClient> client, const std::string& name)
    : client_(std::move(client)),
      matrix_(client_->client().MatrixNamed(name)),
      attachments_(std::make_unique<Attachments>(*this)) {}
LocalMatrix::~LocalMatrix() = default;

absl::Status LocalMatrix::Attach(int gpu) { return attachments_->Insist(gpu); }

absl::StatusOr<ComputeResult> LocalMatrix::Spmm(const Place& place, const Operand& b,
                                                const Destination& c, const SpmmOptions& spmm,
                                                const CallOptions& options) {
  const TimeLeft time(options);
  if (place.gpu < 0) {
    const AttachedMatrix* const here = attachments_->OnCpu(time);
    return here != nullptr ? here->Spmm(b, c, spmm, time.rest())
                           : matrix_.Spmm(b, c, spmm, time.rest());
  }
  if (place.gpu >= kMostGpus) return NoSuchGpu(place.gpu);
  const GpuStream stream{place.stream};
  if (const AttachedMatrix* const here = attachments_->OnGpu(place.gpu, time)) {
    return here->Spmm(stream, ViewOf(b), ViewOf(c), spmm);
  }
  if (const GpuMemory* const memory = client_->gpus().Memory(client_->client(), place.gpu)) {
    return QueuedMatrix(*memory, matrix_).Spmm(stream, ViewOf(b), ViewOf(c), spmm);
  }
  return client_->Run(place, ChainOf(matrix_, b, c, spmm), time.rest());
}

absl::StatusOr<ComputeResult> LocalMatrix::Sddmm(const Place& place, const Operand& a,
                                                 const Operand& b, const Destination& values,
                                                 const SddmmOptions& sddmm,
                                                 const CallOptions& options) {
  const TimeLeft time(options);
  if (place.gpu < 0) {
    const AttachedMatrix* const here = attachments_->OnCpu(time);
    return here != nullptr ? here->Sddmm(a, b, values, sddmm, time.rest())
                           : matrix_.Sddmm(a, b, values, sddmm, time.rest());
  }
  if (place.gpu >= kMostGpus) return NoSuchGpu(place.gpu);
  const GpuStream stream{place.stream};
  if (const AttachedMatrix* const here = attachments_->OnGpu(place.gpu, time)) {
    return here->Sddmm(stream, ViewOf(a), ViewOf(b), ViewOf(values), sddmm);
  }
  if (const GpuMemory* const memory = client_->gpus().Memory(client_->client(), place.gpu)) {
    return QueuedMatrix(*memory, matrix_)
        .Sddmm(stream, ViewOf(a), ViewOf(b), ViewOf(values), sddmm);
  }
  return client_->Run(place, ChainOf(matrix_, a, b, values, sddmm, /*heads=*/1), time.rest());
}

absl::StatusOr<ComputeResult> LocalMatrix::Run(const Place& place, const Chain& chain,
                                               const CallOptions& options) {
  const TimeLeft time(options);
  if (place.gpu >= kMostGpus) return NoSuchGpu(place.gpu);
  if (place.gpu < 0) {
    const AttachedMatrix* const here = attachments_->OnCpu(time);
    return here != nullptr ? here->Run(chain, time.rest())
                           : client_->Run(place, chain, time.rest());
  }
  const AttachedMatrix* const here = attachments_->OnGpu(place.gpu, time);
  return here != nullptr ? here->Run(GpuStream{place.stream}, chain)
                         : client_->Run(place, chain, time.rest());
}

}  // namespace sparsed::c
