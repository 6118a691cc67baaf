// SciPy's archives, and entries in NumPy arrays.
#include <minizip/zip.h>

#include <cstdint>
#include <random>
#include <span>

#include "client/cli/npy.h"
#include "tests/unit/client/format_files.h"

namespace sparsed::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
std::string Raw(std::vector<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <typename T>
std::string Npy(const std::string& descr, const std::string& shape, std::vector<T> values) {
  return NpyHeader(descr, shape) + Raw(std::move(values));
}
std::string Text(const std::string& text) {
  return NpyHeader("|S" + std::to_string(text.size()), "()") + text;
}
std::string Shape(int64_t rows, int64_t cols) { return Npy<int64_t>("<i8", "(2,)", {rows, cols}); }

using Members = std::vector<std::pair<std::string, std::string>>;

class NpzTest : public FormatFiles {
 protected:
  std::string Archive(const Members& members, bool deflated = false) const {
    zipFile zip = zipOpen64(Path("made.npz").c_str(), APPEND_STATUS_CREATE);
    for (const auto& [name, bytes] : members) {
      zip_fileinfo info = {};
      zipOpenNewFileInZip64(zip, (name + ".npy").c_str(), &info, nullptr, 0, nullptr, 0, nullptr,
                            deflated ? Z_DEFLATED : 0, deflated ? 6 : 0, 1);
      zipWriteInFileInZip(zip, bytes.data(), static_cast<unsigned>(bytes.size()));
      zipCloseFileInZip(zip);
    }
    zipClose(zip, nullptr);
    return Slurp("made.npz");
  }
};

/// [[0 1 0 2], [0 0 0 0], [3 0 0 0]]
void ExpectExample(const absl::StatusOr<MatrixFile>& read) {
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->format, FileFormat::kNpz);
  EXPECT_EQ(read->matrix.cols, 4);
  EXPECT_THAT(read->matrix.row_offsets, ElementsAre(0, 2, 2, 3));
  EXPECT_THAT(read->matrix.column_indices, ElementsAre(1, 3, 0));
  EXPECT_THAT(Values(read->matrix), ElementsAre(1, 2, 3));
}

Members Csr() {
  return {{"indices", Npy<int32_t>("<i4", "(3,)", {3, 1, 0})},
          {"indptr", Npy<int32_t>("<i4", "(4,)", {0, 2, 2, 3})},
          {"format", Text("csr")},
          {"shape", Shape(3, 4)},
          {"data", Npy<float>("<f4", "(3,)", {2, 1, 3})}};
}
Members With(Members members, const std::string& name, const std::string& bytes) {
  for (auto& member : members) {
    if (member.first == name) member.second = bytes;
  }
  return members;
}

TEST_F(NpzTest, EveryFormatOfScipy) {
  for (const bool deflated : {false, true}) ExpectExample(Read(Archive(Csr(), deflated)));
  ExpectExample(
      Read(Archive({{"indices", Npy<int64_t>("<i8", "(3,)", {2, 0, 0})},
                    {"indptr", Npy<int64_t>("<i8", "(5,)", {0, 1, 2, 2, 3})},
                    {"format", NpyHeader("<U3", "()") + std::string("c\0\0\0s\0\0\0c\0\0\0", 12)},
                    {"shape", Shape(3, 4)},
                    {"data", Npy<int8_t>("|i1", "(3,)", {3, 1, 2})}})));
  ExpectExample(Read(Archive({{"row", Npy<uint16_t>("<u2", "(3,)", {2, 0, 0})},
                              {"col", Npy<int16_t>(">i2", "(3,)", {0, 0x300, 0x100})},
                              {"format", Text("coo")},
                              {"shape", Shape(3, 4)},
                              {"data", Npy<double>("<f8", "(3,)", {3, 2, 1})}})));
  ExpectExample(Read(Archive({{"coords", Npy<int32_t>("<i4", "(2, 3)", {2, 0, 0, 0, 3, 1})},
                              {"format", Text("coo")},
                              {"_is_array", Npy<uint8_t>("|b1", "()", {1})},
                              {"shape", Shape(3, 4)},
                              {"data", Npy<double>("<f8", "(3,)", {3, 2, 1})}})));
  ExpectExample(
      Read(Archive({{"offsets", Npy<int32_t>("<i4", "(3,)", {1, 3, -2})},
                    {"format", Text("dia")},
                    {"shape", Shape(3, 4)},
                    {"data", Npy<float>("<f4", "(3, 4)", {9, 1, 0, 0, 9, 9, 9, 2, 3, 0, 9, 9})}})));
  const auto blocks = Read(
      Archive({{"indices", Npy<int32_t>("<i4", "(2,)", {1, 0})},
               {"indptr", Npy<int32_t>("<i4", "(3,)", {0, 1, 2})},
               {"format", Text("bsr")},
               {"shape", Shape(4, 6)},
               {"data", Npy<double>("<f8", "(2, 2, 3)", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0})}}));
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_THAT(blocks->matrix.row_offsets, ElementsAre(0, 3, 6, 9, 12));
  EXPECT_THAT(blocks->matrix.column_indices, ElementsAre(3, 4, 5, 3, 4, 5, 0, 1, 2, 0, 1, 2));
  EXPECT_THAT(Values(blocks->matrix), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0));
}

