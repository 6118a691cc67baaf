#include "engine/execution/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/execution/backend.h"
#include "engine/execution/cpu_backend.h"
#include "engine/execution/gpu_backend.h"
#include "engine/memory/processor.h"
#include "engine/planning/candidates.h"
#include "kernels/bound_run.h"
#include "kernels/cpu/memory_reads.h"
#include "kernels/cpu/multiply_add.h"
#include "kernels/cuda/probes.h"
#include "kernels/formats/csr.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTries = 7;
/// Of steps that ended as somebody waited, of all together.
constexpr int kMostInterruptions = 20;
/// Of what runs on the device alone, of what the host and its system take part in.
constexpr double kNear = 0.9, kNearWithHost = 0.75;
/// More than any cache, and so much that starting it does not count.
constexpr size_t kMemoryBytes = size_t{256} << 20;
/// Of copies between the host and a GPU.
constexpr size_t kCopiedBytes = size_t{64} << 20;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Random columns, so many a row, one of each part of the columns.
struct Scattered {
  static constexpr int64_t kOfRow = 8, kK = 32;

  static absl::StatusOr<Scattered> Make(int64_t rows, MemorySource& memory) {
    absl::StatusOr<Array> offsets =
        AllocateArray(memory, "row_offsets", ElementType::kI64, rows + 1);
    absl::StatusOr<Array> columns =
        AllocateArray(memory, "column_indices", ElementType::kI32, rows * kOfRow);
    absl::StatusOr<Array> values =
        AllocateArray(memory, "values", ElementType::kF32, rows * kOfRow);
    for (const auto* array : {&offsets, &columns, &values}) {
      if (!array->ok()) return array->status();
    }
    const int64_t part = rows / kOfRow;
    uint64_t state = 1;
    for (int64_t i = 0; i <= rows; ++i) offsets->MutableAs<int64_t>()[i] = i * kOfRow;
    for (int64_t i = 0; i < rows * kOfRow; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto within = static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(part));
      columns->MutableAs<int32_t>()[i] = static_cast<int32_t>(i % kOfRow * part + within);
    }
    std::ranges::fill(values->MutableAs<float>(), 1.0f);
    Scattered scattered;
    scattered.csr = std::make_shared<Layout>(
        MakeHostCsrLayout(rows, rows, *std::move(offsets), *std::move(columns)));
    scattered.values = *std::move(values);
    return scattered;
  }

  std::shared_ptr<const Layout> csr;
  Array values;
};

/// Of one device.
class Steps {
 public:
  /// `wanted`: somebody waits for a worker slot of the device.
  Steps(Backend& backend, MemorySource& host, const std::atomic<bool>* stop,
        const std::atomic<bool>* wanted)
      : backend_(backend), host_(host), stop_(stop), wanted_(wanted) {}
  virtual ~Steps() = default;

  using Step = std::function<absl::Status(WorkerSlot&)>;
  /// In the order in which they are to be taken; each may be taken again.
  virtual std::vector<Step> All() = 0;
  /// What they need, on no worker slot.
  virtual absl::Status Prepare() {
    absl::StatusOr<Scattered> matrix = Scattered::Make(matrix_rows(), host_);
    if (matrix.ok()) matrix_ = *std::move(matrix);
    return matrix.status();
  }
  const DeviceConstants& found() const { return found_; }

 protected:
  /// Of the matrix that is multiplied with: enough that no cache holds its operand, as far as that
  /// does not take long.
  virtual int64_t matrix_rows() const = 0;

  /// UNAVAILABLE where a request waits, so that the step ends; CANCELLED where all of it is to end.
  absl::Status CheckUnwanted() const {
    if (stop_ != nullptr && *stop_) return absl::CancelledError("it was stopped");
    return *wanted_ ? absl::UnavailableError("requests came all the time") : absl::OkStatus();
  }
  /// `rate` is one try's.
  absl::Status Find(double DeviceConstants::*constant, std::string_view what, double near,
                    const std::function<absl::StatusOr<double>()>& rate) {
    std::vector<double> rates;
    for (int i = 0; i <= kTries; ++i) {
      if (absl::Status unwanted = CheckUnwanted(); !unwanted.ok()) return unwanted;
      const absl::StatusOr<double> one = rate();
      if (!one.ok()) return one.status();
      if (i > 0) rates.push_back(*one);  // the first warms up
    }
    const absl::StatusOr<double> agreed = Agreed(what, std::move(rates), near);
    if (!agreed.ok()) return agreed.status();
    found_.*constant = *agreed;
    return absl::OkStatus();
  }

