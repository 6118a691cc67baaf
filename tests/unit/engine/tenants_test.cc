// What tenants may use, whom they share matrices with, and that nothing else of theirs shows.
#include "engine/memory/tenants.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "engine/retry.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TenantLimits Limits(Quota quota, int64_t hard, int64_t soft = kNoLimit) {
  TenantLimits limits;
  limits.of(quota) = {soft, hard};
  return limits;
}

std::string Sentence(const absl::Status& status) { return std::string(status.message()); }

TEST(Tenant, RefusesPastItsHardLimitAndCountsWhatItRefuses) {
  Tenants tenants;
  tenants.SetLimits({{"a", Limits(Quota::kMatrices, 2)}}, {});
  Tenant& a = tenants.Of("a");
  ASSERT_TRUE(a.Take(Quota::kMatrices).ok());
  absl::StatusOr<TenantHold> hold = a.Hold(Quota::kMatrices);
  ASSERT_TRUE(hold.ok());
  const absl::Status refused = a.Take(Quota::kMatrices);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(Sentence(refused), AllOf(HasSubstr("tenant 'a'"), HasSubstr("2 of the 2 matrices"),
                                       HasSubstr("quota matrices"), HasSubstr("delete some")));
  EXPECT_FALSE(RetryDelay(refused).has_value()) << "waiting does not help";
  EXPECT_EQ(a.refused(Quota::kMatrices), 1);
  EXPECT_EQ(a.used(Quota::kMatrices), 2);
  EXPECT_TRUE(a.Check(Quota::kMatrices, 1, /*instead_of=*/1).ok());
  EXPECT_FALSE(a.Check(Quota::kMatrices).ok());
  *hold = nullptr;
  EXPECT_EQ(a.used(Quota::kMatrices), 1);
  EXPECT_TRUE(a.Take(Quota::kMatrices).ok());
  EXPECT_TRUE(tenants.Of("b").Take(Quota::kMatrices, 1000).ok()) << "others have none";
}

TEST(Tenant, WhereWaitingHelpsItSaysSo) {
  Tenants tenants;
  for (const Quota quota : {Quota::kRequests, Quota::kQueued, Quota::kPreparations}) {
    tenants.SetLimits({}, Limits(quota, 0));
    EXPECT_TRUE(RetryDelay(tenants.Of("a").Take(quota)).has_value()) << Name(quota);
  }
  for (const Quota quota : {Quota::kDiskBytes, Quota::kMatrices, Quota::kBuffers, Quota::kRegions,
                            Quota::kConnections, Quota::kStreams}) {
    tenants.SetLimits({}, Limits(quota, 0));
    EXPECT_FALSE(RetryDelay(tenants.Of("a").Take(quota)).has_value()) << Name(quota);
  }
}

TEST(Tenant, LimitsChangeWhileItRuns) {
  Tenants tenants;
  Tenant& a = tenants.Of("a");
  ASSERT_TRUE(a.Take(Quota::kBuffers, 5).ok());
  tenants.SetLimits({}, Limits(Quota::kBuffers, 3));
  EXPECT_FALSE(a.Take(Quota::kBuffers).ok()) << "it has more than it may";
  EXPECT_EQ(a.used(Quota::kBuffers), 5) << "and keeps it";
  tenants.SetLimits({{"a", Limits(Quota::kBuffers, 6)}}, Limits(Quota::kBuffers, 3));
  EXPECT_TRUE(a.Take(Quota::kBuffers).ok());
  EXPECT_FALSE(a.Take(Quota::kBuffers).ok());
  EXPECT_FALSE(tenants.Of("new").Take(Quota::kBuffers, 4).ok()) << "those of others";
}

