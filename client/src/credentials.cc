#include "client/src/credentials.h"

#include <fmt/format.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace sparsed {
inline namespace client {
namespace {

/// How often certificates are looked at for newer ones, which the next connection uses.
constexpr unsigned kRefreshSeconds = 10;
constexpr std::string_view kSystem = "system";

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// Of what was given nowhere, what the environment says.
void Complete(TlsOptions& tls, std::string& token, std::string& token_file) {
  if (tls.ca.empty() && tls.certificate.empty() && tls.key.empty()) {
    tls.ca = FromEnvironment("SPARSED_TLS_CA");
    tls.certificate = FromEnvironment("SPARSED_TLS_CERTIFICATE");
    tls.key = FromEnvironment("SPARSED_TLS_KEY");
  }
  if (tls.server_name.empty()) tls.server_name = FromEnvironment("SPARSED_TLS_SERVER_NAME");
  if (token.empty() && token_file.empty()) {
    token = FromEnvironment("SPARSED_TOKEN");
    if (token.empty()) token_file = FromEnvironment("SPARSED_TOKEN_FILE");
  }
}

bool StaysOnThisMachine(std::string_view address) {
  // A name may begin like a number.
  const bool by_number = address.find_first_not_of("0123456789.:") == std::string_view::npos;
  return address.starts_with("unix:") || (by_number && address.starts_with("127.")) ||
         address.starts_with("localhost:") || address.starts_with("[::1]:");
}

absl::Status CheckPem(const std::string& path, const absl::StatusOr<std::string>& bytes,
                      const char* what) {
  if (!bytes.ok()) return bytes.status();
  if (bytes->find("-----BEGIN") != std::string::npos) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("{}: there is no {} in it (PEM)", path, what));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> TlsChannel(const TlsOptions& tls) {
  if (tls.certificate.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError("a certificate and its key go together");
  }
  const std::string ca = tls.ca == kSystem ? std::string() : tls.ca;
  if (!ca.empty()) {
    absl::Status status = CheckPem(ca, ReadPublicFile(ca), "certificate");
    if (!status.ok()) return status;
  }
  if (!tls.certificate.empty()) {
    absl::Status status = CheckPem(tls.certificate, ReadPublicFile(tls.certificate), "certificate");
    if (status.ok()) status = CheckPem(tls.key, ReadPrivateFile(tls.key), "key");
    if (!status.ok()) return status;
  }
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (!ca.empty() || !tls.certificate.empty()) {
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
            tls.key, tls.certificate, ca, kRefreshSeconds));
  }
  if (!ca.empty()) options.watch_root_certs();
  if (!tls.certificate.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

/// The first line, without what surrounds it.
std::string TokenOf(std::string_view text) {
  text = text.substr(0, text.find('\n'));
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

/// What HTTP/2 carries in a header; gRPC would abort the process for anything else.
absl::Status CheckToken(const std::string& token, const std::string& where) {
  if (token.empty()) return absl::FailedPreconditionError(fmt::format("{}: it is empty", where));
  if (std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7F; })) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("{}: a token is one word of visible ASCII characters", where));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Credentials>> Credentials::Open(const std::string& address,
                                                               const ClientOptions& options) {
  TlsOptions tls = options.tls;
  auto made = std::make_shared<Credentials>();
  const MutexLock lock(made->mutex_);
  made->token_ = options.token;
  made->file_ = options.token_file;
  Complete(tls, made->token_, made->file_);
  const bool encrypted =
      !address.starts_with("unix:") && (!tls.ca.empty() || !tls.certificate.empty());
  if (!made->token_.empty() && !made->file_.empty()) {
    return absl::InvalidArgumentError("a token and a file with one were given; leave one out");
  }
  if (!made->token_.empty()) {
    if (absl::Status status = CheckToken(made->token_, "the token"); !status.ok()) return status;
  }
  if (!made->file_.empty()) {
    made->stamp_ = StampOf(made->file_);
    const absl::StatusOr<std::string> text = ReadPrivateFile(made->file_);
    if (!text.ok()) return text.status();
    made->token_ = TokenOf(*text);
    if (absl::Status status = CheckToken(made->token_, made->file_); !status.ok()) return status;
  }
  // What a gateway calls this machine is the gateway's.
  const bool stays =
      address.starts_with("unix:") || (StaysOnThisMachine(address) && options.gateway.empty());
  if (!made->token_.empty() && !encrypted && !stays) {
    return absl::InvalidArgumentError(fmt::format(
        "a token does not travel to {} in plain text: use TLS (--tls-ca, SPARSED_TLS_CA, tls=)",
        address));
  }
  made->channel_ = grpc::InsecureChannelCredentials();
  if (encrypted) {
    auto channel = TlsChannel(tls);
    if (!channel.ok()) return channel.status();
    made->channel_ = *std::move(channel);
    made->encrypted_ = true;
    made->server_name_ = tls.server_name;
  }
  return made;
}

std::string Credentials::Token() {
  const MutexLock lock(mutex_);
  if (file_.empty()) return token_;
  const FileStamp now = StampOf(file_);
  if (now == stamp_) return token_;
  stamp_ = now;
  const absl::StatusOr<std::string> text = ReadPrivateFile(file_);
  if (!text.ok()) return token_;
  const std::string token = TokenOf(*text);
  if (CheckToken(token, file_).ok()) token_ = token;
  return token_;
}

}  // namespace client
}  // namespace sparsed