  /// What `measure` says, unless others computed meanwhile, as far as that can be told of the
  /// device. `computes`: all of it is work of the team.
  virtual absl::Status Alone(std::string_view /*what*/, bool /*computes*/,
                             const std::function<absl::Status()>& measure) const {
    return measure();
  }

  /// An SpMM of plain CSR's first kernel, whose operand is larger than most caches.
  absl::Status Multiply(double near, WorkerSlot& slot) {
    const int64_t rows = matrix_rows();
    const absl::StatusOr<PlacedSparse> placed = backend_.Place(matrix_.csr, &matrix_.values, host_);
    if (!placed.ok()) return placed.status();
    MemorySource& memory = backend_.memory(MemoryUse::kPreparation);
    constexpr int64_t kK = Scattered::kK;
    absl::StatusOr<Array> period = AllocateArray(host_, "operand", ElementType::kF32, 1 << 16);
    absl::StatusOr<Array> b = AllocateArray(memory, "operand", ElementType::kF32, rows * kK);
    absl::StatusOr<Array> c = AllocateArray(memory, "result", ElementType::kF32, rows * kK);
    for (const auto* array : {&period, &b, &c}) {
      if (!array->ok()) return array->status();
    }
    std::ranges::fill(period->MutableAs<float>(), 1.0f);
    if (absl::Status filled = backend_.Repeat(*period, *b, slot); !filled.ok()) return filled;
    const Problem problem{.operation = Operation::kSpmm,
                          .type = ElementType::kF32,
                          .k = kK,
                          .device = backend_.id().kind};
    const std::vector<std::string_view> kernels = KernelsFor(problem, *placed->layout);
    if (kernels.empty()) return absl::InternalError("plain CSR has no kernel");
    RunArguments arguments;
    arguments.values = placed->values->buffer.data();
    arguments.dense[0] = {b->buffer.data(), rows, kK, kK};
    arguments.result = {c->buffer.mutable_data(), rows, kK, kK};
    const BoundRun run(*FindLayoutKernel(Operation::kSpmm, kernels.front()), problem,
                       placed->layout, arguments);
    Buffer workspace;
    const double work = static_cast<double>(rows * Scattered::kOfRow * kK);
    const auto rate = [&]() -> absl::StatusOr<double> {
      double milliseconds = 0;
      const absl::Status ran = backend_.Run(slot, run, {workspace, memory, stop_}, &milliseconds);
      if (!ran.ok()) return ran;
      return work / std::max(milliseconds * 1e-3, 1e-9);
    };
    constexpr std::string_view kWhat = "an SpMM";
    return Alone(kWhat, /*computes=*/false, [&] {
      return Find(&DeviceConstants::multiplications_per_second, kWhat, near, rate);
    });
  }

  Backend& backend_;
  MemorySource& host_;
  const std::atomic<bool>*const stop_, *const wanted_;
  DeviceConstants found_;

 private:
  Scattered matrix_;
};

class GpuSteps final : public Steps {
 public:
  GpuSteps(GpuBackend& gpu, MemorySource& host, const std::atomic<bool>* stop,
           const std::atomic<bool>* wanted)
      : Steps(gpu, host, stop, wanted), device_(gpu.device()) {}

