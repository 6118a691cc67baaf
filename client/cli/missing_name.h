// What to say of a name that the server does not have, or does not take.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsed/client.h"

namespace sparsed::cli {

/// Of questions that only serve a hint.
inline const CallOptions kSoon = {.timeout = std::chrono::seconds(2)};

/// The names of what there is of the kind that the sentence says is missing ("matrix named ",
/// "buffer named ", "matrix or buffer named ", "model named "); none if the server does not say.
std::vector<std::string> NamesLike(const Client& client, std::string_view sentence);

/// Asks the server what to say to who failed: over a connection of its own that tries nothing
/// again, as nobody shall wait for a quota because of it, and once however many names are missing.
class Hints {
 public:
  Hints(std::string server, ClientOptions options);

  /// Of what was not found, and of a word that is none of those that the server takes: the status
  /// with what was probably meant. Of a matrix of another tenant's that an operator may look at,
  /// and of another tenant's buffer: PERMISSION_DENIED that says who may do more.
  absl::Status Suggested(const absl::Status& status);

  /// For an operator: how many matrices the other tenants have; 0 for everybody else.
  size_t MatricesOfOthers();
  /// Likewise buffers.
  size_t BuffersOfOthers();

 private:
  /// nullptr: the server is not reached.
  const Client* Connected();
  /// NamesLike of what the sentence says.
  const std::vector<std::string>& NamesOfKind(std::string_view sentence);
  /// Likewise of all tenants, as `list --all` writes them.
  const std::vector<std::string>& NamesOfAllTenants(std::string_view sentence);
  /// What to say of a name that is missing where nothing is another tenant's.
  std::string HintOfPresent(std::string_view sentence);
  /// How many the other tenants have of what the words say is missing, for an operator.
  size_t OfOthers(std::string_view kind);
  /// The tenant of an operator who calls; none: somebody else does, or the server does not say.
  const std::optional<std::string>& OperatorsTenant();
  /// Of what an operator of `tenant` does not have: it may be another tenant's.
  absl::Status SuggestedToOperator(const absl::Status& status, const std::string& tenant);

  std::string server_;
  ClientOptions options_;
  // None: not asked yet.
  std::optional<absl::StatusOr<Client>> client_;
  std::map<std::string, std::vector<std::string>> names_, all_names_;
  std::optional<std::optional<std::string>> operators_tenant_;
};

}  // namespace sparsed::cli
