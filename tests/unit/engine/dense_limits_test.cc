// How long buffers stay, how much of them a tenant may have, and who they are for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "engine/retry.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Modules whose time the test makes.
class DenseLimits : public testing::Test {
 protected:
  void Open(int64_t tenant_bytes = 0, const std::string& directory = "") {
    DenseOptions options;
    options.time_to_live = hours(1);
    options.tenant_bytes = tenant_bytes;
    options.now = [this] { return DenseClock::time_point(now_.load()); };
    modules_.reset();
    modules_ = std::make_unique<Modules>(directory, kPlenty, kPlenty, options);
  }
  DenseCatalog& dense() { return modules_->dense; }

  /// Zeros; of rows * 4 bytes.
  static PutHeader Header(const std::string& name, int64_t rows = 1) {
    PutHeader header{"t", name, {rows, 1, 1, ElementType::kF32}};
    header.zeros = true;
    return header;
  }
  absl::StatusOr<HeldDenseLease> Put(const PutHeader& header) {
    auto put = dense().BeginPut(header);
    if (!put.ok()) return put.status();
    return (*put)->Finish();
  }
  absl::Status PutLiving(const std::string& name, DenseClock::duration time_to_live) {
    PutHeader header = Header(name);
    header.time_to_live = time_to_live;
    return Put(header).status();
  }

  void Pass(DenseClock::duration time) { now_ = now_.load() + time; }
  std::vector<std::string> Expire() {
    std::vector<std::string> names;
    for (const auto& [held, status] : dense().Expire()) {
      EXPECT_TRUE(status.ok()) << status;
      names.push_back(held->name);
    }
    return names;
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const HeldDenseLease& held : dense().List("t", "")) names.push_back(held->name);
    return names;
  }
  DenseTotals Totals() { return dense().totals()["t"]; }

  std::atomic<DenseClock::duration> now_{hours(100)};
  std::unique_ptr<Modules> modules_;
};

TEST_F(DenseLimits, WhatNothingUsesForItsTimeToLiveIsForgotten) {
  Open();
  ASSERT_TRUE(PutLiving("short", seconds(10)).ok());
  ASSERT_TRUE(PutLiving("default", nanoseconds(0)).ok());
  ASSERT_TRUE(PutLiving("long", hours(48)).ok());
  const int64_t used = modules_->budget.used();
  Pass(seconds(10) - nanoseconds(1));
  EXPECT_THAT(Expire(), IsEmpty());
  Pass(nanoseconds(1));
  EXPECT_THAT(Expire(), ElementsAre("short"));
  EXPECT_LT(modules_->budget.used(), used);
  Pass(hours(1));
  EXPECT_THAT(Expire(), ElementsAre("default"));
  EXPECT_THAT(Names(), ElementsAre("long"));
  EXPECT_EQ(Totals().expired, 2);
  EXPECT_EQ(Totals().count, 1);
  Pass(hours(48));
  EXPECT_THAT(Expire(), ElementsAre("long"));
  EXPECT_EQ(Totals().bytes, 0);
  EXPECT_EQ(modules_->budget.used(), 0);
}

TEST_F(DenseLimits, AServerMayKeepThemForEver) {
  DenseOptions options;
  options.time_to_live = nanoseconds(0);
  options.now = [this] { return DenseClock::time_point(now_.load()); };
  modules_ = std::make_unique<Modules>("", kPlenty, kPlenty, options);
  ASSERT_TRUE(PutLiving("kept", nanoseconds(0)).ok());
  ASSERT_TRUE(PutLiving("asked", seconds(1)).ok());
  Pass(hours(1'000'000));
  EXPECT_THAT(Expire(), ElementsAre("asked"));
}

TEST_F(DenseLimits, EveryUseBeginsTheTimeAnew) {
  Open();
  ASSERT_TRUE(PutLiving("x", seconds(10)).ok());
  const auto still_there_after = [&](const char* use) {
    Pass(seconds(9));
    EXPECT_THAT(Expire(), IsEmpty()) << use;
  };
  still_there_after("put");
  ASSERT_TRUE(dense().Find("t", "x").ok());
  still_there_after("an operand, Get, Renew");
  ASSERT_TRUE(PutLiving("x", seconds(10)).ok());
  still_there_after("put again");
  { ASSERT_TRUE(dense().BeginWrite("t", "x").ok()); }
  still_there_after("a destination of a request that failed");
  {
    auto write = dense().BeginWrite("t", "x");
    ASSERT_TRUE(write.ok());
    Pass(seconds(9));
    ASSERT_TRUE(write->Publish(write->base()->elements).ok());
  }
  still_there_after("a destination");
  // To look at the list is no use.
  EXPECT_EQ(dense().List("t", "").size(), 1u);
  Pass(seconds(1));
  EXPECT_THAT(Expire(), ElementsAre("x"));
}

