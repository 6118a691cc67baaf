// UpdateValues: versions, leases, layouts, and who wins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "kernels/pipeline.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Floats = std::vector<float>;

UpdateHeader Header(const std::string& name, uint64_t if_version = 0) {
  return {"t", name, ElementType::kF32, /*durable=*/false, if_version};
}

absl::StatusOr<MatrixLease> Update(Catalog& catalog, const UpdateHeader& header,
                                   const Floats& values) {
  auto update = catalog.BeginUpdate(header);
  if (!update.ok()) return update.status();
  if (absl::Status fed = Feed(**update, 0, values); !fed.ok()) return fed;
  return (*update)->Finish(2);
}

/// A layout with rows reversed, so that its values are in another order.
std::shared_ptr<const Layout> Reversed(const test::Pattern& s) {
  std::vector<int32_t> order(s.rows);
  for (int64_t r = 0; r < s.rows; ++r) order[r] = static_cast<int32_t>(s.rows - 1 - r);
  auto layout = std::make_shared<Layout>(test::PermutedLayout(s, order));
  layout->pipeline = "reversed";
  return layout;
}

TEST(UpdateValues, MakesANewVersionAndKeepsTheOld) {
  Modules modules;
  const test::Pattern s = test::Uniform(50, 60, 7, 1);
  auto old = SendMatrix(modules.catalog, "m", s, 1);
  ASSERT_TRUE(old.ok());
  auto fresh = Update(modules.catalog, Header("m"), FloatsOf(s, 2));
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_EQ((*fresh)->version(), 2u);
  EXPECT_EQ((*fresh)->pattern(), (*old)->pattern());
  EXPECT_EQ((*fresh)->created_unix_ns(), (*old)->created_unix_ns());
  EXPECT_EQ(modules.catalog.Find("t", "m").value(), *fresh);
  EXPECT_EQ(Elements<float>((*fresh)->Values()), FloatsOf(s, 2));
  EXPECT_EQ(Elements<float>((*old)->Values()), FloatsOf(s, 1));
}

TEST(UpdateValues, SpeaksTheCallersOrder) {
  Modules modules;
  UploadHeader header = HeaderOf("m", test::FromCoordinates(1, 3, {{0, 0}, {0, 1}, {0, 2}}));
  header.sort = true;
  auto matrix = Send(modules.catalog, header, std::vector<int64_t>{0, 3},
                     std::vector<int32_t>{2, 0, 1}, Floats{20, 0, 10});
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  auto fresh = Update(modules.catalog, Header("m"), {22, 1, 11});
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_THAT(Elements<float>((*fresh)->Values()), ElementsAre(1, 11, 22));
  EXPECT_EQ((*fresh)->caller_order(), (*matrix)->caller_order());
}

TEST(UpdateValues, Of16Bits) {
  Modules modules;
  const test::Pattern s = test::FromCoordinates(2, 3, {{0, 0}, {0, 1}, {1, 2}});
  UploadHeader header = HeaderOf("m", s);
  header.type = ElementType::kBF16;
  header.sort = true;
  using Halves = std::vector<BFloat16>;
  auto matrix = Send(modules.catalog, header, s.row_offsets, std::vector<int32_t>{1, 0, 2},
                     Halves{BFloat16(10), BFloat16(0), BFloat16(20)});
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  const auto layout = Reversed(s);
  (*matrix)->pattern()->AddLayout(layout, 0.5);
  UpdateHeader update = Header("m");
  EXPECT_THAT(std::string(modules.catalog.BeginUpdate(update).status().message()),
              HasSubstr("values are f32, but matrix 'm' is bf16"));
  update.type = ElementType::kBF16;
  auto begun = modules.catalog.BeginUpdate(update);
  ASSERT_TRUE(begun.ok()) << begun.status();
  ASSERT_TRUE(Feed(**begun, 0, Halves{BFloat16(11), BFloat16(1), BFloat16(21)}).ok());
  auto fresh = (*begun)->Finish(1);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  const auto wide = [](const absl::StatusOr<Array>& array) {
    Floats values;
    for (const BFloat16 half : Elements<BFloat16>(array))
      values.push_back(static_cast<float>(half));
    return values;
  };
  EXPECT_THAT(wide((*fresh)->Values()), ElementsAre(1, 11, 21));
  EXPECT_EQ((*fresh)->LayoutValueBytes("reversed"), 3 * 2);
  EXPECT_THAT(wide((*fresh)->ValuesIn(*layout, HeapMemory(), 1)), ElementsAre(21, 1, 11));
}