TEST(Tenant, WarnsEachTimeItsUseGoesPastTheSoftLimit) {
  Tenants tenants;
  tenants.SetLimits({}, Limits(Quota::kMatrices, 10, /*soft=*/2));
  Tenant& a = tenants.Of("a");
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(a.Take(Quota::kMatrices).ok());
  EXPECT_EQ(a.warned(Quota::kMatrices), 1);
  EXPECT_TRUE(a.above_soft(Quota::kMatrices));
  a.Give(Quota::kMatrices, 3);
  ASSERT_TRUE(a.Take(Quota::kMatrices, 3).ok());
  EXPECT_EQ(a.warned(Quota::kMatrices), 2);
}

TEST(Tenant, BeginsAsManyRequestsASecondAsItMay) {
  Tenants tenants;
  tenants.SetLimits({}, Limits(Quota::kRequestsPerSecond, 10));
  Tenant& a = tenants.Of("a");
  const Tenant::Clock::time_point start = Tenant::Clock::now();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(a.TakeRequest(start).ok()) << i;
  const absl::Status refused = a.TakeRequest(start);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(Sentence(refused), HasSubstr("quota requests_per_second"));
  ASSERT_TRUE(RetryDelay(refused).has_value());
  EXPECT_LE(*RetryDelay(refused), milliseconds(101));
  EXPECT_FALSE(a.TakeRequest(start + milliseconds(99)).ok());
  EXPECT_TRUE(a.TakeRequest(start + *RetryDelay(refused)).ok());
  EXPECT_FALSE(a.TakeRequest(start + *RetryDelay(refused)).ok());
  int after = 0;
  while (a.TakeRequest(start + seconds(100)).ok()) ++after;
  EXPECT_EQ(after, 10) << "what was not used is not saved up";
  tenants.SetLimits({}, Limits(Quota::kRequestsPerSecond, 0));
  EXPECT_FALSE(a.TakeRequest(start + seconds(200)).ok());
}

TEST(Tenant, BeginsFourStatusCallsForEachRequestThatItMayBegin) {
  Tenants tenants;
  Tenant& a = tenants.Of("a");
  const Tenant::Clock::time_point start = Tenant::Clock::now();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(a.TakeStatusCall(start).ok()) << "no limit";
  tenants.SetLimits({}, Limits(Quota::kRequestsPerSecond, 2));
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(a.TakeStatusCall(start).ok()) << i;
  const absl::Status refused = a.TakeStatusCall(start);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(
      Sentence(refused),
      HasSubstr("has begun 4 status calls or streams within a second for each of the 2 requests"));
  EXPECT_THAT(Sentence(refused), HasSubstr("quota requests_per_second"));
  ASSERT_TRUE(RetryDelay(refused).has_value());
  EXPECT_LE(*RetryDelay(refused), milliseconds(126));
  // Requests are counted apart.
  EXPECT_TRUE(a.TakeRequest(start).ok());
  EXPECT_TRUE(a.TakeRequest(start).ok());
  EXPECT_FALSE(a.TakeRequest(start).ok());
  EXPECT_TRUE(a.TakeStatusCall(start + *RetryDelay(refused)).ok());
  tenants.SetLimits({}, Limits(Quota::kRequestsPerSecond, 0));
  EXPECT_FALSE(a.TakeStatusCall(start + seconds(200)).ok());
}

TEST(Tenant, OpensAsManyCarriersForEachRequestAsOneMayHave) {
  Tenants tenants;
  Tenant& a = tenants.Of("a");
  const Tenant::Clock::time_point start = Tenant::Clock::now();
  tenants.SetLimits({}, Limits(Quota::kRequestsPerSecond, 1));
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(a.TakeCarrier(start).ok()) << i;
  const absl::Status refused = a.TakeCarrier(start);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(Sentence(refused), HasSubstr("has opened 16 carriers within a second for each"));
  ASSERT_TRUE(RetryDelay(refused).has_value());
  EXPECT_TRUE(a.TakeCarrier(start + *RetryDelay(refused)).ok());
  // Status calls and requests are counted apart.
  EXPECT_TRUE(a.TakeStatusCall(start).ok());
  EXPECT_TRUE(a.TakeRequest(start).ok());
}

