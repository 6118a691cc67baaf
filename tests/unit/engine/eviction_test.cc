// A data directory that is larger than host memory: what the disk has leaves memory while nobody
// uses it, and is read again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/planning/candidates.h"
#include "kernels/pipeline.h"
#include "tests/unit/engine/calls.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using ::testing::HasSubstr;

/// Of which each takes about half a MiB.
constexpr int64_t kMatrices = 12;
constexpr int64_t kRows = 2000, kCols = 500, kRowNnz = 30, kWidth = 8;
constexpr int64_t kLimit = int64_t{3} << 20;

test::Pattern PatternOf(int64_t i) { return test::Uniform(kRows, kCols, kRowNnz, 100 + i); }
std::string NameOf(int64_t i) { return "m" + std::to_string(i); }

/// Takes all memory for a moment: whatever may leave it does.
void Squeeze(Budget& budget) {
  while (budget.evictions()->EvictOne()) {
  }
}

/// An engine over a directory. Without preparations there are no layouts but plain CSR.
std::unique_ptr<Engine> Open(const std::string& directory, Observer& observer,
                             bool with_layouts = false, int64_t limit = kLimit) {
  EngineOptions options;
  options.data_dir = directory;
  options.host_memory_bytes = options.preparation_memory_bytes = limit;
  options.scrub_interval_seconds = 0;
  options.execution.slots = 2;
  options.preparation.enabled = with_layouts;
  options.preparation.trial_budget_ms = 5;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Open(options, observer);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

/// S * B for every matrix, and how large the sums' terms are.
class Products {
 public:
  Products() {
    for (const double x : test::RandomValues(kCols * kWidth, 7))
      b_.push_back(static_cast<float>(x));
    for (int64_t i = 0; i < kMatrices; ++i) Add(PatternOf(i), FloatsOf(PatternOf(i), i));
  }

  /// Multiplies; how the call ended. `plan`, if not null, becomes what it ran on.
  absl::Status Multiply(Engine& engine, int64_t i, std::string* plan = nullptr) const {
    SpmmSpec spec;
    spec.tenant = "t";
    spec.matrix = NameOf(i);
    spec.b.shape = DenseShape{kCols, kWidth, kWidth, ElementType::kF32};
    const auto result = std::make_shared<Result>();
    const auto call = engine.executor().Begin(spec, result);
    if (!call.ok()) return call.status();
    if (absl::Status s = FeedAndCommit(**call, 0, b_); !s.ok()) {
      (*call)->Cancel();
      result->Wait().IgnoreError();
      return s;
    }
    (*call)->Submit();
    if (absl::Status s = result->Wait(); !s.ok()) return s;
    const std::vector<float> sums = result->Elements<float>();
    ExpectSums<float>(sums, expected_[i], magnitudes_[i], kRowNnz);
    if (plan != nullptr) *plan = result->plan;
    return absl::OkStatus();
  }

 private:
  void Add(const test::Pattern& s, const std::vector<float>& values) {
    std::vector<double>& sums = expected_.emplace_back(kRows * kWidth);
    std::vector<double>& magnitudes = magnitudes_.emplace_back(kRows * kWidth);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t at = s.row_offsets[row]; at < s.row_offsets[row + 1]; ++at) {
        for (int64_t k = 0; k < kWidth; ++k) {
          const double product = double{values[at]} * b_[s.column_indices[at] * kWidth + k];
          sums[row * kWidth + k] += product;
          magnitudes[row * kWidth + k] += std::abs(product);
        }
      }
    }
  }

  std::vector<float> b_;
  std::vector<std::vector<double>> expected_, magnitudes_;
};

const Products& TheProducts() {
  static const auto* const products = new Products;
  return *products;
}

void UploadAll(Engine& engine) {
  for (int64_t i = 0; i < kMatrices; ++i) {
    const auto sent = SendMatrix(engine.catalog(), NameOf(i), PatternOf(i), i);
    ASSERT_TRUE(sent.ok()) << NameOf(i) << ": " << sent.status();
  }
}