  std::vector<Step> All() override {
    using cuda::Probe;
    using D = DeviceConstants;
    return {
        [this](WorkerSlot& slot) { return Begin(slot); },
        [this](WorkerSlot& slot) { return Copies(slot); },
        [this](WorkerSlot& slot) {
          return Rate(slot, &D::read_bytes_per_second, "reading memory", Probe::kMemoryReads,
                      kMemoryBytes, 1);
        },
        [this](WorkerSlot& slot) {
          return Rate(slot, &D::cache_bytes_per_second, "reading the cache", Probe::kCacheReads,
                      CachedBytes(), 32);
        },
        [this](WorkerSlot& slot) {
          return Rate(slot, &D::shared_bytes_per_second, "reading shared memory",
                      Probe::kSharedReads, cuda::kLeastProbeBytes, 1);
        },
        [this](WorkerSlot& slot) {
          return Rate(slot, &D::atomic_adds_per_second, "adding atomically", Probe::kAtomicAdds,
                      CachedBytes(), 4);
        },
        [this](WorkerSlot& slot) {
          return Rate(slot, &D::f32_flops_per_second, "multiplying f32", Probe::kMultiplyF32,
                      cuda::kLeastProbeBytes, 1);
        },
        [this](WorkerSlot& slot) {
          return Rate(slot, &D::f64_flops_per_second, "multiplying f64", Probe::kMultiplyF64,
                      cuda::kLeastProbeBytes, 1);
        },
        [this](WorkerSlot& slot) { return Launches(slot); },
        [this](WorkerSlot& slot) { return HostCopies(slot); },
        [this](WorkerSlot& slot) {
          memory_ = Buffer();
          return Multiply(kNear, slot);
        },
    };
  }

 private:
  int64_t matrix_rows() const override { return int64_t{1} << 20; }
  std::span<std::byte> Memory(size_t bytes) { return {memory_.mutable_data(), bytes}; }
  /// What lies in the cache however that is divided, a multiple of a probe's words.
  size_t CachedBytes() const {
    const size_t quarter = device_.info().l2_bytes / 4;
    return std::clamp(quarter, cuda::kLeastProbeBytes, kMemoryBytes) / 4096 * 4096;
  }

  /// Memory, and the clocks on their way up.
  absl::Status Begin(WorkerSlot& slot) {
    constexpr double kWarmUpSeconds = 0.05;
    memory_ = Buffer();
    absl::StatusOr<Buffer> memory = backend_.memory(MemoryUse::kPreparation).Allocate(kMemoryBytes);
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    absl::Status filled = slot.gpu->stream.Fill(memory_.mutable_data(), 0, kMemoryBytes);
    const Clock::time_point begin = Clock::now();
    while (filled.ok() && SecondsSince(begin) < kWarmUpSeconds) {
      filled =
          cuda::QueueProbe(slot.gpu->stream, cuda::Probe::kMultiplyF32, Memory(kMemoryBytes), 1)
              .status();
      const absl::Status done = device_.Settle(slot.gpu->stream);
      if (filled.ok()) filled = done;
    }
    return filled;
  }

  absl::Status Rate(WorkerSlot& slot, double DeviceConstants::*constant, std::string_view what,
                    cuda::Probe probe, size_t bytes, int repeats) {
    return Find(constant, what, kNear, [&]() -> absl::StatusOr<double> {
      double amount = 0;
      const absl::StatusOr<double> ms = device_.Timed(*slot.gpu, [&] {
        const absl::StatusOr<double> queued =
            cuda::QueueProbe(slot.gpu->stream, probe, Memory(bytes), repeats);
        if (queued.ok()) amount = *queued;
        return queued.status();
      });
      if (!ms.ok()) return ms.status();
      return amount / std::max(*ms * 1e-3, 1e-9);
    });
  }

  absl::Status Copies(WorkerSlot& slot) {
    constexpr size_t kHalf = kMemoryBytes / 2;
    return Find(&DeviceConstants::copy_bytes_per_second, "copying memory", kNear,
                [&]() -> absl::StatusOr<double> {
                  const absl::StatusOr<double> ms = device_.Timed(*slot.gpu, [&] {
                    return slot.gpu->stream.Copy(memory_.mutable_data() + kHalf, memory_.data(),
                                                 kHalf);
                  });
                  if (!ms.ok()) return ms.status();
                  return 2.0 * kHalf / std::max(*ms * 1e-3, 1e-9);
                });
  }

