// Bands are taken a few at a time: their keys are computed for all rows in one pass over the
// nonzeros, then each thread sorts the rows by the key of one band, and neighbours within a bucket
// become a pair if their exact similarity is high enough. So memory holds a few keys a row, never a
// signature, and a bounded number of pairs; and threads meet only once a few bands.
//
// Rows that equal another row are paired with it once and then leave, and rows of one nonzero are
// similar to nothing else: neither wastes bands.

#include "kernels/reorder/lsh_pairs.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "hwy/contrib/sort/vqsort.h"
#include "kernels/build_accelerator.h"
#include "kernels/features/similarity.h"
#include "kernels/reorder/minhash.h"

namespace sparsed {
namespace {

constexpr int64_t kLeastPairs = 1 << 16;  ///< kept, however few the rows
constexpr int kBatch = 4;                 ///< bands between looks at the number of pairs
constexpr int64_t kChunk = 1 << 12;       ///< rows between looks at the stop flag

absl::Status Stopped() { return absl::CancelledError("the build was stopped"); }

int64_t Length(const CsrView& csr, int64_t row) {
  return csr.row_offsets[row + 1] - csr.row_offsets[row];
}

/// The pairs found so far.
class Pairs {
 public:
  Pairs(const CsrView& csr, const LshOptions& options, const BuildContext& context)
      : csr_(csr),
        options_(options),
        context_(context),
        limit_(std::clamp(options.pairs_per_row * csr.rows, kLeastPairs,
                          int64_t{std::numeric_limits<uint32_t>::max()})),
        floor_(options.min_similarity) {}

  absl::Status Allocate() {
    // All pairs there are, or what one batch can add to a full set.
    const double all = 0.5 * static_cast<double>(csr_.rows) * static_cast<double>(csr_.rows);
    const double most = static_cast<double>(limit_) + kBatch * static_cast<double>(csr_.rows) *
                                                          static_cast<double>(options_.neighbours);
    return set_.Allocate(*context_.memory, static_cast<int64_t>(std::min(all, most)));
  }

  /// Adds those of a few pairs that are similar enough. Thread-safe. All of memory that the pairs
  /// need is asked for before any of it is used: each pair alone would wait for half a dozen
  /// misses.
  void Offer(std::span<uint64_t> pairs) {
    for (uint64_t pair : pairs) {
      __builtin_prefetch(&csr_.row_offsets[RowPair::First(pair)]);
      __builtin_prefetch(&csr_.row_offsets[RowPair::Second(pair)]);
      set_.Prefetch(pair);
    }
    size_t kept = 0;
    for (uint64_t pair : pairs) {
      const int32_t a = RowPair::First(pair);
      const int32_t b = RowPair::Second(pair);
      const auto a_length = static_cast<float>(Length(csr_, a));
      const auto b_length = static_cast<float>(Length(csr_, b));
      if (std::min(a_length, b_length) < floor_ * std::max(a_length, b_length)) continue;
      if (set_.Contains(pair)) continue;
      __builtin_prefetch(&csr_.column_indices[csr_.row_offsets[a]]);
      __builtin_prefetch(&csr_.column_indices[csr_.row_offsets[b]]);
      pairs[kept++] = pair;
    }
    for (uint64_t pair : pairs.first(kept)) {
      const float similarity = JaccardSimilarity(csr_, RowPair::First(pair), RowPair::Second(pair));
      if (similarity >= floor_) set_.Insert(pair, similarity);
    }
  }
  void AddEqual(int32_t a, int32_t b) { set_.Insert(RowPair::Make(a, b), 1.0F); }

  /// Between batches: bounds the number of pairs.
  absl::Status Trim() {
    if (set_.count() <= limit_) return absl::OkStatus();
    const auto floor = set_.KeepBest(*context_.memory, limit_ - limit_ / 4);
    if (!floor.ok()) return floor.status();
    floor_ = std::max(floor_, *floor);
    return absl::OkStatus();
  }

  absl::StatusOr<CandidatePairs> Take() {
    return set_.Take(*context_.memory, csr_.rows, context_.threads);
  }

 private:
  const CsrView& csr_;
  const LshOptions& options_;
  const BuildContext& context_;
  const int64_t limit_;
  float floor_;
  PairSet set_;
};

/// Rows grouped by a key each.
class Buckets {
 public:
  absl::Status Allocate(MemorySource& memory, int64_t rows) {
    return items_.Allocate(memory, rows);
  }

  /// rows[i] goes into the bucket of key(i). Within a bucket, rows ascend.
  template <typename Key>
  void Sort(std::span<const int32_t> rows, Key key) {
    for (size_t i = 0; i < rows.size(); ++i) {
      items_[i] = static_cast<uint64_t>(key(i)) << 32 | static_cast<uint32_t>(rows[i]);
    }
    hwy::Sorter()(items_.data(), rows.size(), hwy::SortAscending());
  }

  /// The same for a band of these rows, by a device.
  absl::Status SortOnDevice(MinHashBuckets& device, int band, int64_t count) {
    return device.Sort(band, items_.span().first(count));
  }

  int32_t Row(int64_t t) const { return static_cast<int32_t>(items_[t] & 0xffffffffU); }
  /// Positions of one bucket are consecutive.
  bool SameBucket(int64_t t, int64_t u) const { return items_[t] >> 32 == items_[u] >> 32; }

