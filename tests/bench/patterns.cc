#include "tests/bench/patterns.h"

#include <cstdlib>
#include <iostream>
#include <optional>
#include <utility>

#include "tests/bench/gpu/generated.h"
#include "tests/matrix_market.h"
#include "tests/matrix_pack.h"

namespace sparsed::bench {
namespace {

[[noreturn]] void Die(const std::string& why) {
  std::cerr << why << "\n";
  std::exit(1);
}

PlainPattern Plain(std::string name, test::Pattern pattern) {
  return {std::move(name), pattern.rows, pattern.cols, std::move(pattern.row_offsets),
          std::move(pattern.column_indices)};
}

}  // namespace

void ForEachPattern(const std::vector<std::string>& packs, std::vector<std::string> generated,
                    const std::function<bool(PlainPattern)>& use) {
  for (const std::string& pack : packs) {
    absl::StatusOr<std::vector<test::NamedPattern>> patterns = test::ReadMatrixPack(pack);
    if (!patterns.ok()) Die(std::string(patterns.status().message()));
    for (test::NamedPattern& named : *patterns) {
      if (!use(Plain(std::move(named.name), std::move(named.pattern)))) return;
    }
  }
  if (generated == std::vector<std::string>{"all"}) generated = test::GeneratedNames();
  for (const std::string& name : generated) {
    std::optional<test::Pattern> pattern = test::Generated(name);
    if (!pattern) Die("there is no generated matrix " + name);
    if (!use(Plain(name, *std::move(pattern)))) return;
  }
}

PlainPattern ReadPattern(const std::string& path) {
  std::optional<test::Matrix> matrix = test::ReadMatrixMarket(path);
  if (!matrix) Die(path + " cannot be read as a Matrix Market file");
  return Plain(path, std::move(matrix->pattern));
}

}  // namespace sparsed::bench
