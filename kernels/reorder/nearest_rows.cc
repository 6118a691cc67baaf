#include "kernels/reorder/nearest_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "kernels/problem.h"
#include "kernels/reorder/minhash.h"
#include "kernels/reorder/radix_sort.h"
#include "kernels/scratch.h"

namespace sparsed {
namespace {

/// Classes looked at in each column's list, on either side, at least: more for few columns, so that
/// in all lists they are about kVisits on either side.
constexpr int64_t kWindow = 2;
constexpr int64_t kVisits = 32;
/// Candidates whose distance is computed, if what was met does not tell it.
constexpr int kRefined = 4;
/// Rows of the fewest columns that are candidates.
constexpr int kShortest = 4;

absl::Status Stopped() { return absl::CancelledError("the reordering was stopped"); }

/// The finaliser of SplitMix64.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// Rows of the same columns and load make a class: they are at no distance. Classes, and the rows
/// in them, are numbered so that classes that are alike are neighbours; each column has a list of
/// its classes, from which they leave. If loads come first, they do so in the numbers and lists.
class RowLists {
 public:
  RowLists(const CsrView& masks, std::span<const int32_t> loads, bool by_load,
           const BuildContext& context)
      : masks_(masks), loads_(loads), by_load_(by_load), context_(context) {}

  absl::Status Build() {
    for (const int32_t load : loads_) largest_ = std::max(largest_, load);
    MemorySource& memory = *context_.memory;
    absl::Status status = items_.Allocate(memory, masks_.rows);
    if (status.ok()) status = scratch_.Allocate(memory, masks_.rows);
    if (status.ok()) status = row_of_.Allocate(memory, masks_.rows);
    if (status.ok()) status = class_of_.Allocate(memory, masks_.rows);
    if (status.ok()) status = SortByLikeness();
    if (status.ok()) status = MakeClasses();
    if (status.ok()) status = SortByLength();
    items_.Free();
    scratch_.Free();
    return status.ok() ? MakeLists() : status;
  }

  int32_t classes() const { return classes_; }
  int32_t ClassOf(int32_t number) const { return class_of_[number]; }
  int32_t RowOf(int32_t number) const { return row_of_[number]; }
  /// Of the class's rows the numbers are [Begin(c), Begin(c + 1)), ascending as the rows are.
  int32_t Begin(int32_t c) const { return begin_[c]; }
  int32_t Load(int32_t c) const { return load_[c]; }
  /// Columns.
  int64_t Size(int32_t c) const { return offsets_[c + 1] - offsets_[c]; }
  /// Classes by load, if loads come first, by size and by their first rows.
  std::span<const int32_t> ByLength() const { return by_length_.span(); }

  /// Where chains begin: numbers of rows of the least load (the largest, if loads come first).
  absl::Status FindFirst(int64_t count, std::span<int32_t> first) const {
    Scratch<int32_t> numbers;
    absl::Status status = numbers.Allocate(*context_.memory, masks_.rows);
    if (!status.ok()) return status;
    for (int64_t i = 0; i < masks_.rows; ++i) numbers[i] = static_cast<int32_t>(i);
    const auto key = [this](int32_t number) {
      const int32_t load = load_[class_of_[number]];
      return std::pair(by_load_ ? -load : load, row_of_[number]);
    };
    std::partial_sort(numbers.data(), numbers.data() + count, numbers.data() + masks_.rows,
                      [&key](int32_t a, int32_t b) { return key(a) < key(b); });
    std::copy(numbers.data(), numbers.data() + count, first.begin());
    return absl::OkStatus();
  }

  // Nearly all of the time is spent waiting for memory: these ask for what is read in the next
  // steps.
  void PrefetchOffset(int32_t c) const { __builtin_prefetch(&offsets_[c]); }
  void PrefetchColumns(int32_t c) const {
    __builtin_prefetch(&columns_[offsets_[c]]);
    __builtin_prefetch(&places_[offsets_[c]]);
  }
  void PrefetchNodes(int32_t c) const {
    const int64_t end = std::min(offsets_[c + 1], offsets_[c] + kTogether);
    for (int64_t p = offsets_[c]; p < end; ++p) __builtin_prefetch(&nodes_[places_[p]]);
  }
  int64_t Distance(int32_t a, int32_t b) const {
    const int32_t* p = columns_.data() + offsets_[a];
    const int32_t* const p_end = columns_.data() + offsets_[a + 1];
    const int32_t* q = columns_.data() + offsets_[b];
    const int32_t* const q_end = columns_.data() + offsets_[b + 1];
    int64_t both = 0;
    while (p != p_end && q != q_end) {
      const int32_t at_p = *p;
      const int32_t at_q = *q;
      both += static_cast<int64_t>(at_p == at_q);
      p += static_cast<int64_t>(at_p <= at_q);
      q += static_cast<int64_t>(at_q <= at_p);
    }
    return Size(a) + Size(b) - 2 * both;
  }

