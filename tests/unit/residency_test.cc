// Device memory and what lives there, with a card that is a piece of host memory.
#include "engine/memory/residency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/memory/no_room.h"
#include "engine/memory/staging.h"

namespace sparsed::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

/// A card of `bytes`, of which others may take some.
class FakeCard final : public DevicePool {
 public:
  explicit FakeCard(int64_t bytes) : free_(bytes) {}
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    ++allocations;
    free_ -= static_cast<int64_t>(bytes);
    auto memory = std::make_shared<std::vector<std::byte>>(bytes);
    return Buffer(std::shared_ptr<std::byte>(memory->data(),
                                             [this, memory, bytes](std::byte*) { free_ += bytes; }),
                  bytes);
  }
  size_t ExportableBytes(size_t bytes) const override {
    return (bytes + granularity - 1) / granularity * granularity;
  }
  absl::StatusOr<int64_t> LeftAfter(size_t bytes) override {
    return free_ - static_cast<int64_t>(bytes);
  }
  void Settle() override {}
  void Trim() override { ++trims; }
  void TakenByOthers(int64_t bytes) { free_ -= bytes; }
  int64_t free() const { return free_; }
  std::atomic<int> trims = 0, allocations = 0;
  size_t granularity = 1;  ///< of memory to export

 private:
  std::atomic<int64_t> free_;
};

Array HostArray(int64_t length, float value) {
  Array array = AllocateArray(HeapMemory(), "a", ElementType::kF32, length).value();
  for (float& element : array.MutableAs<float>()) element = value;
  return array;
}

std::shared_ptr<Layout> HostLayout(int64_t length) {
  auto layout = std::make_shared<Layout>();
  layout->kind = layout->pipeline = "csr";
  layout->arrays = {HostArray(length, 1), HostArray(length, 2)};
  return layout;
}

