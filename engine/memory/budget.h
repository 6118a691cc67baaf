// Host memory under a limit: every buffer that the engine holds is counted here.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/array.h"

namespace sparsed::engine {

enum class MemoryUse : uint8_t { kMatrices, kLayouts, kBuffers, kRequests, kPreparation };
inline constexpr int kMemoryUses = 5;
/// "matrices", "layouts", "buffers", "requests", "preparation".
std::string_view Name(MemoryUse use);
/// The same as who needs memory: "preparations" for the last.
std::string_view NameInSentence(MemoryUse use);

/// Counts bytes by use and refuses what would exceed the limit. Large blocks that come back are
/// kept for the next caller (fresh pages cost as much as the multiplication that fills them), and
/// given up when the limit needs them. Thread-safe. Buffers may outlive the budget.
class Budget {
 public:
  /// `limit_bytes` for all uses together; `preparation_bytes` for kPreparation alone.
  Budget(int64_t limit_bytes, int64_t preparation_bytes);
  ~Budget();

  /// Buffers counted under `use` until their last copy is gone.
  /// RESOURCE_EXHAUSTED: "request needs 8589934592 bytes of host memory, 1073741824 of 4294967296
  /// are free; delete ...".
  MemorySource& Source(MemoryUse use);

  /// Called without locks, from any thread, when there is no room: lets something go, or returns
  /// false. For what is kept only as long as nobody needs the memory.
  void SetReclaim(std::function<bool()> reclaim);

  int64_t limit() const;
  int64_t used(MemoryUse use) const;
  int64_t used() const;
  /// Highest used() since the start.
  int64_t peak() const;

  class State;

 private:
  std::shared_ptr<State> state_;
};

/// Makes `buffer` at least `bytes` large if it is smaller; what was in it is gone then. For
/// workspaces: the smaller one goes first, so that both need not fit.
absl::Status Grow(Buffer& buffer, size_t bytes, MemorySource& memory);

}  // namespace sparsed::engine
