// A GPU made of the CPU, linked in place of kernels/cuda: its memory is the heap, its streams do
// everything at once, its kernels are the CPU's by other names. With it the engine's way over a
// device (placing, staging, column blocks, worker slots, trials) is tested where there is none, and
// under sanitizers that know nothing of CUDA. It fails where a test says so (stand_in.h).
#include "tests/gpu/stand_in.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cpu/sddmm/sddmm.h"
#include "kernels/cpu/spgemm/spgemm.h"
#include "kernels/cpu/spmm/spmm.h"
#include "kernels/cuda/capture.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/exportable_memory.h"
#include "kernels/cuda/ipc_memory.h"
#include "kernels/cuda/probes.h"
#include "kernels/cuda/stream_words.h"
#include "kernels/row_softmax.h"

namespace sparsed::cuda {

namespace stand_in {
namespace {

/// Of one step.
struct Failures {
  int first = 0, count = 0, seen = 0, failed = 0;
  absl::Status status;
};
std::mutex failures_mutex;
std::map<Step, Failures> failures;
std::atomic<bool> failing = false;
constexpr int kAsked = 1000;
std::atomic<int> pass_after = kAsked;
std::atomic<bool> peers_read = true;
thread_local Waits waits;

}  // namespace

void Fail(Step step, int first, int count, absl::Status status) {
  std::lock_guard lock(failures_mutex);
  failures[step] = {first, count, 0, 0, std::move(status)};
  failing = true;
}

int Failed(Step step) {
  std::lock_guard lock(failures_mutex);
  return failures[step].failed;
}

void PassAfter(int asked) { pass_after = asked; }

void LetPeersRead(bool may) { peers_read = may; }

void Heal() {
  std::lock_guard lock(failures_mutex);
  failures.clear();
  failing = false;
  pass_after = kAsked;
}

Waits WaitsOfThisThread() { return waits; }

namespace {

/// What a call of `step` answers instead, if it is to fail.
absl::Status Try(Step step) {
  if (!failing) return absl::OkStatus();
  std::lock_guard lock(failures_mutex);
  const auto found = failures.find(step);
  if (found == failures.end()) return absl::OkStatus();
  Failures& told = found->second;
  const int number = told.seen++;
  if (number < told.first || number - told.first >= told.count) return absl::OkStatus();
  ++told.failed;
  return told.status;
}

/// Host memory that a card could read by itself.
class Pinned final : public MemorySource {
 public:
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    absl::StatusOr<Buffer> buffer = HeapMemory().Allocate(bytes);
    if (!buffer.ok()) return buffer;
    return Pin(*std::move(buffer));
  }
  Buffer Pin(Buffer memory) {
    std::byte* const data = memory.mutable_data();
    const size_t bytes = memory.size();
    std::lock_guard lock(mutex_);
    ranges_[data] = bytes;
    return Buffer(std::shared_ptr<std::byte>(data,
                                             [this, kept = std::move(memory)](std::byte* gone) {
                                               std::lock_guard lock(mutex_);
                                               ranges_.erase(gone);
                                             }),
                  bytes);
  }
  bool Has(const void* at) {
    const auto* const byte = static_cast<const std::byte*>(at);
    std::lock_guard lock(mutex_);
    auto range = ranges_.upper_bound(byte);
    return range != ranges_.begin() && byte < std::prev(range)->first + std::prev(range)->second;
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, size_t> ranges_;
};

Pinned& ThePinned() {
  static auto* const pinned = new Pinned;
  return *pinned;
}

}  // namespace
}  // namespace stand_in

namespace {

using stand_in::Step;
using stand_in::Try;

constexpr size_t kBytes = size_t{4} << 30;
/// The thread's card.
thread_local int present = 0;

struct PointInTime {
  double milliseconds = 0;
  int asked = 0;
};

Problem OnCpu(Problem problem) {
  problem.device = DeviceKind::kCpu;
  return problem;
}

bool IsOurs(const Problem& problem) { return problem.device == DeviceKind::kCuda; }

/// A dense kernel of the CPU, on one thread.
template <typename Kernel, typename Arguments, Kernel (*kCpu)()>
Kernel Posing(std::string_view name) {
  Kernel kernel = kCpu();
  kernel.name = name;
  kernel.device = DeviceKind::kCuda;
  kernel.supports = [](const Problem& problem, const Layout& layout) {
    return IsOurs(problem) && kCpu().supports(OnCpu(problem), layout);
  };
  kernel.workspace = [](const Problem& problem, const Layout& layout, int threads) {
    return kCpu().workspace(OnCpu(problem), layout, threads);
  };
  kernel.run = [](const Context& context, const Problem& problem, const Arguments& arguments) {
    absl::Status status = Try(Step::kKernel);
    if (status.ok()) status = kCpu().run(context, OnCpu(problem), arguments);
    return status.ok() ? Try(Step::kKernelEnd) : status;
  };
  return kernel;
}

/// The plain kernel, which computes reductions other than sums, too.
SpmmKernel Reducing(SpmmKernel kernel) {
  kernel.reduces = true;
  kernel.run = [](const Context& context, const Problem& problem, const SpmmArguments& arguments) {
    absl::Status status = Try(Step::kKernel);
    if (!status.ok()) return status;
    if (arguments.reduction == Reduction::kSum) {
      status = cpu::CsrSpmm().run(context, OnCpu(problem), arguments);
    } else {
      RowProducts products{arguments.layout};
      products.reduction = arguments.reduction;
      if (arguments.values != nullptr)
        products.values = {arguments.values, arguments.layout.nnz, 1, 1};
      products.values_by_slot = true;
      products.b = arguments.b;
      products.c = arguments.c;
      ComputeRowProducts(products, problem.type, 1);
    }
    return status.ok() ? Try(Step::kKernelEnd) : status;
  };
  return kernel;
}

/// What a step of the CPU's kernel `kCpu` has, with a workspace of its own: the engine gives a
/// GPU's kernel one for all of them.
template <SpgemmKernel (*kCpu)()>
class OneStep {
 public:
  OneStep(const Context& context, const SpgemmArguments& arguments)
      : prepared_(context.prepared),
        room_(kCpu().workspace({Operation::kSpgemm, false, ElementType::kF64}, arguments, 1) + 64) {
  }

