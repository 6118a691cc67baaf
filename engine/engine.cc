#include "engine/engine.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "base/sleep.h"
#include "engine/catalog/stored.h"
#include "engine/execution/calibrate.h"
#include "engine/execution/device_queues.h"
#include "engine/execution/distributions.h"
#include "engine/execution/gpu_backend.h"
#include "engine/memory/processor.h"
#include "engine/memory/shared_memory.h"
#include "kernels/cuda/exportable_memory.h"

namespace sparsed::engine {
namespace {

/// Bytes a second that a scrub reads at most, so that nobody notices it.
constexpr double kScrubRate = 50e6;
/// After which a pass begins again that found no memory or descriptors, at the latest.
constexpr std::chrono::duration<double> kScrubAgain = std::chrono::hours(1);
/// Memory that nobody took for so long, and at most for twice as long, goes back to the system.
/// Buffers are looked at as often.
constexpr std::chrono::seconds kKeepTime{2};
/// In a quiet moment, for how long a worker slot that nobody uses is waited for, and for how long
/// the steps of a calibration are all together: somebody may come after all.
constexpr std::chrono::milliseconds kQuietWait{500};
constexpr std::chrono::seconds kCalibrationWait{2};
/// After which a device that could not be calibrated is tried again, at the latest.
constexpr std::chrono::milliseconds kCalibrationAgain = std::chrono::hours(24);

bool HasAvx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") != 0;
#else
  return false;
#endif
}

std::string CpuDescription() {
#if defined(__x86_64__)
  const char* instructions = HasAvx512()                      ? "AVX-512"
                             : __builtin_cpu_supports("avx2") ? "AVX2"
                                                              : "SSE2";
#else
  const char* instructions = "portable SIMD";
#endif
  return fmt::format("{}, {} hardware threads, {}", ProcessorName(),
                     std::thread::hardware_concurrency(), instructions);
}

/// Tells of tenants that went past soft limits, by what was told of them before.
class SoftLimits {
 public:
  void Tell(const Tenants& tenants, Observer& observer) {
    for (const std::shared_ptr<Tenant>& tenant : tenants.All()) {
      for (int i = 0; i < kQuotas; ++i) {
        const auto quota = static_cast<Quota>(i);
        const int64_t warned = tenant->warned(quota);
        if (warned == 0) continue;
        int64_t& told = told_[{tenant->name(), quota}];
        if (warned > told) observer.OnSoftLimit(*tenant, quota, warned - told);
        told = warned;
      }
    }
  }

 private:
  std::map<std::pair<std::string, Quota>, int64_t> told_;
};

/// Until it is told to stop; `when_quiet` is called every `quiet_time` while no request is under
/// way.
void KeepHouse(const std::stop_token& stop, Budget& budget, Catalog& catalog, DenseCatalog& dense,
               Executor& executor, Observer& observer, std::chrono::milliseconds quiet_time,
               const std::function<void()>& when_quiet) {
  using Clock = std::chrono::steady_clock;
  SoftLimits soft_limits;
  Clock::time_point next_quiet = Clock::now() + quiet_time;
  while (SleepFor(kKeepTime, stop)) {
    if (const auto now = Clock::now(); now >= next_quiet && executor.in_flight() == 0) {
      // That it is too busy after all is no error.
      executor.SettleMemoryRate(nullptr, now + kQuietWait).IgnoreError();
      when_quiet();
      next_quiet = now + quiet_time;
    }
    budget.TrimKept();
    for (const DenseExpiry& expiry : dense.Expire(stop)) observer.OnDenseExpired(expiry);
    for (const MatrixExpiry& expiry : catalog.Expire(stop)) observer.OnMatrixExpired(expiry);
    soft_limits.Tell(budget.tenants(), observer);
  }
}

}  // namespace

/// Verifies every stored array now and then, slowly, on a thread of its own.
class Engine::Scrubber {
 public:
  /// `last`: Unix time of the last pass, 0 for none.
  Scrubber(Store& store, Budget& budget, Catalog& catalog, Observer& observer,
           double interval_seconds, int64_t last_unix_ns)
      : store_(store),
        budget_(budget),
        catalog_(catalog),
        observer_(observer),
        interval_(interval_seconds),
        first_(interval_ - Age(last_unix_ns)),
        thread_([this](const std::stop_token& stop) { Run(stop); }) {}