  /// Calls `meet` with the classes before `end`, next to `c`, which is still there, in each of its
  /// columns' lists: as often as one is there, many at a time, each after a `touch`. Returns
  /// whether every class before `end` in these columns was met. If loads come first those behind
  /// `end` have smaller ones.
  template <typename Touch, typename Meet>
  bool VisitNear(int32_t c, int32_t end, Touch touch, Meet meet) const {
    const int64_t window = std::max(kWindow, kVisits / std::max<int64_t>(Size(c), 1));
    std::array<int32_t, 2 * std::max(kVisits, kWindow * kTogether)> few;
    bool all = true;
    // The lists of some columns are walked step by step together, so that their misses overlap.
    for (int64_t begin = offsets_[c]; begin < offsets_[c + 1]; begin += kTogether) {
      const int64_t stop = std::min(offsets_[c + 1], begin + kTogether);
      for (int64_t p = begin; p < stop; ++p) __builtin_prefetch(&nodes_[places_[p]]);
      Walkers<&Node::before, -1> back;
      Walkers<&Node::after, 1> ahead;
      for (int64_t p = begin; p < stop; ++p) {
        back.Follow(&nodes_[places_[p]]);
        ahead.Follow(&nodes_[places_[p]]);
      }
      int32_t* met = few.data();
      const auto append = [&](int32_t other) {
        touch(other);
        *met++ = other;
      };
      for (int64_t step = 0; step < window && back.count + ahead.count > 0; ++step) {
        back.Step(end, append);
        ahead.Step(end, append);
      }
      all &= back.Ended(end) && ahead.Ended(end);
      meet(std::span<const int32_t>(few.data(), met));
    }
    return all;
  }

  void Remove(int32_t c) {
    for (int64_t p = offsets_[c]; p < offsets_[c + 1]; ++p) {
      Node* const node = &nodes_[places_[p]];
      const bool has_before = node->before > 0;
      const bool has_after = node->after > 0;
      const int32_t across = has_before && has_after ? node->before + node->after : 0;
      if (has_before) (node - node->before)->after = across;
      if (has_after) (node + node->after)->before = across;
    }
  }

 private:
  /// A class in a column's list, and how far the next ones that are left are; 0 at its ends.
  struct Node {
    int32_t c;
    int32_t before;
    int32_t after;
  };

  /// Columns whose lists are walked together.
  static constexpr int64_t kTogether = 16;

  /// Places in as many lists, all of which go the same way.
  template <int32_t Node::*kNext, int kSign>
  struct Walkers {
    std::array<const Node*, kTogether> at;
    int64_t count = 0;

    void Follow(const Node* node) {
      if (node->*kNext == 0) return;
      at[count] = node + kSign * node->*kNext;
      __builtin_prefetch(at[count++]);
    }
    /// Each visits the class where it is and goes on; those at `end` or at the end of a list leave.
    template <typename Visit>
    void Step(int32_t end, Visit visit) {
      const int64_t all = std::exchange(count, 0);
      for (int64_t i = 0; i < all; ++i) {
        const Node* const node = at[i];
        if (node->c >= end) continue;
        visit(node->c);
        Follow(node);
      }
    }
    bool Ended(int32_t end) const {
      return std::all_of(at.begin(), at.begin() + count,
                         [end](const Node* node) { return node->c >= end; });
    }
  };

  int64_t Length(int64_t row) const {
    return masks_.row_offsets[row + 1] - masks_.row_offsets[row];
  }
  std::span<const int32_t> Columns(int64_t row) const {
    return masks_.column_indices.subspan(masks_.row_offsets[row], Length(row));
  }

