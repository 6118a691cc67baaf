// Snapshots of a store that goes on changing: what is in them is what was there at one moment, bit
// for bit, whatever the disk does.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/store/database.h"
#include "engine/store/snapshot.h"
#include "tests/fault/store/forgetful_file_system.h"
#include "tests/fault/store/store_testing.h"

namespace sparsed::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kDirectory = "/data";
using Files = std::map<std::string, std::string>;

/// Of all that is in it, read in pieces of a size that fits nothing.
absl::StatusOr<Files> ReadAll(StoreSnapshot& snapshot) {
  Files files;
  std::vector<std::byte> piece(1000);
  while (true) {
    const auto file = snapshot.Next();
    if (!file.ok()) return file.status();
    if (!file->has_value()) return files;
    std::string& contents = files[(*file)->name];
    while (true) {
      const auto n = snapshot.Read(piece);
      if (!n.ok()) return n.status();
      contents.append(reinterpret_cast<const char*>(piece.data()), *n);
      if (*n < piece.size()) break;
    }
    EXPECT_EQ(static_cast<int64_t>(contents.size()), (*file)->bytes) << (*file)->name;
  }
}

/// What a store says that starts from them.
std::string DumpOf(const Files& contents) {
  ForgetfulFileSystem files;
  EXPECT_TRUE(files.CreateDirectory(kDirectory).ok());
  EXPECT_TRUE(files.CreateDirectory("/data/blobs").ok());
  for (const auto& [name, bytes] : contents) {
    auto file = files.Open(fmt::format("{}/{}", kDirectory, name), OpenMode::kCreateNew);
    EXPECT_TRUE((*file)->Write(0, std::as_bytes(std::span(bytes))).ok());
  }
  const auto store = OpenStore(files, kDirectory);
  if (!store.ok()) return std::string(store.status().message());
  const auto dump = Dump(**store);
  return dump.ok() ? *dump : std::string(dump.status().message());
}

std::vector<std::string> Copies(ForgetfulFileSystem& files) {
  std::vector<std::string> copies;
  for (const std::string& name : files.Names(kDirectory)) {
    if (name.starts_with("catalog.copy")) copies.push_back(name);
  }
  return copies;
}

TEST(Snapshot, IsWhatWasThereWhateverComesAfter) {
  const std::vector<Step> steps = AllSteps();
  for (size_t taken = 0; taken <= steps.size(); ++taken) {
    SCOPED_TRACE(taken);
    ForgetfulFileSystem files;
    const auto store = *OpenStore(files, kDirectory);
    for (size_t i = 0; i < taken; ++i) ASSERT_TRUE(steps[i].run(*store).ok());
    const std::string dump = *Dump(*store);
    auto snapshot = store->Snapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    // All that follows, with what it removes and replaces, before the first byte is read.
    for (size_t i = taken; i < steps.size(); ++i) ASSERT_TRUE(steps[i].run(*store).ok());
    const auto read = ReadAll(**snapshot);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_THAT((*snapshot)->damaged(), IsEmpty());
    EXPECT_EQ((*snapshot)->facts().arrays, static_cast<int64_t>(read->size()) - 1);
    EXPECT_EQ(DumpOf(*read), dump);
    const size_t blobs = files.Names("/data/blobs").size();
    snapshot->reset();
    // What was deleted meanwhile is gone as soon as nobody reads it.
    EXPECT_LE(files.Names("/data/blobs").size(), blobs);
    EXPECT_THAT(Copies(files), IsEmpty());
    const StoreContents contents = *store->Load();
    size_t arrays = 2 * contents.patterns.size() + contents.buffers.size();
    for (const MatrixRecord& m : contents.matrices) arrays += m.value_order ? 2 : 1;
    for (const LayoutRecord& l : contents.layouts) arrays += l.arrays.size();
    EXPECT_EQ(files.Names("/data/blobs").size(), arrays);
  }
}

TEST(Snapshot, SaysWhatIsInIt) {
  ForgetfulFileSystem files;
  const auto store = *OpenStore(files, kDirectory);
  for (size_t i = 0; i < 11; ++i) ASSERT_TRUE(AllSteps()[i].run(*store).ok());
  const auto snapshot = *store->Snapshot();
  const SnapshotFacts& facts = snapshot->facts();
  EXPECT_EQ(facts.matrices, 2);
  EXPECT_EQ(facts.patterns, 1);
  EXPECT_EQ(facts.layouts, 1);
  EXPECT_EQ(facts.buffers, 1);
  EXPECT_GT(facts.array_bytes, 1000);
  EXPECT_GT(facts.schema_version, 0);
  const std::string contents = snapshot->TakeContents();
  EXPECT_THAT(contents, HasSubstr(R"({"kind":"matrix","tenant":"tenant","name":"a","rows":)"));
  EXPECT_THAT(contents, HasSubstr(R"("type":"f32","version":9})"));
  EXPECT_THAT(contents,
              HasSubstr(R"({"kind":"buffer","tenant":"tenant","name":"x","rows":10,"cols":32,)"
                        R"("type":"f64","version":3})"));
}