 private:
  static std::chrono::duration<double> Age(int64_t unix_ns) {
    const std::chrono::nanoseconds now = std::chrono::system_clock::now().time_since_epoch();
    return std::max(std::chrono::nanoseconds(0), now - std::chrono::nanoseconds(unix_ns));
  }

  /// Stores a layout again that is whole in memory. Without one its plans' signatures are wanted
  /// again, and a restart builds what they need instead of stumbling over the damage.
  absl::Status Repair(const ArrayOwner& layout) {
    std::shared_ptr<Pattern> owner;
    for (const MatrixLease& matrix : catalog_.All()) {
      const Pattern& pattern = *matrix->pattern();
      if (pattern.hash() != layout.pattern_hash) continue;
      owner = matrix->pattern();
      for (const Pattern::BuiltEntry& entry : pattern.Layouts()) {
        const std::shared_ptr<const Layout> whole = entry.layout->Resident();
        if (entry.description->pipeline != layout.pipeline || whole == nullptr) continue;
        const absl::StatusOr<LayoutRecord> stored =
            store_.PutLayout(pattern.hash(), *whole, entry.build_seconds);
        if (stored.ok())
          entry.layout->SetDiskCopy(DiskCopyOf(store_, budget_, pattern.payer(), *stored));
        // The pattern may have been deleted meanwhile.
        return absl::IsNotFound(stored.status()) ? absl::OkStatus() : stored.status();
      }
      break;
    }
    absl::Status dropped = store_.DropLayout(layout.pattern_hash, layout.pipeline);
    if (dropped.ok() && owner != nullptr) owner->SetOnDisk(layout.pipeline, nullptr);
    return dropped;
  }

  void Run(const std::stop_token& stop) {
    for (auto wait = first_; SleepFor(wait, stop);) {
      wait = interval_;
      const absl::Status status = store_.Scrub(
          [&stop](int64_t bytes) {
            const double seconds = static_cast<double>(bytes) / kScrubRate;
            return SleepFor(std::chrono::duration<double>(seconds), stop);
          },
          [this](const StoredArray& array, const absl::Status& damage) {
            observer_.OnDamage(std::string(damage.message()));
            if (array.owner.kind == ArrayOwner::Kind::kLayout) {
              const absl::Status repaired = Repair(array.owner);
              if (!repaired.ok()) observer_.OnDamage(std::string(repaired.message()));
            }
          });
      if (absl::IsResourceExhausted(status)) {
        wait = std::min(interval_, kScrubAgain);  // nothing is damaged
      } else if (!status.ok()) {
        observer_.OnDamage(std::string(status.message()));
      }
    }
  }

  Store& store_;
  Budget& budget_;
  Catalog& catalog_;
  Observer& observer_;
  const std::chrono::duration<double> interval_, first_;
  std::jthread thread_;  ///< last
};

absl::StatusOr<Buffer> Engine::Share(int file, int64_t most_bytes, std::string_view tenant) {
  absl::StatusOr<Buffer> memory = MapShared(file, most_bytes, *budget_, budget_->OwnerOf(tenant));
  if (!memory.ok() || gpus_.empty()) return memory;
  absl::StatusOr<Buffer> pinned = gpus_.front()->Pin(*memory);
  return pinned.ok() ? pinned : memory;
}

absl::StatusOr<GpuBackend*> Engine::GpuOf(std::string_view uuid) {
  if (uuid.empty()) return absl::InvalidArgumentError("the GPU's uuid is missing");
  return executor_->GpuOf(uuid);
}

