// The file that a snapshot is: every byte counts, and nothing else is taken for one.
#include "client/cli/snapshot_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/wire/snapshot_archive.h"

namespace sparsed::cli {
namespace {

using testing::HasSubstr;

using Files = std::vector<std::pair<std::string, std::string>>;

Files SomeFiles() {
  return {{"snapshot.json", R"({"format": 1, "matrices": 2})"},
          {"contents.jsonl", "{\"kind\":\"matrix\",\"name\":\"a\"}\n{\"kind\":\"buffer\"}\n"},
          {"catalog.sqlite", std::string(1024, 'c')},
          {"blobs/0000000000000003.blob", std::string(700, 'x')},
          {"blobs/0000000000000017.blob", ""},
          {"blobs/12345678901234567.blob", "last"},
          {"damaged.txt", "blob 3 is damaged\n"}};
}

std::string Archive(const Files& files) {
  wire::SnapshotWriter writer;
  std::string bytes;
  for (const auto& [name, contents] : files) {
    bytes += writer.Begin(name, static_cast<int64_t>(contents.size()));
    writer.Add(std::as_bytes(std::span(contents)));
    bytes += contents + writer.End();
  }
  for (std::string end = writer.Finish(); !end.empty(); end = writer.Finish()) bytes += end;
  return bytes;
}

/// In pieces of that size.
absl::StatusOr<SnapshotSummary> Check(std::string_view bytes, size_t piece = 1 << 20) {
  SnapshotCheck check;
  for (size_t i = 0; i < bytes.size(); i += piece) {
    if (absl::Status status = check.Add(bytes.substr(i, piece)); !status.ok()) return status;
  }
  return check.Finish();
}

std::string Sentence(std::string_view bytes) {
  return std::string(Check(bytes).status().message());
}

TEST(SnapshotFile, SaysWhatIsInIt) {
  const std::string bytes = Archive(SomeFiles());
  for (const size_t piece : {1, 7, 511, 512, 513, 1 << 20}) {
    const auto summary = Check(bytes, piece);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->facts["matrices"], 2);
    EXPECT_EQ(summary->listed, 2);
    EXPECT_EQ(summary->contents[0]["name"], "a");
    EXPECT_EQ(summary->damaged[0], "blob 3 is damaged");
    EXPECT_EQ(summary->files, 7);
    EXPECT_EQ(summary->bytes, static_cast<int64_t>(bytes.size()));
  }
}

TEST(SnapshotFile, EveryFlippedBitIsFound) {
  std::string bytes = Archive(SomeFiles());
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      const absl::Status status = Check(bytes).status();
      // At its beginning it may become one of another format, or none at all.
      EXPECT_TRUE(absl::IsDataLoss(status) || (i < 1024 && absl::IsInvalidArgument(status)))
          << "bit " << bit << " of byte " << i << ": " << status;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
    }
  }
  EXPECT_TRUE(Check(bytes).ok());
}

TEST(SnapshotFile, EveryTruncationIsFound) {
  const std::string bytes = Archive(SomeFiles());
  EXPECT_EQ(Sentence(""), "it is empty");
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(Check(std::string_view(bytes).substr(0, size)).status())) << size;
  }
  EXPECT_THAT(Sentence(bytes.substr(0, 3000)), HasSubstr("it ends here, before its end"));
  EXPECT_THAT(Sentence(bytes + "x"), HasSubstr("there is something behind its end"));
}

TEST(SnapshotFile, ForeignFilesAreNone) {
  for (const std::string& foreign : {std::string(600, 'x'), std::string(600, '\0'),
                                     "SQLite format 3" + std::string(1000, '\0')}) {
    const absl::Status status = Check(foreign).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("it is no snapshot of sparsed's"));
  }
  Files files = SomeFiles();
  files[0].second = R"({"format": 2})";
  EXPECT_THAT(Sentence(Archive(files)), HasSubstr("it has format 2, of a newer sparsed"));
  for (const std::string facts : {"", "{}", "[1]", "x", R"({"format": "1"})"}) {
    files[0].second = facts;
    EXPECT_THAT(Sentence(Archive(files)), HasSubstr("its snapshot.json is damaged")) << facts;
  }
}

