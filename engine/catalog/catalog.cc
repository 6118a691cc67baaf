#include "engine/catalog/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "engine/catalog/stored.h"
#include "kernels/formats/csr.h"
#include "kernels/kernel_table.h"

namespace sparsed::engine {
namespace {

int64_t NowUnixNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

absl::Status NoMatrix(std::string_view name) {
  // None can have such a name, and no sentence repeats it.
  if (absl::Status valid = ValidateName("matrix", name); !valid.ok()) return valid;
  return absl::NotFoundError(fmt::format("there is no matrix named '{}'", name));
}

absl::StatusOr<bool> SamePattern(Pattern& pattern, const CsrView& csr, Store::Stop stop) {
  if (pattern.rows() != csr.rows || pattern.cols() != csr.cols || pattern.nnz() != csr.nnz()) {
    return false;
  }
  absl::StatusOr<std::shared_ptr<const Layout>> layout = pattern.Csr(stop);
  if (!layout.ok()) return layout.status();
  const CsrView other = ViewCsr(**layout);
  return std::ranges::equal(csr.row_offsets, other.row_offsets) &&
         std::ranges::equal(csr.column_indices, other.column_indices);
}

}  // namespace

absl::Status ValidateName(std::string_view what, std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{} name has {} bytes, expected 1 to {}", what, name.size(), kMaxNameBytes));
  }
  constexpr std::string_view kPunctuation = "._:/@+-";
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool fits = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                      kPunctuation.find(c) != kPunctuation.npos;
    if (!fits) {
      return absl::InvalidArgumentError(
          fmt::format("{} name has byte 0x{:02x} at position {}, expected [A-Za-z0-9._:/@+-]", what,
                      static_cast<unsigned char>(c), i));
    }
  }
  return absl::OkStatus();
}

absl::Status NameIsTaken(std::string_view name) {
  return absl::AlreadyExistsError(
      fmt::format("there is a matrix named '{}' already; delete it, or replace it (`replace`, "
                  "sparsectl's --replace)",
                  name));
}

absl::Status CheckDurable(bool durable, const Store& store) {
  if (!durable || store.durable()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this server keeps nothing on disk, so nothing on it can be durable; do without `durable` "
      "(sparsectl's --durable), or start it with --data-dir");
}

absl::Status CheckStop(Store::Stop stop) {
  if (stop == nullptr || !stop->load(std::memory_order_relaxed)) return absl::OkStatus();
  return absl::CancelledError("cancelled before it was published");
}

Catalog::Catalog(Store& store, Budget& budget) : store_(store), budget_(budget) {}

absl::Status Catalog::Restore(const StoreContents& contents) {
  const auto lazy = [this](const std::string& tenant, const StoredArray& stored) {
    return std::make_shared<LazyArray>(DiskCopyOf(store_, budget_, MemoryOf(tenant), stored));
  };
  const MutexLock lock(mutex_);
  deleted_version_ = contents.deleted_version;
  std::map<std::string, std::shared_ptr<Pattern>> patterns;
  for (const PatternRecord& record : contents.patterns) {
    patterns[record.hash] = std::make_shared<Pattern>(
        record.hash, record.rows, record.cols, record.nnz,
        std::make_shared<LazyLayout>(DiskCopyOf(store_, budget_, record)));
  }
  for (const MatrixRecord& record : contents.matrices) {
    const auto pattern = patterns.find(record.pattern_hash);
    if (pattern == patterns.end()) {
      return absl::DataLossError(fmt::format("the store has no pattern {} of matrix '{}'",
                                             record.pattern_hash, record.name));
    }
    absl::StatusOr<Budget::Charge> charge = CountMatrix(record.tenant);
    if (!charge.ok()) return charge.status();
    ReplaceLocked(std::make_shared<const Matrix>(
        record.tenant, record.name, pattern->second, record.type, record.version,
        record.created_unix_ns, /*durable=*/true, lazy(record.tenant, record.values),
        record.value_order ? lazy(record.tenant, *record.value_order) : nullptr, *std::move(charge),
        budget_.evictions()));
    versions_[{record.tenant, record.name}] = {record.used_version, record.used_version};
    patterns_[record.pattern_hash] = pattern->second;
  }
  return absl::OkStatus();
}

