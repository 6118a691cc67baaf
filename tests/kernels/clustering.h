// Algorithm 3 of Jiang, Hong, Agrawal (PPoPP'20) as it is printed: the oracle of row reordering.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/features/similarity.h"
#include "kernels/formats/csr.h"

namespace sparsed::test {

/// Lines 2 - 34, where the printed text leaves out that cluster_sz grows and how ties are broken:
/// equally similar pairs by ascending rows. `pairs` are (i, j) with i < j.
inline std::vector<int32_t> ClusterAsPrinted(const CsrView& s,
                                             const std::vector<std::pair<int32_t, int32_t>>& pairs,
                                             int64_t threshold_size) {
  std::set<std::pair<int32_t, int32_t>> candidate_pairs(pairs.begin(), pairs.end());
  std::set<std::tuple<float, int32_t, int32_t>> sim_queue;  // ascending by falling similarity
  for (const auto& [i, j] : candidate_pairs) sim_queue.insert({-JaccardSimilarity(s, i, j), i, j});
  std::vector<int32_t> cluster_id(s.rows);
  std::vector<int64_t> cluster_sz(s.rows, 1);
  std::vector<bool> deleted(s.rows, false);
  int64_t nclusters = s.rows;
  for (int32_t i = 0; i < s.rows; ++i) cluster_id[i] = i;
  auto root = [&](int32_t i) {
    while (i != cluster_id[i]) {
      cluster_id[i] = cluster_id[cluster_id[i]];
      i = cluster_id[i];
    }
    return i;
  };
  while (!sim_queue.empty() && nclusters > 0) {
    auto [negative, i, j] = *sim_queue.begin();
    sim_queue.erase(sim_queue.begin());
    if (i == cluster_id[i] && j == cluster_id[j]) {
      if (deleted[i] || deleted[j]) continue;
      const bool j_larger = cluster_sz[i] < cluster_sz[j];
      const int32_t large = j_larger ? j : i;
      const int32_t small = j_larger ? i : j;
      cluster_id[small] = large;
      cluster_sz[large] += cluster_sz[small];
      nclusters -= 1;
      if (cluster_sz[large] >= threshold_size) {
        deleted[large] = true;
        nclusters -= 1;
      }
    } else {
      i = root(i);
      j = root(j);
      if (deleted[i] || deleted[j]) continue;
      if (i > j) std::swap(i, j);
      if (i != j && !candidate_pairs.contains({i, j})) {
        sim_queue.insert({-JaccardSimilarity(s, i, j), i, j});
        candidate_pairs.insert({i, j});
      }
    }
  }
  std::map<int32_t, std::vector<int32_t>> clusters;
  for (int32_t i = 0; i < s.rows; ++i) clusters[root(i)].push_back(i);
  std::vector<int32_t> reordered_rows;
  for (const auto& [id, rows] : clusters) {
    reordered_rows.insert(reordered_rows.end(), rows.begin(), rows.end());
  }
  return reordered_rows;
}

/// Fig. 1a: what the text of the paper says of it (S0 = {0, 4}, S4 = {0, 3, 4}, J(2, 4) = 1/4, 13
/// nonzeros, column 4 the only one that occurs twice in a panel of three rows, rows 1 and 5 share
/// one column).
inline std::vector<std::pair<int32_t, int32_t>> PaperExample() {
  return {{0, 0}, {0, 4}, {1, 1}, {1, 3}, {1, 5}, {2, 2}, {2, 4},
          {3, 1}, {4, 0}, {4, 3}, {4, 4}, {5, 2}, {5, 5}};
}

}  // namespace sparsed::test
