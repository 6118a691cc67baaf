// The store on an intact disk: everything comes back, nothing is left behind.
#include "engine/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/store/store_testing.h"
#include "tests/kernels/counting_memory.h"

namespace sparsed::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A store in a temporary directory of the machine's file system.
class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "sparsed-store-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    directory_ = name + "/not/there/yet";
    Reopen();
  }
  void TearDown() override {
    store_.reset();
    std::filesystem::remove_all(root_);
  }

  void Reopen(int64_t past_measurement_bytes = kPastMeasurementBytes) {
    store_.reset();
    auto store = OpenStore(PosixFileSystem(), directory_, past_measurement_bytes);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  /// SQL, on the catalog of a store that is closed.
  void Execute(const char* sql) const {
    // SQLite's own file access keeps no page checksums: only the log, which it leaves behind if
    // the connection does not tidy up, may hold what it writes.
    sqlite3* connection = nullptr;
    ASSERT_EQ(sqlite3_open((directory_ + "/catalog.sqlite").c_str(), &connection), SQLITE_OK);
    sqlite3_db_config(connection, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    ASSERT_EQ(sqlite3_exec(connection, sql, nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(connection);
    sqlite3_close(connection);
  }
  size_t BlobFiles() const {
    const std::filesystem::directory_iterator files(directory_ + "/blobs");
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }
  static void ExpectSameBytes(const Array& a, const Array& b) {
    ASSERT_EQ(a.type, b.type);
    ASSERT_EQ(a.length, b.length);
    EXPECT_TRUE(std::equal(a.buffer.data(), a.buffer.data() + a.bytes(), b.buffer.data()));
  }

  std::string root_;
  std::string directory_;
  std::unique_ptr<Store> store_;
};

/// Makes a catalog of the present version one of version 13.
constexpr const char* kToVersion13 = R"sql(
  ALTER TABLE plans DROP COLUMN distribution;
  ALTER TABLE plans DROP COLUMN gpus;
  ALTER TABLE plans DROP COLUMN whole_ms;
  ALTER TABLE plans DROP COLUMN best_ms;
  ALTER TABLE buffers DROP COLUMN distribution;
  ALTER TABLE buffers DROP COLUMN row_bounds;
  ALTER TABLE measurements DROP COLUMN censored;
  DROP TABLE past_features;
  DROP TABLE past_measurements;
  DROP TABLE past_patterns;
  PRAGMA user_version = 13;
)sql";

/// Makes one of version 13 one of version 6.
constexpr const char* kToVersion6 = R"sql(
  DROP TABLE shares;
  ALTER TABLE matrices DROP COLUMN time_to_live_ns;
  ALTER TABLE buffers DROP COLUMN owner;
  ALTER TABLE buffers DROP COLUMN time_to_live_ns;
  ALTER TABLE matrices DROP COLUMN used_version;
  DROP TABLE deleted_versions;
  DROP TABLE decisions;
  ALTER TABLE measurements DROP COLUMN baseline_ms;
  ALTER TABLE measurements DROP COLUMN floor_ms;
  ALTER TABLE measurements DROP COLUMN preparation_ms;
  ALTER TABLE measurements DROP COLUMN model;
  ALTER TABLE measurements DROP COLUMN compulsory_bytes;
  PRAGMA user_version = 6;
)sql";

TEST_F(StoreTest, IsEmptyAtFirst) {
  EXPECT_TRUE(store_->durable());
  EXPECT_EQ(*Dump(*store_), "");
  Reopen();
  EXPECT_EQ(*Dump(*store_), "");
}

TEST_F(StoreTest, EveryRecordComesBackAfterEveryStep) {
  for (const Step& step : AllSteps()) {
    const absl::Status status = step.run(*store_);
    ASSERT_TRUE(status.ok()) << step.name << ": " << status;
    const std::string before = *Dump(*store_);
    Reopen();
    EXPECT_EQ(*Dump(*store_), before) << "after " << step.name;
  }
}

TEST_F(StoreTest, MatrixRecordsAreWhatWasStored) {
  NewMatrix m = RandomMatrix("web", "P", 1);
  m.value_order = RandomArray("value_order", ElementType::kI64, m.nnz, 2);
  const auto stored = store_->PutMatrix(m);
  ASSERT_TRUE(stored.ok()) << stored.status();
  ASSERT_TRUE(store_->PutPreparation("P", {"ready", "twice as fast", 2.5}).ok());
  for (const bool reopened : {false, true}) {
    if (reopened) Reopen();
    const StoreContents contents = *store_->Load();
    ASSERT_EQ(contents.patterns.size(), 1U);
    const PatternRecord& p = contents.patterns[0];
    EXPECT_EQ(p.hash, "P");
    EXPECT_EQ(p.rows, m.rows);
    EXPECT_EQ(p.cols, m.cols);
    EXPECT_EQ(p.nnz, m.nnz);
    EXPECT_EQ(p.preparation.state, "ready");
    EXPECT_EQ(p.preparation.detail, "twice as fast");
    EXPECT_EQ(p.preparation.seconds, 2.5);
    ExpectSameBytes(*store_->Read(p.row_offsets, HeapMemory()), *m.row_offsets);
    ExpectSameBytes(*store_->Read(p.column_indices, HeapMemory()), *m.column_indices);
    ASSERT_EQ(contents.matrices.size(), 1U);
    const MatrixRecord& r = contents.matrices[0];
    EXPECT_EQ(r.tenant, "tenant");
    EXPECT_EQ(r.name, "web");
    EXPECT_EQ(r.pattern_hash, "P");
    EXPECT_EQ(r.type, ElementType::kF32);
    EXPECT_EQ(r.version, m.version);
    EXPECT_EQ(r.created_unix_ns, m.created_unix_ns);
    ExpectSameBytes(*store_->Read(r.values, HeapMemory()), m.values);
    ASSERT_TRUE(r.value_order.has_value());
    ExpectSameBytes(*store_->Read(*r.value_order, HeapMemory()), *m.value_order);
  }
  // What the call returned says the same.
  EXPECT_EQ(stored->matrix.name, "web");
  EXPECT_EQ(stored->pattern.hash, "P");
}

TEST_F(StoreTest, ReplacedValuesKeepTheRestOfTheMatrix) {
  NewMatrix m = RandomMatrix("web", "P", 1);
  m.value_order = RandomArray("value_order", ElementType::kI32, m.nnz, 2);
  ASSERT_TRUE(store_->PutMatrix(m).ok());
  const Array values = RandomArray("values", ElementType::kF32, m.nnz, 3);
  const auto record = store_->PutValues("tenant", "web", 17, values);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->version, 17U);
  EXPECT_EQ(record->created_unix_ns, m.created_unix_ns);
  Reopen();
  const StoreContents contents = *store_->Load();
  EXPECT_EQ(contents.matrices[0].version, 17U);
  ExpectSameBytes(*store_->Read(contents.matrices[0].values, HeapMemory()), values);
  ExpectSameBytes(*store_->Read(*contents.matrices[0].value_order, HeapMemory()), *m.value_order);
  EXPECT_EQ(BlobFiles(), 4U);
}

