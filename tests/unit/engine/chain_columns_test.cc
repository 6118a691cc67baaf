// Which chains go by columns, and what each part then computes.
#include "engine/execution/chain_columns.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sparsed::engine {
namespace {

SpmmStep Spmm(size_t b, std::optional<size_t> values = {}) {
  SpmmStep step;
  step.matrix = std::string("s");
  step.b = b;
  step.values = values;
  return step;
}

ChainSpec Chain(size_t operands, std::vector<ChainStep> steps) {
  ChainSpec spec;
  spec.operands.resize(operands);
  spec.steps = std::move(steps);
  spec.results.push_back({.value = operands + spec.steps.size() - 1, .place = {}});
  return spec;
}

std::optional<ColumnChain> Split(const ChainSpec& spec, const std::vector<int64_t>& columns,
                                 int64_t parts = 2) {
  return ByColumns(spec, columns, parts);
}

TEST(ChainColumns, OfProductsAndSums) {
  const SumStep sum{{{0, 1}, {2, 1}}};
  const auto chain = Split(Chain(2, {Spmm(0, 1), sum}), {7, 1});
  ASSERT_TRUE(chain.has_value());
  EXPECT_EQ(chain->by_columns, (std::vector<bool>{true, false})) << "values of S are everywhere";
  // Fewer columns than parts.
  EXPECT_FALSE(Split(Chain(1, {Spmm(0)}), {1}).has_value());
  EXPECT_FALSE(Split(Chain(1, {Spmm(0)}), {3}, 4).has_value());
}

TEST(ChainColumns, OneOperandIsUsedInOneWay) {
  // As values of S, and as a dense operand.
  EXPECT_FALSE(Split(Chain(1, {Spmm(0, 0)}), {1}).has_value());
  SpmmStep adds = Spmm(0, 1);
  adds.beta = 1;
  adds.accumulate = 1;
  EXPECT_FALSE(Split(Chain(2, {adds}), {4, 1}).has_value());
  adds.beta = 0;  // not read then
  EXPECT_TRUE(Split(Chain(2, {adds}), {4, 1}).has_value());
}

TEST(ChainColumns, OfHeadsThatPartsHaveAsManyOf) {
  SddmmStep dots;
  dots.matrix = std::string("s");
  dots.a = 0;
  dots.b = 1;
  dots.heads = 4;
  const SoftmaxStep softmax{std::string("s"), 1, 2, {}};
  auto chain = Split(Chain(2, {dots, softmax, Spmm(1, 3)}), {32, 32});
  ASSERT_TRUE(chain.has_value());
  EXPECT_EQ(std::get<SddmmStep>(chain->steps[0]).heads, 2);
  EXPECT_EQ(chain->by_columns, (std::vector<bool>{true, true}));
  EXPECT_FALSE(Split(Chain(2, {dots}), {36, 36}, 3).has_value()) << "four heads, three parts";
  dots.heads = 1;
  EXPECT_FALSE(Split(Chain(2, {dots}), {32, 32}).has_value()) << "it needs whole rows";
}

TEST(ChainColumns, OfAttentionAndItsGradients) {
  AttentionStep attention;
  attention.matrix = std::string("s");
  attention.scores = {.heads = 2, .left = 0, .right = 1, .bias = 3};
  attention.values = 2;
  // A bias for all heads is everywhere, one for each goes with them.
  for (const int64_t bias : {1, 2}) {
    ChainSpec spec = Chain(4, {attention});
    spec.results.push_back({.value = 5, .place = {}});
    const auto chain = Split(spec, {16, 16, 8, bias});
    ASSERT_TRUE(chain.has_value());
    EXPECT_EQ(std::get<AttentionStep>(chain->steps[0]).scores.heads, 1);
    EXPECT_EQ(chain->by_columns, (std::vector<bool>{true, true, true, bias > 1}));
  }
  attention.scores.kind = EdgeScores::Kind::kGatv2;
  attention.scores.att = 4;
  const auto gatv2 = Split(Chain(5, {attention}), {16, 16, 8, 1, 16});
  ASSERT_TRUE(gatv2.has_value());
  EXPECT_EQ(gatv2->by_columns, (std::vector<bool>{true, true, true, false, true}));
  attention.scores.att.reset();
  AttentionGradientStep gradient;
  gradient.matrix = std::string("s");
  gradient.scores = attention.scores;
  gradient.values = 2;
  gradient.result = 4;
  gradient.log_sums = 5;
  gradient.gradient = 6;
  gradient.of_left = gradient.of_bias = true;
  const ChainSpec spec = Chain(7, {gradient});
  EXPECT_TRUE(Split(spec, {16, 16, 8, 2, 8, 2, 8}).has_value());
  EXPECT_FALSE(Split(spec, {16, 16, 8, 1, 8, 2, 8}).has_value()) << "a sum over all heads";
}

TEST(ChainColumns, WhatPartsCouldNotFindWrongIsNotSplit) {
  SddmmStep dots;
  dots.matrix = std::string("s");
  dots.a = 0;
  dots.b = 1;
  dots.heads = 2;
  EXPECT_FALSE(Split(Chain(2, {dots}), {5, 5}).has_value()) << "two heads do not divide five";
  dots.heads = 4;
  dots.values = 2;
  EXPECT_TRUE(Split(Chain(3, {dots}), {16, 16, 4}).has_value());
  EXPECT_FALSE(Split(Chain(3, {dots}), {16, 16, 2}).has_value()) << "values of two heads of four";
  EXPECT_FALSE(Split(Chain(2, {Spmm(0, 1)}), {6, 4}).has_value());
  ReduceStep mean;
  mean.matrix = std::string("s");
  mean.values = 1;
  EXPECT_TRUE(Split(Chain(2, {mean}), {4, 1}).has_value());
  EXPECT_FALSE(Split(Chain(2, {mean}), {4, 2}).has_value()) << "values of two heads";
  ScaleStep scale;
  scale.matrix = std::string("s");
  scale.value = 0;
  scale.rows = 1;
  EXPECT_TRUE(Split(Chain(2, {scale}), {4, 4}).has_value());
  EXPECT_FALSE(Split(Chain(2, {scale}), {4, 2}).has_value()) << "two factors for four heads";
  AttentionStep attention;
  attention.matrix = std::string("s");
  attention.scores = {.heads = 4, .left = 0, .right = 1, .bias = 2};
  attention.values = 1;
  EXPECT_TRUE(Split(Chain(3, {attention}), {16, 16, 4}).has_value());
  EXPECT_FALSE(Split(Chain(3, {attention}), {16, 16, 2}).has_value()) << "a bias of two heads";
}

TEST(ChainColumns, NotOfArguments) {
  ReduceStep greatest;
  greatest.matrix = std::string("s");
  greatest.reduction = Reduction::kMax;
  EXPECT_TRUE(Split(Chain(1, {greatest}), {4}).has_value());
  greatest.arguments = true;
  EXPECT_FALSE(Split(Chain(1, {greatest}), {4}).has_value());
}

TEST(ChainColumns, WrongIndicesAreLeftToTheParts) {
  EXPECT_TRUE(Split(Chain(1, {Spmm(99)}), {4}).has_value());
  EXPECT_FALSE(Split(Chain(1, {SumStep()}), {4}).has_value());
}

}  // namespace
}  // namespace sparsed::engine
