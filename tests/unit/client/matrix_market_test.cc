#include "client/cli/matrix_market.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace sparsed::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class MatrixMarketTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "matrix_market_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  std::string Write(const std::string& text, const std::string& name = "m.mtx") const {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }

  absl::StatusOr<CsrMatrix> Read(const std::string& text, ValueType type = ValueType::kF64) const {
    return ReadMatrixMarket(Write(text), type);
  }

  /// The sentence that `text` is refused with, without the folder.
  std::string Refusal(const std::string& text) const {
    const auto matrix = Read(text);
    EXPECT_EQ(matrix.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(matrix.status().message());
    EXPECT_TRUE(message.starts_with(folder_.string())) << message;
    return message.substr(folder_.string().size() + 1);
  }

  std::filesystem::path folder_;
};

std::vector<double> Values(const CsrMatrix& matrix) {
  return std::get<std::vector<double>>(matrix.values);
}

TEST_F(MatrixMarketTest, RowsWithoutEntriesAreTold) {
  const auto read = [&](const char* size) {
    return ReadMatrixFile(
        Write(std::string("%%MatrixMarket matrix coordinate real general\n") + size + "\n1 1 5\n"),
        {});
  };
  const auto many = read("20000000 3 1");
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_EQ(many->matrix.rows, 20000000);
  EXPECT_THAT(many->notes,
              ElementsAre(HasSubstr("20000000 rows for 1 entry: the offsets of the "
                                    "rows take 152.6 MiB here, and many times that on the "
                                    "server")));
  const auto few = read("2000000 3 1");
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_THAT(few->notes, testing::IsEmpty());
}

// Before the memory is taken, of which there may not be enough.
TEST_F(MatrixMarketTest, RowsWithoutEntriesAreAnnounced) {
  std::vector<std::string> announced;
  ReadOptions options;
  options.announce = [&announced](const std::string& note) { announced.push_back(note); };
  const auto read = [&](const char* size, const char* entries) {
    return ReadMatrixFile(
        Write(std::string("%%MatrixMarket matrix coordinate real general\n") + size + entries),
        options);
  };
  // What is wrong with it is found later.
  EXPECT_FALSE(read("2000000000 2000000000 1\n", "1 1 none\n").ok());
  EXPECT_THAT(announced, ElementsAre(HasSubstr("2000000000 rows for 1 entry: the offsets of the "
                                               "rows take 14.9 GiB here")));
  ASSERT_TRUE(read("3 3 1\n", "1 1 5\n").ok());
  EXPECT_EQ(announced.size(), 1u);
}

