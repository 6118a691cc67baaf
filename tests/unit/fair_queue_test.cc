// Start-time fair queuing, with turns whose lengths are made up.
#include "engine/execution/fair_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sparsed::engine {
namespace {

struct Request : FairEntry {
  explicit Request(const std::string& tenant) : FairEntry(tenant) {}
  std::string name;
  double turn_seconds = 0;  ///< what a turn takes in truth
  int turns = 1;            ///< that are left
  int steady = 0;           ///< it comes again when it has ended
};

/// A device of one worker slot, that always has a turn under way while somebody waits.
class FairQueueTest : public testing::Test {
 protected:
  std::shared_ptr<Request> Add(const std::string& tenant, double seconds, double predicted = 0) {
    auto request = std::make_shared<Request>(tenant);
    request->name = tenant;
    request->turn_seconds = seconds;
    request->next_seconds = predicted;
    queue.Push(request);
    return request;
  }
  /// `depth` requests that come again whenever they end.
  void AddSteady(const std::string& tenant, double seconds, int depth, int turns = 1,
                 double predicted = -1) {
    for (int i = 0; i < depth; ++i) {
      auto request = std::make_shared<Request>(tenant);
      request->turn_seconds = seconds;
      request->next_seconds = predicted < 0 ? seconds : predicted;
      request->turns = request->steady = turns;
      request->is_long = turns > 1;
      queue.Push(std::move(request));
    }
  }
  /// Takes turns for so long.
  void RunFor(double seconds) {
    for (const double end = clock + seconds; clock < end && !queue.empty();) RunOne();
  }
  std::string RunOne() {
    FairQueue::Turn turn;
    const auto request = std::static_pointer_cast<Request>(queue.Pop(turn));
    clock += request->turn_seconds;
    queue.Ran(turn, request->turn_seconds);
    queue.End(turn);
    given[request->tenant_name] += request->turn_seconds;
    ++ended[request->tenant_name];
    if (--request->turns > 0) {
      queue.Push(request);
    } else if (request->steady > 0) {
      auto next = std::make_shared<Request>(request->tenant_name);
      next->turn_seconds = request->turn_seconds;
      next->next_seconds = request->next_seconds;
      next->turns = next->steady = request->steady;
      next->is_long = request->is_long;
      queue.Push(std::move(next));
    }
    return request->name;
  }
  std::string RunAll() {
    std::string order;
    while (!queue.empty()) order += RunOne();
    return order;
  }

