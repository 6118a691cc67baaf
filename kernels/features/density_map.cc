#include "kernels/features/density_map.h"

#include <cstring>
#include <limits>
#include <optional>

#include "absl/status/status.h"

namespace sparsed {
namespace {

void Append(uint32_t number, std::vector<std::byte>& bytes) {
  for (; number >= 0x80; number >>= 7) bytes.push_back(static_cast<std::byte>(number | 0x80));
  bytes.push_back(static_cast<std::byte>(number));
}

/// Takes a number from the front; none if there is no whole one up to 2^31 - 1.
std::optional<int32_t> Take(std::span<const std::byte>& bytes) {
  uint64_t number = 0;
  for (int shift = 0; shift < 35 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<uint64_t>(bytes.front());
    bytes = bytes.subspan(1);
    number |= (byte & 0x7f) << shift;
    if (byte >= 0x80) continue;
    if (number > std::numeric_limits<int32_t>::max()) return std::nullopt;
    return static_cast<int32_t>(number);
  }
  return std::nullopt;
}

/// False if `packed` is not what Pack makes. `tiles`: kTiles zeros.
bool Unpack(std::span<const std::byte> packed, std::span<int32_t> tiles) {
  for (size_t tile = 0; !packed.empty(); ++tile) {
    const std::optional<int32_t> empty = Take(packed);
    const std::optional<int32_t> count = Take(packed);
    if (!empty || !count || *count == 0) return false;
    tile += static_cast<size_t>(*empty);
    if (tile >= tiles.size()) return false;
    tiles[tile] = *count;
  }
  return true;
}

}  // namespace

absl::StatusOr<DensityMap> DensityMap::Pack(std::span<const int32_t> tiles, MemorySource& memory) {
  std::vector<std::byte> packed;
  uint32_t empty = 0;
  for (const int32_t count : tiles) {
    if (count == 0) {
      ++empty;
      continue;
    }
    Append(empty, packed);
    Append(static_cast<uint32_t>(count), packed);
    empty = 0;
  }
  return Copy(packed, memory);
}

absl::StatusOr<DensityMap> DensityMap::FromPacked(std::span<const std::byte> packed,
                                                  MemorySource& memory) {
  std::vector<int32_t> tiles(kTiles);
  if (!Unpack(packed, tiles)) return absl::InvalidArgumentError("not a packed density map");
  return Copy(packed, memory);
}

absl::StatusOr<DensityMap> DensityMap::Copy(std::span<const std::byte> packed,
                                            MemorySource& memory) {
  absl::StatusOr<Buffer> buffer = memory.Allocate(packed.size());
  if (!buffer.ok()) return buffer.status();
  if (!packed.empty()) std::memcpy(buffer->mutable_data(), packed.data(), packed.size());
  return DensityMap(*std::move(buffer));
}

std::vector<int32_t> DensityMap::Tiles() const {
  std::vector<int32_t> tiles(kTiles);
  Unpack(packed(), tiles);
  return tiles;
}

}  // namespace sparsed
