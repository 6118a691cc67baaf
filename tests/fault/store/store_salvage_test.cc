// A catalog that is damaged or gone, and what is rebuilt of it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/store/salvage.h"
#include "tests/fault/store/forgetful_file_system.h"
#include "tests/fault/store/store_testing.h"

namespace sparsed::engine {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Survivors = ForgetfulFileSystem::Survivors;

constexpr const char* kDirectory = "/data";
constexpr const char* kCatalog = "/data/catalog.sqlite";

std::string HashOf(const CsrView& csr) { return fmt::format("hash-of-{}", csr.nnz()); }

absl::StatusOr<SalvageReport> SalvageIt(ForgetfulFileSystem& files) {
  return SalvageStore(files, kDirectory, HashOf);
}

/// What must come back: matrices and dense matrices with all that is theirs, as text.
std::string Kept(Store& store) {
  const StoreContents contents = *store.Load();
  std::string text;
  const auto add = [&](const StoredArray& array) {
    const absl::StatusOr<Array> read = store.Read(array, HeapMemory());
    ASSERT_TRUE(read.ok()) << read.status();
    text += fmt::format("  {} {}\n", array.name, XXH3_64bits(read->buffer.data(), read->bytes()));
  };
  for (const MatrixRecord& m : contents.matrices) {
    const auto pattern = std::ranges::find(contents.patterns, m.pattern_hash, &PatternRecord::hash);
    text +=
        fmt::format("{}/{} {} version {} of {}, {} x {}, {}\n", m.tenant, m.name, m.pattern_hash,
                    m.version, m.created_unix_ns, pattern->rows, pattern->cols, pattern->nnz);
    add(pattern->row_offsets);
    add(pattern->column_indices);
    add(m.values);
    if (m.value_order) add(*m.value_order);
  }
  for (const BufferRecord& b : contents.buffers) {
    text += fmt::format("{}/{} {} x {} by {} version {} of '{}' lives {}\n", b.tenant, b.name,
                        b.rows, b.cols, b.leading_dimension, b.version, b.owner, b.time_to_live_ns);
    add(b.array);
  }
  return text;
}

/// A store with one of everything, closed.
class SalvageTest : public testing::Test {
 protected:
  SalvageTest() {
    const auto store = *OpenStore(files_, kDirectory);
    const std::vector<Step> steps = AllSteps();
    for (size_t i = 0; i < 12; ++i) EXPECT_TRUE(steps[i].run(*store).ok());
    NewMatrix odd = RandomMatrix("new\nline%", "P", 40);
    odd.tenant = "";
    EXPECT_TRUE(store->PutMatrix(odd).ok());
    before_ = Kept(*store);
  }

  void ExpectEverythingBack() {
    const auto store = OpenStore(files_, kDirectory);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(Kept(**store), before_);
    EXPECT_TRUE((*store)->PutMatrix(RandomMatrix("after", "Z", 50)).ok());
    EXPECT_TRUE(Dump(**store).ok());
  }
  /// Copies catalog and blobs to a disk that is empty.
  void CopyTo(ForgetfulFileSystem& files) {
    ASSERT_TRUE(files.CreateDirectory(kDirectory).ok());
    ASSERT_TRUE(files.CreateDirectory("/data/blobs").ok());
    std::vector<std::string> paths = {kCatalog};
    for (const std::string& name : files_.Names("/data/blobs")) {
      paths.push_back("/data/blobs/" + name);
    }
    for (const std::string& path : paths) {
      const auto file = files.Open(path, OpenMode::kCreateNew);
      *files.Contents(path) = *files_.Contents(path);
      ASSERT_TRUE((*file)->Sync().ok());
    }
    for (const char* folder : {"/", kDirectory, "/data/blobs"}) {
      ASSERT_TRUE(files.SyncDirectory(folder).ok());
    }
  }
  /// The first blob whose description has both.
  std::string* BlobOf(const std::string& owner, const std::string& array) {
    for (const std::string& name : files_.Names("/data/blobs")) {
      std::string* contents = files_.Contents("/data/blobs/" + name);
      if (contents->find(owner) != std::string::npos &&
          contents->find("array=" + array + "\n") != std::string::npos) {
        return contents;
      }
    }
    return nullptr;
  }

  ForgetfulFileSystem files_;
  std::string before_;
};

TEST_F(SalvageTest, LeavesAWholeCatalogAlone) {
  const auto report = SalvageIt(files_);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("nothing to salvage"));
  ExpectEverythingBack();
}