/// A matrix whose version says how old it is, beside one that is changed after it.
TEST(Snapshot, IsOfOneMomentWhileOthersWrite) {
  ForgetfulFileSystem files;
  const auto store = *OpenStore(files, kDirectory);
  const NewMatrix a = RandomMatrix("a", "P", 1), b = RandomMatrix("b", "P", 2);
  ASSERT_TRUE(store->PutMatrix(a).ok());
  ASSERT_TRUE(store->PutMatrix(b).ok());
  // A catalog that is not copied in one step.
  for (uint32_t i = 0; i < 40; ++i) {
    const std::string pattern = fmt::format("F{}", i);
    ASSERT_TRUE(store->PutMatrix(RandomMatrix(fmt::format("f{}", i), pattern, i)).ok());
    ASSERT_TRUE(store->PutFeatures(pattern, RandomFeatures(i)).ok());
  }
  ASSERT_GT(files.Contents("/data/catalog.sqlite-wal")->size(), size_t{2} << 20);
  std::atomic<bool> ended = false;
  std::thread writer([&] {
    for (uint64_t version = 100; !ended; ++version) {
      EXPECT_TRUE(store->PutValues("tenant", "a", version, a.values).ok());
      EXPECT_TRUE(store->PutValues("tenant", "b", version, b.values).ok());
      const std::string name = fmt::format("w{}", version % 10);
      EXPECT_TRUE(store->PutMatrix(RandomMatrix(name, name, 7)).ok());
      EXPECT_TRUE(store->DeleteMatrix("tenant", fmt::format("w{}", (version + 5) % 10)).ok());
    }
  });
  for (int i = 0; i < 10; ++i) {
    const auto snapshot = store->Snapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    const auto read = ReadAll(**snapshot);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_THAT((*snapshot)->damaged(), IsEmpty());
    ForgetfulFileSystem copy;
    ASSERT_TRUE(copy.CreateDirectory(kDirectory).ok());
    ASSERT_TRUE(copy.CreateDirectory("/data/blobs").ok());
    for (const auto& [name, bytes] : *read) {
      auto file = copy.Open(fmt::format("{}/{}", kDirectory, name), OpenMode::kCreateNew);
      ASSERT_TRUE((*file)->Write(0, std::as_bytes(std::span(bytes))).ok());
    }
    const auto restored = OpenStore(copy, kDirectory);
    ASSERT_TRUE(restored.ok()) << restored.status();
    std::map<std::string, uint64_t> versions;
    const StoreContents contents = *(*restored)->Load();
    for (const MatrixRecord& m : contents.matrices) {
      versions[m.name] = m.version;
      EXPECT_TRUE((*restored)->Read(m.values, HeapMemory()).ok()) << m.name;
    }
    if (versions["a"] < 100) continue;
    EXPECT_TRUE(versions["b"] == versions["a"] || versions["b"] + 1 == versions["a"] ||
                versions["a"] == 100)
        << versions["a"] << " " << versions["b"];
    EXPECT_EQ(copy.Names("/data/blobs").size() + 1, read->size()) << "blobs that no row needs";
  }
  ended = true;
  writer.join();
}

TEST(Snapshot, DamagedArraysAreNamedAndTheOthersAreThere) {
  ForgetfulFileSystem files;
  const auto store = *OpenStore(files, kDirectory);
  for (size_t i = 0; i < 11; ++i) ASSERT_TRUE(AllSteps()[i].run(*store).ok());
  const std::vector<std::string> names = files.Names("/data/blobs");
  for (const std::string& name : names) {
    const std::string path = "/data/blobs/" + name;
    const std::string whole = *files.Contents(path);
    for (const size_t at : {size_t{3}, size_t{70}, whole.size() - 1}) {
      SCOPED_TRACE(fmt::format("{} at {}", name, at));
      if (at >= whole.size()) continue;
      std::string& contents = *files.Contents(path);
      contents[at] = static_cast<char>(contents[at] ^ 1);
      const auto snapshot = *store->Snapshot();
      const auto read = ReadAll(*snapshot);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_THAT(snapshot->damaged(), ElementsAre(HasSubstr(path + " is damaged at byte")));
      EXPECT_EQ(read->at("blobs/" + name), contents);
      *files.Contents(path) = whole;
    }
    ASSERT_TRUE(files.Rename(path, "/elsewhere").ok());
    const auto snapshot = *store->Snapshot();
    const auto read = ReadAll(*snapshot);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_THAT(snapshot->damaged(), ElementsAre(HasSubstr(path + " is missing")));
    EXPECT_EQ(read->count("blobs/" + name), 0);
    EXPECT_EQ(read->size(), names.size());
    ASSERT_TRUE(files.Rename("/elsewhere", path).ok());
  }
}

