// The corpus's list: names, groups, sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <set>
#include <string>

#include "tools/corpus/corpus_list.h"

namespace sparsed::corpus {
namespace {

TEST(CorpusList, HasEnoughPatternsOfAllFamilies) {
  const std::vector<CorpusPattern> patterns = GeneratedPatterns();
  EXPECT_GE(patterns.size(), 1500U);
  std::set<std::string> names;
  std::map<std::string, int> families;
  int64_t usual = 0, large = 0;
  for (const CorpusPattern& pattern : patterns) {
    EXPECT_TRUE(names.insert(pattern.name).second) << pattern.name;
    EXPECT_EQ(pattern.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_+-"),
              std::string::npos)
        << pattern.name;
    EXPECT_GT(pattern.rows, 0) << pattern.name;
    EXPECT_GT(pattern.cols, 0) << pattern.name;
    ++families[pattern.family];
    usual += pattern.nnz >= 50'000 && pattern.nnz <= 2'000'000 ? 1 : 0;
    large += pattern.nnz > 4'000'000 ? 1 : 0;
  }
  EXPECT_GT(usual, static_cast<int64_t>(patterns.size()) / 2);
  EXPECT_GT(large, 50);
  for (const char* const family :
       {"rmat", "barabasi", "blocks", "small_world", "power_law", "road", "stencil", "fem",
        "banded", "power_grid", "circuit", "linear_program", "quadratic_program", "time_steps",
        "ratings", "weights", "uniform"}) {
    EXPECT_GE(families[family], 50) << family;
  }
  EXPECT_EQ(families.size(), 17U);
}

TEST(CorpusList, DerivedPatternsStayWithTheirParents) {
  std::map<std::string, CorpusPattern> by_name;
  for (CorpusPattern& pattern : GeneratedPatterns()) by_name[pattern.name] = pattern;
  int derived = 0;
  for (const auto& [name, pattern] : by_name) {
    if (pattern.parent.empty()) continue;
    ++derived;
    ASSERT_TRUE(by_name.contains(pattern.parent)) << name;
    const CorpusPattern& parent = by_name[pattern.parent];
    EXPECT_TRUE(parent.parent.empty()) << name;
    EXPECT_EQ(pattern.group, parent.group) << name;
    EXPECT_EQ(pattern.family, parent.family) << name;
  }
  EXPECT_GT(derived, 1000);
}

TEST(CorpusList, PatternsAreValidAndAsLargeAsExpected) {
  std::map<std::string, int64_t> nnz_of;
  for (const CorpusPattern& pattern : GeneratedPatterns()) {
    if (!pattern.name.ends_with("-50k") && !pattern.parent.ends_with("-50k") &&
        !pattern.name.ends_with("-1k")) {
      continue;
    }
    const absl::StatusOr<Pattern> made = Make(pattern);
    ASSERT_TRUE(made.ok()) << pattern.name << made.status();
    EXPECT_TRUE(ValidateCsr(made->view(), 1).ok()) << pattern.name;
    EXPECT_GT(made->nnz(), 0) << pattern.name;
    nnz_of[pattern.name] = made->nnz();
    if (!pattern.parent.empty()) {
      EXPECT_LE(made->nnz(), nnz_of[pattern.parent]) << pattern.name;
    } else if (pattern.name.ends_with("-50k")) {
      const auto expected = static_cast<double>(pattern.nnz);
      EXPECT_NEAR(static_cast<double>(made->nnz()), expected, 0.4 * expected) << pattern.name;
    }
    // Holes leave rows out.
    EXPECT_LE(made->rows, pattern.rows) << pattern.name;
    EXPECT_GE(made->rows, pattern.rows * 8 / 10) << pattern.name;
  }
}

TEST(CorpusList, SaysThatMemoryIsShort) {
  CorpusPattern pattern;
  pattern.name = "huge";
  pattern.make = []() -> absl::StatusOr<Pattern> { throw std::bad_alloc(); };
  EXPECT_EQ(Make(pattern).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(Make(pattern).status().message()), testing::HasSubstr("huge"));
}

TEST(CorpusList, ReadsFiles) {
  const std::string folder = testing::TempDir() + "/corpus_files";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(absl::IsNotFound(PatternsOfFiles(folder + "/none").status()));
  EXPECT_EQ(PatternsOfFiles(folder)->size(), 0U);
  std::ofstream(folder + "/b.mtx") << "%%MatrixMarket matrix coordinate real general\n"
                                      "2 3 2\n1 3 0.5\n2 1 4\n";
  std::ofstream(folder + "/a.mtx") << "no matrix\n";
  std::ofstream(folder + "/README.md") << "hello\n";
  const std::vector<CorpusPattern> files = PatternsOfFiles(folder).value();
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].name, "real-a");
  EXPECT_EQ(files[1].name, "real-b");
  EXPECT_EQ(files[1].group, "real-b");
  EXPECT_EQ(files[1].family, "real");
  EXPECT_TRUE(absl::IsInvalidArgument(Make(files[0]).status()));
  const Pattern pattern = Make(files[1]).value();
  EXPECT_EQ(pattern.cols, 3);
  EXPECT_THAT(pattern.column_indices, testing::ElementsAre(2, 0));
  std::ofstream(folder + "/b.mtx.gz") << "another b\n";
  EXPECT_TRUE(absl::IsInvalidArgument(PatternsOfFiles(folder).status()));
}

}  // namespace
}  // namespace sparsed::corpus