TEST(Tenant, StatusCallsNeedTheRoomOfRequestsAndDoNotShowAmongThem) {
  Tenants tenants;
  Tenant& a = tenants.Of("a");
  tenants.SetLimits({}, Limits(Quota::kRequests, 2));
  absl::StatusOr<TenantHold> request = a.Hold(Quota::kRequests);
  absl::StatusOr<TenantHold> status_call = a.HoldStatusCall();
  ASSERT_TRUE(request.ok() && status_call.ok());
  EXPECT_EQ(a.used(Quota::kRequests), 1);
  EXPECT_FALSE(a.HoldStatusCall().ok());
  EXPECT_FALSE(a.Hold(Quota::kRequests).ok());
  status_call->reset();
  EXPECT_EQ(a.used(Quota::kRequests), 1);
  request->reset();
  EXPECT_EQ(a.used(Quota::kRequests), 0);
  EXPECT_TRUE(a.HoldStatusCall().ok());
}

TEST(Tenant, StatusCallsArePastNoSoftLimit) {
  Tenants tenants;
  Tenant& a = tenants.Of("a");
  TenantLimits limits;
  limits.of(Quota::kRequests) = {.soft = 1, .hard = 10};
  tenants.SetLimits({}, limits);
  std::vector<absl::StatusOr<TenantHold>> status_calls;
  for (int i = 0; i < 3; ++i) status_calls.push_back(a.HoldStatusCall());
  for (const auto& call : status_calls) ASSERT_TRUE(call.ok());
  const absl::StatusOr<TenantHold> first = a.Hold(Quota::kRequests);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(a.warned(Quota::kRequests), 0);
  EXPECT_FALSE(a.above_soft(Quota::kRequests));
  const absl::StatusOr<TenantHold> second = a.Hold(Quota::kRequests);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(a.warned(Quota::kRequests), 1);
  EXPECT_TRUE(a.above_soft(Quota::kRequests));
}

TEST(Tenant, ManyThreadsTakeNoMoreThanTheLimit) {
  Tenants tenants;
  tenants.SetLimits({}, Limits(Quota::kRequests, 3));
  Tenant& a = tenants.Of("a");
  std::atomic<int64_t> held = 0, most = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 2000; ++turn) {
        const absl::StatusOr<TenantHold> hold = a.Hold(Quota::kRequests);
        if (!hold.ok()) continue;
        const int64_t now = ++held;
        int64_t seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        --held;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 3);
  EXPECT_EQ(a.used(Quota::kRequests), 0);
}

TEST(TenantMemory, ATenantAtItsLimitIsRefusedAndOthersAreNot) {
  Budget budget(kPlenty, kPlenty);
  budget.tenants().SetLimits({{"a", Limits(Quota::kHostBytes, 1 << 20)}}, {});
  MemoryOwner& a = budget.OwnerOf("a");
  const auto allocate = [&](MemoryUse use, size_t bytes) {
    return budget.Source(use, &a).Allocate(bytes);
  };
  const absl::Status never = allocate(MemoryUse::kMatrices, 2 << 20).status();
  EXPECT_TRUE(absl::IsResourceExhausted(never));
  EXPECT_FALSE(RetryDelay(never).has_value());
  EXPECT_FALSE(budget.MayFit(2 << 20, MemoryUse::kMatrices, &a).ok());
  auto request = allocate(MemoryUse::kRequests, 768 << 10);
  ASSERT_TRUE(request.ok());
  const absl::Status soon = allocate(MemoryUse::kMatrices, 512 << 10).status();
  EXPECT_THAT(Sentence(soon), HasSubstr("quota host_bytes"));
  EXPECT_TRUE(RetryDelay(soon).has_value()) << "requests end";
  request = Buffer();
  const auto kept = allocate(MemoryUse::kMatrices, 768 << 10);
  ASSERT_TRUE(kept.ok());
  EXPECT_FALSE(RetryDelay(allocate(MemoryUse::kMatrices, 512 << 10).status()).has_value())
      << "what is kept stays";
  EXPECT_TRUE(budget.Source(MemoryUse::kMatrices, &budget.OwnerOf("b")).Allocate(16 << 20).ok());
  EXPECT_EQ(budget.owned().at("a"), budget.tenants().Of("a").used(Quota::kHostBytes));
}

