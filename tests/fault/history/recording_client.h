// A client of the catalog that does what chance says, and writes down what it saw.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sparsed/attached.h"
#include "sparsed/client.h"
#include "tests/fault/history/catalog_model.h"

namespace sparsed::test {

/// How a client's products and values travel.
enum class Way { kStream, kShared, kRing, kAttached };
const char* Name(Way way);

/// What clients of one server share.
struct Shared {
  std::string address;
  std::vector<std::string> names;
  std::atomic<bool> serving = true;  ///< false: do not call
  std::atomic<bool> ending = false;
  std::atomic<int64_t> next_value = 1;
  std::atomic<int64_t> attached_runs = 0;  ///< products that ran in the client's process
};

class RecordingClient {
 public:
  /// Calls until `shared.ending`. INTERNAL, with a sentence, if something came back that is wrong
  /// whatever the others did: half of one matrix and half of another, or an error that no call here
  /// can have.
  static absl::Status Run(Shared& shared, int number, Way way, uint32_t seed,
                          std::map<std::string, CatalogHistory>& histories);

 private:
  RecordingClient(Shared& shared, int number, Way way, uint32_t seed, Client client,
                  std::map<std::string, CatalogHistory>& histories);

  /// False while the server that the last call did not reach is not back.
  bool Reaches();
  absl::Status Once();
  absl::Status Upload(const std::string& name);
  absl::Status Update(const std::string& name);
  absl::Status Delete(const std::string& name);
  absl::Status Info(const std::string& name);
  absl::Status Read(const std::string& name);
  absl::Status Product(const std::string& name);
  absl::StatusOr<int64_t> Multiply(const std::string& name);

  CatalogEvent Begin(CatalogModel::Call call) const;
  /// Notes what came of it; `status` is OK, or how the call failed. INTERNAL for what cannot be.
  absl::Status End(const std::string& name, CatalogEvent event, const absl::Status& status);

  Shared& shared_;
  const int number_;
  const Way way_;
  std::mt19937 random_;
  const Client client_;
  std::map<std::string, CatalogHistory>& histories_;
  std::map<std::string, uint64_t> versions_;  ///< the last that was seen, by name
  std::map<std::string, AttachedMatrix> attached_;
  bool reaches_ = true;
};

/// Of the clock that events are timed by.
int64_t NowNanoseconds();

}  // namespace sparsed::test
