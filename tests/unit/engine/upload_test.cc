// Uploads: what is taken, what is refused and in which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <numeric>
#include <random>
#include <type_traits>

#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Offsets = std::vector<int64_t>;
using Columns = std::vector<int32_t>;
using Floats = std::vector<float>;

/// 3 x 4: row 0 has columns 1 and 3, row 1 none, row 2 column 0.
UploadHeader Small(const std::string& name = "m") {
  UploadHeader header;
  header.tenant = "t";
  header.name = name;
  header.rows = 3;
  header.cols = 4;
  header.nnz = 3;
  return header;
}
const Offsets kSmallOffsets = {0, 2, 2, 3};
const Columns kSmallColumns = {1, 3, 0};
const Floats kSmallValues = {1.5f, -2, 8};

absl::StatusOr<MatrixLease> SendSmall(Catalog& catalog, const UploadHeader& header) {
  return Send(catalog, header, kSmallOffsets, kSmallColumns, kSmallValues);
}

TEST(Upload, KeepsWhatWasSent) {
  Modules modules;
  auto matrix = SendSmall(modules.catalog, Small());
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ((*matrix)->version(), 1u);
  EXPECT_EQ((*matrix)->caller_order(), nullptr);
  EXPECT_FALSE((*matrix)->durable());
  EXPECT_EQ(Elements<float>((*matrix)->Values()), kSmallValues);
  const auto csr = (*matrix)->pattern()->Csr();
  ASSERT_TRUE(csr.ok());
  EXPECT_THAT(ViewCsr(**csr).row_offsets, ::testing::ElementsAreArray(kSmallOffsets));
  EXPECT_THAT(ViewCsr(**csr).column_indices, ::testing::ElementsAreArray(kSmallColumns));
  EXPECT_EQ(modules.catalog.Find("t", "m").value(), *matrix);
  EXPECT_EQ((*matrix)->pattern()->hash().size(), 32u);
}

TEST(Upload, WidensRowOffsets) {
  Modules modules;
  UploadHeader header = Small();
  header.row_offsets_type = ElementType::kI32;
  auto matrix =
      Send(modules.catalog, header, std::vector<int32_t>{0, 2, 2, 3}, kSmallColumns, kSmallValues);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_THAT(ViewCsr(**(*matrix)->pattern()->Csr()).row_offsets, ElementsAre(0, 2, 2, 3));
  auto same = SendSmall(modules.catalog, Small("wide"));
  ASSERT_TRUE(same.ok());
  EXPECT_EQ((*same)->pattern(), (*matrix)->pattern());
}

TEST(Upload, OddSizes) {
  Modules modules;
  const std::vector<test::Pattern> patterns = {
      test::FromCoordinates(0, 0, {}),       test::FromCoordinates(0, 5, {}),
      test::FromCoordinates(5, 0, {}),       test::FromCoordinates(7, 9, {}),
      test::FromCoordinates(1, 1, {{0, 0}}), test::Uniform(1, 1000, 400, 3),
      test::Uniform(3000, 1, 1, 3),          test::Band(257, 3)};
  for (size_t i = 0; i < patterns.size(); ++i) {
    auto matrix = SendMatrix(modules.catalog, std::to_string(i), patterns[i]);
    ASSERT_TRUE(matrix.ok()) << i << ": " << matrix.status();
    EXPECT_EQ(Elements<float>((*matrix)->Values()), FloatsOf(patterns[i]));
  }
  EXPECT_EQ(modules.catalog.patterns(), static_cast<int64_t>(patterns.size()));
}

TEST(Upload, ValuesAreOnes) {
  Modules modules;
  UploadHeader header = Small();
  header.values_are_ones = true;
  header.type = ElementType::kF64;
  auto upload = modules.catalog.BeginUpload(header);
  ASSERT_TRUE(upload.ok());
  EXPECT_THAT(std::string((*upload)->Claim(2, 0, 8).status().message()), HasSubstr("not wanted"));
  auto matrix = Send(modules.catalog, header, kSmallOffsets, kSmallColumns, Floats{});
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_THAT(Elements<double>((*matrix)->Values()), ElementsAre(1, 1, 1));
}