TEST_F(StoreTest, LayoutsComeBackWithAllTheirArrays) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("web", "P", 1)).ok());
  const Layout layout = RandomLayout("aspt(panel=64)", 2);
  ASSERT_TRUE(store_->PutLayout("P", layout, 0.25).ok());
  Reopen();
  const StoreContents contents = *store_->Load();
  ASSERT_EQ(contents.layouts.size(), 1U);
  EXPECT_EQ(contents.layouts[0].build_seconds, 0.25);
  const Layout read = *store_->ReadLayout(contents.layouts[0], HeapMemory());
  EXPECT_EQ(read.kind, layout.kind);
  EXPECT_EQ(read.pipeline, layout.pipeline);
  EXPECT_EQ(read.parameters, layout.parameters);
  EXPECT_EQ(read.transposed, layout.transposed);
  EXPECT_EQ(read.value_slots, layout.value_slots);
  ASSERT_EQ(read.arrays.size(), layout.arrays.size());
  for (size_t i = 0; i < read.arrays.size(); ++i) {
    EXPECT_EQ(read.arrays[i].name, layout.arrays[i].name);
    ExpectSameBytes(read.arrays[i], layout.arrays[i]);
  }
}

TEST_F(StoreTest, ArraysOfEverySizeAroundABlockComeBack) {
  constexpr int64_t kBlockElements = (int64_t{4} << 20) / 8;
  for (const int64_t length : {int64_t{0}, int64_t{1}, kBlockElements - 1, kBlockElements,
                               kBlockElements + 1, 3 * kBlockElements}) {
    NewBuffer buffer = RandomBuffer("x", 1);
    buffer.array = RandomArray("dense", ElementType::kF64, length, static_cast<uint32_t>(length));
    ASSERT_TRUE(store_->PutBuffer(buffer).ok());
    Reopen();
    const StoreContents contents = *store_->Load();
    const auto read = store_->Read(contents.buffers[0].array, HeapMemory());
    ASSERT_TRUE(read.ok()) << read.status();
    ExpectSameBytes(*read, buffer.array);
    EXPECT_EQ(BlobFiles(), 1U);
  }
}

TEST_F(StoreTest, EveryTypeComesBack) {
  for (const ElementType type :
       {ElementType::kF32, ElementType::kF64, ElementType::kF16, ElementType::kBF16}) {
    SCOPED_TRACE(Name(type));
    NewMatrix m = RandomMatrix("m", "P", 1);
    m.values = RandomArray("values", type, m.nnz, 2);
    ASSERT_TRUE(store_->PutMatrix(m).ok());
    NewBuffer buffer = RandomBuffer("x", 1);
    buffer.array = RandomArray("dense", type, buffer.array.length, 3);
    ASSERT_TRUE(store_->PutBuffer(buffer).ok());
    Reopen();
    const StoreContents contents = *store_->Load();
    EXPECT_EQ(contents.matrices[0].type, type);
    ExpectSameBytes(*store_->Read(contents.matrices[0].values, HeapMemory()), m.values);
    ExpectSameBytes(*store_->Read(contents.buffers[0].array, HeapMemory()), buffer.array);
  }
}

TEST_F(StoreTest, EmptyMatrixComesBack) {
  NewMatrix m;
  m.name = "empty";
  m.pattern_hash = "E";
  m.row_offsets = RandomArray("row_offsets", ElementType::kI32, 1, 1);
  m.column_indices = RandomArray("column_indices", ElementType::kI32, 0, 1);
  m.values = RandomArray("values", ElementType::kF64, 0, 1);
  ASSERT_TRUE(store_->PutMatrix(m).ok());
  Reopen();
  const StoreContents contents = *store_->Load();
  ASSERT_EQ(contents.matrices.size(), 1U);
  EXPECT_EQ(contents.matrices[0].type, ElementType::kF64);
  EXPECT_EQ(store_->Read(contents.matrices[0].values, HeapMemory())->length, 0);
}

TEST_F(StoreTest, AnyTextSurvives) {
  NewMatrix m = RandomMatrix("it's \"quoted\"; DROP TABLE matrices;--", "P", 1);
  m.tenant = "";
  ASSERT_TRUE(store_->PutMatrix(m).ok());
  Reopen();
  EXPECT_EQ(store_->Load()->matrices[0].name, m.name);
  EXPECT_TRUE(store_->DeleteMatrix("", m.name).ok());
  EXPECT_EQ(*Dump(*store_), "");
}

