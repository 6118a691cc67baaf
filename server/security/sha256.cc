#include "server/security/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <memory>

namespace sparsed::server {

std::string Sha256(std::string_view bytes) {
  // Found once: OpenSSL takes a lock to look for it.
  static const EVP_MD* const kMethod = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  thread_local const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(
      EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  std::string digest(32, '\0');
  unsigned size = 0;
  EVP_DigestInit_ex2(context.get(), kMethod, nullptr);
  EVP_DigestUpdate(context.get(), bytes.data(), bytes.size());
  EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), &size);
  return digest;
}

bool SameSecret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace sparsed::server
