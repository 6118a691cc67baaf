// Memory of a GPU that another process maps, on a real one.
#include "kernels/cuda/exportable_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"

namespace sparsed::test {
namespace {

#define SKIP_WITHOUT_GPU() \
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot()

constexpr size_t kCount = 1'000'001;

std::vector<int32_t> Numbers() {
  std::vector<int32_t> numbers(kCount);
  for (size_t i = 0; i < kCount; ++i) numbers[i] = static_cast<int32_t>(i * 7919);
  return numbers;
}

/// Runs one of the disabled tests below in a process of its own, which has `file`. Its exit status.
int RunChild(const std::string& test, const Descriptor& file) {
  const int inherited = fcntl(file.fd(), F_DUPFD, 100);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string filter = "--gtest_filter=GpuExportableMemory.DISABLED_" + test;
  std::vector<std::string> words = {self, filter, "--gtest_also_run_disabled_tests"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  setenv("SPARSED_TEST_IMPORT", std::to_string(inherited).c_str(), 1);
  // Which tests of the shards are this process's is nothing to the child.
  unsetenv("GTEST_TOTAL_SHARDS");
  unsetenv("GTEST_SHARD_INDEX");
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments.data(), environ), 0);
  int status = -1;
  waitpid(child, &status, 0);
  close(inherited);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Buffer ImportInChild() {
  const Descriptor file(std::atoi(std::getenv("SPARSED_TEST_IMPORT")));
  absl::StatusOr<Buffer> memory = cuda::Import(file, kCount * sizeof(int32_t));
  Must(memory.status());
  return *std::move(memory);
}

TEST(GpuExportableMemory, AnotherProcessReadsItAndCannotWrite) {
  SKIP_WITHOUT_GPU();
  Gpu& gpu = *Gpu::Get();
  const size_t granularity = cuda::ExportGranularity();
  ASSERT_GT(granularity, 0u);
  const std::vector<int32_t> numbers = Numbers();
  const size_t bytes = kCount * sizeof(int32_t);
  absl::StatusOr<Buffer> memory = cuda::AllocateExportable(bytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->size(), bytes);
  Must(gpu.stream().Copy(memory->mutable_data(), numbers.data(), bytes));
  Must(gpu.stream().Synchronize());
  const absl::StatusOr<Descriptor> file = cuda::Export(*memory);
  ASSERT_TRUE(file.ok()) << file.status();
  // A part of it stands for all.
  EXPECT_TRUE(cuda::Export(memory->Part(4096, 10)).ok());
  EXPECT_EQ(RunChild("Reads", *file), 0);
  EXPECT_EQ(RunChild("Writes", *file), 0);
  std::vector<int32_t> back(kCount);
  gpu.Download(back.data(), memory->data(), bytes);
  EXPECT_EQ(back, numbers) << "what the child wrote";
  // The descriptor keeps it when its first owner has let go.
  *memory = Buffer();
  EXPECT_EQ(RunChild("Reads", *file), 0);
}

TEST(GpuExportableMemory, WhatIsWrongIsRefused) {
  SKIP_WITHOUT_GPU();
  Gpu& gpu = *Gpu::Get();
  const Buffer ordinary = gpu.Allocate(4096);
  EXPECT_FALSE(cuda::Export(ordinary).ok());
  const std::vector<int> host(10);
  EXPECT_FALSE(cuda::Export(Buffer(std::make_shared<std::byte>(), sizeof(std::byte))).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(cuda::Import(Descriptor(), 4096).status()));
  const Descriptor other(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(absl::IsInvalidArgument(cuda::Import(other, 4096).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(cuda::AllocateExportable(size_t{1} << 45).status()));
  EXPECT_TRUE(cuda::AllocateExportable(0).ok());
  // Nothing of that stays behind.
  absl::StatusOr<Buffer> memory = cuda::AllocateExportable(100);
  ASSERT_TRUE(memory.ok()) << memory.status();
  Must(gpu.stream().Fill(memory->mutable_data(), 1, 100));
  Must(gpu.stream().Synchronize());
  const absl::StatusOr<Descriptor> file = cuda::Export(*memory);
  ASSERT_TRUE(file.ok()) << file.status();
  // More than it stands for.
  EXPECT_FALSE(cuda::Import(*file, size_t{1} << 33).ok());
  const absl::StatusOr<Buffer> again = cuda::Import(*file, 100);
  ASSERT_TRUE(again.ok()) << again.status();
  char back[100] = {};
  gpu.Download(back, again->data(), 100);
  EXPECT_EQ(back[99], 1);
}

/// Children of the first test.
TEST(GpuExportableMemory, DISABLED_Reads) {
  Gpu& gpu = *Gpu::Get();
  const Buffer memory = ImportInChild();
  std::vector<int32_t> back(kCount);
  gpu.Download(back.data(), memory.data(), kCount * sizeof(int32_t));
  EXPECT_EQ(back, Numbers());
}

TEST(GpuExportableMemory, DISABLED_Writes) {
  Gpu& gpu = *Gpu::Get();
  Buffer memory = ImportInChild();
  // By a kernel, and in a copy: each fails, and after the first the process has no GPU any more.
  absl::Status status = gpu.stream().Fill(memory.mutable_data(), 0, memory.size());
  if (status.ok()) status = gpu.stream().Synchronize();
  EXPECT_FALSE(status.ok());
  // Not to meet that error again on the way out.
  if (!HasFailure()) _exit(0);
}

}  // namespace
}  // namespace sparsed::test