TEST_F(StoreTest, MatricesShareAPatternUntilTheLastOneGoes) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  EXPECT_EQ(BlobFiles(), 3U);
  NewMatrix b = RandomMatrix("b", "P", 2);
  b.row_offsets.reset();
  b.column_indices.reset();
  ASSERT_TRUE(store_->PutMatrix(b).ok());
  EXPECT_EQ(BlobFiles(), 4U);
  ASSERT_TRUE(store_->PutLayout("P", RandomLayout("aspt()", 3), 1).ok());
  EXPECT_EQ(BlobFiles(), 7U);
  ASSERT_TRUE(store_->DeleteMatrix("tenant", "a").ok());
  EXPECT_EQ(BlobFiles(), 6U);
  EXPECT_EQ(store_->Load()->patterns.size(), 1U);
  ASSERT_TRUE(store_->DeleteMatrix("tenant", "b").ok());
  EXPECT_EQ(BlobFiles(), 0U);
  EXPECT_EQ(*Dump(*store_), "");
}

TEST_F(StoreTest, TenantsHaveNamesOfTheirOwn) {
  NewMatrix a = RandomMatrix("web", "P", 1);
  NewMatrix b = RandomMatrix("web", "P", 2);
  b.tenant = "other";
  ASSERT_TRUE(store_->PutMatrix(a).ok());
  ASSERT_TRUE(store_->PutMatrix(b).ok());
  ASSERT_TRUE(store_->DeleteMatrix("tenant", "web").ok());
  const StoreContents contents = *store_->Load();
  ASSERT_EQ(contents.matrices.size(), 1U);
  EXPECT_EQ(contents.matrices[0].tenant, "other");
  ExpectSameBytes(*store_->Read(contents.matrices[0].values, HeapMemory()), b.values);
}

TEST_F(StoreTest, ReplacedAndDeletedArraysStayReadableWhileHeld) {
  const NewMatrix old = RandomMatrix("a", "P", 1);
  {
    const auto held = store_->PutMatrix(old);
    ASSERT_TRUE(held.ok());
    ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "Q", 2)).ok());
    ASSERT_TRUE(store_->DeleteMatrix("tenant", "a").ok());
    EXPECT_EQ(*Dump(*store_), "");
    ExpectSameBytes(*store_->Read(held->matrix.values, HeapMemory()), old.values);
    ExpectSameBytes(*store_->Read(held->pattern.row_offsets, HeapMemory()), *old.row_offsets);
  }
  EXPECT_EQ(BlobFiles(), 0U);
}

TEST_F(StoreTest, MissingPatternsAndMatricesAreNamed) {
  NewMatrix m = RandomMatrix("a", "P", 1);
  m.row_offsets.reset();
  EXPECT_EQ(store_->PutMatrix(m).status().code(), absl::StatusCode::kNotFound);
  const absl::Status values = store_->PutValues("tenant", "a", 2, m.values).status();
  EXPECT_EQ(values.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(values.message()), HasSubstr("'a'"));
  EXPECT_EQ(store_->PutLayout("P", RandomLayout("csr", 1), 1).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->PutPreparation("P", {}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->PutWanted(std::vector<WantedRecord>{{"P", "spmm"}}).code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(store_->DeleteMatrix("tenant", "a").ok());
  EXPECT_TRUE(store_->DropLayout("P", "csr").ok());
  EXPECT_TRUE(store_->DeleteBuffer("tenant", "x").ok());
  EXPECT_EQ(BlobFiles(), 0U);
}

TEST_F(StoreTest, PlansAreStoredAllOrNone) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  const absl::Status status = store_->PutPlans(std::vector<PlanRecord>{
      {"P", "spmm", "csr", "k", 1, 1, ""}, {"?", "spmm", "csr", "k", 1, 1, ""}});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(store_->Load()->plans, IsEmpty());
}

TEST_F(StoreTest, WantedSignaturesStayUntilTheyHaveAPlan) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  const std::vector<WantedRecord> wanted = {{"P", "spmm"}, {"P", "sddmm"}};
  ASSERT_TRUE(store_->PutWanted(wanted).ok());
  ASSERT_TRUE(store_->PutWanted(wanted).ok());
  const std::vector<PlanRecord> plan = {{"P", "spmm", "csr", "k", 1, 1, ""}};
  ASSERT_TRUE(store_->PutPlans(plan).ok());
  Reopen();
  const StoreContents contents = *store_->Load();
  ASSERT_EQ(contents.wanted.size(), 1U);
  EXPECT_EQ(contents.wanted[0].signature, "sddmm");
  ASSERT_TRUE(store_->DeleteMatrix("tenant", "a").ok());
  EXPECT_THAT(store_->Load()->wanted, IsEmpty());
}

TEST_F(StoreTest, NewMeasurementsReplaceThoseOfTheirSignatureAndComeLast) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  const auto of = [](const char* signature, const char* kernel, double ms, int64_t k = 32) {
    return MeasurementRecord{"P", signature, "csr", kernel, "cpu", k, ms, 3, 1};
  };
  const std::vector<MeasurementRecord> before = {of("spmm", "x", 1), of("spmm", "y", 2),
                                                 of("sddmm", "x", 3)};
  ASSERT_TRUE(store_->PutMeasurements(before).ok());
  const std::vector<MeasurementRecord> after = {of("spmm", "x", 4), of("spmm", "x", 5, 16)};
  ASSERT_TRUE(store_->PutMeasurements(after).ok());
  MeasurementRecord unknown = of("spmm", "x", 6);
  unknown.pattern_hash = "Q";
  EXPECT_EQ(store_->PutMeasurements({&unknown, 1}).code(), absl::StatusCode::kNotFound);
  Reopen();
  std::vector<double> ms;
  const StoreContents contents = *store_->Load();
  for (const MeasurementRecord& m : contents.measurements) ms.push_back(m.median_ms);
  EXPECT_THAT(ms, ElementsAre(3, 4, 5));
  EXPECT_EQ(contents.measurements[1].k, 32);
  EXPECT_EQ(contents.measurements[2].k, 16);
}

