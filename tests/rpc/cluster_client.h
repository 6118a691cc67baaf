// What a user of the C++ client does with a matrix of a cluster.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"

namespace sparsed::test {

/// By one client of the node at `address`: uploads a matrix, multiplies with it `products` times,
/// replaces its values, multiplies once more, runs a chain with it and deletes it. Every result is
/// checked.
absl::Status UseMatrix(const std::string& address, const std::string& name, int products);

/// Has a product kept as a matrix, which is on `copies` nodes when the call ends; and again, in the
/// place of it.
absl::Status KeepProduct(const std::string& address, size_t copies);

}  // namespace sparsed::test
