#include "engine/memory/prepared_runs.h"

#include <gtest/gtest.h>

#include <memory>

namespace sparsed::engine {
namespace {

int prepared = 0;

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context&, const Problem& problem,
                                              const SpmmArguments&, MemorySource&) {
  if (problem.k == 1000) return absl::ResourceExhaustedError("too wide");
  ++prepared;
  return std::make_shared<int>(prepared);
}

SpmmKernel Kernel(std::string_view name, PrepareRuns<SpmmArguments> prepare) {
  return {name, "csr", DeviceKind::kCuda, true, nullptr, nullptr, nullptr, prepare};
}

class PreparedRunsTest : public testing::Test {
 protected:
  PreparedRunsTest() { prepared = 0; }
  void* For(const SpmmKernel& kernel, const std::shared_ptr<const Layout>& layout, int64_t k,
            int64_t leading_dimension = 0) {
    const SpmmArguments arguments{
        *layout, nullptr, {nullptr, 5, k, leading_dimension}, {nullptr, 5, k, k}};
    return runs_.For(kernel, layout, {}, {.k = k}, arguments, HeapMemory());
  }

  PreparedRuns runs_;
  const SpmmKernel kernel_ = Kernel("one", Prepare);
  const SpmmKernel other_ = Kernel("other", Prepare);
  const SpmmKernel plain_ = Kernel("plain", nullptr);
  const std::shared_ptr<const Layout> layout_ = std::make_shared<Layout>();
};

TEST_F(PreparedRunsTest, PrepareOnceForRunsOfOneKind) {
  void* const first = For(kernel_, layout_, 8);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(For(kernel_, layout_, 8), first);
  EXPECT_EQ(prepared, 1);
  EXPECT_NE(For(kernel_, layout_, 16), first);
  EXPECT_NE(For(kernel_, layout_, 8, 12), first);
  EXPECT_NE(For(other_, layout_, 8), first);
  EXPECT_NE(For(kernel_, std::make_shared<Layout>(), 8), first);
  EXPECT_EQ(prepared, 5);
  EXPECT_EQ(For(kernel_, layout_, 8), first);
  EXPECT_EQ(prepared, 5);
}

TEST_F(PreparedRunsTest, DoWithoutWhatCannotBePrepared) {
  EXPECT_EQ(For(plain_, layout_, 8), nullptr);
  EXPECT_EQ(For(kernel_, layout_, 1000), nullptr);
}

TEST_F(PreparedRunsTest, KeepTheLastSixteen) {
  void* const first = For(kernel_, layout_, 1);
  for (int64_t k = 2; k <= 16; ++k) For(kernel_, layout_, k);
  EXPECT_EQ(For(kernel_, layout_, 1), first);  // used again: k = 2 is the oldest now
  For(kernel_, layout_, 17);
  EXPECT_EQ(For(kernel_, layout_, 1), first);
  EXPECT_EQ(prepared, 17);
  For(kernel_, layout_, 2);
  EXPECT_EQ(prepared, 18);
}

TEST_F(PreparedRunsTest, LetGoOfLayoutsThatAreGone) {
  auto gone = std::make_shared<Layout>();
  const std::weak_ptr<const Layout> lifetime = gone;
  For(kernel_, gone, 8);
  gone.reset();
  EXPECT_TRUE(lifetime.expired());
  // Even at the same address it is another layout.
  EXPECT_NE(For(kernel_, std::make_shared<Layout>(), 8), nullptr);
  EXPECT_EQ(prepared, 2);
}

}  // namespace
}  // namespace sparsed::engine