  Context context() {
    void* begin = room_.data();
    size_t bytes = room_.size();
    std::align(64, bytes - 64, begin, bytes);
    return {.threads = 1,
            .workspace = {static_cast<std::byte*>(begin), room_.size() - 64},
            .prepared = prepared_};
  }

 private:
  void* const prepared_;
  std::vector<std::byte> room_;
};

template <SpgemmKernel (*kCpu)()>
SpgemmKernel PosingSpgemm(std::string_view name) {
  SpgemmKernel kernel;
  kernel.name = name;
  kernel.device = DeviceKind::kCuda;
  kernel.deterministic = true;
  kernel.supports = [](const Problem& problem) {
    return IsOurs(problem) && kCpu().supports(OnCpu(problem));
  };
  kernel.workspace = [](const Problem&, const SpgemmArguments&, int) { return size_t{256}; };
  kernel.analyse = [](const Context& context, const SpgemmArguments& arguments,
                      std::span<int64_t> row_bounds, int64_t* products) {
    OneStep<kCpu> step(context, arguments);
    return kCpu().analyse(step.context(), arguments, row_bounds, products);
  };
  kernel.symbolic = [](const Context& context, const SpgemmArguments& arguments, RowRange range,
                       std::span<int64_t> row_nnz) {
    OneStep<kCpu> step(context, arguments);
    return kCpu().symbolic(step.context(), arguments, range, row_nnz);
  };
  kernel.numeric = [](const Context& context, const Problem& problem,
                      const SpgemmArguments& arguments, RowRange range,
                      std::span<const int64_t> row_begin, int32_t* column_indices, void* values,
                      std::span<int64_t> row_nnz) {
    OneStep<kCpu> step(context, arguments);
    return kCpu().numeric(step.context(), OnCpu(problem), arguments, range, row_begin,
                          column_indices, values, row_nnz);
  };
  if (kCpu().prepare != nullptr) {
    kernel.prepare = [](const Context& context, const Problem& problem,
                        const SpgemmArguments& arguments, MemorySource& memory) {
      return kCpu().prepare(context, OnCpu(problem), arguments, memory);
    };
  }
  kernel.layout_kind = kCpu().layout_kind;
  kernel.left_too = kernel.layout_kind != kCsr;  // as a GPU's kernels mostly do
  return kernel;
}

/// Keeps what was freed reserved until it is trimmed, as far as numbers go.
class Heap final : public MemorySource {
 public:
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    absl::StatusOr<Buffer> buffer = HeapMemory().Allocate(bytes);
    if (!buffer.ok()) return buffer;
    std::lock_guard lock(mutex_);
    pool_.used += bytes;
    pool_.reserved = std::max(pool_.reserved, pool_.used);
    const auto give_back = [this, bytes, kept = *buffer](std::byte*) {
      std::lock_guard lock(mutex_);
      pool_.used -= bytes;
    };
    return Buffer(std::shared_ptr<std::byte>(buffer->mutable_data(), give_back), bytes);
  }
  PoolState pool() {
    std::lock_guard lock(mutex_);
    return pool_;
  }
  void Trim(size_t keep) {
    std::lock_guard lock(mutex_);
    pool_.reserved = std::max(pool_.used, std::min(pool_.reserved, keep));
  }

