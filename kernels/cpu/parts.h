// A loop over parts of a kernel's work, handed out to threads as they come, that may be cut between
// two of them (Progress).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/problem.h"

namespace sparsed::cpu {

/// What one run computes: phases, one after the other, each of some parts. Part of a later phase
/// begins when those before are all done, in this run or an earlier one.
class PartLoop {
 public:
  explicit PartLoop(const Context& context) : context_(context) {
    if (context.progress != nullptr) resumed_at_ = context.progress->done;
  }

  /// Whether none of the next phase, of `count` parts, is done, and some are to be.
  bool BeginsPhase(int64_t count) const { return resumed_at_ <= passed_ && count > 0; }

  /// Calls `compute(part)` for those of the parts [0, count) of the next phase that are not done,
  /// from the team's threads. False if the run is to end: it was cut, or stopped.
  template <typename Compute>
  bool Run(int64_t count, const Compute& compute) {
    const int64_t first = std::clamp<int64_t>(resumed_at_ - passed_, 0, count);
    passed_ += count;
    if (first == count) return true;
    std::atomic<int64_t> next = first;
#pragma omp parallel num_threads(context_.threads) if (count - first > 1 && context_.threads > 1)
    while (true) {
      // Whoever took a part computes it: all before `next` are done in the end.
      if (context_.stopped() || Pauses(next.load(std::memory_order_relaxed) - first)) break;
      const int64_t part = next.fetch_add(1, std::memory_order_relaxed);
      if (part >= count) break;
      compute(part);
    }
    if (context_.stopped()) return false;
    const int64_t end = std::min(next.load(), count);
    computed_ += end - first;
    if (context_.progress != nullptr) {
      context_.progress->done = passed_ - count + end;
      context_.progress->other_parts |= end == count;
    }
    return end == count;
  }

  /// All phases are done; CANCELLED if the run was stopped.
  absl::Status Finish() const {
    if (context_.stopped()) return absl::CancelledError("the product was cancelled");
    if (context_.progress != nullptr) context_.progress->finished = true;
    return absl::OkStatus();
  }
  /// It is cut: OK, to be gone on with; CANCELLED if it was stopped.
  absl::Status Cut() const {
    return context_.stopped() ? absl::CancelledError("the product was cancelled")
                              : absl::OkStatus();
  }

 private:
  /// After `here` parts of a phase. One that did some of an earlier phase looks at once.
  bool Pauses(int64_t here) const {
    return context_.progress != nullptr &&
           context_.progress->pauses(computed_ > 0 ? context_.progress->least : here);
  }

  const Context& context_;
  int64_t resumed_at_ = 0;
  int64_t passed_ = 0;    ///< parts of the phases so far
  int64_t computed_ = 0;  ///< in this run, of phases that are done
};

}  // namespace sparsed::cpu