class ResidencyTest : public ::testing::Test {
 protected:
  /// 1000 floats fit.
  std::shared_ptr<FakeCard> card_ = std::make_shared<FakeCard>(100'000);
  DeviceBudget budget_{card_, 4000, 1000};
  std::atomic<int> copies_ = 0, placements_ = 0;
  absl::Status copy_error_;
  Residency residency_{
      budget_,
      [this](void* to, const void* from, size_t bytes) {
        ++copies_;
        if (bytes > 0) std::memcpy(to, from, bytes);
        return copy_error_;
      },
      [this](void* to, const void* from, const PitchedRows& rows) {
        ++copies_;
        std::memset(to, 0, rows.rows * rows.device_pitch);
        for (size_t i = 0; i < rows.rows; ++i) {
          std::memcpy(static_cast<std::byte*>(to) + i * rows.device_pitch,
                      static_cast<const std::byte*>(from) + i * rows.host_pitch, rows.row_bytes);
        }
        return copy_error_;
      },
      [this](const Layout& layout, ElementType type, const void* csr_values, void* slots) {
        ++placements_;
        PlaceValues(layout, type, csr_values, slots, /*threads=*/1);
        return copy_error_;
      }};
};

TEST_F(ResidencyTest, WhatIsToBeExportedGoesAndComesInWholeMultiples) {
  card_->granularity = 3000;
  const auto layout = HostLayout(100);
  const Array other = HostArray(100, 1), large = HostArray(500, 2);
  ASSERT_TRUE(residency_.Place(layout).ok());
  ASSERT_TRUE(residency_.Place(other, MemoryUse::kMatrices).ok());
  EXPECT_EQ(budget_.used(), 3400);
  ASSERT_TRUE(residency_.Place(large, MemoryUse::kMatrices).ok());
  EXPECT_EQ(residency_.evictions(), 1) << "the layout alone made room";
  // What never fits evicts nothing.
  card_->granularity = 5000;
  EXPECT_TRUE(absl::IsResourceExhausted(residency_.Place(layout).status()));
  EXPECT_EQ(residency_.evictions(), 1);
}

TEST_F(ResidencyTest, CallersDoNotMapAllOfIt) {
  const Array other = HostArray(200, 1);
  ASSERT_TRUE(residency_.Place(other, MemoryUse::kMatrices).ok());
  MemorySource& shared = budget_.ExportableSource(MemoryUse::kShared);
  const auto most = shared.Allocate(3000);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_TRUE(absl::IsResourceExhausted(shared.Allocate(1).status()));
  EXPECT_EQ(residency_.evictions(), 0);
}

TEST_F(ResidencyTest, NothingGoesForThoseWhoTakeWhatIsSpare) {
  const Array large = HostArray(900, 1), other = HostArray(200, 2);
  ASSERT_TRUE(residency_.Place(large, MemoryUse::kMatrices).ok());
  {
    const Budget::SpareOnly spare;
    EXPECT_TRUE(
        absl::IsResourceExhausted(budget_.Source(MemoryUse::kPreparation).Allocate(800).status()));
    EXPECT_TRUE(absl::IsResourceExhausted(residency_.Place(other, MemoryUse::kMatrices).status()));
    EXPECT_EQ(residency_.evictions(), 0);
    EXPECT_EQ(card_->trims, 0);
  }
  EXPECT_TRUE(budget_.Source(MemoryUse::kPreparation).Allocate(800).ok());
  EXPECT_EQ(residency_.evictions(), 1);
}

TEST_F(ResidencyTest, PlacesOnceAndCountsByUse) {
  const Array host = HostArray(100, 7);
  auto there = residency_.Place(host, MemoryUse::kMatrices);
  ASSERT_TRUE(there.ok());
  EXPECT_NE((*there)->buffer.data(), host.buffer.data());
  EXPECT_EQ((*there)->As<float>()[99], 7);
  EXPECT_EQ(*residency_.Place(host, MemoryUse::kMatrices), *there);
  EXPECT_EQ(copies_, 1);
  EXPECT_EQ(budget_.used(MemoryUse::kMatrices), 400);
  const auto layout = HostLayout(50);
  auto placed = residency_.Place(std::shared_ptr<const Layout>(layout));
  ASSERT_TRUE(placed.ok());
  EXPECT_EQ((*placed)->arrays[1].As<float>()[49], 2);
  EXPECT_EQ(budget_.used(MemoryUse::kLayouts), 456) << "the second array begins at byte 256";
  EXPECT_EQ(residency_.layout_bytes().at("csr"), 456);
}

TEST_F(ResidencyTest, WhoPaysIsCountedUntilTheLastCopyIsGone) {
  Budget host(1 << 20, 1 << 20);
  MemoryOwner& one = host.OwnerOf("one");
  MemoryOwner& other = host.OwnerOf("other");
  EXPECT_TRUE(budget_.owned().empty());
  absl::StatusOr<Buffer> kept = budget_.Source(MemoryUse::kBuffers, &one).Allocate(100);
  absl::StatusOr<Buffer> brief = budget_.SourceAtOnce(MemoryUse::kRequests, &one).Allocate(10);
  const absl::StatusOr<Buffer> others = budget_.Source(MemoryUse::kRequests, &other).Allocate(1);
  const absl::StatusOr<Buffer> nobodys = budget_.Source(MemoryUse::kRequests).Allocate(1000);
  ASSERT_TRUE(kept.ok() && brief.ok() && others.ok() && nobodys.ok());
  EXPECT_THAT(budget_.owned(), ElementsAre(Pair("one", 110), Pair("other", 1)));
  EXPECT_EQ(budget_.used(MemoryUse::kRequests), 1011);
  brief = Buffer();
  EXPECT_THAT(budget_.owned(), ElementsAre(Pair("one", 100), Pair("other", 1)));
  EXPECT_TRUE(absl::IsResourceExhausted(
      budget_.Source(MemoryUse::kRequests, &one).Allocate(5000).status()));
  EXPECT_EQ(budget_.owned().at("one"), 100) << "what was refused";
  Buffer copy = *kept;
  kept = Buffer();
  EXPECT_EQ(budget_.owned().at("one"), 100);
  copy = Buffer();
  EXPECT_EQ(budget_.owned().at("one"), 0);
}

TEST_F(ResidencyTest, ALayoutLiesInOneAllocation) {
  auto layout = std::make_shared<Layout>();
  layout->kind = layout->pipeline = "odd";
  for (const int64_t length : {3, 0, 64, 65}) {
    layout->arrays.push_back(HostArray(length, static_cast<float>(length)));
  }
  const int before = card_->allocations;
  auto placed = residency_.Place(std::shared_ptr<const Layout>(layout));
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_EQ(card_->allocations - before, 1);
  EXPECT_EQ(budget_.used(), 256 + 256 + 260);
  const std::byte* const begin = (*placed)->arrays.front().buffer.data();
  for (size_t i = 0; i < layout->arrays.size(); ++i) {
    const Array& array = (*placed)->arrays[i];
    const auto offset = array.buffer.data() - begin;
    EXPECT_EQ(offset % 256, 0) << "array " << i;
    EXPECT_LE(offset + static_cast<int64_t>(array.bytes()), budget_.used()) << "array " << i;
    EXPECT_TRUE(std::ranges::equal(array.As<float>(), layout->arrays[i].As<float>()));
  }
  // One array that is held keeps all, and with the last all goes.
  Buffer held = (*placed)->arrays[2].buffer;
  *placed = nullptr;
  layout.reset();
  residency_.Sweep();
  EXPECT_EQ(budget_.used(), 256 + 256 + 260);
  held = Buffer();
  EXPECT_EQ(budget_.used(), 0);
}

/// Slots hold CSR's values 2, 0, padding.
std::shared_ptr<Layout> HostLayoutWithSource() {
  auto layout = std::make_shared<Layout>();
  layout->kind = layout->pipeline = "tiles";
  layout->value_slots = 3;
  Array source = AllocateArray(HeapMemory(), kValueSource, ElementType::kI32, 3).value();
  std::ranges::copy(std::array<int32_t, 3>{2, 0, -1}, source.MutableAs<int32_t>().begin());
  layout->arrays = {std::move(source)};
  return layout;
}

TEST_F(ResidencyTest, ValuesArePlacedInALayoutOnceForEachVersion) {
  auto layout = HostLayoutWithSource();
  Array first = HostArray(3, 5), second = HostArray(3, 6);
  first.MutableAs<float>()[2] = 50;
  const auto there = residency_.PlaceValues(first, layout, HeapMemory());
  ASSERT_TRUE(there.ok());
  EXPECT_THAT((*there)->As<float>(), ElementsAre(50, 5, 0));
  EXPECT_EQ(*residency_.PlaceValues(first, layout, HeapMemory()), *there);
  EXPECT_EQ(placements_, 1);
  const auto replaced = residency_.PlaceValues(second, layout, HeapMemory());
  ASSERT_TRUE(replaced.ok());
  EXPECT_THAT((*replaced)->As<float>(), ElementsAre(6, 6, 0));
  EXPECT_EQ(placements_, 2);
  EXPECT_EQ(copies_, 3) << "the layout and two versions of values";
  // Plain CSR's are the values themselves.
  EXPECT_EQ(*residency_.PlaceValues(first, HostLayout(3), HeapMemory()),
            *residency_.Place(first, MemoryUse::kMatrices));
  EXPECT_EQ(placements_, 2);
  // With the layout go the values in it; what stays are the two versions and who holds `there`.
  const int64_t before = budget_.used();
  layout.reset();
  residency_.Sweep();
  EXPECT_EQ(before - budget_.used(), 12) << "the layout's array";
  copy_error_ = absl::UnavailableError("lost");
  EXPECT_EQ(residency_.PlaceValues(first, HostLayoutWithSource(), HeapMemory()).status(),
            copy_error_);
}

/// 400 values and as many slots do not fit beside the layout's 400 indices.
TEST_F(ResidencyTest, ValuesArePlacedOnTheHostWhereTheDeviceIsTooSmall) {
  auto layout = std::make_shared<Layout>();
  layout->kind = layout->pipeline = "tiles";
  layout->value_slots = 400;
  Array source = AllocateArray(HeapMemory(), kValueSource, ElementType::kI32, 400).value();
  std::iota(source.MutableAs<int32_t>().rbegin(), source.MutableAs<int32_t>().rend(), 0);
  layout->arrays = {std::move(source)};
  Array values = HostArray(400, 1);
  values.MutableAs<float>()[399] = 7;
  const auto there = residency_.PlaceValues(values, layout, HeapMemory());
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ((*there)->As<float>()[0], 7);
  EXPECT_EQ((*there)->As<float>()[399], 1);
  EXPECT_EQ(placements_, 0);
  EXPECT_EQ(budget_.used(), 3200) << "the layout and the slots";
  EXPECT_EQ(*residency_.PlaceValues(values, layout, HeapMemory()), *there) << "kept";
}

TEST_F(ResidencyTest, EvictsWhatWasUsedLongestAgoButNothingInUse) {
  const Array a = HostArray(400, 1), b = HostArray(400, 2), c = HostArray(400, 3);
  ASSERT_TRUE(residency_.Place(a, MemoryUse::kMatrices).ok());
  ASSERT_TRUE(residency_.Place(b, MemoryUse::kMatrices).ok());
  ASSERT_TRUE(residency_.Place(a, MemoryUse::kMatrices).ok());  // b is older now
  auto c_there = residency_.Place(c, MemoryUse::kMatrices);
  ASSERT_TRUE(c_there.ok());
  EXPECT_EQ(residency_.evictions(), 1);
  EXPECT_EQ(copies_, 3);
  auto a_there = residency_.Place(a, MemoryUse::kMatrices);
  EXPECT_EQ(copies_, 3) << "it had stayed";
  EXPECT_GT(card_->trims, 0);
  // Both are held: there is no room for b.
  const auto refused = residency_.Place(b, MemoryUse::kMatrices);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("the matrix needs 1600 bytes of device memory, 800 of 4000 are free"));
  a_there->reset();
  EXPECT_TRUE(residency_.Place(b, MemoryUse::kMatrices).ok());
}

