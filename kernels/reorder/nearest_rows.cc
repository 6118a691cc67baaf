#include "kernels/reorder/nearest_rows.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <tuple>

#include "kernels/problem.h"
#include "kernels/reorder/row_lists.h"
#include "kernels/scratch.h"

namespace sparsed {
namespace {

/// Candidates whose distance is computed, if what was met does not tell it.
constexpr int kRefined = 4;
/// Rows of the fewest columns that are candidates.
constexpr int kShortest = 4;

absl::Status Stopped() { return absl::CancelledError("the reordering was stopped"); }

/// A class whose next row may be next.
struct Candidate {
  int64_t distance;
  int64_t tie;
  int32_t row;  ///< its next
  int32_t c;

  bool operator<(const Candidate& other) const {
    return std::tie(distance, tie, row) < std::tie(other.distance, other.tie, other.row);
  }
};

/// The best few, best first.
class Best {
 public:
  bool MayTake(int64_t distance) const {
    return size_ < kRefined || distance <= few_[kRefined - 1].distance;
  }
  void Offer(const Candidate& candidate) {
    if (size_ == kRefined && !(candidate < few_[kRefined - 1])) return;
    size_t at = size_ < kRefined ? size_++ : size_ - 1;
    for (; at > 0 && candidate < few_[at - 1]; --at) few_[at] = few_[at - 1];
    few_[at] = candidate;
  }
  std::span<Candidate> all() { return std::span(few_).first(size_); }

 private:
  std::array<Candidate, kRefined> few_;
  size_t size_ = 0;
};

class Chains {
 public:
  Chains(RowLists& lists, const NearestOptions& options, std::span<int32_t> sequence)
      : lists_(lists), options_(options), sequence_(sequence) {}

  absl::Status Allocate(MemorySource& memory) {
    absl::Status status = state_.Allocate(memory, lists_.classes());
    if (status.ok()) status = next_.Allocate(memory, lists_.classes());
    if (status.ok()) status = near_.Allocate(memory, lists_.classes());
    if (!status.ok()) return status;
    for (int32_t c = 0; c < lists_.classes(); ++c) {
      next_[c] = lists_.Begin(c);
      state_[c] = {0, static_cast<int32_t>(lists_.Size(c)), lists_.RowOf(next_[c]), lists_.Load(c)};
    }
    return absl::OkStatus();
  }

