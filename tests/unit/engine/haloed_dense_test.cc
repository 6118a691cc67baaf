// Buffers with room for the rows around them: where these lie, who fills them, what they count.
#include "engine/catalog/haloed_dense.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

bool Never() { return false; }

/// Three rows of two columns, with values 1 to 6, and room for one above and two below.
std::shared_ptr<HaloedDense> OneAboveTwoBelow() {
  auto haloed = HaloedDense::Allocate("x", {3, 2, 2, ElementType::kF32}, {1, 2}, HeapMemory());
  EXPECT_TRUE(haloed.ok()) << haloed.status();
  Array own = (*haloed)->own();
  float value = 0;
  for (float& element : own.MutableAs<float>()) element = ++value;
  return *haloed;
}

/// Writes those numbers around it.
absl::Status FillWith(std::byte* operand, float above, float below) {
  auto* const elements = reinterpret_cast<float*>(operand);
  std::fill_n(elements, 2, above);
  std::fill_n(elements + 8, 4, below);
  return absl::OkStatus();
}

std::vector<float> FloatsIn(const absl::StatusOr<std::shared_ptr<LazyArray>>& operand) {
  if (!operand.ok()) return {};
  const absl::StatusOr<Array> array = (*operand)->Get();
  const auto elements = array->As<float>();
  return {elements.begin(), elements.end()};
}

TEST(HaloedDense, ItsRowsAreTheMiddleOfTheOperand) {
  const std::shared_ptr<HaloedDense> haloed = OneAboveTwoBelow();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(haloed->own().buffer.data()) % Buffer::kAlignment, 0u);
  EXPECT_EQ(haloed->own().bytes(), 24u);
  EXPECT_FALSE(haloed->in_use());
  int filled = 0;
  const auto fill = [&](std::byte* operand) {
    ++filled;
    return FillWith(operand, 7, 8);
  };
  auto operand = haloed->Filled(fill, Never);
  EXPECT_THAT(FloatsIn(operand), ElementsAre(7, 7, 1, 2, 3, 4, 5, 6, 8, 8, 8, 8));
  EXPECT_TRUE(haloed->in_use());
  // Once for all products.
  EXPECT_EQ(haloed->Filled(fill, Never).value(), *operand);
  EXPECT_EQ(filled, 1);
  // Nothing was copied.
  EXPECT_EQ((*operand)->Get()->buffer.data() + 8, haloed->own().buffer.data());
  operand = absl::CancelledError();
  EXPECT_FALSE(haloed->in_use());
}

TEST(HaloedDense, NoRowsOnOneSideOrBoth) {
  for (const Halo halo : {Halo{0, 2}, Halo{2, 0}, Halo{0, 0}}) {
    auto haloed = HaloedDense::Allocate("x", {3, 5, 5, ElementType::kF16}, halo, HeapMemory());
    ASSERT_TRUE(haloed.ok());
    const auto operand =
        (*haloed)->Filled([](std::byte*) { return absl::OkStatus(); }, Never).value()->Get();
    ASSERT_TRUE(operand.ok());
    EXPECT_EQ(operand->length, (3 + halo.rows()) * 5);
    EXPECT_EQ((*haloed)->own().buffer.data() - operand->buffer.data(), halo.above * 10);
  }
}

TEST(HaloedDense, WhatFailedIsFilledByTheNext) {
  const std::shared_ptr<HaloedDense> haloed = OneAboveTwoBelow();
  const absl::Status lost =
      haloed->Filled([](std::byte*) { return absl::UnavailableError("lost"); }, Never).status();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_FALSE(haloed->in_use());
  const auto operand = haloed->Filled([](std::byte* to) { return FillWith(to, 1, 2); }, Never);
  EXPECT_THAT(FloatsIn(operand), ElementsAre(1, 1, 1, 2, 3, 4, 5, 6, 2, 2, 2, 2));
}

TEST(HaloedDense, OthersWaitForTheFirst) {
  for (const absl::Status& end :
       {absl::OkStatus(), absl::CancelledError("its own"), absl::UnavailableError("lost")}) {
    const std::shared_ptr<HaloedDense> haloed = OneAboveTwoBelow();
    std::promise<void> begun, may_end;
    std::thread first([&] {
      const auto fill = [&](std::byte* to) {
        begun.set_value();
        may_end.get_future().wait();
        return end.ok() ? FillWith(to, 3, 3) : end;
      };
      EXPECT_EQ(haloed->Filled(fill, Never).status(), end);
    });
    begun.get_future().wait();
    EXPECT_TRUE(haloed->in_use());
    // Who is stopped waits no longer; whoever else waits goes on.
    const auto not_called = [](std::byte*) { return absl::InternalError("called"); };
    EXPECT_TRUE(absl::IsCancelled(haloed->Filled(not_called, [] { return true; }).status()));
    std::atomic<int> asked = 0;
    std::thread second([&] {
      const auto operand = haloed->Filled([](std::byte* to) { return FillWith(to, 4, 4); },
                                          [&] { return ++asked < 0; });
      if (absl::IsUnavailable(end)) {
        EXPECT_EQ(operand.status(), end) << "tried by one of them alone";
      } else {
        EXPECT_EQ(FloatsIn(operand).front(), end.ok() ? 3 : 4);
      }
    });
    while (asked == 0) std::this_thread::yield();
    may_end.set_value();
    first.join();
    second.join();
  }
}

