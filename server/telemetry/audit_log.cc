#include "server/telemetry/audit_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/time/time.h"
#include "server/log/log.h"

namespace sparsed::server {
namespace {

std::string LineOf(const AuditEntry& entry) {
  nlohmann::ordered_json line = {
      {"time",
       absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(entry.time), absl::UTCTimeZone())},
      {"tenant", entry.tenant},
      {"caller", entry.caller},
      {"operation", entry.operation}};
  if (!entry.name.empty()) line["name"] = entry.name;
  if (!entry.result.empty()) line["result"] = entry.result;
  line["status"] = absl::StatusCodeToString(entry.status.code());
  if (!entry.status.ok()) line["message"] = std::string(entry.status.message());
  if (!entry.request_id.empty()) line["request_id"] = entry.request_id;
  if (!entry.from.empty()) line["from"] = entry.from;
  // Names are what clients sent: what is no UTF-8 is replaced.
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// All of it, or none as far as can be told.
bool WriteWhole(int fd, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(std::string path) {
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(path)));
  if (absl::Status status = log->OpenFile(); !status.ok()) return status;
  log->thread_ = std::thread([raw = log.get()] { raw->Run(); });
  return log;
}

AuditLog::~AuditLog() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

absl::Status AuditLog::OpenFile() {
  struct stat there = {}, open = {};
  const bool same = file_.open() && fstat(file_.fd(), &open) == 0 &&
                    stat(path_.c_str(), &there) == 0 && there.st_dev == open.st_dev &&
                    there.st_ino == open.st_ino;
  if (same) return absl::OkStatus();
  Descriptor fresh(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (!fresh.open()) {
    return absl::FailedPreconditionError(fmt::format("--audit-log: cannot append to {}: {}", path_,
                                                     std::generic_category().message(errno)));
  }
  file_ = std::move(fresh);
  return absl::OkStatus();
}

void AuditLog::Write(AuditEntry entry) {
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() >= kMostWaiting) {
      ++lost_;
      return;
    }
    waiting_.push_back(std::move(entry));
  }
  changed_.NotifyAll();
}

void AuditLog::Run() {
  while (true) {
    std::deque<AuditEntry> entries;
    {
      const MutexLock lock(mutex_);
      while (waiting_.empty() && !closing_) changed_.Wait(mutex_);
      if (waiting_.empty()) return;
      entries.swap(waiting_);
    }
    WriteAll(entries);
  }
}

void AuditLog::WriteAll(const std::deque<AuditEntry>& entries) {
  absl::Status status = OpenFile();
  for (const AuditEntry& entry : entries) {
    if (status.ok() && !WriteWhole(file_.fd(), LineOf(entry))) {
      status = absl::FailedPreconditionError(fmt::format(
          "--audit-log: cannot write to {}: {}", path_, std::generic_category().message(errno)));
    }
    ++(status.ok() ? written_ : lost_);
  }
  if (!status.ok() && !failing_) {
    Log(LogLevel::kError, "the audit log loses entries",
        {{"message", std::string(status.message())}});
  }
  failing_ = !status.ok();
}

}  // namespace sparsed::server
