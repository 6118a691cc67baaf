// What any writer writes is read back, whatever it is called and however it is compressed.
#include <cmath>
#include <random>

#include "client/cli/compress.h"
#include "client/cli/matrix_writer.h"
#include "client/cli/zstandard.h"
#include "tests/unit/client/format_files.h"

namespace sparsed::cli {
namespace {

using testing::HasSubstr;

template <typename T>
CsrMatrix Random(int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  CsrMatrix matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.row_offsets = {0};
  std::vector<T> values;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      if (random() % 5 != 0) continue;
      matrix.column_indices.push_back(static_cast<int32_t>(col));
      values.push_back(static_cast<T>(static_cast<float>(
          std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 20) - 42))));
    }
    matrix.row_offsets.push_back(matrix.nnz());
  }
  matrix.values = values;
  return matrix;
}

/// A symmetric one without a diagonal, of whole numbers: a graph.
CsrMatrix Graph(int64_t nodes) {
  CsrMatrix matrix;
  matrix.rows = matrix.cols = nodes;
  matrix.row_offsets = {0};
  std::vector<float> values;
  for (int64_t row = 0; row < nodes; ++row) {
    for (int64_t col = 0; col < nodes; ++col) {
      if (row == col || (row * col) % 3 != 1) continue;
      matrix.column_indices.push_back(static_cast<int32_t>(col));
      values.push_back(static_cast<float>(row + col));
    }
    matrix.row_offsets.push_back(matrix.nnz());
  }
  matrix.values = values;
  return matrix;
}

/// Endings of compressed files, and none.
std::vector<std::string> Compressions() {
  std::vector<std::string> endings = {"", ".gz", ".xz"};
  if (HasZstandard()) endings.push_back(".zst");
  return endings;
}

class RoundTrip : public FormatFiles {
 protected:
  /// Writes it, in two blocks of rows if there are enough.
  absl::Status WriteTo(const std::string& path, const CsrMatrix& matrix,
                       std::optional<FileFormat> format = std::nullopt,
                       std::string* note = nullptr) const {
    auto writer = OpenMatrixWriter(path, format);
    if (!writer.ok()) return writer.status();
    const int64_t middle = matrix.rows / 2;
    for (const auto& [begin, end] : {std::pair{int64_t{0}, middle}, {middle, matrix.rows}}) {
      if (begin == end) continue;
      const auto first = static_cast<size_t>(matrix.row_offsets[begin]);
      const auto count = static_cast<size_t>(matrix.row_offsets[end]) - first;
      RowBlock block;
      block.row_begin = begin;
      block.rows = end - begin;
      block.row_offsets =
          std::span(matrix.row_offsets)
              .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin + 1));
      block.column_indices = std::span(matrix.column_indices).subspan(first, count);
      block.values = std::visit(
          [&](const auto& all) { return ConstValues(std::span(all).subspan(first, count)); },
          matrix.values);
      if (absl::Status status = (*writer)->Add(block); !status.ok()) return status;
    }
    const absl::Status finished = (*writer)->Finish(matrix.rows, matrix.cols, matrix.nnz());
    if (note != nullptr) *note = (*writer)->Note();
    return finished;
  }

  void ExpectBack(const std::string& name, const CsrMatrix& matrix,
                  std::optional<FileFormat> format = std::nullopt) const {
    SCOPED_TRACE(name + ", " + Name(matrix.type()) + ", " + std::to_string(matrix.rows));
    std::string note;
    ASSERT_TRUE(WriteTo(Path(name), matrix, format, &note).ok());
    ReadOptions options;
    options.type = matrix.type();
    if (!note.empty()) options.shape = MatrixShape{matrix.rows, matrix.cols};
    // Its name says nothing.
    std::filesystem::rename(Path(name), Path("anything"));
    const auto read = ReadMatrixFile(Path("anything"), options);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->matrix.rows, matrix.rows);
    EXPECT_EQ(read->matrix.cols, matrix.cols);
    EXPECT_EQ(read->matrix.row_offsets, matrix.row_offsets);
    EXPECT_EQ(read->matrix.column_indices, matrix.column_indices);
    EXPECT_TRUE(read->matrix.values == matrix.values);
    EXPECT_EQ(read->compression, CompressionByName(name));
    EXPECT_EQ(read->format, format.value_or(*FormatByName(name)));
    EXPECT_EQ(read->duplicates, 0);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1)
        << "nothing else is left";
  }
};

TEST_F(RoundTrip, EveryFormatTypeAndCompression) {
  for (const std::string ending : {".mtx", ".npy", ".txt", ".csv", ".tsv", ".edges"}) {
    for (const std::string& packed : Compressions()) {
      ExpectBack("m" + ending + packed, Random<float>(30, 20, 1));
      ExpectBack("m" + ending + packed, Random<double>(20, 30, 2));
    }
    ExpectBack("m" + ending, Random<Float16>(9, 9, 3));
    ExpectBack("m" + ending, Random<BFloat16>(9, 9, 4));
  }
  ExpectBack("m.npz", Random<float>(30, 20, 1));
  ExpectBack("m.npz", Random<double>(20, 30, 2));
  ExpectBack("m.npz", Random<Float16>(9, 9, 3));
  for (const std::string& packed : Compressions()) {
    ExpectBack("m.graph" + packed, Graph(40));
  }
}

