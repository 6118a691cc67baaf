// A kernel called in this process, on memory of its own: what every other way is compared with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace sparsed::bench {

/// SpMM in f32 by a plan of a server's.
class BareKernel {
 public:
  /// Builds the layout of "<recipe> / <kernel>". Null, with a line on standard error: it cannot.
  static std::unique_ptr<BareKernel> Make(const std::string& plan, int64_t rows, int64_t cols,
                                          std::span<const int64_t> row_offsets,
                                          std::span<const int32_t> column_indices,
                                          std::span<const float> values);
  virtual ~BareKernel() = default;
  /// c = S * b, both without gaps, of `k` columns.
  virtual void Run(const float* b, float* c, int64_t k, int threads) = 0;
};

}  // namespace sparsed::bench
