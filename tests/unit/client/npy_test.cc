#include "client/cli/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/npz_writer.h"

namespace sparsed::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class NpyTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Write(const std::string& bytes) const {
    std::ofstream(Path("a.npy"), std::ios::binary) << bytes;
    return Path("a.npy");
  }
  std::string Slurp(const std::string& name) const {
    std::ostringstream bytes;
    bytes << std::ifstream(Path(name), std::ios::binary).rdbuf();
    return bytes.str();
  }
  absl::StatusOr<NpyArray> Read(const std::string& bytes, ValueType type = ValueType::kF32) const {
    return ReadNpy(Write(bytes), type);
  }

  std::filesystem::path folder_;
};

std::string File(int version, const std::string& dictionary, const std::string& data) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  const size_t length = dictionary.size();
  bytes += static_cast<char>(length & 0xff);
  bytes += static_cast<char>(length >> 8);
  if (version > 1) bytes += std::string(2, '\0');
  return bytes + dictionary + data;
}

template <typename T>
std::string Raw(std::vector<T> values, bool swap = false) {
  std::string bytes;
  for (const T value : values) {
    std::string element(reinterpret_cast<const char*>(&value), sizeof(T));
    if (swap) std::reverse(element.begin(), element.end());
    bytes += element;
  }
  return bytes;
}

std::vector<float> F32(const NpyArray& array) { return std::get<std::vector<float>>(array.values); }

constexpr const char* kTwoByThree = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";

TEST_F(NpyTest, ReadsAllVersions) {
  for (const int version : {1, 2, 3}) {
    const auto array = Read(File(version, kTwoByThree, Raw<float>({1, 2, 3, 4, 5, 6})));
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->rows, 2);
    EXPECT_EQ(array->cols, 3);
    EXPECT_THAT(F32(*array), ElementsAre(1, 2, 3, 4, 5, 6));
  }
}

TEST_F(NpyTest, ConvertsTypesOrdersAndBytes) {
  const auto fortran = Read(File(1, "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3)}",
                                 Raw<double>({1, 4, 2, 5, 3, 6})));
  ASSERT_TRUE(fortran.ok()) << fortran.status();
  EXPECT_THAT(F32(*fortran), ElementsAre(1, 2, 3, 4, 5, 6));
  const auto big = Read(File(1, "{\"descr\": \">f4\", 'shape': (2,), 'fortran_order': False}",
                             Raw<float>({1.5, -2}, true)),
                        ValueType::kF64);
  ASSERT_TRUE(big.ok()) << big.status();
  EXPECT_TRUE(big->one_dimensional);
  EXPECT_EQ(big->cols, 1);
  EXPECT_THAT(std::get<std::vector<double>>(big->values), ElementsAre(1.5, -2));
}

TEST_F(NpyTest, Of16Bits) {
  // 1, -2, 65504, the smallest subnormal.
  const std::vector<uint16_t> bits = {0x3c00, 0xc000, 0x7bff, 0x0001};
  const auto file = [](const std::string& descr) {
    return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (2, 2)}";
  };
  for (const bool swap : {false, true}) {
    const auto wide = Read(File(1, file(swap ? ">f2" : "<f2"), Raw(bits, swap)));
    ASSERT_TRUE(wide.ok()) << wide.status();
    EXPECT_THAT(F32(*wide), ElementsAre(1, -2, 65504, 0x1p-24F));
  }
  const auto same = Read(File(1, file("<f2"), Raw(bits)), ValueType::kF16);
  ASSERT_TRUE(same.ok()) << same.status();
  ASSERT_TRUE(WriteNpy(Path("w.npy"), *same).ok());
  EXPECT_NE(Slurp("w.npy").find("'<f2'"), std::string::npos);
  EXPECT_EQ(Slurp("w.npy").substr(128), Raw(bits));

  // NumPy has no bf16: it comes from float32 and goes there.
  const auto brief =
      Read(File(1, file("<f4"), Raw<float>({1, -2, 3.0078125F, 1e30F})), ValueType::kBF16);
  ASSERT_TRUE(brief.ok()) << brief.status();
  ASSERT_TRUE(WriteNpy(Path("b.npy"), *brief).ok());
  EXPECT_NE(Slurp("b.npy").find("'<f4'"), std::string::npos);
  const auto back = ReadNpy(Path("b.npy"), ValueType::kF32);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_THAT(F32(*back), ElementsAre(1, -2, 3, static_cast<float>(BFloat16(1e30))));
}