 private:
  Scratch<uint64_t> items_;  ///< key << 32 | row
};

/// Offers each of the first `count` rows with up to `neighbours` before it in its bucket.
void OfferNeighbours(const Buckets& buckets, int64_t count, int64_t neighbours, Pairs& pairs,
                     const BuildContext& context) {
  std::array<uint64_t, 32> few;
  size_t filled = 0;
  for (int64_t t = 1; t < count; ++t) {
    if (t % kChunk == 0 && context.stopped()) return;
    for (int64_t u = t - 1; u >= std::max<int64_t>(t - neighbours, 0); --u) {
      if (!buckets.SameBucket(u, t)) break;
      few[filled++] = RowPair::Make(buckets.Row(u), buckets.Row(t));
      if (filled == few.size()) {
        pairs.Offer(few);
        filled = 0;
      }
    }
  }
  pairs.Offer(std::span(few).first(filled));
}

/// Pairs equal rows and leaves in `rows` those that take part in the bands: the first of each run
/// of equal rows, if it has two nonzeros. Returns how many they are.
absl::StatusOr<int64_t> PairEqualRows(const CsrView& csr, Buckets& buckets, Scratch<int32_t>& rows,
                                      Pairs& pairs, const BuildContext& context) {
  const auto columns = csr.column_indices;
  int64_t count = 0;
  for (int64_t row = 0; row < csr.rows; ++row) {
    if (Length(csr, row) > 0) rows[count++] = static_cast<int32_t>(row);
  }
  auto hash = [&](int64_t i) {
    uint64_t h = 0;
    for (int64_t p = csr.row_offsets[rows[i]]; p < csr.row_offsets[rows[i] + 1]; ++p) {
      h = (std::rotl(h, 23) ^ static_cast<uint32_t>(columns[p])) * 0x9e3779b97f4a7c15U;
    }
    return static_cast<uint32_t>(h >> 32);
  };
  buckets.Sort(rows.span().first(count), hash);
  int64_t kept = 0;
  for (int64_t t = 0; t < count; ++t) {
    if (t % kChunk == 0 && context.stopped()) return Stopped();
    const int32_t row = buckets.Row(t);
    if (t > 0 && buckets.SameBucket(t - 1, t)) {
      const int32_t before = buckets.Row(t - 1);
      if (std::equal(columns.begin() + csr.row_offsets[row],
                     columns.begin() + csr.row_offsets[row + 1],
                     columns.begin() + csr.row_offsets[before],
                     columns.begin() + csr.row_offsets[before + 1])) {
        pairs.AddEqual(before, row);
        continue;
      }
    }
    if (Length(csr, row) > 1) rows[kept++] = row;
  }
  std::sort(rows.data(), rows.data() + kept);
  return kept;
}

/// Those of each thread that sorts a band.
absl::Status AllocateBuckets(const CsrView& csr, const BuildContext& context,
                             std::vector<Buckets>& buckets) {
  buckets.resize(std::min(kBatch, context.TeamFor(csr.rows)));
  for (Buckets& each : buckets) {
    if (absl::Status status = each.Allocate(*context.memory, csr.rows); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CandidatePairs> FindCandidatePairs(const CsrView& csr, const LshOptions& options,
                                                  const BuildContext& context) {
  Pairs pairs(csr, options, context);
  std::vector<Buckets> buckets;
  Scratch<int32_t> rows;
  absl::Status status = pairs.Allocate();
  if (status.ok()) status = AllocateBuckets(csr, context, buckets);
  if (status.ok()) status = rows.Allocate(*context.memory, csr.rows);
  if (!status.ok()) return status;
  const auto kept = PairEqualRows(csr, buckets[0], rows, pairs, context);
  if (!kept.ok()) return kept.status();
  const int64_t count = *kept;
  const std::span<const int32_t> active = rows.span().first(count);

  const int bands = options.siglen / options.bsize;
  const int group = std::max(kMinHashLanes / options.bsize, 1);
  const int sorters = static_cast<int>(buckets.size());
  Scratch<uint32_t> keys;
  if (status = keys.Allocate(*context.memory, std::min(group, bands) * count); !status.ok()) {
    return status;
  }
  std::unique_ptr<MinHashBuckets> device;  // null: there is none, or no room on it
  if (context.accelerator != nullptr) {
    auto made = context.accelerator->MakeMinHashBuckets(csr, active, options.bsize, bands);
    if (made.ok()) device = *std::move(made);
  }
  for (int first = 0; first < bands; first += group) {
    const int end = std::min(first + group, bands);
#pragma omp parallel for num_threads(context.TeamFor(count)) schedule(dynamic, 1)
    for (int64_t begin = 0; begin < (device ? 0 : count); begin += kChunk) {
      if (context.stopped()) continue;
      MinHashKeys(csr, active, {begin, std::min(begin + kChunk, count)}, first, end - first,
                  options.bsize, count, keys.data());
    }
    for (int batch = first; batch < end; batch += kBatch) {
      if (context.stopped()) return Stopped();
      if (context.progress) context.progress("lsh_pairs", batch, bands);
      std::atomic<size_t> owner = 0;
#pragma omp parallel num_threads(sorters)
      {
        Buckets& own = buckets[owner.fetch_add(1)];
#pragma omp for schedule(dynamic, 1)
        for (int band = batch; band < std::min(batch + kBatch, end); ++band) {
          uint32_t* const key = keys.data() + (band - first) * count;
          if (!device || !own.SortOnDevice(*device, band, count).ok()) {
            // A device that fails leaves its band to this thread.
            if (device) MinHashKeys(csr, active, {0, count}, band, 1, options.bsize, count, key);
            own.Sort(active, [key](int64_t i) { return key[i]; });
          }
          OfferNeighbours(own, count, options.neighbours, pairs, context);
        }
      }
      if (status = pairs.Trim(); !status.ok()) return status;
    }
  }
  if (context.stopped()) return Stopped();
  keys.Free();
  buckets.clear();
  return pairs.Take();
}

}  // namespace sparsed