TEST(Upload, KeepsValuesOf16Bits) {
  Modules modules;
  const auto check = [&]<typename T>(T) {
    UploadHeader header = Small(std::string(Name(ElementTypeOf<T>())));
    header.type = ElementTypeOf<T>();
    const std::vector<T> values = {T(1.5F), T(-2.0F), T(0.1F)};
    auto matrix = Send(modules.catalog, header, kSmallOffsets, kSmallColumns, values);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    const auto kept = Elements<T>((*matrix)->Values());
    ASSERT_EQ(kept.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(kept[i].bits, values[i].bits);

    header.name += "-ones";
    header.values_are_ones = true;
    matrix = Send(modules.catalog, header, kSmallOffsets, kSmallColumns, Floats{});
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    for (const T one : Elements<T>((*matrix)->Values())) EXPECT_EQ(static_cast<float>(one), 1);

    // In f32 all of them count; in 16 bits 2048 + 1 is 2048. 2051 is halfway: to even.
    header = Small(header.name + "-summed");
    header.type = ElementTypeOf<T>();
    header.rows = 1;
    header.cols = header.nnz = 5;
    header.sum_duplicates = true;
    const std::vector<T> terms = {T(7.0F), T(2048.0F), T(1.0F), T(1.0F), T(1.0F)};
    matrix = Send(modules.catalog, header, Offsets{0, 5}, Columns{3, 0, 0, 0, 0}, terms);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    const auto sums = Elements<T>((*matrix)->Values());
    ASSERT_EQ(sums.size(), 2u);
    EXPECT_EQ(static_cast<float>(sums[0]), (std::is_same_v<T, Float16> ? 2052 : 2048));
    EXPECT_EQ(static_cast<float>(sums[1]), 7);
  };
  check(Float16());
  check(BFloat16());
}

struct BadHeader {
  const char* what;
  void (*spoil)(UploadHeader&);
  const char* sentence;
};

TEST(Upload, RefusesBadHeaders) {
  const BadHeader cases[] = {
      {"no name", [](UploadHeader& h) { h.name = ""; }, "0 bytes, expected 1 to 255"},
      {"long name", [](UploadHeader& h) { h.name.assign(256, 'a'); }, "256 bytes"},
      {"space in name", [](UploadHeader& h) { h.name = "a b"; }, "byte 0x20 at position 1"},
      {"rows", [](UploadHeader& h) { h.rows = -1; }, "rows = -1 is out of range"},
      {"many rows", [](UploadHeader& h) { h.rows = int64_t{1} << 31; }, "[0, 2147483646]"},
      {"cols", [](UploadHeader& h) { h.cols = std::numeric_limits<int64_t>::max(); }, "cols = "},
      {"nnz", [](UploadHeader& h) { h.nnz = -5; },
       "nnz = -5 is out of range [0, rows * cols = 12]"},
      {"too dense", [](UploadHeader& h) { h.nnz = 13; }, "nnz = 13"},
      {"integer values", [](UploadHeader& h) { h.type = ElementType::kI32; },
       "expected f32, f64, f16 or bf16"},
      {"unknown type", [](UploadHeader& h) { h.type = ElementType(0); }, "expected f32, f64"},
      {"float offsets", [](UploadHeader& h) { h.row_offsets_type = ElementType::kF32; },
       "expected i32 or i64"},
      {"unknown offsets", [](UploadHeader& h) { h.row_offsets_type = ElementType(9); },
       "expected i32 or i64"},
      {"narrow offsets",
       [](UploadHeader& h) {
         h.rows = h.cols = 1 << 20;
         h.nnz = int64_t{1} << 32;
         h.row_offsets_type = ElementType::kI32;
       },
       "do not fit i32"},
  };
  Modules modules;
  for (const BadHeader& bad : cases) {
    UploadHeader header = Small();
    bad.spoil(header);
    const absl::Status status = modules.catalog.BeginUpload(header).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad.what << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.sentence)) << bad.what;
  }
  EXPECT_EQ(modules.budget.used(), 0);
}

