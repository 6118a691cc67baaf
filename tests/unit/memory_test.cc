// The budget and the assembler of chunks.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "engine/memory/array_assembler.h"
#include "engine/memory/budget.h"
#include "engine/memory/shared_memory.h"
#include "engine/retry.h"

namespace sparsed::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Budget, CountsByUseAndGivesBack) {
  Budget budget(1 << 20, 1 << 19);
  {
    auto a = budget.Source(MemoryUse::kMatrices).Allocate(1000);
    auto b = budget.Source(MemoryUse::kLayouts).Allocate(2000);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(budget.used(MemoryUse::kMatrices), 1000);
    EXPECT_EQ(budget.used(MemoryUse::kLayouts), 2000);
    EXPECT_EQ(budget.used(), 3000);
    const Buffer copy = *a;
    a = Buffer();
    EXPECT_EQ(budget.used(MemoryUse::kMatrices), 1000) << "a copy still holds it";
  }
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(budget.peak(), 3000);
}

TEST(Budget, KnowsWhatEachOwnerHolds) {
  using ::testing::ElementsAre;
  using ::testing::Pair;
  std::vector<Buffer> outliving;
  {
    Budget budget(1 << 20, 1 << 19);
    MemoryOwner& ada = budget.OwnerOf("ada");
    MemoryOwner& bob = budget.OwnerOf("bob");
    EXPECT_EQ(&budget.OwnerOf("ada"), &ada);
    auto request = budget.Source(MemoryUse::kRequests, &ada).Allocate(1000);
    auto matrix = budget.Source(MemoryUse::kMatrices, &ada).Allocate(1 << 18);
    auto charge = budget.Count(300, MemoryUse::kMatrices, &bob);
    auto nobodys = budget.Source(MemoryUse::kLayouts).Allocate(4000);
    ASSERT_TRUE(request.ok() && matrix.ok() && charge.ok() && nobodys.ok());
    EXPECT_THAT(budget.owned(), ElementsAre(Pair("ada", 1000 + (1 << 18)), Pair("bob", 300)));
    EXPECT_EQ(budget.used(), 1000 + (1 << 18) + 300 + 4000);
    EXPECT_FALSE(budget.Source(MemoryUse::kRequests, &bob).Allocate(1 << 20).ok());
    matrix = Buffer();
    *charge = nullptr;
    EXPECT_THAT(budget.owned(), ElementsAre(Pair("ada", 1000), Pair("bob", 0)));
    // Of a block that was kept the next one pays.
    auto again = budget.Source(MemoryUse::kMatrices, &bob).Allocate(1 << 18);
    ASSERT_TRUE(again.ok());
    EXPECT_THAT(budget.owned(), ElementsAre(Pair("ada", 1000), Pair("bob", 1 << 18)));
    outliving = {*request, *again};
  }
  outliving.clear();
}

TEST(Budget, RefusesBeyondTheLimitWithASentence) {
  Budget budget(1 << 20, 1 << 10);
  auto all = budget.Source(MemoryUse::kBuffers).Allocate(1 << 20);
  ASSERT_TRUE(all.ok());
  auto more = budget.Source(MemoryUse::kRequests).Allocate(1);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(more.status().message()), HasSubstr("--host-memory"));
  auto preparation = budget.Source(MemoryUse::kPreparation).Allocate(2000);
  EXPECT_EQ(preparation.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(preparation.status().message()), HasSubstr("--preparation-memory"));
  auto absurd = budget.Source(MemoryUse::kRequests).Allocate(~size_t{0});
  EXPECT_EQ(absurd.status().code(), absl::StatusCode::kResourceExhausted);
  all = Buffer();
  EXPECT_TRUE(budget.Source(MemoryUse::kRequests).Allocate(1 << 19).ok());
}