TEST_F(StoreTest, NewDecisionsReplaceThoseOfTheirSignature) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  const std::vector<DecisionRecord> before = {{"P", "spmm", "aspt", true, "tiles"},
                                              {"P", "spmm", "", false, "narrower"},
                                              {"P", "sddmm", "aspt", false, "slower"}};
  ASSERT_TRUE(store_->PutDecisions(before).ok());
  const std::vector<DecisionRecord> after = {{"P", "spmm", "lsh_cluster", true, "scattered"}};
  ASSERT_TRUE(store_->PutDecisions(after).ok());
  EXPECT_EQ(store_->PutDecisions(std::vector<DecisionRecord>{{"Q", "spmm", "", false, ""}}).code(),
            absl::StatusCode::kNotFound);
  Reopen();
  std::vector<std::string> pipelines;
  const StoreContents contents = *store_->Load();
  for (const DecisionRecord& d : contents.decisions) pipelines.push_back(d.pipeline);
  EXPECT_THAT(pipelines, ElementsAre("aspt", "lsh_cluster"));
  EXPECT_EQ(contents.decisions[0].signature, "sddmm");
  EXPECT_TRUE(contents.decisions[1].tried);
  EXPECT_EQ(contents.decisions[1].reason, "scattered");
  ASSERT_TRUE(store_->DeleteMatrix("tenant", "a").ok());
  EXPECT_THAT(store_->Load()->decisions, IsEmpty());
}

/// Hashes of the past patterns, in order.
std::vector<std::string> PastHashes(Store& store) {
  std::vector<std::string> hashes;
  const auto all = PastPatterns(store);
  EXPECT_TRUE(all.ok()) << all.status();
  if (!all.ok()) return hashes;
  for (const PastPattern& past : *all) hashes.push_back(past.hash);
  return hashes;
}

TEST_F(StoreTest, WhatWasMeasuredOutlivesThePattern) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("b", "P", 2)).ok());
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("unmeasured", "Q", 3)).ok());
  const Features features = RandomFeatures(12);
  ASSERT_TRUE(store_->PutFeatures("P", features).ok());
  std::vector<MeasurementRecord> measured = {
      {"P", "spmm", "csr", "x", "cpu", 32, 1.5, 3, 1, 2.5, 0.5, 7, "A Processor", {}, 4096, false},
      {"P", "spgemm", "dia", "y", "cpu", 0, 9, 1, 2, 1.5, 0.5, 8, "A Processor",
       PatternPair{"R", false, true}, 512, true}};
  ASSERT_TRUE(store_->PutMeasurements(measured).ok());
  ASSERT_TRUE(store_->DeleteMatrix("tenant", "a").ok());
  EXPECT_THAT(PastHashes(*store_), IsEmpty()) << "b has the pattern";
  ASSERT_TRUE(store_->DeleteMatrix("tenant", "unmeasured").ok());
  ASSERT_TRUE(store_->DeleteMatrix("tenant", "b").ok());
  for (const bool reopened : {false, true}) {
    if (reopened) Reopen();
    EXPECT_THAT(store_->Load()->measurements, IsEmpty());
    EXPECT_THAT(PastHashes(*store_), ElementsAre("P"));
    EXPECT_GT(store_->past_measurement_bytes(), 0);
    const auto past = store_->ReadNextPast("", HeapMemory());
    ASSERT_TRUE(past.ok() && *past && (*past)->features) << past.status();
    for (const FeatureField& field : kFeatureFields) {
      EXPECT_EQ((*past)->features.value().*field.value, features.*field.value) << field.name;
    }
    EXPECT_EQ((*past)->features->density_map.Tiles(), features.density_map.Tiles());
    ASSERT_EQ((*past)->measurements.size(), 2U);
    const MeasurementRecord& m = (*past)->measurements[1];
    EXPECT_EQ(m.pattern_hash, "P");
    EXPECT_EQ(m.kernel, "y");
    EXPECT_EQ(m.median_ms, 9);
    EXPECT_EQ(m.preparation_ms, 8);
    EXPECT_EQ(m.model, "A Processor");
    EXPECT_EQ(m.pair, measured[1].pair);
    EXPECT_TRUE(m.censored);
    EXPECT_FALSE((*past)->measurements[0].censored);
  }
  // Deleted again before anything was measured, and once more afterwards.
  for (const bool again : {false, true}) {
    ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
    measured[0].median_ms = 3.25;
    if (again) {
      ASSERT_TRUE(store_->PutMeasurements({measured.data(), 1}).ok());
    }
    ASSERT_TRUE(store_->DeleteMatrix("tenant", "a").ok());
    const auto past = store_->ReadNextPast("", HeapMemory());
    ASSERT_TRUE(past.ok() && *past) << past.status();
    EXPECT_TRUE((*past)->features);
    ASSERT_EQ((*past)->measurements.size(), 2U);
    const MeasurementRecord& first = (*past)->measurements[0];
    const MeasurementRecord& last = (*past)->measurements[1];
    EXPECT_EQ(first.kernel, again ? "y" : "x");
    EXPECT_EQ(last.kernel, again ? "x" : "y");
    EXPECT_EQ((again ? last : first).median_ms, again ? 3.25 : 1.5);
  }
}