absl::StatusOr<MatrixLease> Catalog::Find(std::string_view tenant, std::string_view name) const {
  const MutexLock lock(mutex_);
  const auto found = matrices_.find(NameKey(tenant, name));
  if (found == matrices_.end()) return NoMatrix(name);
  return found->second;
}

std::vector<MatrixLease> Catalog::List(std::string_view tenant, std::string_view prefix,
                                       std::string_view after) const {
  const MutexLock lock(mutex_);
  std::vector<MatrixLease> list;
  auto it = after < prefix ? matrices_.lower_bound(NameKey(tenant, prefix))
                           : matrices_.upper_bound(NameKey(tenant, after));
  for (; it != matrices_.end(); ++it) {
    const auto& [key, matrix] = *it;
    if (key.first != tenant || !std::string_view(key.second).starts_with(prefix)) break;
    list.push_back(matrix);
  }
  return list;
}

absl::Status Catalog::Delete(std::string_view tenant, std::string_view name) {
  std::shared_ptr<Pattern> gone;
  MatrixLease deleted;  // Freed, if it is the last lease, without the lock.
  {
    NameLocks::Guard change(changes_, NameKey(tenant, name));
    if (absl::Status status = Find(tenant, name).status(); !status.ok()) return status;
    absl::Status status = store_.DeleteMatrix(std::string(tenant), std::string(name));
    if (!status.ok()) return status;
    const MutexLock lock(mutex_);
    const NameKey key(tenant, name);
    deleted = RemoveLocked(key);
    const auto versions = versions_.find(key);
    deleted_version_ = std::max(deleted_version_, versions->second.last);
    versions_.erase(versions);
    gone = RetireLocked(deleted->pattern());
  }
  if (on_changed) on_changed(tenant, name);
  if (gone != nullptr && on_pattern_gone) on_pattern_gone(gone);
  return absl::OkStatus();
}

std::vector<MatrixLease> Catalog::MatricesOf(const Pattern& pattern) const {
  const MutexLock lock(mutex_);
  std::vector<MatrixLease> list;
  const auto found = of_pattern_.find(&pattern);
  if (found == of_pattern_.end()) return list;
  for (const auto& [key, matrix] : found->second) list.push_back(matrix);
  return list;
}

std::vector<MatrixLease> Catalog::All() const {
  const MutexLock lock(mutex_);
  std::vector<MatrixLease> list;
  for (const auto& [key, matrix] : matrices_) list.push_back(matrix);
  return list;
}

bool Catalog::HasPattern(const std::string& hash) const {
  const MutexLock lock(mutex_);
  const auto known = patterns_.find(hash);
  return known != patterns_.end() && !known->second.expired();
}

int64_t Catalog::patterns() const {
  const MutexLock lock(mutex_);
  return std::ranges::count_if(patterns_,
                               [](const auto& entry) { return !entry.second.expired(); });
}

absl::StatusOr<MatrixLease> Catalog::Insert(const UploadHeader& header, Array row_offsets,
                                            Array column_indices, Array values) {
  if (absl::Status status = ValidateName("matrix", header.name); !status.ok()) return status;
  CsrArrays arrays{
      header.rows,       header.cols, std::move(row_offsets), std::move(column_indices),
      std::move(values), std::nullopt};
  // Only a pattern that has layouts already needs threads, to place the values in them.
  return AddArrays(header, std::move(arrays), /*threads=*/1, /*stop=*/nullptr);
}

std::shared_ptr<Pattern> Catalog::KnownPattern(std::string_view tenant,
                                               std::string_view hash) const {
  const MutexLock lock(mutex_);
  const auto known = patterns_.find(std::string(hash));
  const std::shared_ptr<Pattern> pattern =
      known == patterns_.end() ? nullptr : known->second.lock();
  const auto matrices = of_pattern_.find(pattern.get());
  if (pattern == nullptr || matrices == of_pattern_.end()) return nullptr;
  const auto first = matrices->second.lower_bound(NameKey(tenant, ""));
  return first != matrices->second.end() && first->first.first == tenant ? pattern : nullptr;
}

