#include "engine/execution/attachments.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/execution/executor_impl.h"

namespace sparsed::engine {
namespace {

size_t Aligned(size_t bytes) {
  return (bytes + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
}

/// Of a file: there is none of no bytes.
size_t FileBytes(size_t bytes) { return std::max(Aligned(bytes), Buffer::kAlignment); }

size_t ArrayBytes(const Layout& layout) {
  size_t bytes = 0;
  for (const Array& array : layout.arrays) bytes += Aligned(array.bytes());
  return bytes;
}

void CopyArrays(const Layout& layout, std::byte* to) {
  for (const Array& array : layout.arrays) {
    if (array.bytes() > 0) std::memcpy(to, array.buffer.data(), array.bytes());
    to += Aligned(array.bytes());
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

}  // namespace

bool Exports::ByOwner::operator()(const Key& a, const Key& b) const {
  if (a.first.owner_before(b.first)) return true;
  if (b.first.owner_before(a.first)) return false;
  return a.second.owner_before(b.second);
}

absl::StatusOr<std::shared_ptr<const ExportedMemory>> Exports::Find(
    const std::shared_ptr<const void>& one, const std::shared_ptr<const void>& other, size_t bytes,
    MemoryOwner& owner, const std::function<void(std::byte*)>& fill) {
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
  absl::StatusOr<std::shared_ptr<const ExportedMemory>> made =
      ExportedMemory::Make(FileBytes(bytes), budget_, owner, fill);
  if (made.ok()) entry->memory = *made;
  return made;
}

Attachment::Attachment(std::shared_ptr<Executor::Impl> impl, std::string tenant, std::string name,
                       std::unique_ptr<ExportedSequence> sequence)
    : impl_(std::move(impl)),
      tenant_(std::move(tenant)),
      name_(std::move(name)),
      sequence_(std::move(sequence)) {}

absl::StatusOr<MatrixLease> Attachment::Current() const {
  return impl_->catalog.Find(tenant_, name_);
}

absl::StatusOr<ExportedRun> Attachment::Export(Problem problem) {
  // What changes from here on, the caller sees by it, and asks again.
  ExportedRun run;
  run.sequence = sequence_->value();
  const absl::StatusOr<MatrixLease> found = Current();
  if (!found.ok()) return found.status();
  const MatrixLease& matrix = *found;
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
  problem.device = DeviceKind::kCpu;
  problem.allow_tf32 = problem.allow_tf32 && problem.type == ElementType::kF32;
  const absl::StatusOr<Resolved> resolved =
      Resolve(*impl_, DeviceId{}, matrix, problem, pattern->plans().Find(ClassOf(problem)));
  if (!resolved.ok()) return resolved.status();
  const absl::StatusOr<Array> values = matrix->Values();
  if (!values.ok()) return values.status();

  const Layout& layout = *resolved->layout;
  MemoryOwner& owner = impl_->budget.OwnerOf(tenant_);
  const std::shared_ptr<const void> identity = IdentityOf(pattern, resolved->layout);
  const auto set = [](auto exported, auto* to) {
    if (exported.ok()) *to = *std::move(exported);
    return exported.status();
  };
  absl::Status status = set(impl_->exports.Find(identity, identity, ArrayBytes(layout), owner,
                                                [&](std::byte* to) { CopyArrays(layout, to); }),
                            &run.arrays);
  if (!status.ok()) return status;
  // Request threads have no teams: one thread places them.
  const size_t value_bytes = static_cast<size_t>(layout.value_slots) * SizeOf(problem.type);
  status = set(impl_->exports.Find(matrix, identity, value_bytes, owner,
                                   [&](std::byte* to) {
                                     PlaceValues(layout, problem.type, values->buffer.data(), to,
                                                 /*threads=*/1);
                                   }),
               &run.values);
  if (!status.ok()) return status;
  if (matrix->caller_order() != nullptr) {
    const absl::StatusOr<Array> order = matrix->caller_order()->Get();
    if (!order.ok()) return order.status();
    status = set(
        impl_->exports.Find(matrix->caller_order(), matrix->caller_order(), order->bytes(), owner,
                            [&](std::byte* to) {
                              if (order->bytes() > 0) {
                                std::memcpy(to, order->buffer.data(), order->bytes());
                              }
                            }),
        &run.order);
    if (!status.ok()) return status;
  }
  run.matrix = matrix;
  run.version = matrix->version();
  run.plan = resolved->text;
  run.kernel = resolved->kernel->name();
  run.layout = WithoutElements(layout);
  return run;
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