TEST_F(SalvageTest, MakesNothingWhereNothingIs) {
  const std::string nowhere = testing::TempDir() + "sparsed_nowhere";
  const auto report = SalvageStore(PosixFileSystem(), nowhere, HashOf);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("no data directory at"));
  EXPECT_FALSE(std::filesystem::exists(nowhere));
}

TEST_F(SalvageTest, LeavesARunningServerAlone) {
  const auto store = *OpenStore(files_, kDirectory);
  EXPECT_EQ(SalvageIt(files_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Kept(*store), before_);
}

TEST_F(SalvageTest, BringsEverythingBackFromBlobsAlone) {
  const std::string damaged(9000, 'x');
  *files_.Contents(kCatalog) = damaged;
  const auto report = SalvageIt(files_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->saved, SizeIs(5));
  EXPECT_THAT(report->saved, Contains(HasSubstr("matrix 'a' of tenant 'tenant', version 9")));
  EXPECT_THAT(report->lost, IsEmpty());
  EXPECT_EQ(report->moved_to, "/data/damaged-1");
  ASSERT_NE(files_.Contents("/data/damaged-1/catalog.sqlite"), nullptr);
  EXPECT_EQ(*files_.Contents("/data/damaged-1/catalog.sqlite"), damaged);
  ExpectEverythingBack();
}

TEST_F(SalvageTest, BringsEverythingBackWithoutACatalog) {
  ASSERT_TRUE(files_.Remove(kCatalog).ok());
  const auto report = SalvageIt(files_);
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectEverythingBack();
}

TEST_F(SalvageTest, DamageAnywhereInTheCatalogLosesNothing) {
  const size_t intact_bytes = files_.Contents(kCatalog)->size();
  for (size_t page = 0; page < intact_bytes && !HasFailure(); page += 4096) {
    SCOPED_TRACE(fmt::format("byte {}", page));
    ForgetfulFileSystem fresh;
    CopyTo(fresh);
    (*fresh.Contents(kCatalog))[page + 100] ^= 1;
    const auto report = SalvageStore(fresh, kDirectory, HashOf);
    ASSERT_TRUE(report.ok()) << report.status();
    const auto store = OpenStore(fresh, kDirectory);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(Kept(**store), before_);
  }
}

TEST_F(SalvageTest, SaysWhatIsLost) {
  ASSERT_TRUE(files_.Remove(kCatalog).ok());
  std::string* const values = BlobOf("name=b\n", "values");
  std::string* const order = BlobOf("name=a\n", "value_order");
  ASSERT_TRUE(values != nullptr && order != nullptr);
  (*values)[70] ^= 1;
  (*order)[70] ^= 1;
  const auto report = SalvageIt(files_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->saved, SizeIs(3));
  EXPECT_THAT(report->lost, Contains(HasSubstr("is damaged at byte 64")).Times(2));
  EXPECT_THAT(report->lost, Contains(HasSubstr("matrix 'a' of tenant 'tenant': the order")));
  const auto store = OpenStore(files_, kDirectory);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->Load()->matrices.size(), 2U);
  // Nothing was deleted: three arrays of layouts, the order, and the values of both.
  EXPECT_THAT(files_.Names("/data/damaged-1"), SizeIs(6));
}

TEST_F(SalvageTest, WithoutBlobsThereIsNothing) {
  ForgetfulFileSystem files;
  { ASSERT_TRUE(OpenStore(files, kDirectory).ok()); }
  ASSERT_TRUE(files.Remove(kCatalog).ok());
  const auto report = SalvageIt(files);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition) << report.status();
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("backup"));
}

TEST_F(SalvageTest, APowerCutAtAnyCallLosesNothing) {
  *files_.Contents(kCatalog) = std::string(9000, 'x');
  const auto salvage = [this](ForgetfulFileSystem& files, int64_t cut) {
    CopyTo(files);
    const int64_t calls = files.calls();
    if (cut > 0) files.CutPowerAt(cut);
    (void)SalvageStore(files, kDirectory, HashOf);
    return files.calls() - calls;
  };
  ForgetfulFileSystem whole;
  const int64_t calls = salvage(whole, 0);
  for (int64_t n = 1; n <= calls && !HasFailure(); n += 3) {
    SCOPED_TRACE(fmt::format("power cut at call {} of {}", n, calls));
    ForgetfulFileSystem files;
    salvage(files, n);
    files.Restart(n % 2 == 0 ? Survivors::kSynced : Survivors::kRandom, static_cast<uint32_t>(n));
    auto store = OpenStore(files, kDirectory);
    if (!store.ok()) {
      ASSERT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
      const auto report = SalvageStore(files, kDirectory, HashOf);
      ASSERT_TRUE(report.ok()) << report.status();
      store = OpenStore(files, kDirectory);
    }
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(Kept(**store), before_);
  }
}

