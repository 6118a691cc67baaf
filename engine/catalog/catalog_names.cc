// Other names for what there is: rename, copy.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/catalog/catalog.h"
#include "engine/catalog/stored.h"

namespace sparsed::engine {
namespace {

/// That its pattern has plans for; none: what an upload that says nothing expects.
std::vector<ProblemSignature> PreparedSignatures(const Matrix& matrix) {
  std::vector<ProblemSignature> signatures;
  for (const auto& active : matrix.pattern()->plans().List()) {
    const ProblemSignature& c = active->plan.signature;
    if (c.type == matrix.type() && c.operation != Operation::kSpgemm) signatures.push_back(c);
  }
  return signatures;
}

absl::Status IsItsName(std::string_view name) {
  return absl::AlreadyExistsError(fmt::format("'{}' is its name already; take another", name));
}

}  // namespace

absl::StatusOr<MatrixLease> Catalog::Copy(std::string_view tenant, std::string_view name,
                                          const std::string& new_name, bool replace, int threads,
                                          Store::Stop stop) {
  const NameKey from = Named(tenant, name);
  if (from.first != tenant) return NotDeletable(tenant, name);
  const absl::StatusOr<MatrixLease> source = Find(tenant, name);
  if (!source.ok()) return source.status();
  if (absl::Status valid = ValidateName("new", new_name); !valid.ok()) return valid;
  // Its own values in its own place would look like new ones to who watches.
  if (new_name == from.second) return IsItsName(new_name);
  const Matrix& matrix = **source;
  absl::StatusOr<Array> values = matrix.Values(stop);
  if (!values.ok()) return values.status();
  std::optional<Array> order;
  if (matrix.caller_order() != nullptr) {
    absl::StatusOr<Array> read = matrix.caller_order()->Get(stop);
    if (!read.ok()) return read.status();
    order = *std::move(read);
  }
  UploadHeader header;
  header.tenant = std::string(tenant);
  header.name = new_name;
  header.replace = replace;
  header.time_to_live = matrix.keep().time_to_live;
  header.expected = PreparedSignatures(matrix);
  return Add(header, matrix.pattern(), *std::move(values), std::move(order), threads, stop);
}

absl::StatusOr<MatrixLease> Catalog::Rename(std::string_view tenant, std::string_view name,
                                            const std::string& new_name, int threads,
                                            Store::Stop stop) {
  const NameKey from = Named(tenant, name);
  if (from.first != tenant || Present(from) == nullptr) return NotDeletable(tenant, name);
  if (absl::Status valid = ValidateName("new", new_name); !valid.ok()) return valid;
  const NameKey to(tenant, new_name);
  if (from == to) return IsItsName(new_name);
  absl::StatusOr<MatrixLease> moved;
  {
    // In their order, so that of two that wait for each other there are none.
    const NameLocks::Guard first(changes_, std::min(from, to));
    const NameLocks::Guard second(changes_, std::max(from, to));
    const MatrixLease old = Present(from);
    if (old == nullptr) return NotDeletable(tenant, name);
    if (Present(to) != nullptr) {
      return absl::AlreadyExistsError(fmt::format(
          "there is a matrix named '{}' already; take another name, or delete that one", new_name));
    }
    moved = Move(old, to, threads, stop);
    if (!moved.ok()) return moved;
    PublishMoved(old, *moved);
  }
  return moved;
}

absl::StatusOr<MatrixLease> Catalog::Move(const MatrixLease& old, const NameKey& to, int threads,
                                          Store::Stop stop) {
  const std::shared_ptr<Pattern>& pattern = old->pattern();
  const absl::StatusOr<std::shared_ptr<const Layout>> csr = pattern->Csr(stop);
  if (!csr.ok()) return csr.status();
  const absl::StatusOr<Array> values = old->Values(stop);
  if (!values.ok()) return values.status();
  std::optional<Array> order;
  std::shared_ptr<LazyArray> lazy_order;
  if (old->caller_order() != nullptr) {
    absl::StatusOr<Array> read = old->caller_order()->Get(stop);
    if (!read.ok()) return read.status();
    order = *std::move(read);
    lazy_order = std::make_shared<LazyArray>(*order);
  }
  NewMatrix record = RecordOf(to, *pattern, **csr, *values, order);
  record.version = NextVersion(to);
  record.created_unix_ns = old->created_unix_ns();
  record.time_to_live_ns = old->keep().time_to_live.count();
  record.moved_from = old->name();
  const auto lazy_values = std::make_shared<LazyArray>(*values);
  // It counts as what it was, once.
  MatrixLease matrix = std::make_shared<const Matrix>(
      to.first, to.second, pattern, old->type(), record.version, record.created_unix_ns,
      store_.durable(), lazy_values, lazy_order, old->keep(), budget_.evictions());
  matrix->keep().used->store(options_.now(), std::memory_order_relaxed);
  if (absl::Status s = PlaceInLayouts(*matrix, threads, stop); !s.ok()) return s;
  const absl::StatusOr<StoredMatrix> stored = store_.PutMatrix(record, stop);
  if (!stored.ok()) return stored.status();
  if (store_.durable()) {
    pattern->SetDiskCopy(DiskCopyOf(store_, budget_, pattern->payer(), stored->pattern));
    SetDiskCopies(*matrix, *lazy_values, *stored);
  }
  return matrix;
}

void Catalog::PublishMoved(const MatrixLease& old, const MatrixLease& matrix) {
  const NameKey from(old->tenant(), old->name()), to(matrix->tenant(), matrix->name());
  const MutexLock lock(mutex_);
  versions_[to].last = matrix->version();
  ReplaceLocked(matrix);
  for (engine::Share& share : shares_.Of(from)) shares_.Put(to, std::move(share));
  RemoveLocked(from);
  ForgetNameLocked(from, old);  // its pattern stays: `matrix` has it
}

}  // namespace sparsed::engine
