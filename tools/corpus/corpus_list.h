// The corpus: named patterns, each made from its name alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/corpus/pattern.h"

namespace sparsed::corpus {

struct CorpusPattern {
  std::string name;    ///< unique; [A-Za-z0-9._+-]
  std::string family;  ///< "rmat", "fem", ...; of files "real"
  /// Patterns of one group are alike: the same shape in other sizes, and all that is derived from
  /// them. Whoever splits the corpus keeps a group together.
  std::string group;
  std::string parent;      ///< the pattern that it is derived from; empty: none
  std::string parameters;  ///< for people
  uint64_t seed = 0;
  int64_t rows = 0, cols = 0, nnz = 0;  ///< as expected: duplicates and holes are not counted
  /// INVALID_ARGUMENT, NOT_FOUND: a file that cannot be read.
  std::function<absl::StatusOr<Pattern>()> make;
};

/// The pattern, or why there is none: as its `make` says, or RESOURCE_EXHAUSTED.
absl::StatusOr<Pattern> Make(const CorpusPattern& pattern);

/// All generated patterns and those derived from them, in a fixed order.
std::vector<CorpusPattern> GeneratedPatterns();

/// One for each matrix file (docs/formats.md) in the folder, by name, each a group of its own of
/// family "real". Sizes are not known (0) before they are read. NOT_FOUND: no such folder;
/// INVALID_ARGUMENT: two files of one name.
absl::StatusOr<std::vector<CorpusPattern>> PatternsOfFiles(const std::string& folder);

}  // namespace sparsed::corpus