absl::StatusOr<Engine::GpuMemory> Engine::AllocateShared(std::string_view gpu, size_t bytes,
                                                         std::string_view tenant) {
  const absl::StatusOr<GpuBackend*> found = GpuOf(gpu);
  if (!found.ok()) return found.status();
  if (bytes == 0) return absl::InvalidArgumentError("no bytes of memory to share");
  Device& device = (*found)->device();
  absl::StatusOr<Buffer> memory =
      device.budget()
          .ExportableSource(MemoryUse::kShared, &budget_->OwnerOf(tenant))
          .Allocate(bytes);
  if (!memory.ok()) return memory.status();
  // What was in that memory before is nobody's business.
  if (absl::Status s = device.Clear(memory->mutable_data(), bytes); !s.ok()) {
    return device.Checked(std::move(s));
  }
  const cuda::DeviceScope scope(device.ordinal());
  absl::StatusOr<Descriptor> file = cuda::Export(*memory);
  if (!file.ok()) return device.Checked(file.status());
  return GpuMemory{*std::move(memory), device.id(), *std::move(file)};
}

absl::StatusOr<Engine::GpuMemory> Engine::OpenCallerMemory(std::string_view gpu,
                                                           std::string_view handle,
                                                           uint64_t allocation, size_t bytes) {
  const absl::StatusOr<GpuBackend*> found = GpuOf(gpu);
  if (!found.ok()) return found.status();
  Device& device = (*found)->device();
  if (absl::Status s = device.status(); !s.ok()) return s;
  cuda::IpcHandle copy;
  if (handle.size() != copy.size()) {
    return absl::InvalidArgumentError(
        fmt::format("a handle of an allocation has {} bytes, not {}", copy.size(), handle.size()));
  }
  if (bytes == 0) return absl::InvalidArgumentError("no bytes of memory to use");
  std::ranges::copy(handle, copy.begin());
  absl::StatusOr<Buffer> memory = caller_memory_.Open(device.ordinal(), copy, allocation, bytes);
  if (!memory.ok()) return memory.status();
  return GpuMemory{*std::move(memory), device.id(), Descriptor()};
}

absl::StatusOr<std::shared_ptr<DeviceQueue>> Engine::OpenQueue(std::string_view gpu, int page,
                                                               std::string_view tenant) {
  const absl::StatusOr<GpuBackend*> found = GpuOf(gpu);
  if (!found.ok()) return found.status();
  struct stat facts = {};
  if (fstat(page, &facts) != 0 || facts.st_size != DeviceQueues::kPageBytes) {
    return absl::InvalidArgumentError(
        fmt::format("a queue takes a memory file of {} bytes", DeviceQueues::kPageBytes));
  }
  absl::StatusOr<Buffer> mapped =
      MapShared(page, DeviceQueues::kPageBytes, *budget_, budget_->OwnerOf(tenant));
  if (!mapped.ok()) return mapped.status();
  absl::StatusOr<Buffer> pinned = (*found)->device().Pin(*std::move(mapped));
  if (!pinned.ok()) {
    return absl::ResourceExhaustedError(fmt::format("the queue's page cannot be pinned: {}",
                                                    std::string(pinned.status().message())));
  }
  return (*found)->queues().Open(*std::move(pinned), tenant);
}

