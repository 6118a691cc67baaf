#include "kernels/cpu/partition.h"

#include <algorithm>

namespace sparsed::cpu {

int64_t PartCount(int64_t rows, int64_t nnz, int64_t k) {
  constexpr double kSmallPart = 1 << 17;  // multiplications
  constexpr double kLargePart = 1 << 20;
  constexpr double kFewParts = 64;
  constexpr double kManyParts = 4096;
  // In floating point: the product may overflow 64 bits.
  const double work =
      (static_cast<double>(rows) + static_cast<double>(nnz)) * static_cast<double>(k);
  const double parts = std::max(std::min(work / kSmallPart, kFewParts), work / kLargePart);
  return static_cast<int64_t>(std::clamp(parts, 1.0, kManyParts));
}

Cut PartBegin(std::span<const int64_t> row_offsets, int64_t part, int64_t parts) {
  const int64_t rows = static_cast<int64_t>(row_offsets.size()) - 1;
  const int64_t nnz = row_offsets[rows];
  if (part >= parts) return {rows, nnz};
  const int64_t work = rows + nnz;
  const int64_t target = work / parts * part + work % parts * part / parts;
  // The last row whose work begins at or before the target.
  int64_t row = 0;
  int64_t end = rows;
  while (end - row > 1) {
    const int64_t middle = row + (end - row) / 2;
    (row_offsets[middle] + middle <= target ? row : end) = middle;
  }
  const int64_t begin = row_offsets[row];
  const int64_t length = row_offsets[row + 1] - begin;
  if (2 * length <= work / parts) return {row, begin};
  const int64_t inside = target - begin - row;
  return inside < length ? Cut{row, begin + inside} : Cut{row + 1, begin + length};
}

}  // namespace sparsed::cpu
