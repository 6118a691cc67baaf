// Packs give back what went in, and refuse everything else with a sentence.
#include "tests/matrix_pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lzma.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace sparsed::test {
namespace {

using testing::HasSubstr;

class MatrixPack : public testing::Test {
 protected:
  ~MatrixPack() override { std::filesystem::remove(path_); }

  void WriteBytes(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  std::string ReadBytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// What is inside, as the format has it, well compressed.
  void WriteContent(const std::string& content) const {
    std::string compressed(lzma_stream_buffer_bound(content.size()), '\0');
    size_t size = 0;
    ASSERT_EQ(lzma_easy_buffer_encode(0, LZMA_CHECK_CRC64, nullptr,
                                      reinterpret_cast<const uint8_t*>(content.data()),
                                      content.size(), reinterpret_cast<uint8_t*>(compressed.data()),
                                      &size, compressed.size()),
              LZMA_OK);
    WriteBytes(compressed.substr(0, size));
  }
  std::string Error() const {
    const absl::Status status = ReadMatrixPack(path_).status();
    return status.ok() ? "" : std::string(status.message());
  }

  const std::string path_ = testing::TempDir() + "matrix_pack_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name() + ".xz";
};

Pattern Empty(int64_t rows, int64_t cols) {
  return {rows, cols, std::vector<int64_t>(rows + 1, 0), {}};
}

TEST_F(MatrixPack, GivesBackWhatWentIn) {
  const std::vector<NamedPattern> patterns = {
      {"rmat", Rmat(10, 8, 1)},
      {"band", Band(300, 7)},
      {"uniform", Uniform(50, 1'000'000'000, 20, 2)},
      {"no rows", Empty(0, 5)},
      {"no columns", Empty(5, 0)},
      {"", Empty(1000, 1000)},
      {"last column", FromCoordinates(2, 2'147'483'647, {{0, 2'147'483'646}, {1, 0}})},
      {"one", FromCoordinates(1, 1, {{0, 0}})}};
  ASSERT_TRUE(WriteMatrixPack(path_, patterns).ok());
  const auto read = ReadMatrixPack(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), patterns.size());
  for (size_t i = 0; i < patterns.size(); ++i) {
    SCOPED_TRACE(patterns[i].name);
    EXPECT_EQ((*read)[i].name, patterns[i].name);
    EXPECT_EQ((*read)[i].pattern.rows, patterns[i].pattern.rows);
    EXPECT_EQ((*read)[i].pattern.cols, patterns[i].pattern.cols);
    EXPECT_EQ((*read)[i].pattern.row_offsets, patterns[i].pattern.row_offsets);
    EXPECT_EQ((*read)[i].pattern.column_indices, patterns[i].pattern.column_indices);
  }
}

TEST_F(MatrixPack, MayBeEmpty) {
  ASSERT_TRUE(WriteMatrixPack(path_, {}).ok());
  const auto read = ReadMatrixPack(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->empty());
}

TEST_F(MatrixPack, SaysWhatItCannotReadOrWrite) {
  EXPECT_THAT(Error(), HasSubstr("cannot open"));
  WriteBytes("no xz");
  EXPECT_THAT(Error(), HasSubstr("is no xz file"));
  WriteContent("something else");
  EXPECT_THAT(Error(), HasSubstr("is no pack of matrices"));
  EXPECT_FALSE(WriteMatrixPack("/does/not/exist", {}).ok());
  const std::vector<NamedPattern> long_name = {{std::string(256, 'x'), Empty(1, 1)}};
  EXPECT_FALSE(WriteMatrixPack(path_, long_name).ok());
}

TEST_F(MatrixPack, TellsDamage) {
  const std::vector<NamedPattern> patterns = {{"rmat", Rmat(8, 8, 1)}};
  ASSERT_TRUE(WriteMatrixPack(path_, patterns).ok());
  const std::string whole = ReadBytes();
  std::mt19937_64 random(3);
  for (int i = 0; i < 100; ++i) {
    std::string damaged = whole;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    WriteBytes(damaged);
    EXPECT_FALSE(ReadMatrixPack(path_).ok()) << i;
    WriteBytes(whole.substr(0, random() % whole.size()));
    EXPECT_FALSE(ReadMatrixPack(path_).ok()) << i;
  }
  WriteBytes(whole + "x");
  EXPECT_FALSE(ReadMatrixPack(path_).ok());
}

TEST_F(MatrixPack, RefusesWhatIsNoPattern) {
  const std::string magic = "sparsed patterns 1\n";
  const std::string head = magic + std::string("\1m", 2);
  const std::string huge = "\xff\xff\xff\xff\xff\xff\xff\xff\x7f";
  const std::vector<std::string> contents = {
      magic + "\5m",                          // a longer name than there is
      head,                                   // nothing behind the name
      head + huge,                            // rows
      head + "\xff\xff\xff\xff\7" + "\1\1",   // as many rows as there can be
      head + std::string("\1\1", 2) + huge,   // nonzeros
      head + std::string("\1\1\2\1\0\0", 6),  // nnz is not the rows' sum
      head + std::string("\1\1\1\2\0\0", 6),  // a row longer than the matrix is wide
      head + std::string("\1\1\1\1\2", 5),    // column 1 of one
      head + std::string("\1\1\1\1\1", 5),    // column -1
      head + std::string("\1\3\2\2\0\2", 6),  // columns 0 and 3 of three
      head + std::string("\1\3\2\2\0", 5),    // a column is missing
      head + std::string("\1\1\1\1\xff", 5),  // a number that does not end
      head + std::string("\1\1\1\1\0\1", 6),  // something behind it
  };
  for (const std::string& content : contents) {
    WriteContent(content);
    EXPECT_THAT(Error(), HasSubstr("no proper pattern")) << testing::PrintToString(content);
  }
  WriteContent(head + std::string("\1\1\1\1\0", 5));
  EXPECT_EQ(Error(), "");
}

TEST_F(MatrixPack, SurvivesAnything) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 500; ++i) {
    std::string content = "sparsed patterns 1\n";
    for (uint64_t n = random() % 40; n > 0; --n) {
      content.push_back(static_cast<char>(random() % 4 == 0 ? random() : random() % 4));
    }
    WriteContent(content);
    const auto read = ReadMatrixPack(path_);
    if (!read.ok()) continue;
    for (const NamedPattern& named : *read) {
      const Pattern& pattern = named.pattern;
      ASSERT_EQ(static_cast<int64_t>(pattern.row_offsets.size()), pattern.rows + 1);
      ASSERT_EQ(pattern.row_offsets.back(), pattern.nnz());
      for (int64_t row = 0; row < pattern.rows; ++row) {
        for (int64_t p = pattern.row_offsets[row]; p < pattern.row_offsets[row + 1]; ++p) {
          const int64_t before = p == pattern.row_offsets[row] ? -1 : pattern.column_indices[p - 1];
          ASSERT_GT(pattern.column_indices[p], before);
          ASSERT_LT(pattern.column_indices[p], pattern.cols);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparsed::test