 private:
  std::mutex mutex_;
  PoolState pool_;
};

Heap& TheHeap() {
  static auto* const heap = new Heap;
  return *heap;
}

class DeviceHeap final : public MemorySource {
 public:
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    if (absl::Status s = Try(Step::kAllocate); !s.ok()) return s;
    return TheHeap().Allocate(bytes);
  }
};

/// All of it, while a copy of the buffer lives.
absl::StatusOr<Buffer> MapFile(const Descriptor& file, size_t bytes, int access) {
  struct stat facts = {};
  if (fstat(file.fd(), &facts) != 0 || static_cast<size_t>(facts.st_size) < bytes) {
    return absl::InvalidArgumentError("there is no such memory");
  }
  void* const at = mmap(nullptr, bytes, access, MAP_SHARED, file.fd(), 0);
  if (at == MAP_FAILED) return absl::ResourceExhaustedError("no memory to map");
  return Buffer(std::shared_ptr<std::byte>(static_cast<std::byte*>(at),
                                           [bytes](std::byte* gone) { munmap(gone, bytes); }),
                bytes);
}

/// Memory that other processes can map: of files.
class Files {
 public:
  absl::StatusOr<Buffer> Allocate(size_t bytes) {
    if (bytes == 0) return Buffer();
    Descriptor file(memfd_create("stand-in", MFD_CLOEXEC));
    if (!file.open() || ftruncate(file.fd(), static_cast<off_t>(bytes)) != 0) {
      return absl::ResourceExhaustedError("no memory to export");
    }
    absl::StatusOr<Buffer> mapped = MapFile(file, bytes, PROT_READ | PROT_WRITE);
    if (!mapped.ok()) return mapped;
    std::byte* const data = mapped->mutable_data();
    std::lock_guard lock(mutex_);
    files_[data] = {bytes, std::move(file)};
    return Buffer(std::shared_ptr<std::byte>(data,
                                             [this, kept = *std::move(mapped)](std::byte* gone) {
                                               std::lock_guard lock(mutex_);
                                               files_.erase(gone);
                                             }),
                  bytes);
  }
  absl::StatusOr<Descriptor> Export(const std::byte* at) {
    std::lock_guard lock(mutex_);
    const auto after = files_.upper_bound(at);
    if (after == files_.begin() || at >= std::prev(after)->first + std::prev(after)->second.first) {
      return absl::InvalidArgumentError("this is memory of another kind");
    }
    return Descriptor(dup(std::prev(after)->second.second.fd()));
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, std::pair<size_t, Descriptor>> files_;
};

Files& TheFiles() {
  static auto* const files = new Files;
  return *files;
}

double Milliseconds() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// `rows_of(i, order[i])`: the row of `from` and that of `to`.
template <typename RowsOf>
absl::Status MoveRows(std::span<const int64_t> order, ElementType type, const ConstDense& from,
                      const Dense& to, RowsOf rows_of) {
  const auto size = static_cast<int64_t>(SizeOf(type));
  for (size_t i = 0; i < order.size(); ++i) {
    const auto [from_row, to_row] = rows_of(static_cast<int64_t>(i), order[i]);
    std::memcpy(static_cast<std::byte*>(to.data) + to_row * to.leading_dimension * size,
                static_cast<const std::byte*>(from.data) + from_row * from.leading_dimension * size,
                static_cast<size_t>(to.cols * size));
  }
  return absl::OkStatus();
}

/// What CallerAllocation made, of files, and who has it open: at addresses of their own.
class CallerMemories {
 public:
  struct Memory {
    Buffer mapped;  ///< the caller's
    Descriptor file;
    int card = 0;
    uint64_t id = 0;
  };

