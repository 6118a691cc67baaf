// What is known of patterns and measurements, as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/catalog/plan.h"
#include "kernels/features/features.h"

namespace sparsed::corpus {

/// Members as the columns of `sparsectl measurements`; 0, or an empty text: not known.
nlohmann::ordered_json ToJson(const engine::Measurement& measurement);

/// The features by name and the histogram of distances; `map`: also the density map, as a flat list
/// of two numbers for each tile that is not empty, row by row: how many empty ones are before it
/// since the last such, and its nonzeros.
nlohmann::ordered_json ToJson(const Features& features, bool map);

}  // namespace sparsed::corpus