TEST(Snapshot, ADamagedPageOfTheCatalogIsDataLossOfTheCatalog) {
  ForgetfulFileSystem files;
  const auto database = *Database::Open(files, "/catalog.sqlite");
  ASSERT_TRUE(database
                  ->Execute("CREATE TABLE t (x BLOB); INSERT INTO t VALUES (zeroblob(1000000));"
                            "PRAGMA wal_checkpoint(TRUNCATE); PRAGMA shrink_memory;")
                  .ok());
  std::string& contents = *files.Contents("/catalog.sqlite");
  ASSERT_GT(contents.size(), size_t{1'000'000});
  char& byte = contents[contents.size() / 2];
  byte = static_cast<char>(byte ^ 1);
  const auto copy_once = [&] {
    const auto copy = database->BeginCopy(files, "/copy");
    if (!copy.ok()) return copy.status();
    absl::StatusOr<bool> whole = false;
    while (whole.ok() && !*whole) whole = (*copy)->Step(/*pages=*/10);
    return whole.status();
  };
  const absl::Status status = copy_once();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the catalog /catalog.sqlite is damaged (the checksum of the page"));
  EXPECT_THAT(files.Names("/"), testing::Not(testing::Contains("copy")));
  byte = static_cast<char>(byte ^ 1);
  EXPECT_TRUE(copy_once().ok());
  // An error of the copy stays one of the copy.
  files.SetCapacity(0);
  EXPECT_TRUE(absl::IsResourceExhausted(copy_once()));
}

TEST(Snapshot, EveryCallOfTheDiskMayFail) {
  const std::vector<Step> steps = AllSteps();
  int failed = 0;
  for (int64_t n = 1;; ++n) {
    SCOPED_TRACE(fmt::format("call {} fails", n));
    ForgetfulFileSystem files;
    const auto store = *OpenStore(files, kDirectory);
    for (const Step& step : steps) ASSERT_TRUE(step.run(*store).ok());
    const std::string dump = *Dump(*store);
    const int64_t before = files.calls();
    files.FailCall(n);
    auto snapshot = store->Snapshot();
    const auto read = snapshot.ok() ? ReadAll(**snapshot) : absl::StatusOr<Files>(Files());
    const bool damaged = snapshot.ok() && !(*snapshot)->damaged().empty();
    const bool all = files.calls() - before < n;
    files.FailCall(int64_t{1} << 40);
    failed += !snapshot.ok() || !read.ok() || damaged ? 1 : 0;
    if (snapshot.ok() && read.ok() && !damaged) {
      EXPECT_EQ(DumpOf(*read), dump);
    }
    if (snapshot.ok()) snapshot->reset();
    // The store goes on as if nothing had been.
    EXPECT_EQ(*Dump(*store), dump);
    EXPECT_TRUE(store->PutMatrix(RandomMatrix("after", "A", 1)).ok());
    auto again = store->Snapshot();
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(ReadAll(**again).ok());
    if (all || HasFailure()) break;
  }
  EXPECT_GT(failed, 10);
}

TEST(Snapshot, AFullDiskRefusesAndKeepsNothing) {
  ForgetfulFileSystem files;
  const auto store = *OpenStore(files, kDirectory);
  for (size_t i = 0; i < 11; ++i) ASSERT_TRUE(AllSteps()[i].run(*store).ok());
  const std::string dump = *Dump(*store);
  files.ClaimFreeBytes(1 << 20);
  const absl::Status told = store->Snapshot().status();
  EXPECT_EQ(told.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(told.message()), HasSubstr("the disk is too full"));
  files.SetCapacity(0);
  files.ClaimFreeBytes(int64_t{1} << 40);  // somebody else was faster
  const absl::Status full = store->Snapshot().status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(Copies(files), IsEmpty());
  files.SetCapacity(int64_t{1} << 40);
  EXPECT_EQ(*Dump(*store), dump);
  EXPECT_TRUE(store->Snapshot().ok());
}

TEST(Snapshot, WhatAProcessLeftBehindIsRemoved) {
  ForgetfulFileSystem files;
  { const auto store = *OpenStore(files, kDirectory); }
  ASSERT_TRUE(files.Open("/data/catalog.copy-3", OpenMode::kCreateNew).ok());
  ASSERT_TRUE(files.Open("/data/catalog.copy-3-wal", OpenMode::kCreateNew).ok());
  ASSERT_TRUE(OpenStore(files, kDirectory).ok());
  EXPECT_THAT(Copies(files), IsEmpty());
}

TEST(Snapshot, CanBeCancelledAndIsNotOfAStoreInMemory) {
  ForgetfulFileSystem files;
  const auto store = *OpenStore(files, kDirectory);
  const std::atomic<bool> stop = true;
  EXPECT_EQ(store->Snapshot(&stop).status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(Copies(files), IsEmpty());
  const absl::Status in_memory = MakeInMemoryStore()->Snapshot().status();
  EXPECT_EQ(in_memory.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(in_memory.message()), HasSubstr("--in-memory"));
}

}  // namespace
}  // namespace sparsed::engine