TEST(Eviction, EveryMatrixAnswersInItsTurn) {
  TemporaryDirectory directory;
  Observer observer;
  for (const bool restarted : {false, true}) {
    const auto engine = Open(directory.path(), observer);
    ASSERT_NE(engine, nullptr);
    if (!restarted) UploadAll(*engine);
    for (int round = 0; round < 3; ++round) {
      for (int64_t i = 0; i < kMatrices; ++i) {
        const absl::Status status = TheProducts().Multiply(*engine, i);
        ASSERT_TRUE(status.ok()) << "round " << round << ", " << NameOf(i) << ": " << status;
      }
    }
    const EvictionQueue& evictions = *engine->budget().evictions();
    EXPECT_LE(engine->budget().peak(), kLimit);
    EXPECT_GT(evictions.evictions(), 2 * kMatrices);
    EXPECT_GT(evictions.read_again_bytes(), int64_t{2} * kMatrices * kRows * kRowNnz * 8 / 2);
    EXPECT_EQ(evictions.read_first_bytes() > 0, restarted) << "what was uploaded was here";
  }
}

TEST(Eviction, TheLeastRecentlyUsedGoesFirst) {
  TemporaryDirectory directory;
  Modules modules(directory.path(), kLimit);
  std::vector<MatrixLease> matrices;
  for (int64_t i = 0; i < 4; ++i) {
    matrices.push_back(SendMatrix(modules.catalog, NameOf(i), PatternOf(i), i).value());
  }
  ASSERT_TRUE(matrices[0]->Values().ok());
  ASSERT_TRUE(modules.budget.evictions()->EvictOne());
  ASSERT_TRUE(modules.budget.evictions()->EvictOne());
  EXPECT_FALSE(matrices[1]->resident());
  EXPECT_EQ(matrices[0]->resident_bytes(), kRows * kRowNnz * 4);
  EXPECT_FALSE(matrices[0]->pattern()->resident()) << "nobody asked for that again";
  EXPECT_TRUE(matrices[2]->resident() && matrices[3]->resident());
}

TEST(Eviction, WhatIsInUseStays) {
  TemporaryDirectory directory;
  Modules modules(directory.path(), kLimit);
  const MatrixLease used = SendMatrix(modules.catalog, "used", PatternOf(0), 0).value();
  const MatrixLease idle = SendMatrix(modules.catalog, "idle", PatternOf(1), 1).value();
  std::optional<Array> values = used->Values().value();
  // Of a layout somebody may hold an array alone.
  std::optional<Array> columns = *(*used->pattern()->Csr())->Find("column_indices");
  Squeeze(modules.budget);
  EXPECT_TRUE(used->resident());
  EXPECT_FALSE(idle->resident());
  EXPECT_EQ(used->Values()->buffer.data(), values->buffer.data());
  // Once it is not in use, waiting helps, and says so.
  const absl::Status refused =
      modules.budget.Source(MemoryUse::kRequests).Allocate(kLimit - (256 << 10)).status();
  ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("retry later"));
  values.reset();
  columns.reset();
  EXPECT_TRUE(modules.budget.Source(MemoryUse::kRequests).Allocate(kLimit - (256 << 10)).ok());
  EXPECT_FALSE(used->resident());
  EXPECT_EQ(Elements<float>(used->Values()), FloatsOf(PatternOf(0), 0));
}

TEST(Eviction, WhatTheDiskDoesNotHaveStays) {
  TemporaryDirectory directory;
  Modules modules(directory.path());
  const test::Pattern s = PatternOf(0);
  ASSERT_TRUE(SendMatrix(modules.catalog, "m", s, 1).ok());
  for (const bool durable : {false, true}) {
    const uint64_t seed = durable ? 3 : 2;
    auto update = modules.catalog.BeginUpdate({"t", "m", ElementType::kF32, durable, 0});
    ASSERT_TRUE(update.ok() && Feed(**update, 0, FloatsOf(s, seed)).ok());
    const MatrixLease matrix = (*update)->Finish(1).value();
    update->reset();
    Squeeze(modules.budget);
    EXPECT_FALSE(matrix->pattern()->resident());
    EXPECT_EQ(matrix->resident_bytes() > 0, !durable);
    EXPECT_EQ(Elements<float>(matrix->Values()), FloatsOf(s, seed));
  }
  for (const bool durable : {false, true}) {
    const DenseShape shape = {kRows, 2, 2, ElementType::kF32};
    std::vector<float> elements(shape.elements(), durable ? 3 : 2);
    auto put = modules.dense.BeginPut({"t", "d", shape, /*zeros=*/false, durable});
    ASSERT_TRUE(put.ok() && Feed(**put, 0, elements).ok());
    const HeldDenseLease held = (*put)->Finish().value();
    put->reset();
    Squeeze(modules.budget);
    EXPECT_EQ(held->elements->resident(), !durable);
    EXPECT_EQ(Elements<float>(held->elements->Get()), elements);
  }
}