  void Add(Memory memory) {
    std::lock_guard lock(mutex_);
    memory.id = ++ids_;
    std::byte* const begin = memory.mapped.mutable_data();
    memories_[begin] = std::move(memory);
  }
  Memory Remove(std::byte* begin) {
    std::lock_guard lock(mutex_);
    return std::move(memories_.extract(begin).mapped());
  }
  std::optional<Allocation> Find(const void* data) {
    std::lock_guard lock(mutex_);
    const auto* const at = static_cast<const std::byte*>(data);
    const auto after = memories_.upper_bound(const_cast<std::byte*>(at));
    if (after == memories_.begin()) return std::nullopt;
    const auto& [begin, memory] = *std::prev(after);
    const size_t bytes = memory.mapped.size();
    if (at >= begin + bytes || memory.card != present) return std::nullopt;
    return Allocation{begin, bytes, memory.id};
  }
  absl::StatusOr<Buffer> Open(const IpcHandle& handle) {
    std::lock_guard lock(mutex_);
    const auto found = memories_.find(BeginOf(handle));
    if (found == memories_.end() || HandleOf(found->first) != handle ||
        found->second.card != present) {
      return absl::InvalidArgumentError("the handle does not open: it stands for nothing here");
    }
    if (!open_.insert(handle).second) {
      return absl::InvalidArgumentError("the handle does not open: it is open already");
    }
    const size_t bytes = found->second.mapped.size();
    absl::StatusOr<Buffer> mapped = MapFile(found->second.file, bytes, PROT_READ | PROT_WRITE);
    if (!mapped.ok()) return mapped;
    std::byte* const data = mapped->mutable_data();
    return Buffer(std::shared_ptr<std::byte>(data,
                                             [this, handle, kept = *std::move(mapped)](std::byte*) {
                                               std::lock_guard lock(mutex_);
                                               open_.erase(handle);
                                             }),
                  bytes);
  }
  static IpcHandle HandleOf(std::byte* begin) {
    IpcHandle handle = {'h', 'a', 'n', 'd', 'l', 'e'};
    std::memcpy(handle.data() + handle.size() - sizeof(begin), &begin, sizeof(begin));
    return handle;
  }
  int open() {
    std::lock_guard lock(mutex_);
    return static_cast<int>(open_.size());
  }

