#include "proto/wire/snapshot_archive.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <system_error>

namespace sparsed::wire {
namespace {

constexpr int64_t kBlock = 512;  ///< of tar
constexpr int64_t kEndBytes = 2 * kBlock;
constexpr int64_t kMostOctal = int64_t{1} << 33;  ///< sizes from here on are binary
/// Of a part of MANIFEST that Finish makes.
constexpr size_t kPart = size_t{64} << 10;

/// POSIX ustar's.
struct Header {
  std::array<char, 100> name = {};
  std::array<char, 8> mode = {'0', '0', '0', '0', '6', '0', '0', 0};
  std::array<char, 8> user = {'0', '0', '0', '0', '0', '0', '0', 0};
  std::array<char, 8> group = {'0', '0', '0', '0', '0', '0', '0', 0};
  std::array<char, 12> size = {};
  std::array<char, 12> modified = {'0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', 0};
  std::array<char, 8> checksum = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
  char type = '0';
  std::array<char, 100> link = {};
  std::array<char, 8> magic = {'u', 's', 't', 'a', 'r', 0, '0', '0'};
  std::array<char, 247> rest = {};
};
static_assert(sizeof(Header) == kBlock);

std::string HeaderOf(std::string_view name, int64_t bytes) {
  Header header;
  std::memcpy(header.name.data(), name.data(), std::min(name.size(), header.name.size() - 1));
  if (bytes < kMostOctal) {
    fmt::format_to_n(header.size.data(), 11, "{:011o}", bytes);
  } else {
    // As GNU tar and POSIX pax read it.
    header.size[0] = static_cast<char>(0x80);
    for (size_t i = 0; i < 8; ++i) {
      header.size[11 - i] = static_cast<char>((bytes >> (8 * i)) & 0xff);
    }
  }
  std::string block(reinterpret_cast<const char*>(&header), sizeof(header));
  int64_t sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  fmt::format_to_n(block.data() + offsetof(Header, checksum), 6, "{:06o}", sum);
  block[offsetof(Header, checksum) + 6] = 0;
  return block;
}

std::optional<int64_t> SizeIn(const std::array<char, 12>& field) {
  int64_t bytes = 0;
  if (static_cast<unsigned char>(field[0]) == 0x80) {
    for (size_t i = 4; i < 12; ++i) {
      bytes = static_cast<int64_t>(static_cast<uint64_t>(bytes) << 8 |
                                   static_cast<unsigned char>(field[i]));
    }
    return bytes;
  }
  const auto [end, error] = std::from_chars(field.data(), field.data() + 11, bytes, 8);
  if (error != std::errc() || end != field.data() + 11) return std::nullopt;
  return bytes;
}

int64_t PaddingOf(int64_t bytes) { return (kBlock - bytes % kBlock) % kBlock; }

absl::Status NoSnapshot() { return absl::InvalidArgumentError("it is no snapshot of sparsed's"); }

}  // namespace

std::optional<int64_t> SnapshotBlobNumber(std::string_view name) {
  constexpr std::string_view kFolder = "blobs/", kSuffix = ".blob";
  constexpr size_t kDigits = 16, kMostDigits = 19;
  if (!name.starts_with(kFolder) || !name.ends_with(kSuffix)) return std::nullopt;
  name.remove_prefix(kFolder.size());
  if (name.size() < kSuffix.size() + kDigits || name.size() > kSuffix.size() + kMostDigits) {
    return std::nullopt;
  }
  name.remove_suffix(kSuffix.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool sound = error == std::errc() && end == name.data() + name.size() && number >= 0 &&
                     fmt::format("{:016}", number) == name;
  return sound ? std::optional(number) : std::nullopt;
}

SnapshotChecksums::SnapshotChecksums() : state_(XXH3_createState()) {}
SnapshotChecksums::~SnapshotChecksums() { XXH3_freeState(state_); }

void SnapshotChecksums::Begin(std::string_view name) {
  files_.push_back({std::string(name)});
  XXH3_128bits_reset(state_);
}

void SnapshotChecksums::Add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_, bytes.data(), bytes.size());
}