  FairQueue queue;
  double clock = 0;
  std::map<std::string, double> given;
  std::map<std::string, int> ended;
};

TEST_F(FairQueueTest, EqualTenantsTakeTurns) {
  for (int i = 0; i < 4; ++i) Add("a", 1, 1);
  for (int i = 0; i < 2; ++i) Add("b", 1, 1);
  EXPECT_EQ(RunAll().substr(0, 4).find("aa"), std::string::npos);
  EXPECT_EQ(ended["a"], 4);
  EXPECT_EQ(ended["b"], 2);
}

TEST_F(FairQueueTest, ManyTinyOnesHaveAsMuchTimeAsFewHugeOnes) {
  AddSteady("huge", 0.004, 1, /*turns=*/100);
  AddSteady("tiny", 0.0001, 32);
  RunFor(10);
  EXPECT_NEAR(given["huge"], given["tiny"], 0.01);
}

TEST_F(FairQueueTest, TimeGoesByWeightAndTheWeightMayChange) {
  queue.SetWeights({{{"heavy", 3}}});
  AddSteady("heavy", 0.001, 4);
  AddSteady("light", 0.003, 4);
  RunFor(8);
  EXPECT_NEAR(given["heavy"] / given["light"], 3, 0.05);
  given.clear();
  queue.SetWeights({{{"heavy", 1}, {"light", 1}}});
  RunFor(8);
  EXPECT_NEAR(given["heavy"] / given["light"], 1, 0.02);
  given.clear();
  queue.SetWeights({{{"heavy", -5}}});  // no weight at all
  RunFor(8);
  EXPECT_NEAR(given["heavy"] / given["light"], 1, 0.02);
  given.clear();
  queue.SetWeights({{{"heavy", 1}}, /*others=*/0.25});
  RunFor(8);
  EXPECT_NEAR(given["heavy"] / given["light"], 4, 0.1);
}

TEST_F(FairQueueTest, WrongPredictionsAreCorrected) {
  AddSteady("said too much", 0.001, 4, 1, /*predicted=*/1);
  AddSteady("said nothing", 0.005, 4, 1, /*predicted=*/0);
  RunFor(10);
  EXPECT_NEAR(given["said too much"], given["said nothing"], 0.02);
}

TEST_F(FairQueueTest, SixteenTenantsOfAllSizesHaveEqualParts) {
  for (int i = 0; i < 16; ++i) {
    AddSteady("tenant " + std::to_string(i), 0.0001 * (1 << i % 6), 1 + i % 5, 1 + i % 3);
  }
  RunFor(64);
  for (const auto& [tenant, seconds] : given) EXPECT_NEAR(seconds, 4, 0.05) << tenant;
}

TEST_F(FairQueueTest, IdleTimeSavesNothingUp) {
  AddSteady("a", 1, 2);
  AddSteady("b", 1, 2);
  RunFor(100);
  given.clear();
  // Like one that was never here, it has its part from now on and no more.
  AddSteady("late", 1, 2);
  RunFor(30);
  EXPECT_NEAR(given["late"], 10, 1);
  EXPECT_NEAR(given["a"], 10, 1);
}

TEST_F(FairQueueTest, WhoComesDuringALongTurnSavesNothingUpEither) {
  auto request = Add("long", 0, 0.004);
  request->is_long = true;
  FairQueue::Turn turn;
  EXPECT_EQ(queue.Pop(turn), request);
  for (int i = 0; i < 1000; ++i) {
    queue.Ran(turn, 1);
    EXPECT_FALSE(queue.Passes(turn));
  }
  // Alone for a thousand seconds, it owes nothing to who comes then.
  AddSteady("new", 1, 1);
  queue.Ran(turn, 0.5);
  EXPECT_TRUE(queue.Passes(turn));
  queue.End(turn);
  request->turn_seconds = 1;
  request->next_seconds = 1;
  request->turns = 1000;
  queue.Push(request);
  RunFor(100);
  EXPECT_NEAR(given["long"], 50, 2);
}

TEST_F(FairQueueTest, WhatATurnTookTooMuchIsNotOwedForEver) {
  Add("greedy", 1000);
  RunAll();
  given.clear();
  AddSteady("other", 1, 1);
  RunFor(3);
  // It was away while the others had what it had had too much: not a thousand seconds of them.
  AddSteady("greedy", 1, 1);
  RunFor(2100);
  EXPECT_GT(given["greedy"], 500);
  given.clear();
  RunFor(100);
  EXPECT_NEAR(given["greedy"], 50, 1);
}

TEST_F(FairQueueTest, ATinyOneWaitsForOneTurnOfAHugeOne) {
  AddSteady("huge", 0.004, 8, 1000);
  RunFor(1);
  for (int i = 0; i < 100; ++i) {
    auto tiny = Add("tiny", 0.0001, 0.0001);
    tiny->name = "tiny!";
    int turns = 0;
    while (RunOne() != "tiny!") ++turns;
    EXPECT_LE(turns, 1);
  }
}

TEST_F(FairQueueTest, WithinATenantThePriorityDecidesThenWhoCameFirst) {
  const auto add = [&](const char* name, int priority) {
    auto request = std::make_shared<Request>("t");
    request->name = name;
    request->priority = priority;
    request->next_seconds = request->turn_seconds = 1;
    queue.Push(std::move(request));
  };
  add("a", 0);
  add("b", 3);
  add("c", 0);
  add("d", 7);
  add("e", 3);
  EXPECT_EQ(RunAll(), "dbeac");
}

TEST_F(FairQueueTest, APriorityIsNothingToOtherTenants) {
  AddSteady("a", 0.001, 4);
  for (int i = 0; i < 4; ++i) {
    auto request = std::make_shared<Request>("b");
    request->priority = 7;
    request->next_seconds = request->turn_seconds = 0.001;
    request->turns = request->steady = 1000;
    queue.Push(std::move(request));
  }
  RunFor(2);
  EXPECT_NEAR(given["a"], given["b"], 0.01);
}

TEST_F(FairQueueTest, LongOnesOfATenantEndInOrderAndItsShortOnesPassThem) {
  std::vector<std::shared_ptr<Request>> long_ones;
  for (const char* const name : {"A", "B"}) {
    auto request = std::make_shared<Request>("t");
    request->name = name;
    request->is_long = true;
    request->turns = 4;
    request->next_seconds = request->turn_seconds = 1;
    queue.Push(request);
  }
  EXPECT_EQ(RunOne(), "A");
  Add("t", 0.5, 0.5)->name = "s";
  Add("t", 0.5, 0.5)->name = "s";
  Add("t", 0.5, 0.5)->name = "s";
  // Of the tenant's time one half is for its short ones.
  EXPECT_EQ(RunAll(), "sAssAABBBB");
}

TEST_F(FairQueueTest, WhatATenantDidBeforeDoesNotHoldUpItsShortOnes) {
  AddSteady("t", 0.01, 1);
  RunFor(10);  // short ones alone
  AddSteady("t", 0.01, 2, 1000);
  RunFor(1);
  auto late = Add("t", 0.001, 0.001);
  late->name = "late";
  int turns = 0;
  while (RunOne() != "late") ++turns;
  EXPECT_LE(turns, 3);
}

TEST_F(FairQueueTest, WhoGoesNextIsToldDuringATurn) {
  auto big = Add("t", 0, 1);
  big->is_long = true;
  FairQueue::Turn turn;
  queue.Pop(turn);
  queue.Ran(turn, 1);
  EXPECT_FALSE(queue.Passes(turn)) << "nobody waits";
  auto later = Add("t", 1, 1);
  later->is_long = true;
  // Pushed as a short one: taken out and brought again as a long one.
  queue.Ran(turn, 0.1);
  auto urgent = std::make_shared<Request>("t");
  urgent->priority = 1;
  queue.Push(urgent);
  EXPECT_TRUE(queue.Passes(turn));
  EXPECT_TRUE(queue.Remove(*urgent));
  EXPECT_FALSE(queue.Remove(*urgent));
  auto of_other = Add("other", 1, 1);
  queue.Ran(turn, 0.1);
  EXPECT_TRUE(queue.Passes(turn));
  queue.End(turn);
}

TEST_F(FairQueueTest, LongOnesOfTwoTenantsHaveLongTurns) {
  const auto add = [&](const std::string& tenant, bool is_long) {
    auto request = std::make_shared<Request>(tenant);
    request->is_long = is_long;
    queue.Push(request);
    return request;
  };
  add("t", true);
  FairQueue::Turn turn;
  queue.Pop(turn);
  add("other", true);
  constexpr double kPiece = 0.6 * FairQueue::kLongTurnSeconds;
  queue.Ran(turn, kPiece);
  EXPECT_FALSE(queue.Passes(turn)) << "it would fill the caches for less than a turn";
  const auto brief = add("third", false);
  queue.Ran(turn, 1e-3);
  EXPECT_TRUE(queue.Passes(turn)) << "what is short waits for no more than a piece";
  EXPECT_TRUE(queue.Remove(*brief));
  EXPECT_FALSE(queue.Passes(turn));
  queue.Ran(turn, kPiece);
  EXPECT_TRUE(queue.Passes(turn));
  queue.End(turn);
}

TEST_F(FairQueueTest, OthersJoinATurnAndAreChargedWithIt) {
  Add("a", 1, 1);  // of equals, who had a turn longest ago goes first
  RunOne();
  Add("b", 1, 1);
  RunOne();
  for (int i = 0; i < 6; ++i) Add("a", 0, 1)->name = i % 2 == 0 ? "even" : "odd";
  Add("b", 1, 1);
  FairQueue::Turn turn;
  const auto first = queue.Pop(turn);
  const auto joined = queue.PopWith(turn, 4, [](const FairEntry& entry) {
    return static_cast<const Request&>(entry).name == "even";
  });
  EXPECT_EQ(joined.size(), 2u) << "those asked about: four of five";
  EXPECT_EQ(queue.size(), 4);
  queue.Ran(turn, 3);
  queue.End(turn);
  EXPECT_EQ(RunOne(), "b");
}

TEST_F(FairQueueTest, LongOnesJoinLongOnesAlone) {
  const auto add = [&](bool is_long) {
    auto request = std::make_shared<Request>("a");
    request->is_long = is_long;
    request->next_seconds = 1;
    queue.Push(request);
    return request;
  };
  const auto first = add(true), second = add(true);
  FairQueue::Turn turn;
  EXPECT_EQ(queue.PopLong(turn), first);
  const auto brief = add(false);
  const auto joined = queue.PopWith(turn, 10, [](const FairEntry&) { return true; });
  ASSERT_EQ(joined.size(), 1u);
  EXPECT_EQ(joined[0], second);
  EXPECT_EQ(queue.short_ones(), 1);
  queue.Ran(turn, 2);
  queue.End(turn);
  FairQueue::Turn of_brief;
  EXPECT_EQ(queue.Pop(of_brief), brief);
  queue.End(of_brief);
}

TEST_F(FairQueueTest, SecondsUntilTheEndCountWhoGoesBefore) {
  const auto add = [&](const std::string& tenant, double rest) {
    auto request = std::make_shared<Request>(tenant);
    request->rest_seconds = rest;
    queue.Push(request);
    return request;
  };
  Request mine("a");
  mine.rest_seconds = 1;
  EXPECT_DOUBLE_EQ(queue.SecondsUntilEnd(mine, 1), 1);
  for (int i = 0; i < 10; ++i) add("b", 2);
  EXPECT_DOUBLE_EQ(queue.SecondsUntilEnd(mine, 1), 2) << "the other has no more than its share";
  add("a", 3);
  EXPECT_DOUBLE_EQ(queue.SecondsUntilEnd(mine, 1), 8);
  EXPECT_DOUBLE_EQ(queue.SecondsUntilEnd(mine, 4), 2);
  queue.SetWeights({{{"a", 4}}});
  EXPECT_DOUBLE_EQ(queue.SecondsUntilEnd(mine, 1), 5);
  mine.priority = 1;
  EXPECT_DOUBLE_EQ(queue.SecondsUntilEnd(mine, 1), 1.25);
  add("c", 0);  // unknown: it counts as nothing
  EXPECT_DOUBLE_EQ(queue.SecondsUntilEnd(mine, 1), 1.25);
}

TEST_F(FairQueueTest, WhoIsGoneIsForgotten) {
  for (int i = 0; i < 10000; ++i) {
    Add("tenant " + std::to_string(i), 0.001, 0.001);
    RunOne();
  }
  EXPECT_LE(queue.tenants(), 128u);
}

TEST_F(FairQueueTest, TimeWithoutATurnCounts) {
  AddSteady("a", 1, 2);
  AddSteady("b", 1, 2);
  queue.Charge("a", 10);
  RunFor(30);
  EXPECT_NEAR(given["b"] - given["a"], 10, 1.5);
}

/// With turns of long ones under way.
class BesideLongOnes : public testing::Test {
 protected:
  std::shared_ptr<Request> Add(const std::string& tenant, double seconds, bool is_long,
                               int priority = 0) {
    auto request = std::make_shared<Request>(tenant);
    request->next_seconds = seconds;
    request->is_long = is_long;
    request->priority = priority;
    queue.Push(request);
    return request;
  }
  const FairEntry* Next(bool known = false) const { return queue.NextShort(beside, known); }
  FairQueue queue;
  FairQueue::Turn turn;
  std::vector<const FairQueue::Turn*> beside = {&turn};
};

TEST_F(BesideLongOnes, AShortOneIsTakenOfWhoHadNoMore) {
  Add("huge", 1, /*is_long=*/true);
  EXPECT_TRUE(queue.HasLong());
  queue.Pop(turn);
  EXPECT_EQ(Next(), nullptr);
  const auto tiny = Add("tiny", 0.25, false);
  EXPECT_EQ(queue.short_ones(), 1);
  EXPECT_EQ(Next(), tiny.get());
  FairQueue::Turn of_tiny;
  EXPECT_EQ(queue.PopShort(of_tiny, beside, false), tiny);
  queue.Ran(of_tiny, 0.25);
  queue.End(of_tiny);
  // It is ahead now, until the long one has had as much.
  const auto another = Add("tiny", 0.25, false);
  EXPECT_EQ(Next(), nullptr);
  queue.Ran(turn, 0.2);
  EXPECT_EQ(Next(), nullptr);
  queue.Ran(turn, 0.05);
  EXPECT_EQ(Next(), another.get());
  // Where no long one runs it need not wait.
  queue.End(turn);
  beside.clear();
  EXPECT_EQ(Next(), another.get());
}

TEST_F(BesideLongOnes, WhoComesIsNotBehindWhatOthersAreChargedForAndHaveNotHad) {
  for (int i = 0; i < 8; ++i) Add("huge", 1, /*is_long=*/true);
  FairQueue::Turn second, third;
  for (FairQueue::Turn* const one : {&turn, &second, &third}) queue.Pop(*one);
  beside = {&turn, &second, &third};
  for (FairQueue::Turn* const one : {&turn, &second, &third}) queue.Ran(*one, 0.1);
  const auto tiny = Add("tiny", 0.01, false);
  EXPECT_EQ(Next(), tiny.get());
  // Nor is a tenant's own short one.
  queue.Remove(*tiny);
  const auto own = Add("huge", 0.01, false);
  EXPECT_EQ(Next(), own.get());
  FairQueue::Turn of_own;
  EXPECT_EQ(queue.PopShort(of_own, beside, false), own);
  queue.Ran(of_own, 0.01);
  queue.End(of_own);
  for (FairQueue::Turn* const one : {&turn, &second, &third}) queue.Ran(*one, 0.1);
  const auto another = Add("huge", 0.01, false);
  EXPECT_EQ(Next(), another.get());
}

TEST_F(BesideLongOnes, ThereMayBeNoneAnyMore) {
  // X has run a long one, and its short ones have had more than that.
  FairQueue::Turn of_x, of_short;
  Add("x", 1, /*is_long=*/true);
  queue.Pop(of_x);
  Add("y", 1, /*is_long=*/true);
  queue.Pop(turn);
  beside = {&turn, &of_x};
  queue.Ran(turn, 0.5);
  Add("x", 0.4, false);
  queue.PopShort(of_short, beside, false);
  queue.Ran(of_short, 0.4);
  queue.End(of_short);
  const auto waits = Add("x", 0.1, false);
  EXPECT_EQ(Next(), waits.get());
  queue.Ran(of_x, 0.2);  // now x is ahead of y, and of its own long one
  EXPECT_EQ(Next(), nullptr);
  EXPECT_EQ(queue.PopShort(of_short, beside, false), nullptr);
  EXPECT_EQ(queue.short_ones(), 1);
}

TEST_F(BesideLongOnes, OneWhoseCostIsKnownIsFoundBehindOneOfWhichNothingIsKnown) {
  queue.Charge("old", 0.01);
  const auto unknown = Add("new", 0, false);
  const auto known = Add("old", 0.1, false);
  beside.clear();
  EXPECT_EQ(Next(), unknown.get());
  EXPECT_EQ(Next(/*known=*/true), known.get());
}

TEST_F(BesideLongOnes, AnothersLongOneIsTakenWhereTheNextIsAShortOne) {
  Add("busy", 1, /*is_long=*/true);
  queue.Pop(turn);
  Add("ahead", 0.1, false);
  EXPECT_FALSE(queue.HasLong());
  queue.Charge("further", FairQueue::kMostAheadSeconds / 2);
  const auto waits = Add("further", 1, /*is_long=*/true);
  EXPECT_TRUE(queue.HasLong());
  FairQueue::Turn other;
  EXPECT_EQ(queue.PopLong(other), waits);
  EXPECT_FALSE(queue.HasLong());
}

TEST_F(BesideLongOnes, OneThatMayGoIsFoundBehindOneOfGreatWeightThatMayNot) {
  queue.SetWeights({{{"heavy", 10}}});
  Add("busy", 1, /*is_long=*/true);
  queue.Pop(turn);
  Add("behind", 0.0001, false);
  queue.Charge("heavy", 1.5 * FairQueue::kMostAheadSeconds);
  Add("heavy", 1, /*is_long=*/true);
  EXPECT_FALSE(queue.HasLong());
  queue.Charge("light", 0.5 * FairQueue::kMostAheadSeconds);
  const auto light = Add("light", 1, /*is_long=*/true);
  FairQueue::Turn other;
  ASSERT_TRUE(queue.HasLong());
  EXPECT_EQ(queue.PopLong(other), light);
}

TEST_F(BesideLongOnes, ShortOnesAreNotPassedOverByWhoHasHadMuchMore) {
  queue.SetWeights({{{"heavy", 4}}});
  Add("busy", 1, /*is_long=*/true);
  queue.Pop(turn);
  Add("behind", 0.0001, false);
  queue.Charge("further", 2 * FairQueue::kMostAheadSeconds);
  Add("further", 1, /*is_long=*/true);
  EXPECT_FALSE(queue.HasLong());
  // By a weight of 4 it has had no more than the others with a quarter of that.
  queue.Charge("heavy", FairQueue::kMostAheadSeconds);
  const auto heavy = Add("heavy", 1, /*is_long=*/true);
  EXPECT_TRUE(queue.HasLong());
  FairQueue::Turn other;
  EXPECT_EQ(queue.PopLong(other), heavy);
  // Who is behind catches up: then the other may go.
  queue.Charge("behind", 1.5 * FairQueue::kMostAheadSeconds);
  EXPECT_TRUE(queue.HasLong());
}

TEST_F(BesideLongOnes, OneThatIsBehindIsFoundBehindOneThatIsAhead) {
  Add("huge", 1, true);
  queue.Pop(turn);
  queue.Charge("greedy", 10);
  const auto greedy = Add("greedy", 0.1, false);
  const auto waits = Add("huge", 1, true);
  const auto modest = Add("modest", 0.1, false);
  EXPECT_EQ(Next(), modest.get());
  FairQueue::Turn of_modest;
  queue.PopShort(of_modest, beside, false);
  EXPECT_EQ(Next(), nullptr);
}

TEST_F(BesideLongOnes, WhoComesGoesBesideWhateverRuns) {
  FairQueue::Turn ahead;
  Add("ahead", 1, true);
  queue.Pop(ahead);
  Add("behind", 1, true);
  queue.Pop(turn);
  queue.Ran(ahead, 0.5);
  queue.Ran(turn, 0.1);
  queue.End(ahead);
  const auto tiny = Add("tiny", 0.1, false);
  EXPECT_EQ(Next(), tiny.get());
}

TEST_F(BesideLongOnes, ATenantsShortOnesHaveHalfOfItsTime) {
  Add("t", 1, true);
  queue.Pop(turn);
  const auto tiny = Add("t", 0.1, false);
  EXPECT_EQ(Next(), tiny.get());
  FairQueue::Turn of_tiny;
  queue.PopShort(of_tiny, beside, false);
  queue.Ran(of_tiny, 0.1);
  queue.End(of_tiny);
  const auto second = Add("t", 0.1, false);
  EXPECT_EQ(Next(), nullptr);
  const auto urgent = Add("t", 0.1, false, /*priority=*/1);
  EXPECT_EQ(Next(), urgent.get());
  FairQueue::Turn of_urgent;
  queue.PopShort(of_urgent, beside, false);
  queue.End(of_urgent);
  queue.Ran(turn, 0.2);
  EXPECT_EQ(Next(), second.get());
}

}  // namespace
}  // namespace sparsed::engine
