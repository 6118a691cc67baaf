// Rows by the columns that they have, for finding those that are near to one: what the greedy
// searches of nearest_rows.h walk through.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"
#include "kernels/scratch.h"

namespace sparsed {

/// Rows of the same columns and load make a class: they are at no distance. Classes, and the rows
/// in them, are numbered so that classes that are alike are neighbours; each column has a list of
/// its classes, from which they leave. If loads come first, they do so in the numbers and lists.
class RowLists {
 public:
  RowLists(const CsrView& masks, std::span<const int32_t> loads, bool by_load,
           const BuildContext& context)
      : masks_(masks), loads_(loads), by_load_(by_load), context_(context) {}

  /// Errors: RESOURCE_EXHAUSTED, CANCELLED.
  absl::Status Build();

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
  absl::Status FindFirst(int64_t count, std::span<int32_t> first) const;

  // Nearly all of the time is spent waiting for memory: these ask for what is read in the next
  // steps.
  void PrefetchOffset(int32_t c) const { __builtin_prefetch(&offsets_[c]); }
  void PrefetchColumns(int32_t c) const {
    __builtin_prefetch(&columns_[offsets_[c]]);
    places_.Prefetch(offsets_[c]);
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

  /// Places in nodes_, in 32 bits where these are enough: most of the time goes into memory that is
  /// touched for the first time, or that no cache holds.
  class Places {
   public:
    absl::Status Allocate(MemorySource& memory, int64_t size) {
      narrow_ = size <= int64_t{std::numeric_limits<uint32_t>::max()};
      return narrow_ ? few_.Allocate(memory, size) : many_.Allocate(memory, size);
    }
    int64_t operator[](int64_t p) const { return narrow_ ? int64_t{few_[p]} : many_[p]; }
    void Set(int64_t p, int64_t place) {
      if (narrow_) {
        few_[p] = static_cast<uint32_t>(place);
      } else {
        many_[p] = place;
      }
    }
    void Prefetch(int64_t p) const {
      __builtin_prefetch(narrow_ ? static_cast<const void*>(&few_[p]) : &many_[p]);
    }

   private:
    bool narrow_ = true;
    Scratch<uint32_t> few_;
    Scratch<int64_t> many_;
  };

  /// Classes looked at in each column's list, on either side, at least: more for few columns, so
  /// that in all lists they are about kVisits on either side.
  static constexpr int64_t kWindow = 2;
  static constexpr int64_t kVisits = 32;
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

  /// Rows in an order that memory does not have are asked for before, in two steps.
  void PrefetchRow(int64_t row) const {
    __builtin_prefetch(&masks_.row_offsets[row]);
    __builtin_prefetch(&loads_[row]);
  }
  void PrefetchRowsColumns(int64_t row) const {
    __builtin_prefetch(masks_.column_indices.data() + masks_.row_offsets[row]);
  }

  /// By the upper halves, up to `largest`; stable.
  void Sort(std::span<uint64_t> items, uint32_t largest);
  /// By load, descending, of the rows or classes in the lower halves.
  void SortByLoad(std::span<uint64_t> items, std::span<const int32_t> loads);
  static uint32_t Low(uint64_t item) { return static_cast<uint32_t>(item & 0xffffffffU); }

  /// row_of_: by MinHash keys; rows without columns, which have none, first; of equal keys by a
  /// hash of all columns and the load.
  absl::Status SortByLikeness();
  absl::Status MakeClasses();
  /// natural_ and by_length_.
  absl::Status SortByLength();

  absl::Status MakeLists();
  /// Puts the classes into the lists of the columns in [low, high); ends[column]: where the next
  /// one goes.
  void FillLists(int64_t low, int64_t high, std::span<int64_t> ends);

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
  Places places_;        ///< of the class in each column's list: in nodes_
  Scratch<Node> nodes_;  ///< column by column
};

}  // namespace sparsed