TEST_F(NpyTest, NumbersThatWouldBecomeInfiniteAreRefused) {
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}";
  const float infinity = std::numeric_limits<float>::infinity();
  const std::string bytes = File(1, header, Raw<float>({1, infinity, 3, -70000}));
  const auto half = Read(bytes, ValueType::kF16);
  ASSERT_FALSE(half.ok());
  EXPECT_THAT(std::string(half.status().message()),
              HasSubstr("row 1, column 1, counted from 0, is beyond f16"));
  EXPECT_TRUE(Read(bytes, ValueType::kBF16).ok());
  EXPECT_TRUE(Read(bytes, ValueType::kF64).ok());
}

TEST_F(NpyTest, RefusesInASentence) {
  const auto refusal = [this](const std::string& bytes) {
    const auto array = Read(bytes);
    EXPECT_EQ(array.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(array.status().message());
  };
  const std::string data = Raw<float>({1, 2, 3, 4, 5, 6});
  EXPECT_THAT(refusal("not numpy at all"), HasSubstr("not a .npy file"));
  EXPECT_THAT(refusal(""), HasSubstr("empty"));
  EXPECT_THAT(refusal(File(4, kTwoByThree, data)), HasSubstr("not a .npy file"));
  EXPECT_THAT(refusal(File(1, "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3)}", data)),
              HasSubstr("\"<i8\", expected float16, float32 or float64"));
  EXPECT_THAT(refusal(File(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3)}", data)),
              HasSubstr("\"<u2\""));
  EXPECT_THAT(refusal(File(1, "{'descr': '<f4', 'fortran_order': False, 'shape': ()}", data)),
              HasSubstr("0 dimensions"));
  EXPECT_THAT(refusal(File(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,2,3)}", data)),
              HasSubstr("3 dimensions"));
  EXPECT_THAT(refusal(File(1, kTwoByThree, data + "x")), HasSubstr("does not go with 25 bytes"));
  EXPECT_THAT(refusal(File(1, kTwoByThree, data.substr(4))), HasSubstr("does not go with"));
  const std::string huge =
      "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387905, 4)}";
  EXPECT_THAT(refusal(File(1, huge, data)), HasSubstr("does not go with"));
  EXPECT_THAT(refusal(File(1, "{'descr': [('a', '<f4')], 'fortran_order': False}", data)),
              HasSubstr("header is damaged"));
  EXPECT_FALSE(ReadNpy(Path("none.npy"), ValueType::kF32).ok());
  EXPECT_FALSE(ReadNpy(folder_.string(), ValueType::kF32).ok());
  EXPECT_FALSE(NpyArray::Zeros(ValueType::kF64, int64_t{1} << 40, int64_t{1} << 40, false).ok());
}

TEST_F(NpyTest, NoMutationOfAHeaderCrashes) {
  std::mt19937 random(7);
  const std::string good = File(1, kTwoByThree, Raw<float>({1, 2, 3, 4, 5, 6}));
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good;
    for (int change = 0; change < 3; ++change) {
      bytes[random() % 74] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto array = Read(bytes);
    if (!array.ok()) {
      EXPECT_EQ(array.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST_F(NpyTest, WhatIsWrittenIsReadBack) {
  for (const ValueType type :
       {ValueType::kF32, ValueType::kF16, ValueType::kBF16, ValueType::kF64}) {
    auto array = NpyArray::Zeros(type, 5, 3, false);
    ASSERT_TRUE(array.ok());
    std::visit([]<typename T>(std::vector<T>& values) { values[7] = static_cast<T>(0.25); },
               array->values);
    ASSERT_TRUE(WriteNpy(Path("w.npy"), *array).ok());
    const auto back = ReadNpy(Path("w.npy"), type);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->rows, 5);
    EXPECT_EQ(back->values, array->values);
  }
  EXPECT_EQ(Slurp("w.npy").size() % 8, 0u);
  EXPECT_EQ(Slurp("w.npy").find('\n'), 127u) << "the elements begin at a multiple of 64";
}

/// The stored entries of a zip archive, read from its central directory; checks their CRCs.
std::map<std::string, std::string> Unzip(const std::string& zip) {
  const auto number = [&zip](size_t at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      value |= uint64_t{static_cast<uint8_t>(zip.at(at + i))} << (8 * i);
    }
    return value;
  };
  std::map<std::string, std::string> entries;
  const size_t end = zip.rfind("PK\x05\x06");
  size_t at = number(end + 16, 4);
  for (uint64_t i = number(end + 10, 2); i > 0; --i) {
    EXPECT_EQ(zip.substr(at, 4), "PK\x01\x02");
    EXPECT_EQ(number(at + 10, 2), 0u) << "stored";
    const uint64_t name = number(at + 28, 2);
    const uint64_t size = number(at + 24, 4);
    const uint64_t local = number(at + 42, 4);
    const size_t data = local + 30 + number(local + 26, 2) + number(local + 28, 2);
    const std::string bytes = zip.substr(data, size);
    EXPECT_EQ(
        crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())),
        number(at + 16, 4));
    entries[zip.substr(at + 46, name)] = bytes;
    at += 46 + name + number(at + 30, 2) + number(at + 32, 2);
  }
  return entries;
}

template <typename T>
std::string Npy(const std::string& descr, const std::string& shape, std::vector<T> values) {
  return NpyHeader(descr, shape) + Raw(std::move(values));
}

TEST_F(NpyTest, ArchivesHoldWhatScipyLooksFor) {
  {
    auto writer = NpzWriter::Open(Path("m.npz"));
    ASSERT_TRUE(writer.ok()) << writer.status();
    const std::vector<int64_t> offsets = {0, 2, 2, 3};
    const std::vector<int32_t> columns = {0, 3, 1};
    const std::vector<float> values = {1, 2, 3};
    RowBlock first;
    first.rows = 2;
    first.row_offsets = std::span(offsets).first(3);
    first.column_indices = std::span(columns).first(2);
    first.values = std::span(values).first(2);
    ASSERT_TRUE(writer->Add(first).ok());
    RowBlock second;
    second.row_begin = 2;
    second.rows = 1;
    second.row_offsets = std::span(offsets).last(2);
    second.column_indices = std::span(columns).last(1);
    second.values = std::span(values).last(1);
    ASSERT_TRUE(writer->Add(second).ok());
    ASSERT_TRUE(writer->Finish(3, 4, 3).ok());
  }
  const auto entries = Unzip(Slurp("m.npz"));
  EXPECT_EQ(entries.size(), 5u);
  EXPECT_EQ(entries.at("indices.npy"), Npy<int32_t>("<i4", "(3,)", {0, 3, 1}));
  EXPECT_EQ(entries.at("indptr.npy"), Npy<int64_t>("<i8", "(4,)", {0, 2, 2, 3}));
  EXPECT_EQ(entries.at("shape.npy"), Npy<int64_t>("<i8", "(2,)", {3, 4}));
  EXPECT_EQ(entries.at("data.npy"), Npy<float>("<f4", "(3,)", {1, 2, 3}));
  EXPECT_EQ(entries.at("format.npy"), NpyHeader("|S3", "()") + "csr");
  // Nothing but the archive stays.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(NpyTest, AnUnfinishedArchiveLeavesNothing) {
  { ASSERT_TRUE(NpzWriter::Open(Path("m.npz")).ok()); }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace sparsed::cli
