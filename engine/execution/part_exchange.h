// Where the parts of a request that several GPUs compute at the same time show each other what they
// computed: each GPU reads its peers' memory once theirs is written, and nobody waits for a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/execution/placed_dense.h"
#include "engine/execution/token.h"
#include "kernels/cuda/device.h"

namespace sparsed::engine {

/// Each part comes by as often as the others, on the worker slot that it runs on, and waits there
/// until all have come: all of them have to have worker slots at the same time. Thread-safe.
class PartExchange {
 public:
  struct Shown {
    PlacedDense value;                         ///< may be none
    std::shared_ptr<const cuda::Event> ready;  ///< it is written then; null with no value
    /// The part has read what the others showed before; null: it read nothing.
    std::shared_ptr<const cuda::Event> read;
  };

  explicit PartExchange(size_t parts) : parts_(parts), next_(parts) {}

  /// What all parts show, by part. Errors: why `token` stopped, or Stop's.
  absl::StatusOr<std::vector<Shown>> Meet(size_t part, Shown mine, const Token& token);
  /// A part ended, or will: nobody waits for it, whoever comes afterwards is told so, and what was
  /// shown is let go of.
  void Stop(absl::Status why);

 private:
  struct Round {
    std::vector<std::optional<Shown>> shown;
    size_t came = 0, left = 0;
  };

  const size_t parts_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<uint64_t> next_ ABSL_GUARDED_BY(mutex_);  ///< round of each part
  std::map<uint64_t, Round> rounds_ ABSL_GUARDED_BY(mutex_);
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::engine
