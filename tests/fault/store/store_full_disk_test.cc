// A disk that is full, at every budget of bytes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/fault/store/forgetful_file_system.h"
#include "tests/fault/store/store_testing.h"

namespace sparsed::engine {
namespace {

using testing::HasSubstr;

constexpr const char* kDirectory = "/data";
constexpr int64_t kPlenty = int64_t{1} << 40;

TEST(FullDisk, IsKnownBeforeAnythingIsWritten) {
  ForgetfulFileSystem files;
  const auto store = *OpenStore(files, kDirectory);
  files.ClaimFreeBytes(1000);
  const int64_t calls = files.calls();
  const absl::Status status = store->PutMatrix(RandomMatrix("a", "P", 1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/data/blobs"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1000 are free"));
  EXPECT_LT(files.calls() - calls, 10);
  EXPECT_TRUE(files.Names("/data/blobs").empty());
}

TEST(FullDisk, SentenceNamesThePathAndTheBytesNeeded) {
  ForgetfulFileSystem files;
  const auto store = *OpenStore(files, kDirectory);
  files.SetCapacity(0);
  files.ClaimFreeBytes(kPlenty);  // somebody else was faster
  const NewMatrix m = RandomMatrix("a", "P", 1);
  const absl::Status status = store->PutMatrix(m).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/data/blobs/"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(fmt::format("{} bytes", m.row_offsets->bytes() + m.column_indices->bytes() +
                                                    m.values.bytes())));
}

TEST(FullDisk, AtEveryBudgetTheStoreGoesOn) {
  const std::vector<Step> steps = AllSteps();
  std::vector<std::string> dumps;
  int64_t most = 0;
  {
    ForgetfulFileSystem files;
    const auto store = *OpenStore(files, kDirectory);
    dumps.push_back(*Dump(*store));
    for (const Step& step : steps) {
      ASSERT_TRUE(step.run(*store).ok());
      dumps.push_back(*Dump(*store));
      files.SetCapacity(kPlenty);
      files.ClaimFreeBytes(-1);
      most = std::max(most, kPlenty - *files.FreeBytes("/"));
    }
  }
  int64_t refused = 0;
  for (int64_t budget = 0; budget <= most && !HasFailure(); budget += 2003) {
    SCOPED_TRACE(fmt::format("room for {} bytes", budget));
    ForgetfulFileSystem files;
    files.SetCapacity(budget);
    files.ClaimFreeBytes(kPlenty);
    auto store = OpenStore(files, kDirectory);
    if (!store.ok()) {
      ASSERT_EQ(store.status().code(), absl::StatusCode::kResourceExhausted) << store.status();
      files.SetCapacity(kPlenty);
      store = OpenStore(files, kDirectory);
      ASSERT_TRUE(store.ok()) << store.status();
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      const absl::Status status = steps[i].run(**store);
      if (!status.ok()) {
        ++refused;
        ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
        // Refused wholly, and what was there is still served.
        ASSERT_EQ(*Dump(**store), dumps[i]);
        // Somebody makes room; it works at once.
        files.SetCapacity(kPlenty);
        ASSERT_TRUE(steps[i].run(**store).ok());
        files.SetCapacity(budget);
      }
      ASSERT_EQ(*Dump(**store), dumps[i + 1]) << steps[i].name;
    }
    // A restart on the full disk works as well.
    store->reset();
    files.SetCapacity(0);
    store = OpenStore(files, kDirectory);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ(*Dump(**store), dumps.back());
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace sparsed::engine
