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

/// Multiplies a diagonal matrix with 8 MiB, over and over until `enough`, at most fifty times.
/// DATA_LOSS: the result was wrong.
absl::Status MultiplyUntil(const std::string& address, const Shown& shown,
                           const std::function<bool()>& enough);

}  // namespace sparsed::test