/// Modules over a directory whose memory has room for all, with tenants "t" and "u".
class TenantCatalog : public testing::Test {
 protected:
  void Open(bool share_patterns = false) {
    modules_.reset();
    store_ = OpenStore(PosixFileSystem(), directory_.path()).value();
    budget_ = std::make_unique<Budget>(kPlenty, kPlenty);
    CatalogOptions options;
    options.share_patterns = share_patterns;
    options.now = [this] { return std::chrono::steady_clock::time_point(now_.load()); };
    modules_ = std::make_unique<Catalog>(*store_, *budget_, options);
    ASSERT_TRUE(modules_->Restore(store_->Load().value()).ok());
  }
  void Reopen() {
    modules_.reset();
    budget_.reset();
    store_.reset();
    Open();
  }
  ~TenantCatalog() override {
    modules_.reset();
    budget_.reset();
  }
  Catalog& catalog() { return *modules_; }
  Tenant& tenant(const std::string& name = "t") { return budget_->tenants().Of(name); }
  absl::StatusOr<MatrixLease> Put(const std::string& name, const std::string& owner = "t",
                                  bool replace = false, seconds time_to_live = seconds(0)) {
    UploadHeader header = HeaderOf(name, pattern_);
    header.tenant = owner;
    header.replace = replace;
    header.time_to_live = time_to_live;
    return Send(catalog(), header, pattern_.row_offsets, pattern_.column_indices,
                FloatsOf(pattern_));
  }
  absl::Status Update(const std::string& tenant, const std::string& name, bool durable = false) {
    auto update = catalog().BeginUpdate({tenant, name, ElementType::kF32, durable, 0});
    if (!update.ok()) return update.status();
    if (absl::Status fed = Feed(**update, 0, FloatsOf(pattern_, 7)); !fed.ok()) return fed;
    return (*update)->Finish(1).status();
  }
  std::vector<std::string> Expire() {
    std::vector<std::string> names;
    for (const auto& [matrix, status] : catalog().Expire()) {
      EXPECT_TRUE(status.ok()) << status;
      names.push_back(matrix->name());
    }
    return names;
  }

  const test::Pattern pattern_ = test::Uniform(50, 60, 5, 1);
  const int64_t value_bytes_ = pattern_.nnz() * 4;
  const int64_t pattern_bytes_ = pattern_.nnz() * 4 + (pattern_.rows + 1) * 8;
  TemporaryDirectory directory_;
  std::atomic<std::chrono::nanoseconds> now_{hours(100)};
  std::unique_ptr<Store> store_;
  std::unique_ptr<Budget> budget_;
  std::unique_ptr<Catalog> modules_;
};

TEST_F(TenantCatalog, CountsMatricesAndTheirBytesOnTheDisk) {
  Open();
  ASSERT_TRUE(Put("a").ok());
  EXPECT_EQ(tenant().used(Quota::kMatrices), 1);
  EXPECT_EQ(tenant().used(Quota::kDiskBytes), pattern_bytes_ + value_bytes_);
  ASSERT_TRUE(Put("b").ok());
  EXPECT_EQ(tenant().used(Quota::kDiskBytes), pattern_bytes_ + 2 * value_bytes_);
  ASSERT_TRUE(Put("b", "t", /*replace=*/true).ok());
  EXPECT_EQ(tenant().used(Quota::kMatrices), 2);
  ASSERT_TRUE(Update("t", "b").ok());
  ASSERT_TRUE(Update("t", "b", /*durable=*/true).ok());
  EXPECT_EQ(tenant().used(Quota::kDiskBytes), pattern_bytes_ + 2 * value_bytes_);
  Reopen();
  EXPECT_EQ(tenant().used(Quota::kMatrices), 2);
  EXPECT_EQ(tenant().used(Quota::kDiskBytes), pattern_bytes_ + 2 * value_bytes_);
  ASSERT_TRUE(catalog().Delete("t", "a").ok());
  EXPECT_EQ(tenant().used(Quota::kDiskBytes), pattern_bytes_ + value_bytes_);
  ASSERT_TRUE(catalog().Delete("t", "b").ok());
  EXPECT_EQ(tenant().used(Quota::kDiskBytes), 0);
  EXPECT_EQ(tenant().used(Quota::kMatrices), 0);
  EXPECT_EQ(tenant("u").used(Quota::kDiskBytes), 0);
}