  /// Fills the sequence, with numbers.
  absl::Status Run(const BuildContext& context) {
    const int64_t rows = static_cast<int64_t>(sequence_.size());
    const int64_t first = std::min(options_.stride, rows);
    absl::Status status = lists_.FindFirst(first, sequence_);
    if (!status.ok()) return status;
    // Of a class, these are the first.
    for (int64_t i = 0; i < first; ++i) Take(lists_.ClassOf(sequence_[i]));
    for (int64_t i = first; i < rows; ++i) {
      if (i % (1 << 12) == 0) {
        if (context.stopped()) return Stopped();
        if (context.progress) context.progress("nearest_rows", i, rows);
      }
      if (options_.stride > kAhead) {
        const int32_t* const later = &sequence_[i - options_.stride];
        lists_.PrefetchOffset(lists_.ClassOf(later[3]));
        lists_.PrefetchColumns(lists_.ClassOf(later[2]));
        lists_.PrefetchNodes(lists_.ClassOf(later[1]));
      }
      const int32_t from = sequence_[i - options_.stride];
      const int32_t c = lists_.ClassOf(from);
      sequence_[i] = Take(IsLeft(c) ? c : Nearest(i));
      if (from + 1 == lists_.Begin(c + 1)) lists_.Remove(c);  // nothing follows it any more
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int32_t kGone = -1;
  /// With so many rows between it and the one that it follows, a row is known long before.
  static constexpr int64_t kAhead = 3;
  /// All that a candidate is judged by: one miss, not one for each.
  struct alignas(16) State {
    int32_t met;   ///< columns of the row at hand in which it was met; kGone: no rows left
    int32_t size;  ///< columns
    int32_t row;   ///< its next
    int32_t load;
  };

  bool IsLeft(int32_t c) const { return state_[c].met != kGone; }
  int32_t Take(int32_t c) {
    const int32_t number = next_[c]++;
    if (next_[c] == lists_.Begin(c + 1)) {
      state_[c].met = kGone;
    } else {
      state_[c].row = lists_.RowOf(next_[c]);
    }
    return number;
  }

  /// Of the classes that are left, for place i of the sequence.
  int32_t Nearest(int64_t i) {
    const auto by_length = lists_.ByLength();
    while (!IsLeft(by_length[shortest_])) ++shortest_;
    const int32_t load = state_[by_length[shortest_]].load;
    const int32_t from = lists_.ClassOf(sequence_[i - options_.stride]);
    int64_t near = 0;
    const bool exact = lists_.VisitNear(
        from, EndOf(load), [&](int32_t c) { __builtin_prefetch(&state_[c]); },
        [&](std::span<const int32_t> few) {
          for (const int32_t c : few) {
            int32_t& met = state_[c].met;
            if (met != kGone && met++ == 0) near_[near++] = c;
          }
        });
    Best best;
    const int64_t size = lists_.Size(from);
    const int64_t load_before = state_[lists_.ClassOf(sequence_[i - 1])].load;
    const auto offer = [&](int32_t c, const State& state) {
      const int64_t distance = size + state.size - 2 * int64_t{state.met};
      if (!best.MayTake(distance)) return;
      const int64_t tie =
          options_.tie == NearestTie::kLoad ? std::abs(state.load - load_before) : 0;
      best.Offer({distance, tie, state.row, c});
    };
    const int64_t classes = lists_.classes();
    for (int64_t n = shortest_; n < std::min(shortest_ + kShortest, classes); ++n) {
      const int32_t c = by_length[n];
      if (options_.by_load && state_[c].load != load) break;
      if (state_[c].met == 0) offer(c, state_[c]);
    }
    for (int64_t n = 0; n < near; ++n) {
      State& state = state_[near_[n]];
      offer(near_[n], state);
      state.met = 0;
    }
    return Refine(best.all(), from, exact, i);
  }

  /// The first class that comes too late while there are rows of this load, which never grows: all,
  /// unless loads come first.
  int32_t EndOf(int32_t load) {
    if (!options_.by_load) return lists_.classes();
    while (end_ < lists_.classes() && lists_.Load(end_) >= load) ++end_;
    return end_;
  }

  /// The best of a few by what was not computed yet.
  int32_t Refine(std::span<Candidate> few, int32_t from, bool exact, int64_t i) const {
    if (few.size() > 1 && !exact) {
      for (const Candidate& each : few) lists_.PrefetchColumns(each.c);
      for (Candidate& each : few) each.distance = lists_.Distance(from, each.c);
    }
    if (few.size() > 1 && options_.tie == NearestTie::kWarp && i >= options_.warps) {
      const int32_t before = lists_.ClassOf(sequence_[i - options_.warps]);
      const int64_t least = std::min_element(few.begin(), few.end())->distance;
      for (Candidate& each : few) {
        if (each.distance == least) each.tie = lists_.Distance(before, each.c);
      }
    }
    return std::min_element(few.begin(), few.end())->c;
  }

  RowLists& lists_;
  const NearestOptions& options_;
  const std::span<int32_t> sequence_;
  Scratch<State> state_;
  Scratch<int32_t> next_;  ///< of each class, the number of the next row
  Scratch<int32_t> near_;  ///< classes that were met
  int32_t end_ = 0;        ///< see EndOf
  int64_t shortest_ = 0;   ///< in the order of lengths: of those before it no row is left
};

}  // namespace

absl::Status ChainNearestRows(const CsrView& masks, std::span<const int32_t> loads,
                              const NearestOptions& options, const BuildContext& context,
                              std::span<int32_t> sequence) {
  RowLists lists(masks, loads, options.by_load, context);
  absl::Status status = lists.Build();
  if (!status.ok()) return status;
  Chains chains(lists, options, sequence);
  status = chains.Allocate(*context.memory);
  if (status.ok()) status = chains.Run(context);
  if (!status.ok()) return status;
  for (int32_t& row : sequence) row = lists.RowOf(row);
  return absl::OkStatus();
}

}  // namespace sparsed
