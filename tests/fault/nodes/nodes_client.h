// A client of a cluster that does what chance says, through any node, and writes down what it saw.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sparsed/client.h"
#include "tests/fault/nodes/nodes_model.h"

namespace sparsed::test {

/// What clients of one cluster share. A pair is two names, between which matrices are renamed.
struct SharedNodes {
  std::vector<std::string> nodes, addresses;
  int pairs = 0;
  std::atomic<bool> ending = false;
  std::atomic<int64_t> next_value = 1;  ///< 1 more than a multiple of 5
  std::atomic<int64_t> refused = 0;     ///< calls that were not done, or of which nobody knows
  std::atomic<int64_t> changed = 0;     ///< changes that were acknowledged
};

class NodesClient {
 public:
  NodesClient(SharedNodes& shared, int number, uint32_t seed)
      : shared_(shared), number_(number), random_(seed), histories_(shared.pairs) {}

  /// Calls until `shared.ending`. INTERNAL, with a sentence, if something came back that is wrong
  /// whatever the others did.
  absl::Status Run();
  /// All names by all nodes, each asked itself, where it redirects to followed. INTERNAL if one
  /// does not answer.
  absl::Status ReadAll();
  /// Of each pair.
  const std::vector<NodesHistory>& histories() const { return histories_; }

  /// Calls that changed nothing, as the server said.
  struct Refusal {
    int pair = 0;
    NodesEvent event;
    absl::Status status;
  };
  const std::vector<Refusal>& refusals() const { return refusals_; }

  static std::string NameOf(int pair, int name);

 private:
  /// One that knows that node alone, to begin with; null if it does not answer.
  Client* At(size_t node);
  absl::Status Once();
  absl::Status Call(Client& client, size_t node, int pair, NodesModel::Operation operation);
  /// Notes what came of it. INTERNAL for what cannot be.
  absl::Status End(int pair, NodesEvent event, const absl::Status& status);

  SharedNodes& shared_;
  const int number_;
  std::mt19937 random_;
  std::map<size_t, Client> clients_;
  std::vector<NodesHistory> histories_;
  std::vector<Refusal> refusals_;
  absl::Status last_refusal_;
  std::map<std::string, uint64_t> versions_;  ///< the last that was seen, by name
  int unknown_ = 0;                           ///< changes of which nobody knows what came
};

/// Of the clock that events are timed by.
int64_t NowNs();

}  // namespace sparsed::test
