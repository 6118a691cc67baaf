#include "server/security/certificates.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "absl/time/time.h"
#include "base/private_file.h"
#include "server/log/log.h"

namespace sparsed::server {
namespace {

/// For gRPC to read the copies again.
constexpr unsigned kRefreshSeconds = 1;

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio Open(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free};
}

absl::Status Refuse(const std::string& path, const std::string& why) {
  ERR_clear_error();
  return absl::InvalidArgumentError(fmt::format("{}: {}", path, why));
}

absl::StatusOr<std::vector<Certificate>> ReadCertificates(const std::string& path,
                                                          const std::string& pem) {
  std::vector<Certificate> certificates;
  const Bio bio = Open(pem);
  while (X509* const certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate, &X509_free);
  }
  const auto error = ERR_peek_last_error();
  if (certificates.empty()) return Refuse(path, "there is no certificate in it (PEM)");
  if (ERR_GET_REASON(error) != PEM_R_NO_START_LINE) {
    return Refuse(path, fmt::format("certificate {} in it is damaged", certificates.size() + 1));
  }
  ERR_clear_error();
  return certificates;
}

int64_t ExpiryOf(const X509* certificate) {
  tm parts = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &parts) != 1) return 0;
  return timegm(&parts);
}

absl::Status CheckExpiry(const std::string& path, int64_t expires) {
  const absl::Time time = absl::FromUnixSeconds(expires);
  if (time > absl::Now()) return absl::OkStatus();
  return Refuse(path, fmt::format("the certificate expired at {}",
                                  absl::FormatTime(absl::RFC3339_sec, time, absl::UTCTimeZone())));
}

absl::Status CheckKey(const CertificateFiles& files, const std::string& pem,
                      const X509* certificate) {
  const Bio bio = Open(pem);
  const auto no_passphrase = [](char*, int, int, void*) { return 0; };
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr),
                &EVP_PKEY_free);
  if (key == nullptr) {
    return Refuse(files.key, "there is no private key in it that can be read without a passphrase");
  }
  if (X509_check_private_key(certificate, key.get()) != 1) {
    return Refuse(files.key,
                  fmt::format("it is not the key of the certificate in {}", files.certificate));
  }
  return absl::OkStatus();
}

/// Puts other bytes under the same descriptor, at once for who opens it by that.
absl::Status Replace(const std::string& bytes, Descriptor& file) {
  Descriptor made(memfd_create("sparsed-tls", MFD_CLOEXEC));
  const bool written = made.open() && write(made.fd(), bytes.data(), bytes.size()) ==
                                          static_cast<ssize_t>(bytes.size());
  if (written && !file.open()) {
    file = std::move(made);
    return absl::OkStatus();
  }
  if (written && dup3(made.fd(), file.fd(), O_CLOEXEC) >= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("cannot keep the certificates: {}", std::generic_category().message(errno)));
}

std::string PathOf(const Descriptor& file) { return fmt::format("/proc/self/fd/{}", file.fd()); }

}  // namespace

absl::StatusOr<std::unique_ptr<Certificates>> Certificates::Open(CertificateFiles files) {
  std::unique_ptr<Certificates> made(new Certificates(std::move(files)));
  std::vector<std::string> paths = {made->files_.certificate, made->files_.key};
  if (!made->files_.client_ca.empty()) paths.push_back(made->files_.client_ca);
  // First, so that no change is missed.
  made->watch_.emplace(std::move(paths), [raw = made.get()] { raw->Reload(); });
  if (absl::Status status = made->Load(); !status.ok()) return status;
  return made;
}

absl::Status Certificates::Load() {
  const absl::StatusOr<std::string> chain = ReadPublicFile(files_.certificate);
  if (!chain.ok()) return chain.status();
  const absl::StatusOr<std::string> key = ReadPrivateFile(files_.key);
  if (!key.ok()) return key.status();
  const auto certificates = ReadCertificates(files_.certificate, *chain);
  if (!certificates.ok()) return certificates.status();
  const X509* const own = certificates->front().get();
  const int64_t expires = ExpiryOf(own);
  if (absl::Status status = CheckExpiry(files_.certificate, expires); !status.ok()) return status;
  if (absl::Status status = CheckKey(files_, *key, own); !status.ok()) return status;

  std::string authorities;
  int64_t first_expires = 0;
  if (!files_.client_ca.empty()) {
    absl::StatusOr<std::string> pem = ReadPublicFile(files_.client_ca);
    if (!pem.ok()) return pem.status();
    const auto of_clients = ReadCertificates(files_.client_ca, *pem);
    if (!of_clients.ok()) return of_clients.status();
    const auto earlier = [](const Certificate& a, const Certificate& b) {
      return ExpiryOf(a.get()) < ExpiryOf(b.get());
    };
    first_expires = ExpiryOf(std::ranges::min_element(*of_clients, earlier)->get());
    authorities = *std::move(pem);
  }
  if (absl::Status status = Replace(*key + "\n" + *chain, identity_); !status.ok()) return status;
  if (!authorities.empty()) {
    if (absl::Status status = Replace(authorities, authorities_); !status.ok()) return status;
  }
  expires_ = expires;
  client_ca_expires_ = first_expires;
  return absl::OkStatus();
}

void Certificates::Reload() {
  const absl::Status status = Load();
  ++(status.ok() ? reloads_ : failed_reloads_);
  if (status.ok()) {
    Log(LogLevel::kInfo, "certificates read again", {{"certificate", files_.certificate}});
  } else {
    Log(LogLevel::kError, "the certificates do not fit, and the ones before stay in use",
        {{"message", std::string(status.message())}});
  }
}

std::shared_ptr<grpc::ServerCredentials> Certificates::Credentials() const {
  const std::string identity = PathOf(identity_);
  const std::string authorities = authorities_.open() ? PathOf(authorities_) : "";
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          identity, identity, authorities, kRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  if (authorities.empty()) {
    options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  } else {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

Certificates::Facts Certificates::facts() const {
  return {expires_, client_ca_expires_, reloads_, failed_reloads_};
}

}  // namespace sparsed::server