void SnapshotChecksums::End() {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_);
  files_.back().high = hash.high64;
  files_.back().low = hash.low64;
  manifest_bytes_ += static_cast<int64_t>(Line(files_.size() - 1).size());
}

std::string SnapshotChecksums::Line(size_t file) const {
  return fmt::format("{:016x}{:016x}  {}\n", files_[file].high, files_[file].low,
                     files_[file].name);
}

std::string SnapshotWriter::Begin(std::string_view name, int64_t bytes) {
  checksums_.Begin(name);
  bytes_ = bytes;
  return HeaderOf(name, bytes);
}

std::string SnapshotWriter::End() {
  checksums_.End();
  return std::string(static_cast<size_t>(PaddingOf(bytes_)), '\0');
}

std::string SnapshotWriter::Finish() {
  std::string part;
  if (end_ == End::kDone) return part;
  if (end_ == End::kNotYet) part = HeaderOf(kSnapshotManifest, checksums_.manifest_bytes());
  end_ = End::kListing;
  while (listed_ < checksums_.files() && part.size() < kPart) part += checksums_.Line(listed_++);
  if (listed_ < checksums_.files()) return part;
  part.append(static_cast<size_t>(PaddingOf(checksums_.manifest_bytes()) + kEndBytes), '\0');
  end_ = End::kDone;
  return part;
}

absl::Status SnapshotReader::Damaged(int64_t offset, std::string_view what) const {
  return absl::DataLossError(fmt::format("it is damaged at byte {}: {}", offset, what));
}

absl::Status SnapshotReader::Add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    size_t take = bytes.size();
    absl::Status status;
    switch (state_) {
      case State::kHeader: {
        take = std::min(take, static_cast<size_t>(kBlock) - header_.size());
        header_.append(reinterpret_cast<const char*>(bytes.data()), take);
        if (header_.size() == static_cast<size_t>(kBlock)) status = OnHeader();
        break;
      }
      case State::kFile: {
        take = static_cast<size_t>(std::min<int64_t>(left_, static_cast<int64_t>(take)));
        checksums_.Add(bytes.first(take));
        status = handler_.OnBytes(bytes.first(take));
        left_ -= static_cast<int64_t>(take);
        if (status.ok() && left_ == 0) status = EndFile();
        break;
      }
      case State::kManifest:
      case State::kPadding:
      case State::kEnd: {
        take = static_cast<size_t>(std::min<int64_t>(left_, static_cast<int64_t>(take)));
        status = state_ == State::kManifest ? CheckManifest(bytes.first(take))
                                            : CheckZeros(bytes.first(take));
        left_ -= static_cast<int64_t>(take);
        if (!status.ok() || left_ > 0) break;
        if (state_ == State::kManifest) {
          state_ = State::kEnd;
          left_ = PaddingOf(checksums_.manifest_bytes()) + kEndBytes;
        } else {
          state_ = state_ == State::kPadding ? State::kHeader : State::kDone;
        }
        break;
      }
      case State::kDone:
        return Damaged(at_, "there is something behind its end");
    }
    if (!status.ok()) return status;
    at_ += static_cast<int64_t>(take);
    bytes = bytes.subspan(take);
  }
  return absl::OkStatus();
}

absl::Status SnapshotReader::Finish() const {
  if (state_ == State::kDone) return absl::OkStatus();
  if (at_ == 0) return absl::InvalidArgumentError("it is empty");
  const std::string_view first = std::string_view(header_).substr(0, kSnapshotFacts.size());
  if (at_ < kBlock && first != kSnapshotFacts.substr(0, first.size())) return NoSnapshot();
  return Damaged(at_, "it ends here, before its end");
}

