// SHA-256, as OpenSSL has it.
#pragma once

#include <string>
#include <string_view>

namespace sparsed::server {

/// 32 bytes.
std::string Sha256(std::string_view bytes);
/// Whether they are the same, in a time that does not tell where they differ.
bool SameSecret(std::string_view a, std::string_view b);

}  // namespace sparsed::server