TEST_F(StoreTest, OfPastPatternsTheOldestGo) {
  const auto come_and_go = [&](const std::string& hash, int measurements) {
    ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", hash, 1)).ok());
    std::vector<MeasurementRecord> measured;
    for (int k = 0; k < measurements; ++k) {
      measured.push_back({hash, "spmm", "csr", "x", "cpu", k, 1.5, 3, 1});
    }
    ASSERT_TRUE(store_->PutMeasurements(measured).ok());
    ASSERT_TRUE(store_->DeleteMatrix("tenant", "a").ok());
  };
  constexpr int64_t kRoom = 100 * 1024;
  Reopen(kRoom);
  for (const char* hash : {"C", "A", "D", "B"}) come_and_go(hash, 100);
  EXPECT_THAT(PastHashes(*store_), ElementsAre("A", "B", "C", "D"));
  come_and_go("E", 100);
  EXPECT_THAT(PastHashes(*store_), ElementsAre("A", "B", "D", "E"));
  EXPECT_LE(store_->past_measurement_bytes(), kRoom);
  come_and_go("F", 2000);
  const auto past = store_->ReadNextPast("E", HeapMemory());
  ASSERT_TRUE(past.ok());
  EXPECT_FALSE(*past) << "it would take more than there is by itself";
  EXPECT_THAT(PastHashes(*store_), IsEmpty());
  for (const char* hash : {"C", "A"}) come_and_go(hash, 100);
  Reopen(kRoom / 4 + 1024);
  EXPECT_THAT(PastHashes(*store_), ElementsAre("A"));
  Reopen(0);
  EXPECT_THAT(PastHashes(*store_), IsEmpty());
  come_and_go("A", 1);
  EXPECT_THAT(PastHashes(*store_), IsEmpty());
  EXPECT_EQ(store_->past_measurement_bytes(), 0);
}

TEST_F(StoreTest, CatalogsFromBeforeDecisionsAreTaken) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("b", "Q", 2)).ok());
  ASSERT_TRUE(store_->PutPreparation("P", {"READY", "much about everything", 2.5}).ok());
  ASSERT_TRUE(store_->PutPreparation("Q", {"FAILED", "damaged", 1}).ok());
  const std::vector<MeasurementRecord> one = {{"P", "spmm", "csr", "k", "cpu", 32, 1.5, 3, 1}};
  ASSERT_TRUE(store_->PutMeasurements(one).ok());
  store_.reset();
  Execute(kToVersion13);
  Execute(kToVersion6);
  Reopen();
  const StoreContents contents = *store_->Load();
  ASSERT_EQ(contents.measurements.size(), 1U);
  EXPECT_EQ(contents.measurements[0].median_ms, 1.5);
  EXPECT_EQ(contents.measurements[0].roofline_ms, 0) << "not known";
  EXPECT_EQ(contents.measurements[0].compulsory_bytes, 0) << "not known";
  EXPECT_EQ(contents.measurements[0].model, "") << "not known";
  EXPECT_EQ(contents.patterns[0].preparation.detail, "");
  EXPECT_EQ(contents.patterns[1].preparation.detail, "damaged");
}

TEST_F(StoreTest, StoppedWritesAndReadsLeaveNothing) {
  const std::atomic<bool> stop = true;
  EXPECT_EQ(store_->PutMatrix(RandomMatrix("a", "P", 1), &stop).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(BlobFiles(), 0U);
  const auto stored = store_->PutMatrix(RandomMatrix("a", "P", 1));
  EXPECT_EQ(store_->Read(stored->matrix.values, HeapMemory(), &stop).status().code(),
            absl::StatusCode::kCancelled);
}

/// Has no memory to give.
class NoMemory final : public MemorySource {
 public:
  absl::StatusOr<Buffer> Allocate(size_t) override {
    return absl::ResourceExhaustedError("nothing left");
  }
};

TEST_F(StoreTest, ReadingWithoutMemoryIsRefused) {
  const auto stored = store_->PutMatrix(RandomMatrix("a", "P", 1));
  NoMemory memory;
  const absl::Status status = store_->Read(stored->matrix.values, memory).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("values of matrix 'a' of tenant 'tenant'"));
}

TEST_F(StoreTest, SecondServerOnTheSameDirectoryIsRefused) {
  const auto second = OpenStore(PosixFileSystem(), directory_ + "/");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("LOCK"));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another server"));
  EXPECT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  Reopen();
}

TEST_F(StoreTest, LeftoversAreRemovedAndForeignFilesAreNot) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  store_.reset();
  for (const char* name : {"0000000000000099.blob", "0000000000000100.tmp", "notes.txt"}) {
    const auto file = PosixFileSystem().Open(directory_ + "/blobs/" + name, OpenMode::kCreateNew);
    ASSERT_TRUE(file.ok());
  }
  Reopen();
  EXPECT_EQ(BlobFiles(), 4U);
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/blobs/notes.txt"));
  EXPECT_TRUE(store_->PutMatrix(RandomMatrix("b", "Q", 1)).ok());
  EXPECT_TRUE(Dump(*store_).ok());
}

