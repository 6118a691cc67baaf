// Buffers: shapes, versions, who may write, what survives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>

#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Floats = std::vector<float>;

PutHeader Header(const std::string& name, int64_t rows = 2, int64_t cols = 3) {
  return {"t", name, {rows, cols, cols, ElementType::kF32}, /*zeros=*/false, /*durable=*/false};
}

absl::StatusOr<HeldDenseLease> Put(DenseCatalog& dense, const PutHeader& header,
                                   const Floats& elements) {
  auto put = dense.BeginPut(header);
  if (!put.ok()) return put.status();
  if (absl::Status fed = Feed(**put, 0, elements); !fed.ok()) return fed;
  return (*put)->Finish();
}

TEST(DenseCatalog, HoldsWhatWasPut) {
  Modules modules;
  auto held = Put(modules.dense, Header("b"), {1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ((*held)->version, 1u);
  EXPECT_FALSE((*held)->durable);
  EXPECT_EQ(modules.dense.Find("t", "b").value(), *held);
  EXPECT_THAT(Elements<float>((*held)->elements->Get()), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_TRUE(absl::IsNotFound(modules.dense.Find("u", "b").status()));
  EXPECT_EQ(modules.budget.used(MemoryUse::kBuffers), modules.budget.used());
}

TEST(DenseCatalog, TinyOnesAreBounded) {
  Modules modules("", /*memory=*/100'000);
  int held = 0;
  absl::Status status;
  for (; held < 1000; ++held) {
    status = Put(modules.dense, Header(std::to_string(held), 1, 1), {1}).status();
    if (!status.ok()) break;
  }
  EXPECT_EQ(held, 48) << "with 2 KiB each";
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the buffer needs 2048 bytes"));
  ASSERT_TRUE(modules.dense.Delete("t", "0").ok());
  EXPECT_TRUE(Put(modules.dense, Header("again", 1, 1), {1}).ok());
  // A version that a result was written into shares what the one before counts with.
  const int64_t before = modules.budget.used();
  auto write = modules.dense.BeginWrite("t", "again");
  ASSERT_TRUE(write.ok());
  ASSERT_TRUE(write->Publish(write->base()->elements).ok());
  EXPECT_EQ(modules.budget.used(), before);
}

TEST(DenseCatalog, ZerosAreNotSent) {
  Modules modules;
  PutHeader header = Header("z", 100, 7);
  header.shape.leading_dimension = 8;
  header.zeros = true;
  auto put = modules.dense.BeginPut(header);
  ASSERT_TRUE(put.ok());
  EXPECT_THAT(std::string((*put)->Claim(0, 0, 4).status().message()), HasSubstr("not wanted"));
  auto held = (*put)->Finish();
  ASSERT_TRUE(held.ok());
  const Floats elements = Elements<float>((*held)->elements->Get());
  EXPECT_EQ(elements.size(), 799u);
  EXPECT_THAT(elements, Each(0));
}

TEST(DenseCatalog, StoppedBeforeItIsPublished) {
  TemporaryDirectory directory;
  Modules modules(directory.path());
  for (const bool durable : {false, true}) {
    PutHeader header = Header("b");
    header.durable = durable;
    auto put = modules.dense.BeginPut(header);
    ASSERT_TRUE(put.ok()) << put.status();
    ASSERT_TRUE(Feed(**put, 0, Floats{1, 2, 3, 4, 5, 6}).ok());
    const std::atomic<bool> stop = true;
    EXPECT_TRUE(absl::IsCancelled((*put)->Finish(&stop).status()));
    EXPECT_TRUE(absl::IsNotFound(modules.dense.Find("t", "b").status()));
  }
  EXPECT_TRUE(modules.store->Load()->buffers.empty());
}

TEST(DenseCatalog, NothingIsDurableInMemory) {
  Modules modules;
  PutHeader header = Header("b");
  header.durable = true;
  EXPECT_TRUE(absl::IsFailedPrecondition(modules.dense.BeginPut(header).status()));
}

TEST(DenseCatalog, StaysWholeWithoutRoomForItsBlocks) {
  constexpr int64_t kMemory = 100'000;
  DenseOptions options;
  options.blocks = 2;
  options.choose = [](const MatrixLease& /*matrix*/, const DenseShape& /*shape*/,
                      Store::Stop /*stop*/) { return Distribution::kColumns; };
  Modules modules("", kMemory, kMemory, options);
  const auto s = SendMatrix(modules.catalog, "s", test::Uniform(10, 10, 2, 1));
  ASSERT_TRUE(s.ok()) << s.status();
  for (const int64_t columns : {100, 1500}) {
    PutHeader header = Header("b", 10, columns);
    header.zeros = true;
    header.distribution = Distribution::kAuto;
    header.rows_of = *s;
    auto put = modules.dense.BeginPut(header);
    ASSERT_TRUE(put.ok()) << put.status();
    const auto held = (*put)->Finish();
    ASSERT_TRUE(held.ok()) << held.status();
    EXPECT_EQ((*held)->distribution(),
              columns == 100 ? Distribution::kColumns : Distribution::kWhole);
    EXPECT_EQ((*held)->elements->Get()->length, 10 * columns);
    header.distribution = Distribution::kColumns;
    header.rows_of = nullptr;
    EXPECT_EQ(absl::IsResourceExhausted(modules.dense.BeginPut(header).status()), columns == 1500);
  }
}

TEST(DenseCatalog, NoRows) {
  Modules modules;
  auto held = Put(modules.dense, Header("e", 0, 4), {});
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ((*held)->elements->Get()->length, 0);
}

TEST(DenseCatalog, RefusesBadShapes) {
  Modules modules;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const std::pair<DenseShape, const char*> cases[] = {
      {{-1, 3, 3, ElementType::kF32}, "has -1 rows"},
      {{2, 0, 0, ElementType::kF32}, "has 0 columns"},
      {{2, 3, 2, ElementType::kF32}, "leading dimension 2, expected at least its 3"},
      {{2, 3, 3, ElementType::kI64}, "is i64, expected f32, f64, f16 or bf16"},
      {{kHuge, kHuge, kHuge, ElementType::kF32}, "at most 2^40"},
      {{2, 1, kHuge, ElementType::kF64}, "at most 2^40"},
  };
  for (const auto& [shape, sentence] : cases) {
    const absl::Status status = modules.dense.BeginPut({"t", "b", shape, false, false}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << sentence << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
  }
  EXPECT_FALSE(modules.dense.BeginPut(Header("a/b c")).ok());
  EXPECT_TRUE(
      absl::IsResourceExhausted(modules.dense.BeginPut(Header("b", 1 << 30, 1 << 10)).status()));
}

TEST(DenseCatalog, RefusesGapsAndStrangers) {
  Modules modules;
  auto put = modules.dense.BeginPut(Header("b"));
  ASSERT_TRUE(put.ok());
  EXPECT_TRUE(absl::IsInvalidArgument((*put)->Claim(1, 0, 4).status()));
  EXPECT_TRUE(absl::IsInvalidArgument((*put)->Claim(0, 20, 8).status()));
  ASSERT_TRUE((*put)->Claim(0, 4, 20).ok());
  EXPECT_TRUE(absl::IsInvalidArgument((*put)->Finish().status()));
  EXPECT_EQ(modules.dense.size(), 0);
}

TEST(DenseCatalog, PutReplacesAndLeasesKeep) {
  Modules modules;
  auto old = Put(modules.dense, Header("b"), {1, 2, 3, 4, 5, 6});
  auto fresh = Put(modules.dense, Header("b", 1, 2), {7, 8});
  ASSERT_TRUE(old.ok() && fresh.ok());
  EXPECT_EQ((*fresh)->version, 2u);
  EXPECT_EQ(modules.dense.Find("t", "b").value(), *fresh);
  EXPECT_THAT(Elements<float>((*old)->elements->Get()), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(modules.dense.List("t", "").size(), 1u);
  ASSERT_TRUE(modules.dense.Delete("t", "b").ok());
  EXPECT_TRUE(absl::IsNotFound(modules.dense.Delete("t", "b")));
}

Array Elements6(float first) { return test::MakeArray("dense", Floats{first, 2, 3, 4, 5, 6}); }

TEST(DenseCatalog, OneWriterAtATime) {
  Modules modules;
  EXPECT_TRUE(absl::IsNotFound(modules.dense.BeginWrite("t", "c").status()));
  ASSERT_TRUE(Put(modules.dense, Header("c"), {1, 2, 3, 4, 5, 6}).ok());
  {
    auto write = modules.dense.BeginWrite("t", "c");
    ASSERT_TRUE(write.ok());
    EXPECT_TRUE(absl::IsAborted(modules.dense.BeginWrite("t", "c").status()));
    DenseWrite moved = *std::move(write);
    ASSERT_TRUE(moved.Publish(std::make_shared<LazyArray>(Elements6(9))).ok());
    EXPECT_TRUE(absl::IsAborted(modules.dense.BeginWrite("t", "c").status())) << "still held";
  }
  auto held = modules.dense.Find("t", "c");
  ASSERT_TRUE(held.ok());
  EXPECT_EQ((*held)->version, 2u);
  EXPECT_EQ(Elements<float>((*held)->elements->Get())[0], 9);
  // One that publishes nothing leaves what is there, and the right to write.
  { auto abandoned = modules.dense.BeginWrite("t", "c"); }
  EXPECT_EQ(modules.dense.Find("t", "c").value(), *held);
  EXPECT_TRUE(modules.dense.BeginWrite("t", "c").ok());
}

TEST(DenseCatalog, AWriterFindsItReplacedOrDeleted) {
  Modules modules;
  ASSERT_TRUE(Put(modules.dense, Header("c"), {1, 2, 3, 4, 5, 6}).ok());
  {
    auto write = modules.dense.BeginWrite("t", "c");
    ASSERT_TRUE(write.ok());
    ASSERT_TRUE(Put(modules.dense, Header("c"), {6, 5, 4, 3, 2, 1}).ok());
    EXPECT_TRUE(absl::IsAborted(write->Publish(std::make_shared<LazyArray>(Elements6(9)))));
    EXPECT_EQ(Elements<float>(modules.dense.Find("t", "c").value()->elements->Get())[0], 6);
  }
  auto write = modules.dense.BeginWrite("t", "c");
  ASSERT_TRUE(write.ok());
  ASSERT_TRUE(modules.dense.Delete("t", "c").ok());
  EXPECT_TRUE(absl::IsNotFound(write->Publish(std::make_shared<LazyArray>(Elements6(9)))));
}

TEST(DenseCatalog, DurableOnesSurvive) {
  TemporaryDirectory directory;
  {
    Modules modules(directory.path());
    PutHeader header = Header("kept");
    header.durable = true;
    auto kept = Put(modules.dense, header, {1, 2, 3, 4, 5, 6});
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_TRUE((*kept)->durable);
    header.name = "written";
    ASSERT_TRUE(Put(modules.dense, header, {1, 2, 3, 4, 5, 6}).ok());
    header.name = "replaced";
    ASSERT_TRUE(Put(modules.dense, header, {1, 2, 3, 4, 5, 6}).ok());
    header.name = "deleted";
    ASSERT_TRUE(Put(modules.dense, header, {1, 2, 3, 4, 5, 6}).ok());
    ASSERT_TRUE(Put(modules.dense, Header("never"), {1, 2, 3, 4, 5, 6}).ok());

    auto write = modules.dense.BeginWrite("t", "written");
    ASSERT_TRUE(write.ok() && write->Publish(std::make_shared<LazyArray>(Elements6(9))).ok());
    EXPECT_FALSE(modules.dense.Find("t", "written").value()->durable);
    ASSERT_TRUE(Put(modules.dense, Header("replaced", 1, 1), {7}).ok());
    ASSERT_TRUE(modules.dense.Delete("t", "deleted").ok());
  }
  Modules modules(directory.path());
  auto kept = modules.dense.Find("t", "kept");
  ASSERT_TRUE(kept.ok());
  EXPECT_FALSE((*kept)->elements->resident());
  EXPECT_THAT(Elements<float>((*kept)->elements->Get()), ElementsAre(1, 2, 3, 4, 5, 6));
  // Results are not durable: what had been put is back.
  EXPECT_EQ(Elements<float>(modules.dense.Find("t", "written").value()->elements->Get())[0], 1);
  EXPECT_EQ(modules.dense.size(), 2);
}

}  // namespace
}  // namespace sparsed::engine