TEST(Upload, RefusesAtOnceWhatDoesNotFit) {
  Modules modules("", /*memory=*/1 << 20);
  UploadHeader header = Small();
  header.rows = header.cols = kMaxDimension;
  header.nnz = kMaxDimension * kMaxDimension;
  EXPECT_FALSE(modules.catalog.BeginUpload(header).ok());
  header.rows = header.cols = header.nnz = 1 << 20;
  EXPECT_TRUE(absl::IsResourceExhausted(modules.catalog.BeginUpload(header).status()));
  EXPECT_EQ(modules.budget.used(), 0);
}

struct BadArrays {
  const char* what;
  Offsets row_offsets;
  Columns column_indices;
  const char* sentence;
};

TEST(Upload, RefusesBadArrays) {
  const BadArrays cases[] = {
      {"first offset", {1, 2, 2, 3}, kSmallColumns, "row_offsets[0] = 1, expected 0"},
      {"decreasing", {0, 3, 2, 3}, kSmallColumns, "offsets must not decrease"},
      {"negative", {0, -1, 2, 3}, kSmallColumns, "row_offsets[1] = -1"},
      {"last offset", {0, 2, 2, 2}, kSmallColumns, "row_offsets[3] = 2, expected 3"},
      {"huge offset", {0, int64_t{1} << 60, 2, 3}, kSmallColumns, "must not decrease"},
      {"column", kSmallOffsets, {1, 4, 0}, "column_indices[1] = 4 in row 0 is out of range [0, 4)"},
      {"negative column", kSmallOffsets, {1, 3, -1}, "column_indices[2] = -1 in row 2"},
      {"unsorted", kSmallOffsets, {3, 1, 0}, "columns must ascend"},
      {"duplicate", kSmallOffsets, {3, 3, 0}, "duplicate"},
  };
  Modules modules;
  for (const BadArrays& bad : cases) {
    for (const bool sort : {false, true}) {
      if (sort && bad.what == std::string("unsorted")) continue;
      UploadHeader header = Small();
      header.sort = sort;
      const absl::Status status =
          Send(modules.catalog, header, bad.row_offsets, bad.column_indices, kSmallValues).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad.what << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(bad.sentence)) << bad.what;
    }
  }
  EXPECT_FALSE(modules.catalog.Find("t", "m").ok());
  EXPECT_EQ(modules.catalog.patterns(), 0);
  EXPECT_EQ(modules.budget.used(), 0);
}

TEST(Upload, RefusesGapsOverlapsAndStrangers) {
  Modules modules;
  auto upload = modules.catalog.BeginUpload(Small());
  ASSERT_TRUE(upload.ok());
  EXPECT_TRUE(absl::IsInvalidArgument((*upload)->Claim(3, 0, 4).status()));
  EXPECT_TRUE(absl::IsInvalidArgument((*upload)->Claim(0, 24, 16).status()));
  EXPECT_TRUE(absl::IsInvalidArgument((*upload)->Claim(1, ~uint64_t{0}, 8).status()));
  ASSERT_TRUE((*upload)->Claim(1, 0, 8).ok());
  EXPECT_THAT(std::string((*upload)->Claim(1, 4, 8).status().message()), HasSubstr("overlaps"));
  ASSERT_TRUE((*upload)->Claim(0, 0, 32).ok());
  ASSERT_TRUE((*upload)->Claim(2, 0, 12).ok());
  const absl::Status status = (*upload)->Finish(1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("column_indices"));
  upload->reset();
  EXPECT_EQ(modules.budget.used(), 0);
}

