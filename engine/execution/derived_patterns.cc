#include "engine/execution/derived_patterns.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/formats/csr_build.h"

namespace sparsed::engine {
namespace {

/// All are looked through under the lock.
constexpr size_t kMostEntries = 1024;

}  // namespace

std::shared_ptr<const Layout> DerivedPatterns::FindTransposed(
    const std::shared_ptr<Pattern>& pattern) {
  if (const std::shared_ptr<LazyLayout> prepared = pattern->FindLayout(kTransposePipeline)) {
    if (prepared->resident()) {
      absl::StatusOr<std::shared_ptr<const Layout>> layout = prepared->Get();
      if (layout.ok()) return *std::move(layout);
    }
  }
  const MutexLock lock(mutex_);
  const Entry* const entry = FindLocked({.patterns = {pattern.get()}});
  return entry == nullptr ? nullptr : entry->transposed;
}

absl::StatusOr<std::shared_ptr<const Layout>> DerivedPatterns::Transposed(
    const std::shared_ptr<Pattern>& pattern, BuildContext context) {
  if (std::shared_ptr<const Layout> found = FindTransposed(pattern)) return found;
  if (const std::shared_ptr<LazyLayout> prepared = pattern->FindLayout(kTransposePipeline)) {
    absl::StatusOr<std::shared_ptr<const Layout>> layout = prepared->Get(context.stop);
    if (layout.ok() || absl::IsCancelled(layout.status())) return layout;
  }
  const Key key = {.patterns = {pattern.get()}};
  const absl::StatusOr<std::shared_ptr<const Layout>> csr = pattern->Csr();
  if (!csr.ok()) return csr.status();
  context.memory = &memory_;
  absl::StatusOr<Layout> built = TransposeCsr(ViewCsr(**csr), context);
  if (!built.ok()) return built.status();
  built->pipeline = kTransposePipeline;
  Entry entry;
  entry.patterns = {pattern};
  entry.transposed = std::make_shared<const Layout>(*std::move(built));
  entry.bytes = CountedBytes(*entry.transposed);
  std::shared_ptr<const Layout> transposed = entry.transposed;
  std::vector<Entry> gone;
  const MutexLock lock(mutex_);
  gone = InsertLocked(key, std::move(entry));
  return transposed;
}

std::optional<RowSizes> DerivedPatterns::FindSizes(const PatternProduct& product) {
  const MutexLock lock(mutex_);
  const Entry* const entry = FindLocked(KeyOf(product));
  if (entry == nullptr) return std::nullopt;
  ++sizes_found_;
  return entry->sizes;
}

void DerivedPatterns::KeepSizes(const PatternProduct& product, const RowSizes& sizes) {
  {
    const MutexLock lock(mutex_);
    ++sizes_computed_;
  }
  Entry entry;
  entry.bytes = static_cast<int64_t>(sizes.row_nnz.bytes());
  if (entry.bytes > limit_bytes_) return;
  absl::StatusOr<Array> copy =
      AllocateArray(memory_, "row sizes", ElementType::kI64, sizes.row_nnz.length);
  if (!copy.ok()) return;
  if (copy->length > 0) {
    std::memcpy(copy->buffer.mutable_data(), sizes.row_nnz.buffer.data(), copy->bytes());
  }
  entry.patterns = {product.left, product.right, product.mask};
  entry.bytes = CountedBytes(*copy);
  entry.sizes = {*std::move(copy), sizes.products};
  std::vector<Entry> gone;
  const MutexLock lock(mutex_);
  gone = InsertLocked(KeyOf(product), std::move(entry));
}

std::shared_ptr<RowDistribution> DerivedPatterns::FindRows(
    const std::shared_ptr<Pattern>& pattern, bool transposed,
    const std::vector<int64_t>& operand_bounds) {
  const MutexLock lock(mutex_);
  const Entry* const entry = FindLocked({.patterns = {pattern.get()},
                                         .transpose_left = transposed,
                                         .operand_bounds = operand_bounds});
  return entry == nullptr ? nullptr : entry->rows;
}

void DerivedPatterns::KeepRows(const std::shared_ptr<Pattern>& pattern, bool transposed,
                               std::shared_ptr<RowDistribution> rows) {
  const Key key = {.patterns = {pattern.get()},
                   .transpose_left = transposed,
                   .operand_bounds = rows->operand_bounds()};
  Entry entry;
  entry.patterns = {pattern};
  entry.bytes = rows->bytes();
  entry.rows = std::move(rows);
  std::vector<Entry> gone;
  const MutexLock lock(mutex_);
  gone = InsertLocked(key, std::move(entry));
}

bool DerivedPatterns::Evict() {
  std::vector<Entry> dead;
  std::optional<Entry> oldest;
  const MutexLock lock(mutex_);
  dead = TakeDeadLocked();
  if (dead.empty()) oldest = TakeOldestLocked();
  if (entries_.empty()) {
    evictions_.Remove(*this);
  } else {
    evictions_.Use(*this, bytes_);
  }
  return !dead.empty() || oldest.has_value();
}

int64_t DerivedPatterns::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_;
}