  /// By the upper halves, up to `largest`; stable.
  void Sort(std::span<uint64_t> items, uint32_t largest) {
    RadixSort(items, scratch_.span().first(items.size()), 32,
              32 + static_cast<int>(std::bit_width(largest)), context_.threads);
  }
  /// By load, descending, of the rows or classes in the lower halves.
  void SortByLoad(std::span<uint64_t> items, std::span<const int32_t> loads) {
    for (uint64_t& item : items) {
      const uint32_t low = Low(item);
      item = static_cast<uint64_t>(largest_ - loads[low]) << 32 | low;
    }
    Sort(items, static_cast<uint32_t>(largest_));
  }
  static uint32_t Low(uint64_t item) { return static_cast<uint32_t>(item & 0xffffffffU); }

  /// row_of_: by MinHash keys; rows without columns, which have none, first; of equal keys by a
  /// hash of all columns and the load.
  absl::Status SortByLikeness() {
    MemorySource& memory = *context_.memory;
    const int64_t rows = masks_.rows;
    Scratch<int32_t> filled;  // rows with columns
    Scratch<uint32_t> keys;
    absl::Status status = filled.Allocate(memory, rows);
    if (status.ok()) status = keys.Allocate(memory, 2 * rows);
    if (!status.ok()) return status;
    int64_t count = 0;
    for (int64_t row = 0; row < rows; ++row) {
      if (Length(row) > 0) filled[count++] = static_cast<int32_t>(row);
    }
    const int64_t empty = rows - count;
    constexpr int64_t kChunk = 1 << 12;
#pragma omp parallel for num_threads(context_.TeamFor(rows)) schedule(dynamic, 1)
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      if (context_.stopped()) continue;
      const int64_t end = std::min(begin + kChunk, count);
      MinHashKeys(masks_, std::as_const(filled).span(), {begin, end}, 0, 2, 1, rows, keys.data());
      for (int64_t i = begin; i < end; ++i) {
        const int32_t row = filled[i];
        uint64_t hash = static_cast<uint64_t>(loads_[row]);
        for (const int32_t column : Columns(row)) {
          hash = (std::rotl(hash, 23) ^ static_cast<uint32_t>(column)) * 0x9e3779b97f4a7c15U;
        }
        items_[empty + i] = (hash >> 32) << 32 | static_cast<uint32_t>(i);
      }
    }
    if (context_.stopped()) return Stopped();
    const auto items = items_.span().subspan(empty);
    Sort(items, ~uint32_t{0});
    for (uint64_t& item : items) {
      const uint32_t i = Low(item);
      const uint32_t key = (keys[i] & 0xffff0000U) | keys[rows + i] >> 16;
      item = static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(filled[i]);
    }
    Sort(items, ~uint32_t{0});
    for (int64_t row = 0, at = 0; row < rows; ++row) {
      if (Length(row) == 0) items_[at++] = static_cast<uint64_t>(row);
    }
    if (by_load_) SortByLoad(items_.span(), loads_);
    for (int64_t i = 0; i < rows; ++i) row_of_[i] = static_cast<int32_t>(Low(items_[i]));
    return absl::OkStatus();
  }

  absl::Status MakeClasses() {
    const int64_t rows = masks_.rows;
    for (int64_t i = 0; i < rows; ++i) {
      const bool same = i > 0 && loads_[row_of_[i]] == loads_[row_of_[i - 1]] &&
                        std::ranges::equal(Columns(row_of_[i]), Columns(row_of_[i - 1]));
      classes_ += static_cast<int32_t>(!same);
      class_of_[i] = classes_ - 1;
    }
    MemorySource& memory = *context_.memory;
    absl::Status status = begin_.Allocate(memory, classes_ + 1);
    if (status.ok()) status = load_.Allocate(memory, classes_);
    if (status.ok()) status = natural_.Allocate(memory, classes_);
    if (status.ok()) status = by_length_.Allocate(memory, classes_);
    if (!status.ok()) return status;
    for (int64_t i = rows - 1; i >= 0; --i) begin_[class_of_[i]] = static_cast<int32_t>(i);
    begin_[classes_] = static_cast<int32_t>(rows);
    for (int32_t c = 0; c < classes_; ++c) load_[c] = loads_[row_of_[begin_[c]]];
    return absl::OkStatus();
  }