TEST(Eviction, NothingLeavesAStoreInMemory) {
  Modules modules;
  const MatrixLease matrix = SendMatrix(modules.catalog, "m", PatternOf(0), 1).value();
  EXPECT_FALSE(modules.budget.evictions()->EvictOne());
  EXPECT_TRUE(matrix->resident());
}

TEST(Eviction, WhatTheDiskHasLostStays) {
  TemporaryDirectory directory;
  TemporaryDirectory elsewhere;
  Modules modules(directory.path());
  const test::Pattern s = PatternOf(0);
  const MatrixLease matrix = SendMatrix(modules.catalog, "m", s, 1).value();
  const std::string blobs = directory.path() + "/blobs";
  std::filesystem::rename(blobs, elsewhere.path() + "/blobs");
  Squeeze(modules.budget);
  EXPECT_TRUE(matrix->resident());
  std::filesystem::rename(elsewhere.path() + "/blobs", blobs);
  Squeeze(modules.budget);
  EXPECT_FALSE(matrix->resident());
  EXPECT_EQ(Elements<float>(matrix->Values()), FloatsOf(s, 1));
}

TEST(Eviction, KeepsTheCallersOrder) {
  TemporaryDirectory directory;
  Modules modules(directory.path());
  UploadHeader header = HeaderOf("m", test::FromCoordinates(1, 3, {{0, 0}, {0, 1}, {0, 2}}));
  header.sort = true;
  const MatrixLease matrix = Send(modules.catalog, header, std::vector<int64_t>{0, 3},
                                  std::vector<int32_t>{2, 0, 1}, std::vector<float>{20, 0, 10})
                                 .value();
  Squeeze(modules.budget);
  EXPECT_FALSE(matrix->caller_order()->resident());
  EXPECT_THAT(Elements<int64_t>(matrix->caller_order()->Get()), testing::ElementsAre(1, 2, 0));
  EXPECT_THAT(Elements<float>(matrix->Values()), testing::ElementsAre(0, 10, 20));
}

TEST(Eviction, RequestsAtOnceInRandomOrder) {
  TemporaryDirectory directory;
  Observer observer;
  const auto engine = Open(directory.path(), observer);
  ASSERT_NE(engine, nullptr);
  UploadAll(*engine);
  std::vector<std::thread> threads;
  std::atomic<int> answered = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int turn = 0; turn < 40;) {
        const auto i = static_cast<int64_t>(random() % kMatrices);
        const absl::Status status = TheProducts().Multiply(*engine, i);
        // All that is in memory may be in use for a moment.
        if (absl::IsResourceExhausted(status)) continue;
        ASSERT_TRUE(status.ok()) << status;
        ++answered;
        ++turn;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, 160);
  EXPECT_LE(engine->budget().peak(), kLimit);
  EXPECT_GT(engine->budget().evictions()->evictions(), 0);
}

TEST(Eviction, ManyWhoNeedOneArrayReadItOnce) {
  const auto evictions = std::make_shared<EvictionQueue>();
  Budget budget(kPlenty, 0);
  std::atomic<int> reads = 0;
  const auto array = std::make_shared<LazyArray>(LazyArray::DiskCopy{
      [&](LazyArray::Stop) {
        ++reads;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return AllocateArray(budget.Source(MemoryUse::kMatrices), "values", ElementType::kF32, 100);
      },
      [] { return true; }, evictions});
  for (int round = 1; round <= 3; ++round) {
    std::vector<std::thread> threads;
    std::vector<Array> got(8);
    for (Array& one : got) threads.emplace_back([&] { one = array->Get().value(); });
    for (std::thread& thread : threads) thread.join();
    for (const Array& one : got) EXPECT_EQ(one.buffer.data(), got[0].buffer.data());
    EXPECT_EQ(reads, round);
    EXPECT_FALSE(evictions->EvictOne()) << "it is in use";
    got.clear();
    EXPECT_TRUE(evictions->EvictOne());
    EXPECT_EQ(evictions->bytes(), 0);
  }
  EXPECT_EQ(evictions->read_first_bytes(), 400);
  EXPECT_EQ(evictions->read_again_bytes(), 800);
}