TEST(Budget, CountsWhatIsAllocatedElsewhere) {
  Budget::Charge kept;
  {
    Budget budget(1 << 20, 1 << 19);
    absl::StatusOr<Budget::Charge> charge = budget.Count(3 << 18, MemoryUse::kMatrices);
    ASSERT_TRUE(charge.ok()) << charge.status();
    EXPECT_EQ(budget.used(MemoryUse::kMatrices), 3 << 18);
    const absl::Status refused = budget.Count(1 << 19, MemoryUse::kMatrices).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("the matrix needs 524288 bytes of host memory, 262144 of 1048576 are "
                          "free (--host-memory less --wire-memory); "));
    kept = *charge;
    charge = Budget::Charge();
    EXPECT_EQ(budget.used(), 3 << 18) << "a copy still holds it";
    kept.reset();
    EXPECT_EQ(budget.used(), 0);
    kept = budget.Count(100, MemoryUse::kBuffers).value();
  }
  kept.reset();  // after the budget
}

TEST(Budget, WhatIsAllocatedElsewhereTakesTheRoomOfWhatIsKept) {
  Budget budget(8 << 20, 1 << 20);
  ASSERT_TRUE(budget.Source(MemoryUse::kRequests).Allocate(1 << 20).ok());
  EXPECT_EQ(budget.kept(), 1 << 20);
  const Budget::Charge charge = budget.Count(8 << 20, MemoryUse::kMatrices).value();
  EXPECT_EQ(budget.kept(), 0);
}

TEST(Budget, PreparationHasALimitOfItsOwn) {
  Budget budget(1 << 30, 1 << 20);
  auto first = budget.Source(MemoryUse::kPreparation).Allocate(1 << 20);
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(budget.Source(MemoryUse::kPreparation).Allocate(1).ok());
  EXPECT_TRUE(budget.Source(MemoryUse::kMatrices).Allocate(1).ok());
}

TEST(Budget, KeptBlocksNeverStandInTheWay) {
  Budget budget(8 << 20, 8 << 20);
  for (int i = 0; i < 8; ++i) {
    auto block = budget.Source(MemoryUse::kRequests).Allocate((1 << 20) + i * 100000);
    ASSERT_TRUE(block.ok()) << i;
    std::memset(block->mutable_data(), i, block->size());
  }
  EXPECT_EQ(budget.used(), 0);
  EXPECT_TRUE(budget.Source(MemoryUse::kRequests).Allocate(8 << 20).ok());
}

TEST(Budget, KeepsWhatCameBackLastForTheNext) {
  Budget budget(64 << 20, 64 << 20);
  MemorySource& requests = budget.Source(MemoryUse::kRequests);
  // More than is kept, of sizes that nobody asks for again.
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(requests.Allocate((1 << 20) << (i % 3)).ok());
  for (int i = 0; i < 4; ++i) {
    const std::byte* const first = requests.Allocate(3 << 20)->data();
    EXPECT_EQ(requests.Allocate(3 << 20)->data(), first);
  }
}

TEST(Budget, CountsWhatIsTakenAndNoMore) {
  // A quarter below the next power of two, and a bit: once counted as a quarter more.
  constexpr int64_t kLimit = 36 << 20;
  Budget budget(kLimit, kLimit);
  const auto most = budget.Source(MemoryUse::kRequests).Allocate(33 << 20);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(budget.used(), 33 << 20);
  const auto rest = budget.Source(MemoryUse::kRequests).Allocate((3 << 20) - 100);
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(budget.used(), kLimit) << "whole pages";
}

TEST(Budget, GivesAwayKeptBlocksCutToSize) {
  Budget budget(64 << 20, 64 << 20);
  MemorySource& requests = budget.Source(MemoryUse::kRequests);
  const std::byte* const first = requests.Allocate(5 << 20)->data();
  EXPECT_EQ(budget.kept(), 5 << 20);
  {
    const auto smaller = requests.Allocate(4 << 20);
    EXPECT_EQ(smaller->data(), first);
    EXPECT_EQ(budget.used(), 4 << 20);
    EXPECT_EQ(budget.kept(), 0) << "its end is gone";
    const auto other = requests.Allocate(3 << 20);
    EXPECT_NE(other->data(), first);
  }
  EXPECT_EQ(budget.kept(), 7 << 20);
  EXPECT_NE(requests.Allocate(1 << 20)->data(), first) << "far too large for it";
}

