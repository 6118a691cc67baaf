// A data directory that is locked, deleted, replaced or half gone, on the machine's file system.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/fault/store/store_testing.h"

namespace sparsed::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

class DirectoryTest : public testing::Test {
 protected:
  DirectoryTest() {
    std::string name =
        (std::filesystem::temp_directory_path() / "sparsed-directory-XXXXXX").string();
    root_ = mkdtemp(name.data());
    directory_ = root_ + "/data";
    store_ = *Open();
  }
  ~DirectoryTest() override {
    store_.reset();
    std::filesystem::remove_all(root_);
  }

  absl::StatusOr<std::unique_ptr<Store>> Open() { return OpenStore(PosixFileSystem(), directory_); }
  absl::Status Put(const std::string& name) {
    return store_->PutMatrix(RandomMatrix(name, "P" + name, 1)).status();
  }
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  /// Everything that needs the disk says that the directory is gone, and no client learns where it
  /// was.
  void ExpectGone() {
    const absl::Status statuses[] = {
        store_->Available(),
        Put("new"),
        store_->PutBuffer(RandomBuffer("x", 1)).status(),
        store_->PutWanted({}),
        store_->DeleteMatrix("tenant", "a"),
    };
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("data directory"));
      EXPECT_THAT(std::string(status.message()), Not(HasSubstr(root_)));
    }
  }

  std::string root_, directory_;
  std::unique_ptr<Store> store_;
};

TEST_F(DirectoryTest, WithoutItsLockFileIsStillLocked) {
  ASSERT_TRUE(Put("a").ok());
  const std::string unfinished = Path("blobs/0000000000000077.tmp");
  ASSERT_TRUE(PosixFileSystem().Open(unfinished, OpenMode::kCreateNew).ok());
  ASSERT_TRUE(std::filesystem::remove(Path("LOCK")));
  for (int i = 0; i < 2; ++i) {
    const auto second = Open();
    ASSERT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
    EXPECT_THAT(std::string(second.status().message()), HasSubstr("another server"));
  }
  EXPECT_TRUE(std::filesystem::exists(unfinished)) << "it may be the first server's";
  EXPECT_TRUE(Put("b").ok());
  store_.reset();
  store_ = *Open();
  EXPECT_EQ(store_->Load()->matrices.size(), 2U);
}

TEST_F(DirectoryTest, DeletedWhileItIsUsed) {
  const auto stored = store_->PutMatrix(RandomMatrix("a", "P", 1));
  ASSERT_TRUE(stored.ok());
  ASSERT_TRUE(store_->Available().ok());
  std::filesystem::remove_all(directory_);
  ExpectGone();
  const absl::Status read = store_->Read(stored->matrix.values, HeapMemory()).status();
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable) << read;
  const absl::Status scrubbed = store_->Scrub(
      [](int64_t) { return true; },
      [](const StoredArray&, const absl::Status& s) { ADD_FAILURE() << "damage: " << s; });
  EXPECT_EQ(scrubbed.code(), absl::StatusCode::kUnavailable) << scrubbed;

  // A restart does not begin empty as if nothing had been there.
  store_.reset();
  auto again = Open();
  ASSERT_EQ(again.status().code(), absl::StatusCode::kDataLoss) << again.status();
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("backup"));
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("remove " + Path("HAS_CATALOG")));
  EXPECT_FALSE(std::filesystem::exists(Path("catalog.sqlite")));
  ASSERT_TRUE(std::filesystem::remove(Path("HAS_CATALOG")));
  again = Open();
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST_F(DirectoryTest, MovedAwayAndBack) {
  ASSERT_TRUE(Put("a").ok());
  std::filesystem::rename(directory_, root_ + "/elsewhere");
  ExpectGone();
  std::filesystem::rename(root_ + "/elsewhere", directory_);
  EXPECT_TRUE(store_->Available().ok());
  EXPECT_TRUE(Put("b").ok());
  store_.reset();
  store_ = *Open();
  EXPECT_EQ(store_->Load()->matrices.size(), 2U);
}

TEST_F(DirectoryTest, ReplacedByAnother) {
  ASSERT_TRUE(Put("a").ok());
  std::filesystem::rename(directory_, root_ + "/old");
  { ASSERT_TRUE(Open().ok()); }
  ExpectGone();
}

TEST_F(DirectoryTest, WithoutItsCatalogOrItsBlobs) {
  ASSERT_TRUE(Put("a").ok());
  for (const char* name : {"catalog.sqlite", "blobs"}) {
    SCOPED_TRACE(name);
    std::filesystem::rename(Path(name), root_ + "/away");
    ExpectGone();
    std::filesystem::rename(root_ + "/away", Path(name));
    EXPECT_TRUE(store_->Available().ok());
  }
}

TEST_F(DirectoryTest, EmptiedBetweenTwoRuns) {
  ASSERT_TRUE(Put("a").ok());
  store_.reset();
  std::filesystem::remove(Path("catalog.sqlite"));
  auto again = Open();
  ASSERT_EQ(again.status().code(), absl::StatusCode::kDataLoss) << again.status();
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("--salvage"));
  std::filesystem::remove_all(Path("blobs"));
  again = Open();
  ASSERT_EQ(again.status().code(), absl::StatusCode::kDataLoss) << again.status();
  EXPECT_THAT(std::string(again.status().message()), Not(HasSubstr("--salvage")));
  // A new, empty directory is a first start.
  std::filesystem::remove_all(directory_);
  EXPECT_TRUE(Open().ok());
}

}  // namespace
}  // namespace sparsed::engine