/// Makes a blob what older programs wrote: without a description.
void MakeVersion1(std::string& blob) {
  uint64_t description_bytes = 0;
  std::memcpy(&description_bytes, &blob[40], sizeof description_bytes);
  const size_t table_end = blob.size() - 16 - description_bytes;
  blob.resize(table_end);
  blob[8] = 1;
  std::memset(&blob[40], 0, sizeof description_bytes);
  uint32_t type = 0;
  int64_t length = 0;
  std::memcpy(&type, &blob[12], sizeof type);
  std::memcpy(&length, &blob[16], sizeof length);
  const size_t table = 64 + static_cast<size_t>(length) * SizeOf(static_cast<ElementType>(type));
  const auto checksum = [](const char* data, size_t bytes) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
    return std::string(reinterpret_cast<const char*>(canonical.digest), sizeof canonical.digest);
  };
  blob.replace(48, 16, checksum(blob.data(), 48));
  blob += checksum(blob.data() + table, table_end - table);
}

class OldBlobsTest : public SalvageTest {
 protected:
  OldBlobsTest() {
    // Who wrote such blobs knew neither owners nor times to live.
    NewBuffer x = RandomBuffer("x", 5);
    x.owner.clear();
    x.time_to_live_ns = 0;
    {
      const auto store = *OpenStore(files_, kDirectory);
      EXPECT_TRUE(store->PutBuffer(x).ok());
      before_ = Kept(*store);
    }
    for (const std::string& name : files_.Names("/data/blobs")) {
      MakeVersion1(*files_.Contents("/data/blobs/" + name));
    }
  }
};

TEST_F(OldBlobsTest, AreRead) { ExpectEverythingBack(); }

TEST_F(OldBlobsTest, HaveTheirNamesInWhatIsLeftOfTheCatalog) {
  std::string& catalog = *files_.Contents(kCatalog);
  // The last page is one of the features: none that names come from.
  catalog[catalog.size() - 2000] ^= 1;
  const auto report = SalvageIt(files_);
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectEverythingBack();
}

TEST_F(OldBlobsTest, AreNamedByTheirHashWithoutACatalog) {
  ForgetfulFileSystem files;
  {
    const auto store = *OpenStore(files, kDirectory);
    NewMatrix m = RandomMatrix("a", "P", 1);
    m.rows = 2;
    m.cols = 9;
    m.nnz = 3;
    const auto offsets = m.row_offsets->buffer.mutable_data();
    const int64_t row_offsets[] = {0, 1, 3};
    std::memcpy(offsets, row_offsets, sizeof row_offsets);
    const int32_t column_indices[] = {4, 0, 7};
    std::memcpy(m.column_indices->buffer.mutable_data(), column_indices, sizeof column_indices);
    m.row_offsets->length = 3;
    m.column_indices->length = m.values.length = 3;
    ASSERT_TRUE(store->PutMatrix(m).ok());
    ASSERT_TRUE(store->PutBuffer(RandomBuffer("x", 5)).ok());
  }
  for (const std::string& name : files.Names("/data/blobs")) {
    MakeVersion1(*files.Contents("/data/blobs/" + name));
  }
  ASSERT_TRUE(files.Remove(kCatalog).ok());
  const auto report = SalvageIt(files);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_THAT(report->saved, SizeIs(1));
  EXPECT_THAT(report->saved[0], HasSubstr("'salvaged-hash-of-3-3', version 1: 2 x 8, 3 nonzeros"));
  EXPECT_THAT(report->lost, Contains(HasSubstr("blob 4, 392 elements of f64")));
  const auto store = OpenStore(files, kDirectory);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_THAT((*store)->Load()->matrices, SizeIs(1));
  EXPECT_TRUE(Dump(**store).ok());
}

}  // namespace
}  // namespace sparsed::engine