TEST(SnapshotFile, NothingElseMayBeInIt) {
  for (const std::string name :
       {"../evil", "/etc/passwd", "blobs/../x.blob", "blobs/0000000000000003.blob",
        "blobs/0000000000000001.blob", "blobs/18.blob", "blobs/-000000000000018.blob",
        "blobs/0000000000000018.blob ", "catalog.sqlite", "blobs/99999999999999999999.blob", ""}) {
    Files files = SomeFiles();
    files.insert(files.begin() + 5, {name, "evil"});
    const absl::Status status = Check(Archive(files)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << name << ": " << status;
  }
  Files files = SomeFiles();
  std::swap(files[1], files[2]);
  EXPECT_THAT(Sentence(Archive(files)), HasSubstr("contents.jsonl should be here"));
  files = SomeFiles();
  files[1].second = std::string(100'000, 'x');
  EXPECT_THAT(Sentence(Archive(files)), HasSubstr("a line of its contents.jsonl is too long"));
  files[1].second = "not JSON\n";
  EXPECT_THAT(Sentence(Archive(files)), HasSubstr("line 1 of its contents.jsonl"));
  files[1].second = "{}";
  EXPECT_THAT(Sentence(Archive(files)), HasSubstr("ends within a line"));
}

TEST(SnapshotFile, SizesBeyondTarsOwnAreTold) {
  wire::SnapshotWriter writer;
  for (const int64_t bytes : {(int64_t{1} << 33) - 1, int64_t{1} << 33, int64_t{1} << 45}) {
    struct Sizes : wire::SnapshotReader::Handler {
      absl::Status OnFile(std::string_view, int64_t size) override {
        last = size;
        return absl::OkStatus();
      }
      absl::Status OnBytes(std::span<const std::byte>) override { return absl::OkStatus(); }
      absl::Status OnFileEnd() override { return absl::OkStatus(); }
      int64_t last = -1;
    } sizes;
    wire::SnapshotReader reader(sizes);
    const std::string header = writer.Begin("snapshot.json", bytes);
    EXPECT_TRUE(reader.Add(std::as_bytes(std::span(header))).ok());
    EXPECT_EQ(sizes.last, bytes);
  }
}

class Restore : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "snapshot_XXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& bytes) const {
    std::ofstream(folder_ + "/s", std::ios::binary) << bytes;
    return folder_ + "/s";
  }
  absl::Status Into(const std::string& directory, const std::string& bytes) const {
    auto restored = RestoredDirectory::Make(directory);
    if (!restored.ok()) return restored.status();
    const std::atomic<bool> stop = false;
    const absl::Status status = ReadSnapshot(
                                    Write(bytes), restored->get(), [](int64_t, int64_t) {}, stop)
                                    .status();
    return status.ok() ? (*restored)->Commit() : status;
  }
  std::string ContentsOf(const std::string& path) const {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  std::string folder_;
};

TEST_F(Restore, MakesADirectory) {
  const std::string directory = folder_ + "/data";
  ASSERT_TRUE(Into(directory, Archive(SomeFiles())).ok());
  EXPECT_EQ(ContentsOf(directory + "/catalog.sqlite"), std::string(1024, 'c'));
  EXPECT_EQ(ContentsOf(directory + "/blobs/0000000000000003.blob"), std::string(700, 'x'));
  EXPECT_EQ(ContentsOf(directory + "/blobs/12345678901234567.blob"), "last");
  EXPECT_TRUE(std::filesystem::exists(directory + "/blobs/0000000000000017.blob"));
  EXPECT_FALSE(std::filesystem::exists(directory + "/snapshot.json"));
  EXPECT_FALSE(std::filesystem::exists(directory + "/damaged.txt"));
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(directory).permissions(), perms::owner_all);
  EXPECT_EQ(std::filesystem::status(directory + "/catalog.sqlite").permissions(),
            perms::owner_read | perms::owner_write);
}