absl::StatusOr<std::shared_ptr<Pattern>> Catalog::Intern(const CsrArrays& arrays,
                                                         Store::Stop stop) {
  const CsrView csr = arrays.view();
  for (uint64_t seed = 0;; ++seed) {
    const std::string hash = HashPattern(csr, seed);
    auto fresh = std::make_shared<Pattern>(
        hash, csr.rows, csr.cols, csr.nnz(),
        std::make_shared<LazyLayout>(std::make_shared<const Layout>(
            MakeCsrLayout(csr.rows, csr.cols, arrays.row_offsets, arrays.column_indices))));
    std::shared_ptr<Pattern> existing;
    {
      const MutexLock lock(mutex_);
      std::weak_ptr<Pattern>& known = patterns_[hash];
      existing = known.lock();
      if (existing == nullptr) {
        known = fresh;
        return fresh;
      }
    }
    // Compared without the lock: it may read the disk. Equal hashes alone prove nothing.
    absl::StatusOr<bool> same = SamePattern(*existing, csr, stop);
    if (absl::IsDataLoss(same.status())) {
      // What was known of it is damaged. These arrays take its place, in the store too.
      const MutexLock lock(mutex_);
      patterns_[hash] = fresh;
      return fresh;
    }
    if (!same.ok()) return same.status();
    if (*same) return existing;
  }
}

absl::StatusOr<MatrixLease> Catalog::AddArrays(const UploadHeader& header, CsrArrays arrays,
                                               int threads, Store::Stop stop) {
  absl::StatusOr<std::shared_ptr<Pattern>> pattern = Intern(arrays, stop);
  if (!pattern.ok()) return pattern.status();
  // From here on there is one copy: the pattern's.
  arrays.row_offsets = Array();
  arrays.column_indices = Array();
  const std::string hash = (*pattern)->hash();
  absl::StatusOr<MatrixLease> matrix = Add(header, *std::move(pattern), std::move(arrays.values),
                                           std::move(arrays.caller_order), threads, stop);
  if (!matrix.ok()) {
    const MutexLock lock(mutex_);
    const auto known = patterns_.find(hash);
    if (known != patterns_.end() && known->second.expired()) patterns_.erase(known);
  }
  return matrix;
}

absl::StatusOr<MatrixLease> Catalog::Add(const UploadHeader& header,
                                         std::shared_ptr<Pattern> pattern, Array values,
                                         std::optional<Array> caller_order, int threads,
                                         Store::Stop stop) {
  absl::StatusOr<std::shared_ptr<const Layout>> csr = pattern->Csr(stop);
  if (!csr.ok()) return csr.status();
  absl::StatusOr<Budget::Charge> charge = CountMatrix(header.tenant);
  if (!charge.ok()) return charge.status();
  MatrixLease matrix;
  std::shared_ptr<Pattern> gone;
  {
    NameLocks::Guard change(changes_, NameKey(header.tenant, header.name));
    absl::StatusOr<MatrixLease> replaced = Find(header.tenant, header.name);
    if (replaced.ok() && !header.replace) {
      return NameIsTaken(header.name);
    }
    NewMatrix record;
    record.tenant = header.tenant;
    record.name = header.name;
    record.pattern_hash = pattern->hash();
    record.rows = pattern->rows();
    record.cols = pattern->cols();
    record.nnz = pattern->nnz();
    // Written only if the store does not have them, or knows that they are damaged.
    record.row_offsets = *(*csr)->Find("row_offsets");
    record.column_indices = *(*csr)->Find("column_indices");
    record.values = values;
    record.value_order = caller_order;
    record.version = NextVersion(NameKey(header.tenant, header.name));
    record.created_unix_ns = NowUnixNs();
    const auto lazy_values = std::make_shared<LazyArray>(values);
    const auto lazy_order = caller_order ? std::make_shared<LazyArray>(*caller_order) : nullptr;
    matrix = std::make_shared<const Matrix>(
        header.tenant, header.name, pattern, values.type, record.version, record.created_unix_ns,
        store_.durable(), lazy_values, lazy_order, *std::move(charge), budget_.evictions());
    if (absl::Status s = PlaceInLayouts(*matrix, threads, stop); !s.ok()) return s;
    absl::StatusOr<StoredMatrix> stored = store_.PutMatrix(record, stop);
    if (!stored.ok()) return stored.status();
    if (store_.durable()) {
      pattern->SetDiskCopy(DiskCopyOf(store_, budget_, stored->pattern));
      SetDiskCopy(*lazy_values, header.tenant, stored->matrix.values);
      if (lazy_order != nullptr)
        SetDiskCopy(*lazy_order, header.tenant, *stored->matrix.value_order);
    }
    gone = Publish(matrix);
  }
  if (gone != nullptr && on_pattern_gone) on_pattern_gone(gone);
  if (on_published) on_published(matrix, header.expected);
  return matrix;
}

