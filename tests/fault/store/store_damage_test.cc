// Bits that flip and files that shrink: reported by name, never served.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/fault/store/forgetful_file_system.h"
#include "tests/fault/store/store_testing.h"

namespace sparsed::engine {
namespace {

using testing::HasSubstr;

constexpr const char* kDirectory = "/data";
constexpr const char* kCatalog = "/data/catalog.sqlite";

std::vector<StoredArray> AllArrays(Store& store) {
  std::vector<StoredArray> arrays;
  const StoreContents contents = *store.Load();
  for (const PatternRecord& p : contents.patterns) {
    arrays.push_back(p.row_offsets);
    arrays.push_back(p.column_indices);
  }
  for (const MatrixRecord& m : contents.matrices) {
    arrays.push_back(m.values);
    if (m.value_order) arrays.push_back(*m.value_order);
  }
  for (const LayoutRecord& l : contents.layouts) {
    arrays.insert(arrays.end(), l.arrays.begin(), l.arrays.end());
  }
  for (const BufferRecord& b : contents.buffers) arrays.push_back(b.array);
  return arrays;
}

/// A store with one of everything.
class Damage : public testing::Test {
 protected:
  Damage() : store_(*OpenStore(files_, kDirectory)) {
    const std::vector<Step> steps = AllSteps();
    for (size_t i = 0; i < 11; ++i) EXPECT_TRUE(steps[i].run(*store_).ok());
    arrays_ = AllArrays(*store_);
  }

  /// The file of each array: the one whose damage stops it from being read.
  std::string* FileOf(const StoredArray& array) {
    for (const std::string& name : files_.Names("/data/blobs")) {
      std::string* contents = files_.Contents("/data/blobs/" + name);
      contents->back() = static_cast<char>(contents->back() ^ 1);
      const bool its = !store_->Read(array, HeapMemory()).ok();
      contents->back() = static_cast<char>(contents->back() ^ 1);
      if (its) return contents;
    }
    return nullptr;
  }

  /// Reading `damaged` fails by name, reading all others works, and so says a scrub.
  void ExpectOnlyDamaged(const StoredArray& damaged) {
    for (const StoredArray& array : arrays_) {
      const absl::Status status = store_->Read(array, HeapMemory()).status();
      if (array.blob != damaged.blob) {
        EXPECT_TRUE(status.ok()) << status;
        continue;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << Describe(array);
      EXPECT_THAT(std::string(status.message()), HasSubstr(Describe(array)));
      EXPECT_THAT(std::string(status.message()), HasSubstr("/data/blobs/0"));
    }
    std::vector<std::string> found;
    const absl::Status status =
        store_->Scrub([](int64_t) { return true; },
                      [&](const StoredArray& array, const absl::Status& error) {
                        EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
                        found.push_back(Describe(array));
                      });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(found, testing::ElementsAre(Describe(damaged)));
  }

  ForgetfulFileSystem files_;
  std::unique_ptr<Store> store_;
  std::vector<StoredArray> arrays_;
};

TEST_F(Damage, FlippedBitAnywhereInABlobIsFoundByName) {
  for (const StoredArray& array : arrays_) {
    SCOPED_TRACE(Describe(array));
    std::string* contents = FileOf(array);
    ASSERT_NE(contents, nullptr);
    for (size_t byte = 0; byte < contents->size(); byte += 1 + contents->size() / 40) {
      (*contents)[byte] = static_cast<char>((*contents)[byte] ^ (1 << (byte % 8)));
      ExpectOnlyDamaged(array);
      (*contents)[byte] = static_cast<char>((*contents)[byte] ^ (1 << (byte % 8)));
    }
    EXPECT_TRUE(store_->Read(array, HeapMemory()).ok());
  }
}

TEST_F(Damage, TruncatedExtendedEmptyAndMissingBlobsAreFoundByName) {
  for (const StoredArray& array : arrays_) {
    SCOPED_TRACE(Describe(array));
    std::string* contents = FileOf(array);
    ASSERT_NE(contents, nullptr);
    const std::string intact = *contents;
    for (const size_t size : {size_t{0}, size_t{10}, intact.size() / 2, intact.size() - 1}) {
      *contents = intact.substr(0, size);
      ExpectOnlyDamaged(array);
    }
    *contents = intact + "x";
    ExpectOnlyDamaged(array);
    *contents = intact;
  }
  for (const std::string& name : files_.Names("/data/blobs")) {
    ASSERT_TRUE(files_.Remove("/data/blobs/" + name).ok());
  }
  for (const StoredArray& array : arrays_) {
    const absl::Status status = store_->Read(array, HeapMemory()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is missing"));
  }
}

TEST_F(Damage, SwappedBlobsAreFound) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("d", "P", 20)).ok());
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("e", "P", 21)).ok());
  arrays_ = AllArrays(*store_);
  const auto values_of = [&](const std::string& name) {
    for (const StoredArray& array : arrays_) {
      if (array.owner.name == name && array.name == "values") return array;
    }
    return StoredArray();
  };
  std::string* first = FileOf(values_of("d"));
  std::string* second = FileOf(values_of("e"));
  ASSERT_EQ(first->size(), second->size());
  std::swap(*first, *second);
  for (const char* name : {"d", "e"}) {
    EXPECT_EQ(store_->Read(values_of(name), HeapMemory()).status().code(),
              absl::StatusCode::kDataLoss);
  }
}

