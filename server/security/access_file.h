// The access file: who is which tenant, and in which role. YAML:
//
//   tokens:
//     - {name: training-1, sha256: 64 HEX DIGITS, tenant: training, expires: 2027-01-31T00:00:00Z}
//   certificates:
//     - {uri: "spiffe://example.org/tenant/{tenant}"}
//     - {common_name: admin, tenant: ops, role: operator}
//   peers:
//     - {user: "{tenant}"}
//     - {group: ops, tenant: ops, role: operator}
//
//   tenants: ...                      (tenant_table.h)
//
// `{tenant}` stands for a tenant's name, and makes what it matches the tenant. Of certificates and
// peers the first rule that matches holds.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/security/caller.h"
#include "server/security/tenant_table.h"

namespace sparsed::server {

/// What the file says of somebody.
struct Grant {
  std::string tenant;
  Role role = Role::kUser;
  std::string name;                                       ///< as Caller's
  int64_t expires = std::numeric_limits<int64_t>::max();  ///< Unix seconds
};

/// Of one version of the file; immutable.
class AccessFile {
 public:
  /// INVALID_ARGUMENT: "3:5: what is wrong", with line and column.
  static absl::StatusOr<AccessFile> Parse(const std::string& yaml);

  /// nullopt: it is not there. One that is may have expired.
  std::optional<Grant> Find(const Identity& identity) const;

  const TenantTable& tenants() const { return tenants_; }
  /// Whether somebody may come as that tenant: an entry or `tenants` names it, or a rule with
  /// `{tenant}` takes any.
  bool Knows(std::string_view tenant) const;

 private:
  class Reader;
  /// A text, perhaps with `{tenant}` in it.
  struct Pattern {
    std::string before, after;
    bool has_tenant = false;
    /// The tenant, empty if it has none; nullopt: `text` is something else.
    std::optional<std::string> Match(std::string_view text) const;
  };
  struct Token {
    std::string digest;
    Grant grant;
  };
  struct CertificateRule {
    Pattern pattern;
    bool uri = false;  ///< or the common name
    Grant grant;
  };
  struct PeerRule {
    Pattern user;                   ///< by name or number
    std::optional<uint32_t> group;  ///< instead
    Grant grant;
  };

  std::optional<Grant> FindToken(std::string_view digest) const;
  std::optional<Grant> FindCertificate(const Identity& identity) const;
  std::optional<Grant> FindProcess(const PeerProcess& process) const;

  /// By the first bytes of their digest. What looking there tells by its time is of the digest, of
  /// which nobody can choose a byte who does not know the token.
  std::multimap<uint64_t, Token> tokens_;
  std::vector<CertificateRule> certificates_;
  std::vector<PeerRule> peers_;
  TenantTable tenants_;
};

}  // namespace sparsed::server
