#include "tests/rpc/test_certificates.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>

namespace sparsed::test {
namespace {

std::string Text(BIO* bio) {
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

std::string Pem(X509* certificate) {
  BIO* const bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(bio, certificate);
  return Text(bio);
}

std::string Pem(EVP_PKEY* key) {
  BIO* const bio = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  return Text(bio);
}

std::shared_ptr<EVP_PKEY> NewKey() { return {EVP_EC_gen("P-256"), &EVP_PKEY_free}; }

void AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const made = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  ASSERT_NE(made, nullptr) << value;
  X509_add_ext(certificate, made, -1);
  X509_EXTENSION_free(made);
}

/// `issuer`: null for one that vouches for itself.
std::shared_ptr<X509> Sign(const CertificateFacts& facts, EVP_PKEY* key, X509* issuer,
                           EVP_PKEY* issuer_key) {
  std::shared_ptr<X509> made(X509_new(), &X509_free);
  X509_set_version(made.get(), X509_VERSION_3);
  uint32_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial));
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(made.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -86400);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), facts.lifetime.count());
  X509_set_pubkey(made.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(facts.common_name.c_str()), -1,
                             -1, 0);
  X509* const by = issuer == nullptr ? made.get() : issuer;
  X509_set_issuer_name(made.get(), X509_get_subject_name(by));
  if (issuer == nullptr) AddExtension(made.get(), by, NID_basic_constraints, "critical,CA:TRUE");
  if (!facts.names.empty()) AddExtension(made.get(), by, NID_subject_alt_name, facts.names);
  X509_sign(made.get(), issuer_key, EVP_sha256());
  return made;
}

}  // namespace

CertificateAuthority::CertificateAuthority(const std::string& common_name)
    : key_(NewKey()),
      self_(Sign({.common_name = common_name}, key_.get(), nullptr, key_.get())),
      own_{Pem(self_.get()), Pem(key_.get())} {}

IssuedCertificate CertificateAuthority::Issue(const CertificateFacts& facts) const {
  const std::shared_ptr<EVP_PKEY> key = NewKey();
  return {Pem(Sign(facts, key.get(), self_.get(), key_.get()).get()), Pem(key.get())};
}

void WriteFile(const std::string& path, const std::string& bytes, int mode) {
  const std::string next = path + ".next";
  std::ofstream(next, std::ios::binary) << bytes;
  ASSERT_EQ(chmod(next.c_str(), static_cast<mode_t>(mode)), 0);
  ASSERT_EQ(std::rename(next.c_str(), path.c_str()), 0);
}

}  // namespace sparsed::test