TEST_F(MatrixMarketTest, ExpandsSortsAndSums) {
  const auto matrix = Read(
      "%%MatrixMarket matrix coordinate real symmetric\n"
      "% a comment\n"
      "3 3 5\n"
      "3 1 2\n"
      "2 2 5\n"
      "3 1 0.5\n"  // twice
      "1 1 0\n"    // stays
      "3 2 -1e1\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_THAT(matrix->row_offsets, ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(matrix->column_indices, ElementsAre(0, 2, 1, 2, 0, 1));
  EXPECT_THAT(Values(*matrix), ElementsAre(0, 2.5, 5, -10, 2.5, -10));
}

TEST_F(MatrixMarketTest, SkewSymmetricMirrorsWithTheOtherSign) {
  const auto matrix =
      Read("%%MatrixMarket matrix coordinate integer skew-symmetric\n2 2 1\n2 1 7\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_THAT(matrix->column_indices, ElementsAre(1, 0));
  EXPECT_THAT(Values(*matrix), ElementsAre(-7, 7));
}

TEST_F(MatrixMarketTest, PatternIsOnes) {
  const auto matrix = Read("%%MatrixMarket matrix coordinate pattern general\n2 3 2\n2 3\n1 1\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_THAT(Values(*matrix), ElementsAre(1, 1));
}

TEST_F(MatrixMarketTest, ArraysLoseTheirZeros) {
  const auto general = Read("%%MatrixMarket matrix array real general\n2 2\n1\n0\n-0.0\n4\n");
  ASSERT_TRUE(general.ok()) << general.status();
  EXPECT_THAT(general->row_offsets, ElementsAre(0, 1, 2));
  EXPECT_THAT(Values(*general), ElementsAre(1, 4));
  const auto symmetric = Read("%%MatrixMarket matrix array integer symmetric\n2 2\n1\n2\n3\n");
  ASSERT_TRUE(symmetric.ok()) << symmetric.status();
  EXPECT_THAT(Values(*symmetric), ElementsAre(1, 2, 2, 3));
  const auto skew = Read("%%MatrixMarket matrix array real skew-symmetric\n3 3\n1\n2\n3\n");
  ASSERT_TRUE(skew.ok()) << skew.status();
  EXPECT_THAT(Values(*skew), ElementsAre(-1, -2, 1, -3, 2, 3));
}

TEST_F(MatrixMarketTest, NumbersBeyondTheirTypes) {
  const auto matrix = Read(
      "%%MatrixMarket matrix coordinate real general\n1 9 8\n"
      "1 1 1e400\n1 2 -1e400\n1 3 1e-400\n1 4 nan\n1 5 -inf\n1 6 18446744073709551615\n1 7 +.5\n"
      "1 8 0x10\n");
  EXPECT_FALSE(matrix.ok()) << "hexadecimal is not for matrices";
  const auto extremes = Read(
      "%%MatrixMarket matrix coordinate real general\n1 9 7\n"
      "1 1 inf\n1 2 -3e38\n1 3 1e-400\n1 4 nan\n1 5 -inf\n1 6 18446744073709551615\n1 7 +.5\n");
  ASSERT_TRUE(extremes.ok()) << extremes.status();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(Values(*extremes), ElementsAre(infinity, -3e38, 0, testing::IsNan(), -infinity,
                                             18446744073709551616.0, 0.5));
}

TEST_F(MatrixMarketTest, NumbersThatWouldBecomeInfiniteAreRefused) {
  const auto file = [](const std::string& number) {
    return "%%MatrixMarket matrix coordinate real general\n3 9 2\n1 1 2\n2 5 " + number + "\n";
  };
  const auto refusal = [&](const std::string& number, ValueType type) {
    const auto matrix = Read(file(number), type);
    return matrix.ok() ? std::string("accepted") : std::string(matrix.status().message());
  };
  EXPECT_THAT(refusal("1e400", ValueType::kF64),
              HasSubstr("m.mtx:4: the value \"1e400\" is too large"));
  EXPECT_THAT(refusal("1e39", ValueType::kF32),
              HasSubstr("m.mtx: row 2, column 5: 1e+39 is beyond f32, which holds 3.40282e+38"));
  EXPECT_THAT(refusal("-70000", ValueType::kF16), HasSubstr("beyond f16, which holds 65504"));
  EXPECT_THAT(refusal("3.4e38", ValueType::kBF16), HasSubstr("beyond bf16"));
  EXPECT_EQ(refusal("1e39", ValueType::kF64), "accepted");
  EXPECT_EQ(refusal("65504", ValueType::kF16), "accepted");
  EXPECT_EQ(refusal("inf", ValueType::kF16), "accepted") << "who writes it means it";
  EXPECT_EQ(refusal("1e-30", ValueType::kF16), "accepted") << "zero is near enough";
}

TEST_F(MatrixMarketTest, EmptyShapes) {
  for (const std::string size : {"0 0 0", "0 4 0", "4 0 0", "3 3 0"}) {
    const auto matrix = Read("%%MatrixMarket matrix coordinate real general\n" + size + "\n");
    ASSERT_TRUE(matrix.ok()) << size << ": " << matrix.status();
    EXPECT_EQ(matrix->nnz(), 0);
    EXPECT_EQ(matrix->row_offsets.size(), static_cast<size_t>(matrix->rows) + 1);
  }
}

TEST_F(MatrixMarketTest, ErrorsNameFileAndLineAndSayWhatWasExpected) {
  const std::string banner = "%%MatrixMarket matrix coordinate real general\n";
  EXPECT_THAT(Refusal(""), HasSubstr("not a Matrix Market file"));
  EXPECT_THAT(Refusal("1 1 1\n"), HasSubstr("m.mtx:1: this is not a Matrix Market file"));
  EXPECT_THAT(Refusal("%%MatrixMarket matrix coordinate complex general\n"),
              HasSubstr("m.mtx:1: complex"));
  EXPECT_THAT(Refusal(banner), HasSubstr("the line with the sizes is missing"));
  EXPECT_THAT(Refusal(banner + "2 2\n"),
              "m.mtx:2: expected \"ROWS COLUMNS ENTRIES\", found \"2 2\"");
  EXPECT_THAT(Refusal(banner + "-2 2 1\n"), HasSubstr("m.mtx:2: expected"));
  EXPECT_THAT(
      Refusal(banner + "2147483647 2 1\n"),
      HasSubstr("m.mtx:2: 2147483647 x 2 is too large: rows and columns can be 2147483646"));
  EXPECT_THAT(Refusal(banner + "2 2 99999999999999999999\n"), HasSubstr("m.mtx:2"));
  EXPECT_THAT(Refusal(banner + "2 2 3\n1 1 1\n% c\n2 2 1\n"),
              "m.mtx:5: the file ends after 2 of 3 entries");
  EXPECT_THAT(Refusal(banner + "2 2 1\n1 1 1\n\n2 2 1\n"),
              "m.mtx:5: more entries than the 1 that were announced");
  EXPECT_THAT(Refusal(banner + "2 2 1\n3 1 1\n"),
              "m.mtx:3: row 3 is out of range, expected 1 to 2");
  EXPECT_THAT(Refusal(banner + "2 2 1\n1 0 1\n"),
              "m.mtx:3: column 0 is out of range, expected 1 to 2");
  EXPECT_THAT(Refusal(banner + "2 2 1\n1 1\n"),
              "m.mtx:3: expected \"ROW COLUMN VALUE\", found \"1 1\"");
  EXPECT_THAT(Refusal(banner + "2 2 1\n1 1 1 1\n"), HasSubstr("expected \"ROW COLUMN VALUE\""));
  EXPECT_THAT(Refusal(banner + "2 2 1\n1 1 x\x01\n"), HasSubstr("found \"1 1 x?\""));
  EXPECT_THAT(Refusal(banner + "2 2 1\n1.5 1 1\n"), HasSubstr("found \"1.5 1 1\""));
  EXPECT_THAT(Refusal("%%MatrixMarket matrix coordinate real symmetric\n2 3 1\n1 1 1\n"),
              HasSubstr("must be square"));
  EXPECT_THAT(Refusal("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n1 1 1\n"),
              HasSubstr("m.mtx:3: a skew-symmetric matrix has no entries on its diagonal"));
  EXPECT_THAT(Refusal(banner + "2 2 1\n" + std::string(2 << 20, ' ') + "1 1 1\n"),
              HasSubstr("m.mtx:3: the line is longer"));
  EXPECT_EQ(ReadMatrixMarket(Path("none.mtx"), ValueType::kF32).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(ReadMatrixMarket(folder_.string(), ValueType::kF32).ok());
}

TEST_F(MatrixMarketTest, CompressedAndDamaged) {
  std::string text = "%%MatrixMarket matrix coordinate real general\n1000 1000 1000\n";
  for (int i = 1; i <= 1000; ++i) {
    text += std::to_string(i) + " " + std::to_string(i * 7919 % 1000 + 1) + " 0.5\n";
  }
  gzFile file = gzopen(Path("m.mtx.gz").c_str(), "wb");
  ASSERT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
            static_cast<int>(text.size()));
  gzclose(file);
  const auto matrix = ReadMatrixMarket(Path("m.mtx.gz"), ValueType::kF32);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(matrix->nnz(), 1000);
  EXPECT_EQ(matrix->type(), ValueType::kF32);

  std::ostringstream bytes;
  bytes << std::ifstream(Path("m.mtx.gz"), std::ios::binary).rdbuf();
  const std::string whole = bytes.str();
  const auto cut =
      ReadMatrixMarket(Write(whole.substr(0, whole.size() / 2), "cut.gz"), ValueType::kF32);
  EXPECT_THAT(std::string(cut.status().message()), HasSubstr("end too early"));
  std::string damaged = whole;
  for (size_t i = whole.size() / 3; i < whole.size() / 2; ++i) damaged[i] ^= 0x55;
  EXPECT_FALSE(ReadMatrixMarket(Write(damaged, "damaged.gz"), ValueType::kF32).ok());
}

TEST_F(MatrixMarketTest, ABufferEndsAnywhereInALine) {
  // Comments of all lengths push the entries over every position of the reader's buffer.
  std::mt19937 random(5);
  for (int round = 0; round < 8; ++round) {
    std::string text = "%%MatrixMarket matrix coordinate integer general\r\n";
    while (text.size() < (size_t{1} << 20) - 40) {
      text.append("%").append(random() % 700, 'c').append("\n");
    }
    text += "100 100 100\n";
    for (int i = 1; i <= 100; ++i) text += std::to_string(i) + "\t1  " + std::to_string(i) + "\n";
    text.pop_back();  // the last line has no end
    const auto matrix = Read(text);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    EXPECT_EQ(Values(*matrix)[99], 100);
  }
}

TEST_F(MatrixMarketTest, WhatIsWrittenIsReadBack) {
  std::mt19937 random(6);
  CsrMatrix matrix;
  matrix.rows = 50;
  matrix.cols = 70;
  matrix.row_offsets = {0};
  std::vector<double> values;
  for (int row = 0; row < 50; ++row) {
    for (int col = 0; col < 70; ++col) {
      if (random() % 9 != 0) continue;
      matrix.column_indices.push_back(col);
      values.push_back(
          std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 130));
    }
    matrix.row_offsets.push_back(matrix.nnz());
  }
  matrix.values = values;
  ASSERT_TRUE(WriteMatrixMarket(Path("w.mtx"), matrix).ok());
  const auto back = ReadMatrixMarket(Path("w.mtx"), ValueType::kF64);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->row_offsets, matrix.row_offsets);
  EXPECT_EQ(back->column_indices, matrix.column_indices);
  EXPECT_EQ(back->values, matrix.values);
}

template <typename Half>
void ExpectEveryHalfBack(const std::string& path) {
  CsrMatrix matrix;
  matrix.rows = 1;
  std::vector<Half> values;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Half half;
    half.bits = static_cast<uint16_t>(bits);
    if (!std::isfinite(static_cast<float>(half))) continue;
    matrix.column_indices.push_back(static_cast<int32_t>(values.size()));
    values.push_back(half);
  }
  matrix.cols = matrix.nnz();
  matrix.row_offsets = {0, matrix.nnz()};
  matrix.values = values;
  ASSERT_TRUE(WriteMatrixMarket(path, matrix).ok());
  const auto back = ReadMatrixMarket(path, matrix.type());
  ASSERT_TRUE(back.ok()) << back.status();
  const auto& got = std::get<std::vector<Half>>(back->values);
  ASSERT_EQ(got.size(), values.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i].bits, values[i].bits);
}

