#include "tools/scale/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "client/cli/metis_partition.h"

namespace sparsed::tools {

absl::StatusOr<Partition> ReadPartition(const std::string& path, int64_t rows) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(fmt::format("{} cannot be read", path));
  Partition partition{path, 0, {}};
  for (std::string line; std::getline(file, line);) {
    const auto number = static_cast<int64_t>(partition.part_of_row.size()) + 1;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    int part = -1;
    const char* const end = line.data() + line.size();
    const auto [last, error] = std::from_chars(line.data(), end, part);
    if (error != std::errc() || last != end || part < 0 || part >= kMostCards) {
      return absl::InvalidArgumentError(
          fmt::format("{}, line {}: \"{}\" is no part in [0, {})", path, number, line, kMostCards));
    }
    if (number > rows) {
      return absl::InvalidArgumentError(
          fmt::format("{} has more lines than the matrix has rows, {}", path, rows));
    }
    partition.part_of_row.push_back(static_cast<CardNumber>(part));
    partition.parts = std::max(partition.parts, part + 1);
  }
  if (file.bad()) return absl::InvalidArgumentError(fmt::format("{} cannot be read", path));
  if (const auto lines = static_cast<int64_t>(partition.part_of_row.size()); lines != rows) {
    return absl::InvalidArgumentError(
        fmt::format("{} has {} lines, the matrix has {} rows", path, lines, rows));
  }
  return partition;
}

absl::StatusOr<Partition> MetisPartition(const CsrView& csr, int parts) {
  const absl::StatusOr<std::vector<int32_t>> made =
      cli::MetisPartition({csr.rows, csr.cols, csr.row_offsets, csr.column_indices}, parts);
  if (!made.ok()) return made.status();
  Partition partition{"metis", parts, std::vector<CardNumber>(made->size())};
  std::ranges::transform(*made, partition.part_of_row.begin(),
                         [](int32_t part) { return static_cast<CardNumber>(part); });
  return partition;
}

}  // namespace sparsed::tools