TEST_F(NpzTest, TypesAreTheFilesOwnWhereNobodySays) {
  const auto type = [&](const std::string& data) {
    const auto read = Read(Archive(With(Csr(), "data", data)), {});
    return read.ok() ? std::string(Name(read->matrix.type()))
                     : std::string(read.status().message());
  };
  EXPECT_EQ(type(Npy<double>("<f8", "(3,)", {1, 2, 3})), "f64");
  EXPECT_EQ(type(Npy<float>("<f4", "(3,)", {1, 2, 3})), "f32");
  EXPECT_EQ(type(Npy<uint16_t>("<f2", "(3,)", {1, 2, 3})), "f16");
  EXPECT_EQ(type(Npy<int64_t>("<i8", "(3,)", {1, 2, 3})), "f32");
  EXPECT_EQ(type(Npy<uint8_t>("|b1", "(3,)", {1, 0, 1})), "f32");
  EXPECT_THAT(type(Npy<double>("<c16", "(3,)", {1, 2, 3, 4, 5, 6})), HasSubstr("a.real"));
  EXPECT_THAT(type(NpyHeader("|O", "(3,)")), HasSubstr("data: its elements are \"|O\""));
}

TEST_F(NpzTest, ErrorsNameTheArrayAndThePlace) {
  const auto refusal = [&](const std::string& name, const std::string& bytes) {
    return Refusal(Archive(With(Csr(), name, bytes)));
  };
  EXPECT_EQ(refusal("indices", Npy<int32_t>("<i4", "(3,)", {3, 4, 0})),
            "file: indices[1] = 4 is out of range [0, 4)");
  EXPECT_EQ(refusal("indices", Npy<int32_t>("<i4", "(3,)", {3, 1, -1})),
            "file: indices[2] = -1 is out of range [0, 4)");
  EXPECT_EQ(refusal("indices", Npy<int32_t>("<i4", "(2,)", {3, 1})),
            "file: there are 2 indices and 3 values");
  EXPECT_EQ(refusal("indptr", Npy<int32_t>("<i4", "(4,)", {0, 2, 1, 3})),
            "file: indptr[2] = 1, expected 2 to 3");
  EXPECT_EQ(refusal("indptr", Npy<int32_t>("<i4", "(4,)", {0, 2, 2, 4})),
            "file: indptr[3] = 4, expected 2 to 3");
  EXPECT_EQ(refusal("indptr", Npy<int32_t>("<i4", "(4,)", {1, 2, 2, 3})),
            "file: indptr[0] = 1, expected 0");
  EXPECT_EQ(refusal("indptr", Npy<int32_t>("<i4", "(3,)", {0, 2, 3})),
            "file: indptr has 3 elements, expected 4");
  EXPECT_THAT(refusal("indptr", Npy<int32_t>("<i4", "(4,)", {0, 2, 2, 2})),
              HasSubstr("file: indptr ends with 2, but there are 3 values; in SciPy, m.prune()"));
  EXPECT_EQ(refusal("data", Npy<float>("<f4", "(3, 1)", {0, 2, 3})),
            "file: data: the array has 2 dimensions, expected 1");
  EXPECT_EQ(refusal("data", Npy<float>("<f4", "(3,)", {0, 2})),
            "file: data: the array ends after 2 of 3 elements");
  EXPECT_EQ(refusal("shape", Npy<int64_t>("<i8", "(3,)", {3, 4, 5})),
            "file: the matrix has 3 dimensions, expected 2");
  EXPECT_THAT(refusal("shape", Shape(int64_t{1} << 40, 4)), HasSubstr("2147483646 at most"));
  EXPECT_THAT(refusal("shape", Shape(-1, 4)), HasSubstr("is not possible"));
  EXPECT_THAT(refusal("format", Text("xyz")), HasSubstr("format \"xyz\" is not known"));
  EXPECT_THAT(refusal("indices", "no array"),
              HasSubstr("file: indices: this is not a .npy file, or its header is damaged"));
  Members missing = Csr();
  missing.pop_back();
  EXPECT_THAT(Refusal(Archive(missing)), HasSubstr("no array \"data\""));
  EXPECT_THAT(Refusal(Archive({{"adj_data", "x"}, {"adj_indptr", "x"}})),
              HasSubstr("a zip archive of \"adj_data\", \"adj_indptr\", and not one that"));
  std::string cut = Archive(Csr());
  cut.resize(cut.size() - 30);
  EXPECT_THAT(Refusal(cut), HasSubstr("the archive is damaged, or ends too early"));
  std::string damaged = Archive(Csr());
  const size_t value = damaged.find(Raw<float>({2, 1, 3}));
  damaged[value] ^= 1;
  EXPECT_THAT(Refusal(damaged), HasSubstr("file: data: the archive is damaged: a checksum"));
}

