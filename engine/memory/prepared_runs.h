// What kernels prepared once for many runs (kernel_table.h, `prepare`).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/bound_run.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// The most recently used ones of one worker slot, which runs one kernel at a time: at most kMost
/// of them, and of kMostBytes together. What was made for a layout that is gone goes with the next
/// look; what found no memory is prepared kTryAgainAfter later, if it is asked for. Not
/// thread-safe.
class PreparedRuns {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMost = 16;
  static constexpr size_t kMostBytes = size_t{256} << 20;
  static constexpr std::chrono::milliseconds kTryAgainAfter{1000};

  /// For `run`; prepared now, in the context's stream and in memory from `memory`, if it was not.
  /// Null: the kernel prepares nothing, or could not (the run does without).
  void* For(const BoundRun& run, const Context& context, MemorySource& memory,
            Clock::time_point now = Clock::now());

  /// Whether For makes nothing at that time, and lets nothing go that was made for another run.
  bool Has(const BoundRun& run, Clock::time_point now);

  void Clear() { entries_.clear(); }

 private:
  struct Entry {
    std::weak_ptr<const Layout> lifetime;
    const Layout* layout;
    std::string_view kernel;
    ElementType type;
    int64_t k;
    bool transposed;
    std::pair<int64_t, int64_t> leading_dimensions;
    size_t bytes = 0;
    std::shared_ptr<void> prepared = nullptr;  ///< null: it could not be
    /// For want of memory, which may be there by then.
    std::optional<Clock::time_point> try_again = std::nullopt;
  };
  /// Counts what is allocated, and refuses what one worker slot should not keep.
  class Limited final : public MemorySource {
   public:
    explicit Limited(MemorySource& memory) : memory_(memory) {}
    absl::StatusOr<Buffer> Allocate(size_t bytes) override;
    size_t bytes() const { return bytes_; }
    /// It asked for more than a worker slot keeps, which never changes.
    bool refused() const { return refused_; }

   private:
    MemorySource& memory_;
    size_t bytes_ = 0;
    bool refused_ = false;
  };

  static Entry EntryOf(const BoundRun& run);
  const Entry* Find(const Entry& wanted);
  void* Keep(Entry entry);

  std::list<Entry> entries_;  ///< the last used first
};

}  // namespace sparsed::engine
