#include "server/security/access.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/private_file.h"
#include "server/log/log.h"
#include "server/log/refusal.h"
#include "server/security/sha256.h"

namespace sparsed::server {
namespace {

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

absl::Status Expired(const Grant& grant) {
  return absl::UnauthenticatedError(
      fmt::format("the {} expired at {}; ask the server's operator for another", grant.name,
                  absl::FormatTime(absl::RFC3339_sec, absl::FromUnixSeconds(grant.expires),
                                   absl::UTCTimeZone())));
}

/// Who showed nothing that the file knows.
absl::Status UnknownCaller(const Evidence& evidence) {
  std::string who = "nothing says who calls";
  if (!evidence.uris.empty() || !evidence.common_name.empty()) {
    who = fmt::format("no rule of the server's access file is for the certificate of \"{}\"",
                      evidence.uris.empty() ? evidence.common_name : evidence.uris.front());
  } else if (evidence.process != nullptr) {
    who = fmt::format("no rule of the server's access file is for user {} (uid {})",
                      evidence.process->user, evidence.process->uid);
  }
  return absl::UnauthenticatedError(who + "; give a token (SPARSED_TOKEN_FILE, --token-file)");
}

}  // namespace

std::string_view TokenIn(std::string_view header) {
  constexpr std::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase({header.data(), header.size()},
                                  {kScheme.data(), kScheme.size()})) {
    return {};
  }
  return header.substr(kScheme.size());
}

std::string_view Name(Denial denial) {
  constexpr std::array<std::string_view, kDenials> kNames = {"missing", "unknown", "expired",
                                                             "unencrypted", "role"};
  return kNames[static_cast<size_t>(denial)];
}

absl::StatusOr<std::unique_ptr<Access>> Access::Open(std::string path) {
  std::unique_ptr<Access> access(new Access(std::move(path)));
  if (access->everybody()) return access;
  // First, so that no change is missed.
  access->watch_.emplace(std::vector{access->path_}, [raw = access.get()] { raw->Reload(); });
  if (absl::Status status = access->Load(); !status.ok()) return status;
  return access;
}

Access::~Access() = default;

absl::Status Access::Load() {
  const absl::StatusOr<std::string> text = ReadPrivateFile(path_);
  if (!text.ok()) return text.status();
  absl::StatusOr<AccessFile> parsed = AccessFile::Parse(*text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("{}:{}", path_, std::string(parsed.status().message())));
  }
  const MutexLock lock(mutex_);
  file_ = std::make_shared<const AccessFile>(*std::move(parsed));
  ++generation_;
  return absl::OkStatus();
}

void Access::Reload() {
  const absl::Status status = Load();
  ++(status.ok() ? reloads_ : failed_reloads_);
  if (status.ok()) {
    TellTenants();
    Log(LogLevel::kInfo, "access file read again", {{"path", path_}});
  } else {
    Log(LogLevel::kError, "the access file is wrong, and the one before stays in force",
        {{"message", std::string(status.message())}});
  }
}

void Access::OnTenants(std::function<void(const TenantTable&)> use) {
  {
    const MutexLock lock(tenants_mutex_);
    use_tenants_ = std::move(use);
  }
  TellTenants();
}

void Access::TellTenants() {
  const MutexLock lock(tenants_mutex_);
  const std::shared_ptr<const AccessFile> present = file();
  if (use_tenants_ && present != nullptr) use_tenants_(present->tenants());
}

absl::Status Access::CheckTenant(std::string_view tenant) const {
  if (everybody() || file()->Knows(tenant)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("there is no tenant '{}': the access file names none of that name", tenant));
}

std::shared_ptr<const AccessFile> Access::file() const {
  const MutexLock lock(mutex_);
  return file_;
}

bool Access::IsNodesDigest(const std::string& digest) const {
  return digest.size() == nodes_digest_.size() &&
         CRYPTO_memcmp(digest.data(), nodes_digest_.data(), digest.size()) == 0;
}

void Access::TrustNodes(std::string_view token) { nodes_digest_ = Sha256(token); }

absl::Status Access::RequireNode(const Caller& caller) {
  if (caller.node || (everybody() && nodes_digest_.empty())) return absl::OkStatus();
  return Deny(Denial::kRole,
              absl::PermissionDeniedError(fmt::format(
                  "the {} is no node of the cluster, and this is between nodes", caller.name)));
}