absl::StatusOr<std::optional<PatternMeasurements>> Engine::ReadNextPast(const std::string& hash) {
  absl::StatusOr<std::optional<PastPattern>> past =
      store_->ReadNextPast(hash, budget_->Source(MemoryUse::kPreparation));
  if (!past.ok()) return past.status();
  if (!*past) return std::optional<PatternMeasurements>();
  return FromRecord(**std::move(past));
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options,
                                                     Observer& observer) {
  std::unique_ptr<Engine> engine(new Engine(options, observer));
  if (options.data_dir.empty()) {
    engine->store_ = MakeInMemoryStore();
  } else {
    absl::StatusOr<std::unique_ptr<Store>> store =
        OpenStore(PosixFileSystem(), options.data_dir, options.past_measurement_bytes);
    if (!store.ok()) return store.status();
    engine->store_ = *std::move(store);
  }
  engine->budget_ =
      std::make_unique<Budget>(options.host_memory_bytes, options.preparation_memory_bytes);
  if (absl::Status status = engine->OpenGpus(observer); !status.ok()) return status;
  engine->catalog_ = std::make_unique<Catalog>(*engine->store_, *engine->budget_, options.catalog);
  DenseOptions dense = options.dense;
  dense.blocks = std::max<int64_t>(1, static_cast<int64_t>(engine->gpus_.size()));
  dense.choose = [raw = engine.get()](const MatrixLease& matrix, const DenseShape& shape,
                                      Store::Stop stop) -> absl::StatusOr<Distribution> {
    const Pattern& pattern = *matrix->pattern();
    const bool transposed = pattern.cols() != shape.rows;
    const absl::StatusOr<DistributionChoice> choice =
        ChooseDistribution(*raw->executor_, *matrix, transposed, shape.cols, stop,
                           /*best_alone=*/true);
    // Without memory to find out the buffer may still find room whole.
    if (absl::IsResourceExhausted(choice.status())) return Distribution::kWhole;
    if (!choice.ok()) return choice.status();
    return choice->best;
  };
  dense.on_moved_by_host = [&observer](int64_t bytes) { observer.OnMovedByHost(bytes); };
  engine->dense_ =
      std::make_unique<DenseCatalog>(*engine->store_, *engine->budget_, std::move(dense));
  absl::StatusOr<StoreContents> contents = engine->store_->Load();
  if (!contents.ok()) return contents.status();
  if (absl::Status status = engine->catalog_->Restore(*contents); !status.ok()) return status;
  if (absl::Status status = engine->dense_->Restore(*contents); !status.ok()) return status;
  std::vector<Device*> gpus;
  for (const std::unique_ptr<Device>& gpu : engine->gpus_) gpus.push_back(gpu.get());
  engine->executor_ = std::make_unique<Executor>(options.execution, *engine->catalog_,
                                                 *engine->dense_, *engine->budget_, observer, gpus);
  engine->ReadCalibrations();
  engine->preparation_ =
      std::make_unique<Preparation>(options.preparation, *engine->catalog_, *engine->store_,
                                    *engine->budget_, *engine->executor_, observer);
  Preparation& preparation = *engine->preparation_;
  engine->catalog_->on_published = [&preparation](MatrixLease matrix,
                                                  const std::vector<ProblemSignature>& signatures,
                                                  const Requester& requester) {
    preparation.Prepare(std::move(matrix), signatures, requester);
  };
  engine->catalog_->on_changed = [executor = engine->executor_.get()](std::string_view tenant,
                                                                      std::string_view name) {
    executor->MatrixChanged(tenant, name);
  };
  engine->catalog_->on_pattern_gone = [&preparation](const std::shared_ptr<Pattern>& pattern) {
    preparation.Forget(pattern);
  };
  engine->executor_->on_unknown_signature = [&preparation](const MatrixLease& matrix,
                                                           const Problem& problem) {
    preparation.RequestTrial(matrix, problem);
  };
  engine->executor_->on_new_rows = [&preparation](const MatrixLease& matrix, const Problem& problem,
                                                  const std::vector<int64_t>& bounds) {
    return preparation.RequestRows(matrix, problem, bounds);
  };
  engine->executor_->on_unknown_pair = [&preparation](const PatternProduct& product,
                                                      const Problem& problem) {
    preparation.RequestTrial(product, problem);
  };
  engine->OpenModels(observer);
  preparation.Restore(*contents);
  engine->housekeeper_ = std::jthread([raw = engine.get(), &observer](const std::stop_token& stop) {
    KeepHouse(stop, *raw->budget_, *raw->catalog_, *raw->dense_, *raw->executor_, observer,
              raw->options_.quiet_time, [raw, &stop] { raw->CalibrateWhenQuiet(stop); });
  });
  if (engine->store_->durable()) {
    engine->store_watcher_ = std::make_unique<StoreWatcher>(
        *engine->store_, [&observer](const absl::Status& status) { observer.OnStore(status); });
  }
  if (engine->store_->durable() && options.scrub_interval_seconds > 0) {
    engine->scrubber_ =
        std::make_unique<Scrubber>(*engine->store_, *engine->budget_, *engine->catalog_, observer,
                                   options.scrub_interval_seconds, contents->scrubbed_unix_ns);
  }
  return engine;
}

Engine::Engine(EngineOptions options, Observer& observer)
    : options_(std::move(options)), observer_(observer) {}

