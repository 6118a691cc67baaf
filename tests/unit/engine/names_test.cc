// Rename and Copy: what goes along, what stays, who wins, and what a restart brings back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;

const test::Pattern kPattern = test::Uniform(60, 50, 5, 1);

absl::Status Update(Catalog& catalog, const std::string& name, const Floats& values) {
  auto update = catalog.BeginUpdate({"t", name, ElementType::kF32, /*durable=*/false, 0});
  if (!update.ok()) return update.status();
  if (absl::Status fed = Feed(**update, 0, values); !fed.ok()) return fed;
  return (*update)->Finish(2).status();
}

int64_t CountOf(Modules& modules, Quota quota) {
  return modules.budget.tenants().Of("t").used(quota);
}

TEST(Rename, TakesValuesSharesAndTimeToLiveAlong) {
  const TemporaryDirectory directory;
  const Floats changed = FloatsOf(kPattern, 9);
  uint64_t version = 0;
  {
    Modules modules(directory.path());
    Catalog& catalog = modules.catalog;
    UploadHeader header = HeaderOf("a", kPattern);
    header.time_to_live = std::chrono::hours(5);
    auto before =
        Send(catalog, header, kPattern.row_offsets, kPattern.column_indices, FloatsOf(kPattern, 1));
    ASSERT_TRUE(before.ok()) << before.status();
    ASSERT_TRUE(catalog.Share("t", "a", {"u", Right::kWrite}).ok());
    ASSERT_TRUE(Update(catalog, "a", changed).ok()) << "in memory alone";
    // What was called so before had higher versions.
    ASSERT_TRUE(SendMatrix(catalog, "b", test::Band(9, 2)).ok());
    for (int i = 0; i < 5; ++i)
      ASSERT_TRUE(Update(catalog, "b", Floats(test::Band(9, 2).nnz(), 1)).ok());
    const uint64_t last = (*catalog.Find("t", "b"))->version();
    ASSERT_TRUE(catalog.Delete("t", "b").ok());
    const int64_t disk = CountOf(modules, Quota::kDiskBytes);
    int64_t seen = 0;
    catalog.on_changed = [&](std::string_view, std::string_view name) {
      seen += name == "a" ? 1 : 10;
    };

    const auto renamed = catalog.Rename("t", "a", "b", 2);
    ASSERT_TRUE(renamed.ok()) << renamed.status();
    version = (*renamed)->version();
    EXPECT_GT(version, last);
    EXPECT_EQ(seen, 11);
    EXPECT_TRUE(absl::IsNotFound(catalog.Find("t", "a").status()));
    EXPECT_TRUE(absl::IsNotFound(catalog.Find("u", "t~a").status()));
    EXPECT_EQ(*catalog.Find("u", "t~b", Right::kWrite), *renamed);
    EXPECT_EQ(Elements<float>((*renamed)->Values()), changed);
    EXPECT_EQ((*renamed)->pattern(), (*before)->pattern());
    EXPECT_EQ((*renamed)->created_unix_ns(), (*before)->created_unix_ns());
    EXPECT_EQ((*renamed)->keep().time_to_live, std::chrono::hours(5));
    EXPECT_TRUE((*renamed)->durable());
    EXPECT_EQ(CountOf(modules, Quota::kMatrices), 1);
    EXPECT_EQ(CountOf(modules, Quota::kDiskBytes), disk);
    EXPECT_EQ(Elements<float>((*before)->Values()), FloatsOf(kPattern, 1)) << "of whoever holds it";
    ASSERT_TRUE(SendMatrix(catalog, "a", test::Band(9, 2)).ok()) << "the name is free";
    EXPECT_TRUE(absl::IsNotFound(catalog.Find("u", "t~a").status())) << "and shared with nobody";
  }
  Modules modules(directory.path());
  EXPECT_EQ(modules.catalog.All().size(), 2u);
  const auto found = modules.catalog.Find("u", "t~b", Right::kWrite);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->version(), version);
  EXPECT_EQ(Elements<float>((*found)->Values()), changed);
  EXPECT_EQ((*found)->keep().time_to_live, std::chrono::hours(5));
  EXPECT_TRUE(absl::IsNotFound(modules.catalog.Find("u", "t~a").status()));
}

