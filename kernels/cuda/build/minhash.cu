// MinHash keys on the GPU, and rows sorted by them: the "LSH on GPUs" that Jiang, Hong, Agrawal,
// PPoPP'20, section 5.4, leave to the future.
//
// Idea: kernels/reorder/minhash.cc says what a key is. A lane for each hash function and a group of
// lanes for each row, all of which read the same columns.
#include <algorithm>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "kernels/cuda/build/build.h"
#include "kernels/cuda/build/launch.cuh"
#include "kernels/cuda/build/parts.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/sort_pairs.h"
#include "kernels/reorder/minhash.h"

namespace sparsed::cuda {
namespace {

struct Hashed {
  const int64_t* offsets;
  const int32_t* columns;
  const int32_t* rows;
  int64_t count;  // of rows
  int first_band, bands, bsize;
  uint32_t* keys;
};

__global__ void __launch_bounds__(kThreads) HashRows(const Hashed p) {
  const int lane = static_cast<int>(threadIdx.x) % kMinHashLanes;
  const int64_t i = ThreadIndex() / kMinHashLanes;
  const auto function = static_cast<uint32_t>(p.first_band * p.bsize + lane);
  const MinHash hash(function);
  uint32_t minimum = ~uint32_t{0};
  if (i < p.count && lane < p.bands * p.bsize) {
    const int32_t row = p.rows[i];
    const int64_t end = p.offsets[row + 1];
#pragma unroll 4
    for (int64_t at = p.offsets[row]; at < end; ++at) {
      minimum = min(minimum, hash(MinHash::Mix(static_cast<uint32_t>(__ldg(p.columns + at)))));
    }
  }
  uint32_t key = 0;
  for (int h = 0; h < p.bsize; ++h) {
    const uint32_t next =
        __shfl_sync(0xffffffffu, minimum, (lane * p.bsize + h) % kMinHashLanes, kMinHashLanes);
    key = MinHash::AddToKey(key, next);
  }
  if (i < p.count && lane < p.bands) p.keys[lane * p.count + i] = key;
}

__global__ void Pack(const SortedPairs sorted, int64_t count, uint64_t* items) {
  const int64_t i = ThreadIndex();
  if (i < count) items[i] = static_cast<uint64_t>(sorted.keys[i]) << 32 | sorted.values[i];
}

class GpuMinHashBuckets final : public MinHashBuckets {
 public:
  GpuMinHashBuckets(Stream& stream, PatternCopy pattern, int64_t count, int bsize, int bands)
      : stream_(stream),
        pattern_(std::move(pattern)),
        count_(count),
        bsize_(bsize),
        bands_(bands),
        group_(std::min(std::max(kMinHashLanes / bsize, 1), bands)) {}

  /// Before the first band.
  absl::Status Allocate(MemorySource& memory, std::span<const int32_t> rows);
  absl::Status Sort(int band, std::span<uint64_t> items) override {
    std::lock_guard lock(mutex_);
    return Settled(stream_.handle(), SortBand(band, items.data()));
  }

 private:
  cudaStream_t cuda_stream() const { return static_cast<cudaStream_t>(stream_.handle()); }
  absl::Status SortBand(int band, uint64_t* to);

  Stream& stream_;
  const PatternCopy pattern_;
  const int64_t count_;  ///< of rows
  const int bsize_, bands_, group_;
  int hashed_from_ = -1;  ///< the first of the bands whose keys are on the device
  Parts parts_;
  Parts::Part<int32_t> rows_;
  Parts::Part<uint32_t> keys_, band_rows_, other_keys_, other_rows_;
  Parts::Part<uint64_t> items_;
  Parts::Part<std::byte> workspace_;
  size_t workspace_bytes_ = 0;
  std::mutex mutex_;  ///< of the stream, and of what is in `parts_`
};

absl::Status GpuMinHashBuckets::Allocate(MemorySource& memory, std::span<const int32_t> rows) {
  SortedPairs sorted{};
  const cudaError_t error =
      SortPairs(cuda_stream(), nullptr, nullptr, nullptr, nullptr, static_cast<uint32_t>(count_),
                32, nullptr, &workspace_bytes_, &sorted);
  if (error != cudaSuccess) return ToStatus(error, "sorting");
  rows_ = parts_.Ask<int32_t>(count_);
  keys_ = parts_.Ask<uint32_t>(group_ * count_);
  band_rows_ = parts_.Ask<uint32_t>(count_);
  other_keys_ = parts_.Ask<uint32_t>(count_);
  other_rows_ = parts_.Ask<uint32_t>(count_);
  items_ = parts_.Ask<uint64_t>(count_);
  workspace_ = parts_.Ask<std::byte>(static_cast<int64_t>(workspace_bytes_) + 1);
  absl::Status status = parts_.Allocate(memory);
  if (status.ok()) status.Update(stream_.Copy(parts_[rows_], rows.data(), rows.size_bytes()));
  if (status.ok()) status.Update(stream_.Synchronize());
  return status;
}

absl::Status GpuMinHashBuckets::SortBand(int band, uint64_t* to) {
  if (count_ == 0) return absl::OkStatus();
  const CsrView& csr = pattern_.view();
  if (const int from = band / group_ * group_; from != hashed_from_) {
    HashRows<<<Blocks(count_ * kMinHashLanes), kThreads, 0, cuda_stream()>>>(
        {csr.row_offsets.data(), csr.column_indices.data(), parts_[rows_], count_, from,
         std::min(group_, bands_ - from), bsize_, parts_[keys_]});
    if (absl::Status s = ToStatus(cudaGetLastError(), "hashing rows"); !s.ok()) return s;
    hashed_from_ = from;
  }
  absl::Status status = stream_.Copy(parts_[band_rows_], parts_[rows_],
                                     static_cast<size_t>(count_) * sizeof(int32_t));
  if (!status.ok()) return status;
  // The keys of a band are used up.
  SortedPairs sorted{};
  const cudaError_t error =
      SortPairs(cuda_stream(), parts_[keys_] + (band - hashed_from_) * count_, parts_[band_rows_],
                parts_[other_keys_], parts_[other_rows_], static_cast<uint32_t>(count_), 32,
                parts_[workspace_], &workspace_bytes_, &sorted);
  if (error != cudaSuccess) return ToStatus(error, "sorting");
  Pack<<<Blocks(count_), kThreads, 0, cuda_stream()>>>(sorted, count_, parts_[items_]);
  status.Update(ToStatus(cudaGetLastError(), "sorting"));
  if (status.ok()) {
    status.Update(stream_.Copy(to, parts_[items_], static_cast<size_t>(count_) * sizeof(uint64_t)));
  }
  if (status.ok()) status.Update(stream_.Synchronize());
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MinHashBuckets>> GpuBuildAccelerator::MakeMinHashBuckets(
    const CsrView& csr, std::span<const int32_t> rows, int bsize, int bands) {
  CsrView unordered = csr;
  unordered.row_order = {};
  absl::StatusOr<PatternCopy> pattern = PatternCopy::Make(stream_, memory_, unordered);
  if (!pattern.ok()) return pattern.status();
  auto buckets = std::make_unique<GpuMinHashBuckets>(
      stream_, *std::move(pattern), static_cast<int64_t>(rows.size()), bsize, bands);
  absl::Status status = Settled(stream_.handle(), buckets->Allocate(memory_, rows));
  if (!status.ok()) return status;
  ++calls_;
  return buckets;
}

}  // namespace sparsed::cuda
