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

  void Prefetch(int32_t c) const { __builtin_prefetch(&columns_[offsets_[c]]); }
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

  /// Calls `meet` with the classes next to `c`, which is still there, in each of its columns'
  /// lists: as often as one is there, many at a time. Returns whether every class of at least
  /// `least_load` in these columns was met.
  template <typename Meet>
  bool VisitNear(int32_t c, int32_t least_load, Meet meet) const {
    for (int64_t p = offsets_[c]; p < offsets_[c + 1]; ++p) {
      __builtin_prefetch(&nodes_[lists_[columns_[p]] + places_[p]]);
    }
    const int64_t window = std::max(kWindow, kVisits / std::max<int64_t>(Size(c), 1));
    std::array<int32_t, 8 * kVisits> few;
    int32_t* end = few.data();
    bool all = true;
    for (int64_t p = offsets_[c]; p < offsets_[c + 1]; ++p) {
      const Node* const list = nodes_.data() + lists_[columns_[p]];
      const Node& node = list[places_[p]];
      all &= Walk(list, node.before, &Node::before, window, least_load, end);
      all &= Walk(list, node.after, &Node::after, window, least_load, end);
      if (end + 2 * window > few.data() + few.size()) {
        meet(std::span<const int32_t>(few.data(), end));
        end = few.data();
      }
    }
    meet(std::span<const int32_t>(few.data(), end));
    return all;
  }

  void Remove(int32_t c) {
    for (int64_t p = offsets_[c]; p < offsets_[c + 1]; ++p) {
      Node* const list = nodes_.data() + lists_[columns_[p]];
      const Node& node = list[places_[p]];
      if (node.before >= 0) list[node.before].after = node.after;
      if (node.after >= 0) list[node.after].before = node.before;
    }
  }

 private:
  /// A class in a column's list; the others by their places in it, -1 at its ends.
  struct Node {
    int32_t c;
    int32_t before;
    int32_t after;
  };

  /// Appends up to `window` classes to `end`. Returns whether there are no more.
  bool Walk(const Node* list, int32_t at, int32_t Node::*next, int64_t window, int32_t least_load,
            int32_t*& end) const {
    for (; at >= 0; at = list[at].*next, --window) {
      const int32_t c = list[at].c;
      if (by_load_ && load_[c] < least_load) return true;
      if (window == 0) return false;
      *end++ = c;
    }
    return true;
  }

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

  absl::Status MakeLists() {
    MemorySource& memory = *context_.memory;
    absl::Status status = offsets_.Allocate(memory, classes_ + 1);
    if (!status.ok()) return status;
    offsets_[0] = 0;
    for (int32_t c = 0; c < classes_; ++c) {
      offsets_[c + 1] = offsets_[c] + Length(row_of_[begin_[c]]);
    }
    const int64_t size = offsets_[classes_];
    Scratch<int32_t> lengths;  // of lists, so far
    status = lengths.Allocate(memory, masks_.cols);
    if (status.ok()) status = columns_.Allocate(memory, size);
    if (status.ok()) status = places_.Allocate(memory, size);
    if (status.ok()) status = lists_.Allocate(memory, masks_.cols + 1);
    if (status.ok()) status = nodes_.Allocate(memory, size);
    if (!status.ok()) return status;
    std::fill(lengths.data(), lengths.data() + masks_.cols, 0);
    std::fill(lists_.data(), lists_.data() + masks_.cols + 1, 0);
    for (int32_t c = 0; c < classes_; ++c) {
      std::ranges::copy(Columns(row_of_[begin_[c]]), columns_.data() + offsets_[c]);
    }
    for (const int32_t column : columns_.span()) ++lists_[column + 1];
    for (int64_t column = 0; column < masks_.cols; ++column) lists_[column + 1] += lists_[column];
    const auto append = [&](int32_t c, bool natural) {
      for (int64_t p = offsets_[c]; p < offsets_[c + 1]; ++p) {
        const int32_t column = columns_[p];
        if (IsNatural(column) != natural) continue;
        const int32_t place = lengths[column]++;
        places_[p] = place;
        nodes_[lists_[column] + place] = {c, place - 1, place + 1};
      }
    };
    for (int32_t i = 0; i < classes_; ++i) {
      if (i % (1 << 14) == 0 && context_.stopped()) return Stopped();
      append(i, false);
      append(natural_[i], true);
    }
    for (int64_t column = 0; column < masks_.cols; ++column) {
      if (lists_[column + 1] > lists_[column]) nodes_[lists_[column + 1] - 1].after = -1;
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
  Scratch<int64_t> offsets_;  ///< by class, of columns_
  Scratch<int32_t> columns_;
  Scratch<int32_t> places_;  ///< where the class is in the column's list
  Scratch<int64_t> lists_;   ///< by column, of nodes_
  Scratch<Node> nodes_;
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
      state_[c] = {0, static_cast<int32_t>(lists_.Size(c))};
      next_[c] = lists_.Begin(c);
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
      const int32_t from = sequence_[i - options_.stride];
      const int32_t c = lists_.ClassOf(from);
      sequence_[i] = Take(IsLeft(c) ? c : Nearest(i));
      if (from + 1 == lists_.Begin(c + 1)) lists_.Remove(c);  // nothing follows it any more
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int32_t kGone = -1;
  struct State {
    int32_t met;   ///< columns of the row at hand in which it was met; kGone: no rows left
    int32_t size;  ///< columns
  };

  bool IsLeft(int32_t c) const { return state_[c].met != kGone; }
  int32_t Take(int32_t c) {
    const int32_t number = next_[c]++;
    if (next_[c] == lists_.Begin(c + 1)) state_[c].met = kGone;
    return number;
  }

  /// Of the classes that are left, for place i of the sequence.
  int32_t Nearest(int64_t i) {
    const auto by_length = lists_.ByLength();
    while (!IsLeft(by_length[shortest_])) ++shortest_;
    const int32_t load = lists_.Load(by_length[shortest_]);
    const int32_t from = lists_.ClassOf(sequence_[i - options_.stride]);
    int64_t near = 0;
    const bool exact = lists_.VisitNear(from, load, [&](std::span<const int32_t> few) {
      for (const int32_t c : few) __builtin_prefetch(&state_[c]);
      for (const int32_t c : few) {
        int32_t& met = state_[c].met;
        if (met != kGone && met++ == 0) near_[near++] = c;
      }
    });
    Best best;
    const auto offer = [&](int32_t c, const State& state) {
      const int64_t distance = lists_.Size(from) + state.size - 2 * int64_t{state.met};
      if (!best.MayTake(distance)) return;
      best.Offer({distance, TieByLoad(c, i), lists_.RowOf(next_[c]), c});
    };
    const int64_t classes = lists_.classes();
    for (int64_t n = shortest_; n < std::min(shortest_ + kShortest, classes); ++n) {
      const int32_t c = by_length[n];
      if (options_.by_load && lists_.Load(c) != load) break;
      if (state_[c].met == 0) offer(c, state_[c]);
    }
    for (int64_t n = 0; n < near; ++n) {
      State& state = state_[near_[n]];
      offer(near_[n], state);
      state.met = 0;
    }
    return Refine(best.all(), from, exact, i);
  }

  int64_t TieByLoad(int32_t c, int64_t i) const {
    if (options_.tie != NearestTie::kLoad) return 0;
    return std::abs(int64_t{lists_.Load(c)} - lists_.Load(lists_.ClassOf(sequence_[i - 1])));
  }

  /// The best of a few by what was not computed yet.
  int32_t Refine(std::span<Candidate> few, int32_t from, bool exact, int64_t i) const {
    if (few.size() > 1 && !exact) {
      for (const Candidate& each : few) lists_.Prefetch(each.c);
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