TEST(Rename, RefusesWhatMakesNoSense) {
  Modules modules;
  Catalog& catalog = modules.catalog;
  ASSERT_TRUE(SendMatrix(catalog, "a", kPattern).ok() && SendMatrix(catalog, "b", kPattern).ok());
  const auto code = [&](std::string_view tenant, std::string_view name, const std::string& to) {
    const absl::Status renamed = catalog.Rename(tenant, name, to, 1).status();
    const absl::Status copied = catalog.Copy(tenant, name, to, /*replace=*/false, 1).status();
    EXPECT_EQ(renamed.code(), copied.code()) << renamed << copied;
    return renamed.code();
  };
  EXPECT_EQ(code("t", "nobody", "c"), absl::StatusCode::kNotFound);
  EXPECT_EQ(code("t", "a", "b"), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(code("t", "a", "a"), absl::StatusCode::kAlreadyExists);
  for (const char* wrong : {"", "x y", "u~c", "t~c"}) {
    EXPECT_EQ(code("t", "a", wrong), absl::StatusCode::kInvalidArgument) << wrong;
  }
  EXPECT_EQ(code("u", "t~a", "c"), absl::StatusCode::kNotFound) << "as if there were none";
  ASSERT_TRUE(catalog.Share("t", "a", {"u", Right::kWrite}).ok());
  EXPECT_EQ(code("u", "t~a", "c"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(catalog.All().size(), 2u);
  EXPECT_EQ(catalog.Copy("t", "a", "a", /*replace=*/true, 1).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(Rename, StoppedInTimeChangesNothing) {
  const TemporaryDirectory directory;
  Modules modules(directory.path());
  ASSERT_TRUE(SendMatrix(modules.catalog, "a", kPattern).ok());
  const std::atomic<bool> stop = true;
  EXPECT_TRUE(absl::IsCancelled(modules.catalog.Rename("t", "a", "b", 1, &stop).status()));
  EXPECT_TRUE(absl::IsCancelled(modules.catalog.Copy("t", "a", "b", false, 1, &stop).status()));
  EXPECT_TRUE(modules.catalog.Find("t", "a").ok());
  EXPECT_TRUE(absl::IsNotFound(modules.catalog.Find("t", "b").status()));
  EXPECT_EQ(CountOf(modules, Quota::kMatrices), 1);
}

TEST(Copy, HasThePatternInCommonAndValuesOfItsOwn) {
  const TemporaryDirectory directory;
  const Floats first = FloatsOf(kPattern, 1), second = FloatsOf(kPattern, 2);
  {
    Modules modules(directory.path());
    Catalog& catalog = modules.catalog;
    int gone = 0;
    catalog.on_pattern_gone = [&](const auto&) { ++gone; };
    ASSERT_TRUE(SendMatrix(catalog, "a", kPattern, 1).ok());
    ASSERT_TRUE(catalog.Share("t", "a", {"u", Right::kRead}).ok());
    const auto copy = catalog.Copy("t", "a", "b", /*replace=*/false, 2);
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_EQ((*copy)->pattern(), (*catalog.Find("t", "a"))->pattern());
    EXPECT_EQ(CountOf(modules, Quota::kMatrices), 2);
    EXPECT_TRUE(absl::IsNotFound(catalog.Find("u", "t~b").status())) << "shared with nobody";
    ASSERT_TRUE(Update(catalog, "b", second).ok());
    EXPECT_EQ(Elements<float>((*catalog.Find("t", "a"))->Values()), first);
    ASSERT_TRUE(SendMatrix(catalog, "c", test::Band(9, 2)).ok());
    ASSERT_TRUE(catalog.Copy("t", "b", "c", /*replace=*/true, 2).ok());
    EXPECT_EQ(gone, 1) << "the pattern of what was replaced";
    ASSERT_TRUE(catalog.Delete("t", "a").ok());
    EXPECT_EQ(gone, 1) << "copies have it";
  }
  Modules modules(directory.path());
  EXPECT_EQ(modules.catalog.All().size(), 2u);
  EXPECT_EQ(Elements<float>((*modules.catalog.Find("t", "c"))->Values()), second);
  EXPECT_EQ(Elements<float>((*modules.catalog.Find("t", "b"))->Values()), first)
      << "what was not durable went";
}

TEST(Copy, KeepsTheOrderOfTheCaller) {
  const TemporaryDirectory directory;
  {
    Modules modules(directory.path());
    UploadHeader header;
    header.tenant = "t";
    header.name = "a";
    header.rows = 1;
    header.cols = header.nnz = 3;
    header.sort = true;
    ASSERT_TRUE(Send(modules.catalog, header, std::vector<int64_t>{0, 3},
                     std::vector<int32_t>{2, 0, 1}, Floats{1, 2, 3})
                    .ok());
    ASSERT_TRUE(modules.catalog.Copy("t", "a", "b", /*replace=*/false, 1).ok());
    ASSERT_TRUE(modules.catalog.Rename("t", "a", "c", 1).ok());
  }
  Modules modules(directory.path());
  for (const char* name : {"b", "c"}) {
    ASSERT_TRUE(Update(modules.catalog, name, {10, 20, 30}).ok());
    EXPECT_EQ(Elements<float>((*modules.catalog.Find("t", name))->Values()), (Floats{20, 30, 10}));
  }
}

TEST(Rename, BackAndForthFromManyThreadsThereIsAlwaysOne) {
  Modules modules;
  Catalog& catalog = modules.catalog;
  ASSERT_TRUE(SendMatrix(catalog, "a", kPattern).ok());
  std::atomic<int> renamed = 0;
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const bool forth = t % 2 == 0;
        const absl::Status status =
            catalog.Rename("t", forth ? "a" : "b", forth ? "b" : "a", 1).status();
        if (status.ok()) ++renamed;
        // Another thread's may have come between.
        EXPECT_TRUE(status.ok() || absl::IsNotFound(status) || absl::IsAlreadyExists(status))
            << status;
      }
    });
  }
  std::thread looks([&] {
    while (!done) EXPECT_EQ(catalog.List("t", "").size(), 1u);
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  looks.join();
  EXPECT_GT(renamed, 0);
  ASSERT_EQ(catalog.All().size(), 1u);
  EXPECT_EQ(Elements<float>(catalog.All().front()->Values()), FloatsOf(kPattern, 1));
}

}  // namespace
}  // namespace sparsed::engine
