#include "engine/catalog/canonical.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

namespace sparsed::engine {
namespace {

/// Rows differ in length by orders of magnitude; a part this small is worth no more scheduling.
constexpr int kRowsPerPart = 256;

/// Sorts each row by column, equal columns in the caller's order. Afterwards `order[p]` is where
/// the caller had the nonzero that is now p.
void SortRows(std::span<const int64_t> row_offsets, std::span<int32_t> columns,
              std::span<int64_t> order, int threads) {
  const int64_t rows = static_cast<int64_t>(row_offsets.size()) - 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic, kRowsPerPart)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = row_offsets[row], end = row_offsets[row + 1];
    // One key holds column and position, so that the sort moves one word and is stable.
    for (int64_t p = begin; p < end; ++p) order[p] = (int64_t{columns[p]} << 32) | (p - begin);
    std::sort(order.begin() + begin, order.begin() + end);
    for (int64_t p = begin; p < end; ++p) {
      columns[p] = static_cast<int32_t>(order[p] >> 32);
      order[p] = begin + (order[p] & 0xffffffff);
    }
  }
}

template <typename Value>
void Gather(std::span<const Value> values, std::span<const int64_t> order, std::span<Value> sorted,
            int threads) {
  const int64_t count = static_cast<int64_t>(order.size());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t p = 0; p < count; ++p) sorted[p] = values[order[p]];
}

/// Nonzeros of each sorted row without duplicates go to unique[row + 1].
void CountUnique(const CsrView& sorted, std::span<int64_t> unique, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, kRowsPerPart)
  for (int64_t row = 0; row < sorted.rows; ++row) {
    int64_t count = 0;
    const int64_t begin = sorted.row_offsets[row], end = sorted.row_offsets[row + 1];
    for (int64_t p = begin; p < end; ++p) {
      count += p == begin || sorted.column_indices[p] != sorted.column_indices[p - 1];
    }
    unique[row + 1] = count;
  }
}

/// Sums are formed in f64, those of the 16-bit types in f32, and rounded once.
template <typename Value>
void SumDuplicates(const CsrView& sorted, std::span<const Value> values,
                   std::span<const int64_t> row_offsets, std::span<int32_t> columns,
                   std::span<Value> sums, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, kRowsPerPart)
  for (int64_t row = 0; row < sorted.rows; ++row) {
    int64_t out = row_offsets[row];
    const int64_t end = sorted.row_offsets[row + 1];
    for (int64_t p = sorted.row_offsets[row]; p < end;) {
      const int32_t column = sorted.column_indices[p];
      std::conditional_t<kIsHalf<Value>, float, double> sum = 0;
      for (; p < end && sorted.column_indices[p] == column; ++p) {
        sum += static_cast<SumOf<Value>>(values[p]);
      }
      columns[out] = column;
      sums[out++] = static_cast<Value>(sum);
    }
  }
}

/// Replaces sorted arrays that have duplicates; `row_offsets` are those without.
absl::Status MergeDuplicates(CsrArrays& arrays, Array row_offsets, MemorySource& memory,
                             int threads) {
  const int64_t nnz = row_offsets.As<int64_t>().back();
  absl::StatusOr<Array> columns =
      AllocateArray(memory, arrays.column_indices.name, ElementType::kI32, nnz);
  if (!columns.ok()) return columns.status();
  absl::StatusOr<Array> sums = AllocateArray(memory, arrays.values.name, arrays.values.type, nnz);
  if (!sums.ok()) return sums.status();
  VisitFloat(arrays.values.type, [&]<typename T>(T) {
    SumDuplicates<T>(arrays.view(), arrays.values.As<T>(), row_offsets.As<int64_t>(),
                     columns->MutableAs<int32_t>(), sums->MutableAs<T>(), threads);
  });
  arrays.row_offsets = std::move(row_offsets);
  arrays.column_indices = *std::move(columns);
  arrays.values = *std::move(sums);
  return absl::OkStatus();
}

