#include "engine/memory/prepared_runs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

namespace sparsed::engine {
namespace {

int asked = 0;
std::weak_ptr<Buffer> last;

/// Takes a byte for each column, from k = 1000 on a million each.
absl::StatusOr<std::shared_ptr<void>> Prepare(const Context&, const Problem& problem,
                                              const SpmmArguments&, MemorySource& memory) {
  ++asked;
  absl::StatusOr<Buffer> buffer =
      memory.Allocate(static_cast<size_t>(problem.k) * (problem.k < 1000 ? 1 : 1'000'000));
  if (!buffer.ok()) return buffer.status();
  auto prepared = std::make_shared<Buffer>(*std::move(buffer));
  last = prepared;
  return prepared;
}

/// Promises much, has nothing.
class Address final : public MemorySource {
 public:
  bool is_short = false;
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    if (is_short) return absl::ResourceExhaustedError("no memory");
    return Buffer(std::make_shared<std::byte>(), bytes);
  }
};

SpmmKernel Kernel(std::string_view name, PrepareRuns<SpmmArguments> prepare) {
  return {name, "csr", DeviceKind::kCuda, true, nullptr, nullptr, nullptr, prepare};
}

class PreparedRunsTest : public testing::Test {
 protected:
  PreparedRunsTest() { asked = 0; }
  void* For(const SpmmKernel& kernel, const std::shared_ptr<const Layout>& layout, int64_t k,
            int64_t leading_dimension = 0) {
    RunArguments arguments;
    arguments.dense[0] = {nullptr, 5, k, leading_dimension};
    arguments.result = {nullptr, 5, k, k};
    return runs_.For(BoundRun(LayoutKernel(kernel), {.k = k}, layout, arguments), {}, memory_);
  }

  Address memory_;
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
  EXPECT_EQ(asked, 1);
  EXPECT_NE(For(kernel_, layout_, 16), first);
  EXPECT_NE(For(kernel_, layout_, 8, 12), first);
  EXPECT_NE(For(other_, layout_, 8), first);
  EXPECT_NE(For(kernel_, std::make_shared<Layout>(), 8), first);
  EXPECT_EQ(asked, 5);
  EXPECT_EQ(For(kernel_, layout_, 8), first);
  EXPECT_EQ(asked, 5);
}

TEST_F(PreparedRunsTest, DoWithoutWhatCannotBePrepared) {
  EXPECT_EQ(For(plain_, layout_, 8), nullptr);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(For(kernel_, layout_, 1000), nullptr);  // 1 GB, more than all may have
  EXPECT_EQ(For(kernel_, layout_, 1000), nullptr);
  EXPECT_EQ(asked, 1);
}

TEST_F(PreparedRunsTest, TryAgainWhatFoundNoMemory) {
  memory_.is_short = true;
  EXPECT_EQ(For(kernel_, layout_, 8), nullptr);
  EXPECT_EQ(asked, 1);
  memory_.is_short = false;
  void* prepared = nullptr;
  // After kTryAgainAfter; whoever runs it meanwhile does without, and asks nobody.
  for (int i = 0; i < 6000 && prepared == nullptr; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    prepared = For(kernel_, layout_, 8);
  }
  EXPECT_NE(prepared, nullptr);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(For(kernel_, layout_, 8), prepared);
  EXPECT_EQ(asked, 2);
}

TEST_F(PreparedRunsTest, KeepNoMoreBytesThanTheyMay) {
  const SpmmKernel large = Kernel(
      "large",
      [](const Context&, const Problem&, const SpmmArguments&,
         MemorySource& memory) -> absl::StatusOr<std::shared_ptr<void>> {
        return std::make_shared<Buffer>(memory.Allocate(PreparedRuns::kMostBytes / 2).value());
      });
  EXPECT_NE(For(kernel_, layout_, 8), nullptr);
  const std::weak_ptr<Buffer> small = last;
  EXPECT_NE(For(large, layout_, 1), nullptr);
  EXPECT_FALSE(small.expired());
  EXPECT_NE(For(large, layout_, 2), nullptr);
  EXPECT_TRUE(small.expired());
}

TEST_F(PreparedRunsTest, KeepTheLastSixteen) {
  void* const first = For(kernel_, layout_, 1);
  for (int64_t k = 2; k <= 16; ++k) For(kernel_, layout_, k);
  EXPECT_EQ(For(kernel_, layout_, 1), first);  // used again: k = 2 is the oldest now
  For(kernel_, layout_, 17);
  EXPECT_EQ(For(kernel_, layout_, 1), first);
  EXPECT_EQ(asked, 17);
  For(kernel_, layout_, 2);
  EXPECT_EQ(asked, 18);
}

TEST_F(PreparedRunsTest, LetGoOfLayoutsThatAreGone) {
  // The same address for two layouts, one after the other.
  Layout place;
  std::shared_ptr<const Layout> layout(&place, [](const Layout*) {});
  EXPECT_NE(For(kernel_, layout, 8), nullptr);
  const std::weak_ptr<Buffer> first = last;
  layout.reset();
  layout = std::shared_ptr<const Layout>(&place, [](const Layout*) {});
  EXPECT_NE(For(kernel_, layout, 8), nullptr);
  EXPECT_TRUE(first.expired());
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace sparsed::engine
