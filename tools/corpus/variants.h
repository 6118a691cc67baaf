// The shapes that the corpus has of each family, at any size.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/corpus/pattern.h"

namespace sparsed::corpus {

/// A pattern of one size before it is made.
struct Sized {
  int64_t rows = 0, cols = 0;  ///< expected
  int64_t nnz = 0;             ///< expected
  std::string parameters;      ///< for people
  std::function<Pattern(uint64_t seed)> make;
};

struct Variant {
  std::string family;
  std::string name;
  /// Of about so many nonzeros, at least 1000.
  std::function<Sized(int64_t target)> size;
  bool unordered = false;         ///< rows and columns come in random order already
  int64_t most_nnz = 10'000'000;  ///< larger ones take too much memory to make
};

/// Of all families, in a fixed order.
std::vector<Variant> Variants();

// By kind.
std::vector<Variant> GraphVariants();
std::vector<Variant> MeshVariants();
std::vector<Variant> SystemVariants();
std::vector<Variant> RectangleVariants();

}  // namespace sparsed::corpus