TEST(Eviction, AReadThatIsStoppedIsTriedAgain) {
  TemporaryDirectory directory;
  Modules modules(directory.path());
  const MatrixLease matrix = SendMatrix(modules.catalog, "m", PatternOf(0), 1).value();
  Squeeze(modules.budget);
  const std::atomic<bool> stop = true;
  EXPECT_TRUE(absl::IsCancelled(matrix->Values(&stop).status()));
  EXPECT_TRUE(absl::IsCancelled(matrix->pattern()->Csr(&stop).status()));
  EXPECT_EQ(modules.budget.used(), static_cast<int64_t>(kMatrixBytes));
  EXPECT_EQ(Elements<float>(matrix->Values()), FloatsOf(PatternOf(0), 1));
}

TEST(Eviction, WhatIsDeletedMeanwhileIsReadAgainByWhoHasIt) {
  TemporaryDirectory directory;
  Modules modules(directory.path());
  MatrixLease matrix = SendMatrix(modules.catalog, "m", PatternOf(0), 1).value();
  Squeeze(modules.budget);
  ASSERT_TRUE(modules.catalog.Delete("t", "m").ok());
  EXPECT_EQ(Elements<float>(matrix->Values()), FloatsOf(PatternOf(0), 1));
  EXPECT_TRUE(matrix->pattern()->Csr().ok());
  matrix.reset();
  EXPECT_EQ(modules.budget.used(), 0);
  EXPECT_EQ(modules.budget.evictions()->bytes(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path() + "/blobs"));
}

/// Changes a byte in the middle of every file in `folder` that is not in `spared`.
void Damage(const std::string& folder, const std::set<std::string>& spared) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (spared.contains(entry.path())) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
    file.seekg(middle);
    const char byte = static_cast<char>(file.get());
    file.seekp(middle);
    file.put(static_cast<char>(~byte));
  }
}

