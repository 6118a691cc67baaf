// The client library, for tests that have the server's headers, too: those do not go together.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace sparsed::test {

/// As ClientOptions.
struct Shown {
  std::string ca{}, certificate{}, key{}, server_name{}, token{}, token_file{};
};

/// Asks the server who the caller is: "TENANT ROLE".
using WhoAmI = std::function<absl::StatusOr<std::string>()>;

/// A connection, which lives as long as what it returns.
absl::StatusOr<WhoAmI> ConnectClient(const std::string& address, const Shown& shown);

}  // namespace sparsed::test