 private:
  static std::byte* BeginOf(const IpcHandle& handle) {
    std::byte* begin = nullptr;
    std::memcpy(&begin, handle.data() + handle.size() - sizeof(begin), sizeof(begin));
    return begin;
  }

  std::mutex mutex_;
  std::map<std::byte*, Memory> memories_;
  std::set<IpcHandle> open_;
  uint64_t ids_ = 0;
};

CallerMemories& TheCallerMemories() {
  static auto* const memories = new CallerMemories;
  return *memories;
}

}  // namespace

namespace stand_in {

CallerAllocation::CallerAllocation(size_t bytes, int card) {
  CallerMemories::Memory memory;
  memory.file = Descriptor(memfd_create("stand-in", MFD_CLOEXEC));
  if (ftruncate(memory.file.fd(), static_cast<off_t>(bytes)) != 0) std::abort();
  memory.mapped = *MapFile(memory.file, bytes, PROT_READ | PROT_WRITE);
  memory.card = card;
  data_ = memory.mapped.mutable_data();
  TheCallerMemories().Add(std::move(memory));
}
CallerAllocation::~CallerAllocation() { TheCallerMemories().Remove(data_); }
void CallerAllocation::Reallocate() { TheCallerMemories().Add(TheCallerMemories().Remove(data_)); }
float* CallerAllocation::floats() const { return reinterpret_cast<float*>(data_); }
int OpenHandles() { return TheCallerMemories().open(); }

}  // namespace stand_in

bool IsDeviceMemory(const void* data) {
  for (int card = 0; card < stand_in::kCards; ++card) {
    const DeviceScope scope(card);
    if (AllocationOf(data)) return true;
  }
  return false;
}
std::optional<Allocation> AllocationOf(const void* data) { return TheCallerMemories().Find(data); }
absl::StatusOr<IpcHandle> HandleOf(const Allocation& allocation) {
  return CallerMemories::HandleOf(allocation.begin);
}
absl::StatusOr<Buffer> OpenIpcMemory(const IpcHandle& handle) {
  return TheCallerMemories().Open(handle);
}

std::span<const SpmmKernel> SpmmKernels() {
  static const SpmmKernel kernels[] = {
      Reducing(Posing<SpmmKernel, SpmmArguments, cpu::CsrSpmm>("cuda.csr.rows")),
      Posing<SpmmKernel, SpmmArguments, cpu::CsrTransposedSpmm>("cuda.csr.transposed"),
      Posing<SpmmKernel, SpmmArguments, cpu::DcsrSpmm>("cuda.dcsr.rows"),
  };
  return kernels;
}
std::span<const SddmmKernel> SddmmKernels() {
  static const SddmmKernel kernels[] = {
      Posing<SddmmKernel, SddmmArguments, cpu::CsrSddmm>("cuda.csr.row_dots")};
  return kernels;
}
std::span<const SpgemmKernel> SpgemmKernels() {
  static const SpgemmKernel kernels[] = {PosingSpgemm<cpu::HashSpgemm>("cuda.csr.row_bins"),
                                         PosingSpgemm<cpu::DiagonalsSpgemm>("cuda.dia.diagonals"),
                                         PosingSpgemm<cpu::MaskedSpgemm>("cuda.csr.masked")};
  return kernels;
}

DeviceScope::DeviceScope(int ordinal) : before_(std::exchange(present, ordinal)) {}
DeviceScope::~DeviceScope() { present = before_; }