TEST_F(StoreTest, DirectoryThatIsAFileIsRefused) {
  const auto file = PosixFileSystem().Open(root_ + "/file", OpenMode::kCreateNew);
  ASSERT_TRUE(file.ok());
  for (const char* name : {"/file", "/file/below"}) {
    const auto store = OpenStore(PosixFileSystem(), root_ + name);
    EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition) << store.status();
    EXPECT_THAT(std::string(store.status().message()), HasSubstr(root_ + "/file"));
  }
  EXPECT_EQ(OpenStore(PosixFileSystem(), "").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StoreTest, ScrubReadsEveryByteOnce) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  ASSERT_TRUE(store_->PutBuffer(RandomBuffer("x", 1)).ok());
  const StoreContents contents = *store_->Load();
  int64_t expected = 0;
  for (const StoredArray* array :
       {&contents.patterns[0].row_offsets, &contents.patterns[0].column_indices,
        &contents.matrices[0].values, &contents.buffers[0].array}) {
    expected += array->length * static_cast<int64_t>(SizeOf(array->type));
  }
  int64_t read = 0;
  const absl::Status status = store_->Scrub(
      [&](int64_t bytes) {
        read += bytes;
        return true;
      },
      [](const StoredArray&, const absl::Status& damage) { ADD_FAILURE() << damage; });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(read, expected);
}

TEST_F(StoreTest, WithoutDescriptorsAScrubEndsAndNothingIsDamaged) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  const auto scrub = [&] {
    return store_->Scrub(
        [](int64_t) { return true; },
        [](const StoredArray&, const absl::Status& damage) { ADD_FAILURE() << damage; });
  };
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 3, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = scrub();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(store_->Load()->scrubbed_unix_ns, 0) << "it did not come to its end";
  EXPECT_TRUE(scrub().ok());
}

TEST_F(StoreTest, ScrubsThatEndedAreRemembered) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  EXPECT_EQ(store_->Load()->scrubbed_unix_ns, 0);
  const auto nothing = [](const StoredArray&, const absl::Status&) {};
  ASSERT_TRUE(store_->Scrub([](int64_t) { return false; }, nothing).ok());
  EXPECT_EQ(store_->Load()->scrubbed_unix_ns, 0) << "it did not come to its end";
  ASSERT_TRUE(store_->Scrub([](int64_t) { return true; }, nothing).ok());
  Reopen();
  EXPECT_GT(store_->Load()->scrubbed_unix_ns, int64_t{1} << 60);
}

TEST_F(StoreTest, PlansOfADroppedLayoutAreWantedAgain) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  ASSERT_TRUE(store_->PutLayout("P", RandomLayout("aspt", 3), 1).ok());
  const std::vector<PlanRecord> plans = {{"P", "spmm", "aspt", "k", 2, 1, ""},
                                         {"P", "sddmm", "csr", "k", 1, 1, ""}};
  ASSERT_TRUE(store_->PutPlans(plans).ok());
  ASSERT_TRUE(store_->DropLayout("P", "aspt").ok());
  const StoreContents contents = *store_->Load();
  ASSERT_EQ(contents.plans.size(), 1U);
  EXPECT_EQ(contents.plans[0].signature, "sddmm");
  ASSERT_EQ(contents.wanted.size(), 1U);
  EXPECT_EQ(contents.wanted[0].signature, "spmm");
}

TEST_F(StoreTest, ManyThreadsWriteReadAndScrub) {
  constexpr int kThreads = 4;
  std::atomic<bool> done = false;
  std::thread scrubber([&] {
    while (!done) {
      const absl::Status status = store_->Scrub(
          [](int64_t) { return true; },
          [](const StoredArray&, const absl::Status& damage) { ADD_FAILURE() << damage; });
      EXPECT_TRUE(status.ok()) << status;
    }
  });
  std::vector<std::thread> writers;
  for (int t = 0; t < kThreads; ++t) {
    writers.emplace_back([&, t] {
      const std::string name = "m" + std::to_string(t);
      for (uint32_t i = 0; i < 15; ++i) {
        // Threads meet on two patterns, whose last matrix goes again and again.
        const NewMatrix m = RandomMatrix(name, i % 2 == 0 ? "P" : "Q", i);
        const auto stored = store_->PutMatrix(m);
        ASSERT_TRUE(stored.ok()) << stored.status();
        ExpectSameBytes(*store_->Read(stored->matrix.values, HeapMemory()), m.values);
        ExpectSameBytes(*store_->Read(stored->pattern.row_offsets, HeapMemory()), *m.row_offsets);
        if (i % 3 == 0) {
          ASSERT_TRUE(store_->PutLayout(m.pattern_hash, RandomLayout(name, i), 1).ok());
        }
        if (i % 3 == 2) {
          ASSERT_TRUE(store_->DeleteMatrix("tenant", name).ok());
        }
      }
    });
  }
  for (std::thread& thread : writers) thread.join();
  done = true;
  scrubber.join();
  EXPECT_EQ(*Dump(*store_), "");
  EXPECT_EQ(BlobFiles(), 0U);
}

TEST_F(StoreTest, RemembersTheHighestVersionsThatWereUsed) {
  NewMatrix m = RandomMatrix("a", "P", 1);
  m.version = 3;
  ASSERT_TRUE(store_->PutMatrix(m).ok());
  ASSERT_TRUE(store_->UseVersions("tenant", "a", 1000).ok());
  ASSERT_TRUE(store_->UseVersions("tenant", "a", 500).ok());
  ASSERT_TRUE(store_->UseVersions("tenant", "none", 5000).ok());
  m.version = 4;
  ASSERT_TRUE(store_->PutMatrix(m).ok());
  ASSERT_TRUE(store_->PutValues("tenant", "a", 5, m.values).ok());
  Reopen();
  EXPECT_EQ(store_->Load()->matrices[0].version, 5U);
  EXPECT_EQ(store_->Load()->matrices[0].used_version, 1000U);
  EXPECT_EQ(store_->Load()->deleted_version, 0U);
  ASSERT_TRUE(store_->PutValues("tenant", "a", 2000, m.values).ok());
  ASSERT_TRUE(store_->DeleteMatrix("tenant", "a").ok());
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("b", "P", 1)).ok());
  ASSERT_TRUE(store_->DeleteMatrix("tenant", "b").ok());
  Reopen();
  EXPECT_EQ(store_->Load()->deleted_version, 2000U);
}