TEST(Eviction, DamageIsThatMatrixsAlone) {
  TemporaryDirectory directory;
  Observer observer;
  const auto engine = Open(directory.path(), observer);
  ASSERT_NE(engine, nullptr);
  UploadAll(*engine);
  // The files of the last one.
  ASSERT_TRUE(engine->catalog().Delete("t", NameOf(0)).ok());
  const std::string blobs = directory.path() + "/blobs";
  std::set<std::string> others;
  for (const auto& entry : std::filesystem::directory_iterator(blobs)) others.insert(entry.path());
  ASSERT_TRUE(SendMatrix(engine->catalog(), NameOf(0), PatternOf(0), 0).ok());
  Damage(blobs, others);
  EXPECT_TRUE(TheProducts().Multiply(*engine, 0).ok()) << "it is in memory";
  Squeeze(engine->budget());
  for (int round = 0; round < 2; ++round) {
    for (int64_t i = 0; i < kMatrices; ++i) {
      const absl::Status status = TheProducts().Multiply(*engine, i);
      if (i == 0) {
        EXPECT_TRUE(absl::IsDataLoss(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("'m0'"));
      } else {
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }
}

/// Uploads all, each with a layout and a plan that is said to be better than plain CSR.
void StoreLayouts(const std::string& directory) {
  Modules modules(directory);
  const Problem problem{Operation::kSpmm, false, ElementType::kF32, kWidth, DeviceKind::kCpu};
  for (int64_t i = 0; i < kMatrices; ++i) {
    const MatrixLease matrix =
        SendMatrix(modules.catalog, NameOf(i), PatternOf(i), static_cast<uint64_t>(i)).value();
    const std::string& hash = matrix->pattern()->hash();
    BuildContext context;
    context.memory = &HeapMemory();
    const auto built = BuildLayout(ParsePipeline("lsh_cluster").value(),
                                   ViewCsr(**matrix->pattern()->Csr()), context);
    ASSERT_TRUE(built.ok() && !built->skipped) << built.status();
    ASSERT_TRUE(modules.store->PutLayout(hash, built->layout, 0.25).ok());
    const PlanRecord plan = {hash,
                             ToString(SignatureOf(problem)),
                             built->layout.pipeline,
                             std::string(KernelsFor(problem, built->layout).front()),
                             2.0,
                             1.0,
                             "2.00x over plain CSR"};
    ASSERT_TRUE(modules.store->PutPlans({&plan, 1}).ok());
    ASSERT_TRUE(modules.store->PutPreparation(hash, {"READY", "prepared", 1}).ok());
  }
}

/// What an engine says is damaged.
class Listener final : public Observer {
 public:
  void OnDamage(std::string_view) override { ++damages; }
  std::atomic<int> damages = 0;
};

TEST(Eviction, LayoutsAndTheirValuesAreReadAndPlacedAgain) {
  TemporaryDirectory directory;
  ASSERT_NO_FATAL_FAILURE(StoreLayouts(directory.path()));
  Listener listener;
  const auto engine = Open(directory.path(), listener, /*with_layouts=*/true);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(Eventually([&] { return engine->preparation().pending() == 0; }));
  std::string plan;
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 0; i < kMatrices; ++i) {
      const absl::Status status = TheProducts().Multiply(*engine, i, &plan);
      ASSERT_TRUE(status.ok()) << "round " << round << ", " << NameOf(i) << ": " << status;
      EXPECT_THAT(plan, HasSubstr("lsh_cluster")) << NameOf(i);
    }
  }
  EXPECT_LE(engine->budget().peak(), kLimit);
  EXPECT_GT(engine->budget().evictions()->read_again_bytes(), 0);
  Squeeze(engine->budget());
  const MatrixLease matrix = engine->catalog().Find("t", NameOf(0)).value();
  const std::string pipeline = matrix->pattern()->Layouts().at(0).description->pipeline;
  EXPECT_FALSE(matrix->pattern()->FindLayout(pipeline)->resident());
  EXPECT_EQ(matrix->LayoutValueBytes(pipeline), 0);
  EXPECT_GT(matrix->pattern()->Layouts().at(0).description->bytes(), 0) << "they are known";
  EXPECT_EQ(listener.damages, 0);
}

/// At some of these limits there is room for a layout, but not for the values in it.
TEST(Eviction, NothingGoesForWhatARestartBringsBack) {
  TemporaryDirectory directory;
  ASSERT_NO_FATAL_FAILURE(StoreLayouts(directory.path()));
  Listener listener;
  for (int64_t limit = kLimit; limit < kLimit + (1 << 20); limit += 200'000) {
    SCOPED_TRACE(limit);
    const auto engine = Open(directory.path(), listener, /*with_layouts=*/true, limit);
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(Eventually([&] { return engine->preparation().pending() == 0; }));
    EXPECT_EQ(engine->budget().evictions()->evictions(), 0);
    int placed = 0, unread = 0;
    for (int64_t i = 0; i < kMatrices; ++i) {
      const MatrixLease matrix = engine->catalog().Find("t", NameOf(i)).value();
      const std::string pipeline = matrix->pattern()->Layouts().at(0).description->pipeline;
      const bool values = matrix->LayoutValueBytes(pipeline) > 0;
      EXPECT_EQ(matrix->pattern()->FindLayout(pipeline)->resident(), values) << NameOf(i);
      (values ? placed : unread) += 1;
    }
    EXPECT_GT(placed, 0);
    EXPECT_GT(unread, 0);
  }
}

TEST(Eviction, PlainCsrServesWhereALayoutIsDamaged) {
  TemporaryDirectory directory;
  ASSERT_NO_FATAL_FAILURE(StoreLayouts(directory.path()));
  Listener listener;
  const auto engine = Open(directory.path(), listener, /*with_layouts=*/true);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(Eventually([&] { return engine->preparation().pending() == 0; }));
  Squeeze(engine->budget());
  const MatrixLease matrix = engine->catalog().Find("t", NameOf(0)).value();
  Pattern& pattern = *matrix->pattern();
  const std::shared_ptr<LazyLayout> damaged =
      pattern.FindLayout(pattern.plans().List()[0]->plan.pipeline);
  ASSERT_NE(damaged, nullptr);
  // Only the layouts are read again: all files but theirs are spared.
  std::set<std::string> others;
  {
    const std::string blobs = directory.path() + "/blobs";
    for (const auto& entry : std::filesystem::directory_iterator(blobs)) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes(std::istreambuf_iterator<char>(file), {});
      if (bytes.find("lsh_cluster") == std::string::npos) others.insert(entry.path());
    }
    Damage(blobs, others);
  }
  std::string plan;
  const absl::Status status = TheProducts().Multiply(*engine, 0, &plan);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(plan, testing::StartsWith("csr / "));
  EXPECT_GT(listener.damages, 0);
  EXPECT_NE(pattern.FindLayout(pattern.plans().List()[0]->plan.pipeline), damaged);
  // The next request asks for a new trial, which finds what serves best now.
  EXPECT_TRUE(TheProducts().Multiply(*engine, 0, &plan).ok());
  EXPECT_TRUE(Eventually([&] { return engine->preparation().pending() == 0; }));
  EXPECT_TRUE(TheProducts().Multiply(*engine, 0, &plan).ok());
}

}  // namespace
}  // namespace sparsed::engine
