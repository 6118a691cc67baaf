// What the catalog brings back from a directory, and what it says of damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>

#include "engine/retry.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Restart, BringsBackMatricesOnFirstUse) {
  TemporaryDirectory directory;
  const test::Pattern s = test::Uniform(100, 200, 10, 1);
  std::string hash;
  {
    Modules modules(directory.path());
    auto a = SendMatrix(modules.catalog, "a", s, 1);
    ASSERT_TRUE(a.ok() && SendMatrix(modules.catalog, "b", s, 2).ok());
    EXPECT_TRUE((*a)->durable());
    hash = (*a)->pattern()->hash();
    ASSERT_TRUE(SendMatrix(modules.catalog, "deleted", test::Band(9, 2)).ok());
    ASSERT_TRUE(modules.catalog.Delete("t", "deleted").ok());
    // Never finished: leaves nothing behind.
    auto upload = modules.catalog.BeginUpload(HeaderOf("unfinished", s));
    ASSERT_TRUE(upload.ok() && Feed(**upload, 0, s.row_offsets).ok());
  }
  Modules modules(directory.path());
  EXPECT_EQ(modules.budget.used(), 2 * kMatrixBytes) << "arrays are read when they are needed";
  EXPECT_EQ(modules.catalog.All().size(), 2u);
  auto a = modules.catalog.Find("t", "a");
  auto b = modules.catalog.Find("t", "b");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ((*a)->pattern(), (*b)->pattern());
  EXPECT_EQ((*a)->pattern()->hash(), hash);
  EXPECT_EQ(Elements<float>((*a)->Values()), FloatsOf(s, 1));
  EXPECT_EQ(Elements<float>((*b)->Values()), FloatsOf(s, 2));
  const auto csr = (*a)->pattern()->Csr();
  ASSERT_TRUE(csr.ok()) << csr.status();
  EXPECT_THAT(ViewCsr(**csr).column_indices, ::testing::ElementsAreArray(s.column_indices));
  // A pattern that is only on disk is known too.
  Modules* same = &modules;
  UploadHeader header = HeaderOf("c", s);
  header.pattern_hash = hash;
  auto c = Send(same->catalog, header, s.row_offsets, s.column_indices, FloatsOf(s, 3));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ((*c)->pattern(), (*a)->pattern());
}

TEST(Restart, MoreThanTheLimitIsRefusedWithASentence) {
  TemporaryDirectory directory;
  {
    Modules modules(directory.path());
    for (const char* name : {"a", "b", "c"}) {
      ASSERT_TRUE(SendMatrix(modules.catalog, name, test::Band(9, 2)).ok());
    }
  }
  const auto store = OpenStore(PosixFileSystem(), directory.path()).value();
  Budget budget(2 * kMatrixBytes, 0);
  Catalog catalog(*store, budget);
  const absl::Status refused = catalog.Restore(store->Load().value());
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("raise --host-memory"));
}

TEST(Restart, KeepsTheCallersOrder) {
  TemporaryDirectory directory;
  {
    Modules modules(directory.path());
    UploadHeader header = HeaderOf("m", test::FromCoordinates(1, 3, {{0, 0}, {0, 1}, {0, 2}}));
    header.sort = true;
    ASSERT_TRUE(Send(modules.catalog, header, std::vector<int64_t>{0, 3},
                     std::vector<int32_t>{2, 0, 1}, std::vector<float>{20, 0, 10})
                    .ok());
  }
  Modules modules(directory.path());
  auto matrix = modules.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok());
  ASSERT_NE((*matrix)->caller_order(), nullptr);
  EXPECT_THAT(Elements<int64_t>((*matrix)->caller_order()->Get()), ElementsAre(1, 2, 0));
  auto update = modules.catalog.BeginUpdate({"t", "m", ElementType::kF32, false, 0});
  ASSERT_TRUE(update.ok());
  ASSERT_TRUE(Feed(**update, 0, std::vector<float>{22, 1, 11}).ok());
  auto fresh = (*update)->Finish(1);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_THAT(Elements<float>((*fresh)->Values()), ElementsAre(1, 11, 22));
}

TEST(Restart, BringsBackTheLastDurableValues) {
  TemporaryDirectory directory;
  const test::Pattern s = test::Uniform(100, 200, 10, 1);
  {
    Modules modules(directory.path());
    ASSERT_TRUE(SendMatrix(modules.catalog, "m", s, 1).ok());
    for (const bool durable : {true, false}) {
      auto update = modules.catalog.BeginUpdate({"t", "m", ElementType::kF32, durable, 0});
      ASSERT_TRUE(update.ok());
      ASSERT_TRUE(Feed(**update, 0, FloatsOf(s, durable ? 2 : 3)).ok());
      auto matrix = (*update)->Finish(1);
      ASSERT_TRUE(matrix.ok()) << matrix.status();
      EXPECT_EQ((*matrix)->durable(), durable);
    }
  }
  Modules modules(directory.path());
  auto matrix = modules.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok());
  EXPECT_EQ((*matrix)->version(), 2u);
  EXPECT_EQ(Elements<float>((*matrix)->Values()), FloatsOf(s, 2));
}

/// New values for "m"; returns their version.
uint64_t Update(Catalog& catalog, const test::Pattern& s, bool durable) {
  auto update = catalog.BeginUpdate({"t", "m", ElementType::kF32, durable, 0});
  EXPECT_TRUE(update.ok() && Feed(**update, 0, FloatsOf(s, 2)).ok());
  const auto matrix = (*update)->Finish(1);
  EXPECT_TRUE(matrix.ok()) << matrix.status();
  return matrix.ok() ? (*matrix)->version() : 0;
}