TEST_F(StoreTest, CatalogsFromBeforeUsedVersionsAreTaken) {
  NewMatrix m = RandomMatrix("a", "P", 1);
  m.version = 3;
  ASSERT_TRUE(store_->PutMatrix(m).ok());
  store_.reset();
  Execute(kToVersion13);
  Execute(kToVersion6);
  Reopen();
  EXPECT_EQ(store_->Load()->matrices[0].used_version, 3U);
}

TEST_F(StoreTest, NewerSchemaIsRefused) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  store_.reset();
  Execute("PRAGMA user_version = 99");
  auto store = OpenStore(PosixFileSystem(), directory_);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition) << store.status();
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("newer sparsed"));
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("99"));
  Execute("PRAGMA user_version = 1; PRAGMA application_id = 7");
  store = OpenStore(PosixFileSystem(), directory_);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition) << store.status();
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("another program"));
}

TEST_F(StoreTest, OlderMeasurementsWereOfTheirSignaturesWidth) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  store_.reset();
  Execute(kToVersion13);
  Execute(R"sql(
    DROP TABLE shares;
    ALTER TABLE matrices DROP COLUMN time_to_live_ns;
    ALTER TABLE buffers DROP COLUMN owner;
    ALTER TABLE buffers DROP COLUMN time_to_live_ns;
    ALTER TABLE matrices DROP COLUMN used_version;
    DROP TABLE deleted_versions;
    DROP TABLE decisions;
    DROP TABLE features;
    DROP TABLE scrubs;
    DROP TABLE measurements;
    CREATE TABLE measurements(
      id INTEGER PRIMARY KEY,
      pattern INTEGER NOT NULL REFERENCES patterns(id) ON DELETE CASCADE,
      class TEXT NOT NULL, recipe TEXT NOT NULL, kernel TEXT NOT NULL, device TEXT NOT NULL,
      median_ms REAL NOT NULL, runs INTEGER NOT NULL, measured_unix_ns INTEGER NOT NULL,
      UNIQUE(pattern, class, recipe, kernel, device)
    ) STRICT;
    INSERT INTO measurements(pattern, class, recipe, kernel, device, median_ms, runs,
                             measured_unix_ns)
      SELECT id, 'spmm f32 k<=128 cpu', 'csr', 'k', 'cpu', 1.5, 3, 7 FROM patterns;
    PRAGMA user_version = 2;
  )sql");
  Reopen();
  const StoreContents contents = *store_->Load();
  ASSERT_EQ(contents.measurements.size(), 1U);
  EXPECT_EQ(contents.measurements[0].k, 128);
  EXPECT_EQ(contents.measurements[0].median_ms, 1.5);
  EXPECT_EQ(contents.measurements[0].measured_unix_ns, 7);
}

TEST_F(StoreTest, CatalogsFromBeforeThe16BitTypesAreTaken) {
  NewMatrix m = RandomMatrix("a", "P", 1);
  ASSERT_TRUE(store_->PutMatrix(m).ok());
  ASSERT_TRUE(store_->PutBuffer(RandomBuffer("x", 1)).ok());
  ASSERT_TRUE(store_->DeleteBuffer("tenant", "x").ok());  // its blob was numbered last
  const std::string before = *Dump(*store_);
  store_.reset();
  const auto last_blob = [this] {
    int64_t last = 0;
    sqlite3* connection = nullptr;
    EXPECT_EQ(sqlite3_open((directory_ + "/catalog.sqlite").c_str(), &connection), SQLITE_OK);
    sqlite3_db_config(connection, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    const auto take = [](void* to, int, char** columns, char**) {
      *static_cast<int64_t*>(to) = std::atoll(columns[0]);
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(connection, "SELECT seq FROM sqlite_sequence WHERE name = 'arrays'",
                           take, &last, nullptr),
              SQLITE_OK);
    sqlite3_close(connection);
    return last;
  };
  const int64_t last = last_blob();
  EXPECT_GT(last, 3);
  Execute(kToVersion13);
  Execute(kToVersion6);
  Execute(R"sql(
    DROP TABLE features;
    CREATE TEMP TABLE kept AS SELECT * FROM main.arrays;
    CREATE TEMP TABLE sequence AS SELECT * FROM main.sqlite_sequence;
    DROP TABLE main.arrays;
    CREATE TABLE arrays(
      blob INTEGER PRIMARY KEY AUTOINCREMENT,
      pattern INTEGER REFERENCES patterns(id) ON DELETE CASCADE,
      matrix INTEGER REFERENCES matrices(id) ON DELETE CASCADE,
      layout INTEGER REFERENCES layouts(id) ON DELETE CASCADE,
      buffer INTEGER REFERENCES buffers(id) ON DELETE CASCADE,
      position INTEGER NOT NULL, name TEXT NOT NULL,
      type INTEGER NOT NULL CHECK(type BETWEEN 1 AND 4), length INTEGER NOT NULL
    ) STRICT;
    INSERT INTO arrays SELECT * FROM temp.kept;
    DELETE FROM sqlite_sequence;
    INSERT INTO sqlite_sequence SELECT * FROM temp.sequence;
    PRAGMA user_version = 4;
  )sql");
  Reopen();
  EXPECT_EQ(*Dump(*store_), before);
  store_.reset();
  EXPECT_EQ(last_blob(), last) << "a number is never used again";
  Reopen();
  m.values = RandomArray("values", ElementType::kBF16, m.nnz, 2);
  ASSERT_TRUE(store_->PutMatrix(m).ok());
  Reopen();
  EXPECT_EQ(store_->Load()->matrices[0].type, ElementType::kBF16);
}

TEST_F(StoreTest, FeaturesComeBackWithTheirPattern) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  EXPECT_FALSE(store_->ReadFeatures("P", HeapMemory())->has_value());
  EXPECT_TRUE(absl::IsNotFound(store_->PutFeatures("Q", RandomFeatures(2))));
  ASSERT_TRUE(store_->PutFeatures("P", RandomFeatures(2)).ok());
  const Features put = RandomFeatures(3);
  ASSERT_TRUE(store_->PutFeatures("P", put).ok());
  Reopen();
  const auto read = *store_->ReadFeatures("P", HeapMemory());
  ASSERT_TRUE(read.has_value());
  for (const FeatureField& field : kFeatureFields) {
    EXPECT_EQ(*read.*field.value, put.*field.value) << field.name;
  }
  EXPECT_EQ(read->distance_histogram, put.distance_histogram);
  EXPECT_EQ(read->density_map.Tiles(), put.density_map.Tiles());
  test::CountingMemory none(0);
  EXPECT_TRUE(absl::IsResourceExhausted(store_->ReadFeatures("P", none).status()));

  ASSERT_TRUE(store_->DeleteMatrix("tenant", "a").ok());
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  EXPECT_FALSE(store_->ReadFeatures("P", HeapMemory())->has_value());
}