TEST(UpdateValues, RefreshesEveryLayoutBeforeItIsPublished) {
  Modules modules;
  const test::Pattern s = test::Uniform(50, 60, 7, 1);
  auto old = SendMatrix(modules.catalog, "m", s, 1);
  ASSERT_TRUE(old.ok());
  const auto layout = Reversed(s);
  (*old)->pattern()->AddLayout(layout, 0.5);
  auto fresh = Update(modules.catalog, Header("m"), FloatsOf(s, 2));
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ((*fresh)->LayoutValueBytes("reversed"), s.nnz() * 4);
  Floats expected(s.nnz());
  PlaceValues(*layout, ElementType::kF32, FloatsOf(s, 2).data(), expected.data(), 1);
  const int64_t used = modules.budget.used();
  EXPECT_EQ(
      Elements<float>((*fresh)->ValuesIn(*layout, modules.budget.Source(MemoryUse::kLayouts), 1)),
      expected);
  EXPECT_EQ(modules.budget.used(), used) << "they had been placed";
  // So are those of another matrix that shares the pattern, when it is uploaded.
  auto other = SendMatrix(modules.catalog, "other", s, 3);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ((*other)->LayoutValueBytes("reversed"), s.nnz() * 4);
}

TEST(UpdateValues, ARebuiltLayoutGetsItsOwnOrder) {
  Modules modules;
  const test::Pattern s = test::Uniform(50, 60, 7, 1);
  auto matrix = SendMatrix(modules.catalog, "m", s, 1);
  ASSERT_TRUE(matrix.ok());
  MemorySource& memory = modules.budget.Source(MemoryUse::kLayouts);
  Pattern& pattern = *(*matrix)->pattern();
  const auto first = Reversed(s);
  pattern.AddLayout(first, 0);
  ASSERT_TRUE((*matrix)->ValuesIn(*first, memory, 1).ok());
  auto second = std::make_shared<Layout>(test::PermutedLayout(s, test::RandomOrder(s.rows, 9)));
  second->pipeline = "reversed";
  pattern.DropLayout("reversed");
  pattern.AddLayout(second, 0);
  Floats expected(s.nnz());
  PlaceValues(*second, ElementType::kF32, FloatsOf(s, 1).data(), expected.data(), 1);
  EXPECT_EQ(Elements<float>((*matrix)->ValuesIn(*second, memory, 1)), expected);
  // A request that still holds the first gets the first's order.
  PlaceValues(*first, ElementType::kF32, FloatsOf(s, 1).data(), expected.data(), 1);
  EXPECT_EQ(Elements<float>((*matrix)->ValuesIn(*first, memory, 1)), expected);
}

TEST(UpdateValues, ARebuiltLayoutMayBeWhereTheFirstWas) {
  Modules modules;
  const test::Pattern s = test::Uniform(50, 60, 7, 1);
  auto matrix = SendMatrix(modules.catalog, "m", s, 1);
  ASSERT_TRUE(matrix.ok());
  MemorySource& memory = modules.budget.Source(MemoryUse::kLayouts);
  Pattern& pattern = *(*matrix)->pattern();
  alignas(Layout) std::byte room[sizeof(Layout)];
  for (const uint64_t seed : {8, 9}) {
    const std::shared_ptr<Layout> layout(
        new (room) Layout(test::PermutedLayout(s, test::RandomOrder(s.rows, seed))),
        [](Layout* gone) { std::destroy_at(gone); });
    layout->pipeline = "reversed";
    pattern.AddLayout(layout, 0);
    Floats expected(s.nnz());
    PlaceValues(*layout, ElementType::kF32, FloatsOf(s, 1).data(), expected.data(), 1);
    EXPECT_EQ(Elements<float>((*matrix)->ValuesIn(*layout, memory, 1)), expected);
    pattern.DropLayout("reversed");
  }
}