Engine::~Engine() {
  // What expires tells worker slots and the preparation; these call into each other: end the trials
  // first, then both.
  if (housekeeper_.joinable()) {
    housekeeper_.request_stop();
    housekeeper_.join();
  }
  scrubber_.reset();
  store_watcher_.reset();
  if (executor_ != nullptr) executor_->Close();
  preparation_.reset();
}

absl::Status Engine::OpenGpus(Observer& observer) {
  if (!options_.gpu.has_value()) return absl::OkStatus();
  for (const int ordinal : options_.gpu_ordinals) {
    absl::StatusOr<std::unique_ptr<Device>> gpu = Device::Open(ordinal, *options_.gpu);
    // Plans, and what kernels find out about the card once, hold for all of them.
    if (gpu.ok() && !gpus_.empty() && (*gpu)->info().name != gpus_.front()->info().name) {
      gpu = absl::UnavailableError(
          fmt::format("it is {}, and {} is {}: one server uses cards of one model",
                      (*gpu)->info().name, gpus_.front()->name(), gpus_.front()->info().name));
    }
    if (gpu.ok()) {
      (*gpu)->on_lost = [&observer](const std::string& why) { observer.OnDeviceLost(why); };
      gpus_.push_back(*std::move(gpu));
      continue;
    }
    const DeviceId id{DeviceKind::kCuda, ordinal};
    // What is set wrongly is no reason to do without.
    if (options_.gpu_required || absl::IsOutOfRange(gpu.status())) {
      return absl::FailedPreconditionError(
          fmt::format("{} cannot serve: {}", Name(id), std::string(gpu.status().message())));
    }
    not_opened_.emplace_back(id, gpu.status());
  }
  Device::MakePeers(gpus_);
  return absl::OkStatus();
}

void Engine::OpenModels(Observer& observer) {
  ModelStoreOptions options;
  options.devices.push_back({DeviceKind::kCpu, ProcessorName(), HasAvx512()});
  if (!gpus_.empty()) options.devices.push_back({DeviceKind::kCuda, gpus_.front()->info().name});
  if (options_.models) {
    options.installed = options_.installed_models;
    if (!options_.data_dir.empty()) options.own = options_.data_dir + "/models";
  }
  models_ = std::make_unique<ModelStore>(
      PosixFileSystem(), std::move(options), preparation_->selector(),
      [&observer](const std::string& sentence) { observer.OnModelProblem(sentence); });
}

void Engine::ReadCalibrations() {
  if (options_.data_dir.empty()) return;
  const absl::StatusOr<std::vector<Calibration>> all =
      engine::ReadCalibrations(PosixFileSystem(), options_.data_dir);
  if (!all.ok()) {
    observer_.OnCalibrationProblem(
        fmt::format("{}; what is built in holds until it is measured again",
                    std::string(all.status().message())));
    return;
  }
  std::vector<Backend*> backends = {&executor_->backend({})};
  for (const std::unique_ptr<Device>& gpu : gpus_) {
    backends.push_back(&executor_->backend(gpu->id()));
  }
  for (Backend* const backend : backends) {
    const auto found = std::ranges::find(*all, backend->model(), &Calibration::model);
    if (found != all->end()) {
      backend->Use(*found);
    } else if (!all->empty()) {
      observer_.OnCalibrationProblem(fmt::format(
          "{} has others' constants and none of {}; what is built in holds until they are measured",
          kCalibrationFile, backend->model()));
    }
  }
}

std::optional<DeviceId> Engine::FirstOf(DeviceKind kind) const {
  if (kind == DeviceKind::kCpu) return DeviceId{};
  for (const std::unique_ptr<Device>& gpu : gpus_) {
    if (executor_->backend(gpu->id()).status().ok()) return gpu->id();
  }
  return std::nullopt;
}

