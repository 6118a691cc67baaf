#include "kernels/formats/row_split.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/permute.h"

namespace sparsed {
namespace {

constexpr int32_t kOwn = -2, kUnnamed = -1;
/// Between looks at whether to stop.
constexpr int64_t kRowsAtOnce = 1 << 16;

/// Arrays of one of the two, of so many rows and nonzeros.
struct Half {
  Array row_offsets, column_indices, source;

  static absl::StatusOr<Half> Of(int64_t rows, int64_t nnz, ElementType source_type,
                                 MemorySource& memory) {
    absl::StatusOr<Array> offsets =
        AllocateArray(memory, "row_offsets", ElementType::kI64, rows + 1);
    if (!offsets.ok()) return offsets.status();
    absl::StatusOr<Array> columns = AllocateArray(memory, "column_indices", ElementType::kI32, nnz);
    if (!columns.ok()) return columns.status();
    absl::StatusOr<Array> source = AllocateArray(memory, "source", source_type, nnz);
    if (!source.ok()) return source.status();
    offsets->MutableAs<int64_t>()[0] = 0;
    return Half{*std::move(offsets), *std::move(columns), *std::move(source)};
  }
};

/// Marks what rows name; the nonzeros whose operand rows are own. kUnnamed becomes 0.
absl::StatusOr<int64_t> Mark(const CsrView& csr, RowRange rows, std::span<int32_t> of_column,
                             const BuildContext& context) {
  int64_t own = 0;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    if ((row - rows.begin) % kRowsAtOnce == 0 && context.stopped()) {
      return absl::CancelledError("the build was stopped");
    }
    for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
      int32_t& column = of_column[csr.column_indices[i]];
      own += column == kOwn ? 1 : 0;
      if (column == kUnnamed) column = 0;
    }
  }
  return own;
}

template <typename Index, typename SourceOf>
absl::Status Fill(const CsrView& csr, RowRange rows, int64_t first_own,
                  std::span<const int32_t> of_column, Half& own, Half& fetched, SourceOf source_of,
                  const BuildContext& context) {
  const auto own_offsets = own.row_offsets.MutableAs<int64_t>();
  const auto fetched_offsets = fetched.row_offsets.MutableAs<int64_t>();
  const auto own_columns = own.column_indices.MutableAs<int32_t>();
  const auto fetched_columns = fetched.column_indices.MutableAs<int32_t>();
  const auto own_source = own.source.MutableAs<Index>();
  const auto fetched_source = fetched.source.MutableAs<Index>();
  int64_t own_count = 0, fetched_count = 0;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    if ((row - rows.begin) % kRowsAtOnce == 0 && context.stopped()) {
      return absl::CancelledError("the build was stopped");
    }
    for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
      const int32_t column = csr.column_indices[i];
      const auto source = static_cast<Index>(source_of(i));
      if (of_column[column] == kOwn) {
        own_columns[own_count] = static_cast<int32_t>(column - first_own);
        own_source[own_count++] = source;
      } else {
        fetched_columns[fetched_count] = of_column[column];
        fetched_source[fetched_count++] = source;
      }
    }
    own_offsets[row - rows.begin + 1] = own_count;
    fetched_offsets[row - rows.begin + 1] = fetched_count;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RowSplit> SplitRows(const CsrView& csr, RowRange rows, RowRange operand,
                                   const Array* source, const BuildContext& context) {
  MemorySource& memory = *context.memory;
  absl::StatusOr<Array> columns = AllocateArray(memory, "columns", ElementType::kI32, csr.cols);
  if (!columns.ok()) return columns.status();
  const std::span<int32_t> of_column = columns->MutableAs<int32_t>();
  std::ranges::fill(of_column, kUnnamed);
  std::ranges::fill(of_column.subspan(operand.begin, operand.end - operand.begin), kOwn);
  const absl::StatusOr<int64_t> own_nnz = Mark(csr, rows, of_column, context);
  if (!own_nnz.ok()) return own_nnz.status();

  const auto named = [](int32_t column) { return column >= 0; };
  absl::StatusOr<Array> fetched_rows = AllocateArray(memory, "fetched_rows", ElementType::kI64,
                                                     std::ranges::count_if(of_column, named));
  if (!fetched_rows.ok()) return fetched_rows.status();
  const std::span<int64_t> numbers = fetched_rows->MutableAs<int64_t>();
  int32_t next = 0;
  for (size_t column = 0; column < of_column.size(); ++column) {
    if (!named(of_column[column])) continue;
    of_column[column] = next;
    numbers[next++] = static_cast<int64_t>(column);
  }

  const int64_t count = rows.end - rows.begin;
  const int64_t nnz = csr.row_offsets[rows.end] - csr.row_offsets[rows.begin];
  const ElementType type = source == nullptr ? SourceType(csr.nnz()) : source->type;
  absl::StatusOr<Half> own = Half::Of(count, *own_nnz, type, memory);
  if (!own.ok()) return own.status();
  absl::StatusOr<Half> fetched = Half::Of(count, nnz - *own_nnz, type, memory);
  if (!fetched.ok()) return fetched.status();
  const auto fill = [&]<typename Index>(Index) {
    const auto with = [&](auto source_of) {
      return Fill<Index>(csr, rows, operand.begin, of_column, *own, *fetched, source_of, context);
    };
    if (source == nullptr) return with([](int64_t i) { return i; });
    return with([of = source->As<Index>()](int64_t i) { return of[i]; });
  };
  const absl::Status filled = type == ElementType::kI32 ? fill(int32_t{}) : fill(int64_t{});
  if (!filled.ok()) return filled;
  return RowSplit{MakeHostCsrLayout(count, operand.end - operand.begin, std::move(own->row_offsets),
                                    std::move(own->column_indices)),
                  MakeHostCsrLayout(count, numbers.size(), std::move(fetched->row_offsets),
                                    std::move(fetched->column_indices)),
                  std::move(own->source), std::move(fetched->source), *std::move(fetched_rows)};
}

absl::StatusOr<FetchedCount> CountFetched(const CsrView& csr, RowRange rows, RowRange operand,
                                          const BuildContext& context) {
  absl::StatusOr<Buffer> seen = context.memory->Allocate(static_cast<size_t>(csr.cols));
  if (!seen.ok()) return seen.status();
  std::byte* const of_column = seen->mutable_data();
  std::fill_n(of_column, csr.cols, std::byte{0});
  FetchedCount fetched;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    if ((row - rows.begin) % kRowsAtOnce == 0 && context.stopped()) {
      return absl::CancelledError("the build was stopped");
    }
    for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
      const int32_t column = csr.column_indices[i];
      if (column >= operand.begin && column < operand.end) continue;
      ++fetched.nonzeros;
      fetched.rows += of_column[column] == std::byte{0} ? 1 : 0;
      of_column[column] = std::byte{1};
    }
  }
  return fetched;
}

}  // namespace sparsed
