// MinHash keys on the GPU, and rows sorted by them: the "LSH on GPUs" that Jiang, Hong, Agrawal,
// PPoPP'20, section 5.4, leave to the future.
//
// Idea: kernels/reorder/minhash.cc says what a key is. A lane for each hash function and a group of
// lanes for each row, all of which read the same columns.
#include <algorithm>
#include <memory>
#include <mutex>
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

}  // namespace

struct MinHashBuckets::State {
  State(Workbench& bench, PatternCopy copy) : workbench(bench), pattern(std::move(copy)) {}

  cudaStream_t stream() const { return static_cast<cudaStream_t>(workbench.stream.handle()); }
  absl::Status Sort(int band, uint64_t* to);

  Workbench& workbench;
  const PatternCopy pattern;
  int bsize = 0, bands = 0, group = 0;
  int hashed_from = -1;  ///< the first of the bands whose keys are there
  int64_t count = 0;
  Parts parts;
  Parts::Part<int32_t> rows;
  Parts::Part<uint32_t> keys, band_rows, other_keys, other_rows;
  Parts::Part<uint64_t> items;
  Parts::Part<std::byte> workspace;
  size_t workspace_bytes = 0;
  std::mutex mutex;
};

absl::StatusOr<std::unique_ptr<MinHashBuckets>> MinHashBuckets::Make(Workbench& workbench,
                                                                     const CsrView& csr,
                                                                     std::span<const int32_t> rows,
                                                                     int bsize, int bands) {
  CsrView unordered = csr;
  unordered.row_order = {};
  absl::StatusOr<PatternCopy> pattern = PatternCopy::Make(workbench, unordered);
  if (!pattern.ok()) return pattern.status();
  auto state = std::make_unique<State>(workbench, *std::move(pattern));
  State& s = *state;
  s.bsize = bsize;
  s.bands = bands;
  s.group = std::min(std::max(kMinHashLanes / bsize, 1), bands);
  s.count = static_cast<int64_t>(rows.size());
  SortedPairs sorted{};
  const cudaError_t error =
      SortPairs(s.stream(), nullptr, nullptr, nullptr, nullptr, static_cast<uint32_t>(s.count), 32,
                nullptr, &s.workspace_bytes, &sorted);
  if (error != cudaSuccess) return Settled(s.stream(), ToStatus(error, "sorting"));
  s.rows = s.parts.Ask<int32_t>(s.count);
  s.keys = s.parts.Ask<uint32_t>(s.group * s.count);
  s.band_rows = s.parts.Ask<uint32_t>(s.count);
  s.other_keys = s.parts.Ask<uint32_t>(s.count);
  s.other_rows = s.parts.Ask<uint32_t>(s.count);
  s.items = s.parts.Ask<uint64_t>(s.count);
  s.workspace = s.parts.Ask<std::byte>(static_cast<int64_t>(s.workspace_bytes) + 1);
  absl::Status status = s.parts.Allocate(workbench.memory);
  if (status.ok()) {
    status.Update(workbench.stream.Copy(s.parts[s.rows], rows.data(), rows.size_bytes()));
  }
  if (status.ok()) status.Update(workbench.stream.Synchronize());
  if (!status.ok()) return Settled(s.stream(), status);
  return std::unique_ptr<MinHashBuckets>(new MinHashBuckets(std::move(state)));
}

MinHashBuckets::MinHashBuckets(std::unique_ptr<State> state) : state_(std::move(state)) {}
MinHashBuckets::~MinHashBuckets() = default;

absl::Status MinHashBuckets::Sort(int band, std::span<uint64_t> items) {
  std::lock_guard lock(state_->mutex);
  return Settled(state_->stream(), state_->Sort(band, items.data()));
}

absl::Status MinHashBuckets::State::Sort(int band, uint64_t* to) {
  if (count == 0) return absl::OkStatus();
  const CsrView& csr = pattern.view();
  if (const int from = band / group * group; from != hashed_from) {
    HashRows<<<Blocks(count * kMinHashLanes), kThreads, 0, stream()>>>(
        {csr.row_offsets.data(), csr.column_indices.data(), parts[rows], count, from,
         std::min(group, bands - from), bsize, parts[keys]});
    if (absl::Status s = ToStatus(cudaGetLastError(), "hashing rows"); !s.ok()) return s;
    hashed_from = from;
  }
  absl::Status status = workbench.stream.Copy(parts[band_rows], parts[rows],
                                              static_cast<size_t>(count) * sizeof(int32_t));
  if (!status.ok()) return status;
  // The keys of a band are used up.
  SortedPairs sorted{};
  const cudaError_t error =
      SortPairs(stream(), parts[keys] + (band - hashed_from) * count, parts[band_rows],
                parts[other_keys], parts[other_rows], static_cast<uint32_t>(count), 32,
                parts[workspace], &workspace_bytes, &sorted);
  if (error != cudaSuccess) return ToStatus(error, "sorting");
  Pack<<<Blocks(count), kThreads, 0, stream()>>>(sorted, count, parts[items]);
  status.Update(ToStatus(cudaGetLastError(), "sorting"));
  if (status.ok()) {
    status.Update(
        workbench.stream.Copy(to, parts[items], static_cast<size_t>(count) * sizeof(uint64_t)));
  }
  if (status.ok()) status.Update(workbench.stream.Synchronize());
  return status;
}

}  // namespace sparsed::cuda
