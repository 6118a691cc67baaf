// The priority queue of Algorithm 3 is split in two: the candidate pairs that LSH found are sorted
// once and read in order, and only pairs between representing rows, added later, go through a heap.
// The next pair is the better of the two heads, so the order is that of one queue: most similar
// first, ties by smaller rows.
//
// "(i, j) not in candidate_pairs" (line 27) needs no set. When both i and j represent living
// clusters, (i, j) was never popped (it would have merged them), so a pair added again only waits
// in the queue twice, next to its twin; the first merges, the second finds both in one cluster and
// ends. The queue never holds more pairs than LSH found, as each pair popped adds one at most.

#include "kernels/reorder/lsh_cluster.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "kernels/features/similarity.h"
#include "kernels/reorder/radix_sort.h"

namespace sparsed {
namespace {

struct QueuedPair {
  float similarity;
  int32_t i;
  int32_t j;  ///< > i

  /// Popped later than `other`.
  bool operator<(const QueuedPair& other) const {
    if (similarity != other.similarity) return similarity < other.similarity;
    return i != other.i ? i > other.i : j > other.j;
  }
};

/// sim_queue.
class SimilarityQueue {
 public:
  SimilarityQueue(const CandidatePairs& pairs, MemorySource& memory)
      : pairs_(pairs), memory_(memory) {}

  /// Most similar first; equally similar ones stay ascending.
  absl::Status SortCandidates(int threads) {
    Scratch<uint64_t> scratch;
    absl::Status status = order_.Allocate(memory_, pairs_.count);
    if (status.ok()) status = scratch.Allocate(memory_, pairs_.count);
    if (!status.ok()) return status;
    for (int64_t p = 0; p < pairs_.count; ++p) {
      // The bits of floats that are not negative ascend as they do.
      const uint64_t falling = ~std::bit_cast<uint32_t>(pairs_.similarities[p]);
      order_[p] = falling << 32 | static_cast<uint64_t>(p);
    }
    RadixSort(order_.span(), scratch.span(), 32, 64, threads);
    return absl::OkStatus();
  }

  /// The candidate that will be popped a little later, if none of the added pairs comes before.
  QueuedPair Ahead() const { return Candidate(std::min(next_ + kAhead / 2, pairs_.count - 1)); }
  bool empty() const { return next_ == pairs_.count && added_ == 0; }
  int64_t popped() const { return next_; }  ///< of the candidates that LSH found

  QueuedPair Pop() {
    if (next_ < pairs_.count) {
      const QueuedPair candidate = Candidate(next_);
      if (next_ + kAhead < pairs_.count) {
        const int64_t ahead = order_[next_ + kAhead] & 0xffffffffU;
        __builtin_prefetch(pairs_.pairs.data() + ahead);
        __builtin_prefetch(pairs_.similarities.data() + ahead);
      }
      if (added_ == 0 || !(candidate < heap_[0])) {
        ++next_;
        return candidate;
      }
    }
    std::pop_heap(heap_.data(), heap_.data() + added_);
    return heap_[--added_];
  }

  absl::Status Insert(const QueuedPair& pair) {
    if (absl::Status status = heap_.Grow(memory_, added_, added_ + 1); !status.ok()) return status;
    heap_[added_++] = pair;
    std::push_heap(heap_.data(), heap_.data() + added_);
    return absl::OkStatus();
  }

 private:
  QueuedPair Candidate(int64_t position) const {
    const auto p = static_cast<int64_t>(order_[position] & 0xffffffffU);
    return {pairs_.similarities[p], RowPair::First(pairs_.pairs[p]),
            RowPair::Second(pairs_.pairs[p])};
  }

  /// Candidates that memory is asked for ahead of their use.
  static constexpr int64_t kAhead = 32;

  const CandidatePairs& pairs_;
  MemorySource& memory_;
  Scratch<uint64_t> order_;  ///< complemented bits of the similarity << 32 | position in pairs_
  int64_t next_ = 0;
  Scratch<QueuedPair> heap_;
  int64_t added_ = 0;
};

/// Union-find over rows; a cluster's root is its representing row.
class Clusters {
 public:
  absl::Status Allocate(MemorySource& memory, int64_t rows, int64_t max_cluster) {
    max_cluster_ = max_cluster;
    count_ = rows;
    for (Scratch<int32_t>* array : {&id_, &size_, &next_, &last_}) {
      if (absl::Status status = array->Allocate(memory, rows); !status.ok()) return status;
    }
    std::iota(id_.data(), id_.data() + rows, 0);
    std::iota(last_.data(), last_.data() + rows, 0);
    std::fill(size_.data(), size_.data() + rows, 1);
    std::fill(next_.data(), next_.data() + rows, -1);
    return absl::OkStatus();
  }

