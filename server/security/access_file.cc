#include "server/security/access_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/time/time.h"
#include "base/group.h"
#include "server/security/sha256.h"
#include "server/security/yaml_reader.h"

namespace sparsed::server {
namespace {

constexpr std::string_view kTenant = "{tenant}";
constexpr size_t kDigestBytes = 32;

uint64_t KeyOf(std::string_view digest) {
  uint64_t key = 0;
  std::memcpy(&key, digest.data(), sizeof(key));
  return key;
}

}  // namespace

/// Throws Refusal, within Parse.
class AccessFile::Reader {
 public:
  AccessFile Read(const YAML::Node& root) {
    AccessFile file;
    if (root.IsNull()) return file;
    if (!root.IsMap()) Refuse(root, "expected tokens, certificates, peers and tenants by name");
    CheckKeys(root, {"tokens", "certificates", "peers", "tenants"});
    for (const auto& list : root) {
      const std::string& key = list.first.Scalar();
      if (list.second.IsNull()) continue;
      if (key == "tenants") {
        Try([&] { file.tenants_ = ReadTenants(list.second); });
        continue;
      }
      if (!list.second.IsSequence()) {
        Try([&] { Refuse(list.second, fmt::format("{} is no list", key)); });
        continue;
      }
      for (const auto& entry : list.second) {
        Try([&] { ReadEntry(key, entry, file); });
        if (wrong_.size() >= kMostWrong) break;
      }
    }
    if (!wrong_.empty()) throw Refusal{fmt::format("{}", fmt::join(wrong_, "; "))};
    return file;
  }

 private:
  /// Entries that are wrong, of which a reader is told at once.
  static constexpr size_t kMostWrong = 20;

  /// So that who mends the file hears of all entries that are wrong, of each what is wrong first.
  template <typename Read>
  void Try(const Read& read) {
    try {
      read();
    } catch (const Refusal& refusal) {
      wrong_.push_back(refusal.sentence);
    }
  }

  void ReadEntry(const std::string& key, const YAML::Node& entry, AccessFile& file) {
    if (!entry.IsMap()) Refuse(entry, fmt::format("an entry of {} is no map", key));
    if (key == "tokens") {
      ReadToken(entry, file);
    } else if (key == "certificates") {
      ReadCertificate(entry, file);
    } else {
      ReadPeer(entry, file);
    }
  }

  static std::string Required(const YAML::Node& entry, const char* key) {
    const YAML::Node value = entry[key];
    if (!value) Refuse(entry, fmt::format("{} is missing", key));
    return TextOf(value, key);
  }

  static Role ReadRole(const YAML::Node& entry) {
    const YAML::Node value = entry["role"];
    if (!value) return Role::kUser;
    const std::string text = TextOf(value, "role");
    for (const Role role : {Role::kReadOnly, Role::kUser, Role::kOperator}) {
      if (text == server::Name(role)) return role;
    }
    Refuse(value, fmt::format("role '{}' is none of read-only, user and operator", text));
  }

  static std::string ReadTenant(const YAML::Node& entry) {
    const std::string tenant = Required(entry, "tenant");
    CheckTenant(entry["tenant"], tenant);
    return tenant;
  }

  static Pattern ReadPattern(const YAML::Node& entry, const char* key) {
    const std::string text = Required(entry, key);
    const size_t at = text.find(kTenant);
    if (text.empty()) Refuse(entry[key], fmt::format("{} is empty", key));
    if (at == std::string::npos) return {text, "", false};
    Pattern pattern = {text.substr(0, at), text.substr(at + kTenant.size()), true};
    if (pattern.after.find(kTenant) != std::string::npos) {
      Refuse(entry[key], fmt::format("{} says {} twice", key, kTenant));
    }
    return pattern;
  }

  /// Role and, unless the pattern says it, tenant of a rule.
  static Grant ReadGrant(const YAML::Node& entry, bool tenant_known, const std::string& name) {
    if (tenant_known && entry["tenant"]) {
      Refuse(entry["tenant"], fmt::format("{} says which tenant it is already", kTenant));
    }
    return {.tenant = tenant_known ? "" : ReadTenant(entry), .role = ReadRole(entry), .name = name};
  }

  void ReadToken(const YAML::Node& entry, AccessFile& file) {
    CheckKeys(entry, {"name", "sha256", "tenant", "role", "expires"});
    Token token;
    const std::string name = Required(entry, "name");
    if (!names_.insert(name).second) Refuse(entry, fmt::format("two tokens are named '{}'", name));
    const std::string digest = Required(entry, "sha256");
    if (digest.size() != 2 * kDigestBytes ||
        digest.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      Refuse(entry["sha256"],
             "sha256 is not 64 hexadecimal digits; `sparsectl token hash` makes them of a token");
    }
    token.digest = absl::HexStringToBytes(digest);
    token.grant = ReadGrant(entry, false, "token " + name);
    if (const YAML::Node expires = entry["expires"]) {
      const std::string text = TextOf(expires, "expires");
      absl::Time time;
      std::string error;
      if (!absl::ParseTime(absl::RFC3339_full, text, &time, &error) &&
          !absl::ParseTime("%Y-%m-%d", text, &time, &error)) {
        Refuse(expires, fmt::format("'{}' is no time such as 2027-01-31T12:00:00Z", text));
      }
      token.grant.expires = absl::ToUnixSeconds(time);
    }
    if (file.FindToken(token.digest).has_value()) Refuse(entry, "this token is there twice");
    file.tokens_.emplace(KeyOf(token.digest), std::move(token));
  }

