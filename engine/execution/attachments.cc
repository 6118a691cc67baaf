#include "engine/execution/attachments.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/execution/executor_impl.h"

namespace sparsed::engine {
namespace {

/// There is no file of no bytes.
size_t FileBytes(size_t bytes) { return std::max(PackedBytes(bytes), kPackedAlignment); }

size_t ArrayBytes(const Layout& layout) {
  size_t bytes = 0;
  for (const Array& array : layout.arrays) bytes += PackedBytes(array.bytes());
  return bytes;
}

void CopyArrays(const Layout& layout, std::byte* to) {
  for (const Array& array : layout.arrays) {
    if (array.bytes() > 0) std::memcpy(to, array.buffer.data(), array.bytes());
    to += PackedBytes(array.bytes());
  }
}

using Exported = absl::StatusOr<std::shared_ptr<const ExportedMemory>>;

absl::Status Set(Exported exported, std::shared_ptr<const ExportedMemory>& to) {
  if (exported.ok()) to = *std::move(exported);
  return exported.status();
}

}  // namespace

bool Exports::ByOwner::operator()(const Key& a, const Key& b) const {
  if (a.first.owner_before(b.first)) return true;
  if (b.first.owner_before(a.first)) return false;
  return a.second.owner_before(b.second);
}

absl::StatusOr<std::shared_ptr<const ExportedMemory>> Exports::Find(
    const std::shared_ptr<const void>& one, const std::shared_ptr<const void>& other,
    const Make& make) {
  std::shared_ptr<Entry> entry;
  {
    const MutexLock lock(mutex_);
    std::shared_ptr<Entry>& found = entries_[{one, other}];
    if (found == nullptr) {
      found = std::make_shared<Entry>();
      std::erase_if(entries_, [&](const auto& known) {
        const auto& [a, b] = known.first;
        return known.second != found && (a.expired() || b.expired());
      });
    }
    entry = found;
  }
  // Only who wants the same waits.
  const MutexLock lock(entry->making);
  if (std::shared_ptr<const ExportedMemory> there = entry->memory.lock()) return there;
  absl::StatusOr<std::shared_ptr<const ExportedMemory>> made = make();
  if (made.ok()) entry->memory = *made;
  return made;
}

Attachment::Attachment(std::shared_ptr<Executor::Impl> impl, std::string tenant, std::string name,
                       DeviceId device, std::unique_ptr<ExportedSequence> sequence)
    : impl_(std::move(impl)),
      tenant_(std::move(tenant)),
      name_(std::move(name)),
      device_(device),
      sequence_(std::move(sequence)) {}

absl::StatusOr<MatrixLease> Attachment::Current() const {
  return impl_->catalog.Find(tenant_, name_);
}

absl::StatusOr<ExportedRun> Attachment::Begin() {
  // What changes from here on, the caller sees by it, and asks again.
  ExportedRun run;
  run.sequence = sequence_->value();
  run.contents = sequence_->contents();
  absl::StatusOr<MatrixLease> found = Current();
  if (!found.ok()) return found.status();
  run.matrix = *std::move(found);
  run.version = run.matrix->version();
  const std::shared_ptr<Pattern>& pattern = run.matrix->pattern();
  const MutexLock lock(mutex_);
  if (followed_.lock() != pattern) {
    plans_ = pattern->plans().Watch([sequence = sequence_] { sequence->Increment(); });
    followed_ = pattern;
  }
  return run;
}

absl::StatusOr<ExportedRun> Attachment::Export(Problem problem) {
  absl::StatusOr<ExportedRun> run = Begin();
  if (!run.ok()) return run;
  const bool served = problem.operation == Operation::kSpmm ||
                      (problem.operation == Operation::kSddmm && !problem.transposed);
  if (!served || problem.k < 0) {
    return absl::InvalidArgumentError(
        "callers run SpMM, SDDMM and what has no plan themselves, nothing else");
  }
  const MatrixLease& matrix = run->matrix;
  problem.type = matrix->type();
  problem.device = device_.kind;
  problem.allow_tf32 = problem.allow_tf32 && problem.type == ElementType::kF32;
  const absl::StatusOr<Resolved> resolved = Resolve(
      *impl_, device_, matrix, problem, matrix->pattern()->plans().Find(SignatureOf(problem)));
  if (!resolved.ok()) return resolved.status();
  if (absl::Status s = ExportLayout(resolved->layout, *run); !s.ok()) return s;
  run->plan = resolved->text;
  run->kernel = resolved->kernel->name();
  return run;
}

absl::StatusOr<ExportedRun> Attachment::ExportRows(bool transposed) {
  absl::StatusOr<ExportedRun> run = Begin();
  if (!run.ok()) return run;
  const absl::StatusOr<std::shared_ptr<const Layout>> rows =
      RowsOf(run->matrix->pattern(), transposed);
  if (!rows.ok()) return rows.status();
  if (absl::Status s = ExportLayout(*rows, *run); !s.ok()) return s;
  run->plan = (*rows)->pipeline;
  return run;
}

absl::StatusOr<std::shared_ptr<const Layout>> Attachment::RowsOf(
    const std::shared_ptr<Pattern>& pattern, bool transposed) const {
  if (!transposed) return pattern->Csr();
  if (std::shared_ptr<const Layout> found = impl_->derived->FindTransposed(pattern)) return found;
  absl::StatusOr<std::shared_ptr<const Layout>> built;
  // A team of OpenMP stays with the thread that made it, so that one goes.
  try {
    std::thread([&] {
      BuildContext context;
      context.threads = impl_->cpu.threads_per_slot();
      built = impl_->derived->Transposed(pattern, context);
    }).join();
  } catch (const std::system_error&) {
    return absl::ResourceExhaustedError("the operating system gives the server no more threads");
  }
  return built;
}

absl::Status Attachment::ExportLayout(const std::shared_ptr<const Layout>& layout,
                                      ExportedRun& run) const {
  run.layout = WithoutElements(*layout);
  GpuBackend* const gpu = impl_->gpu(device_);
  if (gpu == nullptr) return ExportFiles(layout, run);
  absl::Status status;
  gpu->OnThread([&] { status = ExportFrom(*gpu, layout, run); });
  return status;
}

std::shared_ptr<const void> Attachment::IdentityOf(
    const std::shared_ptr<Pattern>& pattern, const std::shared_ptr<const Layout>& layout) const {
  if (layout->pipeline == kCsr) return pattern;
  if (layout->pipeline == DerivedPatterns::kTransposePipeline) return impl_->derived;
  const std::shared_ptr<LazyLayout> kept = pattern->FindLayout(layout->pipeline);
  if (kept != nullptr && kept->Resident() == layout) return kept;
  return layout;
}

absl::Status Attachment::ExportFiles(const std::shared_ptr<const Layout>& layout,
                                     ExportedRun& run) const {
  const Matrix& matrix = *run.matrix;
  const absl::StatusOr<Array> values = matrix.Values();
  if (!values.ok()) return values.status();
  MemoryOwner& owner = impl_->budget.OwnerOf(tenant_);
  const auto file = [&](size_t bytes, const std::function<void(std::byte*)>& fill) {
    return ExportedMemory::Make(FileBytes(bytes), impl_->budget, owner, fill);
  };
  const std::shared_ptr<Pattern>& pattern = matrix.pattern();
  const std::shared_ptr<const void> identity = IdentityOf(pattern, layout);
  const auto arrays = [&] {
    return file(ArrayBytes(*layout), [&](auto* to) { CopyArrays(*layout, to); });
  };
  absl::Status status = Set(impl_->exports.Find(pattern, identity, arrays), run.arrays);
  if (!status.ok()) return status;
  const ElementType type = matrix.type();
  const size_t value_bytes = static_cast<size_t>(layout->value_slots) * SizeOf(type);
  // Request threads have no teams: one thread places them.
  const auto place = [&](std::byte* to) {
    PlaceValues(*layout, type, values->buffer.data(), to, /*threads=*/1);
  };
  status = Set(impl_->exports.Find(run.matrix, identity, [&] { return file(value_bytes, place); }),
               run.values);
  const std::shared_ptr<LazyArray>& caller_order = matrix.caller_order();
  if (!status.ok() || caller_order == nullptr) return status;
  const absl::StatusOr<Array> order = caller_order->Get();
  if (!order.ok()) return order.status();
  const auto copy = [&](std::byte* to) {
    if (order->bytes() > 0) std::memcpy(to, order->buffer.data(), order->bytes());
  };
  return Set(
      impl_->exports.Find(caller_order, caller_order, [&] { return file(order->bytes(), copy); }),
      run.order);
}

absl::Status Attachment::ExportFrom(GpuBackend& gpu, const std::shared_ptr<const Layout>& on_host,
                                    ExportedRun& run) const {
  const Matrix& matrix = *run.matrix;
  MemoryOwner& owner = impl_->budget.OwnerOf(tenant_);
  absl::StatusOr<PlacedSparse> placed =
      gpu.Place(on_host, /*values=*/nullptr, gpu.memory(MemoryUse::kLayouts));
  if (!placed.ok()) return placed.status();
  const std::shared_ptr<const Layout>& layout = placed->layout;
  absl::Status status = Set(
      impl_->exports.Find(layout, layout, [&] { return gpu.Export(layout, owner); }), run.arrays);
  if (!status.ok()) return status;
  const absl::StatusOr<Array> values = matrix.Values();
  if (!values.ok()) return values.status();
  const ElementType type = matrix.type();
  const size_t value_bytes = static_cast<size_t>(layout->value_slots) * SizeOf(type);
  const auto place = [&](std::byte* to) -> absl::Status {
    const absl::StatusOr<std::shared_ptr<const Array>> there =
        gpu.device().residency().Place(*values, MemoryUse::kMatrices);
    if (!there.ok()) return there.status();
    return gpu.device().PlaceValues(*layout, type, (*there)->buffer.data(), to);
  };
  status = Set(impl_->exports.Find(run.matrix, layout,
                                   [&] { return gpu.ExportNew(value_bytes, owner, place); }),
               run.values);
  const std::shared_ptr<LazyArray>& caller_order = matrix.caller_order();
  if (!status.ok() || caller_order == nullptr) return status;
  const absl::StatusOr<Array> order = caller_order->Get();
  if (!order.ok()) return order.status();
  const auto copy = [&](std::byte* to) {
    return gpu.device().CopyIn(to, order->buffer.data(), order->bytes());
  };
  return Set(impl_->exports.Find(caller_order, gpu.device().identity(),
                                 [&] { return gpu.ExportNew(order->bytes(), owner, copy); }),
             run.order);
}

void Attachments::Changed(std::string_view tenant, std::string_view name) {
  const MutexLock lock(mutex_);
  const auto [begin, end] = attached_.equal_range({std::string(tenant), std::string(name)});
  for (auto it = begin; it != end; ++it) {
    if (const std::shared_ptr<const Attachment> attachment = it->second.lock()) {
      attachment->Changed();
    }
  }
}

void Attachments::Add(const std::shared_ptr<const Attachment>& attachment) {
  const MutexLock lock(mutex_);
  std::erase_if(attached_, [](const auto& known) { return known.second.expired(); });
  attached_.emplace(Named(attachment->tenant(), attachment->name()), attachment);
}

int64_t Attachments::count() const {
  const MutexLock lock(mutex_);
  return std::ranges::count_if(attached_,
                               [](const auto& known) { return !known.second.expired(); });
}

}  // namespace sparsed::engine