TEST_F(ResidencyTest, EvictsAsManyAsItTakesTheOldestFirst) {
  std::vector<Array> hosts;
  for (int i = 0; i < 10; ++i) hosts.push_back(HostArray(100, static_cast<float>(i)));
  const auto place = [&](int i) { return residency_.Place(hosts[i], MemoryUse::kMatrices); };
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(place(i).ok());
  for (const int i : {3, 0, 7}) ASSERT_TRUE(place(i).ok());
  const auto held = place(2);
  ASSERT_TRUE(held.ok());
  {
    const auto room = budget_.Source(MemoryUse::kRequests).Allocate(1600);
    ASSERT_TRUE(room.ok()) << room.status();
    EXPECT_EQ(residency_.evictions(), 4);
  }
  copies_ = 0;
  for (const int i : {8, 9, 3, 0, 7, 2}) ASSERT_TRUE(place(i).ok());
  EXPECT_EQ(copies_, 0) << "they had stayed";
  for (const int i : {1, 4, 5, 6}) ASSERT_TRUE(place(i).ok());
  EXPECT_EQ(copies_, 4);
}

TEST_F(ResidencyTest, CopiesGoWithTheirOriginals) {
  {
    const Array host = HostArray(900, 1);
    ASSERT_TRUE(residency_.Place(host, MemoryUse::kMatrices).ok());
  }
  const Array other = HostArray(900, 2);
  ASSERT_TRUE(residency_.Place(other, MemoryUse::kMatrices).ok());
  EXPECT_EQ(residency_.evictions(), 0);
  EXPECT_EQ(budget_.used(), 3600);
}

