// Who may have which matrix.
#include <fmt/format.h>

#include <utility>

#include "engine/catalog/catalog.h"

namespace sparsed::engine {

absl::Status NoMatrix(std::string_view reference) {
  // None can have such a name, and no sentence repeats it.
  const size_t mark = reference.find(kOwnerMark);
  if (mark != std::string_view::npos) {
    absl::Status valid = ValidateName("owner's", reference.substr(0, mark));
    if (!valid.ok()) return valid;
  }
  const NameKey key = Named("", reference);
  if (absl::Status valid = ValidateName("matrix", key.second); !valid.ok()) return valid;
  return absl::NotFoundError(fmt::format("there is no matrix named '{}'", reference));
}

absl::StatusOr<MatrixLease> Catalog::Find(std::string_view tenant, std::string_view reference,
                                          Right right) const {
  const NameKey key = Named(tenant, reference);
  const MutexLock lock(mutex_);
  const auto found = matrices_.find(key);
  const std::optional<Right> may = shares_.RightOf(tenant, key);
  if (found == matrices_.end() || !may.has_value()) return NoMatrix(reference);
  if (*may < right) {
    return absl::PermissionDeniedError(
        fmt::format("matrix '{}' is shared for reading alone; its owner may share it for writing "
                    "(`sparsectl share --write`)",
                    reference));
  }
  found->second->keep().used->store(options_.now(), std::memory_order_relaxed);
  return found->second;
}

MatrixLease Catalog::LookAtShared(std::string_view tenant, const NameKey& key) const {
  const MutexLock lock(mutex_);
  const auto found = matrices_.find(key);
  if (found == matrices_.end() || !shares_.RightOf(tenant, key).has_value()) return nullptr;
  return found->second;
}

std::vector<MatrixLease> Catalog::ListShared(std::string_view tenant, std::string_view prefix,
                                             std::string_view after) const {
  std::map<NameKey, MatrixLease> by_name;
  {
    const MutexLock lock(mutex_);
    for (const NameKey& key : shares_.With(tenant)) {
      const auto found = matrices_.find(key);
      if (found == matrices_.end() || (!after.empty() && key <= Named(tenant, after)) ||
          !ReferenceFor(tenant, key).starts_with(prefix)) {
        continue;
      }
      by_name.emplace(key, found->second);
    }
  }
  std::vector<MatrixLease> list;
  for (auto& [key, matrix] : by_name) list.push_back(std::move(matrix));
  return list;
}

std::vector<MatrixLease> Catalog::ListAll(std::string_view prefix, std::string_view after) const {
  const MutexLock lock(mutex_);
  std::vector<MatrixLease> list;
  auto it = after.empty() ? matrices_.begin() : matrices_.upper_bound(Named("", after));
  for (; it != matrices_.end(); ++it) {
    const auto& [key, matrix] = *it;
    if (ReferenceFor("", key).starts_with(prefix)) list.push_back(matrix);
  }
  return list;
}

absl::Status Catalog::NotDeletable(std::string_view tenant, std::string_view reference) const {
  const absl::StatusOr<MatrixLease> shared = Find(tenant, reference);
  if (!shared.ok()) return shared.status();
  // One's own has come meanwhile.
  if ((*shared)->tenant() == tenant) {
    return absl::NotFoundError(fmt::format("there is no matrix named '{}'", reference));
  }
  return absl::PermissionDeniedError(
      fmt::format("matrix '{}' belongs to another tenant, who alone deletes, renames, copies and "
                  "shares it",
                  reference));
}

absl::Status Catalog::Share(std::string_view tenant, std::string_view name, engine::Share share) {
  const NameKey key = Named(tenant, name);
  if (share.with != kEverybody) {
    if (absl::Status valid = ValidateName("tenant's", share.with); !valid.ok()) return valid;
  }
  if (share.with == tenant) {
    return absl::InvalidArgumentError("a matrix is not shared with its owner, who has it anyway");
  }
  if (key.first != tenant) return NotDeletable(tenant, name);
  const NameLocks::Guard change(changes_, key);
  if (Present(key) == nullptr) return NotDeletable(tenant, name);
  {
    const MutexLock lock(mutex_);
    if (!shares_.HasRoom(key, share.with)) {
      return absl::ResourceExhaustedError(
          fmt::format("matrix '{}' is shared with {} tenants, which is the most; share it with all "
                      "of them, or revoke some",
                      name, Shares::kMost));
    }
  }
  absl::Status stored =
      store_.PutShare({key.first, key.second, share.with, share.right == Right::kWrite});
  if (!stored.ok()) return stored;
  const MutexLock lock(mutex_);
  shares_.Put(key, std::move(share));
  return absl::OkStatus();
}

absl::Status Catalog::Unshare(std::string_view tenant, std::string_view name,
                              std::string_view with) {
  const NameKey key = Named(tenant, name);
  if (key.first != tenant) return NotDeletable(tenant, name);
  {
    const NameLocks::Guard change(changes_, key);
    if (Present(key) == nullptr) return NotDeletable(tenant, name);
    {
      const MutexLock lock(mutex_);
      if (!shares_.Has(key, with)) {
        if (absl::Status valid = ValidateName("tenant's", with == kEverybody ? "all" : with);
            !valid.ok()) {
          return valid;
        }
        return absl::NotFoundError(fmt::format("matrix '{}' is not shared with '{}'", name, with));
      }
    }
    absl::Status stored = store_.DeleteShare(key.first, key.second, std::string(with));
    if (!stored.ok()) return stored;
    const MutexLock lock(mutex_);
    shares_.Remove(key, with);
    // Who is attached asks again, and is refused.
    if (on_changed) on_changed(key.first, key.second);
  }
  return absl::OkStatus();
}

std::vector<engine::Share> Catalog::SharesOf(const Matrix& matrix) const {
  const MutexLock lock(mutex_);
  return shares_.Of(NameKey(matrix.tenant(), matrix.name()));
}

}  // namespace sparsed::engine
