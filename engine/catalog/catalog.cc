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

using UsedAt = std::atomic<std::chrono::steady_clock::time_point>;

/// What hashes of a tenant's patterns begin with, so that they say nothing of another's: FNV-1a of
/// his name.
uint64_t SaltOf(std::string_view tenant) {
  uint64_t salt = 0xcbf29ce484222325;
  for (const char c : tenant) salt = (salt ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return salt;
}

int64_t BytesOf(const StoredArray& array) {
  return array.length * static_cast<int64_t>(SizeOf(array.type));
}

/// Who uploaded each pattern first, of those that have a matrix of it: he pays for it.
std::map<std::string, std::string> FirstTenants(const StoreContents& contents) {
  std::map<std::string, const MatrixRecord*> first;
  for (const MatrixRecord& record : contents.matrices) {
    const MatrixRecord*& of_pattern = first[record.pattern_hash];
    if (of_pattern == nullptr || record.created_unix_ns < of_pattern->created_unix_ns) {
      of_pattern = &record;
    }
  }
  std::map<std::string, std::string> tenants;
  for (const auto& [hash, record] : first) tenants[hash] = record->tenant;
  return tenants;
}

/// It is there already.
void SetOnDiskAnyway(Pattern& pattern, const std::string& pipeline, int64_t bytes) {
  if (pattern.payer() == nullptr) return;
  pattern.SetOnDisk(pipeline, TenantOf(*pattern.payer()).HoldAnyway(Quota::kDiskBytes, bytes));
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

Catalog::Catalog(Store& store, Budget& budget, CatalogOptions options)
    : options_(std::move(options)), store_(store), budget_(budget) {}

absl::Status Catalog::Restore(const StoreContents& contents) {
  const auto lazy = [this](const std::string& tenant, const StoredArray& stored) {
    return std::make_shared<LazyArray>(
        DiskCopyOf(store_, budget_, MemoryUse::kMatrices, budget_.OwnerOf(tenant), stored));
  };
  const std::map<std::string, std::string> payers = FirstTenants(contents);
  const MutexLock lock(mutex_);
  deleted_version_ = contents.deleted_version;
  std::map<std::string, std::shared_ptr<Pattern>> patterns;
  for (const PatternRecord& record : contents.patterns) {
    const auto first = payers.find(record.hash);
    MemoryOwner* const payer = first == payers.end() ? nullptr : &budget_.OwnerOf(first->second);
    const auto pattern = std::make_shared<Pattern>(
        record.hash, record.rows, record.cols, record.nnz,
        std::make_shared<LazyLayout>(DiskCopyOf(store_, budget_, payer, record)), payer);
    SetOnDiskAnyway(*pattern, std::string(kCsr),
                    BytesOf(record.row_offsets) + BytesOf(record.column_indices));
    patterns[record.hash] = pattern;
  }
  for (const LayoutRecord& record : contents.layouts) {
    int64_t bytes = 0;
    for (const StoredArray& array : record.arrays) bytes += BytesOf(array);
    const auto pattern = patterns.find(record.pattern_hash);
    if (pattern != patterns.end()) SetOnDiskAnyway(*pattern->second, record.layout.pipeline, bytes);
  }
  for (const MatrixRecord& record : contents.matrices) {
    const auto pattern = patterns.find(record.pattern_hash);
    if (pattern == patterns.end()) {
      return absl::DataLossError(fmt::format("the store has no pattern {} of matrix '{}'",
                                             record.pattern_hash, record.name));
    }
    MemoryOwner& owner = budget_.OwnerOf(record.tenant);
    absl::StatusOr<Budget::Charge> charge =
        budget_.Count(kMatrixBytes, MemoryUse::kMatrices, &owner);
    if (!charge.ok()) return charge.status();
    const int64_t on_disk =
        BytesOf(record.values) + (record.value_order ? BytesOf(*record.value_order) : 0);
    Tenant& tenant = TenantOf(record.tenant);
    MatrixKeep keep = {.payer = &owner,
                       .charge = *std::move(charge),
                       .count = tenant.HoldAnyway(Quota::kMatrices),
                       .disk = tenant.HoldAnyway(Quota::kDiskBytes, on_disk),
                       .time_to_live = std::chrono::nanoseconds(record.time_to_live_ns),
                       .used = std::make_shared<UsedAt>(options_.now())};
    ReplaceLocked(std::make_shared<const Matrix>(
        record.tenant, record.name, pattern->second, record.type, record.version,
        record.created_unix_ns, /*durable=*/true, lazy(record.tenant, record.values),
        record.value_order ? lazy(record.tenant, *record.value_order) : nullptr, std::move(keep),
        budget_.evictions()));
    versions_[{record.tenant, record.name}] = {record.used_version, record.used_version};
    patterns_[record.pattern_hash] = pattern->second;
  }
  for (const ShareRecord& record : contents.shares) {
    shares_.Put({record.tenant, record.name},
                {record.with, record.may_write ? Right::kWrite : Right::kRead});
  }
  return absl::OkStatus();
}

MatrixLease Catalog::Present(const NameKey& key) const {
  const MutexLock lock(mutex_);
  const auto found = matrices_.find(key);
  return found == matrices_.end() ? nullptr : found->second;
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
  const NameKey key = Named(tenant, name);
  if (key.first != tenant) return NotDeletable(tenant, name);
  std::shared_ptr<Pattern> gone;
  MatrixLease deleted;  // Freed, if it is the last lease, without the lock.
  {
    NameLocks::Guard change(changes_, key);
    if (Present(key) == nullptr) return NotDeletable(tenant, name);
    absl::Status status = store_.DeleteMatrix(key.first, key.second);
    if (!status.ok()) return status;
    const MutexLock lock(mutex_);
    deleted = RemoveLocked(key);
    gone = ForgetNameLocked(key, deleted);
  }
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

absl::StatusOr<std::shared_ptr<Pattern>> Catalog::Intern(std::string_view tenant,
                                                         const CsrArrays& arrays,
                                                         Store::Stop stop) {
  const CsrView csr = arrays.view();
  MemoryOwner& owner = budget_.OwnerOf(tenant);
  for (uint64_t seed = options_.share_patterns ? 0 : SaltOf(tenant);; ++seed) {
    const std::string hash = HashPattern(csr, seed);
    auto fresh = std::make_shared<Pattern>(
        hash, csr.rows, csr.cols, csr.nnz(),
        std::make_shared<LazyLayout>(std::make_shared<const Layout>(
            MakeHostCsrLayout(csr.rows, csr.cols, arrays.row_offsets, arrays.column_indices))),
        &owner);
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
    if (!options_.share_patterns && existing->payer() != &owner) continue;
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
  absl::StatusOr<std::shared_ptr<Pattern>> pattern = Intern(header.tenant, arrays, stop);
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
  MatrixLease matrix;
  std::shared_ptr<Pattern> gone;
  {
    NameLocks::Guard change(changes_, NameKey(header.tenant, header.name));
    const MatrixLease replaced = Present(NameKey(header.tenant, header.name));
    if (replaced != nullptr && !header.replace) return NameIsTaken(header.name);
    const size_t on_disk = values.bytes() + (caller_order ? caller_order->bytes() : 0);
    absl::StatusOr<MatrixKeep> keep =
        KeepMatrix(header.tenant, replaced.get(),
                   store_.durable() ? static_cast<int64_t>(on_disk) : 0, header.time_to_live);
    if (!keep.ok()) return keep.status();
    TenantHold pattern_on_disk;
    if (store_.durable() && !pattern->on_disk(std::string(kCsr))) {
      absl::StatusOr<TenantHold> room = pattern->HoldDisk((*csr)->bytes());
      if (!room.ok()) return room.status();
      pattern_on_disk = *std::move(room);
    }
    const NameKey key(header.tenant, header.name);
    NewMatrix record = RecordOf(key, *pattern, **csr, values, caller_order);
    const bool copied = header.version != 0;
    record.version = copied ? header.version : NextVersion(key);
    record.created_unix_ns = copied ? header.created_unix_ns : NowUnixNs();
    record.time_to_live_ns = header.time_to_live.count();
    const auto lazy_values = std::make_shared<LazyArray>(values);
    const auto lazy_order = caller_order ? std::make_shared<LazyArray>(*caller_order) : nullptr;
    matrix = std::make_shared<const Matrix>(
        header.tenant, header.name, pattern, values.type, record.version, record.created_unix_ns,
        store_.durable(), lazy_values, lazy_order, *std::move(keep), budget_.evictions());
    if (absl::Status s = PlaceInLayouts(*matrix, threads, stop); !s.ok()) return s;
    absl::StatusOr<StoredMatrix> stored = store_.PutMatrix(record, stop);
    if (!stored.ok()) return stored.status();
    if (store_.durable()) {
      pattern->SetDiskCopy(DiskCopyOf(store_, budget_, pattern->payer(), stored->pattern));
      if (pattern_on_disk != nullptr) pattern->SetOnDisk(std::string(kCsr), pattern_on_disk);
      SetDiskCopies(*matrix, *lazy_values, *stored);
    }
    gone = Publish(matrix);
  }
  if (gone != nullptr && on_pattern_gone) on_pattern_gone(gone);
  if (on_published) on_published(matrix, header.expected, header.requester);
  return matrix;
}

NewMatrix Catalog::RecordOf(const NameKey& key, const Pattern& pattern, const Layout& csr,
                            Array values, std::optional<Array> caller_order) {
  NewMatrix record;
  record.tenant = key.first;
  record.name = key.second;
  record.pattern_hash = pattern.hash();
  record.rows = pattern.rows();
  record.cols = pattern.cols();
  record.nnz = pattern.nnz();
  record.row_offsets = *csr.Find("row_offsets");
  record.column_indices = *csr.Find("column_indices");
  record.values = std::move(values);
  record.value_order = std::move(caller_order);
  return record;
}

void Catalog::SetDiskCopies(const Matrix& matrix, LazyArray& values, const StoredMatrix& stored) {
  SetDiskCopy(values, matrix.tenant(), stored.matrix.values);
  if (matrix.caller_order() != nullptr) {
    SetDiskCopy(*matrix.caller_order(), matrix.tenant(), *stored.matrix.value_order);
  }
}

void Catalog::SetDiskCopy(LazyArray& array, std::string_view tenant, const StoredArray& stored) {
  array.SetDiskCopy(
      DiskCopyOf(store_, budget_, MemoryUse::kMatrices, budget_.OwnerOf(tenant), stored));
}

absl::StatusOr<MatrixKeep> Catalog::KeepMatrix(std::string_view tenant, const Matrix* replaced,
                                               int64_t on_disk,
                                               std::chrono::nanoseconds time_to_live) {
  MatrixKeep keep;
  keep.time_to_live = time_to_live;
  keep.used = std::make_shared<UsedAt>(options_.now());
  keep.payer = &budget_.OwnerOf(tenant);
  Tenant& counts = TenantOf(tenant);
  absl::StatusOr<TenantHold> count =
      counts.Hold(Quota::kMatrices, 1, /*instead_of=*/replaced == nullptr ? 0 : 1);
  if (!count.ok()) return count.status();
  keep.count = *std::move(count);
  if (on_disk > 0) {
    absl::StatusOr<TenantHold> disk =
        counts.Hold(Quota::kDiskBytes, on_disk, replaced == nullptr ? 0 : replaced->disk_bytes());
    if (!disk.ok()) return disk.status();
    keep.disk = *std::move(disk);
  }
  absl::StatusOr<Budget::Charge> charge =
      budget_.Count(kMatrixBytes, MemoryUse::kMatrices, keep.payer);
  if (!charge.ok()) return charge.status();
  keep.charge = *std::move(charge);
  // Requests go on as they are, whatever is in it now.
  if (replaced != nullptr) keep.plan_uses = replaced->keep().plan_uses;
  return keep;
}

absl::Status Catalog::PlaceInLayouts(const Matrix& matrix, int threads, Store::Stop stop) {
  std::set<std::string> of_cpu, of_gpu;
  for (const auto& active : matrix.pattern()->plans().List()) {
    const bool on_cpu = active->plan.signature.device == DeviceKind::kCpu;
    (on_cpu ? of_cpu : of_gpu).insert(active->plan.pipeline);
  }
  for (const Pattern::BuiltEntry& entry : matrix.pattern()->Layouts()) {
    const std::string& pipeline = entry.description->pipeline;
    if (of_gpu.contains(pipeline) && !of_cpu.contains(pipeline)) continue;
    // Products have them placed when they need them.
    if (ReadsLayouts(Operation::kSpgemm, entry.description->kind)) continue;
    if (absl::Status s = CheckStop(stop); !s.ok()) return s;
    // One that is not in memory gets them when it is read again.
    const std::shared_ptr<const Layout> layout = entry.layout->Resident();
    if (layout == nullptr) continue;
    MemorySource& memory = budget_.Source(MemoryUse::kLayouts, matrix.payer());
    absl::Status placed = matrix.ValuesIn(*layout, memory, threads).status();
    if (!placed.ok()) return placed;
  }
  return CheckStop(stop);
}

uint64_t Catalog::NextVersion(const NameKey& key) const {
  const MutexLock lock(mutex_);
  const auto known = versions_.find(key);
  return std::max(others_version_,
                  known != versions_.end() ? known->second.last : deleted_version_) +
         1;
}

void Catalog::RaiseVersions(uint64_t used) {
  const MutexLock lock(mutex_);
  others_version_ = std::max(others_version_, used);
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
    uint64_t& last = versions_[NameKey(matrix->tenant(), matrix->name())].last;
    last = std::max(last, matrix->version());  // a copy's may be a lower one
    replaced = ReplaceLocked(matrix);
    // The last other matrix of the pattern may have been deleted while this one was being stored.
    std::weak_ptr<Pattern>& known = patterns_[matrix->pattern()->hash()];
    if (known.expired()) known = matrix->pattern();
    if (replaced != nullptr) gone = RetireLocked(replaced->pattern());
  }
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
  if (on_changed) on_changed(key.first, key.second);
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