TEST_F(DenseLimits, WhatARequestUsesStaysAsLongAsItTakes) {
  Open();
  ASSERT_TRUE(PutLiving("x", seconds(10)).ok());
  {
    const HeldDenseLease operand = dense().Find("t", "x").value();
    Pass(hours(5));
    EXPECT_THAT(Expire(), IsEmpty());
  }
  Pass(seconds(9));
  EXPECT_THAT(Expire(), IsEmpty()) << "used until then";
  {
    // A request keeps the elements alone.
    const auto elements = dense().Find("t", "x").value()->elements;
    Pass(hours(5));
    EXPECT_THAT(Expire(), IsEmpty());
  }
  {
    auto write = dense().BeginWrite("t", "x");
    ASSERT_TRUE(write.ok());
    Pass(hours(5));
    EXPECT_THAT(Expire(), IsEmpty());
    // The version that was written, while the request is not at its end.
    ASSERT_TRUE(
        write->Publish(std::make_shared<LazyArray>(test::MakeArray("dense", std::vector<float>{1})))
            .ok());
    Pass(hours(5));
    EXPECT_THAT(Expire(), IsEmpty());
  }
  Pass(seconds(10));
  EXPECT_THAT(Expire(), ElementsAre("x"));
}

TEST_F(DenseLimits, WhoAsksForAnExpiredOneLearnsWhy) {
  Open();
  ASSERT_TRUE(PutLiving("x", seconds(90)).ok());
  Pass(seconds(90));
  ASSERT_THAT(Expire(), ElementsAre("x"));
  const auto expect = [&](const auto& sentence) {
    for (const absl::Status& status :
         {dense().Find("t", "x").status(), dense().BeginWrite("t", "x").status(),
          dense().Delete("t", "x")}) {
      EXPECT_TRUE(absl::IsNotFound(status)) << status;
      EXPECT_THAT(std::string(status.message()), sentence);
    }
  };
  expect(HasSubstr("'x' expired: nothing used it for its time to live of 90 s"));
  EXPECT_THAT(std::string(dense().Find("u", "x").status().message()), Not(HasSubstr("expired")))
      << "another tenant's";
  // Not of one that came after it.
  ASSERT_TRUE(PutLiving("x", seconds(90)).ok());
  ASSERT_TRUE(dense().Delete("t", "x").ok());
  expect(HasSubstr("there is no buffer named 'x'"));

  // No more than some hundreds are remembered.
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(PutLiving(std::to_string(1000 + i), seconds(1)).ok());
  }
  Pass(seconds(1));
  EXPECT_EQ(Expire().size(), 1000u);
  const auto said = [&](const char* name) {
    return std::string(dense().Find("t", name).status().message());
  };
  EXPECT_THAT(said("1000"), Not(HasSubstr("expired")));
  EXPECT_THAT(said("1999"), HasSubstr("expired"));
}

TEST_F(DenseLimits, AReplacedOneLivesAsTheNewOneSays) {
  Open();
  ASSERT_TRUE(PutLiving("x", seconds(10)).ok());
  ASSERT_TRUE(PutLiving("x", hours(10)).ok());
  Pass(hours(9));
  EXPECT_THAT(Expire(), IsEmpty());
  ASSERT_TRUE(PutLiving("x", seconds(10)).ok());
  EXPECT_EQ(dense().Find("t", "x").value()->version, 3u);
  Pass(seconds(10));
  EXPECT_THAT(Expire(), ElementsAre("x"));
}

