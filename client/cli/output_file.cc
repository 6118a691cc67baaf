#include "client/cli/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

namespace sparsed::cli {
namespace {

// Files under way, where a signal's handler finds them: whoever interrupts a product would not look
// for gigabytes of its parts. More than there are places for are left behind, then.
struct Partial {
  std::atomic<bool> taken = false;
  std::atomic<bool> named = false;
  std::array<char, PATH_MAX> path;
};
std::array<Partial, 8> partials;

extern "C" void RemovePartialsAndEnd(int signal) {
  for (const Partial& partial : partials) {
    if (partial.named) unlink(partial.path.data());
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void HandleSignals() {
  static const bool handled = [] {
    for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
      // What is ignored, as by nohup, stays so.
      if (std::signal(signal, RemovePartialsAndEnd) == SIG_IGN) std::signal(signal, SIG_IGN);
    }
    return true;
  }();
  static_cast<void>(handled);
}

}  // namespace

void OutputFile::ForgetPartial::operator()(void* place) const {
  auto& partial = *static_cast<Partial*>(place);
  partial.named = false;
  partial.taken = false;
}

OutputFile::PartialPlace OutputFile::RememberPartial(const std::string& path) {
  HandleSignals();
  if (path.size() >= PATH_MAX) return nullptr;
  for (Partial& partial : partials) {
    if (partial.taken.exchange(true)) continue;
    std::memcpy(partial.path.data(), path.c_str(), path.size() + 1);
    partial.named = true;
    return PartialPlace(&partial);
  }
  return nullptr;
}

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  struct stat existing {};
  if (stat(path.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode)) {
    return absl::InvalidArgumentError(fmt::format("{} exists and is not a plain file", path));
  }
  const std::string temporary = fmt::format("{}.partial-{}", path, getpid());
  PartialPlace place = RememberPartial(temporary);
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("cannot create {}: {}", path, std::strerror(errno)));
  }
  return OutputFile(path, temporary, file, std::move(place));
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

absl::Status OutputFile::KeepPrivate() {
  return fchmod(fileno(file_.get()), S_IRUSR | S_IWUSR) == 0 ? absl::OkStatus() : Failed("protect");
}

absl::Status OutputFile::Sync() {
  return std::fflush(file_.get()) == 0 && fsync(fileno(file_.get())) == 0 ? absl::OkStatus()
                                                                          : Failed("write");
}

absl::Status OutputFile::Commit() {
  const PartialPlace place = std::move(partial_);
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
