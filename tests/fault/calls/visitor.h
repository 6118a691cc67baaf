// A client that uses a little of everything once, and knows what the server must have afterwards.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sparsed/client.h"

namespace sparsed::test {

/// What may be stored under a name: all values of it are one of these. 0: nothing.
using Known = std::map<std::string, std::set<int64_t>>;

class Visitor {
 public:
  explicit Visitor(Known& matrices) : matrices_(matrices) {}

  /// Stores the matrix "old", which Visit reads.
  static absl::Status PutOld(const std::string& address, int64_t value);

  /// Stores, reads, multiplies and deletes, by a stream, shared memory, a ring and attached, with
  /// new connections. Returns what calls failed with.
  std::vector<absl::Status> Visit(const std::string& address);
  /// Everything that was acknowledged is there, and nothing else.
  std::vector<absl::Status> CheckStored(const std::string& address) const;

  /// What was wrong whatever fails: results, things that were there and are not, no answer.
  const std::vector<std::string>& mistakes() const { return mistakes_; }

 private:
  void Note(const std::string& what, const absl::Status& status, std::vector<absl::Status>& failed);
  void Change(const std::string& what, const std::string& name, int64_t value,
              const absl::Status& status, std::vector<absl::Status>& failed);

  Known& matrices_;
  int64_t next_value_ = 100;
  std::vector<std::string> mistakes_;
};

}  // namespace sparsed::test
