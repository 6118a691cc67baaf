#include "client/cli/compress.h"

#include <fmt/format.h>
#include <lzma.h>
#include <zlib.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "client/cli/plain_input.h"
#include "client/cli/zstandard.h"

namespace sparsed::cli {
namespace {

constexpr int kGzipFormat = 15 + 16;  ///< the largest window, with a gzip header and trailer

struct Ending {
  std::string_view text, compression;
};
constexpr Ending kEndings[] = {{".gz", "gzip"}, {".xz", "xz"}, {".zst", "Zstandard"}};

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

absl::Status Gzip(std::FILE* file, OutputFile& to) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipFormat, /*memLevel=*/8,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return NoMemory(to);
  }
  const auto end_deflate = [](z_stream* s) { deflateEnd(s); };
  const std::unique_ptr<z_stream, decltype(end_deflate)> end(&stream);
  PlainInput plain(file);
  std::vector<unsigned char> packed(PlainInput::kBytes);
  int code = Z_OK;
  while (code != Z_STREAM_END) {
    if (stream.avail_in == 0) {
      if (!plain.Next()) return CannotRead(to);
      stream.next_in = plain.data();
      stream.avail_in = static_cast<uInt>(plain.size());
    }
    stream.next_out = packed.data();
    stream.avail_out = static_cast<uInt>(packed.size());
    code = deflate(&stream, plain.last() ? Z_FINISH : Z_NO_FLUSH);
    const absl::Status written = to.Write(packed.data(), packed.size() - stream.avail_out);
    if (!written.ok()) return written;
  }
  return absl::OkStatus();
}

absl::Status Xz(std::FILE* file, OutputFile& to) {
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_easy_encoder(&stream, LZMA_PRESET_DEFAULT, LZMA_CHECK_CRC64) != LZMA_OK) {
    return NoMemory(to);
  }
  const std::unique_ptr<lzma_stream, decltype(&lzma_end)> end(&stream, lzma_end);
  PlainInput plain(file);
  std::vector<unsigned char> packed(PlainInput::kBytes);
  lzma_ret code = LZMA_OK;
  while (code == LZMA_OK) {
    if (stream.avail_in == 0 && !plain.last()) {
      if (!plain.Next()) return CannotRead(to);
      stream.next_in = plain.data();
      stream.avail_in = plain.size();
    }
    stream.next_out = packed.data();
    stream.avail_out = packed.size();
    code = lzma_code(&stream, plain.last() ? LZMA_FINISH : LZMA_RUN);
    const absl::Status written = to.Write(packed.data(), packed.size() - stream.avail_out);
    if (!written.ok()) return written;
  }
  return code == LZMA_STREAM_END ? absl::OkStatus() : NoMemory(to);
}

}  // namespace

std::string_view CompressionByName(std::string_view path) {
  for (const Ending& ending : kEndings) {
    if (path.ends_with(ending.text)) return ending.compression;
  }
  return {};
}

std::string_view WithoutCompression(std::string_view path) {
  for (const Ending& ending : kEndings) {
    if (path.ends_with(ending.text)) return path.substr(0, path.size() - ending.text.size());
  }
  return path;
}

absl::Status Compress(const std::string& from, std::string_view compression, OutputFile& to) {
  const File file(std::fopen(from.c_str(), "rb"));
  if (file == nullptr) {
    return absl::ResourceExhaustedError(
        fmt::format("cannot read {} again: {}", from, std::strerror(errno)));
  }
  return compression == "gzip" ? Gzip(file.get(), to)
         : compression == "xz" ? Xz(file.get(), to)
                               : ToZstandard(file.get(), to);
}

}  // namespace sparsed::cli