  absl::Status Launches(WorkerSlot& slot) {
    constexpr int kLaunches = 50, kQueued = 400;
    double rate = 0;  // a second
    const auto launch = [&](int repeats) {
      return cuda::QueueProbe(slot.gpu->stream, cuda::Probe::kEmpty, Memory(kMemoryBytes), repeats)
          .status();
    };
    absl::Status status = Median(
        [&]() -> absl::StatusOr<double> {
          const Clock::time_point begin = Clock::now();
          for (int i = 0; i < kLaunches; ++i) {
            if (absl::Status s = launch(1); !s.ok()) return s;
            if (absl::Status s = device_.Settle(slot.gpu->stream); !s.ok()) return s;
          }
          return SecondsSince(begin) / kLaunches;
        },
        &rate);
    if (!status.ok()) return status;
    found_.launch_seconds = rate;
    status = Median(
        [&]() -> absl::StatusOr<double> {
          const absl::StatusOr<double> ms =
              device_.Timed(*slot.gpu, [&] { return launch(kQueued); });
          if (!ms.ok()) return ms.status();
          return *ms * 1e-3 / kQueued;
        },
        &rate);
    if (status.ok()) found_.queued_launch_seconds = rate;
    return status;
  }

  /// Times of the host, which nobody has to himself: half of them are longer.
  absl::Status Median(const std::function<absl::StatusOr<double>()>& seconds,
                      double* median) const {
    std::vector<double> all;
    for (int i = 0; i <= kTries; ++i) {
      if (absl::Status unwanted = CheckUnwanted(); !unwanted.ok()) return unwanted;
      const absl::StatusOr<double> one = seconds();
      if (!one.ok()) return one.status();
      if (i > 0) all.push_back(*one);
    }
    std::ranges::nth_element(all, all.begin() + kTries / 2);
    *median = all[kTries / 2];
    return absl::OkStatus();
  }

  absl::Status HostCopies(WorkerSlot& slot) {
    absl::StatusOr<Buffer> host = host_.Allocate(kCopiedBytes);
    if (!host.ok()) return host.status();
    std::memset(host->mutable_data(), 1, kCopiedBytes);
    const auto copies = [&](double DeviceConstants::*constant,
                            const std::function<absl::Status()>& copy) {
      double seconds = 0;
      const absl::Status status = Median(
          [&]() -> absl::StatusOr<double> {
            const Clock::time_point begin = Clock::now();
            if (absl::Status s = copy(); !s.ok()) return s;
            return SecondsSince(begin);
          },
          &seconds);
      if (status.ok() && seconds > 0) found_.*constant = kCopiedBytes / seconds;
      return status;
    };
    cuda::Stream& stream = slot.gpu->stream;
    absl::Status status = copies(&DeviceConstants::to_device_bytes_per_second, [&] {
      return device_.CopyIn(stream, memory_.mutable_data(), host->data(), kCopiedBytes);
    });
    if (status.ok()) {
      status = copies(&DeviceConstants::from_device_bytes_per_second, [&] {
        return device_.CopyOut(stream, host->mutable_data(), memory_.data(), kCopiedBytes);
      });
    }
    if (!status.ok()) return status;
    const absl::StatusOr<Buffer> pinned = device_.Pin(*host);
    // A system that does not let us pin has no such copies.
    if (!pinned.ok()) return absl::OkStatus();
    return copies(&DeviceConstants::link_bytes_per_second, [&] {
      return device_.CopyIn(stream, memory_.mutable_data(), pinned->data(), kCopiedBytes);
    });
  }

  Device& device_;
  Buffer memory_;
};

class CpuSteps final : public Steps {
 public:
  CpuSteps(CpuBackend& cpu, MemorySource& host, const std::atomic<bool>* stop,
           const std::atomic<bool>* wanted)
      : Steps(cpu, host, stop, wanted), threads_(cpu.threads_per_slot()) {}

  absl::Status Prepare() override {
    if (absl::Status made = Steps::Prepare(); !made.ok()) return made;
    return MakeMemory();
  }

  std::vector<Step> All() override {
    using D = DeviceConstants;
    return {
        [this](WorkerSlot&) {
          if (!beyond_caches_) return absl::OkStatus();
          const size_t half = memory_.size() / 2;
          return Timed(&D::copy_bytes_per_second, "copying memory", [&](int repeats) {
            return cpu::CopyMemory({memory_.data(), half}, {memory_.mutable_data() + half, half},
                                   repeats, threads_);
          });
        },
        [this](WorkerSlot&) {
          if (!beyond_caches_) return absl::OkStatus();
          return Timed(&D::read_bytes_per_second, "reading memory", [this](int repeats) {
            return cpu::ReadMemory({memory_.data(), memory_.size()}, repeats, threads_);
          });
        },
        [this](WorkerSlot&) {
          const size_t bytes =
              std::min(static_cast<size_t>(CacheRateBytes(backend_.cache_bytes(), threads_)),
                       memory_.size());
          return Timed(&D::cache_bytes_per_second, "reading the cache", [this, bytes](int repeats) {
            return cpu::ReadMemory({memory_.data(), bytes}, repeats, threads_);
          });
        },
        [this](WorkerSlot&) {
          memory_ = Buffer();
          return Flops(&D::f32_flops_per_second, "multiplying f32", ElementType::kF32);
        },
        [this](WorkerSlot&) {
          return Flops(&D::f64_flops_per_second, "multiplying f64", ElementType::kF64);
        },
        [this](WorkerSlot&) { return Teams(); },
        [this](WorkerSlot& slot) { return Multiply(kNearWithHost, slot); },
    };
  }

