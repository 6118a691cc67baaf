#include "engine/store/blob.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "engine/store/description.h"

namespace sparsed::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "blob files are little-endian");

constexpr std::string_view kSuffix = ".blob";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr uint32_t kFormatVersion = 2;
/// The oldest that is read.
constexpr uint32_t kOldestVersion = 1;

// As the catalog's tables have it.
constexpr int64_t kMostElements = int64_t{1} << 50;

using Checksum = std::array<std::byte, 16>;
static_assert(sizeof(Checksum) == sizeof(XXH128_canonical_t));

Checksum ChecksumOf(std::span<const std::byte> data) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data.data(), data.size()));
  Checksum checksum;
  std::memcpy(checksum.data(), canonical.digest, checksum.size());
  return checksum;
}

struct Header {
  std::array<char, 8> magic = {'S', 'P', 'R', 'S', 'B', 'L', 'O', 'B'};
  uint32_t format_version = kFormatVersion;
  uint32_t element_type = 0;
  int64_t length = 0;
  int64_t number = 0;
  uint64_t block_bytes = BlobReader::kBlockBytes;
  uint64_t description_bytes = 0;
  Checksum checksum = {};
};
constexpr int64_t kHeaderBytes = BlobReader::kHeaderBytes;
static_assert(sizeof(Header) == kHeaderBytes);

Checksum ChecksumOf(const Header& header) {
  return ChecksumOf(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, checksum)));
}

Header MakeHeader(int64_t number, const Array& array, size_t description_bytes) {
  Header header;
  header.element_type = static_cast<uint32_t>(array.type);
  header.length = array.length;
  header.number = number;
  header.description_bytes = description_bytes;
  header.checksum = ChecksumOf(header);
  return header;
}

/// Whether it is one that we write, or an older program wrote, for the blob of that number.
bool IsSound(const Header& header, int64_t number) {
  const Header ours;
  return header.magic == ours.magic && header.checksum == ChecksumOf(header) &&
         header.format_version >= kOldestVersion && header.format_version <= kFormatVersion &&
         header.number == number && header.block_bytes == ours.block_bytes &&
         header.element_type >= static_cast<uint32_t>(ElementType::kI32) &&
         header.element_type <= static_cast<uint32_t>(ElementType::kBF16) && header.length >= 0 &&
         header.length <= kMostElements && header.description_bytes <= kMaxDescriptionBytes;
}

int64_t Blocks(int64_t data_bytes) {
  constexpr auto kBlock = static_cast<int64_t>(BlobReader::kBlockBytes);
  return data_bytes / kBlock + (data_bytes % kBlock != 0 ? 1 : 0);
}

/// The number in "0000000000000017.blob".
bool ParseName(std::string_view name, std::string_view suffix, int64_t* number) {
  if (!name.ends_with(suffix)) return false;
  name.remove_suffix(suffix.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), *number);
  return error == std::errc() && end == name.data() + name.size() && *number >= 0;
}

std::string NameOf(int64_t number, std::string_view suffix) {
  return fmt::format("{:016}{}", number, suffix);
}

}  // namespace

absl::Status BlobFolder::Prepare() {
  if (absl::Status status = files_.CreateDirectory(path_); !status.ok()) return status;
  return files_.SyncDirectory(path_.substr(0, path_.rfind('/')));
}

