// What a blob says of the array in it, so that a lost catalog can be rebuilt (salvage.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/store/store.h"

namespace sparsed::engine {

/// Unused fields are empty or 0.
struct ArrayDescription {
  ArrayOwner owner;
  std::string array;              ///< its name
  int64_t rows = 0, cols = 0;     ///< of the pattern or the buffer
  int64_t nnz = 0;                ///< of the pattern
  int64_t leading_dimension = 0;  ///< kBuffer, in elements
  uint64_t version = 0;           ///< kMatrix, kBuffer
  int64_t created_unix_ns = 0;    ///< kMatrix
  std::string buffer_owner{};     ///< kBuffer: who it is for
  int64_t time_to_live_ns = 0;    ///< kMatrix, kBuffer
  bool has_value_order = false;   ///< kMatrix: the values have one beside them
};

/// No description is longer: names are short, pipelines are not endless.
inline constexpr size_t kMaxDescriptionBytes = size_t{64} << 10;

/// A line "name=value" for each field that is used; in values '%' and what does not print are
/// written as %XX. Cut off at kMaxDescriptionBytes, after a whole line.
std::string Encode(const ArrayDescription& description);
/// None if it is no description. Lines with other names are left to newer programs.
std::optional<ArrayDescription> DecodeDescription(std::string_view text);

}  // namespace sparsed::engine
