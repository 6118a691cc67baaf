// Certificates, made where they are needed.
#pragma once

#include <openssl/x509.h>

#include <chrono>
#include <memory>
#include <string>

namespace sparsed::test {

/// A certificate and its private key, in PEM.
struct IssuedCertificate {
  std::string certificate, key;
};

/// What a certificate says.
struct CertificateFacts {
  std::string common_name;
  std::string names{};  ///< as OpenSSL has subjectAltName: "IP:127.0.0.1,URI:spiffe://..."
  std::chrono::seconds lifetime = std::chrono::hours(1);  ///< from now; negative: it has expired
};

class CertificateAuthority {
 public:
  explicit CertificateAuthority(const std::string& common_name);
  const std::string& certificate() const { return own_.certificate; }
  IssuedCertificate Issue(const CertificateFacts& facts) const;

 private:
  std::shared_ptr<EVP_PKEY> key_;
  std::shared_ptr<X509> self_;
  IssuedCertificate own_;
};

/// Replaces a file, at once for who opens it. `mode` is its permissions.
void WriteFile(const std::string& path, const std::string& bytes, int mode = 0600);

}  // namespace sparsed::test