/// Of sorted arrays; `order` says where the caller had them.
absl::Status FirstDuplicate(const CsrView& sorted, std::span<const int64_t> order) {
  for (int64_t row = 0; row < sorted.rows; ++row) {
    for (int64_t p = sorted.row_offsets[row] + 1; p < sorted.row_offsets[row + 1]; ++p) {
      if (sorted.column_indices[p] != sorted.column_indices[p - 1]) continue;
      return absl::InvalidArgumentError(
          fmt::format("column_indices[{}] = {} in row {} is a duplicate of column_indices[{}]; set "
                      "sum_duplicates to have such values added",
                      order[p], sorted.column_indices[p], row, order[p - 1]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRowLengths(const CsrView& csr) {
  // Positions in a row share a 64-bit key with the column.
  constexpr int64_t kLongest = std::numeric_limits<uint32_t>::max();
  for (int64_t row = 0; row < csr.rows; ++row) {
    const int64_t length = csr.row_offsets[row + 1] - csr.row_offsets[row];
    if (length > kLongest) {
      return absl::InvalidArgumentError(
          fmt::format("row {} has {} entries; at most {} can be sorted", row, length, kLongest));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeCanonical(CsrArrays& arrays, const CanonicalOptions& options, MemorySource& memory,
                           int threads) {
  const absl::Status canonical = ValidateCsr(arrays.view(), threads);
  if (canonical.ok() || !(options.sort || options.sum_duplicates)) return canonical;
  if (absl::Status s = ValidateUnsortedCsr(arrays.view(), threads); !s.ok()) return s;
  if (absl::Status s = CheckRowLengths(arrays.view()); !s.ok()) return s;

  absl::StatusOr<Array> order =
      AllocateArray(memory, "value_order", ElementType::kI64, arrays.column_indices.length);
  if (!order.ok()) return order.status();
  SortRows(arrays.row_offsets.As<int64_t>(), arrays.column_indices.MutableAs<int32_t>(),
           order->MutableAs<int64_t>(), threads);
  absl::StatusOr<Array> values = ToCanonicalOrder(arrays.values, *order, memory, threads);
  if (!values.ok()) return values.status();
  arrays.values = *std::move(values);

  absl::StatusOr<Array> unique =
      AllocateArray(memory, arrays.row_offsets.name, ElementType::kI64, arrays.rows + 1);
  if (!unique.ok()) return unique.status();
  const std::span<int64_t> counts = unique->MutableAs<int64_t>();
  counts[0] = 0;
  CountUnique(arrays.view(), counts, threads);
  for (int64_t row = 0; row < arrays.rows; ++row) counts[row + 1] += counts[row];
  if (counts[arrays.rows] == arrays.column_indices.length) {
    arrays.caller_order = *std::move(order);
    return absl::OkStatus();
  }
  if (!options.sum_duplicates) return FirstDuplicate(arrays.view(), order->As<int64_t>());
  return MergeDuplicates(arrays, *std::move(unique), memory, threads);
}

void WidenRowOffsets(Array& row_offsets) {
  // From the back: element i of the wide array overwrites only narrow elements that are done.
  std::byte* bytes = row_offsets.buffer.mutable_data();
  const auto* narrow = reinterpret_cast<const int32_t*>(bytes);
  for (int64_t i = row_offsets.length - 1; i >= 0; --i) {
    const int64_t wide = narrow[i];
    std::memcpy(bytes + i * sizeof(wide), &wide, sizeof(wide));
  }
  row_offsets.type = ElementType::kI64;
}

absl::StatusOr<Array> ToCanonicalOrder(const Array& values, const Array& caller_order,
                                       MemorySource& memory, int threads) {
  absl::StatusOr<Array> sorted =
      AllocateArray(memory, values.name, values.type, caller_order.length);
  if (!sorted.ok()) return sorted.status();
  VisitBits(values.type, [&]<typename Bits>(Bits) {
    Gather<Bits>(values.As<Bits>(), caller_order.As<int64_t>(), sorted->MutableAs<Bits>(), threads);
  });
  return sorted;
}

std::string HashPattern(const CsrView& csr, uint64_t seed) {
  constexpr std::string_view kWhat = "sparsed pattern v1";
  const int64_t dimensions[] = {csr.rows, csr.cols, csr.nnz()};
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_128bits_reset_withSeed(state.get(), seed);
  XXH3_128bits_update(state.get(), kWhat.data(), kWhat.size());
  XXH3_128bits_update(state.get(), dimensions, sizeof(dimensions));
  XXH3_128bits_update(state.get(), csr.row_offsets.data(), csr.row_offsets.size_bytes());
  XXH3_128bits_update(state.get(), csr.column_indices.data(), csr.column_indices.size_bytes());
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace sparsed::engine
