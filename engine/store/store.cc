#include "engine/store/store.h"

#include <fmt/format.h>

#include <utility>

#include "engine/store/blob.h"

namespace sparsed::engine {
namespace {

std::string OfTenant(const std::string& tenant) {
  return tenant.empty() ? "" : fmt::format(" of tenant '{}'", tenant);
}

constexpr const char* kStoreGone = "sparsed/store-gone";

}  // namespace

absl::Status StoreGone(const std::string& sentence) {
  absl::Status status = absl::UnavailableError(sentence);
  status.SetPayload(kStoreGone, absl::Cord());
  return status;
}

bool IsStoreGone(const absl::Status& status) { return status.GetPayload(kStoreGone).has_value(); }

bool IsIntact(const StoredArray& array) { return array.readable() && array.blob->intact(); }

std::string Describe(const StoredArray& array) {
  const ArrayOwner& owner = array.owner;
  switch (owner.kind) {
    case ArrayOwner::Kind::kPattern:
      return fmt::format("{} of pattern {}", array.name, owner.pattern_hash);
    case ArrayOwner::Kind::kMatrix:
      return fmt::format("{} of matrix '{}'{}", array.name, owner.name, OfTenant(owner.tenant));
    case ArrayOwner::Kind::kLayout:
      return fmt::format("{} of layout '{}' of pattern {}", array.name, owner.pipeline,
                         owner.pattern_hash);
    case ArrayOwner::Kind::kBuffer:
      return fmt::format("buffer '{}'{}", owner.name, OfTenant(owner.tenant));
  }
  return array.name;
}

absl::StatusOr<Layout> Store::ReadLayout(const LayoutRecord& record, MemorySource& memory,
                                         Stop stop) {
  Layout layout = record.layout;
  layout.arrays.clear();
  for (const StoredArray& stored : record.arrays) {
    absl::StatusOr<Array> array = Read(stored, memory, stop);
    if (!array.ok()) return array.status();
    layout.arrays.push_back(*std::move(array));
  }
  return layout;
}

}  // namespace sparsed::engine
