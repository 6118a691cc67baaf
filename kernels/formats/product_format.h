// What the layouts that SpGEMM's factors are read from share: they keep the order of rows, and
// patterns that they don't suit are refused with a sentence.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/formats/csr.h"
#include "kernels/formats/csr_build.h"

namespace sparsed {

/// A format that would take more than so many times plain CSR's memory is not worth converting to
/// for a product: five times of indices and values, as Xie et al. have it ("A Pattern-Based SpGEMM
/// Library for Multi-Core and Many-Core Architectures", section 3.3), and as much again, as each
/// value's place says where it comes from.
inline constexpr int64_t kMostFormatGrowth = 10;

/// What CSR takes with values of f32.
inline int64_t CsrBytes(const CsrView& csr) {
  return csr.nnz() * static_cast<int64_t>(sizeof(int32_t) + sizeof(float)) +
         (csr.rows + 1) * static_cast<int64_t>(sizeof(int64_t));
}

/// Of a slot for a value: an f32, and where it comes from (value_source).
inline double SlotBytes(const CsrView& csr) {
  return static_cast<double>(sizeof(float) + SizeOf(SourceType(csr.nnz())));
}

/// FAILED_PRECONDITION if so many bytes, with slots for values of f32, are more than may be kept
/// for the sake of this pattern. `what`: "by diagonals".
inline absl::Status CheckFormatGrowth(const CsrView& csr, std::string_view what, double bytes) {
  const auto csr_bytes = static_cast<double>(CsrBytes(csr));
  if (bytes <= static_cast<double>(kMostFormatGrowth) * csr_bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} x {} with {} nonzeros would take {:.1f} times CSR's memory {}, more than {}",
                  csr.rows, csr.cols, csr.nnz(), bytes / csr_bytes, what, kMostFormatGrowth));
}

}  // namespace sparsed