absl::StatusOr<Caller> Access::Identify(const Evidence& evidence) {
  if (evidence.token.has_value() && !evidence.private_way) {
    return Deny(Denial::kUnencrypted,
                absl::UnauthenticatedError(
                    "a token came in plain text from another machine, and counts for nothing: use "
                    "TLS, and replace the token, which others may have read"));
  }
  if (evidence.token.has_value() && !nodes_digest_.empty() &&
      IsNodesDigest(Sha256(*evidence.token))) {
    Caller node{std::string(kClusterTenant), Role::kOperator, "node of the cluster", nullptr};
    node.node = true;
    return node;
  }
  if (everybody()) {
    if (evidence.token.has_value()) {
      return Deny(Denial::kUnknown,
                  absl::UnauthenticatedError("this server has no access file (--access-file), and "
                                             "so knows no token; call it without"));
    }
    return Caller{std::string(kDefaultTenant), Role::kOperator, "anybody", nullptr, nullptr};
  }
  auto identity = std::make_shared<Identity>();
  if (evidence.token.has_value()) {
    identity->digest = Sha256(*evidence.token);
  } else if (!evidence.uris.empty() || !evidence.common_name.empty()) {
    identity->kind = Identity::Kind::kCertificate;
    identity->uris = evidence.uris;
    identity->common_name = evidence.common_name;
  } else if (evidence.process != nullptr) {
    identity->kind = Identity::Kind::kProcess;
    identity->process = evidence.process;
  } else {
    return Deny(Denial::kMissing, UnknownCaller(evidence));
  }
  identity->generation = generation_.load();  // before the file, which may be a newer one
  std::optional<Grant> grant = file()->Find(*identity);
  if (!grant.has_value() && evidence.token.has_value()) {
    return Deny(Denial::kUnknown,
                absl::UnauthenticatedError("the token is none that this server knows; it may have "
                                           "been revoked"));
  }
  if (!grant.has_value()) return Deny(Denial::kMissing, UnknownCaller(evidence));
  if (grant->expires <= UnixNow()) return Deny(Denial::kExpired, Expired(*grant));
  identity->expires = grant->expires;
  return Caller{std::move(grant->tenant), grant->role, std::move(grant->name), std::move(identity),
                nullptr};
}

absl::Status Access::Check(const Caller& caller) {
  if (caller.identity == nullptr) return absl::OkStatus();
  const Identity& identity = *caller.identity;
  const uint64_t generation = generation_;
  if (identity.generation == generation && UnixNow() < identity.expires) return absl::OkStatus();
  const std::optional<Grant> grant = file()->Find(identity);
  if (!grant.has_value()) {
    return Deny(Denial::kUnknown,
                absl::UnauthenticatedError(
                    fmt::format("the server's access file knows the {} no more", caller.name)));
  }
  if (grant->expires <= UnixNow()) return Deny(Denial::kExpired, Expired(*grant));
  if (grant->tenant != caller.tenant || grant->role != caller.role) {
    return Deny(Denial::kUnknown,
                absl::UnauthenticatedError(fmt::format(
                    "the {} is another tenant now, or has another role; begin anew", caller.name)));
  }
  identity.expires = grant->expires;
  identity.generation = generation;
  return absl::OkStatus();
}

absl::Status Access::Require(const Caller& caller, Role least, std::string_view what) {
  if (caller.role >= least) return absl::OkStatus();
  return Deny(Denial::kRole, absl::PermissionDeniedError(
                                 fmt::format("the {} has the role {}; the role {} is needed for {}",
                                             caller.name, Name(caller.role), Name(least), what)));
}

absl::Status Access::Deny(Denial denial, absl::Status why) {
  ++denied_[static_cast<size_t>(denial)];
  return why;
}

absl::StatusOr<Caller> Access::IdentifyAt(std::string_view from, const Evidence& evidence) {
  absl::StatusOr<Caller> caller = Identify(evidence);
  if (!caller.ok()) LogRefusal({.from = from, .why = caller.status()}, log_limit_);
  return caller;
}

absl::Status Access::CheckAt(std::string_view from, const Caller& caller,
                             std::string_view request_id) {
  absl::Status known = Check(caller);
  if (known.ok()) return known;
  LogRefusal({.tenant = caller.tenant,
              .caller = caller.name,
              .request_id = request_id,
              .from = from,
              .why = known},
             log_limit_);
  return known;
}

Access::Counts Access::counts() const {
  Counts counts = {.reloads = reloads_, .failed_reloads = failed_reloads_, .denied = {}};
  for (size_t i = 0; i < denied_.size(); ++i) counts.denied[i] = denied_[i];
  return counts;
}

}  // namespace sparsed::server