 private:
  int64_t matrix_rows() const override { return int64_t{1} << 18; }

  absl::Status Alone(std::string_view what, bool computes,
                     const std::function<absl::Status()>& measure) const override {
    const Clock::time_point begin = Clock::now();
    const double caller = ProcessorSeconds(CLOCK_THREAD_CPUTIME_ID);
    const double process = ProcessorSeconds(CLOCK_PROCESS_CPUTIME_ID);
    if (absl::Status measured = measure(); !measured.ok()) return measured;
    const double all = std::max(SecondsSince(begin), 1e-9);
    return CheckAlone(what,
                      {(ProcessorSeconds(CLOCK_THREAD_CPUTIME_ID) - caller) / all,
                       (ProcessorSeconds(CLOCK_PROCESS_CPUTIME_ID) - process) / (all * threads_)},
                      computes && threads_ == 1);
  }

  /// Memory: more than the caches hold, as far as that is not much of the machine's. A system may
  /// name the cache of one group of cores alone: so it is also as much as a thread has of any.
  absl::Status MakeMemory() {
    constexpr size_t kLeast = size_t{128} << 20, kMost = size_t{1} << 30;
    constexpr size_t kOfThread = size_t{8} << 20;
    const size_t wanted = std::clamp(std::max(static_cast<size_t>(2 * backend_.cache_bytes()),
                                              kOfThread * static_cast<size_t>(threads_)),
                                     kLeast, kMost);
    absl::StatusOr<Buffer> memory = host_.Allocate(wanted);
    beyond_caches_ = memory.ok() && wanted > static_cast<size_t>(backend_.cache_bytes());
    if (absl::IsResourceExhausted(memory.status())) memory = host_.Allocate(kLeast);
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    // Pages that the system has yet to make: a second of them is long for whoever stops the server.
    constexpr size_t kPart = size_t{64} << 20;
    for (size_t at = 0; at < memory_.size(); at += kPart) {
      if (absl::Status wanted = CheckUnwanted(); absl::IsCancelled(wanted)) return wanted;
      std::memset(memory_.mutable_data() + at, 1, std::min(kPart, memory_.size() - at));
    }
    return absl::OkStatus();
  }

  absl::Status Flops(double DeviceConstants::*constant, std::string_view what, ElementType type) {
    constexpr int64_t kSteps = 1 << 17;
    return Timed(constant, what,
                 [&](int repeats) { return cpu::MultiplyAdd(type, kSteps * repeats, threads_); });
  }

  absl::Status Teams() {
    const absl::Status status = Timed(
        &DeviceConstants::launch_seconds, "starting teams",
        [&](int repeats) {
          cpu::StartTeams(100 * repeats, threads_);
          return 100.0 * repeats;
        },
        /*computes=*/false);
    if (status.ok()) found_.launch_seconds = 1 / found_.launch_seconds;
    return status;
  }

  /// `work` does its work so many times, and returns how much that is.
  absl::Status Timed(double DeviceConstants::*constant, std::string_view what,
                     const std::function<double(int)>& work, bool computes = true) {
    // So long that starting and ending a team does not count.
    constexpr double kSeconds = 0.01;
    const auto seconds = [&](int repeats, double* done) {
      const Clock::time_point begin = Clock::now();
      *done = work(repeats);
      return std::max(SecondsSince(begin), 1e-9);
    };
    if (absl::Status unwanted = CheckUnwanted(); !unwanted.ok()) return unwanted;
    double done = 0;
    seconds(1, &done);  // pages and clocks
    const double once = seconds(1, &done);
    const int repeats = static_cast<int>(std::clamp(std::ceil(kSeconds / once), 1.0, 1e6));
    return Alone(what, computes, [&] {
      return Find(constant, what, kNearWithHost, [&]() -> absl::StatusOr<double> {
        const double taken = seconds(repeats, &done);
        return done / taken;
      });
    });
  }