PutHeader ZerosOf(int64_t rows, int64_t cols) {
  return {"t", "x", {rows, cols, cols, ElementType::kF32}, /*zeros=*/true, /*durable=*/false};
}

TEST(HaloedDense, APutHasRoomForItsHalo) {
  Modules modules;
  PutHeader header = ZerosOf(2, 3);
  header.zeros = false;
  auto put = modules.dense.BeginPut(header);
  ASSERT_TRUE(put.ok());
  ASSERT_TRUE(Feed(**put, 0, std::vector<float>{1, 2, 3, 4, 5, 6}).ok());
  const auto held = (*put)->Finish(nullptr, {1, 1});
  ASSERT_TRUE(held.ok()) << held.status();
  ASSERT_NE((*held)->haloed, nullptr);
  EXPECT_THAT((*(*held)->elements->Get()).As<float>(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ((*(*held)->elements->Get()).buffer.data(), (*held)->haloed->own().buffer.data());
  // What it counts with in the quota, too.
  EXPECT_EQ(modules.dense.totals()["t"].bytes, QuotaBytes((*held)->shape) + 24);
  auto zeros = modules.dense.BeginPut(ZerosOf(4, 3)).value()->Finish(nullptr, {2, 0});
  ASSERT_TRUE(zeros.ok());
  ASSERT_NE((*zeros)->haloed, nullptr);
  EXPECT_THAT((*(*zeros)->elements->Get()).As<float>(), Each(0));
  EXPECT_EQ(modules.dense.totals()["t"].bytes, QuotaBytes((*zeros)->shape) + 24);
  ASSERT_TRUE(modules.dense.Delete("t", "x").ok());
  EXPECT_EQ(modules.dense.totals()["t"].bytes, 0);
  // Both are held yet: 64 bytes where their own rows begin, these, and those below.
  EXPECT_EQ(modules.budget.used(MemoryUse::kBuffers), 2 * 2048 + (64 + 24 + 12) + (64 + 48));
}

TEST(HaloedDense, AQuotaCountsIt) {
  DenseOptions options;
  options.tenant_bytes = QuotaBytes({2, 3, 3, ElementType::kF32}) + 12;
  Modules modules("", kPlenty, kPlenty, options);
  const auto fits = modules.dense.BeginPut(ZerosOf(2, 3)).value()->Finish(nullptr, {1, 0});
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_NE((*fits)->haloed, nullptr);
  EXPECT_EQ(modules.dense.totals()["t"].bytes, options.tenant_bytes);
  // A buffer that the quota has room for is not refused for what it can do without.
  const auto alone = modules.dense.BeginPut(ZerosOf(2, 3)).value()->Finish(nullptr, {1, 1});
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ((*alone)->haloed, nullptr);
  EXPECT_EQ((*alone)->halo.rows(), 0);
  EXPECT_EQ(modules.dense.totals()["t"].bytes, options.tenant_bytes - 12);
}

TEST(HaloedDense, WithoutMemoryForItABufferIsHeldAlone) {
  // 64 KiB and no room for twice that.
  Modules modules("", /*memory=*/100'000);
  const auto held = modules.dense.BeginPut(ZerosOf(128, 128)).value()->Finish(nullptr, {64, 64});
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ((*held)->haloed, nullptr);
  EXPECT_EQ((*held)->halo.rows(), 128) << "results in its place look for it anew";
}

TEST(HaloedDense, WithGapsOrOnTheDiskThereIsNone) {
  TemporaryDirectory directory;
  Modules modules(directory.path());
  PutHeader gaps = ZerosOf(4, 3);
  gaps.shape.leading_dimension = 4;
  PutHeader durable = ZerosOf(4, 3);
  durable.durable = true;
  for (const PutHeader& header : {gaps, durable}) {
    const auto held = modules.dense.BeginPut(header).value()->Finish(nullptr, {1, 1});
    ASSERT_TRUE(held.ok()) << held.status();
    EXPECT_EQ((*held)->haloed, nullptr);
    EXPECT_EQ((*held)->halo.rows(), 0);
  }
}

TEST(HaloedDense, EachResultHasItsOwn) {
  Modules modules;
  const auto held = modules.dense.BeginPut(ZerosOf(2, 3)).value()->Finish(nullptr, {1, 1});
  ASSERT_TRUE(held.ok());
  auto write = modules.dense.BeginWrite("t", "x");
  ASSERT_TRUE(write.ok());
  // One that a GPU has, say.
  ASSERT_TRUE(write->Publish((*held)->elements).ok());
  const HeldDenseLease plain = modules.dense.Find("t", "x").value();
  EXPECT_EQ(plain->haloed, nullptr);
  EXPECT_EQ(plain->halo, (Halo{1, 1}));
  EXPECT_EQ(plain->version, (*held)->version + 1);
  *write = DenseWrite();
  write = modules.dense.BeginWrite("t", "x");
  ASSERT_TRUE(write.ok());
  auto haloed = HaloedDense::Allocate("x", plain->shape, plain->halo, HeapMemory());
  ASSERT_TRUE(haloed.ok());
  write->SetVersion(77);
  ASSERT_TRUE(write->Publish(std::make_shared<LazyArray>((*haloed)->own()), *haloed).ok());
  const HeldDenseLease next = modules.dense.Find("t", "x").value();
  EXPECT_EQ(next->haloed, *haloed);
  EXPECT_EQ(next->version, 77u);
}

}  // namespace
}  // namespace sparsed::engine
