#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/store/file_system.h"

namespace sparsed::engine {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

class PosixFileSystemTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "sparsed-files-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  static std::span<const std::byte> Bytes(const std::string& text) {
    return std::as_bytes(std::span(text));
  }

  FileSystem& files_ = PosixFileSystem();
  std::string root_;
};

TEST_F(PosixFileSystemTest, WritesReadsAndCuts) {
  auto file = files_.Open(root_ + "/f", OpenMode::kCreateNew);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Write(0, Bytes("hello world")).ok());
  EXPECT_TRUE((*file)->Write(6, Bytes("there")).ok());
  EXPECT_TRUE((*file)->Truncate(9).ok());
  EXPECT_TRUE((*file)->Sync().ok());
  EXPECT_EQ(*(*file)->Size(), 9);
  std::string text(20, '-');
  EXPECT_EQ(*(*file)->Read(0, std::as_writable_bytes(std::span(text))), 9U);
  EXPECT_EQ(text, "hello the-----------");
  EXPECT_EQ(*(*file)->Read(100, std::as_writable_bytes(std::span(text))), 0U);
}

TEST_F(PosixFileSystemTest, ModesSayWhatMustBeThere) {
  EXPECT_EQ(files_.Open(root_ + "/f", OpenMode::kRead).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(files_.Open(root_ + "/f", OpenMode::kReadWrite).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(files_.Open(root_ + "/f", OpenMode::kCreate).ok());
  EXPECT_TRUE(files_.Open(root_ + "/f", OpenMode::kCreate).ok());
  EXPECT_EQ(files_.Open(root_ + "/f", OpenMode::kCreateNew).status().code(),
            absl::StatusCode::kAlreadyExists);
  const auto read_only = files_.Open(root_ + "/f", OpenMode::kRead);
  EXPECT_FALSE((*read_only)->Write(0, Bytes("x")).ok());
  EXPECT_EQ(files_.Open(root_, OpenMode::kReadWrite).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(PosixFileSystemTest, ListsRenamesAndRemoves) {
  ASSERT_TRUE(files_.CreateDirectory(root_ + "/d").ok());
  EXPECT_TRUE(files_.CreateDirectory(root_ + "/d").ok());
  ASSERT_TRUE(files_.Open(root_ + "/d/a", OpenMode::kCreateNew).ok());
  ASSERT_TRUE(files_.Open(root_ + "/d/b", OpenMode::kCreateNew).ok());
  EXPECT_THAT(*files_.List(root_ + "/d"), UnorderedElementsAre("a", "b"));
  EXPECT_TRUE(files_.Rename(root_ + "/d/a", root_ + "/d/b").ok());
  EXPECT_TRUE(files_.SyncDirectory(root_ + "/d").ok());
  EXPECT_THAT(*files_.List(root_ + "/d"), UnorderedElementsAre("b"));
  EXPECT_TRUE(*files_.Exists(root_ + "/d/b"));
  EXPECT_TRUE(files_.Remove(root_ + "/d/b").ok());
  EXPECT_FALSE(*files_.Exists(root_ + "/d/b"));
  const absl::Status gone = files_.Remove(root_ + "/d/b");
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(gone.message()), HasSubstr(root_ + "/d/b"));
  EXPECT_EQ(files_.List(root_ + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(files_.SyncDirectory(root_ + "/none").ok());
}

TEST_F(PosixFileSystemTest, OnlyTheOwnerMayRead) {
  ASSERT_TRUE(files_.CreateDirectory(root_ + "/d").ok());
  ASSERT_TRUE(files_.Open(root_ + "/d/a", OpenMode::kCreateNew).ok());
  using std::filesystem::perms;
  const perms others = perms::group_all | perms::others_all;
  EXPECT_EQ(std::filesystem::status(root_ + "/d").permissions() & others, perms::none);
  EXPECT_EQ(std::filesystem::status(root_ + "/d/a").permissions() & others, perms::none);
}

TEST_F(PosixFileSystemTest, LockIsExclusiveUntilItGoes) {
  {
    const auto lock = files_.Lock(root_ + "/LOCK");
    ASSERT_TRUE(lock.ok());
    const absl::Status second = files_.Lock(root_ + "/LOCK").status();
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(second.message()), HasSubstr(std::to_string(getpid())));
  }
  EXPECT_TRUE(files_.Lock(root_ + "/LOCK").ok());
}

TEST_F(PosixFileSystemTest, KnowsTheFreeSpace) { EXPECT_GT(*files_.FreeBytes(root_), 0); }

// Linux keeps a device that is always full.
TEST_F(PosixFileSystemTest, FullDiskIsResourceExhausted) {
  auto full = files_.Open("/dev/full", OpenMode::kReadWrite);
  if (!full.ok()) GTEST_SKIP() << full.status();
  const absl::Status status = (*full)->Write(0, Bytes("x"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 bytes at byte 0 of /dev/full"));
}

}  // namespace
}  // namespace sparsed::engine