TEST_F(NpzTest, NoMutationCrashes) {
  std::mt19937 random(3);
  const std::string good = Archive(Csr());
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good;
    for (int change = 0; change < 4; ++change) bytes[random() % bytes.size()] = random() % 256;
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    ReadOptions options;
    options.max_dimension = 1 << 20;
    const auto read = Read(bytes, options);
    EXPECT_NE(read.ok(), !read.status().message().empty());
  }
}

class NpyTriplesTest : public FormatFiles {};

TEST_F(NpyTriplesTest, EveryLayout) {
  const std::vector<std::string> files = {
      Npy<double>("<f8", "(3, 3)", {0, 1, 5, 2, 0, 7, 0, 3, 6}),
      Npy<int32_t>("<i4", "(3, 3)", {0, 1, 5, 2, 0, 7, 0, 3, 6}),
      NpyHeader("<f4", "(3, 3)").replace(NpyHeader("<f4", "(3, 3)").find("False"), 5, "True ") +
          Raw<float>({0, 2, 0, 1, 0, 3, 5, 7, 6}),
  };
  for (const std::string& file : files) {
    const auto read = Read(file);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->format, FileFormat::kNpy);
    EXPECT_EQ(read->matrix.rows, 4);
    EXPECT_THAT(read->matrix.row_offsets, ElementsAre(0, 2, 2, 3, 3));
    EXPECT_THAT(Values(read->matrix), ElementsAre(5, 6, 7));
    EXPECT_THAT(read->notes, ElementsAre(HasSubstr("read as 3 entries of row, column and value")));
  }
  const std::vector<std::string> pairs = {
      Npy<int64_t>("<i8", "(4, 2)", {0, 1, 2, 0, 0, 3, 1, 1}),
      Npy<int64_t>("<i8", "(2, 4)", {0, 2, 0, 1, 1, 0, 3, 1}),
  };
  for (const std::string& file : pairs) {
    const auto read = Read(file);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_THAT(read->matrix.row_offsets, ElementsAre(0, 2, 3, 4, 4));
    EXPECT_TRUE(read->ones);
  }
}

TEST_F(NpyTriplesTest, ErrorsNameTheEntry) {
  EXPECT_EQ(Refusal(Npy<double>("<f8", "(2, 3)", {0, 1, 5, 0.5, 1, 5})),
            "file: entry 1, counted from 0: 0.5 is not a whole number");
  EXPECT_THAT(Refusal(Npy<double>("<f8", "(2, 3)", {0, 1, 5, 0, -1, 5})),
              HasSubstr("file: entry 1, counted from 0: column -1 is out of range"));
  EXPECT_THAT(Refusal(Npy<uint64_t>("<u8", "(1, 2)", {0, uint64_t{1} << 63})),
              HasSubstr("beyond 64 bits"));
  EXPECT_THAT(Refusal(Npy<double>("<f8", "(2, 2)", {0, 1, 0})),
              HasSubstr("the array ends after 3 of 4 elements"));
  EXPECT_THAT(Refusal(Npy<float>("<f4", "(2, 5)", std::vector<float>(10))),
              HasSubstr("a dense matrix: python3 -c"));
  EXPECT_THAT(Refusal(Npy<float>("<f4", "(5,)", std::vector<float>(5))),
              HasSubstr("an array of shape (5) is read as no matrix"));
  EXPECT_THAT(Refusal(Npy<float>("<f4", "(4611686018427387904, 3)", {})), HasSubstr("impossible"));
  EXPECT_THAT(Refusal(NpyHeader("<f4", "(1, 2)").substr(0, 40)), HasSubstr("header is damaged"));
}

}  // namespace
}  // namespace sparsed::cli