TEST_F(Restore, RefusesWhatIsNotEmpty) {
  const std::string directory = folder_ + "/data";
  std::filesystem::create_directory(directory);
  std::ofstream(directory + "/mine") << "x";
  const absl::Status status = Into(directory, Archive(SomeFiles()));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not empty"));
  EXPECT_EQ(ContentsOf(directory + "/mine"), "x");
  std::filesystem::remove(directory + "/mine");
  EXPECT_TRUE(Into(directory, Archive(SomeFiles())).ok());
  EXPECT_EQ(Into(directory, Archive(SomeFiles())).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Into(directory + "/catalog.sqlite", "").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Into(folder_ + "/no/where", "").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Restore, OfADamagedOneNothingStays) {
  std::string bytes = Archive(SomeFiles());
  bytes[bytes.size() - 1025] = 'x';
  const std::string directory = folder_ + "/data";
  EXPECT_TRUE(absl::IsDataLoss(Into(directory, bytes)));
  EXPECT_FALSE(std::filesystem::exists(directory));
  std::filesystem::create_directory(directory);
  const absl::Status status = Into(directory, bytes.substr(0, 4000));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ + "/s: it is damaged at byte"));
  EXPECT_TRUE(std::filesystem::is_empty(directory));
}

TEST_F(Restore, OfTwoAtOnceTheOtherLeavesItAlone) {
  const std::string snapshot = Write(Archive(SomeFiles()));
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    const std::string directory = fmt::format("{}/data{}", folder_, i % 10);
    std::filesystem::remove_all(directory);
    if (i % 2 == 0) std::filesystem::create_directory(directory);
    std::latch both(2);
    const auto restore = [&]() -> absl::Status {
      both.arrive_and_wait();
      const auto restored = RestoredDirectory::Make(directory);
      if (!restored.ok()) return restored.status();
      const std::atomic<bool> stop = false;
      const absl::Status status = ReadSnapshot(
                                      snapshot, restored->get(), [](int64_t, int64_t) {}, stop)
                                      .status();
      return status.ok() ? (*restored)->Commit() : status;
    };
    absl::Status first, second;
    std::thread other([&] { second = restore(); });
    first = restore();
    other.join();
    ASSERT_TRUE(first.ok() != second.ok()) << first << " " << second;
    EXPECT_THAT(std::string((first.ok() ? second : first).message()), HasSubstr("is not empty"));
    EXPECT_EQ(ContentsOf(directory + "/catalog.sqlite"), std::string(1024, 'c'));
    EXPECT_EQ(ContentsOf(directory + "/blobs/12345678901234567.blob"), "last");
    EXPECT_TRUE(std::filesystem::exists(directory + "/LOCK"));
  }
}

TEST_F(Restore, WithoutRoomForItsNamesNothingStays) {
  // "/LOCK" fits the longest path that there may be, "/blobs" does not.
  std::string directory = folder_;
  while (directory.size() < 4085) directory += directory.size() % 2 == 0 ? "/" : "/.";
  directory += "/data";
  const absl::Status status = RestoredDirectory::Make(directory).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("blobs: File name too long"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/data"));
}

TEST_F(Restore, FollowsNoLinks) {
  auto restored = RestoredDirectory::Make(folder_ + "/data");
  ASSERT_TRUE(restored.ok());
  std::filesystem::create_symlink("/dev/full", folder_ + "/data/blobs/0000000000000003.blob");
  const std::atomic<bool> stop = false;
  const absl::Status status =
      ReadSnapshot(
          Write(Archive(SomeFiles())), restored->get(), [](int64_t, int64_t) {}, stop)
          .status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("File exists"));
}

TEST_F(Restore, CanBeInterrupted) {
  const std::atomic<bool> stop = true;
  const auto summary = ReadSnapshot(
      Write(Archive(SomeFiles())), nullptr, [](int64_t, int64_t) {}, stop);
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kCancelled);
  const std::atomic<bool> go_on = false;
  EXPECT_EQ(ReadSnapshot(
                folder_ + "/nothing", nullptr, [](int64_t, int64_t) {}, go_on)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sparsed::cli
