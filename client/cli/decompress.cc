#include "client/cli/decompress.h"

#include <fmt/format.h>
#include <lzma.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "client/cli/compressed_input.h"
#include "client/cli/zstandard.h"

namespace sparsed::cli {
namespace {

class Gzip : public ByteStream {
 public:
  explicit Gzip(std::unique_ptr<ByteStream> stream) : input_(std::move(stream)) {}
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  ~Gzip() override { inflateEnd(&z_); }

  bool Begin() { return inflateInit2(&z_, 15 + 16) == Z_OK; }  // a gzip header is expected

  absl::StatusOr<size_t> Read(char* to, size_t size) override {
    constexpr size_t kMost = size_t{1} << 30;
    z_.next_out = reinterpret_cast<Bytef*>(to);
    z_.avail_out = static_cast<uInt>(std::min(size, kMost));
    const uInt room = z_.avail_out;
    while (z_.avail_out == room && !ended_) {
      if (z_.avail_in == 0) {
        const absl::StatusOr<std::string_view> piece = input_.Next();
        if (!piece.ok()) return piece.status();
        if (piece->empty()) {
          if (!between_members_) return EndsEarly();
          ended_ = true;
          break;
        }
        z_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece->data()));
        z_.avail_in = static_cast<uInt>(piece->size());
      }
      if (between_members_) {
        // What follows the last member, such as padding, is nothing to gzip either.
        if (*z_.next_in != 0x1f) {
          ended_ = true;
          break;
        }
        inflateReset(&z_);
        between_members_ = false;
      }
      const int code = inflate(&z_, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        between_members_ = true;
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        return Damaged(z_.msg != nullptr ? z_.msg : "gzip");
      }
    }
    return room - z_.avail_out;
  }

 private:
  CompressedInput input_;
  z_stream z_ = {};
  bool between_members_ = false;
  bool ended_ = false;
};

class Xz : public ByteStream {
 public:
  explicit Xz(std::unique_ptr<ByteStream> stream) : input_(std::move(stream)) {}
  Xz(const Xz&) = delete;
  Xz& operator=(const Xz&) = delete;
  ~Xz() override { lzma_end(&xz_); }

  bool Begin() {
    return lzma_stream_decoder(&xz_, uint64_t{1} << kDecompressionMemoryLog, LZMA_CONCATENATED) ==
           LZMA_OK;
  }

  absl::StatusOr<size_t> Read(char* to, size_t size) override {
    xz_.next_out = reinterpret_cast<uint8_t*>(to);
    xz_.avail_out = size;
    while (xz_.avail_out == size && !ended_) {
      if (xz_.avail_in == 0 && !last_) {
        const absl::StatusOr<std::string_view> piece = input_.Next();
        if (!piece.ok()) return piece.status();
        last_ = piece->empty();
        xz_.next_in = reinterpret_cast<const uint8_t*>(piece->data());
        xz_.avail_in = piece->size();
      }
      switch (lzma_code(&xz_, last_ ? LZMA_FINISH : LZMA_RUN)) {
        case LZMA_OK:
          break;
        case LZMA_STREAM_END:
          ended_ = true;
          break;
        case LZMA_BUF_ERROR:
          return EndsEarly();
        case LZMA_MEMLIMIT_ERROR:
          return NeedsTooMuch("unxz");
        default:
          return Damaged("xz");
      }
    }
    return size - xz_.avail_out;
  }

 private:
  CompressedInput input_;
  lzma_stream xz_ = LZMA_STREAM_INIT;
  bool last_ = false;
  bool ended_ = false;
};

template <typename Stream>
absl::StatusOr<std::unique_ptr<ByteStream>> Begun(std::unique_ptr<ByteStream> compressed) {
  auto stream = std::make_unique<Stream>(std::move(compressed));
  if (!stream->Begin()) return absl::ResourceExhaustedError("no memory to decompress with");
  return stream;
}

constexpr std::string_view kGzip = "gzip", kXz = "xz", kZstandard = "Zstandard";

}  // namespace

std::string_view CompressionOf(std::string_view head) {
  if (head.starts_with("\x1f\x8b")) return kGzip;
  if (head.starts_with(std::string_view("\xfd"
                                        "7zXZ\0",
                                        6))) {
    return kXz;
  }
  if (head.starts_with("\x28\xb5\x2f\xfd")) return kZstandard;
  return {};
}

absl::StatusOr<std::unique_ptr<ByteStream>> Decompressed(std::unique_ptr<ByteStream> compressed,
                                                         std::string_view compression) {
  if (compression == kGzip) return Begun<Gzip>(std::move(compressed));
  if (compression == kXz) return Begun<Xz>(std::move(compressed));
  if (compression == kZstandard) return FromZstandard(std::move(compressed));
  return compressed;
}

}  // namespace sparsed::cli