TEST(UpdateValues, DroppedLayoutsKeepNoValues) {
  Modules modules;
  const test::Pattern s = test::Uniform(50, 60, 7, 1);
  auto matrix = SendMatrix(modules.catalog, "m", s, 1);
  ASSERT_TRUE(matrix.ok());
  MemorySource& memory = modules.budget.Source(MemoryUse::kLayouts);
  const auto layout = Reversed(s);
  (*matrix)->pattern()->AddLayout(layout, 0);
  ASSERT_TRUE((*matrix)->ValuesIn(*layout, memory, 1).ok());
  EXPECT_GT(modules.budget.used(MemoryUse::kLayouts), 0);
  (*matrix)->pattern()->DropLayout("reversed");
  (*matrix)->DropLayout("reversed");
  EXPECT_EQ(modules.budget.used(MemoryUse::kLayouts), 0);
  // A request that began before still gets them, for itself.
  ASSERT_TRUE((*matrix)->ValuesIn(*layout, memory, 1).ok());
  EXPECT_EQ(modules.budget.used(MemoryUse::kLayouts), 0);
}

TEST(UpdateValues, NothingIsDurableInMemory) {
  Modules modules;
  const test::Pattern s = test::Uniform(50, 60, 7, 1);
  ASSERT_TRUE(SendMatrix(modules.catalog, "m", s, 1).ok());
  UpdateHeader header;
  header.tenant = "t";
  header.name = "m";
  header.durable = true;
  const absl::Status refused = modules.catalog.BeginUpdate(header).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("--data-dir"));
}

TEST(UpdateValues, StoppedBeforeItIsPublished) {
  TemporaryDirectory directory;
  Modules modules(directory.path());
  const test::Pattern s = test::Uniform(50, 60, 7, 1);
  ASSERT_TRUE(SendMatrix(modules.catalog, "m", s, 1).ok());
  UpdateHeader header;
  header.tenant = "t";
  header.name = "m";
  header.durable = true;
  auto update = modules.catalog.BeginUpdate(header);
  ASSERT_TRUE(update.ok()) << update.status();
  ASSERT_TRUE(Feed(**update, 0, FloatsOf(s, 2)).ok());
  const std::atomic<bool> stop = true;
  EXPECT_TRUE(absl::IsCancelled((*update)->Finish(1, &stop).status()));
  EXPECT_EQ((*modules.catalog.Find("t", "m"))->version(), 1u);
  EXPECT_EQ(modules.store->Load()->matrices[0].version, 1u);
}

TEST(UpdateValues, Refusals) {
  Modules modules;
  const test::Pattern s = test::Uniform(50, 60, 7, 1);
  ASSERT_TRUE(SendMatrix(modules.catalog, "m", s, 1).ok());
  EXPECT_TRUE(absl::IsNotFound(Update(modules.catalog, Header("x"), {}).status()));
  UpdateHeader wide = Header("m");
  wide.type = ElementType::kF64;
  EXPECT_THAT(std::string(modules.catalog.BeginUpdate(wide).status().message()),
              HasSubstr("values are f64, but matrix 'm' is f32"));
  Floats values = FloatsOf(s, 2);
  values.push_back(1);
  EXPECT_TRUE(absl::IsInvalidArgument(Update(modules.catalog, Header("m"), values).status()));
  values.resize(s.nnz() - 1);
  EXPECT_TRUE(absl::IsInvalidArgument(Update(modules.catalog, Header("m"), values).status()));
  auto update = modules.catalog.BeginUpdate(Header("m"));
  ASSERT_TRUE(update.ok());
  EXPECT_TRUE(absl::IsInvalidArgument((*update)->Claim(1, 0, 4).status()));
  EXPECT_EQ(modules.catalog.Find("t", "m").value()->version(), 1u);
}