TEST_F(TenantCatalog, RefusesMatricesPastTheLimitButReplacesThem) {
  Open();
  budget_->tenants().SetLimits({{"t", Limits(Quota::kMatrices, 1)}}, {});
  ASSERT_TRUE(Put("a").ok());
  const absl::Status second = Put("b").status();
  EXPECT_TRUE(absl::IsResourceExhausted(second)) << second;
  EXPECT_THAT(Sentence(second), HasSubstr("quota matrices"));
  EXPECT_TRUE(Put("a", "t", /*replace=*/true).ok());
  EXPECT_TRUE(Put("b", "u").ok());
}

TEST_F(TenantCatalog, RefusesBytesOnTheDiskPastTheLimitAndLeavesNothingBehind) {
  Open();
  budget_->tenants().SetLimits(
      {}, Limits(Quota::kDiskBytes, pattern_bytes_ + value_bytes_ + value_bytes_ / 2));
  ASSERT_TRUE(Put("a").ok());
  const int64_t used = tenant().used(Quota::kDiskBytes);
  EXPECT_THAT(Sentence(Put("b").status()), HasSubstr("quota disk_bytes"));
  EXPECT_EQ(tenant().used(Quota::kDiskBytes), used);
  EXPECT_EQ(tenant().used(Quota::kMatrices), 1);
  EXPECT_TRUE(Put("a", "t", /*replace=*/true).ok()) << "it takes the place of the other";
  EXPECT_TRUE(Update("t", "a", /*durable=*/true).ok());
}

