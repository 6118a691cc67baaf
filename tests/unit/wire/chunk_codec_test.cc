#include "proto/wire/chunk_codec.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "sparsed/v1/catalog.pb.h"
#include "sparsed/v1/compute.pb.h"

namespace sparsed::wire {
namespace {

using v1::SpmmRequest;

std::string Flatten(const std::vector<grpc::Slice>& slices) {
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (buffer.Valid()) {
    EXPECT_TRUE(buffer.Dump(&slices).ok());
  }
  return Flatten(slices);
}

/// A buffer of `bytes` cut before each position in `cuts` (ascending).
grpc::ByteBuffer Cut(std::string_view bytes, std::vector<size_t> cuts) {
  std::vector<grpc::Slice> slices;
  size_t begin = 0;
  cuts.push_back(bytes.size());
  for (const size_t cut : cuts) {
    slices.emplace_back(bytes.data() + begin, cut - begin);
    begin = cut;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string RandomBytes(std::mt19937& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

std::string Field(int number, uint64_t value) {
  return Varint(static_cast<uint64_t>(number) << 3) + Varint(value);
}

std::string Field(int number, std::string_view bytes) {
  return Varint(static_cast<uint64_t>(number) << 3 | 2) + Varint(bytes.size()) + std::string(bytes);
}

void ExpectSame(const ChunkView& view, const v1::Chunk& chunk) {
  EXPECT_EQ(view.request_id, chunk.request_id());
  EXPECT_EQ(view.array, chunk.array());
  EXPECT_EQ(view.offset, chunk.offset());
  EXPECT_EQ(view.size, chunk.data().size());
  EXPECT_EQ(Flatten(view.data), chunk.data());
}

/// Decode must read what protobuf reads, wherever the slices are cut.
void ExpectReadsAsProtobuf(std::string_view bytes, const std::vector<size_t>& cuts) {
  SpmmRequest expected;
  const bool legal = expected.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  auto frame = Decode<SpmmRequest>(Cut(bytes, cuts));
  ASSERT_EQ(frame.ok(), legal) << testing::PrintToString(std::string(bytes));
  if (!legal) {
    EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
    return;
  }
  if (const auto* chunk = std::get_if<ChunkView>(&*frame)) {
    ASSERT_TRUE(expected.has_chunk());
    ExpectSame(*chunk, expected.chunk());
  } else {
    EXPECT_EQ(std::get<SpmmRequest>(*frame).SerializeAsString(), expected.SerializeAsString());
    EXPECT_FALSE(expected.has_chunk());
  }
}

void ExpectReadsAsProtobufAtEveryCut(std::string_view bytes) {
  for (size_t i = 0; i <= bytes.size(); ++i) {
    ExpectReadsAsProtobuf(bytes, {i});
    ExpectReadsAsProtobuf(bytes, {i / 2, i});
  }
  std::vector<size_t> every(bytes.size());
  for (size_t i = 0; i < every.size(); ++i) every[i] = i;
  ExpectReadsAsProtobuf(bytes, every);
}

struct Numbers {
  uint64_t request_id;
  uint32_t array;
  uint64_t offset;
  size_t size;
};

class ChunkRoundTrip : public testing::TestWithParam<Numbers> {};

TEST_P(ChunkRoundTrip, OursToProtobufAndBack) {
  const Numbers& n = GetParam();
  std::mt19937 random(1);
  const std::string data = RandomBytes(random, n.size);
  const grpc::ByteBuffer encoded =
      EncodeChunk(n.request_id, n.array, n.offset, grpc::Slice(data.data(), data.size()));

  v1::ComputeReply envelope;
  ASSERT_TRUE(envelope.ParseFromString(Flatten(encoded)));
  ASSERT_TRUE(envelope.has_chunk());
  EXPECT_EQ(envelope.chunk().request_id(), n.request_id);
  EXPECT_EQ(envelope.chunk().array(), n.array);
  EXPECT_EQ(envelope.chunk().offset(), n.offset);
  EXPECT_EQ(envelope.chunk().data(), data);
  EXPECT_EQ(envelope.SerializeAsString(), Flatten(encoded)) << "the usual encoding, byte by byte";

  auto frame = Decode<v1::ComputeReply>(encoded);
  ASSERT_TRUE(frame.ok()) << frame.status();
  ExpectSame(std::get<ChunkView>(*frame), envelope.chunk());
}

TEST_P(ChunkRoundTrip, ProtobufToOursAtEveryCut) {
  const Numbers& n = GetParam();
  if (n.size > 1000) GTEST_SKIP() << "too many cuts";
  std::mt19937 random(2);
  SpmmRequest envelope;
  envelope.mutable_chunk()->set_request_id(n.request_id);
  envelope.mutable_chunk()->set_array(n.array);
  envelope.mutable_chunk()->set_offset(n.offset);
  envelope.mutable_chunk()->set_data(RandomBytes(random, n.size));
  ExpectReadsAsProtobufAtEveryCut(envelope.SerializeAsString());
}

INSTANTIATE_TEST_SUITE_P(Sizes, ChunkRoundTrip,
                         testing::Values(Numbers{0, 0, 0, 0}, Numbers{1, 0, 0, 1},
                                         Numbers{0, 2, 0, 127}, Numbers{300, 1, 1 << 20, 128},
                                         Numbers{~uint64_t{0}, ~uint32_t{0}, ~uint64_t{0}, 5},
                                         Numbers{7, 1, uint64_t{1} << 40, 2 << 20}));

TEST(ChunkCodec, LegalButUnusualEncodings) {
  const std::string data = "some bytes of an array";
  const std::string usual = Field(1, 5) + Field(2, 1) + Field(3, 4096) + Field(15, data);
  SpmmRequest start;
  start.mutable_start()->set_matrix("cora");
  SpmmRequest cancel;
  cancel.mutable_cancel()->set_request_id(9);
  const std::vector<std::string> encodings = {
      Field(15, Field(15, data) + Field(1, 5)),  // data first
      Field(15, Field(15, data) + Field(15, "the last one wins")),
      Field(15, Field(77, "unknown") + usual),
      Field(15, usual + Field(78, 12)),
      Field(15, Field(3, 1) + usual),  // a repeated number: the last wins
      Field(15, Field(1, "wrong wire type") + usual),
      Field(99, 1) + Field(15, usual),  // unknown beside the chunk
      Field(15, usual) + Field(99, "x"),
      Field(15, usual) + Field(15, Field(2, 8)),     // one message in two pieces: merged
      start.SerializeAsString() + Field(15, usual),  // the last of the oneof wins
      Field(15, usual) + start.SerializeAsString(),
      start.SerializeAsString() + cancel.SerializeAsString(),
      Field(15, ""),
      std::string("\xfa\x00", 2) + Varint(usual.size()) + usual,  // a tag longer than it need be
      "",
  };
  for (const std::string& bytes : encodings) ExpectReadsAsProtobufAtEveryCut(bytes);
}

TEST(ChunkCodec, ControlMessages) {
  SpmmRequest request;
  request.mutable_start()->set_matrix("cora");
  request.mutable_start()->set_alpha(0.5);
  ExpectReadsAsProtobufAtEveryCut(request.SerializeAsString());
  auto frame = Decode<SpmmRequest>(Encode(request));
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(std::get<SpmmRequest>(*frame).start().alpha(), 0.5);

  auto empty = Decode<SpmmRequest>(grpc::ByteBuffer());
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(std::get<SpmmRequest>(*empty).part_case(), SpmmRequest::PART_NOT_SET);
}

TEST(ChunkCodec, RefusesLargeControlMessages) {
  v1::UploadRequest request;
  request.mutable_header()->set_name(std::string(kMaxControlBytes, 'n'));
  auto frame = Decode<v1::UploadRequest>(Encode(request));
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(frame.status().message()), testing::HasSubstr("outside its chunk"));

  // A large chunk in an unusual encoding is fine; a large control part that hides behind one is
  // not.
  const std::string data(kMaxControlBytes + 1, 'd');
  const std::string unusual = Field(15, Field(15, data) + Field(1, 5));
  auto chunk = Decode<v1::UploadRequest>(Cut(unusual, {3, 1000}));
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_EQ(Flatten(std::get<ChunkView>(*chunk).data), data);
  EXPECT_FALSE(
      Decode<v1::UploadRequest>(Cut(Field(15, "") + request.SerializeAsString(), {1})).ok());
}

TEST(ChunkCodec, DataAreSharedNotCopied) {
  auto owner = std::make_shared<std::string>(100000, 'x');
  const std::weak_ptr<std::string> watched = owner;
  const std::string& bytes = *owner;
  ChunkView view;
  {
    grpc::ByteBuffer encoded =
        EncodeChunk(1, 0, 0, Borrow(bytes.data(), bytes.size(), std::move(owner)));
    auto frame = Decode<SpmmRequest>(encoded);
    ASSERT_TRUE(frame.ok());
    view = std::get<ChunkView>(*std::move(frame));
  }
  ASSERT_EQ(view.data.size(), 1u);
  EXPECT_EQ(static_cast<const void*>(view.data[0].begin()), bytes.data());
  EXPECT_FALSE(watched.expired());
  view = {};
  EXPECT_TRUE(watched.expired());
}

TEST(ChunkCodec, CopyToJoinsSlices) {
  std::mt19937 random(3);
  const std::string data = RandomBytes(random, 5000);
  const std::string bytes = Flatten(EncodeChunk(3, 1, 8, grpc::Slice(data)));
  auto frame = Decode<SpmmRequest>(Cut(bytes, {1, 2, 9, 9, 700, 4000}));
  ASSERT_TRUE(frame.ok());
  std::string copy(data.size(), '\0');
  CopyTo(std::get<ChunkView>(*frame), reinterpret_cast<std::byte*>(copy.data()));
  EXPECT_EQ(copy, data);
}

TEST(ChunkCodec, RandomBytesReadAsProtobufReadsThem) {
  const google::protobuf::LogSilencer silence;
  std::mt19937 random(4);
  SpmmRequest start;
  start.mutable_start()->set_matrix("m");
  start.mutable_start()->mutable_b()->mutable_shape()->set_rows(1000);
  const std::vector<std::string> seeds = {
      start.SerializeAsString(),
      Flatten(EncodeChunk(300, 2, 99999, grpc::Slice(std::string("0123456789")))),
      Field(15, Field(15, "abc") + Field(1, 70000)) + Field(2, "xy")};
  for (int round = 0; round < 30000; ++round) {
    std::string bytes =
        round % 4 == 0 ? RandomBytes(random, random() % 24) : seeds[random() % seeds.size()];
    for (uint32_t change = random() % 4; change > 0 && !bytes.empty(); --change) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1);
          break;
        default:
          bytes.insert(at, 1, static_cast<char>(random()));
      }
    }
    const size_t cut = bytes.empty() ? 0 : random() % bytes.size();
    ExpectReadsAsProtobuf(bytes, {cut / 3, cut});
    if (HasFatalFailure()) return;
  }
}

TEST(ChunkCodec, ParseOfUnaryMessages) {
  v1::MatrixInfo info;
  info.set_name("cora");
  v1::MatrixInfo parsed;
  EXPECT_TRUE(Parse(Encode(info), parsed).ok());
  EXPECT_EQ(parsed.name(), "cora");
  EXPECT_EQ(Parse(Cut("\x0a\x50short", {}), parsed).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Parse(grpc::ByteBuffer(), parsed).ok());
}

}  // namespace
}  // namespace sparsed::wire