absl::StatusOr<Calibration> Engine::Calibrate(DeviceKind kind, const std::atomic<bool>* stop,
                                              std::chrono::steady_clock::time_point until) {
  const std::optional<DeviceId> first = FirstOf(kind);
  if (!first) {
    return absl::FailedPreconditionError("there is no GPU that serves: nothing to calibrate");
  }
  if (const int64_t pending = preparation_->pending(); pending > 0) {
    return absl::FailedPreconditionError(fmt::format(
        "{} preparation{} under way, and would disturb it; calibrate when there are none", pending,
        pending == 1 ? " is" : "s are"));
  }
  if (calibrating_.exchange(true)) {
    return absl::FailedPreconditionError("a calibration is under way already");
  }
  MemorySource& host = budget_->Source(MemoryUse::kPreparation);
  absl::StatusOr<Calibration> calibration =
      engine::Calibrate(*executor_, host, *first, stop, until);
  if (calibration.ok() && preparation_->pending() > 0) {
    calibration = absl::AbortedError("others used the device meanwhile: a preparation began");
  }
  if (calibration.ok()) {
    if (kind == DeviceKind::kCpu) {
      executor_->backend(*first).Use(*calibration);
    } else {
      for (const std::unique_ptr<Device>& gpu : gpus_) {
        executor_->backend(gpu->id()).Use(*calibration);
      }
    }
    observer_.OnCalibrated(Name(kind), fmt::format("in {:.1f} s", calibration->seconds));
    if (!options_.data_dir.empty()) {
      const absl::Status kept = KeepCalibration(PosixFileSystem(), options_.data_dir, *calibration);
      if (!kept.ok()) {
        calibration = absl::Status(
            kept.code(), fmt::format("what was measured holds until the server ends, but could not "
                                     "be kept: {}",
                                     std::string(kept.message())));
      }
    }
  }
  calibrating_ = false;
  return calibration;
}

void Engine::CalibrateWhenQuiet(const std::stop_token& stop) {
  std::atomic<bool> stopped = false;
  const std::stop_callback on_stop(stop, [&stopped] { stopped = true; });
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    const std::optional<DeviceId> first = FirstOf(kind);
    if (!first || executor_->backend(*first).calibration()) continue;
    // Somebody else's calibration, or a preparation, is no failure.
    if (calibrating_ || preparation_->pending() > 0) continue;
    Uncalibrated& before = uncalibrated_[kind];
    const auto now = std::chrono::steady_clock::now();
    if (now < before.next) continue;
    const absl::Status status = Calibrate(kind, &stopped, now + kCalibrationWait).status();
    if (status.ok() || stopped) continue;
    before.wait = std::clamp(2 * before.wait, options_.quiet_time, kCalibrationAgain);
    before.next = now + before.wait;
    if (std::exchange(before.told, true)) continue;
    const bool measured = executor_->backend(*first).calibration().has_value();
    observer_.OnCalibrationProblem(
        measured ? fmt::format("{}: {}", Name(kind), std::string(status.message()))
                 : fmt::format("{} was not calibrated ({}); it is tried again in quiet moments",
                               Name(kind), std::string(status.message())));
  }
}

int64_t Engine::UseOf(const Tenant& tenant, Quota quota) const {
  if (quota != Quota::kDeviceBytes) return tenant.used(quota);
  int64_t most = 0;
  for (const std::unique_ptr<Device>& gpu : gpus_) {
    most = std::max(most, gpu->budget().owned_by(tenant.name()));
  }
  return most;
}

std::optional<bool> Engine::store_up() const {
  if (store_watcher_ == nullptr) return std::nullopt;
  return !store_watcher_->gone();
}

std::vector<DeviceFacts> Engine::devices() const {
  std::vector<DeviceFacts> facts = {{"cpu", CpuDescription(),
                                     options_.execution.slots * options_.execution.threads_per_slot,
                                     "", true}};
  const auto add_constants = [this, &facts](DeviceId id) {
    const Backend& backend = executor_->backend(id);
    facts.back().constants = backend.constants();
    facts.back().calibration = backend.calibration();
  };
  add_constants({});
  for (const std::unique_ptr<Device>& gpu : gpus_) {
    facts.push_back(
        {gpu->name(), gpu->description(), 0, std::string(gpu->status().message()), true});
    add_constants(gpu->id());
  }
  for (const auto& [id, why] : not_opened_) {
    facts.push_back({Name(id), "", 0, std::string(why.message()), !absl::IsNotFound(why)});
  }
  return facts;
}

}  // namespace sparsed::engine