TEST_F(Damage, SentenceNamesMatrixArrayFileAndOffset) {
  const StoreContents contents = *store_->Load();
  const StoredArray& array = contents.patterns[0].column_indices;
  std::string* file = FileOf(array);
  (*file)[100] = static_cast<char>((*file)[100] ^ 1);
  const std::string sentence(store_->Read(array, HeapMemory()).status().message());
  EXPECT_THAT(sentence, HasSubstr("column_indices of pattern P (of matrix 'a', 'b')"));
  EXPECT_THAT(sentence, HasSubstr("is damaged at byte 64"));
}

TEST_F(Damage, BadSectorIsDataLoss) {
  files_.FailCall(3);  // open, size, header
  const absl::Status status = store_->Read(arrays_[0], HeapMemory()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST_F(Damage, DamagedPatternIsMendedByTheNextUploadOfIt) {
  const StoredArray array = store_->Load()->patterns[0].row_offsets;
  std::string* file = FileOf(array);
  file->pop_back();
  ASSERT_FALSE(store_->Read(array, HeapMemory()).ok());
  const auto stored = store_->PutMatrix(RandomMatrix("new", "P", 30));
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_TRUE(store_->Read(stored->pattern.row_offsets, HeapMemory()).ok());
  EXPECT_TRUE(Dump(*store_).ok());
  EXPECT_EQ(stored->pattern.preparation.state, "ready");
}

TEST_F(Damage, DamagedLayoutCanBeDroppedAndBuiltAgain) {
  const LayoutRecord layout = store_->Load()->layouts[0];
  FileOf(layout.arrays[0])->back() ^= 1;
  ASSERT_FALSE(store_->ReadLayout(layout, HeapMemory()).ok());
  ASSERT_TRUE(store_->DropLayout("P", layout.layout.pipeline).ok());
  EXPECT_TRUE(Dump(*store_).ok());
  const StoreContents contents = *store_->Load();
  EXPECT_FALSE(contents.plans.empty());
  for (const PlanRecord& plan : contents.plans) EXPECT_NE(plan.pipeline, layout.layout.pipeline);
  ASSERT_TRUE(store_->PutLayout("P", RandomLayout(layout.layout.pipeline, 3), 1).ok());
  EXPECT_TRUE(Dump(*store_).ok());
}

TEST_F(Damage, ScrubStopsWhenToldTo) {
  int blocks = 0;
  const absl::Status status = store_->Scrub([&](int64_t) { return ++blocks < 3; },
                                            [](const StoredArray&, const absl::Status&) {});
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(blocks, 3);
}

TEST_F(Damage, FlippedBitAnywhereInTheCatalogIsFoundWhenItIsOpened) {
  arrays_.clear();
  store_.reset();
  const std::string intact = *files_.Contents(kCatalog);
  ASSERT_GT(intact.size(), 40000U);
  for (size_t byte = 0; byte < intact.size(); byte += 97) {
    std::string& contents = *files_.Contents(kCatalog);
    contents = intact;
    contents[byte] = static_cast<char>(contents[byte] ^ (1 << (byte % 8)));
    const auto store = OpenStore(files_, kDirectory);
    ASSERT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << byte << ": " << store.status();
    EXPECT_THAT(std::string(store.status().message()), HasSubstr(kCatalog));
    EXPECT_THAT(std::string(store.status().message()), HasSubstr("backup"));
  }
  *files_.Contents(kCatalog) = intact;
  EXPECT_TRUE(OpenStore(files_, kDirectory).ok());
}

TEST_F(Damage, DamagedLogIsAnErrorOrIgnoredNotACrash) {
  arrays_.clear();
  files_.CutPowerAt(1);
  store_.reset();
  files_.Restart(ForgetfulFileSystem::Survivors::kSynced);
  const std::string log = std::string(kCatalog) + "-wal";
  const std::string intact_log = *files_.Contents(log);
  const std::string intact = *files_.Contents(kCatalog);
  ASSERT_GT(intact_log.size(), 40000U);
  for (size_t byte = 0; byte < intact_log.size(); byte += 997) {
    ForgetfulFileSystem files;
    ASSERT_TRUE(files.CreateDirectory(kDirectory).ok());
    ASSERT_TRUE(files.Open(kCatalog, OpenMode::kCreate).ok());
    ASSERT_TRUE(files.Open(log, OpenMode::kCreate).ok());
    *files.Contents(kCatalog) = intact;
    *files.Contents(log) = intact_log;
    (*files.Contents(log))[byte] ^= 4;
    const auto store = OpenStore(files, kDirectory);
    if (store.ok()) (void)Dump(**store);
  }
}

TEST_F(Damage, TruncatedOrForeignCatalogIsAnErrorNotACrash) {
  arrays_.clear();
  store_.reset();
  const std::string intact = *files_.Contents(kCatalog);
  for (const size_t size : {size_t{10}, size_t{100}, size_t{4096}, intact.size() / 2,
                            intact.size() - 4096, intact.size() - 1}) {
    *files_.Contents(kCatalog) = intact.substr(0, size);
    const auto store = OpenStore(files_, kDirectory);
    ASSERT_FALSE(store.ok()) << size;
    EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
    EXPECT_THAT(std::string(store.status().message()), HasSubstr("backup"));
  }
  *files_.Contents(kCatalog) = std::string(8192, 'x');
  const auto store = OpenStore(files_, kDirectory);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
}

TEST_F(Damage, LostCatalogIsNotTakenForAnEmptyOne) {
  arrays_.clear();
  store_.reset();
  ASSERT_TRUE(files_.Remove(kCatalog).ok());
  const auto store = OpenStore(files_, kDirectory);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
  EXPECT_FALSE(files_.Names("/data/blobs").empty());
}

}  // namespace
}  // namespace sparsed::engine
