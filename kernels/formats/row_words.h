// Layout kind "row_words": which columns the rows have, 32 to a word (the compression of Deveci,
// Trott and Rajamanickam, "Multithreaded sparse matrix-matrix multiplication for many-core and GPU
// architectures", Parallel Computing 2018). It has no values: whoever needs them reads plain CSR
// beside it.
//
//   word_offsets  i32, rows + 1    where a row's words begin
//   words         i32, 2 * words   of each: its first column / 32, and a bit for each column that
//                                  the row has; ascending in a row
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

inline constexpr std::string_view kRowWords = "row_words";

/// Not owned.
struct RowWordsView {
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const int32_t> word_offsets;
  std::span<const int32_t> words;
};

/// The layout's arrays; the layout must be of kind "row_words".
RowWordsView ViewRowWords(const Layout& layout);

/// Errors: FAILED_PRECONDITION (fewer than 3 nonzeros in 2 words, or more words than an i32
/// counts), RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Layout> BuildRowWords(const CsrView& csr, const BuildContext& context);

}  // namespace sparsed