absl::StatusOr<std::string> DeviceUuid(int ordinal) {
  if (ordinal < 0 || ordinal >= stand_in::kCards) {
    return absl::UnavailableError("there is no such stand-in");
  }
  return fmt::format("stand-in {:7}", ordinal);
}
absl::StatusOr<DeviceInfo> ProbeDevice(int ordinal) {
  if (ordinal >= stand_in::kCards) return absl::UnavailableError("there is no such stand-in");
  DeviceInfo info;
  info.name = "stand-in";
  info.uuid = *DeviceUuid(ordinal);
  info.driver = "1.0";
  info.multiprocessors = 1;
  info.total_bytes = info.free_bytes = kBytes;
  info.l2_bytes = size_t{1} << 20;
  info.clock_hz = 1e9;
  info.shared_bytes_per_block = size_t{64} << 10;
  return info;
}
CaptureScope::CaptureScope() {}
CaptureScope::~CaptureScope() = default;
absl::StatusOr<QueueId> IdOf(const Stream& stream) {
  return QueueId{.stream = reinterpret_cast<uintptr_t>(stream.handle())};
}
absl::StatusOr<bool> IsCaptured(const Stream& /*stream*/) { return false; }
absl::Status KeepWithGraph(const Stream& /*stream*/, std::shared_ptr<const void> /*kept*/) {
  return absl::UnimplementedError("a stand-in captures nothing");
}
absl::StatusOr<PoolState> ReadPool() { return TheHeap().pool(); }
absl::StatusOr<size_t> FreeBytes() { return kBytes - TheHeap().pool().reserved; }
size_t ExportGranularity() { return 4096; }
absl::StatusOr<Buffer> AllocateExportable(size_t bytes) {
  if (absl::Status s = Try(Step::kAllocate); !s.ok()) return s;
  return TheFiles().Allocate(bytes);
}
absl::StatusOr<Descriptor> Export(const Buffer& memory) { return TheFiles().Export(memory.data()); }
absl::StatusOr<Buffer> Import(const Descriptor& exported, size_t bytes, Access access) {
  return MapFile(exported, bytes,
                 access == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ);
}
absl::Status SynchronizeDevice() { return absl::OkStatus(); }
absl::Status QueueWrite(const Stream& /*stream*/, uint32_t* word, uint32_t value) {
  std::atomic_ref(*word).store(value);
  return absl::OkStatus();
}
absl::Status QueueWait(const Stream& /*stream*/, const uint32_t* word, uint32_t value) {
  // What a stream does later this one does now.
  auto& there = *const_cast<uint32_t*>(word);
  while (static_cast<int32_t>(std::atomic_ref(there).load() - value) < 0) std::this_thread::yield();
  return absl::OkStatus();
}
absl::Status AllowPeer(int peer) {
  if (stand_in::peers_read) return absl::OkStatus();
  return absl::UnimplementedError(fmt::format("stand-in {} is apart", peer));
}
absl::Status TrimPool(size_t keep) {
  ++stand_in::waits.trims;
  TheHeap().Trim(keep);
  return absl::OkStatus();
}

/// Nothing is done: what is found out of a stand-in is no rate that a device has.
absl::StatusOr<double> QueueProbe(Stream& /*stream*/, Probe /*probe*/, std::span<std::byte> memory,
                                  int repeats) {
  return static_cast<double>(memory.size()) * repeats;
}

absl::StatusOr<Stream> Stream::Create(StreamPriority /*priority*/) { return Stream(nullptr); }
Stream::~Stream() = default;
absl::Status Stream::Copy(void* to, const void* from, size_t bytes) {
  if (absl::Status s = Try(Step::kCopy); !s.ok()) return s;
  // A driver takes the bytes out of memory that is not pinned before it returns.
  if (!stand_in::ThePinned().Has(from) && !stand_in::ThePinned().Has(to)) {
    ++stand_in::waits.unpinned;
  }
  if (bytes > 0) std::memcpy(to, from, bytes);
  return absl::OkStatus();
}
absl::Status Stream::Fill(void* to, unsigned char byte, size_t bytes) {
  if (absl::Status s = Try(Step::kFill); !s.ok()) return s;
  if (bytes > 0) std::memset(to, byte, bytes);
  return absl::OkStatus();
}
absl::Status Stream::FillRows(void* to, size_t pitch, unsigned char byte, size_t row_bytes,
                              size_t rows) {
  for (size_t i = 0; i < rows && row_bytes > 0; ++i) {
    std::memset(static_cast<std::byte*>(to) + i * pitch, byte, row_bytes);
  }
  return absl::OkStatus();
}
absl::Status Stream::CopyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t row_bytes, size_t rows) {
  if (absl::Status s = Try(Step::kCopy); !s.ok()) return s;
  for (size_t i = 0; i < rows && row_bytes > 0; ++i) {
    std::memcpy(static_cast<std::byte*>(to) + i * to_pitch,
                static_cast<const std::byte*>(from) + i * from_pitch, row_bytes);
  }
  return absl::OkStatus();
}
absl::Status Stream::Synchronize() {
  ++stand_in::waits.streams;
  return Try(Step::kSynchronize);
}

