#include "tools/corpus/corpus_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "tools/corpus/derived.h"
#include "tools/corpus/random.h"
#include "tools/corpus/variants.h"
#include "tools/matrix_file.h"

namespace sparsed::corpus {
namespace {

/// Nonzeros, and which variants have that size: every `step`-th.
struct Size {
  int64_t nnz;
  const char* text;
  size_t step;
  bool has_derived;
};
constexpr Size kSizes[] = {{1'000, "1k", 3, false},     {10'000, "10k", 1, true},
                           {50'000, "50k", 1, true},    {100'000, "100k", 1, true},
                           {200'000, "200k", 1, true},  {500'000, "500k", 1, true},
                           {1'000'000, "1m", 1, true},  {2'000'000, "2m", 1, true},
                           {5'000'000, "5m", 2, false}, {10'000'000, "10m", 4, false}};
/// Derived patterns of each.
constexpr size_t kDerived = 2;
/// Of rows and columns that parts have, in thousandths.
constexpr int kPart = 700;

int64_t PartOf(int64_t count) { return count * kPart / 1000; }

Pattern LeadingPart(const Pattern& pattern, uint64_t) {
  return Window(pattern, 0, PartOf(pattern.rows), 0, PartOf(pattern.cols));
}

/// Of a square matrix about its diagonal.
Pattern RandomPart(const Pattern& pattern, uint64_t seed) {
  Random random(seed);
  const int64_t rows = PartOf(pattern.rows), cols = PartOf(pattern.cols);
  const int64_t row = random.Below(pattern.rows - rows + 1);
  const int64_t col = pattern.rows == pattern.cols ? row : random.Below(pattern.cols - cols + 1);
  return Window(pattern, row, rows, col, cols);
}

Pattern RandomSubset(const Pattern& pattern, uint64_t seed) {
  return Sampled(pattern, kPart, seed);
}

Pattern NearestPart(const Pattern& pattern, uint64_t seed) {
  return Ball(pattern, PartOf(pattern.rows), seed);
}

struct Derivation {
  const char* name;
  Pattern (*make)(const Pattern&, uint64_t seed);
  bool is_part;           ///< of rows and columns; else all are there, in another order
  bool keeps_neighbours;  ///< of rows that are near each other
  bool squares_only = false;
};
constexpr Derivation kDerivations[] = {
    {"shuffled", ShuffledBoth, false, false},
    {"leading", LeadingPart, true, true},
    {"shuffled_rows", ShuffledRows, false, false},
    {"sampled", RandomSubset, true, false},
    {"shuffled_columns", ShuffledColumns, false, false},
    {"window", RandomPart, true, true},
    {"ball", NearestPart, true, true, /*squares_only=*/true},
};

/// FNV-1a: names stand for their patterns, whatever else is in the list.
uint64_t SeedOf(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

CorpusPattern Base(const Variant& variant, const Size& size) {
  Sized sized = variant.size(size.nnz);
  CorpusPattern pattern;
  pattern.family = variant.family;
  pattern.group = fmt::format("{}-{}", variant.family, variant.name);
  pattern.name = fmt::format("{}-{}", pattern.group, size.text);
  pattern.parameters = std::move(sized.parameters);
  pattern.seed = SeedOf(pattern.name);
  pattern.rows = sized.rows;
  pattern.cols = sized.cols;
  pattern.nnz = sized.nnz;
  pattern.make = [make = std::move(sized.make), seed = pattern.seed] { return make(seed); };
  return pattern;
}

CorpusPattern Derived(const CorpusPattern& parent, const Variant& variant,
                      const Derivation& derivation) {
  CorpusPattern pattern = parent;
  pattern.parent = parent.name;
  pattern.name = fmt::format("{}+{}", parent.name, derivation.name);
  pattern.parameters = fmt::format("{} of {}", derivation.name, parent.name);
  pattern.seed = SeedOf(pattern.name);
  if (derivation.is_part) {
    pattern.rows = PartOf(parent.rows);
    pattern.cols = PartOf(parent.cols);
    pattern.nnz = PartOf(parent.nnz);
    // Breadth first, the vertices with the most edges are met, whatever their numbers.
    const bool near = derivation.keeps_neighbours && !variant.unordered;
    if (!near && !derivation.squares_only) pattern.nnz = PartOf(pattern.nnz);
  }
  pattern.make = [make = parent.make, derive = derivation.make,
                  seed = pattern.seed]() -> absl::StatusOr<Pattern> {
    const absl::StatusOr<Pattern> from = make();
    if (!from.ok()) return from.status();
    return derive(*from, seed);
  };
  return pattern;
}

/// Those that make something else of the variant's patterns.
std::vector<const Derivation*> DerivationsFor(const Variant& variant, const CorpusPattern& parent) {
  std::vector<const Derivation*> fit;
  for (const Derivation& derivation : kDerivations) {
    if (variant.unordered && !derivation.is_part) continue;
    if (derivation.squares_only && parent.rows != parent.cols) continue;
    fit.push_back(&derivation);
  }
  return fit;
}

}  // namespace

absl::StatusOr<Pattern> Make(const CorpusPattern& pattern) {
  try {
    return pattern.make();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return absl::ResourceExhaustedError(fmt::format("no memory to make {}", pattern.name));
}

std::vector<CorpusPattern> GeneratedPatterns() {
  const std::vector<Variant> variants = Variants();
  std::vector<CorpusPattern> patterns;
  for (size_t v = 0; v < variants.size(); ++v) {
    for (size_t s = 0; s < std::size(kSizes); ++s) {
      const Size& size = kSizes[s];
      if (v % size.step != 0 || size.nnz > variants[v].most_nnz) continue;
      const CorpusPattern base = Base(variants[v], size);
      patterns.push_back(base);
      if (!size.has_derived) continue;
      // In turn, so that each derivation meets every variant and every size.
      const std::vector<const Derivation*> fit = DerivationsFor(variants[v], base);
      for (size_t i = 0; i < std::min(kDerived, fit.size()); ++i) {
        patterns.push_back(Derived(base, variants[v], *fit[(v + kDerived * s + i) % fit.size()]));
      }
    }
  }
  return patterns;
}

absl::StatusOr<std::vector<CorpusPattern>> PatternsOfFiles(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string path = entry.path().string();
    if (entry.is_regular_file(error) && tools::IsMatrixFile(path)) paths.push_back(path);
  }
  if (error) return absl::NotFoundError(fmt::format("{}: {}", folder, error.message()));
  std::ranges::sort(paths);
  std::set<std::string> names;
  std::vector<CorpusPattern> patterns;
  for (const std::string& path : paths) {
    CorpusPattern pattern;
    pattern.name = pattern.group = fmt::format("real-{}", tools::NameOfMatrixFile(path));
    pattern.family = "real";
    pattern.parameters = path;
    pattern.seed = SeedOf(pattern.name);
    if (!names.insert(pattern.name).second) {
      return absl::InvalidArgumentError(
          fmt::format("{} has two files of matrix {}", folder, pattern.name));
    }
    pattern.make = [path]() -> absl::StatusOr<Pattern> {
      absl::StatusOr<tools::SparseMatrix> matrix = tools::ReadMatrix(path);
      if (!matrix.ok()) return matrix.status();
      return Pattern{matrix->rows, matrix->cols, std::move(matrix->row_offsets),
                     std::move(matrix->column_indices)};
    };
    patterns.push_back(std::move(pattern));
  }
  return patterns;
}

}  // namespace sparsed::corpus
