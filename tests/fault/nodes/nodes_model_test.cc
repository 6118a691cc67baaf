// The checker of histories of a cluster's names: what it must find, and what it must not take for
// an error.
#include "tests/fault/nodes/nodes_model.h"

#include <gmock/gmock.h>

namespace sparsed::test {
namespace {

using Call = NodesModel::Call;
using Outcome = NodesModel::Outcome;
using Operation = NodesModel::Operation;
using State = NodesModel::State;

NodesEvent At(int64_t invoked, int64_t returned, Operation operation) {
  return {.client = 0,
          .invoked = invoked,
          .returned = returned,
          .may_be_lost = operation.outcome == Outcome::kUnknown,
          .operation = std::move(operation)};
}
Operation Upload(int name, int64_t value, Outcome outcome = Outcome::kOk) {
  Operation operation;
  operation.call = Call::kUpload;
  operation.outcome = outcome;
  operation.name = name;
  operation.degree = 2;
  operation.value = value;
  operation.replace = true;
  return operation;
}
Operation Rename(int name, Outcome outcome = Outcome::kOk) {
  Operation operation;
  operation.call = Call::kRename;
  operation.outcome = outcome;
  operation.name = name;
  return operation;
}
Operation Update(int64_t value, uint64_t version, uint64_t if_version = 0) {
  Operation operation;
  operation.call = Call::kUpdate;
  operation.outcome = Outcome::kOk;
  operation.value = value;
  operation.version = version;
  operation.if_version = if_version;
  return operation;
}
Operation Read(int name, int64_t value) {
  Operation operation;
  operation.call = Call::kRead;
  operation.outcome = Outcome::kOk;
  operation.name = name;
  operation.degree = 2;
  operation.value = value;
  return operation;
}
Operation Info(int name, uint64_t version) {
  Operation operation;
  operation.outcome = Outcome::kOk;
  operation.name = name;
  operation.degree = 2;
  operation.version = version;
  return operation;
}
Operation Absent(int name) {
  Operation operation;
  operation.call = Call::kRead;
  operation.outcome = Outcome::kAbsent;
  operation.name = name;
  return operation;
}
bool Holds(const NodesHistory& history) {
  return !NodesCheck::Check({State()}, history).after.empty();
}

TEST(Rename, MovesWhatIsThereAtOneMoment) {
  EXPECT_TRUE(Holds(
      {At(0, 1, Upload(0, 7)), At(2, 3, Rename(0)), At(4, 5, Absent(0)), At(6, 7, Read(1, 7))}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(0, 7)), At(2, 3, Rename(0)), At(4, 5, Read(0, 7))}))
      << "both names";
  EXPECT_FALSE(Holds({At(0, 1, Upload(0, 7)), At(2, 3, Rename(0)), At(4, 5, Absent(1))}))
      << "neither";
  EXPECT_FALSE(Holds({At(0, 1, Upload(0, 7)), At(2, 3, Upload(1, 8)), At(4, 5, Rename(0))}))
      << "over what is there";
  EXPECT_TRUE(Holds(
      {At(0, 1, Upload(0, 7)), At(2, 3, Upload(1, 8)), At(4, 5, Rename(0, Outcome::kExists))}));
}

TEST(Rename, WithoutAnAnswerIsDoneOrNotAndNothingBetween) {
  const NodesEvent unknown = At(2, 100, Rename(0, Outcome::kUnknown));
  EXPECT_TRUE(Holds({At(0, 1, Upload(0, 7)), unknown, At(4, 5, Read(0, 7))}));
  EXPECT_TRUE(Holds({At(0, 1, Upload(0, 7)), unknown, At(4, 5, Read(1, 7)), At(6, 7, Absent(0))}));
  EXPECT_FALSE(
      Holds({At(0, 1, Upload(0, 7)), unknown, At(4, 5, Read(1, 7)), At(6, 7, Read(0, 7))}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(0, 7)), unknown, At(4, 5, Absent(0)), At(6, 7, Absent(1))}));
}

TEST(Versions, MeanTheSameAtEveryNode) {
  EXPECT_TRUE(Holds({At(0, 1, Upload(0, 7)), At(2, 3, Info(0, 40)), At(4, 5, Update(8, 41, 40))}));
  EXPECT_FALSE(Holds({At(0, 1, Upload(0, 7)), At(2, 3, Info(0, 40)), At(4, 5, Update(8, 41)),
                      At(6, 7, Update(9, 42, 40))}))
      << "over values that the caller has not seen";
  EXPECT_FALSE(Holds({At(0, 1, Upload(0, 7)), At(2, 3, Info(0, 40)), At(4, 5, Info(0, 3))}))
      << "another number at another node";
  EXPECT_FALSE(Holds({At(0, 1, Upload(0, 7)), At(2, 3, Info(0, 40)), At(4, 5, Upload(0, 8)),
                      At(6, 7, Info(0, 40))}))
      << "used twice";
}

TEST(Reads, OfWhatWasTakenBackAreFound) {
  // The update had no answer; who saw it has seen it.
  Operation lost = Update(8, 0);
  lost.outcome = Outcome::kUnknown;
  EXPECT_TRUE(Holds({At(0, 1, Upload(0, 7)), At(2, 100, lost), At(4, 5, Read(0, 7))}));
  EXPECT_FALSE(Holds(
      {At(0, 1, Upload(0, 7)), At(2, 100, lost), At(4, 5, Read(0, 8)), At(6, 7, Read(0, 7))}));
}

}  // namespace
}  // namespace sparsed::test
