// How the nonzeros of a matrix are spread over it, at a glance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/array.h"

namespace sparsed {

/// Rows and columns of a DensityMap.
inline constexpr int kDensityMapSide = 128;
/// The first row (or column) of tile row (or column) `i` in [0, kDensityMapSide], of `size` in all:
/// row r is in tile row floor(128 * r / M).
constexpr int64_t DensityTileBegin(int64_t i, int64_t size) {
  return (i * size + kDensityMapSide - 1) / kDensityMapSide;
}

/// Nonzeros in each tile of a 128 x 128 grid over the matrix, 2^31 - 1 at most. A matrix with fewer
/// rows (columns) than 128 leaves tile rows (columns) empty. Packed, a byte or two for most tiles
/// that are not empty: servers hold thousands of small matrices. Copies share the bytes.
class DensityMap {
 public:
  static constexpr int kTiles = kDensityMapSide * kDensityMapSide;

  /// All tiles empty.
  DensityMap() = default;
  /// `tiles`: kTiles counts >= 0, row-major.
  static absl::StatusOr<DensityMap> Pack(std::span<const int32_t> tiles, MemorySource& memory);
  /// A copy of what packed() gave; INVALID_ARGUMENT if `packed` cannot be that.
  static absl::StatusOr<DensityMap> FromPacked(std::span<const std::byte> packed,
                                               MemorySource& memory);

  /// kTiles counts, row-major.
  std::vector<int32_t> Tiles() const;
  /// For each tile that is not empty, by ascending number: how many empty ones are before it since
  /// the last such, and its count; both in groups of 7 bits, the lowest first, each in a byte whose
  /// highest bit says that another one follows.
  std::span<const std::byte> packed() const { return {packed_.data(), packed_.size()}; }

 private:
  explicit DensityMap(Buffer packed) : packed_(std::move(packed)) {}
  static absl::StatusOr<DensityMap> Copy(std::span<const std::byte> packed, MemorySource& memory);

  Buffer packed_;
};

}  // namespace sparsed