TEST(Budget, KeptBlocksGoWhenNobodyTakesThem) {
  Budget budget(64 << 20, 64 << 20);
  MemorySource& requests = budget.Source(MemoryUse::kRequests);
  requests.Allocate(1 << 20).IgnoreError();
  requests.Allocate(2 << 20).IgnoreError();
  EXPECT_EQ(budget.kept(), 3 << 20);
  budget.TrimKept();
  EXPECT_EQ(budget.kept(), 3 << 20) << "came back since the last time";
  requests.Allocate(2 << 20).IgnoreError();
  budget.TrimKept();
  EXPECT_EQ(budget.kept(), 2 << 20) << "was taken meanwhile";
  budget.TrimKept();
  EXPECT_EQ(budget.kept(), 0);
}

TEST(Budget, KeptAndUsedTogetherStayWithinTheLimit) {
  constexpr int64_t kLimit = 16 << 20;
  Budget budget(kLimit, kLimit);
  MemorySource& requests = budget.Source(MemoryUse::kRequests);
  requests.Allocate(2 << 20).IgnoreError();
  EXPECT_EQ(budget.kept(), 2 << 20);
  const auto most = requests.Allocate(15 << 20);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_LE(budget.used() + budget.kept(), kLimit);
}

/// Resident pages of this process.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Budget, WhatItDoesNotCountIsNotResident) {
  constexpr int64_t kLimit = 64 << 20;
  Budget budget(kLimit, kLimit);
  const int64_t before = ResidentBytes();
  // Of sizes that an allocator puts next to each other, freed in another order, on other threads.
  std::vector<Buffer> buffers;
  for (int i = 0; i < 200; ++i) {
    buffers.push_back(*budget.Source(MemoryUse::kRequests).Allocate(300000));
    std::memset(buffers.back().mutable_data(), i, buffers.back().size());
  }
  for (int i = 0; i < 200; i += 2) {
    std::thread([&] { buffers[i] = Buffer(); }).join();
  }
  budget.TrimKept();
  budget.TrimKept();
  EXPECT_EQ(budget.kept(), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(ResidentBytes() - before, budget.used() + (8 << 20));
#else
  (void)before;
#endif
}

TEST(Budget, SaysWhenWaitingHelps) {
  Budget budget(1 << 20, 1 << 19);
  MemorySource& requests = budget.Source(MemoryUse::kRequests);
  const auto never = requests.Allocate(2 << 20).status();
  EXPECT_THAT(std::string(never.message()), HasSubstr("more than the 1048576"));
  EXPECT_THAT(std::string(never.message()), Not(HasSubstr("retry")));
  EXPECT_EQ(RetryDelay(never), std::nullopt);
  auto busy = requests.Allocate(1 << 19);
  const auto soon = requests.Allocate(3 << 18).status();
  EXPECT_THAT(std::string(soon.message()), HasSubstr("the request needs 786432 bytes"));
  EXPECT_THAT(std::string(soon.message()), HasSubstr("retry later"));
  EXPECT_NE(RetryDelay(soon), std::nullopt);
  busy = budget.Source(MemoryUse::kMatrices).Allocate(1 << 19);
  const auto held = requests.Allocate(3 << 18).status();
  EXPECT_THAT(std::string(held.message()), HasSubstr("delete matrices"));
  EXPECT_THAT(std::string(held.message()), Not(HasSubstr("retry")));
  EXPECT_EQ(RetryDelay(held), std::nullopt);
  const auto preparation = budget.Source(MemoryUse::kPreparation).Allocate(1 << 20).status();
  EXPECT_THAT(std::string(preparation.message()), HasSubstr("the preparation needs 1048576"));
  EXPECT_EQ(RetryDelay(preparation), std::nullopt);
}

