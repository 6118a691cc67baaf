// Servers that know their callers by tokens.
#pragma once

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/strings/escaping.h"
#include "server/security/sha256.h"

namespace sparsed::test {

/// The line of an access file for a token that is called as it is.
inline std::string TokenLine(const std::string& token, const std::string& rest) {
  const std::string digest = server::Sha256(token);
  return fmt::format("  - {{name: {}, sha256: {}, {}}}\n", token,
                     absl::BytesToHexString({digest.data(), digest.size()}), rest);
}

inline void Show(grpc::ClientContext& context, const std::string& token) {
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
}

}  // namespace sparsed::test
