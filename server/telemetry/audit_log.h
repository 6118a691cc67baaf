// Who changed what, or tried to: a line of JSON for each.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "base/mutex.h"

namespace sparsed::server {

struct AuditEntry {
  std::string tenant, caller;  ///< empty: nothing says who it was
  std::string operation;       ///< as metrics have it
  std::string name;            ///< of the matrix; empty: it was refused before its first message
  std::string result{};        ///< what came of it: a copy, a product that stays; empty: nothing
  absl::Status status;
  std::string request_id{};  ///< what the caller knows it by
  std::string from{};        ///< address of who was not let in
  std::chrono::system_clock::time_point time = std::chrono::system_clock::now();
};

/// Appends to a file, on a thread of its own; opens it anew when it was moved or removed. Entries
/// that cannot be written are counted, and nobody waits for them. Thread-safe.
class AuditLog {
 public:
  /// Entries that wait to be written.
  static constexpr size_t kMostWaiting = 10000;
  struct Counts {
    int64_t written = 0, lost = 0;
  };

  /// Errors: those of opening the file, which is made with mode 0600.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(std::string path);
  /// Writes what waits.
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void Write(AuditEntry entry);
  Counts counts() const { return {written_, lost_}; }

 private:
  explicit AuditLog(std::string path) : path_(std::move(path)) {}
  absl::Status OpenFile();
  void Run();
  /// On the thread, or without one.
  void WriteAll(const std::deque<AuditEntry>& entries);

  const std::string path_;
  Descriptor file_;
  bool failing_ = false;  ///< and the log has it
  std::atomic<int64_t> written_ = 0, lost_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::deque<AuditEntry> waiting_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  ///< last
};

}  // namespace sparsed::server