TEST(Budget, SharedMemoryLastsAndHasThreeQuarters) {
  Budget budget(1 << 20, 1 << 19);
  MemoryOwner& owner = budget.OwnerOf("someone");
  const auto share = [&](size_t bytes) { return budget.Count(bytes, MemoryUse::kShared, &owner); };
  const auto never = share((3 << 18) + 4096).status();
  EXPECT_THAT(std::string(never.message()), HasSubstr("three quarters of --host-memory"));
  EXPECT_EQ(RetryDelay(never), std::nullopt);
  auto shared = share(1 << 19);
  ASSERT_TRUE(shared.ok());
  const auto full = share(1 << 19).status();
  EXPECT_THAT(std::string(full.message()), HasSubstr("262144 of the 786432"));
  EXPECT_THAT(std::string(full.message()), HasSubstr("three quarters of --host-memory"));
  EXPECT_EQ(RetryDelay(full), std::nullopt);
  // Nobody knows when it goes.
  const auto request = budget.Source(MemoryUse::kRequests).Allocate(3 << 18).status();
  EXPECT_THAT(std::string(request.message()), HasSubstr("524288 of 1048576 are free"));
  EXPECT_EQ(RetryDelay(request), std::nullopt);
}

TEST(MapShared, TakesNoMoreThanItMay) {
  Budget budget(1 << 20, 1 << 19);
  MemoryOwner& owner = budget.OwnerOf("someone");
  const int file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(file, 8192), 0);
  ASSERT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  {
    const absl::StatusOr<Buffer> memory = MapShared(file, 8192, budget, owner);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(memory->size(), 8192u);
    // What was mapped does not grow with the file.
    ASSERT_EQ(ftruncate(file, 1 << 19), 0);
    EXPECT_EQ(budget.used(MemoryUse::kShared), 8192);
    const absl::Status refused = MapShared(file, 8192, budget, owner).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--connection-memory"));
  }
  EXPECT_EQ(budget.used(MemoryUse::kShared), 0);
  close(file);
}

TEST(Budget, BuffersMayOutliveIt) {
  Buffer survivor;
  {
    Budget budget(1 << 22, 1 << 22);
    survivor = *budget.Source(MemoryUse::kRequests).Allocate(1 << 20);
  }
  std::memset(survivor.mutable_data(), 7, survivor.size());
  EXPECT_EQ(survivor.data()[survivor.size() - 1], std::byte{7});
}

TEST(Budget, WhatCanBeSparedGoesBeforeAnyoneIsRefused) {
  Budget budget(1 << 20, 1 << 10);
  /// Buffers that can be had again.
  class Spared final : public Evictable {
   public:
    explicit Spared(Budget& budget) : queue_(*budget.evictions()) {
      for (int i = 0; i < 4; ++i) {
        buffers_.push_back(budget.Source(MemoryUse::kLayouts).Allocate(128 << 10).value());
      }
    }
    size_t size() const { return buffers_.size(); }
    bool empty() const { return buffers_.empty(); }
    bool in_use = false;

   protected:
    bool Evict() override {
      buffers_.pop_back();
      queue_.Use(*this, static_cast<int64_t>(buffers_.size()) * (128 << 10));
      if (buffers_.empty()) queue_.Remove(*this);
      return true;
    }
    bool idle() const override { return !in_use; }

   private:
    EvictionQueue& queue_;
    std::vector<Buffer> buffers_;
  };
  const auto owner = std::make_shared<Spared>(budget);
  const Spared& spared = *owner;
  budget.evictions()->Use(*owner, 512 << 10);
  const auto fits = budget.Source(MemoryUse::kRequests).Allocate(256 << 10);
  EXPECT_TRUE(fits.ok());
  EXPECT_FALSE(budget.Source(MemoryUse::kPreparation).Allocate(2 << 10).ok());
  EXPECT_EQ(spared.size(), 4u) << "there is room";
  const auto needs = budget.Source(MemoryUse::kRequests).Allocate(512 << 10);
  EXPECT_TRUE(needs.ok()) << needs.status();
  EXPECT_EQ(spared.size(), 2u);
  EXPECT_FALSE(budget.Source(MemoryUse::kRequests).Allocate(2 << 20).ok());
  EXPECT_EQ(spared.size(), 2u) << "the whole limit would not do";
  EXPECT_FALSE(budget.Source(MemoryUse::kRequests).Allocate(900 << 10).ok());
  EXPECT_EQ(spared.size(), 2u) << "all of it would not do";
  {
    const Budget::SpareOnly spare;
    EXPECT_FALSE(budget.Source(MemoryUse::kRequests).Allocate(256 << 10).ok());
    EXPECT_EQ(spared.size(), 2u) << "nothing was to go for it";
  }
  owner->in_use = true;
  EXPECT_FALSE(budget.Source(MemoryUse::kRequests).Allocate(256 << 10).ok());
  EXPECT_EQ(spared.size(), 2u) << "what is in use does not count, and nothing goes in vain";
  owner->in_use = false;
  EXPECT_TRUE(budget.Source(MemoryUse::kRequests).Allocate(256 << 10).ok());
  EXPECT_TRUE(spared.empty());
}