absl::Status PlaceValues(Stream& /*stream*/, const Layout& layout, ElementType type,
                         const void* csr_values, void* slots) {
  sparsed::PlaceValues(layout, type, csr_values, slots, 1);
  return absl::OkStatus();
}

absl::Status GatherElements(Stream& /*stream*/, const Array& order, ElementType type,
                            const void* from, void* to) {
  VisitFloat(type, [&]<typename T>(T) {
    for (int64_t i = 0; i < order.length; ++i) {
      static_cast<T*>(to)[i] = static_cast<const T*>(from)[order.As<int64_t>()[i]];
    }
  });
  return absl::OkStatus();
}

absl::Status ScatterElements(Stream& /*stream*/, std::span<const int64_t> order, ElementType type,
                             const void* from, void* to) {
  VisitFloat(type, [&]<typename T>(T) {
    for (size_t i = 0; i < order.size(); ++i) {
      static_cast<T*>(to)[order[i]] = static_cast<const T*>(from)[i];
    }
  });
  return absl::OkStatus();
}

absl::Status WeightedSum(Stream& /*stream*/, std::span<const WeightedTerm> terms, ElementType type,
                         const Dense& to) {
  sparsed::WeightedSum(terms, type, to, 1);
  return absl::OkStatus();
}

absl::Status GatherRows(Stream& /*stream*/, std::span<const int64_t> order, ElementType type,
                        const ConstDense& from, const Dense& to) {
  return MoveRows(order, type, from, to,
                  [](int64_t i, int64_t other) { return std::pair(other, i); });
}
absl::Status ScatterRows(Stream& /*stream*/, std::span<const int64_t> order, ElementType type,
                         const ConstDense& from, const Dense& to) {
  return MoveRows(order, type, from, to,
                  [](int64_t i, int64_t other) { return std::pair(i, other); });
}

absl::Status RowSoftmax(Stream& /*stream*/, std::span<const int64_t> row_offsets, ElementType type,
                        double scale, const ConstDense& x, const Dense& y) {
  sparsed::RowSoftmax(row_offsets, type, scale, x, y, 1);
  return absl::OkStatus();
}
absl::Status RowSoftmaxGradient(Stream& /*stream*/, std::span<const int64_t> row_offsets,
                                ElementType type, double scale, const ConstDense& y,
                                const ConstDense& dy, const Dense& dx) {
  sparsed::RowSoftmaxGradient(row_offsets, type, scale, y, dy, dx, 1);
  return absl::OkStatus();
}

absl::Status ScaleNonzeros(Stream& /*stream*/, const NonzeroScaling& scaling, ElementType type) {
  sparsed::ScaleNonzeros(scaling, type, 1);
  return absl::OkStatus();
}
absl::Status TotalNonzeros(Stream& /*stream*/, const NonzeroTotals& totals, ElementType type) {
  sparsed::TotalNonzeros(totals, type, 1);
  return absl::OkStatus();
}