absl::Status SnapshotReader::OnHeader() {
  const int64_t begin = at_ - at_ % kBlock;
  const std::string block = std::move(header_);
  header_.clear();
  Header header;
  std::memcpy(&header, block.data(), sizeof(header));
  const std::string name(header.name.data(), strnlen(header.name.data(), header.name.size()));
  const std::optional<int64_t> bytes = SizeIn(header.size);
  // Whatever a header says besides, it is the one that we write, or damaged.
  if (!bytes.has_value() || *bytes < 0 || HeaderOf(name, *bytes) != block) {
    const bool ours = begin > 0 || name == kSnapshotFacts || header.magic == Header().magic;
    if (ours) return Damaged(begin, "the header of a file is not as it was written");
    return NoSnapshot();
  }
  if (begin == 0 && name != kSnapshotFacts) {
    return absl::InvalidArgumentError(fmt::format(
        "it is a tar archive, but no snapshot of sparsed's: that begins with {}", kSnapshotFacts));
  }
  if (absl::Status status = CheckOrder(name, *bytes); !status.ok()) return status;
  if (name == kSnapshotManifest) {
    state_ = State::kManifest;
    left_ = *bytes;
    return absl::OkStatus();
  }
  checksums_.Begin(name);
  if (absl::Status status = handler_.OnFile(name, *bytes); !status.ok()) return status;
  state_ = State::kFile;
  left_ = *bytes;
  padding_ = PaddingOf(*bytes);
  return *bytes == 0 ? EndFile() : absl::OkStatus();
}

absl::Status SnapshotReader::CheckOrder(std::string_view name, int64_t bytes) {
  const int64_t begin = at_ - at_ % kBlock;
  constexpr std::array kFixed = {kSnapshotFacts, kSnapshotContents, kSnapshotCatalog};
  constexpr int kBlobs = 3, kDamaged = 4, kManifest = 5;
  if (stage_ < kBlobs) {
    if (name != kFixed[static_cast<size_t>(stage_)]) {
      return Damaged(begin, fmt::format("{} should be here", kFixed[static_cast<size_t>(stage_)]));
    }
    ++stage_;
    return absl::OkStatus();
  }
  if (checksums_.files() >= kMostSnapshotFiles && name != kSnapshotManifest) {
    return Damaged(begin, fmt::format("it has more than {} files", kMostSnapshotFiles));
  }
  if (const std::optional<int64_t> number = SnapshotBlobNumber(name); number.has_value()) {
    if (stage_ > kBlobs || *number <= last_blob_) return Damaged(begin, "a file out of its order");
    last_blob_ = *number;
    return absl::OkStatus();
  }
  if (name == kSnapshotDamaged && stage_ == kBlobs) {
    stage_ = kDamaged;
    return absl::OkStatus();
  }
  if (name == kSnapshotManifest && stage_ < kManifest) {
    stage_ = kManifest;
    if (bytes == checksums_.manifest_bytes()) return absl::OkStatus();
    return Damaged(begin, fmt::format("{} is not that of the files before it", name));
  }
  return Damaged(begin, "a file that no snapshot has");
}

absl::Status SnapshotReader::EndFile() {
  checksums_.End();
  state_ = padding_ > 0 ? State::kPadding : State::kHeader;
  left_ = padding_;
  return handler_.OnFileEnd();
}

absl::Status SnapshotReader::CheckManifest(std::span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size();) {
    if (expected_.empty()) expected_ = checksums_.Line(listed_++);
    const size_t compare = std::min(expected_.size(), bytes.size() - i);
    if (std::memcmp(expected_.data(), bytes.data() + i, compare) != 0) {
      return Damaged(at_ + static_cast<int64_t>(i),
                     fmt::format("{} does not match its checksum", checksums_.name(listed_ - 1)));
    }
    expected_.erase(0, compare);
    i += compare;
  }
  return absl::OkStatus();
}

absl::Status SnapshotReader::CheckZeros(std::span<const std::byte> bytes) const {
  const auto found = std::ranges::find_if(bytes, [](std::byte b) { return b != std::byte{0}; });
  if (found == bytes.end()) return absl::OkStatus();
  return Damaged(at_ + (found - bytes.begin()), "here should be nothing but zeros");
}

}  // namespace sparsed::wire