void Catalog::SetDiskCopy(LazyArray& array, std::string_view tenant, const StoredArray& stored) {
  array.SetDiskCopy(DiskCopyOf(store_, budget_, MemoryOf(tenant), stored));
}

absl::Status Catalog::PlaceInLayouts(const Matrix& matrix, int threads, Store::Stop stop) {
  std::set<std::string> of_cpu, of_gpu;
  for (const auto& active : matrix.pattern()->plans().List()) {
    const bool on_cpu = active->plan.problem_class.device == DeviceKind::kCpu;
    (on_cpu ? of_cpu : of_gpu).insert(active->plan.recipe);
  }
  for (const Pattern::BuiltEntry& entry : matrix.pattern()->Layouts()) {
    const std::string& recipe = entry.description->recipe;
    if (of_gpu.contains(recipe) && !of_cpu.contains(recipe)) continue;
    // Products have them placed when they need them.
    if (ReadsLayouts(Operation::kSpgemm, entry.description->kind)) continue;
    if (absl::Status s = CheckStop(stop); !s.ok()) return s;
    // One that is not in memory gets them when it is read again.
    const std::shared_ptr<const Layout> layout = entry.layout->Resident();
    if (layout == nullptr) continue;
    MemorySource& memory = budget_.Source(MemoryUse::kLayouts);
    absl::Status placed = matrix.ValuesIn(*layout, memory, threads).status();
    if (!placed.ok()) return placed;
  }
  return CheckStop(stop);
}

uint64_t Catalog::NextVersion(const NameKey& key) const {
  const MutexLock lock(mutex_);
  const auto known = versions_.find(key);
  return (known != versions_.end() ? known->second.last : deleted_version_) + 1;
}

absl::Status Catalog::UseVersion(const NameKey& key, uint64_t version) {
  // A training job replaces values every step: most steps do without the disk.
  constexpr uint64_t kAtOnce = 1024;
  {
    const MutexLock lock(mutex_);
    if (version <= versions_[key].reserved) return absl::OkStatus();
  }
  const uint64_t reserved = version + kAtOnce - 1;
  absl::Status status = store_.UseVersions(key.first, key.second, reserved);
  if (!status.ok()) return status;
  const MutexLock lock(mutex_);
  versions_[key].reserved = reserved;
  return absl::OkStatus();
}

std::shared_ptr<Pattern> Catalog::Publish(const MatrixLease& matrix) {
  MatrixLease replaced;  // Freed, if it is the last lease, without the lock.
  std::shared_ptr<Pattern> gone;
  {
    const MutexLock lock(mutex_);
    versions_[NameKey(matrix->tenant(), matrix->name())].last = matrix->version();
    replaced = ReplaceLocked(matrix);
    // The last other matrix of the pattern may have been deleted while this one was being stored.
    std::weak_ptr<Pattern>& known = patterns_[matrix->pattern()->hash()];
    if (known.expired()) known = matrix->pattern();
    if (replaced != nullptr) gone = RetireLocked(replaced->pattern());
  }
  if (on_changed) on_changed(matrix->tenant(), matrix->name());
  return gone;
}

MatrixLease Catalog::ReplaceLocked(const MatrixLease& matrix) {
  const NameKey key(matrix->tenant(), matrix->name());
  MatrixLease replaced = RemoveLocked(key);
  matrices_[key] = matrix;
  of_pattern_[matrix->pattern().get()][key] = matrix;
  return replaced;
}

MatrixLease Catalog::RemoveLocked(const NameKey& key) {
  const auto found = matrices_.find(key);
  if (found == matrices_.end()) return nullptr;
  MatrixLease removed = std::move(found->second);
  matrices_.erase(found);
  const auto siblings = of_pattern_.find(removed->pattern().get());
  siblings->second.erase(key);
  if (siblings->second.empty()) of_pattern_.erase(siblings);
  return removed;
}

std::shared_ptr<Pattern> Catalog::RetireLocked(const std::shared_ptr<Pattern>& pattern) {
  if (of_pattern_.contains(pattern.get())) return nullptr;
  const auto known = patterns_.find(pattern->hash());
  if (known != patterns_.end() && known->second.lock() == pattern) patterns_.erase(known);
  return pattern;
}

}  // namespace sparsed::engine
