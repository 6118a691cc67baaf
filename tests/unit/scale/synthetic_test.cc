#include "tools/scale/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/formats/csr.h"
#include "tools/scale/row_exchange.h"

namespace sparsed::tools {
namespace {

using testing::HasSubstr;

double FetchedShare(const SyntheticGraph& graph, int64_t rows, int cards) {
  const auto pattern = Generate(graph, rows);
  if (!pattern.ok()) return -1;
  const CsrView csr{
      pattern->rows, pattern->cols, pattern->row_offsets, pattern->column_indices, {}};
  return static_cast<double>(
             CountExchange(csr, BlocksByNonzeros(csr, cards), cards, 8).fetched_rows()) /
         static_cast<double>(csr.rows);
}

TEST(Generate, HasAsManyNonzerosARow) {
  for (const char* const generator : {"power_law", "rmat", "blocks", "uniform"}) {
    SCOPED_TRACE(generator);
    SyntheticGraph graph{.rows = 1 << 20, .nonzeros = 14 << 20};
    graph.generator = generator;
    const auto pattern = Generate(graph, 1 << 14);
    ASSERT_TRUE(pattern.ok()) << pattern.status();
    EXPECT_EQ(pattern->rows, 1 << 14);
    EXPECT_NEAR(static_cast<double>(pattern->nnz()) / (14 << 14), 1, 0.011);
    EXPECT_TRUE(
        ValidateCsr(
            {pattern->rows, pattern->cols, pattern->row_offsets, pattern->column_indices, {}}, 1)
            .ok());
  }
}

TEST(Generate, HasSharesThatDoNotDependOnTheRows) {
  // What extrapolating relies on: uniform graphs and communities exactly, but for chance.
  for (const char* const generator : {"uniform", "blocks"}) {
    SCOPED_TRACE(generator);
    SyntheticGraph graph{.rows = 1 << 20, .nonzeros = 8 << 20};
    graph.generator = generator;
    graph.blocks = 16;
    for (const int cards : {2, 16}) {
      const double small = FetchedShare(graph, 1 << 13, cards),
                   large = FetchedShare(graph, 1 << 15, cards);
      EXPECT_GT(small, 0);
      EXPECT_NEAR(small / large, 1, 0.03) << cards;
    }
  }
  // 1 - exp(-d / cards) of the rows elsewhere, for each card, of a uniform graph.
  SyntheticGraph graph{.rows = 1 << 20, .nonzeros = 8 << 20};
  graph.generator = "uniform";
  EXPECT_NEAR(FetchedShare(graph, 1 << 15, 16), 15 * (1 - std::exp(-0.5)), 0.05);
}

TEST(Generate, RefusesWhatItCannotMake) {
  const auto message = [](const SyntheticGraph& graph, int64_t rows) {
    const auto pattern = Generate(graph, rows);
    EXPECT_EQ(pattern.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(pattern.status().message());
  };
  SyntheticGraph graph{.rows = 1000, .nonzeros = 10'000, .generator = "fractal"};
  EXPECT_THAT(message(graph, 100), HasSubstr("no generator is called fractal"));
  graph.generator = "power_law";
  graph.exponent = 2.1;
  EXPECT_THAT(message(graph, 100), HasSubstr("0.5, 0.75 or 1, not 2.1"));
  graph.exponent = 0.5;
  graph.nonzeros = 1'000'000;
  EXPECT_THAT(message(graph, 100), HasSubstr("too many"));
  graph = {.rows = int64_t{1} << 30, .nonzeros = int64_t{1} << 40};
  EXPECT_THAT(message(graph, int64_t{1} << 20), HasSubstr("--generated-rows"));
}

}  // namespace
}  // namespace sparsed::tools
