#include "client/cli/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace sparsed::cli {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;
constexpr int kGzipFormat = 15 + 16;  ///< the largest window, with a gzip header and trailer

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

struct End {
  void operator()(z_stream* stream) const { deflateEnd(stream); }
};

}  // namespace

absl::Status Gzip(const std::string& from, OutputFile& to) {
  const std::unique_ptr<std::FILE, Close> file(std::fopen(from.c_str(), "rb"));
  if (file == nullptr) {
    return absl::ResourceExhaustedError(
        fmt::format("cannot read {} again: {}", from, std::strerror(errno)));
  }
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipFormat, /*memLevel=*/8,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return absl::ResourceExhaustedError(fmt::format("no memory to compress {}", to.path()));
  }
  const std::unique_ptr<z_stream, End> end(&stream);
  std::vector<unsigned char> plain(kBufferBytes), packed(kBufferBytes);
  int code = Z_OK;
  while (code != Z_STREAM_END) {
    if (stream.avail_in == 0) {
      stream.next_in = plain.data();
      stream.avail_in = static_cast<uInt>(std::fread(plain.data(), 1, plain.size(), file.get()));
    }
    if (std::ferror(file.get()) != 0) {
      return absl::ResourceExhaustedError(fmt::format("cannot read {} again", from));
    }
    stream.next_out = packed.data();
    stream.avail_out = static_cast<uInt>(packed.size());
    code = deflate(&stream, std::feof(file.get()) != 0 ? Z_FINISH : Z_NO_FLUSH);
    const absl::Status written = to.Write(packed.data(), packed.size() - stream.avail_out);
    if (!written.ok()) return written;
  }
  return absl::OkStatus();
}

}  // namespace sparsed::cli