TEST_F(DenseLimits, ManyAreLookedAtInTurn) {
  Open();
  constexpr int kMany = 10'000;
  for (int i = 0; i < kMany; ++i) {
    ASSERT_TRUE(PutLiving(std::to_string(i), seconds(1 + i % 2)).ok());
  }
  Pass(seconds(1));
  size_t expired = 0;
  for (int pass = 0; pass < 3; ++pass) expired += Expire().size();
  EXPECT_EQ(expired, kMany / 2);
  Pass(seconds(1));
  for (int pass = 0; pass < 3; ++pass) expired += Expire().size();
  EXPECT_EQ(expired, kMany);
  EXPECT_EQ(dense().size(), 0);
  // Whoever ends the server does not wait for the rest.
  ASSERT_TRUE(PutLiving("x", seconds(1)).ok());
  Pass(seconds(1));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THAT(dense().Expire(stop.get_token()), IsEmpty());
}

TEST_F(DenseLimits, BadTimesAndOwnersAreRefused) {
  Open();
  const auto refusal = [&](DenseClock::duration time_to_live, const std::string& owner) {
    PutHeader header = Header("x");
    header.time_to_live = time_to_live;
    header.owner = owner;
    const absl::Status status = Put(header).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(nanoseconds(-1), ""), HasSubstr("time to live of -1 ns, expected 1 to"));
  EXPECT_THAT(refusal(DenseClock::duration::min(), ""), HasSubstr("expected 1 to"));
  EXPECT_THAT(refusal(kLongestTimeToLive + nanoseconds(1), ""), HasSubstr("(366 days)"));
  EXPECT_THAT(refusal(DenseClock::duration::max(), ""), HasSubstr("(366 days)"));
  EXPECT_THAT(refusal(seconds(1), std::string(256, 'a')), HasSubstr("owner name has 256 bytes"));
  EXPECT_THAT(refusal(seconds(1), "job\n7"), HasSubstr("owner name has byte 0x0a at position 3"));
  EXPECT_THAT(refusal(seconds(1), "job 7"), HasSubstr("owner name has byte 0x20"));
  EXPECT_EQ(dense().size(), 0);
  ASSERT_TRUE(PutLiving("longest", kLongestTimeToLive).ok());
  Pass(kLongestTimeToLive - nanoseconds(1));
  EXPECT_THAT(Expire(), IsEmpty());
}

