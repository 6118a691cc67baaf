// From what a caller sent to canonical CSR and the hash of its pattern.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kernels/array.h"
#include "kernels/formats/csr.h"

namespace sparsed::engine {

/// One matrix, on a private copy.
struct CsrArrays {
  int64_t rows = 0;
  int64_t cols = 0;
  Array row_offsets;     ///< i64, rows + 1
  Array column_indices;  ///< i32, nnz
  Array values;          ///< f32, f64, f16 or bf16, nnz
  /// i64, nnz: where each canonical nonzero was in the caller's arrays; none if the caller's order
  /// is the canonical one, or duplicates were summed.
  std::optional<Array> caller_order;

  CsrView view() const {
    return {rows, cols, row_offsets.As<int64_t>(), column_indices.As<int32_t>(), {}};
  }
};

struct CanonicalOptions {
  bool sort = false;
  bool sum_duplicates = false;  ///< implies sort
};

/// Validates untrusted arrays and makes them canonical if `options` allow it. Arrays that are
/// canonical already are only read. Sorting needs memory for the caller's order and a second array
/// of values. Errors: INVALID_ARGUMENT (names array, position and row), RESOURCE_EXHAUSTED.
absl::Status MakeCanonical(CsrArrays& arrays, const CanonicalOptions& options, MemorySource& memory,
                           int threads);

/// i32 row offsets become i64 in place; the buffer has room for 8 bytes an element.
void WidenRowOffsets(Array& row_offsets);

/// `sorted[p] = values[order[p]]`.
absl::StatusOr<Array> ToCanonicalOrder(const Array& values, const Array& caller_order,
                                       MemorySource& memory, int threads);

/// XXH3's 128 bits, in hexadecimal, of dimensions, row offsets and column indices. Two patterns
/// that collide under one `seed` are told apart under the next.
std::string HashPattern(const CsrView& csr, uint64_t seed);

}  // namespace sparsed::engine