TEST(Budget, ManyThreads) {
  Budget budget(64 << 20, 64 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 500; ++i) {
        const size_t size = random() % 300000;
        auto buffer = budget.Source(static_cast<MemoryUse>(t)).Allocate(size);
        ASSERT_TRUE(buffer.ok());
        if (size > 0) std::memset(buffer->mutable_data(), t, size);
        if (size > 0) {
          ASSERT_EQ(buffer->data()[size / 2], static_cast<std::byte>(t));
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(budget.used(), 0);
}

TEST(ArrivingMemory, IsTakenWithTheFirstByte) {
  constexpr size_t kBytes = 1 << 20;
  Budget budget(8 * kBytes, 8 * kBytes);
  std::unique_ptr<ArrivingMemory> memory =
      ArriveWhole(budget.Source(MemoryUse::kRequests), 6 * kBytes);
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(memory->counted(), 0u);
  EXPECT_TRUE(CheckRoom(budget, MemoryUse::kRequests, 8 * kBytes).ok());
  ASSERT_TRUE(memory->Reach(100, 1).ok());
  EXPECT_EQ(memory->counted(), 6 * kBytes);
  EXPECT_GE(budget.used(), static_cast<int64_t>(6 * kBytes));
  EXPECT_TRUE(CheckRoom(budget, MemoryUse::kRequests, kBytes).ok());
  const absl::Status refused = CheckRoom(budget, MemoryUse::kRequests, 4 * kBytes);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("bytes of host memory"));
  std::unique_ptr<ArrivingMemory> other =
      ArriveWhole(budget.Source(MemoryUse::kBuffers), 4 * kBytes);
  EXPECT_FALSE(other->Reach(0, 1).ok());
  EXPECT_EQ(other->buffer().size(), 0u);
  const Buffer whole = memory->buffer();
  memory.reset();
  EXPECT_GE(budget.used(), static_cast<int64_t>(6 * kBytes)) << "the buffer lives";
}

ArrayAssembler AssemblerOf(int64_t elements) {
  Array array{"values", ElementType::kF32, elements, {}};
  const size_t bytes = array.bytes();
  return {std::move(array), ArriveWhole(HeapMemory(), bytes)};
}

TEST(ArrayAssembler, TakesChunksInAnyOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const int64_t elements = random() % 200;
    ArrayAssembler assembler = AssemblerOf(elements);
    std::vector<std::pair<uint64_t, uint64_t>> chunks;
    for (uint64_t at = 0; at < static_cast<uint64_t>(elements) * 4;) {
      const uint64_t size = std::min<uint64_t>(1 + random() % 97, elements * 4 - at);
      chunks.emplace_back(at, size);
      at += size;
    }
    std::shuffle(chunks.begin(), chunks.end(), random);
    for (const auto& [offset, size] : chunks) {
      EXPECT_FALSE(assembler.complete());
      auto to = assembler.Claim(offset, size);
      ASSERT_TRUE(to.ok()) << to.status();
      for (uint64_t i = 0; i < size; ++i) (*to)[i] = static_cast<std::byte>((offset + i) * 31);
    }
    ASSERT_TRUE(assembler.complete());
    auto array = assembler.Finish();
    ASSERT_TRUE(array.ok());
    for (size_t i = 0; i < array->bytes(); ++i)
      ASSERT_EQ(array->buffer.data()[i], static_cast<std::byte>(i * 31));
  }
}

