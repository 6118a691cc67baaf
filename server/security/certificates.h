// The server's certificate, its key, and the authorities that vouch for clients' certificates.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "server/security/file_watch.h"

namespace sparsed::server {

/// PEM files.
struct CertificateFiles {
  std::string certificate;  ///< the server's, then those that vouch for it
  std::string key;          ///< private
  std::string client_ca;    ///< empty: clients need none, and show none
};

/// Reads the files again when they change. What gRPC serves with is always a copy of files that fit
/// together: where new ones do not, that is logged, and the ones before stay. Thread-safe.
class Certificates {
 public:
  struct Facts {
    int64_t expires = 0;            ///< of the server's, in Unix seconds
    int64_t client_ca_expires = 0;  ///< the first of the authorities'; 0: there is none
    int64_t reloads = 0, failed_reloads = 0;
  };

  /// Errors: those of ReadPrivateFile for the key; INVALID_ARGUMENT with the path for what is no
  /// certificate, has expired or does not belong to the key.
  static absl::StatusOr<std::unique_ptr<Certificates>> Open(CertificateFiles files);

  /// For connections from now on; a client that shows a certificate must show a valid one, and may
  /// show none.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;
  Facts facts() const;

 private:
  explicit Certificates(CertificateFiles files) : files_(std::move(files)) {}
  absl::Status Load();
  void Reload();

  const CertificateFiles files_;
  /// Copies in memory that gRPC reads by their descriptors: key and certificates, and authorities.
  Descriptor identity_, authorities_;
  std::atomic<int64_t> expires_ = 0, client_ca_expires_ = 0;
  std::atomic<int64_t> reloads_ = 0, failed_reloads_ = 0;
  std::optional<FileWatch> watch_;  ///< last
};

}  // namespace sparsed::server