TEST_F(DenseLimits, AQuotaBoundsWhatATenantHolds) {
  // Two of a thousand bytes each.
  const int64_t each = QuotaBytes({250, 1, 1, ElementType::kF32});
  EXPECT_EQ(each, 3048);
  Open(/*tenant_bytes=*/2 * each + 100);
  ASSERT_TRUE(Put(Header("a", 250)).ok());
  ASSERT_TRUE(Put(Header("b", 250)).ok());
  const absl::Status refused = dense().BeginPut(Header("c", 250)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(refused.message(),
            "the buffer 'c' needs 3048 more bytes of what tenant 't' may hold, 100 of 6196 "
            "are free (--buffer-memory); delete buffers, or put them with a shorter "
            "time to live");
  EXPECT_FALSE(RetryDelay(refused).has_value()) << "waiting does not help";
  EXPECT_EQ(Totals().refused, 1);
  PutHeader other = Header("c", 250);
  other.tenant = "u";
  EXPECT_TRUE(Put(other).ok()) << "another tenant's room";

  // What is replaced makes room for what replaces it.
  EXPECT_TRUE(Put(Header("a", 275)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Put(Header("a", 276)).status()));
  EXPECT_EQ(dense().Find("t", "a").value()->shape.rows, 275);
  EXPECT_EQ(Totals().bytes, 2 * each + 100);
  // So does what is deleted, or expires.
  ASSERT_TRUE(dense().Delete("t", "a").ok());
  EXPECT_TRUE(Put(Header("a", 250)).ok());
  Pass(hours(1));
  EXPECT_THAT(Expire(), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(Put(Header("a", 500)).ok());
}

TEST_F(DenseLimits, TwoPutsDoNotGetTheSameRoom) {
  Open(/*tenant_bytes=*/QuotaBytes({250, 1, 1, ElementType::kF32}));
  auto a = dense().BeginPut(Header("a", 250));
  auto b = dense().BeginPut(Header("b", 250));
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_TRUE((*a)->Finish().ok());
  EXPECT_TRUE(absl::IsResourceExhausted((*b)->Finish().status()));
  EXPECT_THAT(Names(), ElementsAre("a"));
}

TEST_F(DenseLimits, DurableOnesComeBackWithAllTheirTime) {
  TemporaryDirectory directory;
  Open(/*tenant_bytes=*/5000, directory.path());
  PutHeader header = Header("kept");
  header.durable = true;
  ASSERT_TRUE(Put(header).ok());
  header.name = "lives";
  header.owner = "alice/train-17";
  header.time_to_live = minutes(10);
  ASSERT_TRUE(Put(header).ok());
  Pass(minutes(9));

  Open(/*tenant_bytes=*/3000, directory.path());  // less than is there
  EXPECT_THAT(Names(), ElementsAre("kept", "lives"));
  EXPECT_EQ(dense().List("t", "lives").at(0)->owner, "alice/train-17");
  EXPECT_EQ(dense().List("t", "lives").at(0)->time_to_live, minutes(10));
  EXPECT_TRUE(absl::IsResourceExhausted(Put(Header("more")).status()));
  Pass(minutes(9));
  EXPECT_THAT(Expire(), IsEmpty()) << "it begins anew";
  Pass(minutes(1));
  EXPECT_THAT(Expire(), ElementsAre("lives"));
  Pass(hours(10'000));
  EXPECT_THAT(Expire(), IsEmpty()) << "a durable one stays unless it was said otherwise";

  Open(0, directory.path());
  EXPECT_THAT(Names(), ElementsAre("kept")) << "what expired does not come back";
}

TEST_F(DenseLimits, ResultsKeepOwnerAndTime) {
  Open();
  PutHeader header = Header("x");
  header.owner = "alice";
  header.time_to_live = seconds(10);
  ASSERT_TRUE(Put(header).ok());
  {
    auto write = dense().BeginWrite("t", "x");
    ASSERT_TRUE(write.ok());
    ASSERT_TRUE(write->Publish(write->base()->elements).ok());
  }
  EXPECT_EQ(dense().List("t", "").at(0)->owner, "alice");
  Pass(seconds(10));
  EXPECT_THAT(Expire(), ElementsAre("x"));
  EXPECT_EQ(Totals().bytes, 0);
}

TEST_F(DenseLimits, WhatTheDiskDoesNotLetGoStays) {
  TemporaryDirectory directory;
  const std::string data = directory.path() + "/data";
  std::filesystem::create_directory(data);
  Open(0, data);
  PutHeader header = Header("x");
  header.durable = true;
  header.time_to_live = seconds(10);
  ASSERT_TRUE(Put(header).ok());
  std::filesystem::rename(data, directory.path() + "/gone");
  Pass(seconds(10));
  const std::vector<DenseExpiry> expired = dense().Expire();
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(expired[0].status)) << expired[0].status;
  EXPECT_TRUE(dense().Find("t", "x").ok());
  EXPECT_EQ(Totals().count, 1);
  EXPECT_EQ(Totals().expired, 0);
  EXPECT_THAT(dense().Expire(), IsEmpty()) << "tried again after its time to live";
}

TEST_F(DenseLimits, ThreadsThatUsePutAndDeleteWhileOthersExpire) {
  Open(/*tenant_bytes=*/10 * QuotaBytes({1, 1, 1, ElementType::kF32}));
  std::atomic<bool> stop = false;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; !stop.load(); ++i) {
        const std::string name = std::to_string(i % 20);
        if (t == 0) {
          PutLiving(name, nanoseconds(1 + i % 3)).IgnoreError();
        } else if (t == 1) {
          const auto held = dense().Find("t", name);
          if (held.ok()) {
            EXPECT_TRUE((*held)->elements->Get().ok());
          }
          auto write = dense().BeginWrite("t", name);
          if (write.ok()) write->Publish(write->base()->elements).IgnoreError();
        } else {
          dense().Delete("t", name).IgnoreError();
          dense().totals();
        }
      }
    });
  }
  for (int pass = 0; pass < 2000; ++pass) {
    Pass(nanoseconds(1));
    Expire();
  }
  stop = true;
  threads.clear();
  Pass(hours(1));
  Expire();
  EXPECT_EQ(dense().size(), 0);
  EXPECT_EQ(Totals().count, 0);
  EXPECT_EQ(Totals().bytes, 0);
  EXPECT_EQ(modules_->budget.used(), 0);
}

}  // namespace
}  // namespace sparsed::engine
