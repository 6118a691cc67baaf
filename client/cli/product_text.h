// Products of two sparse matrices, as people read of their plans.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "client/cli/report.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// Names of matrices by the hashes of their patterns.
using PatternNames = std::map<std::string, std::string, std::less<>>;

/// A product's right factor: "S", the name of another matrix, "another" if it has none.
inline std::string RightFactor(std::string_view right_hash, std::string_view left_hash,
                               const PatternNames& names) {
  if (right_hash == left_hash) return "S";
  const auto named = names.find(right_hash);
  return named == names.end() ? "another" : named->second;
}

/// With the product that it is of: "spgemm S * S", "spgemm S^T * NAME". Of others
/// Text(signature). `of`: a plan, a measurement or a decision; `left_hash`: of its pattern.
std::string SignatureText(const auto& of, std::string_view left_hash, const PatternNames& names) {
  if (of.right_pattern_hash.empty()) return Text(of.signature);
  return fmt::format("{} S{} * {}{}", Text(of.signature), of.transpose_left ? "^T" : "",
                     RightFactor(of.right_pattern_hash, left_hash, names),
                     of.transpose_right ? "^T" : "");
}

/// Of a product, what both factors are read from: "csr * dia".
std::string PipelineText(const auto& of) { return of.factors.empty() ? of.pipeline : of.factors; }

}  // namespace sparsed::cli
