// Attention along edges (kernels/attention.h) against float64, on any device.
#pragma once

#include "kernels/array.h"
#include "kernels/attention.h"
#include "tests/kernels/site.h"

namespace sparsed::test {

class AttentionSite : public Site {
 public:
  virtual absl::Status Compute(const EdgeAttention& attention, ElementType type) = 0;
  virtual absl::Status Compute(const EdgeAttentionGradient& gradient, ElementType type) = 0;
};

/// Every type, heads and widths of all kinds, of small patterns with empty rows.
void CheckAttention(AttentionSite& site);
/// Heads of more columns than the GPU's kernels have room for at once.
void CheckAttentionOfWideHeads(AttentionSite& site);
/// Scores of +-1e4, equal ones, infinities and NaN; patterns without rows, columns or nonzeros.
void CheckAttentionOfOddScores(AttentionSite& site);
/// A row of 100,000 nonzeros among rows of one, and its transpose.
void CheckAttentionOfLongRows(AttentionSite& site);

}  // namespace sparsed::test