absl::Status ComputeRowProducts(const Context& context, const RowProducts& products,
                                ElementType type) {
  if (context.workspace.size() < RowProductsWorkspace(products, type)) {
    return absl::InternalError("there is no workspace");
  }
  sparsed::ComputeRowProducts(products, type, 1);
  return absl::OkStatus();
}
size_t RowProductsWorkspace(const RowProducts& products, ElementType /*type*/) {
  return static_cast<size_t>(products.c.cols) * sizeof(double);
}
absl::Status ComputeHeadDots(const Context& /*context*/, const HeadDots& dots, ElementType type) {
  sparsed::ComputeHeadDots(dots, type, 1);
  return absl::OkStatus();
}

absl::Status ComputeEdgeAttention(const Context& context, const EdgeAttention& attention,
                                  ElementType type) {
  if (context.workspace.size() < cuda::EdgeAttentionWorkspace(attention, type)) {
    return absl::InternalError("there is no workspace");
  }
  return sparsed::ComputeEdgeAttention(context, attention, type);
}
size_t EdgeAttentionWorkspace(const EdgeAttention& attention, ElementType type) {
  return std::max<size_t>(sparsed::EdgeAttentionWorkspace(attention, type), 1);
}
absl::Status ComputeEdgeAttentionGradient(const Context& context,
                                          const EdgeAttentionGradient& gradient, ElementType type) {
  if (context.workspace.size() < cuda::EdgeAttentionWorkspace(gradient, type)) {
    return absl::InternalError("there is no workspace");
  }
  return sparsed::ComputeEdgeAttentionGradient(context, gradient, type);
}
size_t EdgeAttentionWorkspace(const EdgeAttentionGradient& gradient, ElementType type) {
  return std::max<size_t>(sparsed::EdgeAttentionWorkspace(gradient, type), 1);
}

absl::StatusOr<size_t> RunningSumWorkspace(int64_t /*count*/) { return 1; }
absl::Status RunningSum(const Context& /*context*/, const int64_t* from, int64_t count,
                        int64_t* to) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = sum;
    sum += from[i];
  }
  to[count] = sum;
  return absl::OkStatus();
}

absl::StatusOr<Event> Event::Create() {
  if (absl::Status s = Try(Step::kCreateEvent); !s.ok()) return s;
  return Event(new PointInTime);
}
absl::StatusOr<Event> Event::CreateUntimed() { return Create(); }
Event::~Event() { delete static_cast<PointInTime*>(handle_); }
absl::Status Event::Record(const Stream& /*stream*/) {
  *static_cast<PointInTime*>(handle_) = {Milliseconds(), 0};
  return Try(Step::kRecord);
}
absl::Status Event::Hold(const Stream& /*stream*/) const { return Try(Step::kHold); }
absl::Status Event::Synchronize() const {
  ++stand_in::waits.events;
  return Try(Step::kAwaitEvent);
}
absl::StatusOr<bool> Event::Passed() const {
  if (absl::Status s = Try(Step::kAskEvent); !s.ok()) return s;
  return ++static_cast<PointInTime*>(handle_)->asked > stand_in::pass_after;
}
absl::StatusOr<float> Event::MillisecondsSince(const Event& begin) const {
  if (absl::Status s = Try(Step::kElapsed); !s.ok()) return s;
  return static_cast<float>(static_cast<const PointInTime*>(handle_)->milliseconds -
                            static_cast<const PointInTime*>(begin.handle_)->milliseconds);
}

std::unique_ptr<MemorySource> DeviceMemory(const Stream& /*stream*/) {
  return std::make_unique<DeviceHeap>();
}
MemorySource& PinnedMemory() { return stand_in::ThePinned(); }
absl::StatusOr<Buffer> PinHost(Buffer memory) {
  return stand_in::ThePinned().Pin(std::move(memory));
}
bool IsPinned(const void* host) { return stand_in::ThePinned().Has(host); }

}  // namespace sparsed::cuda