TEST_F(ResidencyTest, WhatIsOnlyThereIsSavedBeforeItGoes) {
  auto there = std::make_shared<Array>(
      AllocateArray(budget_.Source(MemoryUse::kBuffers), "c", ElementType::kF32, 600).value());
  there->MutableAs<float>()[599] = 42;
  const auto held = std::make_shared<LazyArray>([there](LazyArray::Stop) -> absl::StatusOr<Array> {
    Array host = HostArray(600, 0);
    std::memcpy(host.buffer.mutable_data(), there->buffer.data(), there->bytes());
    return host;
  });
  EXPECT_FALSE(held->on_disk());
  residency_.Adopt(held, std::move(there));
  ASSERT_TRUE(residency_.Place(held).ok());
  EXPECT_EQ(copies_, 0);
  // Who must not block finds no room; who may, has it saved.
  EXPECT_FALSE(budget_.SourceAtOnce(MemoryUse::kRequests).Allocate(2400).ok());
  EXPECT_FALSE(held->resident());
  ASSERT_TRUE(budget_.Source(MemoryUse::kRequests).Allocate(2400).ok());
  EXPECT_TRUE(held->resident());
  EXPECT_EQ(held->Get()->As<float>()[599], 42);
  EXPECT_EQ(residency_.evictions(), 1);
  auto again = residency_.Place(held);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->As<float>()[599], 42);
}

TEST_F(ResidencyTest, SavesAsManyAsItTakesTheOldestFirst) {
  std::vector<std::shared_ptr<LazyArray>> held;
  for (int i = 0; i < 5; ++i) {
    const auto there = std::make_shared<const Array>(
        AllocateArray(budget_.Source(MemoryUse::kBuffers), "c", ElementType::kF32, 200).value());
    held.push_back(std::make_shared<LazyArray>(
        [there](LazyArray::Stop) -> absl::StatusOr<Array> { return HostArray(200, 1); }));
    residency_.Adopt(held.back(), there);
  }
  ASSERT_TRUE(residency_.Place(held[1]).ok());
  const auto in_use = residency_.Place(held[0]);
  ASSERT_TRUE(budget_.Source(MemoryUse::kRequests).Allocate(1600).ok());
  EXPECT_EQ(residency_.evictions(), 2);
  for (const size_t i : {2, 3}) EXPECT_TRUE(held[i]->resident());
  for (const size_t i : {0, 1, 4}) EXPECT_FALSE(held[i]->resident());
}

