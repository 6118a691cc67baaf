#include "engine/execution/attachments.h"

#include <algorithm>
#include <cstring>
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

/// What stays the same while a layout is what it is, though it may leave memory and be read again.
std::shared_ptr<const void> IdentityOf(const std::shared_ptr<Pattern>& pattern,
                                       const std::shared_ptr<const Layout>& layout) {
  if (layout->recipe == kCsr) return pattern;
  const std::shared_ptr<LazyLayout> kept = pattern->FindLayout(layout->recipe);
  if (kept != nullptr && kept->Resident() == layout) return kept;
  return layout;
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

absl::StatusOr<ExportedRun> Attachment::Export(Problem problem) {
  // What changes from here on, the caller sees by it, and asks again.
  ExportedRun run;
  run.sequence = sequence_->value();
  absl::StatusOr<MatrixLease> found = Current();
  if (!found.ok()) return found.status();
  run.matrix = *std::move(found);
  run.version = run.matrix->version();
  const MatrixLease& matrix = run.matrix;
  const std::shared_ptr<Pattern>& pattern = matrix->pattern();
  {
    const MutexLock lock(mutex_);
    if (followed_.lock() != pattern) {
      plans_ = pattern->plans().Watch([sequence = sequence_] { sequence->Increment(); });
      followed_ = pattern;
    }
  }
  const bool served = problem.operation == Operation::kSpmm ||
                      (problem.operation == Operation::kSddmm && !problem.transposed);
  if (!served || problem.k < 0) {
    return absl::InvalidArgumentError("callers run SpMM and SDDMM themselves, nothing else");
  }
  problem.type = matrix->type();
  problem.device = device_.kind;
  problem.allow_tf32 = problem.allow_tf32 && problem.type == ElementType::kF32;
  const absl::StatusOr<Resolved> resolved =
      Resolve(*impl_, device_, matrix, problem, pattern->plans().Find(ClassOf(problem)));
  if (!resolved.ok()) return resolved.status();
  GpuBackend* const gpu = impl_->gpu(device_);
  const absl::Status exported =
      gpu == nullptr ? ExportFiles(*resolved, run) : ExportFrom(*gpu, *resolved, run);
  if (!exported.ok()) return exported;
  run.plan = resolved->text;
  run.kernel = resolved->kernel->name();
  run.layout = WithoutElements(*resolved->layout);
  return run;
}

absl::Status Attachment::ExportFiles(const Resolved& resolved, ExportedRun& run) const {
  const Layout& layout = *resolved.layout;
  const Matrix& matrix = *run.matrix;
  const absl::StatusOr<Array> values = matrix.Values();
  if (!values.ok()) return values.status();
  MemoryOwner& owner = impl_->budget.OwnerOf(tenant_);
  const auto file = [&](size_t bytes, const std::function<void(std::byte*)>& fill) {
    return ExportedMemory::Make(FileBytes(bytes), impl_->budget, owner, fill);
  };
  const std::shared_ptr<const void> identity = IdentityOf(matrix.pattern(), resolved.layout);
  absl::Status status =
      Set(impl_->exports.Find(
              identity, identity,
              [&] { return file(ArrayBytes(layout), [&](auto* to) { CopyArrays(layout, to); }); }),
          run.arrays);
  if (!status.ok()) return status;
  const ElementType type = resolved.problem.type;
  const size_t value_bytes = static_cast<size_t>(layout.value_slots) * SizeOf(type);
  // Request threads have no teams: one thread places them.
  const auto place = [&](std::byte* to) {
    PlaceValues(layout, type, values->buffer.data(), to, /*threads=*/1);
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

absl::Status Attachment::ExportFrom(GpuBackend& gpu, const Resolved& resolved,
                                    ExportedRun& run) const {
  absl::Status status;
  gpu.OnThread([&] { status = ExportOnThread(gpu, resolved, run); });
  return status;
}

absl::Status Attachment::ExportOnThread(GpuBackend& gpu, const Resolved& resolved,
                                        ExportedRun& run) const {
  const Matrix& matrix = *run.matrix;
  MemoryOwner& owner = impl_->budget.OwnerOf(tenant_);
  absl::StatusOr<PlacedSparse> placed =
      gpu.Place(resolved.layout, /*values=*/nullptr, gpu.memory(MemoryUse::kLayouts));
  if (!placed.ok()) return placed.status();
  const std::shared_ptr<const Layout>& layout = placed->layout;
  absl::Status status = Set(
      impl_->exports.Find(layout, layout, [&] { return gpu.Export(layout, owner); }), run.arrays);
  if (!status.ok()) return status;
  const absl::StatusOr<Array> values = matrix.Values();
  if (!values.ok()) return values.status();
  const ElementType type = resolved.problem.type;
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
  attached_.emplace(std::pair(attachment->tenant(), attachment->name()), attachment);
}

int64_t Attachments::count() const {
  const MutexLock lock(mutex_);
  return std::ranges::count_if(attached_,
                               [](const auto& known) { return !known.second.expired(); });
}

}  // namespace sparsed::engine
