// A power cut, a kill or a failing call at every single call of the file system.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/fault/store/forgetful_file_system.h"
#include "tests/fault/store/store_testing.h"

namespace sparsed::engine {
namespace {

using Survivors = ForgetfulFileSystem::Survivors;

constexpr const char* kDirectory = "/srv/data";

auto AllSurvivors() {
  return testing::Values(Survivors::kSynced, Survivors::kEverything, Survivors::kRandom);
}

std::string SurvivorsName(const testing::TestParamInfo<Survivors>& info) {
  switch (info.param) {
    case Survivors::kSynced:
      return "Synced";
    case Survivors::kEverything:
      return "Everything";
    case Survivors::kRandom:
      return "Random";
  }
  return "";
}

/// What a store holds after the first n steps, for every n.
std::vector<std::string> ExpectedDumps(const std::vector<Step>& steps) {
  ForgetfulFileSystem files;
  const auto store = *OpenStore(files, kDirectory);
  std::vector<std::string> dumps = {*Dump(*store)};
  for (const Step& step : steps) {
    EXPECT_TRUE(step.run(*store).ok()) << step.name;
    dumps.push_back(*Dump(*store));
  }
  return dumps;
}

/// Runs the steps until one fails. Returns how many succeeded.
size_t RunSteps(FileSystem& files, const std::vector<Step>& steps) {
  const auto store = OpenStore(files, kDirectory);
  if (!store.ok()) return 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].run(**store).ok()) return i;
  }
  return steps.size();
}

int64_t CallsOf(const std::vector<Step>& steps) {
  ForgetfulFileSystem files;
  EXPECT_EQ(RunSteps(files, steps), steps.size());
  return files.calls();
}

/// Every blob file belongs to an array that the store knows, and the other way round.
void ExpectNoStrays(ForgetfulFileSystem& files, Store& store) {
  int64_t arrays = 0;
  const StoreContents contents = *store.Load();
  arrays += static_cast<int64_t>(2 * contents.patterns.size() + contents.buffers.size());
  for (const MatrixRecord& m : contents.matrices) arrays += m.value_order ? 2 : 1;
  for (const LayoutRecord& l : contents.layouts) arrays += static_cast<int64_t>(l.arrays.size());
  EXPECT_EQ(static_cast<int64_t>(files.Names(fmt::format("{}/blobs", kDirectory)).size()), arrays);
}

/// The store opens and holds what `done` steps made, or one step more; and it works: the steps that
/// are missing can be made.
void ExpectIntact(ForgetfulFileSystem& files, const std::vector<Step>& steps,
                  const std::vector<std::string>& dumps, size_t done, bool or_one_more) {
  const auto store = OpenStore(files, kDirectory);
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::StatusOr<std::string> dump = Dump(**store);
  ASSERT_TRUE(dump.ok()) << dump.status();
  size_t found = done;
  if (*dump != dumps[done] && or_one_more && done < steps.size()) found = done + 1;
  ASSERT_EQ(*dump, dumps[found]);
  ExpectNoStrays(files, **store);
  if (found == steps.size()) return;
  const absl::Status status = steps[found].run(**store);
  ASSERT_TRUE(status.ok()) << steps[found].name << ": " << status;
  EXPECT_EQ(*Dump(**store), dumps[found + 1]);
}

class PowerCut : public testing::TestWithParam<Survivors> {};

TEST_P(PowerCut, AtEveryCallLosesNothingAcknowledged) {
  const std::vector<Step> steps = AllSteps();
  const std::vector<std::string> dumps = ExpectedDumps(steps);
  const int64_t calls = CallsOf(steps);
  ASSERT_GT(calls, 200);
  for (int64_t n = 1; n <= calls && !HasFailure(); ++n) {
    SCOPED_TRACE(fmt::format("power cut at call {} of {}", n, calls));
    ForgetfulFileSystem files;
    files.CutPowerAt(n);
    const size_t done = RunSteps(files, steps);
    files.Restart(GetParam(), static_cast<uint32_t>(n));
    ExpectIntact(files, steps, dumps, done, /*or_one_more=*/true);
  }
}

// Long texts fill the log until SQLite carries it over into the database in the middle of a step.
TEST_P(PowerCut, WhileTheLogIsCarriedOverLosesNothingAcknowledged) {
  std::vector<Step> steps = AllSteps();
  steps.resize(1);
  for (int i = 0; i < 50; ++i) {
    steps.push_back(
        {fmt::format("put preparation {}", i), [i](Store& store) {
           const auto letter = static_cast<char>('a' + i % 26);
           return store.PutPreparation("P", {"ready", std::string(100000, letter), 1.0});
         }});
  }
  const std::vector<std::string> dumps = ExpectedDumps(steps);
  const int64_t calls = CallsOf(steps);
  ForgetfulFileSystem whole;
  {
    const auto store = *OpenStore(whole, kDirectory);
    for (const Step& step : steps) ASSERT_TRUE(step.run(*store).ok());
    ASSERT_GT(whole.Contents(fmt::format("{}/catalog.sqlite", kDirectory))->size(), 100000U)
        << "the log was not carried over";
  }
  for (int64_t n = 1; n <= calls && !HasFailure(); n += 23) {
    SCOPED_TRACE(fmt::format("power cut at call {} of {}", n, calls));
    ForgetfulFileSystem files;
    files.CutPowerAt(n);
    const size_t done = RunSteps(files, steps);
    files.Restart(GetParam(), static_cast<uint32_t>(n));
    ExpectIntact(files, steps, dumps, done, /*or_one_more=*/true);
  }
}