TEST_F(ResidencyTest, WhatCannotBeSavedStays) {
  auto there = std::make_shared<const Array>(
      AllocateArray(budget_.Source(MemoryUse::kBuffers), "c", ElementType::kF32, 600).value());
  const auto held = std::make_shared<LazyArray>([there](LazyArray::Stop) -> absl::StatusOr<Array> {
    return absl::ResourceExhaustedError("host is full");
  });
  residency_.Adopt(held, std::move(there));
  EXPECT_TRUE(
      absl::IsResourceExhausted(budget_.Source(MemoryUse::kRequests).Allocate(2400).status()));
  EXPECT_TRUE(residency_.Place(held).ok());
  EXPECT_EQ(residency_.evictions(), 0);
}

TEST_F(ResidencyTest, LeavesTheCardToOthers) {
  card_->TakenByOthers(97'000);
  const auto refused = budget_.Source(MemoryUse::kRequests).Allocate(2500);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("others use the card"));
  EXPECT_EQ(budget_.used(), 0);
  EXPECT_TRUE(budget_.Source(MemoryUse::kRequests).Allocate(1500).ok());
}

TEST_F(ResidencyTest, AFailedCopyLeavesNothing) {
  copy_error_ = absl::UnavailableError("the device is gone");
  const Array host = HostArray(100, 7);
  EXPECT_TRUE(absl::IsUnavailable(residency_.Place(host, MemoryUse::kMatrices).status()));
  EXPECT_EQ(budget_.used(), 0);
  copy_error_ = absl::OkStatus();
  EXPECT_TRUE(residency_.Place(host, MemoryUse::kMatrices).ok());
}

TEST_F(ResidencyTest, ManyThreadsPlaceTheSame) {
  std::vector<Array> hosts;
  for (int i = 0; i < 8; ++i) hosts.push_back(HostArray(300, static_cast<float>(i)));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 300; ++round) {
        const int i = (round * (t + 3)) % 8;
        const auto there = residency_.Place(hosts[i], MemoryUse::kMatrices);
        if (!there.ok() || (*there)->As<float>()[299] != static_cast<float>(i)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(budget_.used(), 4000);
}

TEST(NoRoom, IsForgottenAfterAWhile) {
  const DeviceId first{DeviceKind::kCuda, 0}, second{DeviceKind::kCuda, 1};
  auto layout = std::make_shared<LazyLayout>(HostLayout(1));
  const auto other = std::make_shared<LazyLayout>(HostLayout(1));
  const NoRoom::Time now{};
  NoRoom no_room;
  EXPECT_FALSE(no_room.Has(first, layout, now));
  no_room.Note(first, layout, now);
  EXPECT_TRUE(no_room.Has(first, layout, now));
  EXPECT_FALSE(no_room.Has(second, layout, now));
  EXPECT_FALSE(no_room.Has(first, other, now));
  const NoRoom::Time later = now + NoRoom::kTryAgainAfter;
  EXPECT_TRUE(no_room.Has(first, layout, later - std::chrono::nanoseconds(1)));
  EXPECT_FALSE(no_room.Has(first, layout, later));
  no_room.Note(first, layout, later);
  EXPECT_TRUE(no_room.Has(first, layout, later));
}

TEST(Staging, BlocksComeBackAndTheLastIsForWhoWaits) {
  auto staging = Staging::Create(HeapMemory(), 64, 3);
  ASSERT_TRUE(staging.ok());
  StagingBlock first = (*staging)->Take();
  {
    StagingBlock second = (*staging)->TryTake();
    EXPECT_TRUE(second);
    EXPECT_NE(first.data(), second.data());
    EXPECT_FALSE((*staging)->TryTake());
    EXPECT_TRUE((*staging)->Take());
  }
  const StagingBlock third = (*staging)->Take();
  std::thread waiting([&] {
    const StagingBlock a = (*staging)->Take();
    const StagingBlock b = (*staging)->Take();
    EXPECT_TRUE(a && b);
  });
  first = StagingBlock();
  waiting.join();
}

}  // namespace
}  // namespace sparsed::engine