TEST(Restart, UsesNoVersionOfAMatrixTwice) {
  TemporaryDirectory directory;
  const test::Pattern s = test::Band(9, 2);
  uint64_t highest = 0;
  for (int run = 0; run < 3; ++run) {
    Modules modules(directory.path());
    if (run == 0) {
      ASSERT_TRUE(SendMatrix(modules.catalog, "m", s).ok());
    }
    for (int step = 0; step < 5; ++step) {
      const uint64_t version = Update(modules.catalog, s, /*durable=*/step == 2);
      EXPECT_GT(version, highest) << "run " << run << ", step " << step;
      highest = version;
    }
  }
  // Nor if it is deleted in between, and whether there is a restart or not.
  for (const bool restart : {false, true}) {
    auto modules = std::make_unique<Modules>(directory.path());
    highest = std::max(highest, Update(modules->catalog, s, /*durable=*/false));
    ASSERT_TRUE(modules->catalog.Delete("t", "m").ok());
    if (restart) {
      modules.reset();
      modules = std::make_unique<Modules>(directory.path());
    }
    const auto again = SendMatrix(modules->catalog, "m", s);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_GT((*again)->version(), highest);
    highest = (*again)->version();
  }
}

TEST(Restart, UsesNoVersionTwiceAfterManyThatWereNotStored) {
  TemporaryDirectory directory;
  const test::Pattern s = test::Band(3, 1);
  uint64_t highest = 0;
  {
    Modules modules(directory.path());
    ASSERT_TRUE(SendMatrix(modules.catalog, "m", s).ok());
    for (int step = 0; step < 2500; ++step) highest = Update(modules.catalog, s, /*durable=*/false);
    EXPECT_EQ(highest, 2501U) << "one after the other while the server runs";
  }
  Modules modules(directory.path());
  EXPECT_EQ((*modules.catalog.Find("t", "m"))->version(), 1U) << "what was stored";
  EXPECT_GT(Update(modules.catalog, s, /*durable=*/false), highest);
}

TEST(Restart, ReadsFromTheDiskStopWithWhoeverAsked) {
  TemporaryDirectory directory;
  const test::Pattern s = test::Band(9, 2);
  {
    Modules modules(directory.path());
    ASSERT_TRUE(SendMatrix(modules.catalog, "m", s).ok());
  }
  Modules modules(directory.path());
  const MatrixLease matrix = modules.catalog.Find("t", "m").value();
  const std::atomic<bool> stop = true;
  EXPECT_TRUE(absl::IsCancelled(matrix->Values(&stop).status()));
  EXPECT_TRUE(absl::IsCancelled(matrix->pattern()->Csr(&stop).status()));
  EXPECT_FALSE(matrix->resident());
  EXPECT_TRUE(matrix->Values().ok());
  EXPECT_TRUE(matrix->pattern()->Csr().ok());
}

TEST(Restart, WhatFindsNoMemoryForNowSaysSo) {
  constexpr int64_t kMemory = int64_t{16} << 20;
  TemporaryDirectory directory;
  {
    Modules modules(directory.path(), kMemory);
    ASSERT_TRUE(SendMatrix(modules.catalog, "m", test::Uniform(5000, 6000, 10, 1)).ok());
  }
  Modules modules(directory.path(), kMemory);
  const MatrixLease matrix = modules.catalog.Find("t", "m").value();
  const auto hog = modules.budget.Source(MemoryUse::kRequests).Allocate(kMemory - (64 << 10));
  ASSERT_TRUE(hog.ok()) << hog.status();
  for (const absl::Status& refused :
       {matrix->Values().status(), matrix->pattern()->Csr().status()}) {
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("retry later"));
    EXPECT_NE(RetryDelay(refused), std::nullopt);
  }
}

/// Changes a byte in the middle of every file that is at least `size` bytes long.
void Damage(const std::string& directory, uintmax_t size) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file() || entry.file_size() < size) continue;
    if (entry.path().string().find("catalog") != std::string::npos) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(entry.file_size() / 2));
    const char byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    file.put(static_cast<char>(~byte));
  }
}

TEST(Restart, DamageIsNamedAndHealedByANewUpload) {
  TemporaryDirectory directory;
  const test::Pattern s = test::Uniform(5000, 6000, 10, 1);
  {
    Modules modules(directory.path());
    ASSERT_TRUE(SendMatrix(modules.catalog, "m", s, 1).ok());
  }
  Damage(directory.path(), 40'000);
  {
    Modules modules(directory.path());
    auto matrix = modules.catalog.Find("t", "m");
    ASSERT_TRUE(matrix.ok());
    const absl::Status values = (*matrix)->Values().status();
    EXPECT_TRUE(absl::IsDataLoss(values)) << values;
    EXPECT_THAT(std::string(values.message()), HasSubstr("values"));
    EXPECT_THAT(std::string(values.message()), HasSubstr("'m'"));
    const absl::Status csr = (*matrix)->pattern()->Csr().status();
    EXPECT_TRUE(absl::IsDataLoss(csr)) << csr;
    EXPECT_THAT(std::string(csr.message()), HasSubstr("row_offsets"));

    UploadHeader header = HeaderOf("m", s);
    header.replace = true;
    auto fresh = Send(modules.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s, 1));
    ASSERT_TRUE(fresh.ok()) << fresh.status();
    EXPECT_TRUE((*fresh)->pattern()->Csr().ok());
  }
  Modules modules(directory.path());
  auto matrix = modules.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok());
  EXPECT_EQ(Elements<float>((*matrix)->Values()), FloatsOf(s, 1));
  EXPECT_TRUE((*matrix)->pattern()->Csr().ok()) << (*matrix)->pattern()->Csr().status();
}

}  // namespace
}  // namespace sparsed::engine
