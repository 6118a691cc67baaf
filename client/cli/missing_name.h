// What to say of a name that the server does not have, or does not take.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "sparsed/client.h"

namespace sparsed::cli {

/// The names of what there is of the kind that the sentence says is missing ("matrix named",
/// "buffer named", "model named"); none if the server does not say.
std::vector<std::string> NamesLike(const Client& client, std::string_view sentence);

/// Of what was not found, and of a word that is none of those that the server takes: the status
/// with what was probably meant. Of a matrix of another tenant's that an operator may look at:
/// PERMISSION_DENIED that says who may do more.
absl::Status Suggested(const Client& client, const absl::Status& status);

/// For an operator whose tenant has none: how many matrices the other tenants have; 0 for
/// everybody else.
size_t MatricesOfOthers(const Client& client);

}  // namespace sparsed::cli