TEST(Upload, SortKeepsTheCallersOrder) {
  const test::Pattern s = test::Uniform(300, 500, 20, 7);
  Floats values = FloatsOf(s);
  // Shuffle each row; order[p] is where canonical p went.
  Columns columns(s.nnz());
  Floats sent(s.nnz());
  std::vector<int64_t> order(s.nnz());
  std::mt19937_64 random(5);
  for (int64_t row = 0; row < s.rows; ++row) {
    std::vector<int64_t> to(s.row_offsets[row + 1] - s.row_offsets[row]);
    std::iota(to.begin(), to.end(), s.row_offsets[row]);
    std::ranges::shuffle(to, random);
    for (size_t i = 0; i < to.size(); ++i) {
      const int64_t p = s.row_offsets[row] + static_cast<int64_t>(i);
      order[p] = to[i];
      columns[to[i]] = s.column_indices[p];
      sent[to[i]] = values[p];
    }
  }
  Modules modules;
  EXPECT_FALSE(Send(modules.catalog, HeaderOf("s", s), s.row_offsets, columns, sent).ok());
  UploadHeader header = HeaderOf("s", s);
  header.sort = true;
  auto matrix = Send(modules.catalog, header, s.row_offsets, columns, sent);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(Elements<float>((*matrix)->Values()), values);
  ASSERT_NE((*matrix)->caller_order(), nullptr);
  EXPECT_EQ(Elements<int64_t>((*matrix)->caller_order()->Get()), order);

  // The canonical pattern is shared with an upload that needed no sorting.
  auto canonical = SendMatrix(modules.catalog, "canonical", s);
  ASSERT_TRUE(canonical.ok());
  EXPECT_EQ((*canonical)->pattern(), (*matrix)->pattern());
}

TEST(Upload, SortingWhatIsSortedCostsNothing) {
  Modules modules;
  const test::Pattern s = test::Band(1000, 4);
  UploadHeader header = HeaderOf("s", s);
  header.sort = header.sum_duplicates = true;
  auto matrix = Send(modules.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s));
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ((*matrix)->caller_order(), nullptr);
}

TEST(Upload, SumsDuplicates) {
  Modules modules;
  UploadHeader header = Small();
  header.nnz = 6;
  header.sort = true;
  const Offsets row_offsets = {0, 4, 4, 6};
  const Columns columns = {3, 1, 3, 3, 0, 0};
  const Floats values = {1, 10, 2, 4, 5, -5};
  const absl::Status refused = Send(modules.catalog, header, row_offsets, columns, values).status();
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("column_indices[2] = 3 in row 0 is a duplicate of column_indices[0]"));
  header.sum_duplicates = true;
  auto matrix = Send(modules.catalog, header, row_offsets, columns, values);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ((*matrix)->pattern()->nnz(), 3);
  EXPECT_EQ((*matrix)->caller_order(), nullptr);
  EXPECT_THAT(Elements<float>((*matrix)->Values()), ElementsAre(10, 7, 0));
  auto same = SendSmall(modules.catalog, Small("same"));
  ASSERT_TRUE(same.ok());
  EXPECT_EQ((*same)->pattern(), (*matrix)->pattern());

  // Unsorted, but no position twice: the caller's order is kept as with sort alone.
  header = Small("reversed");
  header.sum_duplicates = true;
  auto reversed = Send(modules.catalog, header, kSmallOffsets, Columns{3, 1, 0}, Floats{1, 2, 3});
  ASSERT_TRUE(reversed.ok()) << reversed.status();
  ASSERT_NE((*reversed)->caller_order(), nullptr);
  EXPECT_THAT(Elements<int64_t>((*reversed)->caller_order()->Get()), ElementsAre(1, 0, 2));
}