TEST(UpdateValues, OnlyTheVersionThatWasMeant) {
  Modules modules;
  const test::Pattern s = test::Uniform(50, 60, 7, 1);
  ASSERT_TRUE(SendMatrix(modules.catalog, "m", s, 1).ok());
  const absl::Status early = modules.catalog.BeginUpdate(Header("m", 2)).status();
  EXPECT_TRUE(absl::IsAborted(early));
  EXPECT_THAT(std::string(early.message()), HasSubstr("is at version 1, not 2"));
  auto slow = modules.catalog.BeginUpdate(Header("m", 1));
  ASSERT_TRUE(slow.ok());
  ASSERT_TRUE(Feed(**slow, 0, FloatsOf(s, 3)).ok());
  ASSERT_TRUE(Update(modules.catalog, Header("m", 1), FloatsOf(s, 2)).ok());
  EXPECT_TRUE(absl::IsAborted((*slow)->Finish(1).status()));
  EXPECT_EQ(modules.catalog.Find("t", "m").value()->version(), 2u);
}

TEST(UpdateValues, OfAMatrixThatIsReplacedOrDeletedMeanwhile) {
  Modules modules;
  const test::Pattern s = test::Uniform(50, 60, 7, 1);
  ASSERT_TRUE(SendMatrix(modules.catalog, "m", s, 1).ok());
  auto first = modules.catalog.BeginUpdate(Header("m"));
  auto second = modules.catalog.BeginUpdate(Header("m"));
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(Feed(**first, 0, FloatsOf(s, 2)).ok() && Feed(**second, 0, FloatsOf(s, 2)).ok());
  const test::Pattern other = test::Uniform(50, 60, 7, 2);
  UploadHeader header = HeaderOf("m", other);
  header.replace = true;
  ASSERT_TRUE(
      Send(modules.catalog, header, other.row_offsets, other.column_indices, FloatsOf(other)).ok());
  EXPECT_TRUE(absl::IsAborted((*first)->Finish(1).status()));
  ASSERT_TRUE(modules.catalog.Delete("t", "m").ok());
  EXPECT_TRUE(absl::IsNotFound((*second)->Finish(1).status()));
}

TEST(UpdateValues, ManyAtOnceLoseNoVersion) {
  Modules modules;
  const test::Pattern s = test::Uniform(50, 60, 7, 1);
  ASSERT_TRUE(SendMatrix(modules.catalog, "m", s, 0).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        EXPECT_TRUE(Update(modules.catalog, Header("m"), FloatsOf(s, 100 * t + i)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(modules.catalog.Find("t", "m").value()->version(), 101u);
}

TEST(UpdateValues, WithoutMemoryForALayoutNothingChanges) {
  const test::Pattern s = test::Uniform(500, 600, 50, 1);
  Modules modules("", /*memory=*/450'000);
  auto matrix = SendMatrix(modules.catalog, "m", s, 1);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  (*matrix)->pattern()->AddLayout(Reversed(s), 0);
  auto hog = AllocateArray(modules.budget.Source(MemoryUse::kBuffers), "hog", ElementType::kF32,
                           (450'000 - modules.budget.used() - 150'000) / 4);
  ASSERT_TRUE(hog.ok()) << hog.status();
  const absl::Status status = Update(modules.catalog, Header("m"), FloatsOf(s, 2)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(modules.catalog.Find("t", "m").value(), *matrix);
}

}  // namespace
}  // namespace sparsed::engine