TEST_F(TenantCatalog, AMatrixIsThereForThoseAloneWhomItIsSharedWith) {
  Open();
  ASSERT_TRUE(Put("a").ok());
  const absl::Status foreign = catalog().Find("u", "t~a").status();
  const absl::Status missing = catalog().Find("u", "t~b").status();
  EXPECT_TRUE(absl::IsNotFound(foreign));
  EXPECT_EQ(Sentence(foreign), "there is no matrix named 't~a'");
  EXPECT_EQ(Sentence(missing), "there is no matrix named 't~b'");
  EXPECT_TRUE(catalog().Find("t", "t~a").ok()) << "an owner may say whose it is";
  EXPECT_TRUE(catalog().Share("t", "t~a", {"u", Right::kRead}).ok());
  EXPECT_TRUE(catalog().Unshare("t", "t~a", "u").ok());
  EXPECT_TRUE(absl::IsNotFound(catalog().Delete("t", "t~b")));

  ASSERT_TRUE(catalog().Share("t", "a", {"u", Right::kRead}).ok());
  ASSERT_TRUE(catalog().Find("u", "t~a").ok());
  EXPECT_EQ((*catalog().Find("u", "t~a"))->tenant(), "t");
  EXPECT_TRUE(absl::IsNotFound(catalog().Find("u", "a").status()));
  EXPECT_TRUE(absl::IsNotFound(catalog().Find("v", "t~a").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(Update("u", "t~a")));
  EXPECT_TRUE(absl::IsPermissionDenied(catalog().Delete("u", "t~a")));
  EXPECT_TRUE(absl::IsPermissionDenied(catalog().Share("u", "t~a", {"v", Right::kRead})));
  EXPECT_TRUE(absl::IsNotFound(catalog().Delete("v", "t~a")));
  ASSERT_EQ(catalog().ListShared("u", "").size(), 1);
  EXPECT_THAT(catalog().ListShared("u", "", "t~a"), IsEmpty());
  EXPECT_THAT(catalog().ListShared("t", ""), IsEmpty());
  EXPECT_THAT(catalog().List("u", ""), IsEmpty());

  ASSERT_TRUE(catalog().Share("t", "a", {std::string(kEverybody), Right::kWrite}).ok());
  EXPECT_TRUE(Update("v", "t~a").ok());
  EXPECT_EQ((*catalog().Find("t", "a"))->version(), 2);
  ASSERT_TRUE(catalog().Unshare("t", "a", kEverybody).ok());
  EXPECT_TRUE(absl::IsNotFound(catalog().Unshare("t", "a", kEverybody)));
  EXPECT_TRUE(absl::IsNotFound(catalog().Find("v", "t~a").status()));
  EXPECT_TRUE(catalog().Find("u", "t~a").ok());
}

TEST_F(TenantCatalog, SharesStayWithTheNameUntilItIsDeleted) {
  Open();
  ASSERT_TRUE(Put("a").ok());
  ASSERT_TRUE(catalog().Share("t", "a", {"u", Right::kWrite}).ok());
  ASSERT_TRUE(Put("a", "t", /*replace=*/true).ok());
  EXPECT_TRUE(catalog().Find("u", "t~a", Right::kWrite).ok());
  Reopen();
  EXPECT_TRUE(catalog().Find("u", "t~a", Right::kWrite).ok());
  ASSERT_TRUE(catalog().Share("t", "a", {"u", Right::kRead}).ok());
  Reopen();
  EXPECT_TRUE(absl::IsPermissionDenied(catalog().Find("u", "t~a", Right::kWrite).status()));
  ASSERT_TRUE(catalog().Unshare("t", "a", "u").ok());
  Reopen();
  EXPECT_TRUE(absl::IsNotFound(catalog().Find("u", "t~a").status()));
  ASSERT_TRUE(catalog().Share("t", "a", {"u", Right::kRead}).ok());
  ASSERT_TRUE(catalog().Delete("t", "a").ok());
  ASSERT_TRUE(Put("a").ok());
  EXPECT_TRUE(absl::IsNotFound(catalog().Find("u", "t~a").status())) << "it is another matrix";
  Reopen();
  EXPECT_TRUE(absl::IsNotFound(catalog().Find("u", "t~a").status()));
}

TEST_F(TenantCatalog, RefusesSharesThatMakeNoSense) {
  Open();
  ASSERT_TRUE(Put("a").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(catalog().Share("t", "a", {"t", Right::kRead})));
  EXPECT_TRUE(absl::IsInvalidArgument(catalog().Share("t", "a", {"", Right::kRead})));
  EXPECT_TRUE(absl::IsInvalidArgument(catalog().Share("t", "a", {"x y", Right::kRead})));
  EXPECT_TRUE(absl::IsNotFound(catalog().Share("t", "b", {"u", Right::kRead})));
  EXPECT_TRUE(absl::IsNotFound(catalog().Unshare("t", "a", "u")));
  for (const char* name : {"t~", "~a", "~", "t~a~b", "t\n~a"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(catalog().Find("u", name).status())) << name;
  }
  UploadHeader header = HeaderOf("u~a", pattern_);
  EXPECT_TRUE(absl::IsInvalidArgument(catalog().BeginUpload(header).status()));
  for (size_t i = 0; i < Shares::kMost; ++i) {
    ASSERT_TRUE(catalog().Share("t", "a", {fmt::format("w{}", i), Right::kRead}).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(catalog().Share("t", "a", {"one-more", Right::kRead})));
  EXPECT_TRUE(catalog().Share("t", "a", {"w0", Right::kWrite}).ok()) << "in the place of another";
}

TEST_F(TenantCatalog, EqualPatternsOfStrangersAreNotOne) {
  Open();
  const auto mine = Put("a"), again = Put("b"), theirs = Put("a", "u");
  ASSERT_TRUE(mine.ok() && again.ok() && theirs.ok());
  EXPECT_EQ((*mine)->pattern(), (*again)->pattern());
  EXPECT_NE((*mine)->pattern(), (*theirs)->pattern());
  EXPECT_NE((*mine)->pattern()->hash(), (*theirs)->pattern()->hash());
  EXPECT_EQ(tenant("u").used(Quota::kDiskBytes), pattern_bytes_ + value_bytes_)
      << "each pays for his own";
  // What one tenant was told of a pattern is worth nothing to another.
  UploadHeader header = HeaderOf("c", pattern_);
  header.tenant = "u";
  header.pattern_hash = (*mine)->pattern()->hash();
  const auto upload = catalog().BeginUpload(header);
  ASSERT_TRUE(upload.ok());
  EXPECT_FALSE((*upload)->pattern_known());
}

TEST_F(TenantCatalog, PatternsAreSharedWhereTheServerIsToldTo) {
  Open(/*share_patterns=*/true);
  const auto mine = Put("a"), theirs = Put("a", "u");
  ASSERT_TRUE(mine.ok() && theirs.ok());
  EXPECT_EQ((*mine)->pattern(), (*theirs)->pattern());
  EXPECT_EQ(tenant("u").used(Quota::kDiskBytes), value_bytes_) << "the first one pays for it";
  // Where it no longer is, what is stored stays shared, and what comes is not.
  Reopen();
  EXPECT_EQ((*catalog().Find("t", "a"))->pattern(), (*catalog().Find("u", "a"))->pattern());
  const auto fresh = Put("b", "u");
  ASSERT_TRUE(fresh.ok());
  EXPECT_NE((*fresh)->pattern(), (*catalog().Find("t", "a"))->pattern());
}

TEST_F(TenantCatalog, WhatNothingUsesForItsTimeToLiveIsForgotten) {
  Open();
  ASSERT_TRUE(Put("short", "t", false, seconds(10)).ok());
  ASSERT_TRUE(Put("stays").ok());
  ASSERT_TRUE(catalog().Share("t", "short", {"u", Right::kRead}).ok());
  now_ = now_.load() + seconds(9);
  EXPECT_THAT(Expire(), IsEmpty());
  ASSERT_TRUE(catalog().Find("u", "t~short").ok());  // a use
  now_ = now_.load() + seconds(9);
  EXPECT_THAT(Expire(), IsEmpty());
  {
    const auto lease = catalog().Find("t", "short");
    now_ = now_.load() + hours(1);
    EXPECT_THAT(Expire(), IsEmpty()) << "somebody holds it";
  }
  catalog().List("t", "");  // no use
  now_ = now_.load() + seconds(10);
  EXPECT_THAT(Expire(), ElementsAre("short"));
  EXPECT_TRUE(absl::IsNotFound(catalog().Find("t", "short").status()));
  EXPECT_TRUE(absl::IsNotFound(catalog().Find("u", "t~short").status()));
  Reopen();
  EXPECT_TRUE(absl::IsNotFound(catalog().Find("t", "short").status()));
  EXPECT_TRUE(catalog().Find("t", "stays").ok());
}

TEST_F(TenantCatalog, ATimeToLiveSurvivesARestartAndNewValues) {
  Open();
  ASSERT_TRUE(Put("a", "t", false, seconds(10)).ok());
  ASSERT_TRUE(Update("t", "a").ok());
  Reopen();
  EXPECT_EQ((*catalog().Find("t", "a"))->keep().time_to_live, seconds(10));
  now_ = now_.load() + seconds(10);
  EXPECT_THAT(Expire(), ElementsAre("a"));
  const absl::Status negative = Put("b", "t", false, seconds(-1)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(negative));
  EXPECT_THAT(Sentence(negative), HasSubstr("matrix 'b' has a time to live of -1000000000 ns"));
  EXPECT_FALSE(Put("b", "t", false, seconds(367 * 86400)).ok());
}

TEST(TenantBuffers, CountAndBytesOnTheDiskHaveLimits) {
  const TemporaryDirectory directory;
  Modules modules(directory.path());
  TenantLimits limits = Limits(Quota::kBuffers, 2);
  limits.of(Quota::kDiskBytes).hard = 4000;
  modules.budget.tenants().SetLimits({{"t", limits}}, {});
  const auto put = [&](const std::string& name, int64_t rows, bool durable) {
    PutHeader header{"t", name, {rows, 1, 1, ElementType::kF32}};
    header.zeros = true;
    header.durable = durable;
    auto begun = modules.dense.BeginPut(header);
    return begun.ok() ? (*begun)->Finish().status() : begun.status();
  };
  Tenant& tenant = modules.budget.tenants().Of("t");
  ASSERT_TRUE(put("a", 600, true).ok());
  EXPECT_EQ(tenant.used(Quota::kDiskBytes), 2400);
  EXPECT_THAT(Sentence(put("b", 600, true)), HasSubstr("quota disk_bytes"));
  EXPECT_TRUE(put("a", 700, true).ok()) << "in the place of the other";
  EXPECT_EQ(tenant.used(Quota::kDiskBytes), 2800);
  ASSERT_TRUE(put("b", 600, false).ok());
  EXPECT_THAT(Sentence(put("c", 1, false)), HasSubstr("quota buffers"));
  EXPECT_TRUE(put("b", 1, false).ok());
  ASSERT_TRUE(modules.dense.Delete("t", "a").ok());
  EXPECT_EQ(tenant.used(Quota::kDiskBytes), 0);
  EXPECT_EQ(tenant.used(Quota::kBuffers), 1);
  EXPECT_TRUE(put("c", 1, false).ok());
}

TEST_F(TenantCatalog, ATenantAtItsLimitOfMemoryHasWhatIsItsOwnEvicted) {
  Open();
  // Uploads are on the disk, so that what is idle can go.
  budget_->tenants().SetLimits({{"t", Limits(Quota::kHostBytes, 384 << 10)}}, {});
  const test::Pattern large = test::Uniform(2000, 500, 10, 3);
  const auto put = [&](const std::string& owner, const std::string& name) {
    UploadHeader header = HeaderOf(name, large);
    header.tenant = owner;
    header.values_are_ones = true;
    return Send(catalog(), header, large.row_offsets, large.column_indices, std::vector<float>())
        .status();
  };
  ASSERT_TRUE(put("u", "other").ok());
  for (int i = 0; i < 6; ++i) {
    const absl::Status status = put("t", fmt::format("m{}", i));
    EXPECT_TRUE(status.ok()) << i << ": " << status;
    EXPECT_LE(tenant().used(Quota::kHostBytes), 384 << 10);
  }
  EXPECT_EQ(tenant().refused(Quota::kHostBytes), 0) << "there was room in the end";
  EXPECT_TRUE((*catalog().Find("u", "other"))->resident()) << "nobody else pays";
  EXPECT_FALSE((*catalog().Find("t", "m0"))->values_resident());
  EXPECT_TRUE((*catalog().Find("t", "m0"))->Values().ok());
}

TEST_F(TenantCatalog, UnderPressureThoseGoFirstWhoAreAboveTheirSoftLimit) {
  Open();
  ASSERT_TRUE(Put("a", "u").ok());
  ASSERT_TRUE(Put("a", "t").ok());  // used last
  budget_->tenants().SetLimits({{"t", Limits(Quota::kHostBytes, kNoLimit, /*soft=*/0)}}, {});
  // All that is free, and what "t" has of patterns and values.
  const int64_t free = budget_->limit() - budget_->used();
  auto taken = budget_->Count(static_cast<size_t>(free) + 1, MemoryUse::kRequests);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_FALSE((*catalog().Find("t", "a"))->resident());
  EXPECT_TRUE((*catalog().Find("u", "a"))->resident());
}

}  // namespace
}  // namespace sparsed::engine
