#include "proto/wire/chunk_codec.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "sparsed/v1/catalog.pb.h"

namespace sparsed::wire {
namespace {

using google::protobuf::MessageLite;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr int kChunkField = 15;
constexpr uint32_t Tag(int field, WireFormatLite::WireType type) {
  return static_cast<uint32_t>(field) << 3 | type;
}
constexpr uint32_t kChunkTag = Tag(kChunkField, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kRequestIdTag =
    Tag(v1::Chunk::kRequestIdFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kArrayTag = Tag(v1::Chunk::kArrayFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kOffsetTag = Tag(v1::Chunk::kOffsetFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kDataTag =
    Tag(v1::Chunk::kDataFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

/// Envelope tag and length, the three numbers with their tags, data tag and length.
constexpr size_t kMaxHeadBytes = 6 * 1 + 5 * 10;

/// Reads over the boundaries of slices.
class SliceCursor {
 public:
  explicit SliceCursor(const std::vector<grpc::Slice>& slices) : slices_(slices) {
    for (const grpc::Slice& slice : slices) remaining_ += slice.size();
  }

  size_t remaining() const { return remaining_; }

  /// All tags of ours are one byte; a longer encoding is left to protobuf.
  std::optional<uint32_t> ReadTag() {
    if (remaining_ == 0) return std::nullopt;
    return ReadByte();
  }

  std::optional<uint64_t> ReadVarint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (remaining_ == 0) return std::nullopt;
      const uint8_t byte = ReadByte();
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return std::nullopt;
  }

  /// What is left, as slices that share the bytes.
  std::vector<grpc::Slice> Rest() const {
    std::vector<grpc::Slice> rest;
    rest.reserve(slices_.size() - index_);
    size_t begin = position_;
    for (size_t i = index_; i < slices_.size(); ++i, begin = 0) {
      if (begin == slices_[i].size()) continue;
      rest.push_back(begin == 0 ? slices_[i] : slices_[i].sub(begin, slices_[i].size()));
    }
    return rest;
  }

 private:
  uint8_t ReadByte() {
    while (position_ == slices_[index_].size()) {
      ++index_;
      position_ = 0;
    }
    --remaining_;
    return slices_[index_].begin()[position_++];
  }

  const std::vector<grpc::Slice>& slices_;
  size_t index_ = 0;
  size_t position_ = 0;  // in slices_[index_]
  size_t remaining_ = 0;
};

absl::Status Malformed(const MessageLite& message) {
  return absl::InvalidArgumentError(fmt::format("the bytes are not a {}", message.GetTypeName()));
}

absl::Status StatusOf(const grpc::Status& status, const MessageLite& message) {
  return status.ok() ? absl::OkStatus() : Malformed(message);
}

}  // namespace

grpc::ByteBuffer EncodeChunk(uint64_t request_id, uint32_t array, uint64_t offset,
                             grpc::Slice data) {
  std::array<uint8_t, kMaxHeadBytes> numbers;
  uint8_t* end = numbers.data();
  const auto put = [&end](uint32_t tag, uint64_t value) {
    if (value == 0) return;  // proto3 leaves defaults out
    end = CodedOutputStream::WriteTagToArray(tag, end);
    end = CodedOutputStream::WriteVarint64ToArray(value, end);
  };
  put(kRequestIdTag, request_id);
  put(kArrayTag, array);
  put(kOffsetTag, offset);
  put(kDataTag, data.size());

  const size_t numbers_size = static_cast<size_t>(end - numbers.data());
  std::array<uint8_t, kMaxHeadBytes> head;
  uint8_t* head_end = CodedOutputStream::WriteTagToArray(kChunkTag, head.data());
  head_end = CodedOutputStream::WriteVarint64ToArray(numbers_size + data.size(), head_end);
  head_end = std::copy(numbers.data(), end, head_end);

  const std::array<grpc::Slice, 2> slices = {
      grpc::Slice(head.data(), static_cast<size_t>(head_end - head.data())), std::move(data)};
  return grpc::ByteBuffer(slices.data(), slices[1].size() == 0 ? 1 : 2);
}

grpc::ByteBuffer EncodeSharedChunk(uint64_t request_id, uint32_t array, uint64_t offset,
                                   v1::SharedMemory place, size_t size) {
  v1::UploadRequest envelope;  // all of them have it in the same field
  v1::Chunk& chunk = *envelope.mutable_chunk();
  chunk.set_request_id(request_id);
  chunk.set_array(array);
  chunk.set_offset(offset);
  *chunk.mutable_shared() = std::move(place);
  chunk.set_shared_bytes(size);
  return Encode(envelope);
}

void CopyTo(const ChunkView& chunk, std::byte* destination) {
  for (const grpc::Slice& slice : chunk.data) {
    if (slice.size() == 0) continue;
    std::memcpy(destination, slice.begin(), slice.size());
    destination += slice.size();
  }
}

grpc::ByteBuffer Encode(const MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status Parse(const grpc::ByteBuffer& bytes, MessageLite& message) {
  const google::protobuf::LogSilencer silence;  // the sender learns what was wrong, not our log
  if (!bytes.Valid()) return message.ParseFromString("") ? absl::OkStatus() : Malformed(message);
  grpc::ByteBuffer shared(bytes);
  grpc::ProtoBufferReader reader(&shared);
  if (!reader.status().ok()) return StatusOf(reader.status(), message);
  return message.ParseFromZeroCopyStream(&reader) ? absl::OkStatus() : Malformed(message);
}

absl::Status ParseRequest(const grpc::ByteBuffer& bytes, MessageLite& message) {
  if (bytes.Valid() && bytes.Length() > kMaxRequestBytes) {
    return absl::InvalidArgumentError(fmt::format("a {} of {} bytes is larger than {}",
                                                  message.GetTypeName(), bytes.Length(),
                                                  kMaxRequestBytes));
  }
  return Parse(bytes, message);
}

namespace internal {

std::optional<ChunkView> ReadUsualChunk(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  if (!bytes.Valid() || !bytes.Dump(&slices).ok()) return std::nullopt;
  SliceCursor cursor(slices);
  if (cursor.ReadTag() != kChunkTag) return std::nullopt;
  if (const auto length = cursor.ReadVarint(); !length || *length != cursor.remaining()) {
    return std::nullopt;
  }
  ChunkView chunk;
  while (cursor.remaining() > 0) {
    const auto tag = cursor.ReadTag();
    const auto value = cursor.ReadVarint();
    if (!tag || !value) return std::nullopt;
    if (*tag == kRequestIdTag) {
      chunk.request_id = *value;
    } else if (*tag == kArrayTag) {
      chunk.array = static_cast<uint32_t>(*value);  // as protobuf does
    } else if (*tag == kOffsetTag) {
      chunk.offset = *value;
    } else if (*tag == kDataTag && *value == cursor.remaining()) {
      chunk.data = cursor.Rest();
      chunk.size = *value;
      return chunk;
    } else {
      return std::nullopt;
    }
  }
  return chunk;
}

absl::Status ParseEnvelope(const grpc::ByteBuffer& bytes, MessageLite& envelope) {
  // A small control message can become a large object; so bound what protobuf will expand, first.
  if (bytes.Valid() && bytes.Length() > kMaxControlBytes) {
    grpc::ByteBuffer shared(bytes);
    grpc::ProtoBufferReader reader(&shared);
    if (!reader.status().ok()) return StatusOf(reader.status(), envelope);
    CodedInputStream input(&reader);
    size_t control_bytes = 0;
    while (const uint32_t tag = input.ReadTag()) {
      const int begin = input.CurrentPosition();
      if (!WireFormatLite::SkipField(&input, tag)) return Malformed(envelope);
      if (tag != kChunkTag) control_bytes += static_cast<size_t>(input.CurrentPosition() - begin);
    }
    if (control_bytes > kMaxControlBytes) {
      return absl::InvalidArgumentError(
          fmt::format("a {} holds {} bytes outside its chunk, more than {}", envelope.GetTypeName(),
                      control_bytes, kMaxControlBytes));
    }
  }
  return Parse(bytes, envelope);
}

ChunkView TakeChunk(v1::Chunk& chunk) {
  ChunkView view;
  view.request_id = chunk.request_id();
  view.array = chunk.array();
  view.offset = chunk.offset();
  view.size = chunk.data().size();
  if (view.size > 0) {
    auto held = std::make_shared<const std::string>(std::move(*chunk.mutable_data()));
    const std::string& data = *held;
    view.data.push_back(Borrow(data.data(), data.size(), std::move(held)));
  }
  if (chunk.has_shared()) {
    view.shared = std::move(*chunk.mutable_shared());
    view.shared_bytes = chunk.shared_bytes();
  }
  return view;
}

}  // namespace internal
}  // namespace sparsed::wire
