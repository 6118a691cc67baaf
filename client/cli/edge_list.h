// Edge lists: an entry a line, as SNAP, KONECT and spreadsheets write them.
#pragma once

#include "absl/status/statusor.h"
#include "client/cli/line_reader.h"
#include "client/cli/matrix_file.h"

namespace sparsed::cli {

/// What begins the line, a comment, with which our own lists say how large the matrix is:
/// "# shape: 300x200".
inline constexpr std::string_view kShapeComment = "# shape: ";

/// Row, column and perhaps a value a line, between blanks, tabs, commas or semicolons; lines that
/// begin with '#' or '%' are comments, and a first line of names is left out.
absl::StatusOr<MatrixFile> ReadEdgeList(LineReader lines, const ReadOptions& options);

}  // namespace sparsed::cli
