// The checker of histories: what it must find, and what it must not take for an error.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "tests/fault/history/catalog_model.h"

namespace sparsed::test {
namespace {

using Call = CatalogModel::Call;
using Outcome = CatalogModel::Outcome;
using Operation = CatalogModel::Operation;
using State = CatalogModel::State;

CatalogEvent At(int64_t invoked, int64_t returned, Operation operation) {
  return {.client = 0,
          .invoked = invoked,
          .returned = returned,
          .may_be_lost = operation.outcome == Outcome::kUnknown,
          .operation = operation};
}
Operation Upload(int64_t value, bool replace = true, Outcome outcome = Outcome::kOk) {
  return {
      .call = Call::kUpload, .outcome = outcome, .degree = 2, .value = value, .replace = replace};
}
Operation Update(int64_t value, uint64_t version, Outcome outcome = Outcome::kOk) {
  return {.call = Call::kUpdate, .outcome = outcome, .value = value, .version = version};
}
Operation Delete(Outcome outcome = Outcome::kOk) {
  return {.call = Call::kDelete, .outcome = outcome};
}
Operation Read(int64_t value) {
  return {.call = Call::kRead, .outcome = Outcome::kOk, .degree = 2, .value = value};
}
Operation Product(int64_t sum) {
  return {.call = Call::kProduct, .outcome = Outcome::kOk, .value = sum};
}
Operation Info(uint64_t version) {
  return {.call = Call::kInfo, .outcome = Outcome::kOk, .degree = 2, .version = version};
}
Operation Absent(Call call = Call::kRead) { return {.call = call, .outcome = Outcome::kAbsent}; }
Operation Crash() { return {.call = Call::kCrash, .outcome = Outcome::kOk}; }

CatalogCheck::Verdict Check(const CatalogHistory& history) {
  return CatalogCheck::Check({State()}, history);
}
bool Holds(const CatalogHistory& history) { return !Check(history).after.empty(); }

TEST(Sequence, EachCallSeesTheOneBefore) {
  EXPECT_TRUE(Holds({At(0, 1, Absent()), At(2, 3, Upload(7)), At(4, 5, Read(7)),
                     At(6, 7, Product(14)), At(8, 9, Update(8, 2)), At(10, 11, Read(8)),
                     At(12, 13, Delete()), At(14, 15, Absent())}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 3, Absent())})) << "lost";
  EXPECT_FALSE(Holds({At(0, 1, Read(7)), At(2, 3, Upload(7))})) << "from the future";
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 3, Upload(8)), At(4, 5, Read(7))})) << "stale";
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 3, Product(7))})) << "a wrong product";
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 3, Delete()), At(4, 5, Read(7))})) << "undead";
}

TEST(Sequence, AnswersFitWhatIsThere) {
  EXPECT_TRUE(Holds(
      {At(0, 1, Upload(1)), At(2, 3, Upload(2, false, Outcome::kExists)), At(4, 5, Read(1))}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(1, false, Outcome::kExists))}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(1)), At(2, 3, Upload(2, false))}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(1)), At(2, 3, Delete(Outcome::kAbsent))}));
  EXPECT_FALSE(Holds({At(0, 1, Delete())}));
  EXPECT_FALSE(Holds({At(0, 1, Update(1, 1))}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(1)), At(2, 3, Absent(Call::kUpdate))}));
}

TEST(Overlap, AnyOrderWillDo) {
  for (const int64_t last : {7, 8}) {
    EXPECT_TRUE(Holds({At(0, 10, Upload(7)), At(5, 15, Upload(8)), At(20, 21, Read(last))}));
  }
  // The second upload was seen before the first ended: then the first had its place before.
  EXPECT_FALSE(Holds(
      {At(0, 10, Upload(7)), At(5, 30, Upload(8)), At(12, 13, Read(8)), At(14, 15, Read(7))}));
  EXPECT_TRUE(Holds(
      {At(0, 20, Upload(7)), At(5, 30, Upload(8)), At(12, 13, Read(8)), At(14, 15, Read(7))}));
  // Two readers who disagree about the order.
  EXPECT_FALSE(Holds({At(0, 100, Upload(7)), At(0, 100, Upload(8)), At(1, 2, Read(7)),
                      At(3, 4, Read(8)), At(5, 6, Read(7))}));
  EXPECT_FALSE(Holds({At(0, 10, Delete()), At(0, 10, Delete())})) << "there was nothing";
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 10, Delete()), At(3, 9, Delete())}))
      << "deleted twice";
  EXPECT_TRUE(
      Holds({At(0, 1, Upload(7)), At(2, 10, Delete()), At(3, 9, Delete(Outcome::kAbsent))}));
}

TEST(Unknown, MayHaveHappenedOrNot) {
  const CatalogEvent lost = At(2, 10, Upload(8, true, Outcome::kUnknown));
  for (const int64_t seen : {7, 8}) {
    EXPECT_TRUE(Holds({At(0, 1, Upload(7)), lost, At(11, 12, Read(seen))})) << seen;
  }
  EXPECT_TRUE(Holds({At(0, 1, Upload(7)), lost, At(4, 5, Read(7)), At(6, 7, Read(8))}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), lost, At(4, 5, Read(8)), At(6, 7, Read(7))}))
      << "happened, and then it had not";
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), lost, At(11, 12, Read(7)), At(13, 14, Read(8))}))
      << "happened after it had ended";
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), lost, At(4, 5, Read(9))}));
}