absl::StatusOr<std::vector<int64_t>> BlobFolder::List() {
  const absl::StatusOr<std::vector<std::string>> names = files_.List(path_);
  if (!names.ok()) return names.status();
  std::vector<int64_t> numbers;
  for (const std::string& name : *names) {
    int64_t number = 0;
    if (ParseName(name, kSuffix, &number) && name == NameOf(number, kSuffix)) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

absl::Status BlobFolder::RemoveUnfinished() {
  const absl::StatusOr<std::vector<std::string>> names = files_.List(path_);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    int64_t number = 0;
    if (!ParseName(name, kTemporarySuffix, &number)) continue;
    absl::Status status = files_.Remove(fmt::format("{}/{}", path_, name));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string BlobFolder::PathOf(int64_t number) const {
  return fmt::format("{}/{}", path_, NameOf(number, kSuffix));
}

absl::Status BlobFolder::CheckRoom(int64_t bytes) {
  const absl::StatusOr<int64_t> free = files_.FreeBytes(path_);
  if (!free.ok()) return free.status();
  if (bytes <= *free - kCatalogRoomBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("the disk is too full: {} bytes are needed in {}, {} are free and {} of them are "
                  "kept for the catalog; delete matrices or buffers, or make room on the disk",
                  bytes, path_, *free, kCatalogRoomBytes));
}

absl::Status BlobFolder::Write(int64_t number, const Array& array, std::string_view description,
                               Stop stop) {
  const std::string temporary = fmt::format("{}/{}", path_, NameOf(number, kTemporarySuffix));
  absl::Status status = WriteFile(temporary, number, array, description, stop);
  if (status.ok()) status = files_.Rename(temporary, PathOf(number));
  if (!status.ok()) (void)files_.Remove(temporary);
  return status;
}

absl::Status BlobFolder::WriteFile(const std::string& path, int64_t number, const Array& array,
                                   std::string_view description, Stop stop) {
  absl::StatusOr<std::unique_ptr<File>> file = files_.Open(path, OpenMode::kCreateNew);
  if (!file.ok()) return file.status();
  const Header header = MakeHeader(number, array, description.size());
  absl::Status status = (*file)->Write(0, std::as_bytes(std::span(&header, 1)));
  std::vector<Checksum> table;
  const std::span<const std::byte> data(array.buffer.data(), array.bytes());
  for (size_t done = 0; status.ok() && done < data.size();) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      return absl::CancelledError("cancelled while writing to disk");
    }
    const auto block = data.subspan(done, std::min(BlobReader::kBlockBytes, data.size() - done));
    table.push_back(ChecksumOf(block));
    status = (*file)->Write(kHeaderBytes + static_cast<int64_t>(done), block);
    done += block.size();
  }
  if (!status.ok()) return status;
  const auto table_bytes = std::as_bytes(std::span(table));
  std::vector<std::byte> tail(table_bytes.begin(), table_bytes.end());
  const auto description_bytes = std::as_bytes(std::span(description));
  tail.insert(tail.end(), description_bytes.begin(), description_bytes.end());
  const Checksum checksum = ChecksumOf(tail);
  tail.insert(tail.end(), checksum.begin(), checksum.end());
  status = (*file)->Write(kHeaderBytes + static_cast<int64_t>(data.size()), tail);
  if (!status.ok()) return status;
  return (*file)->Sync();
}

absl::Status BlobReader::Damaged(int64_t offset, std::string_view what) const {
  return absl::DataLossError(fmt::format("{} is damaged at byte {}: {}", path_, offset, what));
}

absl::Status BlobReader::ReadExactly(int64_t offset, std::span<std::byte> out) {
  const absl::StatusOr<size_t> n = file_->Read(offset, out);
  if (!n.ok()) {
    // A bad sector.
    if (absl::IsInternal(n.status())) return Damaged(offset, std::string(n.status().message()));
    return n.status();
  }
  if (*n != out.size()) return Damaged(offset + static_cast<int64_t>(*n), "the file ends here");
  return absl::OkStatus();
}

absl::StatusOr<BlobReader> BlobReader::Open(const Blob& blob, ElementType type, int64_t length) {
  absl::StatusOr<BlobReader> reader = Open(blob.folder(), blob.number());
  if (!reader.ok() || (reader->type_ == type && reader->length_ == length)) return reader;
  return reader->Damaged(0, fmt::format("its header says {} elements of {}, the catalog {} of {}",
                                        reader->length_, Name(reader->type_), length, Name(type)));
}

absl::StatusOr<BlobReader> BlobReader::Open(BlobFolder& folder, int64_t number) {
  const std::string path = folder.PathOf(number);
  absl::StatusOr<std::unique_ptr<File>> file = folder.files_.Open(path, OpenMode::kRead);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(fmt::format("{} is missing", path));
  }
  if (!file.ok()) return file.status();
  BlobReader reader(path, *std::move(file));
  const absl::StatusOr<int64_t> size = reader.file_->Size();
  if (!size.ok()) return size.status();
  if (absl::Status status = reader.ReadHeader(number); !status.ok()) return status;
  if (absl::Status status = reader.ReadTail(*size); !status.ok()) return status;
  return reader;
}

absl::Status BlobReader::ReadHeader(int64_t number) {
  Header header;
  absl::Status status = ReadExactly(0, std::as_writable_bytes(std::span(&header, 1)));
  if (!status.ok()) return status;
  if (!IsSound(header, number)) {
    return Damaged(0, fmt::format("its header is not that of blob {} in a format up to {}", number,
                                  kFormatVersion));
  }
  type_ = static_cast<ElementType>(header.element_type);
  length_ = header.length;
  data_bytes_ = length_ * static_cast<int64_t>(SizeOf(type_));
  description_.resize(header.description_bytes);
  return absl::OkStatus();
}

absl::Status BlobReader::ReadTail(int64_t size) {
  const auto table_bytes = static_cast<size_t>(Blocks(data_bytes_)) * kChecksumBytes;
  const size_t tail_bytes = table_bytes + description_.size() + kChecksumBytes;
  const int64_t offset = kHeaderBytes + data_bytes_;
  const int64_t expected = offset + static_cast<int64_t>(tail_bytes);
  if (size != expected) {
    return Damaged(std::min(size, expected),
                   fmt::format("it has {} bytes instead of {}", size, expected));
  }
  std::vector<std::byte> tail(tail_bytes);
  if (absl::Status status = ReadExactly(offset, tail); !status.ok()) return status;
  const auto said = std::span(tail).first(tail_bytes - kChecksumBytes);
  if (!std::ranges::equal(ChecksumOf(said), std::span(tail).last(kChecksumBytes))) {
    return Damaged(offset, "the checksum table does not match its own checksum");
  }
  std::memcpy(description_.data(), tail.data() + table_bytes, description_.size());
  tail.resize(table_bytes);
  table_ = std::move(tail);
  return absl::OkStatus();
}

size_t BlobReader::BlockBytes(int64_t block) const {
  const int64_t begin = block * static_cast<int64_t>(kBlockBytes);
  return static_cast<size_t>(std::min(static_cast<int64_t>(kBlockBytes), data_bytes_ - begin));
}

absl::Status BlobReader::ReadBlock(int64_t block, std::span<std::byte> out) {
  const int64_t offset = kHeaderBytes + block * static_cast<int64_t>(kBlockBytes);
  if (absl::Status status = ReadExactly(offset, out); !status.ok()) return status;
  return CheckBlock(block, out);
}

absl::Status BlobReader::CheckBlock(int64_t block, std::span<const std::byte> data) const {
  const auto expected =
      std::span(table_).subspan(static_cast<size_t>(block) * kChecksumBytes, kChecksumBytes);
  if (std::ranges::equal(ChecksumOf(data), expected)) return absl::OkStatus();
  return Damaged(
      kHeaderBytes + block * static_cast<int64_t>(kBlockBytes),
      fmt::format("the checksum of block {} ({} bytes) does not match", block, data.size()));
}

}  // namespace sparsed::engine
