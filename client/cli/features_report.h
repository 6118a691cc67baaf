// The features of a pattern, to people and to programs.
#pragma once

#include "client/cli/report.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// JSON: "features", an object of numbers by name, "distance_histogram" and "density_map", an array
/// of rows; "features" is null if they are not computed yet. Text: a table for each source, the
/// histogram, and the map as a picture.
void AddFeatures(const MatrixInfo& info, const MatrixFeatures& features, Report& report);

}  // namespace sparsed::cli
