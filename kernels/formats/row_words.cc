#include "kernels/formats/row_words.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "kernels/formats/permute.h"

namespace sparsed {
namespace {

constexpr int32_t kColumns = 32;
// Fewer nonzeros in a word than 3 / 2 are not worth the words.
constexpr int64_t kLeastNonzeros = 3, kOfWords = 2;

}  // namespace

RowWordsView ViewRowWords(const Layout& layout) {
  RowWordsView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.word_offsets = layout.Elements<int32_t>("word_offsets");
  view.words = layout.Elements<int32_t>("words");
  return view;
}

absl::StatusOr<Layout> BuildRowWords(const CsrView& csr, const BuildContext& context) {
  MemorySource& memory = *context.memory;
  auto offsets = AllocateArray(memory, "word_offsets", ElementType::kI32, csr.rows + 1);
  if (!offsets.ok()) return offsets.status();
  const auto begins = offsets->MutableAs<int32_t>();
  ForEachRow(csr.rows, context, [&](int64_t row) {
    int32_t words = 0, last = -1;
    for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
      const int32_t word = csr.column_indices[i] / kColumns;
      words += word != last ? 1 : 0;
      last = word;
    }
    begins[row + 1] = words;
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");
  begins[0] = 0;
  int64_t words = 0;
  for (int64_t row = 0; row < csr.rows; ++row) {
    words += begins[row + 1];
    if (words > std::numeric_limits<int32_t>::max()) {
      return absl::FailedPreconditionError("more words of columns than an i32 counts");
    }
    begins[row + 1] = static_cast<int32_t>(words);
  }
  if (csr.nnz() == 0)
    return absl::FailedPreconditionError("a matrix without nonzeros has no words");
  if (csr.nnz() * kOfWords < words * kLeastNonzeros) {
    return absl::FailedPreconditionError(
        fmt::format("{} nonzeros in {} words of {} columns: they are not near to each other",
                    csr.nnz(), words, kColumns));
  }
  auto pairs = AllocateArray(memory, "words", ElementType::kI32, 2 * words);
  if (!pairs.ok()) return pairs.status();
  const auto to = pairs->MutableAs<int32_t>();
  ForEachRow(csr.rows, context, [&](int64_t row) {
    int64_t at = int64_t{begins[row]} - 1;
    int32_t last = -1;
    uint32_t mask = 0;
    for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
      const int32_t column = csr.column_indices[i], word = column / kColumns;
      if (word != last) {
        ++at;
        mask = 0;
        last = word;
      }
      mask |= uint32_t{1} << (column % kColumns);
      to[2 * at] = word;
      to[2 * at + 1] = static_cast<int32_t>(mask);
    }
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");

  Layout layout;
  layout.kind = kRowWords;
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = csr.nnz();
  layout.arrays.push_back(*std::move(offsets));
  layout.arrays.push_back(*std::move(pairs));
  return layout;
}

}  // namespace sparsed
