#include "engine/catalog/shares.h"

#include <algorithm>
#include <utility>

namespace sparsed::engine {

NameKey Named(std::string_view tenant, std::string_view reference) {
  const size_t mark = reference.find(kOwnerMark);
  if (mark == std::string_view::npos) return NameKey(tenant, reference);
  return NameKey(reference.substr(0, mark), reference.substr(mark + 1));
}

std::string ReferenceFor(std::string_view tenant, const NameKey& key) {
  return key.first == tenant ? key.second : key.first + kOwnerMark + key.second;
}

void Shares::Put(const NameKey& key, Share share) {
  shares_[key][std::move(share.with)] = share.right;
}

void Shares::Remove(const NameKey& key, std::string_view with) {
  const auto known = shares_.find(key);
  if (known == shares_.end()) return;
  const auto share = known->second.find(with);
  if (share != known->second.end()) known->second.erase(share);
  if (known->second.empty()) shares_.erase(known);
}

bool Shares::Has(const NameKey& key, std::string_view with) const {
  const auto known = shares_.find(key);
  return known != shares_.end() && known->second.contains(with);
}

bool Shares::HasRoom(const NameKey& key, std::string_view with) const {
  const auto known = shares_.find(key);
  return known == shares_.end() || known->second.size() < kMost || known->second.contains(with);
}

std::optional<Right> Shares::RightOf(std::string_view tenant, const NameKey& key) const {
  if (key.first == tenant) return Right::kWrite;
  const auto known = shares_.find(key);
  if (known == shares_.end()) return std::nullopt;
  std::optional<Right> right;
  for (const std::string_view with : {tenant, kEverybody}) {
    const auto share = known->second.find(with);
    if (share == known->second.end()) continue;
    right = std::max(right.value_or(Right::kRead), share->second);
  }
  return right;
}

std::vector<Share> Shares::Of(const NameKey& key) const {
  std::vector<Share> list;
  const auto known = shares_.find(key);
  if (known == shares_.end()) return list;
  for (const auto& [with, right] : known->second) list.push_back({with, right});
  return list;
}

std::vector<NameKey> Shares::With(std::string_view tenant) const {
  std::vector<NameKey> names;
  for (const auto& [key, shares] : shares_) {
    if (key.first == tenant) continue;
    if (shares.contains(tenant) || shares.contains(kEverybody)) names.push_back(key);
  }
  return names;
}

}  // namespace sparsed::engine
