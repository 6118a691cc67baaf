// What limits products with a matrix, for people: of sparsectl explain, and of the C interface.
#pragma once

#include <string>

#include "sparsed/types.h"

namespace sparsed::cli {

/// Whole lines: what is moved, the roofline, and a few sentences on each operation.
/// `assumed_cache`: its cache is one that somebody asked about, not the device's.
std::string ExplanationText(const std::string& name, const Explanation& explanation,
                            bool assumed_cache);

}  // namespace sparsed::cli