TEST(ArrayAssembler, RefusesOverlapsOverrunsAndGaps) {
  ArrayAssembler assembler = AssemblerOf(100);
  ASSERT_TRUE(assembler.Claim(100, 100).ok());
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, uint64_t>>{
           {100, 100}, {99, 2}, {199, 1}, {0, 400}, {50, 100}, {120, 10}}) {
    EXPECT_THAT(std::string(assembler.Claim(offset, size).status().message()),
                HasSubstr("overlaps [100, 200)"));
  }
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, uint64_t>>{
           {400, 1}, {399, 2}, {~0ull, 1}, {1, ~0ull}, {401, 0}}) {
    EXPECT_THAT(std::string(assembler.Claim(offset, size).status().message()),
                HasSubstr("beyond the end"));
  }
  EXPECT_TRUE(assembler.Claim(400, 0).ok());
  EXPECT_THAT(std::string(assembler.Finish().status().message()),
              HasSubstr("[0, 100) of 400 never arrived"));
  ASSERT_TRUE(assembler.Claim(0, 100).ok());
  EXPECT_THAT(std::string(assembler.Finish().status().message()),
              HasSubstr("[200, 400) of 400 never arrived"));
  ASSERT_TRUE(assembler.Claim(300, 100).ok());
  EXPECT_THAT(std::string(assembler.Finish().status().message()),
              HasSubstr("[200, 300) of 400 never arrived"));
  ASSERT_TRUE(assembler.Claim(200, 100).ok());
  EXPECT_TRUE(assembler.Finish().ok());
}

TEST(ArrayAssembler, RefusesMoreScatteredPiecesThanItRemembers) {
  constexpr uint64_t kPieces = ArrayAssembler::kMaxRanges;
  ArrayAssembler assembler = AssemblerOf(kPieces + 1);
  EXPECT_EQ(assembler.counted(), 0u);
  const size_t whole = (kPieces + 1) * 4;
  for (uint64_t i = 0; i < kPieces; ++i) {
    ASSERT_TRUE(assembler.Claim(i * 4, 1).ok());
    EXPECT_EQ(assembler.counted(), whole + i * 64);
  }
  EXPECT_THAT(std::string(assembler.Claim(kPieces * 4, 1).status().message()),
              HasSubstr("send larger ones"));
  EXPECT_EQ(assembler.received(), kPieces);
  // What closes gaps is welcome still, and makes room.
  for (uint64_t i = 0; i < kPieces; ++i) ASSERT_TRUE(assembler.Claim(i * 4 + 1, 3).ok());
  EXPECT_EQ(assembler.counted(), whole);
  EXPECT_TRUE(assembler.Claim(kPieces * 4, 4).ok());
  EXPECT_TRUE(assembler.Finish().ok());
}

TEST(ArrayAssembler, WhatFoundNoMemoryHasNotArrived) {
  Budget budget(1000, 0);
  ArrayAssembler assembler(Array{"values", ElementType::kF32, 200, {}},
                           ArriveWhole(budget.Source(MemoryUse::kRequests), 800));
  {
    const Buffer taken = budget.Source(MemoryUse::kRequests).Allocate(500).value();
    EXPECT_TRUE(absl::IsResourceExhausted(assembler.Claim(0, 800).status()));
    EXPECT_FALSE(assembler.complete());
    EXPECT_EQ(assembler.received(), 0u);
  }
  ASSERT_TRUE(assembler.Claim(0, 800).ok());
  EXPECT_TRUE(assembler.complete());
}

TEST(ArrayAssembler, AnEmptyArrayIsCompleteAtOnce) {
  ArrayAssembler assembler = AssemblerOf(0);
  EXPECT_TRUE(assembler.complete());
  EXPECT_TRUE(assembler.Finish().ok());
}

}  // namespace
}  // namespace sparsed::engine