// What a killed process has written without syncing is still only in memory: the next process must
// not build on it as if it were on the disk.
TEST(Kill, FollowedByPowerCutLosesNothingAcknowledged) {
  const std::vector<Step> steps = AllSteps();
  const std::vector<std::string> dumps = ExpectedDumps(steps);
  const int64_t calls = CallsOf(steps);
  for (int64_t n = 1; n <= calls && !HasFailure(); ++n) {
    SCOPED_TRACE(fmt::format("killed at call {} of {}", n, calls));
    ForgetfulFileSystem files;
    files.CutPowerAt(n);
    size_t done = RunSteps(files, steps);
    files.Restart(Survivors::kEverything);
    {
      const auto store = OpenStore(files, kDirectory);
      ASSERT_TRUE(store.ok()) << store.status();
      if (*Dump(**store) != dumps[done]) ++done;
      ASSERT_EQ(*Dump(**store), dumps[done]);
      if (done < steps.size()) {
        ASSERT_TRUE(steps[done].run(**store).ok());
        ++done;
      }
      // No destructor that tidies up runs before a power cut.
      files.CutPowerAt(1);
    }
    files.Restart(n % 2 == 0 ? Survivors::kSynced : Survivors::kRandom, static_cast<uint32_t>(n));
    ExpectIntact(files, steps, dumps, done, /*or_one_more=*/false);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PowerCut, AllSurvivors(), SurvivorsName);

/// Runs the steps until one fails; a start that fails is repeated. Returns the store.
std::unique_ptr<Store> RunUntilFailure(FileSystem& files, const std::vector<Step>& steps,
                                       size_t* done) {
  auto store = OpenStore(files, kDirectory);
  if (!store.ok()) store = OpenStore(files, kDirectory);
  EXPECT_TRUE(store.ok()) << store.status();
  if (!store.ok()) return nullptr;
  *done = 0;
  while (*done < steps.size() && steps[*done].run(**store).ok()) ++*done;
  return *std::move(store);
}

TEST(FailingCall, AtEveryCallLeavesTheStoreAsItWas) {
  const std::vector<Step> steps = AllSteps();
  const std::vector<std::string> dumps = ExpectedDumps(steps);
  const int64_t calls = CallsOf(steps);
  for (int64_t n = 1; n <= calls && !HasFailure(); ++n) {
    SCOPED_TRACE(fmt::format("call {} of {} fails", n, calls));
    ForgetfulFileSystem files;
    files.FailCall(n);
    size_t done = 0;
    std::unique_ptr<Store> store = RunUntilFailure(files, steps, &done);
    ASSERT_NE(store, nullptr);
    if (done < steps.size()) {
      ASSERT_EQ(*Dump(*store), dumps[done]) << "after " << steps[done].name << " failed";
      const absl::Status again = steps[done].run(*store);
      ASSERT_TRUE(again.ok()) << steps[done].name << ": " << again;
      ++done;
      ASSERT_EQ(*Dump(*store), dumps[done]);
    }
    store.reset();
    ExpectIntact(files, steps, dumps, done, /*or_one_more=*/false);
  }
}

class FailingCallThenPowerCut : public testing::TestWithParam<Survivors> {};

TEST_P(FailingCallThenPowerCut, LosesNothingAcknowledged) {
  const std::vector<Step> steps = AllSteps();
  const std::vector<std::string> dumps = ExpectedDumps(steps);
  const int64_t calls = CallsOf(steps);
  for (int64_t n = 1; n <= calls && !HasFailure(); ++n) {
    for (const bool again : {false, true}) {
      SCOPED_TRACE(fmt::format("call {} of {} fails, {}then the power", n, calls,
                               again ? "the step is repeated, " : ""));
      ForgetfulFileSystem files;
      files.FailCall(n);
      size_t done = 0;
      std::unique_ptr<Store> store = RunUntilFailure(files, steps, &done);
      ASSERT_NE(store, nullptr);
      if (again) {
        if (done == steps.size()) continue;
        ASSERT_TRUE(steps[done].run(*store).ok());
        ++done;
      }
      files.CutPowerAt(1);  // before the destructor can tidy up
      store.reset();
      files.Restart(GetParam(), static_cast<uint32_t>(n));
      ExpectIntact(files, steps, dumps, done, /*or_one_more=*/!again);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FailingCallThenPowerCut, AllSurvivors(), SurvivorsName);

}  // namespace
}  // namespace sparsed::engine
