#include "kernels/reorder/row_lists.h"

#include <bit>

#include "kernels/reorder/minhash.h"
#include "kernels/reorder/radix_sort.h"

namespace sparsed {
namespace {

/// Threads that make lists, at most: each reads all rows.
constexpr int64_t kMostParts = 8;
constexpr int32_t kAhead = 16;  ///< rows that memory is asked for before they are read

absl::Status Stopped() { return absl::CancelledError("the reordering was stopped"); }

/// The finaliser of SplitMix64.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// What is near by one order may not be by another: half of the lists have the one, half the
/// other.
bool IsNatural(int32_t column) { return (Mix(static_cast<uint32_t>(column)) & 1) != 0; }

}  // namespace

absl::Status RowLists::Build() {
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

absl::Status RowLists::FindFirst(int64_t count, std::span<int32_t> first) const {
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

void RowLists::Sort(std::span<uint64_t> items, uint32_t largest) {
  RadixSort(items, scratch_.span().first(items.size()), 32,
            32 + static_cast<int>(std::bit_width(largest)), context_.threads);
}

void RowLists::SortByLoad(std::span<uint64_t> items, std::span<const int32_t> loads) {
  for (uint64_t& item : items) {
    const uint32_t low = Low(item);
    item = static_cast<uint64_t>(largest_ - loads[low]) << 32 | low;
  }
  Sort(items, static_cast<uint32_t>(largest_));
}

absl::Status RowLists::SortByLikeness() {
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

absl::Status RowLists::MakeClasses() {
  const int64_t rows = masks_.rows;
  for (int64_t i = 0; i < rows; ++i) {
    if (i + 2 * kAhead < rows) {
      PrefetchRow(row_of_[i + 2 * kAhead]);
      PrefetchRowsColumns(row_of_[i + kAhead]);
    }
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

absl::Status RowLists::SortByLength() {
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

absl::Status RowLists::MakeLists() {
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
    if (c + 2 * kAhead < classes_) {
      PrefetchRow(row_of_[begin_[c + 2 * kAhead]]);
      PrefetchRowsColumns(row_of_[begin_[c + kAhead]]);
    }
    std::ranges::copy(Columns(row_of_[begin_[c]]), columns_.data() + offsets_[c]);
  }
  for (const int32_t column : columns_.span()) ++ends[column + 1];
  for (int64_t column = 0; column < masks_.cols; ++column) ends[column + 1] += ends[column];
  // Each thread makes the lists of a part of the columns, of which every other writes none.
  const int64_t parts = std::min<int64_t>(context_.TeamFor(classes_), kMostParts);
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    FillLists(masks_.cols * part / parts, masks_.cols * (part + 1) / parts, ends.span());
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

void RowLists::FillLists(int64_t low, int64_t high, std::span<int64_t> ends) {
  // A few hundred entries are gathered before they are placed, without a branch that depends on
  // them, so that the misses of all of them overlap.
  struct Entry {
    int64_t at;  ///< in places_
    int32_t column;
    int32_t c;
  };
  std::array<Entry, 256> few;
  size_t count = 0;
  const auto place = [&] {
    const auto entries = std::span(few).first(count);
    for (const Entry& entry : entries) __builtin_prefetch(&ends[entry.column], 1);
    for (const Entry& entry : entries) __builtin_prefetch(&nodes_[ends[entry.column]], 1);
    for (const Entry& entry : entries) {
      const int64_t to = ends[entry.column]++;
      places_.Set(entry.at, to);
      nodes_[to] = {entry.c, 1, 1};
    }
    count = 0;
  };
  const auto append = [&](int32_t c, bool natural) {
    for (int64_t p = offsets_[c]; p < offsets_[c + 1]; ++p) {
      const int32_t column = columns_[p];
      few[count] = {p, column, c};
      const bool mine = column >= low && column < high;
      count += static_cast<size_t>(mine & (IsNatural(column) == natural));
      if (count == few.size()) place();
    }
  };
  for (int32_t i = 0; i < classes_; ++i) {
    if (i % (1 << 14) == 0 && context_.stopped()) break;
    if (i + 2 * kAhead < classes_) {
      PrefetchOffset(natural_[i + 2 * kAhead]);
      PrefetchColumns(natural_[i + kAhead]);
    }
    append(i, false);
    append(natural_[i], true);
  }
  place();
}

}  // namespace sparsed
