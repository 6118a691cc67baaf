// METIS's graph files (section 4.1 of its manual), which KaHIP, Chaco and the DIMACS challenges
// use, too.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/cli/byte_source.h"
#include "client/cli/matrix_file.h"

namespace sparsed::cli {

/// The first line of the graphs that we write, so that they are told from anything else.
inline constexpr std::string_view kMetisComment = "% METIS graph";

/// The first line of a graph, "VERTICES EDGES [FORMAT [WEIGHTS]]".
struct MetisHeader {
  int64_t vertices = 0;
  int64_t edges = 0;          ///< each of which comes at both of its ends
  bool sizes = false;         ///< of each vertex, before its neighbours
  int64_t weights = 0;        ///< of each vertex, behind its size
  bool edge_weights = false;  ///< behind each neighbour
};
/// None if the line is none.
std::optional<MetisHeader> ParseMetisHeader(std::string_view line);

/// Whether the text, the beginning of a file or (`whole`) all of it, is a graph and not the same
/// numbers in another format.
bool LooksLikeMetis(std::string_view text, bool whole);

/// A line for each vertex with its neighbours, counted from 1, and their edges' weights; sizes and
/// weights of vertices are left out, and told.
absl::StatusOr<MatrixFile> ReadMetis(ByteSource source, const ReadOptions& options);

}  // namespace sparsed::cli