TEST(Upload, SortWithoutMemoryIsRefused) {
  const test::Pattern s = test::Uniform(1000, 1000, 20, 7);
  Columns columns = s.column_indices;
  std::reverse(columns.begin(), columns.begin() + 20);
  Modules modules("", /*memory=*/220'000);
  UploadHeader header = HeaderOf("s", s);
  header.sort = true;
  const absl::Status status =
      Send(modules.catalog, header, s.row_offsets, columns, FloatsOf(s)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(modules.budget.used(), 0);
}

TEST(Upload, SharesPatternsNeverValues) {
  Modules modules;
  const test::Pattern s = test::Uniform(100, 100, 5, 3);
  const test::Pattern other = test::Uniform(100, 100, 5, 4);
  auto a = SendMatrix(modules.catalog, "a", s, 1);
  auto b = SendMatrix(modules.catalog, "b", s, 2);
  auto c = SendMatrix(modules.catalog, "c", other, 1);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_EQ((*a)->pattern(), (*b)->pattern());
  EXPECT_NE((*a)->pattern(), (*c)->pattern());
  EXPECT_NE(Elements<float>((*a)->Values()), Elements<float>((*b)->Values()));
  EXPECT_EQ(modules.catalog.patterns(), 2);
  EXPECT_EQ(modules.catalog.MatricesOf(*(*a)->pattern()).size(), 2u);
}

TEST(Upload, KnownPatternIsNotSentTwice) {
  Modules modules;
  auto a = SendSmall(modules.catalog, Small("a"));
  ASSERT_TRUE(a.ok());
  UploadHeader header = Small("b");
  header.pattern_hash = (*a)->pattern()->hash();
  auto upload = modules.catalog.BeginUpload(header);
  ASSERT_TRUE(upload.ok());
  EXPECT_TRUE((*upload)->pattern_known());
  EXPECT_THAT(std::string((*upload)->Claim(1, 0, 4).status().message()),
              HasSubstr("the pattern is known"));
  ASSERT_TRUE(Feed(**upload, 2, Floats{4, 5, 6}).ok());
  auto b = (*upload)->Finish(1);
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ((*b)->pattern(), (*a)->pattern());
  EXPECT_THAT(Elements<float>((*b)->Values()), ElementsAre(4, 5, 6));
}

TEST(Upload, PatternOfAnotherTenantIsNotKnown) {
  Modules modules;
  auto a = SendSmall(modules.catalog, Small("a"));
  ASSERT_TRUE(a.ok());
  UploadHeader header = Small("b");
  header.tenant = "somebody else";
  header.pattern_hash = (*a)->pattern()->hash();
  auto upload = modules.catalog.BeginUpload(header);
  ASSERT_TRUE(upload.ok());
  EXPECT_FALSE((*upload)->pattern_known());
  EXPECT_TRUE(absl::IsNotFound((*upload)->Finish(1).status()));
  // With its arrays it is taken, and shares nothing.
  auto b = SendSmall(modules.catalog, header);
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_NE((*b)->pattern(), (*a)->pattern());
  EXPECT_TRUE(absl::IsNotFound(modules.catalog.Find("t", "b").status()));
}

TEST(Upload, KnownPatternMustFitTheHeader) {
  Modules modules;
  auto a = SendSmall(modules.catalog, Small("a"));
  ASSERT_TRUE(a.ok());
  UploadHeader header = Small("b");
  header.pattern_hash = (*a)->pattern()->hash();
  header.nnz = 2;
  EXPECT_THAT(std::string(modules.catalog.BeginUpload(header).status().message()),
              HasSubstr("is 3 x 4 with 3 nonzeros, the header says 3 x 4 with 2"));
  // Whoever asks for sorting has an order that only its arrays tell.
  header.nnz = 3;
  header.sort = true;
  EXPECT_FALSE(modules.catalog.BeginUpload(header).value()->pattern_known());
}

TEST(Upload, KnownPatternThatIsDeletedMeanwhile) {
  for (const bool durable : {false, true}) {
    TemporaryDirectory directory;
    Modules modules(durable ? directory.path() : "");
    auto a = SendSmall(modules.catalog, Small("a"));
    ASSERT_TRUE(a.ok());
    UploadHeader header = Small("b");
    header.pattern_hash = (*a)->pattern()->hash();
    auto upload = modules.catalog.BeginUpload(header);
    ASSERT_TRUE(upload.ok() && (*upload)->pattern_known());
    ASSERT_TRUE(modules.catalog.Delete("t", "a").ok());
    ASSERT_TRUE(Feed(**upload, 2, Floats{4, 5, 6}).ok());
    // The upload holds the pattern: it is stored anew.
    auto b = (*upload)->Finish(1);
    ASSERT_TRUE(b.ok()) << b.status();
    EXPECT_EQ(modules.catalog.patterns(), 1);
    EXPECT_EQ(modules.catalog.MatricesOf(*(*b)->pattern()).size(), 1u);
  }
}

TEST(Upload, NamesAreTakenOnce) {
  Modules modules;
  auto first = modules.catalog.BeginUpload(Small());
  auto second = modules.catalog.BeginUpload(Small());
  ASSERT_TRUE(first.ok() && second.ok());
  for (auto* upload : {&*first, &*second}) {
    ASSERT_TRUE(Feed(**upload, 0, kSmallOffsets).ok());
    ASSERT_TRUE(Feed(**upload, 1, kSmallColumns).ok());
    ASSERT_TRUE(Feed(**upload, 2, kSmallValues).ok());
  }
  EXPECT_TRUE((*second)->Finish(1).ok());
  EXPECT_TRUE(absl::IsAlreadyExists((*first)->Finish(1).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(modules.catalog.BeginUpload(Small()).status()));
}

TEST(Upload, ReplaceMakesANewVersion) {
  Modules modules;
  std::vector<std::shared_ptr<Pattern>> gone;
  modules.catalog.on_pattern_gone = [&](const auto& pattern) { gone.push_back(pattern); };
  auto old = SendSmall(modules.catalog, Small());
  ASSERT_TRUE(old.ok());
  const test::Pattern s = test::Band(10, 1);
  UploadHeader header = HeaderOf("m", s);
  header.replace = true;
  auto fresh = Send(modules.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s));
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_EQ((*fresh)->version(), 2u);
  EXPECT_THAT(gone, ElementsAre((*old)->pattern()));
  EXPECT_EQ(modules.catalog.patterns(), 1);
  // A lease keeps what it holds.
  EXPECT_EQ(Elements<float>((*old)->Values()), kSmallValues);
}

TEST(Upload, StoppedBeforeItIsPublished) {
  TemporaryDirectory directory;
  Modules modules(directory.path());
  for (const bool sort : {false, true}) {
    UploadHeader header = Small();
    header.sort = sort;
    auto upload = modules.catalog.BeginUpload(header);
    ASSERT_TRUE(upload.ok()) << upload.status();
    ASSERT_TRUE(Feed(**upload, Upload::kRowOffsets, kSmallOffsets).ok());
    ASSERT_TRUE(Feed(**upload, Upload::kColumnIndices, kSmallColumns).ok());
    ASSERT_TRUE(Feed(**upload, Upload::kValues, kSmallValues).ok());
    const std::atomic<bool> stop = true;
    EXPECT_TRUE(absl::IsCancelled((*upload)->Finish(1, &stop).status()));
  }
  EXPECT_TRUE(absl::IsNotFound(modules.catalog.Find("t", "m").status()));
  EXPECT_EQ(modules.catalog.patterns(), 0);
  EXPECT_TRUE(modules.store->Load()->matrices.empty());
  EXPECT_EQ(modules.budget.used(), 0);
}

TEST(Upload, ManyAtOnceOfOneName) {
  TemporaryDirectory directory;
  Modules modules(directory.path());
  const test::Pattern s = test::Uniform(200, 200, 5, 3);
  std::atomic<int> taken = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      auto matrix = SendMatrix(modules.catalog, "same", s, i);
      taken += matrix.ok();
      refused += absl::IsAlreadyExists(matrix.status());
      EXPECT_TRUE(SendMatrix(modules.catalog, "own" + std::to_string(i), s, i).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(refused, 7);
  EXPECT_EQ(modules.catalog.All().size(), 9u);
  EXPECT_EQ(modules.catalog.patterns(), 1);
}

TEST(Catalog, ListsByTenantAndPrefix) {
  Modules modules;
  for (const char* name : {"b/1", "a/2", "a/1", "a"}) {
    ASSERT_TRUE(SendSmall(modules.catalog, Small(name)).ok());
  }
  UploadHeader other = Small("a/3");
  other.tenant = "u";
  ASSERT_TRUE(SendSmall(modules.catalog, other).ok());
  std::vector<std::string> names;
  for (const MatrixLease& matrix : modules.catalog.List("t", "a/")) names.push_back(matrix->name());
  EXPECT_THAT(names, ElementsAre("a/1", "a/2"));
  EXPECT_EQ(modules.catalog.List("t", "").size(), 4u);
  EXPECT_EQ(modules.catalog.List("nobody", "").size(), 0u);
}

TEST(Catalog, TinyMatricesAreBounded) {
  Modules modules("", /*memory=*/100'000);
  int held = 0;
  absl::Status status;
  for (; held < 1000; ++held) {
    status = SendSmall(modules.catalog, Small(std::to_string(held))).status();
    if (!status.ok()) break;
  }
  EXPECT_EQ(held, 12) << "with 8 KiB each";
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the matrix needs 8192 bytes"));
  ASSERT_TRUE(modules.catalog.Delete("t", "0").ok());
  EXPECT_TRUE(SendSmall(modules.catalog, Small("again")).ok());
}

TEST(Catalog, DeleteForgetsTheNameNotTheLease) {
  Modules modules;
  int gone = 0;
  modules.catalog.on_pattern_gone = [&](const auto&) { ++gone; };
  EXPECT_TRUE(absl::IsNotFound(modules.catalog.Delete("t", "m")));
  auto a = SendSmall(modules.catalog, Small("a"));
  ASSERT_TRUE(a.ok() && SendSmall(modules.catalog, Small("b")).ok());
  ASSERT_TRUE(modules.catalog.Delete("t", "a").ok());
  EXPECT_EQ(gone, 0);
  EXPECT_TRUE(absl::IsNotFound(modules.catalog.Find("t", "a").status()));
  EXPECT_EQ(Elements<float>((*a)->Values()), kSmallValues);
  ASSERT_TRUE(modules.catalog.Delete("t", "b").ok());
  EXPECT_EQ(gone, 1);
  EXPECT_EQ(modules.catalog.patterns(), 0);
  a = absl::CancelledError();
  EXPECT_EQ(modules.budget.used(), 0);
}

TEST(Catalog, InsertsArrays) {
  Modules modules;
  std::vector<ProblemSignature> expected;
  modules.catalog.on_published = [&](const MatrixLease&, const auto& signatures, const Requester&) {
    expected = signatures;
  };
  UploadHeader header = Small();
  header.expected = {SignatureOf({Operation::kSpgemm})};
  auto matrix = modules.catalog.Insert(header, test::MakeArray("row_offsets", kSmallOffsets),
                                       test::MakeArray("column_indices", kSmallColumns),
                                       test::MakeArray("values", kSmallValues));
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(expected, header.expected);
  EXPECT_TRUE(absl::IsAlreadyExists(SendSmall(modules.catalog, Small()).status()));
}

}  // namespace
}  // namespace sparsed::engine
