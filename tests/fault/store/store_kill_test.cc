// A real process on the real disk, killed with SIGKILL in the middle of its work.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/fault/store/store_testing.h"

namespace sparsed::engine {
namespace {

/// Replaces matrix "m" again and again, each time with the next seed, and writes a byte for each
/// that is acknowledged. Never returns.
[[noreturn]] void UploadUntilKilled(const std::string& directory, int first, int acknowledged) {
  const auto store = OpenStore(PosixFileSystem(), directory);
  if (!store.ok()) _exit(1);
  for (int i = first;; ++i) {
    NewMatrix m = RandomMatrix("m", fmt::format("pattern{}", i % 3), static_cast<uint32_t>(i));
    m.version = static_cast<uint64_t>(i);
    if (!(*store)->PutMatrix(m).ok() || write(acknowledged, "x", 1) != 1) _exit(1);
  }
}

TEST(Kill, RealProcessLosesNothingAcknowledged) {
  std::string directory = (std::filesystem::temp_directory_path() / "sparsed-kill-XXXXXX").string();
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  int version = 0;
  for (int round = 0; round < 12; ++round) {
    std::array<int, 2> pipe_ends;
    ASSERT_EQ(pipe(pipe_ends.data()), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(pipe_ends[0]);
      UploadUntilKilled(directory, version + 1, pipe_ends[1]);
    }
    close(pipe_ends[1]);
    std::this_thread::sleep_for(std::chrono::milliseconds(40 + 17 * round));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the store failed before it was killed";
    int acknowledged = 0;
    for (char byte; read(pipe_ends[0], &byte, 1) == 1;) ++acknowledged;
    close(pipe_ends[0]);

    const auto store = OpenStore(PosixFileSystem(), directory);
    ASSERT_TRUE(store.ok()) << store.status();
    const StoreContents contents = *(*store)->Load();
    const int last = version + acknowledged;
    if (contents.matrices.empty()) {
      ASSERT_EQ(last, 0);
      continue;
    }
    version = static_cast<int>(contents.matrices[0].version);
    EXPECT_TRUE(version == last || version == last + 1) << version << " instead of " << last;
    const auto values = (*store)->Read(contents.matrices[0].values, HeapMemory());
    ASSERT_TRUE(values.ok()) << values.status();
    const NewMatrix expected =
        RandomMatrix("m", fmt::format("pattern{}", version % 3), static_cast<uint32_t>(version));
    EXPECT_EQ(contents.matrices[0].pattern_hash, expected.pattern_hash);
    EXPECT_TRUE(std::equal(values->buffer.data(), values->buffer.data() + values->bytes(),
                           expected.values.buffer.data()));
    EXPECT_TRUE(Dump(**store).ok());
  }
  EXPECT_GT(version, 0);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace sparsed::engine
