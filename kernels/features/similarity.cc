#include "kernels/features/similarity.h"

#include <algorithm>
#include <vector>

namespace sparsed {

double AverageConsecutiveSimilarity(const CsrView& csr, int threads) {
  if (csr.rows < 2) return 0;
  // Sums of fixed blocks, added in order: the same result for every number of threads.
  constexpr int64_t kBlock = 1 << 14;
  const int64_t pairs = csr.rows - 1;
  const int64_t blocks = (pairs + kBlock - 1) / kBlock;
  std::vector<double> sums(blocks, 0.0);
  auto row = [&](int64_t r) { return csr.row_order.empty() ? r : int64_t{csr.row_order[r]}; };
  const int team = static_cast<int>(std::clamp<int64_t>(threads, 1, blocks));
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
  for (int64_t block = 0; block < blocks; ++block) {
    double sum = 0;
    for (int64_t r = block * kBlock; r < std::min((block + 1) * kBlock, pairs); ++r) {
      sum += JaccardSimilarity(csr, row(r), row(r + 1));
    }
    sums[block] = sum;
  }
  double total = 0;
  for (double sum : sums) total += sum;
  return total / static_cast<double>(pairs);
}

}  // namespace sparsed