TEST_F(MatrixMarketTest, ValuesOf16BitsAreReadBack) {
  ExpectEveryHalfBack<Float16>(Path("f16.mtx"));
  ExpectEveryHalfBack<BFloat16>(Path("bf16.mtx"));
}

TEST_F(MatrixMarketTest, ANameThatEndsInGzIsCompressed) {
  const auto matrix =
      Read("%%MatrixMarket matrix coordinate real general\n3 3 3\n1 1 1.5\n2 3 -2\n3 1 1e-30\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  ASSERT_TRUE(WriteMatrixMarket(Path("w.mtx.gz"), *matrix).ok());
  std::ifstream file(Path("w.mtx.gz"), std::ios::binary);
  EXPECT_EQ(file.get(), 0x1f);
  EXPECT_EQ(file.get(), 0x8b);
  const auto back = ReadMatrixMarket(Path("w.mtx.gz"), ValueType::kF64);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->column_indices, matrix->column_indices);
  EXPECT_THAT(Values(*back), ElementsAre(1.5, -2, 1e-30));
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    files += entry.path().string().find(".partial") != std::string::npos;
  }
  EXPECT_EQ(files, 0u);
}

TEST_F(MatrixMarketTest, NothingIsLeftOfAnUnfinishedFile) {
  for (const char* name : {"w.mtx", "w.mtx.gz"}) {
    auto writer = MatrixMarketWriter::Open(Path(name));
    ASSERT_TRUE(writer.ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_FALSE(MatrixMarketWriter::Open(Path("no/such/folder.mtx")).ok());
  EXPECT_FALSE(MatrixMarketWriter::Open(folder_.string()).ok());
}

/// A line of the manifest of real and odd files.
struct Listed {
  std::string file, rows, cols, nnz, expect;
};

std::vector<Listed> Manifest() {
  std::ifstream in(std::string(SPARSED_SHARED_DATA) + "/MANIFEST.tsv");
  std::vector<Listed> files;
  std::map<std::string, size_t> column;
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> cells;
    std::istringstream split(line);
    for (std::string cell; std::getline(split, cell, '\t');) cells.push_back(cell);
    if (column.empty()) {
      for (size_t i = 0; i < cells.size(); ++i) column[cells[i]] = i;
      continue;
    }
    files.push_back({cells[column["file"]], cells[column["rows"]], cells[column["cols"]],
                     cells[column["nnz"]], cells[column["expect"]]});
  }
  return files;
}

/// What docs/matrix-market.md decides where the format leaves it open.
const std::map<std::string, bool>& AcceptedByPolicy() {
  static const std::map<std::string, bool> accepted = {
      {"variants/matrix_uint64.mtx", true},        {"variants/matrix_fp32.mtx", true},
      {"variants/matrix_fp64.mtx", true},          {"variants/west0067_noheader.mtx", false},
      {"variants/full_noheader.mtx", false},       {"variants/made_dims_huge.mtx", false},
      {"variants/made_dims_int32.mtx", false},     {"variants/made_nan_inf.mtx", true},
      {"variants/made_value_overflow.mtx", false}, {"variants/made_symmetric_upper.mtx", true}};
  return accepted;
}

TEST(MatrixMarketManifest, EveryFileGetsWhatTheManifestSays) {
  const std::vector<Listed> files = Manifest();
  if (files.empty()) GTEST_SKIP() << "the shared matrices are not here";
  for (const Listed& listed : files) {
    SCOPED_TRACE(listed.file + ": " + listed.expect);
    const auto matrix =
        ReadMatrixMarket(std::string(SPARSED_SHARED_DATA) + "/" + listed.file, ValueType::kF32);
    const std::string message(matrix.status().message());
    bool accept = listed.expect.starts_with("ok");
    if (listed.expect.starts_with("policy")) {
      ASSERT_TRUE(AcceptedByPolicy().contains(listed.file)) << "a policy to decide";
      accept = AcceptedByPolicy().at(listed.file);
    }
    if (accept) {
      ASSERT_TRUE(matrix.ok()) << matrix.status();
      EXPECT_EQ(std::to_string(matrix->rows), listed.rows);
      EXPECT_EQ(std::to_string(matrix->cols), listed.cols);
      EXPECT_EQ(std::to_string(matrix->nnz()), listed.nnz);
      continue;
    }
    EXPECT_EQ(matrix.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(message, testing::ContainsRegex("variants/[A-Za-z0-9_.]+:[0-9]+: "));
    EXPECT_EQ(listed.expect == "reject:complex", message.find(": complex") != std::string::npos)
        << message;
  }
}

}  // namespace
}  // namespace sparsed::cli