TEST_F(RoundTrip, LargerThanEveryBuffer) {
  const CsrMatrix matrix = Random<double>(700, 700, 7);
  for (const std::string name : {"m.mtx.xz", "m.npz", "m.npy.xz", "m.txt.gz"}) {
    ExpectBack(name, matrix);
  }
  ExpectBack("m.graph.gz", Graph(600));
}

TEST_F(RoundTrip, EmptyOnes) {
  for (const std::string name : {"m.mtx", "m.npz", "m.npy", "m.txt", "m.csv"}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{0, 0}, {0, 4}, {4, 0}, {5, 5}}) {
      CsrMatrix matrix;
      matrix.rows = rows;
      matrix.cols = cols;
      matrix.row_offsets.assign(static_cast<size_t>(rows) + 1, 0);
      ExpectBack(name, matrix);
    }
  }
  for (const int64_t nodes : {0, 1, 5}) {
    CsrMatrix matrix;
    matrix.rows = matrix.cols = nodes;
    matrix.row_offsets.assign(static_cast<size_t>(nodes) + 1, 0);
    ExpectBack("m.graph", matrix);
  }
}

TEST_F(RoundTrip, FormatsWhateverTheEnding) {
  ExpectBack("m.data", Random<float>(30, 20, 1), FileFormat::kNpz);
  ExpectBack("m.mtx", Random<float>(30, 20, 1), FileFormat::kEdgeList);
  ExpectBack("m.txt.gz", Random<float>(30, 20, 1), FileFormat::kMatrixMarket);
}

TEST_F(RoundTrip, FromAPipe) {
  const CsrMatrix matrix = Random<float>(300, 200, 1);
  for (const std::string name : {"m.npz", "m.mtx.gz", "m.csv.xz"}) {
    ASSERT_TRUE(WriteTo(Path(name), matrix).ok());
    ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
    ASSERT_EQ(std::system(("cat '" + Path(name) + "' > '" + Path("pipe") + "' &").c_str()), 0);
    const auto read = ReadMatrixFile(Path("pipe"), {});
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->matrix.column_indices, matrix.column_indices);
    std::filesystem::remove(Path("pipe"));
  }
}

TEST_F(RoundTrip, WhatAFormatCannotHoldIsSaid) {
  EXPECT_THAT(std::string(WriteTo(Path("m.npz"), Random<BFloat16>(9, 9, 4)).message()),
              HasSubstr("cannot hold bf16"));
  const auto refusal = [&](const CsrMatrix& matrix) {
    return std::string(WriteTo(Path("m.graph"), matrix).message());
  };
  CsrMatrix graph = Graph(10);
  std::get<std::vector<float>>(graph.values)[0] += 1;
  EXPECT_THAT(refusal(graph), HasSubstr("square and symmetric, and this matrix of 10 x 10 is not"));
  std::get<std::vector<float>>(graph.values)[0] = 0.5;
  EXPECT_THAT(refusal(graph), HasSubstr("positive integers, and the value in row 1, column 4"));
  CsrMatrix loop;
  loop.rows = loop.cols = 1;
  loop.row_offsets = {0, 1};
  loop.column_indices = {0};
  loop.values = std::vector<float>{1};
  EXPECT_THAT(refusal(loop), HasSubstr("there is one in row 0"));
  std::string note;
  ASSERT_TRUE(WriteTo(Path("m.npy"), Random<float>(9, 30, 1), std::nullopt, &note).ok());
  EXPECT_THAT(note, HasSubstr("--shape=9x30"));
  EXPECT_THAT(OutputProblem("m.npz.gz", std::nullopt), HasSubstr("drop its .gz"));
  EXPECT_THAT(OutputProblem("m.pdf", std::nullopt), HasSubstr("m.pdf must end in .mtx, .npz"));
  EXPECT_EQ(OutputProblem("m.pdf", FileFormat::kNpz), "");
}

TEST_F(RoundTrip, DamagedAndCutFilesAreRefused) {
  const CsrMatrix matrix = Random<float>(300, 200, 1);
  for (const std::string& packed : Compressions()) {
    if (packed.empty()) continue;
    const std::string name = "m.txt" + packed;
    ASSERT_TRUE(WriteTo(Path(name), matrix).ok());
    const std::string whole = Slurp(name);
    EXPECT_THAT(Refusal(whole.substr(0, whole.size() / 2)), HasSubstr("end too early")) << name;
    EXPECT_THAT(Refusal(whole.substr(0, 20)), HasSubstr("end too early")) << name;
    std::string damaged = whole;
    for (size_t i = whole.size() / 2; i < whole.size() / 2 + 64; ++i) damaged[i] ^= 0x55;
    EXPECT_FALSE(Read(damaged).ok()) << name;
    const auto twice = Read(whole + whole);
    ASSERT_TRUE(twice.ok()) << name << ": files one after another are one; " << twice.status();
    EXPECT_EQ(twice->duplicates, matrix.nnz());
  }
}

TEST(NameOfFile, IsWithoutFoldersAndEndings) {
  EXPECT_EQ(NameOfFile("graphs/cora.mtx.gz"), "cora");
  EXPECT_EQ(NameOfFile("/a/b.c/web-Google.txt.xz"), "web-Google");
  EXPECT_EQ(NameOfFile("4elt.graph"), "4elt");
  EXPECT_EQ(NameOfFile("a.b.npz"), "a.b");
  EXPECT_EQ(NameOfFile("plain"), "plain");
  EXPECT_EQ(NameOfFile(".mtx"), ".mtx");
}

}  // namespace
}  // namespace sparsed::cli
