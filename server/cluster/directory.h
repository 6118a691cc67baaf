// What the nodes of a cluster agree on, as they see it: keys with revisions, and leases.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsed::server {

/// Thread-safe; all of it blocks for seconds at most, but for Watch. UNAVAILABLE, with a sentence,
/// if nothing answers.
class Directory {
 public:
  struct Entry {
    std::string key, value;
    int64_t revision = 0;  ///< of its last change
  };
  struct Contents {
    int64_t revision = 0;  ///< of the directory, when it was read
    std::vector<Entry> entries;
  };
  struct Change {
    std::string key;
    std::optional<std::string> value;  ///< none: the key is deleted
    int64_t lease = 0;                 ///< with which the key goes; 0: it stays
    /// What the key's revision has to be, 0: that it is not there; none: whatever it is.
    std::optional<int64_t> if_revision;
  };
  struct Event {
    Entry entry;
    bool deleted = false;  ///< the entry has no value
  };

  virtual ~Directory() = default;

  /// That key alone: one entry, or none.
  virtual absl::StatusOr<Contents> Get(const std::string& key) = 0;
  /// All keys that begin with `prefix`.
  virtual absl::StatusOr<Contents> Read(const std::string& prefix) = 0;
  /// All of it or nothing; the revision that it has then. ABORTED, and nothing was done, if a key's
  /// revision is not what it has to be.
  virtual absl::StatusOr<int64_t> Apply(const std::vector<Change>& changes) = 0;
  /// Calls `on_events` with the changes of keys that begin with `prefix`, from `revision` on, in
  /// order, until `stop` is requested (OK) or something breaks. OUT_OF_RANGE if changes since
  /// `revision` are forgotten: read again.
  virtual absl::Status Watch(const std::string& prefix, int64_t revision,
                             const std::function<void(const std::vector<Event>&)>& on_events,
                             const std::stop_token& stop) = 0;
  /// A lease that ends after so many seconds without KeepAlive.
  virtual absl::StatusOr<int64_t> Grant(int64_t seconds) = 0;
  /// NOT_FOUND if it has ended.
  virtual absl::Status KeepAlive(int64_t lease) = 0;
  virtual absl::Status Revoke(int64_t lease) = 0;
};

}  // namespace sparsed::server
