#include <zstd.h>

#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/compressed_input.h"
#include "client/cli/plain_input.h"
#include "client/cli/zstandard.h"

namespace sparsed::cli {
namespace {

class Zstandard : public ByteStream {
 public:
  explicit Zstandard(std::unique_ptr<ByteStream> stream) : input_(std::move(stream)) {}
  Zstandard(const Zstandard&) = delete;
  Zstandard& operator=(const Zstandard&) = delete;
  ~Zstandard() override { ZSTD_freeDCtx(context_); }

  bool Begin() {
    context_ = ZSTD_createDCtx();
    return context_ != nullptr && ZSTD_isError(ZSTD_DCtx_setParameter(
                                      context_, ZSTD_d_windowLogMax, kDecompressionMemoryLog)) == 0;
  }

  absl::StatusOr<size_t> Read(char* to, size_t size) override {
    ZSTD_outBuffer out = {to, size, 0};
    while (out.pos == 0 && !ended_) {
      if (in_.pos == in_.size) {
        const absl::StatusOr<std::string_view> piece = input_.Next();
        if (!piece.ok()) return piece.status();
        if (piece->empty()) {
          // What is decoded already may still be inside.
          if (!in_frame_) {
            ended_ = true;
            break;
          }
        }
        in_ = {piece->data(), piece->size(), 0};
      }
      const size_t code = ZSTD_decompressStream(context_, &out, &in_);
      if (ZSTD_isError(code) != 0) {
        const std::string_view what = ZSTD_getErrorName(code);
        return what.find("requires too much memory") == std::string_view::npos
                   ? Damaged(what)
                   : NeedsTooMuch("unzstd --long=31");
      }
      if (in_.size == 0 && out.pos == 0 && code != 0) return EndsEarly();
      in_frame_ = code != 0;
    }
    return out.pos;
  }

 private:
  CompressedInput input_;
  ZSTD_DCtx* context_ = nullptr;
  ZSTD_inBuffer in_ = {nullptr, 0, 0};
  bool in_frame_ = false;
  bool ended_ = false;
};

}  // namespace

bool HasZstandard() { return true; }

absl::StatusOr<std::unique_ptr<ByteStream>> FromZstandard(std::unique_ptr<ByteStream> compressed) {
  auto stream = std::make_unique<Zstandard>(std::move(compressed));
  if (!stream->Begin()) return absl::ResourceExhaustedError("no memory to decompress with");
  return stream;
}

absl::Status ToZstandard(std::FILE* file, OutputFile& to) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                     ZSTD_freeCCtx);
  if (context == nullptr) return NoMemory(to);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  PlainInput plain(file);
  std::vector<unsigned char> packed(PlainInput::kBytes);
  ZSTD_inBuffer in = {nullptr, 0, 0};
  while (true) {
    if (in.pos == in.size && !plain.last()) {
      if (!plain.Next()) return CannotRead(to);
      in = {plain.data(), plain.size(), 0};
    }
    ZSTD_outBuffer out = {packed.data(), packed.size(), 0};
    const size_t left =
        ZSTD_compressStream2(context.get(), &out, &in, plain.last() ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left) != 0) return NoMemory(to);
    if (absl::Status status = to.Write(packed.data(), out.pos); !status.ok()) return status;
    if (plain.last() && left == 0) return absl::OkStatus();
  }
}

}  // namespace sparsed::cli
