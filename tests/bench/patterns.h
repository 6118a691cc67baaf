// Given and generated patterns for programs that speak to a server: the client library's types and
// the kernels' have the same names, so here are neither.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sparsed::bench {

struct PlainPattern {
  std::string name;
  int64_t rows = 0, cols = 0;
  std::vector<int64_t> row_offsets;
  std::vector<int32_t> column_indices;
};

/// Calls `use` with every pattern of the packs (`sparsed_bench pack` makes them), then with the
/// generated ones of those names ("all": every one there is), as long as it returns true. Ends the
/// program, with a sentence, if a pack cannot be read or a name means nothing.
void ForEachPattern(const std::vector<std::string>& packs, std::vector<std::string> generated,
                    const std::function<bool(PlainPattern)>& use);

/// That of a Matrix Market file. Ends the program, with a sentence, if it cannot be read.
PlainPattern ReadPattern(const std::string& path);

}  // namespace sparsed::bench