  /// natural_ and by_length_.
  absl::Status SortByLength() {
    Scratch<int32_t> class_of_row;
    absl::Status status = class_of_row.Allocate(*context_.memory, masks_.rows);
    if (!status.ok()) return status;
    std::fill(class_of_row.data(), class_of_row.data() + masks_.rows, -1);
    for (int32_t c = 0; c < classes_; ++c) class_of_row[row_of_[begin_[c]]] = c;
    int64_t count = 0;
    for (int64_t row = 0; row < masks_.rows; ++row) {
      if (class_of_row[row] >= 0) items_[count++] = static_cast<uint32_t>(class_of_row[row]);
    }
    const auto items = items_.span().first(count);
    const auto loads = std::as_const(load_).span();
    if (by_load_) SortByLoad(items, loads);
    int64_t longest = 0;
    for (int64_t i = 0; i < count; ++i) {
      natural_[i] = static_cast<int32_t>(Low(items[i]));
      const int64_t length = Length(row_of_[begin_[natural_[i]]]);
      longest = std::max(longest, length);
      items[i] = static_cast<uint64_t>(length) << 32 | Low(items[i]);
    }
    Sort(items, static_cast<uint32_t>(longest));
    if (by_load_) SortByLoad(items, loads);
    for (int64_t i = 0; i < count; ++i) by_length_[i] = static_cast<int32_t>(Low(items[i]));
    return absl::OkStatus();
  }

  /// What is near by one order may not be by another: half of the lists have the one, half the
  /// other.
  static bool IsNatural(int32_t column) { return (Mix(static_cast<uint32_t>(column)) & 1) != 0; }

  /// Threads that make lists, at most: each reads all rows.
  static constexpr int64_t kMostParts = 8;

  absl::Status MakeLists() {
    MemorySource& memory = *context_.memory;
    absl::Status status = offsets_.Allocate(memory, classes_ + 1);
    if (!status.ok()) return status;
    offsets_[0] = 0;
    for (int32_t c = 0; c < classes_; ++c) {
      offsets_[c + 1] = offsets_[c] + Length(row_of_[begin_[c]]);
    }
    const int64_t size = offsets_[classes_];
    Scratch<int64_t> ends;  // of the lists, so far
    status = ends.Allocate(memory, masks_.cols + 1);
    if (status.ok()) status = columns_.Allocate(memory, size);
    if (status.ok()) status = places_.Allocate(memory, size);
    if (status.ok()) status = nodes_.Allocate(memory, size);
    if (!status.ok()) return status;
    std::fill(ends.data(), ends.data() + masks_.cols + 1, 0);
    for (int32_t c = 0; c < classes_; ++c) {
      std::ranges::copy(Columns(row_of_[begin_[c]]), columns_.data() + offsets_[c]);
    }
    for (const int32_t column : columns_.span()) ++ends[column + 1];
    for (int64_t column = 0; column < masks_.cols; ++column) ends[column + 1] += ends[column];
    // Each thread makes the lists of a part of the columns, of which every other writes none.
    const int64_t parts = std::min<int64_t>(context_.TeamFor(classes_), kMostParts);
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t low = masks_.cols * part / parts;
      const int64_t high = masks_.cols * (part + 1) / parts;
      const auto append = [&](int32_t c, bool natural) {
        for (int64_t p = offsets_[c]; p < offsets_[c + 1]; ++p) {
          const int32_t column = columns_[p];
          if (column < low || column >= high || IsNatural(column) != natural) continue;
          places_[p] = ends[column]++;
          nodes_[places_[p]] = {c, 1, 1};
        }
      };
      for (int32_t i = 0; i < classes_; ++i) {
        if (i % (1 << 14) == 0 && context_.stopped()) break;
        append(i, false);
        append(natural_[i], true);
      }
    }
    if (context_.stopped()) return Stopped();
    for (int64_t column = 0, begin = 0; column < masks_.cols; begin = ends[column++]) {
      if (ends[column] == begin) continue;
      nodes_[begin].before = 0;
      nodes_[ends[column] - 1].after = 0;
    }
    natural_.Free();
    return absl::OkStatus();
  }

  const CsrView& masks_;
  const std::span<const int32_t> loads_;  ///< of rows
  const bool by_load_;
  const BuildContext& context_;
  int32_t largest_ = 0;  ///< load
  int32_t classes_ = 0;
  Scratch<uint64_t> items_, scratch_;   ///< to be sorted by the upper half
  Scratch<int32_t> row_of_, class_of_;  ///< by number
  Scratch<int32_t> begin_, load_;       ///< by class
  Scratch<int32_t> natural_;            ///< classes in the order of their first rows
  Scratch<int32_t> by_length_;
  Scratch<int64_t> offsets_;  ///< by class, of columns_ and places_
  Scratch<int32_t> columns_;
  Scratch<int64_t> places_;  ///< of the class in each column's list: in nodes_
  Scratch<Node> nodes_;      ///< column by column
};

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
