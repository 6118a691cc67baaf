#include "client/cli/snapshot_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/status.h"

namespace sparsed::cli {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
/// Of snapshot.json, and of a line of contents.jsonl or damaged.txt.
constexpr size_t kMostText = size_t{64} << 10;
constexpr mode_t kDirectoryMode = 0700;
constexpr mode_t kFileMode = 0600;
constexpr std::string_view kUnfinished = "catalog.sqlite.restoring";

absl::Status FromErrno(int error, std::string sentence) {
  switch (error) {
    case ENOENT:  // NOT_FOUND is a server's word
      return absl::InvalidArgumentError(sentence);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(sentence);
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOTDIR:
    case EISDIR:
      return absl::FailedPreconditionError(sentence);
    default:
      return absl::UnknownError(sentence);
  }
}

absl::Status NotEmpty(std::string_view path) {
  return absl::FailedPreconditionError(
      fmt::format("{} is not empty: a snapshot is restored to a directory of its own, which takes "
                  "the place of the old one afterwards",
                  path));
}

}  // namespace

absl::Status SnapshotCheck::Add(std::string_view bytes) {
  return reader_.Add(std::as_bytes(std::span(bytes)));
}

absl::StatusOr<SnapshotSummary> SnapshotCheck::Finish() {
  if (absl::Status status = reader_.Finish(); !status.ok()) return status;
  summary_.bytes = reader_.bytes();
  return std::move(summary_);
}

absl::Status SnapshotCheck::OnFile(std::string_view name, int64_t bytes) {
  file_ = name;
  text_.clear();
  ++summary_.files;
  if (name == wire::kSnapshotFacts && bytes > static_cast<int64_t>(kMostText)) {
    return absl::DataLossError(fmt::format("its {} has {} bytes, which none has", name, bytes));
  }
  return sink_ == nullptr ? absl::OkStatus() : sink_->OnFile(name, bytes);
}

absl::Status SnapshotCheck::OnBytes(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (file_ == wire::kSnapshotFacts) {
    text_ += text;
  } else if (file_ == wire::kSnapshotContents || file_ == wire::kSnapshotDamaged) {
    for (const char c : text) {
      if (c != '\n') {
        text_ += c;
        if (text_.size() <= kMostText) continue;
        return absl::DataLossError(fmt::format("a line of its {} is too long", file_));
      }
      if (absl::Status status = OnLine(); !status.ok()) return status;
    }
  }
  return sink_ == nullptr ? absl::OkStatus() : sink_->OnBytes(bytes);
}

absl::Status SnapshotCheck::OnLine() {
  const std::string line = std::exchange(text_, {});
  if (file_ == wire::kSnapshotDamaged) {
    if (summary_.damaged.size() < static_cast<size_t>(SnapshotSummary::kMostListed)) {
      summary_.damaged.push_back(line);
    }
    return absl::OkStatus();
  }
  if (++summary_.listed > SnapshotSummary::kMostListed) return absl::OkStatus();
  Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return absl::DataLossError(
        fmt::format("line {} of its {} is no object of JSON", summary_.listed, file_));
  }
  summary_.contents.push_back(std::move(object));
  return absl::OkStatus();
}

absl::Status SnapshotCheck::OnFacts() {
  summary_.facts = Json::parse(text_, nullptr, /*allow_exceptions=*/false);
  const auto format = summary_.facts.find("format");
  if (!summary_.facts.is_object() || format == summary_.facts.end() ||
      !format->is_number_integer()) {
    return absl::DataLossError(fmt::format("its {} is damaged", file_));
  }
  if (format->get<int64_t>() <= wire::kSnapshotFormat) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("it has format {}, of a newer sparsed; this sparsectl knows formats up to {}",
                  format->get<int64_t>(), wire::kSnapshotFormat));
}

absl::Status SnapshotCheck::OnFileEnd() {
  if (file_ == wire::kSnapshotFacts) {
    if (absl::Status status = OnFacts(); !status.ok()) return status;
  } else if (!text_.empty()) {
    return absl::DataLossError(fmt::format("its {} ends within a line", file_));
  }
  return sink_ == nullptr ? absl::OkStatus() : sink_->OnFileEnd();
}

