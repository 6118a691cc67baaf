// Whom owners let use their matrices.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/catalog/name_locks.h"
#include "engine/store/store.h"

namespace sparsed::engine {

/// Between a tenant and the name of a matrix of his: "alice~web". No name has it.
inline constexpr char kOwnerMark = '~';
/// In the place of a tenant: all of them.
inline constexpr std::string_view kEverybody = "*";

/// Which matrix it is that `tenant` calls so: his own, unless it says whose.
NameKey Named(std::string_view tenant, std::string_view reference);
/// What `tenant` calls it.
std::string ReferenceFor(std::string_view tenant, const NameKey& key);

/// What somebody may do with a matrix.
enum class Right : uint8_t {
  kRead,   ///< look at it, download it, compute with it
  kWrite,  ///< also replace its values, and have it prepared
};

struct Share {
  std::string with;  ///< a tenant, or kEverybody
  Right right = Right::kRead;
};

/// By name: whatever stands for it, until it is deleted. Not thread-safe.
class Shares {
 public:
  /// Of one matrix.
  static constexpr size_t kMost = 256;

  /// Instead of what was there for the same. There is room for it.
  void Put(const NameKey& key, Share share);
  void Remove(const NameKey& key, std::string_view with);
  void Forget(const NameKey& key) { shares_.erase(key); }

  /// What `tenant` may do; none: nothing. An owner may do everything.
  std::optional<Right> RightOf(std::string_view tenant, const NameKey& key) const;
  bool Has(const NameKey& key, std::string_view with) const;
  /// Whether it may be shared with that tenant, too, or is.
  bool HasRoom(const NameKey& key, std::string_view with) const;
  std::vector<Share> Of(const NameKey& key) const;
  /// Names that others let `tenant` use.
  std::vector<NameKey> With(std::string_view tenant) const;

 private:
  std::map<NameKey, std::map<std::string, Right, std::less<>>> shares_;
};

}  // namespace sparsed::engine
