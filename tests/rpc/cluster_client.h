// What a user of the C++ client does with a matrix of a cluster.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsed::test {

/// By one client of the node at `address`: uploads a matrix, multiplies with it `products` times,
/// replaces its values, multiplies once more, runs a chain with it and deletes it. Every result is
/// checked.
absl::Status UseMatrix(const std::string& address, const std::string& name, int products);

/// Has a product kept as a matrix, which is on `copies` nodes when the call ends; and again, in the
/// place of it.
absl::Status KeepProduct(const std::string& address, size_t copies);

/// Of the matrices that a client of the node at `address` lists, or of those of all tenants: which
/// it learns no more of than the directory knows. INTERNAL if it lists fewer than `matrices`.
absl::StatusOr<std::vector<std::string>> UntoldMatrices(const std::string& address, bool all,
                                                        size_t matrices);

}  // namespace sparsed::test