  void ReadCertificate(const YAML::Node& entry, AccessFile& file) {
    CheckKeys(entry, {"uri", "common_name", "tenant", "role"});
    CertificateRule rule;
    rule.uri = static_cast<bool>(entry["uri"]);
    if (rule.uri == static_cast<bool>(entry["common_name"])) {
      Refuse(entry, "a certificate's rule has either uri or common_name");
    }
    rule.pattern = ReadPattern(entry, rule.uri ? "uri" : "common_name");
    rule.grant = ReadGrant(entry, rule.pattern.has_tenant, "");
    file.certificates_.push_back(std::move(rule));
  }

  void ReadPeer(const YAML::Node& entry, AccessFile& file) {
    CheckKeys(entry, {"user", "group", "tenant", "role"});
    PeerRule rule;
    if (static_cast<bool>(entry["user"]) == static_cast<bool>(entry["group"])) {
      Refuse(entry, "a peer's rule has either user or group");
    }
    if (entry["user"]) {
      rule.user = ReadPattern(entry, "user");
    } else {
      const std::string name = Required(entry, "group");
      rule.group = GroupOf(name);
      if (!rule.group.has_value()) {
        Refuse(entry["group"], fmt::format("this machine has no group '{}'", name));
      }
    }
    rule.grant = ReadGrant(entry, rule.user.has_tenant, "");
    file.peers_.push_back(std::move(rule));
  }

  std::set<std::string> names_;
  std::vector<std::string> wrong_;
};

absl::StatusOr<AccessFile> AccessFile::Parse(const std::string& yaml) {
  try {
    return Reader().Read(YAML::Load(yaml));
  } catch (const Refusal& refusal) {
    return absl::InvalidArgumentError(refusal.sentence);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(At(error.mark, "this is not YAML: " + error.msg));
  }
}

std::optional<std::string> AccessFile::Pattern::Match(std::string_view text) const {
  if (!has_tenant) return text == before ? std::optional<std::string>("") : std::nullopt;
  if (text.size() < before.size() + after.size() || !text.starts_with(before) ||
      !text.ends_with(after)) {
    return std::nullopt;
  }
  const std::string_view tenant =
      text.substr(before.size(), text.size() - before.size() - after.size());
  if (!IsTenant(tenant)) return std::nullopt;
  return std::string(tenant);
}

std::optional<Grant> AccessFile::Find(const Identity& identity) const {
  switch (identity.kind) {
    case Identity::Kind::kToken:
      return FindToken(identity.digest);
    case Identity::Kind::kCertificate:
      return FindCertificate(identity);
    case Identity::Kind::kProcess:
      return FindProcess(*identity.process);
  }
  return std::nullopt;
}

bool AccessFile::Knows(std::string_view tenant) const {
  const auto is = [tenant](const Grant& grant) { return grant.tenant == tenant; };
  return tenants_.named.contains(tenant) ||
         std::ranges::any_of(tokens_, [&](const auto& token) { return is(token.second.grant); }) ||
         std::ranges::any_of(
             certificates_,
             [&](const auto& rule) { return rule.pattern.has_tenant || is(rule.grant); }) ||
         std::ranges::any_of(
             peers_, [&](const auto& rule) { return rule.user.has_tenant || is(rule.grant); });
}

std::optional<Grant> AccessFile::FindToken(std::string_view digest) const {
  const auto [begin, end] = tokens_.equal_range(KeyOf(digest));
  for (auto it = begin; it != end; ++it) {
    if (SameSecret(it->second.digest, digest)) return it->second.grant;
  }
  return std::nullopt;
}

std::optional<Grant> AccessFile::FindCertificate(const Identity& identity) const {
  const auto granted = [](const CertificateRule& rule, const std::string& text) {
    std::optional<std::string> tenant = rule.pattern.Match(text);
    if (!tenant.has_value()) return std::optional<Grant>();
    Grant grant = rule.grant;
    if (rule.pattern.has_tenant) grant.tenant = *std::move(tenant);
    grant.name = "certificate " + text;
    return std::optional<Grant>(std::move(grant));
  };
  for (const CertificateRule& rule : certificates_) {
    if (!rule.uri) {
      if (auto grant = granted(rule, identity.common_name)) return grant;
      continue;
    }
    for (const std::string& uri : identity.uris) {
      if (auto grant = granted(rule, uri)) return grant;
    }
  }
  return std::nullopt;
}

std::optional<Grant> AccessFile::FindProcess(const PeerProcess& process) const {
  for (const PeerRule& rule : peers_) {
    std::optional<std::string> tenant;
    if (rule.group.has_value()) {
      if (std::ranges::find(process.groups, *rule.group) != process.groups.end()) tenant = "";
    } else {
      tenant = rule.user.Match(process.user);
      if (!tenant.has_value()) tenant = rule.user.Match(std::to_string(process.uid));
    }
    if (!tenant.has_value()) continue;
    Grant grant = rule.grant;
    if (rule.user.has_tenant) grant.tenant = *std::move(tenant);
    grant.name = "user " + process.user;
    return grant;
  }
  return std::nullopt;
}

}  // namespace sparsed::server
