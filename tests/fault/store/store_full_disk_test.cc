// A disk that is full, at every budget of bytes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "engine/store/data_directory.h"
#include "tests/fault/store/forgetful_file_system.h"
#include "tests/fault/store/store_testing.h"

namespace sparsed::engine {
namespace {

using testing::HasSubstr;

constexpr const char* kDirectory = "/data";
constexpr int64_t kPlenty = int64_t{1} << 40;

/// From now on the disk has room for what is there and nothing else.
void FillUp(ForgetfulFileSystem& files) {
  files.SetCapacity(kPlenty);
  files.ClaimFreeBytes(-1);
  files.SetCapacity(kPlenty - *files.FreeBytes("/"));
}

/// Many matrices, and much that is known of their patterns.
void PutMany(Store& store, int matrices) {
  for (int i = 0; i < matrices; ++i) {
    const std::string hash = fmt::format("pattern{}", i / 2);
    ASSERT_TRUE(store.PutMatrix(RandomMatrix(fmt::format("m{}", i), hash, 1)).ok());
    ASSERT_TRUE(store.PutBuffer(RandomBuffer(fmt::format("b{}", i), 1)).ok());
    ASSERT_TRUE(store.PutLayout(hash, RandomLayout("aspt(panel=64)", 3), 1).ok());
    std::vector<MeasurementRecord> measurements;
    for (int k = 0; k < 200; ++k) {
      measurements.push_back({hash, "spmm f32 k<=32 cpu", fmt::format("recipe{}", k), "kernel",
                              "cpu", 32, 2.5, 9, 77});
    }
    ASSERT_TRUE(store.PutMeasurements(measurements).ok());
  }
}

/// Deletes all that PutMany put; `between` comes after each deletion.
void DeleteMany(Store& store, int matrices, const std::function<void()>& between) {
  for (int i = 0; i < matrices; ++i) {
    const absl::Status matrix = store.DeleteMatrix("tenant", fmt::format("m{}", i));
    ASSERT_TRUE(matrix.ok()) << i << ": " << matrix;
    between();
    const absl::Status buffer = store.DeleteBuffer("tenant", fmt::format("b{}", i));
    ASSERT_TRUE(buffer.ok()) << i << ": " << buffer;
    between();
  }
  EXPECT_EQ(*Dump(store), "") << "there is no room for what was measured, either";
}

// Others take at once what a deletion frees, and what was set aside is there once only.
TEST(FullDisk, HasRoomForDeletions) {
  for (const bool restarted : {false, true}) {
    SCOPED_TRACE(restarted ? "after a restart" : "at once");
    ForgetfulFileSystem files;
    auto store = *OpenStore(files, kDirectory);
    PutMany(*store, 40);
    if (restarted) {
      store.reset();
      store = *OpenStore(files, kDirectory);
    }
    FillUp(files);
    ASSERT_EQ(store->PutMatrix(RandomMatrix("new", "new", 1)).status().code(),
              absl::StatusCode::kResourceExhausted);
    DeleteMany(*store, 40, [&] { FillUp(files); });
    // When there is room again, it is set aside for the next time.
    files.SetCapacity(kPlenty);
    ASSERT_TRUE(store->DeleteMatrix("tenant", "none").ok());
    ASSERT_NE(files.Contents("/data/RESERVE"), nullptr);
    EXPECT_EQ(files.Contents("/data/RESERVE")->size(), DataDirectory::kReserveBytes);
  }
}

/// A small disk of its own, mounted for this process alone; empty if that is not allowed here.
class SmallDisk {
 public:
  explicit SmallDisk(const char* options) {
    std::string name = (std::filesystem::temp_directory_path() / "sparsed-disk-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) return;
    path_ = name;
    mounted_ = unshare(CLONE_NEWNS) == 0 &&
               mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               mount("tmpfs", path_.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount(path_.c_str());
    std::filesystem::remove(path_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& path() const { return path_; }
  /// Somebody else's file takes all that is left.
  void FillUp() {
    std::ofstream file(path_ + "/filler", std::ios::app | std::ios::binary);
    const std::string block(4096, 'x');
    while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }

 private:
  std::string path_;
  bool mounted_ = false;
};

TEST(FullDisk, HasRoomForDeletionsOnARealOne) {
  SmallDisk disk("size=24m");
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount a small disk";
  auto store = *OpenStore(PosixFileSystem(), disk.path() + "/data");
  PutMany(*store, 20);
  store.reset();
  store = *OpenStore(PosixFileSystem(), disk.path() + "/data");
  disk.FillUp();
  ASSERT_EQ(store->PutWanted(std::vector<WantedRecord>(200, {"pattern1", "a signature"})).code(),
            absl::StatusCode::kResourceExhausted);
  DeleteMany(*store, 20, [&] { disk.FillUp(); });
  store.reset();
  EXPECT_TRUE(OpenStore(PosixFileSystem(), disk.path() + "/data").ok());
}

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
    // With room for that, too, there is room for every step.
    most -= static_cast<int64_t>(DataDirectory::kReserveBytes);
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
