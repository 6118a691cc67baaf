#include "kernels/reorder/pair_set.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/reorder/radix_sort.h"

namespace sparsed {
namespace {

uint64_t Hash(uint64_t pair) {
  pair = (pair ^ (pair >> 31)) * 0x9e3779b97f4a7c15U;
  return (pair ^ (pair >> 29)) * 0xbf58476d1ce4e5b9U;
}

}  // namespace

absl::Status PairSet::Allocate(MemorySource& memory, int64_t capacity) {
  const int64_t slots = capacity + capacity / 4 + 16;
  absl::Status status = pairs_.Allocate(memory, slots);
  if (status.ok()) status = similarities_.Allocate(memory, slots);
  if (!status.ok()) return status;
  std::fill(pairs_.data(), pairs_.data() + slots, 0);
  count_ = 0;
  return absl::OkStatus();
}

int64_t PairSet::Slot(uint64_t pair) const {
  // By the other half of the hash than KeepBest picks by: else what it picks would lie in one part
  // of the table, which the next pairs fill up, and a probe would walk through all of it.
  const uint64_t hash = std::rotl(Hash(pair), 32);
  return static_cast<int64_t>(
      static_cast<unsigned __int128>(hash) * static_cast<uint64_t>(pairs_.size()) >> 64);
}

bool PairSet::Contains(uint64_t pair) const {
  for (int64_t slot = Slot(pair);; slot = slot + 1 < pairs_.size() ? slot + 1 : 0) {
    auto& at = const_cast<uint64_t&>(pairs_[slot]);
    const uint64_t held = std::atomic_ref<uint64_t>(at).load(std::memory_order_relaxed);
    if (held == pair) return true;
    if (held == 0) return false;
  }
}

void PairSet::Insert(uint64_t pair, float similarity) {
  for (int64_t slot = Slot(pair);; slot = slot + 1 < pairs_.size() ? slot + 1 : 0) {
    uint64_t held = 0;
    if (std::atomic_ref<uint64_t>(pairs_[slot])
            .compare_exchange_strong(held, pair, std::memory_order_relaxed)) {
      similarities_[slot] = similarity;
      count_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (held == pair) return;
  }
}

absl::StatusOr<float> PairSet::KeepBest(MemorySource& memory, int64_t limit) {
  constexpr int kSteps = 4096;
  auto step = [](float similarity) { return static_cast<int>(similarity * kSteps); };
  std::array<int64_t, kSteps + 1> histogram{};
  for (int64_t slot = 0; slot < pairs_.size(); ++slot) {
    if (pairs_[slot] != 0) ++histogram[step(similarities_[slot])];
  }
  int64_t room = limit;
  int last = kSteps;
  while (last > 0 && histogram[last] <= room) room -= histogram[last--];
  // Of the last step, the pairs whose hashes are least: so many as fill the room, counted, since
  // pairs that were picked before have small ones. Twelve bits of the bound at a time.
  constexpr int kDigit = 12;
  auto hash = [&](int64_t slot) { return Hash(pairs_[slot]) >> (64 - 3 * kDigit); };
  uint64_t bound = 0;
  for (int shift = 2 * kDigit; shift >= 0; shift -= kDigit) {
    std::array<int64_t, 1 << kDigit> digits{};
    for (int64_t slot = 0; slot < pairs_.size(); ++slot) {
      if (pairs_[slot] == 0 || step(similarities_[slot]) != last) continue;
      const uint64_t h = hash(slot) >> shift;
      if (h >> kDigit == bound >> (shift + kDigit)) ++digits[h % digits.size()];
    }
    uint64_t digit = 0;
    while (digit + 1 < digits.size() && digits[digit] <= room) room -= digits[digit++];
    bound |= digit << shift;
  }
  auto kept = [&](int64_t slot) {
    if (pairs_[slot] == 0) return false;
    const int s = step(similarities_[slot]);
    return s > last || (s == last && hash(slot) < bound);
  };

  int64_t count = 0;
  for (int64_t slot = 0; slot < pairs_.size(); ++slot) count += kept(slot);
  Scratch<uint64_t> pairs;
  Scratch<float> similarities;
  absl::Status status = pairs.Allocate(memory, count);
  if (status.ok()) status = similarities.Allocate(memory, count);
  if (!status.ok()) return status;
  int64_t p = 0;
  for (int64_t slot = 0; slot < pairs_.size(); ++slot) {
    if (!kept(slot)) continue;
    pairs[p] = pairs_[slot];
    similarities[p++] = similarities_[slot];
  }
  std::fill(pairs_.data(), pairs_.data() + pairs_.size(), 0);
  count_ = 0;
  for (p = 0; p < count; ++p) Insert(pairs[p], similarities[p]);
  return static_cast<float>(last) / kSteps;
}

absl::StatusOr<CandidatePairs> PairSet::Take(MemorySource& memory, int64_t rows, int threads) {
  CandidatePairs result;
  result.count = count();
  absl::Status status = result.pairs.Allocate(memory, result.count);
  if (!status.ok()) return status;
  int64_t count = 0;
  for (int64_t slot = 0; slot < pairs_.size(); ++slot) {
    if (pairs_[slot] != 0) result.pairs[count++] = pairs_[slot];
  }
  {
    Scratch<uint64_t> scratch;
    if (status = scratch.Allocate(memory, count); !status.ok()) return status;
    const int bits = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(rows - 1, 0)));
    RadixSort(result.pairs.span(), scratch.span(), 0, bits, threads);
    RadixSort(result.pairs.span(), scratch.span(), 32, 32 + bits, threads);
  }
  if (status = result.similarities.Allocate(memory, count); !status.ok()) return status;
  for (int64_t p = 0; p < count; ++p) {
    int64_t slot = Slot(result.pairs[p]);
    while (pairs_[slot] != result.pairs[p]) slot = slot + 1 < pairs_.size() ? slot + 1 : 0;
    result.similarities[p] = similarities_[slot];
  }
  pairs_.Free();
  similarities_.Free();
  count_ = 0;
  return result;
}

}  // namespace sparsed
