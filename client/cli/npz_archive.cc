#include "client/cli/npz_archive.h"

#include <fmt/format.h>
#include <minizip/unzip.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace sparsed::cli {
namespace {

constexpr std::string_view kNpy = ".npy";
constexpr size_t kMostMembers = 10'000;

absl::Status Bad(std::string_view file, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", file, what));
}

struct CloseZip {
  void operator()(void* zip) const { unzClose(zip); }
};
using Zip = std::unique_ptr<void, CloseZip>;

Zip OpenZip(const std::string& path) { return Zip(unzOpen64(path.c_str())); }

/// A member of an archive that was opened for it.
class ZipMember : public ByteStream {
 public:
  explicit ZipMember(Zip zip) : zip_(std::move(zip)) {}

  absl::StatusOr<size_t> Read(char* to, size_t size) override {
    constexpr size_t kMost = size_t{1} << 30;
    if (ended_) return size_t{0};
    const int n = unzReadCurrentFile(zip_.get(), to, static_cast<unsigned>(std::min(size, kMost)));
    if (n < 0) return absl::InvalidArgumentError("the archive is damaged");
    ended_ = n == 0;
    if (ended_ && unzCloseCurrentFile(zip_.get()) == UNZ_CRCERROR) {
      return absl::InvalidArgumentError("the archive is damaged: a checksum does not agree");
    }
    return static_cast<size_t>(n);
  }

 private:
  Zip zip_;
  bool ended_ = false;
};

/// A file without a name, which is gone when it is closed.
class TemporaryFile {
 public:
  static absl::StatusOr<std::shared_ptr<TemporaryFile>> Create() {
    std::error_code ignored;
    std::string path = std::filesystem::temp_directory_path(ignored) / "sparsectl_XXXXXX";
    const int fd = mkstemp(path.data());
    if (fd < 0) {
      return absl::ResourceExhaustedError(fmt::format(
          "cannot create a temporary file {}: {} (TMPDIR says where)", path, std::strerror(errno)));
    }
    unlink(path.c_str());
    return std::make_shared<TemporaryFile>(fd);
  }
  explicit TemporaryFile(int fd) : fd_(fd) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { close(fd_); }

  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

  /// Appends all that is in `source`.
  absl::Status Fill(ByteSource& source) const {
    std::vector<char> piece(size_t{1} << 20);
    while (true) {
      const absl::StatusOr<size_t> n = source.Read(piece.data(), piece.size());
      if (!n.ok()) return At(source.name(), n.status());
      if (*n == 0) return absl::OkStatus();
      for (size_t written = 0; written < *n;) {
        const ssize_t count = write(fd_, piece.data() + written, *n - written);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
          return absl::ResourceExhaustedError(fmt::format(
              "cannot write a temporary file: {} (TMPDIR says where)", std::strerror(errno)));
        }
        written += static_cast<size_t>(count);
      }
    }
  }

 private:
  int fd_;
};

}  // namespace

absl::Status NpzArray::Finish() {
  if (!array_.status().ok()) return At(name_, array_.status());
  char beyond = 0;
  const absl::StatusOr<size_t> more = stream_->Read(&beyond, 1);
  if (!more.ok()) return At(name_, more.status());
  return absl::OkStatus();
}

absl::StatusOr<NpzArchive> NpzArchive::Open(ByteSource source) {
  NpzArchive archive;
  archive.name_ = source.name();
  archive.path_ = source.plain_path();
  if (archive.path_.empty()) {
    const absl::StatusOr<std::shared_ptr<TemporaryFile>> file = TemporaryFile::Create();
    if (!file.ok()) return file.status();
    if (absl::Status status = (*file)->Fill(source); !status.ok()) return status;
    archive.path_ = (*file)->path();
    archive.temporary_ = *file;
  }
  const Zip zip = OpenZip(archive.path_);
  int code = zip ? unzGoToFirstFile(zip.get()) : UNZ_BADZIPFILE;
  while (code == UNZ_OK) {
    std::array<char, 256> name = {};
    unz_file_info64 info = {};
    code = unzGetCurrentFileInfo64(zip.get(), &info, name.data(), name.size() - 1, nullptr, 0,
                                   nullptr, 0);
    if (code != UNZ_OK) break;
    std::string member = name.data();
    if (member.ends_with(kNpy)) member.resize(member.size() - kNpy.size());
    archive.members_.push_back(std::move(member));
    if (archive.members_.size() > kMostMembers) return Bad(archive.name_, "too many members");
    code = unzGoToNextFile(zip.get());
  }
  if (code != UNZ_END_OF_LIST_OF_FILE) {
    return Bad(archive.name_, "the archive is damaged, or ends too early");
  }
  return archive;
}

bool NpzArchive::Has(std::string_view member) const {
  return std::ranges::find(members_, member) != members_.end();
}

absl::StatusOr<std::unique_ptr<ByteStream>> NpzArchive::Member(const std::string& member) const {
  Zip zip = OpenZip(path_);
  if (!zip || unzLocateFile(zip.get(), (member + std::string(kNpy)).c_str(), 1) != UNZ_OK) {
    return Bad(name_, fmt::format("the archive has no array \"{}\", which scipy.sparse.save_npz "
                                  "writes",
                                  member));
  }
  if (unzOpenCurrentFile(zip.get()) != UNZ_OK) {
    return Bad(name_, fmt::format("{}: the archive is damaged", member));
  }
  return std::make_unique<ZipMember>(std::move(zip));
}

absl::StatusOr<NpzArray> NpzArchive::Array(const std::string& member) const {
  absl::StatusOr<std::unique_ptr<ByteStream>> stream = Member(member);
  if (!stream.ok()) return stream.status();
  const std::string name = fmt::format("{}: {}", name_, member);
  absl::StatusOr<NpyStream> array = NpyStream::Open(**stream);
  if (!array.ok()) return At(name, array.status());
  return NpzArray(name, *std::move(stream), *std::move(array));
}

absl::StatusOr<std::string> NpzArchive::Text(const std::string& member) const {
  const absl::StatusOr<std::unique_ptr<ByteStream>> stream = Member(member);
  if (!stream.ok()) return stream.status();
  // The header takes 128 bytes as numpy writes it, a character one or four.
  std::string bytes;
  std::array<char, 512> piece;
  while (bytes.size() < 4096) {
    const absl::StatusOr<size_t> n = (*stream)->Read(piece.data(), piece.size());
    if (!n.ok()) return At(name_, n.status());
    if (*n == 0) break;
    bytes.append(piece.data(), *n);
  }
  const size_t begin = bytes.find('\n');
  if (!bytes.starts_with(kNpyMagic) || begin == std::string::npos) {
    return Bad(name_, fmt::format("{}: this is no array", member));
  }
  std::string text = bytes.substr(begin + 1);
  std::erase(text, '\0');
  return text.substr(0, 16);
}

}  // namespace sparsed::cli