  const int threads_;
  Buffer memory_;
  bool beyond_caches_ = false;  ///< memory_ is larger than they are
};

}  // namespace

absl::StatusOr<double> Agreed(std::string_view what, std::vector<double> rates, double near) {
  std::ranges::sort(rates, std::greater<>());
  const double best = rates.front(), median = rates[rates.size() / 2];
  if (median >= near * best) return best;
  return absl::AbortedError(fmt::format(
      "others used the device meanwhile: {} went at {:.3g} a second once, and half of the time at "
      "{:.3g} or less",
      what, best, median));
}

absl::Status CheckAlone(std::string_view what, const ProcessorShares& shares, bool computes) {
  // As for the rate of its memory (MemoryRate).
  constexpr double kOwn = 0.9, kAlone = 1.05;
  if (computes && shares.caller < kOwn) {
    return absl::AbortedError(
        fmt::format("others used the device meanwhile: {} had {:.0f} % of its processor", what,
                    100 * shares.caller));
  }
  if (shares.process <= kAlone) return absl::OkStatus();
  return absl::AbortedError(
      fmt::format("others used the device meanwhile: while {} was measured the server had {:.0f} % "
                  "as much again to compute",
                  what, 100 * (shares.process - 1)));
}

int64_t CacheRateBytes(int64_t cache_bytes, int threads) {
  constexpr int64_t kLeast = int64_t{1} << 20, kOfThread = int64_t{4} << 20;
  return std::clamp(cache_bytes / 2, kLeast, kOfThread * threads);
}

absl::StatusOr<Calibration> Calibrate(Executor& executor, MemorySource& host, DeviceId device,
                                      const std::atomic<bool>* stop, Clock::time_point until) {
  const Clock::time_point begin = Clock::now();
  Backend& backend = executor.backend(device);
  std::unique_ptr<Steps> steps;
  if (device.kind == DeviceKind::kCpu) {
    steps = std::make_unique<CpuSteps>(static_cast<CpuBackend&>(backend), host, stop,
                                       executor.wanted(device));
  } else {
    if (absl::Status status = backend.status(); !status.ok()) return status;
    steps = std::make_unique<GpuSteps>(static_cast<GpuBackend&>(backend), host, stop,
                                       executor.wanted(device));
  }
  {
    const Budget::SpareOnly spare;  // nobody's arrays go for it
    if (absl::Status made = steps->Prepare(); !made.ok()) return made;
  }
  int interruptions = 0;
  const std::vector<Steps::Step> all = steps->All();
  for (size_t i = 0; i < all.size();) {
    absl::Status status;
    const absl::Status ran = executor.RunIdle(
        device,
        [&](WorkerSlot& slot) {
          const Budget::SpareOnly spare;
          const int before = executor.running(device);
          const double busy = executor.busy_seconds(device);
          status = all[i](slot);
          // Other worker slots': those that run, and those that ended meanwhile. This one's counts
          // later.
          const int beside = std::max(before, executor.running(device)) - 1;
          if (status.ok() && (beside > 0 || executor.busy_seconds(device) > busy)) {
            status = absl::AbortedError(
                "others used the device meanwhile: requests ran on other worker slots");
          }
        },
        stop, until);
    if (!ran.ok()) return ran;
    if (status.ok()) {
      ++i;
    } else if (!absl::IsUnavailable(status) || !backend.status().ok()) {
      return status;
    } else if (++interruptions > kMostInterruptions) {
      return absl::AbortedError(
          fmt::format("others used the device meanwhile: {}", std::string(status.message())));
    }
  }
  Calibration calibration;
  calibration.model = backend.model();
  calibration.measured_unix_ns =
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  calibration.seconds = SecondsSince(begin);
  calibration.constants = steps->found();
  if (absl::Status status = CheckConstants(calibration.constants); !status.ok()) return status;
  return calibration;
}

}  // namespace sparsed::engine
