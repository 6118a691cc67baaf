// Where a chain's values lie in its memory.
#include "client/attached/chain_program.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>

namespace sparsed::test {
namespace {

using Kind = ChainProgram::Kind;

size_t AddTemporary(ChainProgram& program, int64_t rows, int64_t cols) {
  ChainProgram::Value value;
  value.memory = {nullptr, rows, cols, cols};
  value.element = sizeof(float);
  value.temporary = true;
  program.values.push_back(value);
  return program.values.size() - 1;
}

size_t AddOperand(ChainProgram& program, float* data, int64_t rows, int64_t cols) {
  program.values.push_back({.memory = {data, rows, cols, cols}, .element = sizeof(float)});
  return program.values.size() - 1;
}

ChainProgram::Step& AddStep(ChainProgram& program, Kind kind, size_t from, size_t to) {
  ChainProgram::Step& step = program.steps.emplace_back();
  step.kind = kind;
  step.b = from;
  step.to = to;
  return step;
}

constexpr size_t kBytes = 64 * 4 * sizeof(float);

TEST(ChainProgram, ValuesThatFollowEachOtherShareTheirMemory) {
  float data[64 * 4];
  ChainProgram program;
  size_t last = AddOperand(program, data, 64, 4);
  for (int i = 0; i < 100; ++i) {
    const size_t next = AddTemporary(program, 64, 4);
    AddStep(program, Kind::kSpmm, last, next);
    last = next;
  }
  AddStep(program, Kind::kCopy, last, AddOperand(program, data, 64, 4));
  ASSERT_TRUE(program.LayOut());
  EXPECT_EQ(program.temporary_bytes, 2 * kBytes);
  for (size_t i = 0; i + 1 < 100; ++i) {
    ASSERT_NE(program.values[1 + i].offset, program.values[2 + i].offset) << i;
  }
}

TEST(ChainProgram, WhatIsNeededLaterStays) {
  float data[64 * 4];
  ChainProgram program;
  const size_t operand = AddOperand(program, data, 64, 4);
  const size_t early = AddTemporary(program, 64, 4);
  AddStep(program, Kind::kSpmm, operand, early);
  size_t last = early;
  for (int i = 0; i < 5; ++i) {
    const size_t next = AddTemporary(program, 64, 4);
    AddStep(program, Kind::kSpmm, last, next);
    EXPECT_TRUE(program.values[next].temporary);
    last = next;
  }
  program.terms = {{early, 1}, {last, 2}};
  ChainProgram::Step& sum =
      AddStep(program, Kind::kSum, ChainProgram::kNone, AddOperand(program, data, 64, 4));
  sum.terms = 2;
  ASSERT_TRUE(program.LayOut());
  EXPECT_EQ(program.temporary_bytes, 3 * kBytes);
  for (size_t i = early + 1; i <= last; ++i) {
    EXPECT_NE(program.values[i].offset, program.values[early].offset);
  }
}

TEST(ChainProgram, WhatIsAccumulatedToBecomesTheResult) {
  float data[64 * 4];
  ChainProgram program;
  const size_t operand = AddOperand(program, data, 64, 4);
  const size_t old = AddTemporary(program, 64, 4), made = AddTemporary(program, 64, 4);
  AddStep(program, Kind::kSpmm, operand, old);
  AddStep(program, Kind::kSpmm, operand, made).old = old;
  AddStep(program, Kind::kCopy, made, AddOperand(program, data, 64, 4));
  ASSERT_TRUE(program.LayOut());
  EXPECT_EQ(program.steps[1].old, ChainProgram::kNone) << "it is there";
  EXPECT_EQ(program.values[made].offset, program.values[old].offset);
  EXPECT_EQ(program.temporary_bytes, kBytes);

  // Not if the step reads it as its operand, too.
  ChainProgram both;
  const size_t x = AddOperand(both, data, 64, 4);
  const size_t y = AddTemporary(both, 64, 4), z = AddTemporary(both, 64, 4);
  AddStep(both, Kind::kSpmm, x, y);
  AddStep(both, Kind::kSpmm, y, z).old = y;
  AddStep(both, Kind::kCopy, z, AddOperand(both, data, 64, 4));
  ASSERT_TRUE(both.LayOut());
  EXPECT_EQ(both.steps[1].old, y);
  EXPECT_NE(both.values[y].offset, both.values[z].offset);
}

TEST(ChainProgram, WhatNobodyWantsGoesAtOnce) {
  float data[64 * 4];
  ChainProgram program;
  const size_t operand = AddOperand(program, data, 64, 4);
  for (int i = 0; i < 10; ++i) {
    ChainProgram::Step& step =
        AddStep(program, Kind::kReduce, operand, AddTemporary(program, 64, 4));
    step.which = AddTemporary(program, 64, 4);
  }
  ASSERT_TRUE(program.LayOut());
  EXPECT_EQ(program.temporary_bytes, 2 * kBytes);
}

TEST(ChainProgram, GradientsOfOneStepLieApart) {
  float data[64 * 4];
  ChainProgram program;
  const size_t operand = AddOperand(program, data, 64, 4);
  const size_t result = AddTemporary(program, 64, 4), sums = AddTemporary(program, 64, 4);
  ChainProgram::Step& forward = AddStep(program, Kind::kAttention, operand, result);
  forward.a = operand;
  forward.attention.values = operand;
  forward.which = sums;
  ChainProgram::Step& backward =
      AddStep(program, Kind::kAttentionGradient, operand, ChainProgram::kNone);
  backward.a = operand;
  backward.attention.values = backward.attention.gradient = operand;
  backward.attention.result = result;
  backward.attention.log_sums = sums;
  std::set<size_t> offsets;
  for (size_t& gradient : backward.attention.gradients) gradient = AddTemporary(program, 64, 4);
  const std::array<size_t, 5> gradients = backward.attention.gradients;
  ASSERT_TRUE(program.LayOut());
  // With what they are made of.
  for (const size_t value :
       {result, sums, gradients[0], gradients[1], gradients[2], gradients[3], gradients[4]}) {
    EXPECT_TRUE(offsets.insert(program.values[value].offset).second) << value;
  }
  EXPECT_EQ(program.temporary_bytes, 7 * kBytes);
}

TEST(ChainProgram, WhatNoMemoryHoldsIsSaid) {
  float data = 0;
  ChainProgram program;
  AddStep(program, Kind::kSpmm, AddOperand(program, &data, 1, 1),
          AddTemporary(program, int64_t{1} << 40, int64_t{1} << 40));
  EXPECT_FALSE(program.LayOut());
}

}  // namespace
}  // namespace sparsed::test