int64_t DerivedPatterns::sizes_found() const {
  const MutexLock lock(mutex_);
  return sizes_found_;
}

int64_t DerivedPatterns::sizes_computed() const {
  const MutexLock lock(mutex_);
  return sizes_computed_;
}

DerivedPatterns::Key DerivedPatterns::KeyOf(const PatternProduct& product) {
  return {{product.left.get(), product.right.get(), product.mask.get()},
          product.transpose_left,
          product.transpose_right};
}

bool DerivedPatterns::IsOf(const Key& key, const Entry& entry) {
  for (size_t i = 0; i < entry.patterns.size(); ++i) {
    if (entry.patterns[i].lock().get() != key.patterns[i]) return false;
  }
  return true;
}

DerivedPatterns::Entry* DerivedPatterns::FindLocked(const Key& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || !IsOf(key, found->second)) return nullptr;
  found->second.used = ++clock_;
  evictions_.Use(*this, bytes_);
  return &found->second;
}

std::vector<DerivedPatterns::Entry> DerivedPatterns::InsertLocked(const Key& key, Entry entry) {
  std::vector<Entry> gone = TakeDeadLocked();
  if (entry.bytes > limit_bytes_) return gone;
  if (auto before = entries_.extract(key)) {
    bytes_ -= before.mapped().bytes;
    gone.push_back(std::move(before.mapped()));
  }
  while (bytes_ + entry.bytes > limit_bytes_ || entries_.size() >= kMostEntries) {
    std::optional<Entry> oldest = TakeOldestLocked();
    gone.push_back(*std::move(oldest));
  }
  entry.used = ++clock_;
  bytes_ += entry.bytes;
  entries_.emplace(key, std::move(entry));
  evictions_.Use(*this, bytes_);
  return gone;
}

std::vector<DerivedPatterns::Entry> DerivedPatterns::TakeDeadLocked() {
  std::vector<Entry> dead;
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (IsOf(it->first, it->second)) {
      ++it;
      continue;
    }
    bytes_ -= it->second.bytes;
    dead.push_back(std::move(it->second));
    it = entries_.erase(it);
  }
  return dead;
}

std::optional<DerivedPatterns::Entry> DerivedPatterns::TakeOldestLocked() {
  const auto oldest = std::ranges::min_element(
      entries_, {}, [](const Entries::value_type& entry) { return entry.second.used; });
  if (oldest == entries_.end()) return std::nullopt;
  bytes_ -= oldest->second.bytes;
  std::optional<Entry> taken = std::move(oldest->second);
  entries_.erase(oldest);
  return taken;
}

absl::StatusOr<std::shared_ptr<RowDistribution>> FindOrBuildRows(
    DerivedPatterns& derived, const std::shared_ptr<Pattern>& pattern, const Problem& problem,
    const std::shared_ptr<const ActivePlan>& plan, const std::vector<int64_t>& operand_bounds,
    bool with_layouts, Budget& budget, const std::atomic<bool>* stop,
    std::shared_ptr<RowDistribution> known) {
  std::shared_ptr<RowDistribution> rows = std::move(known);
  if (rows == nullptr) rows = derived.FindRows(pattern, problem.transposed, operand_bounds);
  if (rows == nullptr) {
    BuildContext context;
    context.stop = stop;
    const absl::StatusOr<std::shared_ptr<const Layout>> of =
        problem.transposed ? derived.Transposed(pattern, context) : pattern->Csr(stop);
    if (!of.ok()) return of.status();
    absl::StatusOr<std::shared_ptr<RowDistribution>> built =
        RowDistribution::Build(**of, operand_bounds, budget, stop);
    if (!built.ok()) return built;
    rows = *std::move(built);
    // Whatever becomes of this request: the next one goes on from there.
    derived.KeepRows(pattern, problem.transposed, rows);
  }
  absl::Status planned = rows->AddPlans(problem, plan, *pattern, with_layouts, budget, stop);
  if (!planned.ok()) return planned;
  derived.KeepRows(pattern, problem.transposed, rows);
  return rows;
}

}  // namespace sparsed::engine