TEST(Unknown, MayHaveHappenedAtAnyTimeWhileItLasted) {
  // There is nothing to delete at first.
  const CatalogEvent lost = At(0, 100, Delete(Outcome::kUnknown));
  EXPECT_TRUE(Holds({lost, At(1, 2, Absent()), At(3, 4, Upload(7)), At(5, 6, Absent())}));
  EXPECT_TRUE(Holds({lost, At(1, 2, Upload(7)), At(3, 4, Read(7)), At(200, 201, Read(7))}));
  EXPECT_FALSE(Holds({lost, At(1, 2, Upload(7)), At(101, 102, Read(7)), At(103, 104, Absent())}));
}

TEST(Crash, BringsBackWhatWasStoredAndNothingElse) {
  Operation durable = Update(9, 3);
  durable.durable = true;
  for (const int64_t seen : {7, 8}) {
    EXPECT_TRUE(Holds(
        {At(0, 1, Upload(7)), At(2, 3, Update(8, 2)), At(4, 5, Crash()), At(6, 7, Read(seen))}));
  }
  EXPECT_FALSE(
      Holds({At(0, 1, Upload(7)), At(2, 3, durable), At(4, 5, Crash()), At(6, 7, Read(7))}))
      << "a durable update was lost";
  EXPECT_FALSE(
      Holds({At(0, 1, Upload(7)), At(2, 3, Upload(8)), At(4, 5, Crash()), At(6, 7, Read(7))}))
      << "an upload was lost";
  EXPECT_FALSE(
      Holds({At(0, 1, Upload(7)), At(2, 3, Delete()), At(4, 5, Crash()), At(6, 7, Read(7))}))
      << "a deletion was lost";
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 3, Update(8, 2)), At(4, 5, Crash()),
                      At(6, 7, Read(7)), At(8, 9, Read(8))}))
      << "gone, and then back";
}

TEST(Crash, MayComeBeforeOrAfterWhatItOverlaps) {
  for (const int64_t seen : {7, 8}) {
    EXPECT_TRUE(Holds(
        {At(0, 1, Upload(7)), At(2, 10, Update(8, 2)), At(3, 9, Crash()), At(11, 12, Read(seen))}))
        << seen;
  }
}

TEST(Versions, AreNeverUsedTwice) {
  EXPECT_TRUE(
      Holds({At(0, 1, Upload(7)), At(2, 3, Info(4)), At(4, 5, Update(8, 5)), At(6, 7, Info(5))}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 3, Info(4)), At(4, 5, Update(8, 4))}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 3, Info(4)), At(4, 5, Info(5))}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 3, Update(8, 5)), At(4, 5, Delete()),
                      At(6, 7, Upload(9)), At(8, 9, Info(5))}))
      << "again after a deletion";
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 3, Update(8, 5)), At(4, 5, Crash()),
                      At(6, 7, Read(7)), At(8, 9, Update(10, 5))}))
      << "again after a crash";
  Operation conditional = Update(8, 6);
  conditional.if_version = 4;
  EXPECT_TRUE(Holds({At(0, 1, Upload(7)), At(2, 3, Info(4)), At(4, 5, conditional)}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 3, Info(5)), At(4, 5, conditional)}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(7)), At(2, 3, conditional), At(4, 5, conditional)}));
}

TEST(Report, IsShort) {
  CatalogHistory history;
  int64_t time = 0;
  for (int64_t value = 1; value <= 200; ++value) {
    history.push_back(At(time, time + 1, Upload(value)));
    history.push_back(At(time + 2, time + 3, Read(value)));
    time += 4;
  }
  // A mistake in the middle of what overlaps, and more that follows.
  history.push_back(At(time, time + 20, Upload(1000)));
  history.push_back(At(time + 1, time + 2, Read(200)));
  history.push_back(At(time + 3, time + 4, Read(1000)));
  history.push_back(At(time + 5, time + 6, Read(200)));
  history.push_back(At(time + 7, time + 30, Upload(1001)));
  history.push_back(At(time + 8, time + 9, Read(1000)));
  std::shuffle(history.begin(), history.end(), std::mt19937(1));
  const auto verdict = Check(history);
  EXPECT_TRUE(verdict.after.empty());
  EXPECT_EQ(verdict.before.size(), 1u);
  EXPECT_EQ(verdict.before.begin()->now.value, 200);
  ASSERT_EQ(verdict.failing.size(), 3u) << ToString(verdict);
  EXPECT_EQ(verdict.failing[0].operation.value, 1000);
  EXPECT_EQ(verdict.failing[2].operation.value, 200);
  EXPECT_THAT(ToString(verdict), testing::HasSubstr("download by call: 2 nonzeros a row, value"));
}

/// A register that was used right; but for one read of an old value, if `stale`.
CatalogHistory Simulate(uint32_t seed, bool stale) {
  std::mt19937 random(seed);
  CatalogHistory history;
  std::vector<int64_t> values = {0};
  history.push_back(At(-2, -1, Upload(0)));
  for (int i = 1; i < 120; ++i) {
    // Every call takes effect at 10 * i, and overlaps with its neighbours.
    const int64_t begin = 10 * i - static_cast<int64_t>(random() % 40);
    const int64_t end = 10 * i + static_cast<int64_t>(random() % 40);
    if (random() % 3 == 0) {
      values.push_back(i);
      history.push_back(At(begin, end, Upload(i)));
    } else {
      const bool wrong = stale && i >= 100;
      if (wrong) stale = false;
      history.push_back(At(begin, end, Read(wrong ? values[5] : values.back())));
    }
  }
  return history;
}

TEST(Simulation, IsJudgedRight) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    EXPECT_TRUE(Holds(Simulate(seed, false))) << seed;
    const auto verdict = Check(Simulate(seed, true));
    EXPECT_TRUE(verdict.after.empty()) << seed;
  }
}

}  // namespace
}  // namespace sparsed::test