TEST_F(StoreTest, FeaturesThatAreNotWholeAreNone) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  for (const char* sql : {"DELETE FROM features WHERE name = 'nnz'",
                          "DELETE FROM features WHERE name = 'packed_density_map'",
                          "UPDATE features SET value = x'0001ff' WHERE name = 'packed_density_map'",
                          "UPDATE features SET value = x'00' WHERE name = 'distance_histogram'"}) {
    ASSERT_TRUE(store_->PutFeatures("P", RandomFeatures(2)).ok());
    store_.reset();
    Execute(sql);
    Reopen();
    EXPECT_FALSE(store_->ReadFeatures("P", HeapMemory())->has_value()) << sql;
  }
}

TEST_F(StoreTest, DensityMapsFromBeforeTheyWerePackedAreTaken) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  ASSERT_TRUE(store_->PutFeatures("P", RandomFeatures(2)).ok());
  store_.reset();
  // 128 x 128 counts of four bytes: the first is 259, the others are 0.
  Execute(
      "UPDATE features SET name = 'density_map', value = CAST(x'03010000' || zeroblob(65532) AS "
      "BLOB) WHERE name = 'packed_density_map'");
  Reopen();
  const auto read = store_->ReadFeatures("P", HeapMemory());
  ASSERT_TRUE(read.ok() && read->has_value()) << read.status();
  std::vector<int32_t> tiles(128 * 128);
  tiles[0] = 259;
  EXPECT_EQ((*read)->density_map.Tiles(), tiles);
}

TEST_F(StoreTest, CatalogsFromBeforeFeaturesAreTaken) {
  ASSERT_TRUE(store_->PutMatrix(RandomMatrix("a", "P", 1)).ok());
  const std::string before = *Dump(*store_);
  store_.reset();
  Execute(kToVersion13);
  Execute(kToVersion6);
  Execute("DROP TABLE features; PRAGMA user_version = 5");
  Reopen();
  EXPECT_EQ(*Dump(*store_), before);
  EXPECT_TRUE(store_->PutFeatures("P", RandomFeatures(2)).ok());
}

TEST_F(StoreTest, BuffersFromBeforeOwnersAndTimesToLiveHaveNone) {
  ASSERT_TRUE(store_->PutBuffer(RandomBuffer("x", 1)).ok());
  Reopen();
  EXPECT_EQ(store_->Load()->buffers.at(0).owner, RandomBuffer("x", 1).owner);
  EXPECT_EQ(store_->Load()->buffers.at(0).time_to_live_ns, RandomBuffer("x", 1).time_to_live_ns);
  store_.reset();
  Execute(kToVersion13);
  Execute(R"sql(
    DROP TABLE shares;
    ALTER TABLE matrices DROP COLUMN time_to_live_ns;
    ALTER TABLE buffers DROP COLUMN owner;
    ALTER TABLE buffers DROP COLUMN time_to_live_ns;
    ALTER TABLE measurements DROP COLUMN compulsory_bytes;
    PRAGMA user_version = 10;
  )sql");
  Reopen();
  const StoreContents contents = *store_->Load();
  ASSERT_EQ(contents.buffers.size(), 1U);
  EXPECT_EQ(contents.buffers[0].owner, "");
  EXPECT_EQ(contents.buffers[0].time_to_live_ns, 0);
  ExpectSameBytes(*store_->Read(contents.buffers[0].array, HeapMemory()),
                  RandomBuffer("x", 1).array);
}

TEST(InMemoryStore, AcceptsEverythingAndKeepsNothing) {
  const std::unique_ptr<Store> store = MakeInMemoryStore();
  EXPECT_FALSE(store->durable());
  for (const Step& step : AllSteps()) EXPECT_TRUE(step.run(*store).ok()) << step.name;
  EXPECT_EQ(*Dump(*store), "");
  const NewMatrix m = RandomMatrix("a", "P", 1);
  const auto stored = store->PutMatrix(m);
  EXPECT_EQ(stored->matrix.version, m.version);
  EXPECT_EQ(stored->matrix.values.length, m.nnz);
  EXPECT_FALSE(stored->matrix.values.readable());
  EXPECT_EQ(store->Read(stored->matrix.values, HeapMemory()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sparsed::engine
