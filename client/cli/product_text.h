// Products of two sparse matrices, as people read of their plans. The server says both factors
// where the others have a pipeline, and behind them the hash of the right one's pattern if that is
// another: "csr * csr" of S * S, "csr * dia 0123..." of another product.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "sparsed/types.h"

namespace sparsed::cli {

/// Names of matrices by the hashes of their patterns.
using PatternNames = std::map<std::string, std::string, std::less<>>;

/// The first hash of a pattern in the text; empty: there is none.
std::string_view PatternHashIn(std::string_view text);
/// What both factors are read from, without a hash: "csr * dia". Other pipelines stay as they are.
std::string PipelineText(std::string_view pipeline);
/// With the product that a pipeline is of: "spgemm S * S", "spgemm S^T * NAME". Of other pipelines
/// Text(signature).
std::string SignatureText(const ProblemSignature& signature, std::string_view pipeline,
                          const PatternNames& names);
/// A sentence with names, or "another matrix", in the place of hashes.
std::string WithNames(std::string_view sentence, const PatternNames& names);

}  // namespace sparsed::cli