  int64_t count() const { return count_; }  ///< nclusters: those that may still grow
  int32_t Root(int32_t i) {
    while (i != id_[i]) {
      id_[i] = id_[id_[i]];
      i = id_[i];
    }
    return i;
  }
  void Prefetch(int32_t i) const {
    __builtin_prefetch(id_.data() + i);
    __builtin_prefetch(size_.data() + i);
  }
  bool IsRoot(int32_t i) const { return i == id_[i]; }
  bool Deleted(int32_t root) const { return size_[root] >= max_cluster_; }

  /// Roots i < j: the larger cluster's root stays, of equal ones i.
  void Merge(int32_t i, int32_t j) {
    if (size_[i] < size_[j]) std::swap(i, j);
    id_[j] = i;
    size_[i] += size_[j];
    next_[last_[i]] = j;
    last_[i] = last_[j];
    count_ -= Deleted(i) ? 2 : 1;
  }

  /// The rows cluster by cluster, clusters by ascending representing row.
  void Write(ClusterOrder order, std::span<int32_t> row_order) {
    int64_t position = 0;
    for (int32_t root = 0; root < static_cast<int32_t>(row_order.size()); ++root) {
      if (!IsRoot(root)) continue;
      const int64_t begin = position;
      for (int32_t row = root; row >= 0; row = next_[row]) row_order[position++] = row;
      if (order == ClusterOrder::kAscending) {
        std::sort(row_order.begin() + begin, row_order.begin() + position);
      }
    }
  }

 private:
  int64_t max_cluster_ = 0;
  int64_t count_ = 0;
  Scratch<int32_t> id_;    ///< cluster_id: the parent
  Scratch<int32_t> size_;  ///< cluster_sz, of roots
  Scratch<int32_t> next_;  ///< the row merged after this one, or -1
  Scratch<int32_t> last_;  ///< the last row of a root's cluster
};

}  // namespace

absl::StatusOr<RowOrder> ClusterRows(const CsrView& csr, CandidatePairs pairs,
                                     const ClusterOptions& options, const BuildContext& context) {
  constexpr int64_t kBetweenLooks = 1 << 12;
  Clusters clusters;
  absl::Status status = clusters.Allocate(*context.memory, csr.rows, options.max_cluster);
  SimilarityQueue queue(pairs, *context.memory);
  if (status.ok()) status = queue.SortCandidates(context.threads);
  if (!status.ok()) return status;

  RowOrder result;
  result.candidate_pairs = pairs.count;
  for (int64_t step = 0; !queue.empty() && clusters.count() > 0; ++step) {
    if (step % kBetweenLooks == 0) {
      if (context.stopped()) return absl::CancelledError("the build was stopped");
      if (context.progress) context.progress("lsh_cluster", queue.popped(), pairs.count);
    }
    const QueuedPair later = queue.Ahead();
    clusters.Prefetch(later.i);
    clusters.Prefetch(later.j);
    const QueuedPair pair = queue.Pop();
    if (clusters.IsRoot(pair.i) && clusters.IsRoot(pair.j)) {
      if (clusters.Deleted(pair.i) || clusters.Deleted(pair.j)) continue;
      clusters.Merge(pair.i, pair.j);
      ++result.moved;
      continue;
    }
    const auto [i, j] = std::minmax({clusters.Root(pair.i), clusters.Root(pair.j)});
    if (i == j || clusters.Deleted(i) || clusters.Deleted(j)) continue;
    const float similarity = JaccardSimilarity(csr, i, j);
    if (similarity < options.min_similarity) continue;
    if (status = queue.Insert({similarity, i, j}); !status.ok()) return status;
  }

  auto row_order = AllocateArray(*context.memory, "row_order", ElementType::kI32, csr.rows);
  if (!row_order.ok()) return row_order.status();
  clusters.Write(options.order, row_order->MutableAs<int32_t>());
  result.row_order = *std::move(row_order);
  return result;
}

absl::StatusOr<RowOrder> LshClusterRows(const CsrView& csr, const LshOptions& lsh,
                                        const ClusterOptions& options,
                                        const BuildContext& context) {
  auto pairs = FindCandidatePairs(csr, lsh, context);
  if (!pairs.ok()) return pairs.status();
  return ClusterRows(csr, *std::move(pairs), options, context);
}

}  // namespace sparsed