absl::StatusOr<SnapshotSummary> ReadSnapshot(
    const std::string& path, SnapshotSink* sink,
    const std::function<void(int64_t done, int64_t total)>& progress,
    const std::atomic<bool>& stop) {
  const bool input = path == "-";
  const Descriptor opened(input ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!input && !opened.open()) {
    return absl::InvalidArgumentError(
        fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  const int fd = input ? STDIN_FILENO : opened.fd();
  struct stat facts = {};
  const int64_t total = fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) ? facts.st_size : 0;
  const std::string named = input ? "standard input" : path;
  SnapshotCheck check(sink);
  std::vector<char> buffer(kBufferBytes);
  while (true) {
    if (stop) return absl::CancelledError("interrupted");
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return absl::InvalidArgumentError(
          fmt::format("{} cannot be read: {}", named, std::strerror(errno)));
    }
    if (n == 0) break;
    const absl::Status status = check.Add({buffer.data(), static_cast<size_t>(n)});
    if (absl::IsDataLoss(status) || absl::IsInvalidArgument(status)) {
      return Reworded(status, fmt::format("{}: {}", named, std::string(status.message())));
    }
    if (!status.ok()) return status;
    progress(check.bytes(), total);
  }
  absl::StatusOr<SnapshotSummary> summary = check.Finish();
  if (summary.ok()) return summary;
  return Reworded(summary.status(),
                  fmt::format("{}: {}", named, std::string(summary.status().message())));
}

struct RestoredDirectory::Open {
  Descriptor lock;
  Descriptor file;
  std::string name;  ///< of the file; empty: it is left out
};

RestoredDirectory::RestoredDirectory(std::string path)
    : path_(std::move(path)), open_(std::make_unique<Open>()) {}

absl::Status RestoredDirectory::Failed(std::string_view doing, const std::string& what) const {
  const int error = errno;
  return FromErrno(error, fmt::format("cannot {} {}: {}", doing, what, std::strerror(error)));
}

absl::StatusOr<std::unique_ptr<RestoredDirectory>> RestoredDirectory::Make(
    const std::string& path) {
  std::unique_ptr<RestoredDirectory> directory(new RestoredDirectory(path));
  std::error_code error;
  if (mkdir(path.c_str(), kDirectoryMode) == 0) {
    directory->made_ = true;
  } else if (errno != EEXIST) {
    return directory->Failed("make the directory", path);
  } else {
    const bool empty = std::filesystem::is_empty(path, error);
    if (error || !std::filesystem::is_directory(path, error)) {
      return absl::FailedPreconditionError(
          fmt::format("{} is no directory that can be read", path));
    }
    if (!empty) return NotEmpty(path);
    if (chmod(path.c_str(), kDirectoryMode) != 0) return directory->Failed("protect", path);
  }
  // Whoever makes this file is the only one that goes on.
  const std::string lock = path + "/LOCK";
  directory->open_->lock =
      Descriptor(open(lock.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode));
  if (!directory->open_->lock.open() && errno == EEXIST) return NotEmpty(path);
  if (!directory->open_->lock.open() ||
      flock(directory->open_->lock.fd(), LOCK_EX | LOCK_NB) != 0) {
    return directory->Failed("lock", path);
  }
  if (mkdir((path + "/blobs").c_str(), kDirectoryMode) != 0) {
    absl::Status status = directory->Failed("make the directory", path + "/blobs");
    unlink(lock.c_str());
    return status;
  }
  directory->ours_ = true;
  return directory;
}

RestoredDirectory::~RestoredDirectory() {
  open_->file = Descriptor();
  std::error_code ignored;
  if (ours_) {
    for (const std::string_view name :
         {std::string_view("blobs"), kUnfinished, std::string_view("LOCK")}) {
      std::filesystem::remove_all(fmt::format("{}/{}", path_, name), ignored);
    }
  }
  // Unless there is something of others in it.
  if (made_) std::filesystem::remove(path_, ignored);
}

absl::Status RestoredDirectory::OnFile(std::string_view name, int64_t) {
  open_->name.clear();
  if (name == wire::kSnapshotCatalog) {
    open_->name = fmt::format("{}/{}", path_, kUnfinished);
  } else if (wire::SnapshotBlobNumber(name).has_value()) {
    open_->name = fmt::format("{}/{}", path_, name);
  } else {
    return absl::OkStatus();
  }
  open_->file =
      Descriptor(open(open_->name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode));
  return open_->file.open() ? absl::OkStatus() : Failed("make", open_->name);
}

absl::Status RestoredDirectory::OnBytes(std::span<const std::byte> bytes) {
  if (open_->name.empty()) return absl::OkStatus();
  while (!bytes.empty()) {
    const ssize_t n = write(open_->file.fd(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("write", open_->name);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status RestoredDirectory::OnFileEnd() {
  open_->file = Descriptor();
  open_->name.clear();
  return absl::OkStatus();
}

absl::Status RestoredDirectory::Commit() {
  // One call for all of its files: there may be a hundred thousand.
  if (syncfs(open_->lock.fd()) != 0) return Failed("sync", path_);
  const std::string to = fmt::format("{}/{}", path_, wire::kSnapshotCatalog);
  if (rename(fmt::format("{}/{}", path_, kUnfinished).c_str(), to.c_str()) != 0) {
    return Failed("name", to);
  }
  made_ = ours_ = false;
  return syncfs(open_->lock.fd()) == 0 ? absl::OkStatus() : Failed("sync", path_);
}

}  // namespace sparsed::cli
