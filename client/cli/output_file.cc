#include "client/cli/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace sparsed::cli {

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  struct stat existing {};
  if (stat(path.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode)) {
    return absl::InvalidArgumentError(fmt::format("{} exists and is not a plain file", path));
  }
  const std::string temporary = fmt::format("{}.partial-{}", path, getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("cannot create {}: {}", path, std::strerror(errno)));
  }
  return OutputFile(path, temporary, file);
}

OutputFile::~OutputFile() {
  if (file_) unlink(temporary_path_.c_str());
}

absl::Status OutputFile::Failed(std::string_view doing) const {
  return absl::ResourceExhaustedError(
      fmt::format("cannot {} {}: {}", doing, path_, std::strerror(errno)));
}

absl::Status OutputFile::Write(const void* data, size_t size) {
  if (size > 0 && std::fwrite(data, 1, size, file_.get()) != size) return Failed("write");
  return absl::OkStatus();
}

absl::Status OutputFile::Patch(size_t offset, std::string_view text) {
  if (std::fflush(file_.get()) != 0 ||
      pwrite(fileno(file_.get()), text.data(), text.size(), static_cast<off_t>(offset)) !=
          static_cast<ssize_t>(text.size())) {
    return Failed("write");
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  std::FILE* const file = file_.release();
  if (std::fclose(file) != 0) {
    const absl::Status failed = Failed("write");
    unlink(temporary_path_.c_str());
    return failed;
  }
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    const absl::Status failed = Failed("name");
    unlink(temporary_path_.c_str());
    return failed;
  }
  return absl::OkStatus();
}

}  // namespace sparsed::cli
