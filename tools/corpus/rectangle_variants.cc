#include <fmt/format.h>

#include <algorithm>

#include "tools/corpus/integers.h"
#include "tools/corpus/random.h"
#include "tools/corpus/rectangles.h"
#include "tools/corpus/variants.h"

namespace sparsed::corpus {
namespace {

/// Rows and columns together `cells`, `down` rows to every `across` columns, multiples of 32.
struct Sides {
  Sides(int64_t cells, int64_t down, int64_t across) {
    const auto unit =
        static_cast<int64_t>(SquareRoot(static_cast<uint64_t>(cells / (down * across))));
    rows = std::max<int64_t>(unit * down / 32, 1) * 32;
    cols = std::max<int64_t>(unit * across / 32, 1) * 32;
  }
  int64_t rows, cols;
};

/// `items` to every 100 users.
Variant RatingsVariant(std::string name, int64_t by_each_user, int64_t items, Falloff by_user,
                       Falloff by_item) {
  const auto size = [=](int64_t target) {
    RatingShape shape;
    shape.users = target / by_each_user;
    shape.items = std::max<int64_t>(shape.users * items / 100, 10);
    shape.ratings = target * 5 / 4;  // less duplicates
    shape.by_user = by_user;
    shape.by_item = by_item;
    return Sized{
        shape.users, shape.items, std::min(target, shape.users * shape.items / 2),
        fmt::format("users={} items={} ratings={}", shape.users, shape.items, shape.ratings),
        [=](uint64_t seed) { return Ratings(shape, seed); }};
  };
  return {"ratings", std::move(name), size, /*unordered=*/true};
}

/// `make(rows, cols, seed)`, of which the share `kept` is there.
Variant WeightsVariant(std::string name, int64_t down, int64_t across, int kept,
                       const std::function<Pattern(int64_t, int64_t, uint64_t)>& make) {
  const auto size = [=](int64_t target) {
    const Sides sides(target * 1000 / kept, down, across);
    return Sized{sides.rows, sides.cols, sides.rows * sides.cols * kept / 1000,
                 fmt::format("rows={} cols={} kept={}", sides.rows, sides.cols, kept),
                 [=](uint64_t seed) { return make(sides.rows, sides.cols, seed); }};
  };
  // All columns of all rows have room while it is made.
  return {"weights", std::move(name), size, false, int64_t{100'000} * kept};
}

Variant RandomWeightsVariant(std::string name, int64_t down, int64_t across, int kept,
                             bool uneven) {
  return WeightsVariant(std::move(name), down, across, kept,
                        [=](int64_t rows, int64_t cols, uint64_t seed) {
                          return RandomWeights(rows, cols, kept, uneven, seed);
                        });
}

Variant BlockWeightsVariant(std::string name, int64_t down, int64_t across, int kept,
                            int64_t block_rows, int64_t block_cols) {
  return WeightsVariant(std::move(name), down, across, kept,
                        [=](int64_t rows, int64_t cols, uint64_t seed) {
                          return BlockWeights(rows, cols, block_rows, block_cols, kept, seed);
                        });
}

Variant GroupWeightsVariant(std::string name, int64_t down, int64_t across, int64_t group,
                            int64_t kept) {
  return WeightsVariant(std::move(name), down, across, static_cast<int>(1000 * kept / group),
                        [=](int64_t rows, int64_t cols, uint64_t seed) {
                          return GroupWeights(rows, cols, group, kept, seed);
                        });
}

/// `cols` to every 100 rows.
Variant UniformVariant(std::string name, int64_t row_nnz, int64_t cols) {
  const auto size = [=](int64_t target) {
    const int64_t rows = target / row_nnz, all = std::max(rows * cols / 100, row_nnz);
    return Sized{rows, all, target, fmt::format("rows={} cols={} row_nnz={}", rows, all, row_nnz),
                 [=](uint64_t seed) { return UniformRows(rows, all, row_nnz, seed); }};
  };
  return {"uniform", std::move(name), size, /*unordered=*/true};
}

Variant FewRowsVariant(int64_t step, int64_t row_nnz) {
  const auto size = [=](int64_t target) {
    const int64_t rows = std::max<int64_t>(target / row_nnz, 4) * step;
    return Sized{rows, rows, rows / step * row_nnz,
                 fmt::format("rows={} step={} row_nnz={}", rows, step, row_nnz),
                 [=](uint64_t seed) { return FewRows(rows, step, row_nnz, seed); }};
  };
  return {"uniform", fmt::format("every{}th", step), size};
}

Variant GroupsVariant(int64_t shared) {
  const auto size = [=](int64_t target) {
    const int64_t rows = target / shared;
    return Sized{rows, rows, target, fmt::format("rows={} shared={}", rows, shared),
                 [=](uint64_t seed) {
                   Random random(seed);
                   return Groups(Shuffled(rows, random), shared, seed);
                 }};
  };
  return {"uniform", fmt::format("groups{}", shared), size, /*unordered=*/true};
}

}  // namespace

std::vector<Variant> RectangleVariants() {
  constexpr auto kHalf = Falloff::kHalf, kQuarters = Falloff::kThreeQuarters, kOne = Falloff::kOne;
  return {RatingsVariant("u10", 10, 20, kHalf, kQuarters),
          RatingsVariant("u30", 30, 50, kHalf, kQuarters),
          RatingsVariant("u100few", 100, 150, kQuarters, kHalf),
          RatingsVariant("u5items", 5, 400, kQuarters, kOne),
          RatingsVariant("u20square", 20, 100, kHalf, kHalf),
          RandomWeightsVariant("random100", 1, 1, 100, false),
          RandomWeightsVariant("random20", 1, 4, 20, false),
          RandomWeightsVariant("uneven50", 4, 1, 50, true),
          RandomWeightsVariant("uneven200", 1, 1, 200, true),
          BlockWeightsVariant("block16", 1, 1, 100, 16, 16),
          BlockWeightsVariant("block32", 1, 4, 50, 32, 32),
          BlockWeightsVariant("vector8", 4, 1, 150, 8, 1),
          GroupWeightsVariant("2of4", 1, 1, 4, 2),
          GroupWeightsVariant("1of8", 1, 3, 8, 1),
          UniformVariant("r4", 4, 100),
          UniformVariant("r16", 16, 100),
          UniformVariant("r64", 64, 100),
          UniformVariant("r8wide", 8, 800),
          UniformVariant("r32tall", 32, 20),
          FewRowsVariant(16, 40),
          GroupsVariant(32)};
}

}  // namespace sparsed::corpus
