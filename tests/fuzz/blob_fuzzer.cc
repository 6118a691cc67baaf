// Any file in the place of a blob is read as what was written, or found damaged with its path and
// the offset. Half of the inputs get checksums that are right, so that the fields behind them
// count.
#include <xxhash.h>

#include <vector>

#include "engine/store/blob.h"
#include "engine/store/description.h"
#include "tests/fault/store/forgetful_file_system.h"
#include "tests/fuzz/check.h"

namespace sparsed::engine {
namespace {

using fuzz::Check;

constexpr size_t kHeaderBytes = 64, kChecksumBytes = 16;

void PutChecksum(std::string& file, size_t begin, size_t end, size_t at) {
  if (begin > end || at + kChecksumBytes > file.size()) return;
  XXH128_canonical_t checksum;
  XXH128_canonicalFromHash(&checksum, XXH3_128bits(file.data() + begin, end - begin));
  std::memcpy(file.data() + at, &checksum, sizeof(checksum));
}

/// A version 2 file of one block, as far as the header's fields fit.
void MendChecksums(std::string& file) {
  if (file.size() < kHeaderBytes + 2 * kChecksumBytes) return;
  uint64_t description_bytes = 0;
  std::memcpy(&description_bytes, file.data() + 40, sizeof(description_bytes));
  description_bytes %= file.size() - kHeaderBytes - 2 * kChecksumBytes + 1;
  std::memcpy(file.data() + 40, &description_bytes, sizeof(description_bytes));
  const size_t table = file.size() - 2 * kChecksumBytes - description_bytes;
  PutChecksum(file, 0, kHeaderBytes - kChecksumBytes, kHeaderBytes - kChecksumBytes);
  PutChecksum(file, kHeaderBytes, table, table);
  PutChecksum(file, table, file.size() - kChecksumBytes, file.size() - kChecksumBytes);
}

}  // namespace
}  // namespace sparsed::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparsed::engine;  // NOLINT(google-build-using-namespace)
  using sparsed::fuzz::Check;
  if (size == 0) return 0;
  std::string file(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) != 0) MendChecksums(file);
  ForgetfulFileSystem files;
  Check(files.CreateDirectory("/blobs").ok());
  BlobFolder folder(files, "/blobs");
  Check(files.Open(folder.PathOf(1), OpenMode::kCreate).ok());
  *files.Contents(folder.PathOf(1)) = file;

  auto reader = BlobReader::Open(folder, 1);
  if (!reader.ok()) {
    Check(absl::IsDataLoss(reader.status()) && !reader.status().message().empty());
    return 0;
  }
  Check(reader->length() >= 0);
  size_t bytes = 0;
  for (int64_t block = 0; block < reader->blocks(); ++block) {
    std::vector<std::byte> out(reader->BlockBytes(block));
    bytes += out.size();
    const absl::Status read = reader->ReadBlock(block, out);
    Check(read.ok() || absl::IsDataLoss(read));
  }
  Check(bytes <= file.size());
  const auto description = DecodeDescription(reader->description());
  if (description) {
    const std::string text = Encode(*description);
    Check(text.size() <= kMaxDescriptionBytes);
    const auto again = DecodeDescription(text);
    Check(again && Encode(*again) == text);
  }
  return 0;
}
