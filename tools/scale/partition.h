// Partitions of the rows of S that others made.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "tools/scale/row_exchange.h"

namespace sparsed::tools {

struct Partition {
  std::string name;  ///< the file, or "metis"
  int parts = 0;
  std::vector<CardNumber> part_of_row;
};

/// As METIS's gpmetis writes it: a line for each row, the number of its part from 0. There are as
/// many parts as the largest number says. NOT_FOUND, INVALID_ARGUMENT with file and line.
absl::StatusOr<Partition> ReadPartition(const std::string& path, int64_t rows);

/// cli::MetisPartition.
absl::StatusOr<Partition> MetisPartition(const CsrView& csr, int parts);

}  // namespace sparsed::tools
