// A file system in memory that forgets whatever was not synced, fails on demand, and is full.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/store/file_system.h"

namespace sparsed::engine {

/// Paths are absolute; "/" is there. Thread-safe.
class ForgetfulFileSystem final : public FileSystem {
 public:
  ForgetfulFileSystem();

  /// Calls so far, of the file system and of its files.
  int64_t calls() const;
  /// The n-th call from now on fails (1: the next): with INTERNAL, half done if it is a write, and
  /// as Linux does if it is a sync: what was to be synced counts as clean but is not on the disk.
  void FailCall(int64_t n);
  /// The n-th call from now on and all that follow fail, until Restart.
  void CutPowerAt(int64_t n);
  /// Bytes that all files together may have.
  void SetCapacity(int64_t bytes);
  /// What FreeBytes says; by default the truth.
  void ClaimFreeBytes(int64_t bytes);

  enum class Survivors {
    kSynced,      ///< what was synced, nothing else
    kEverything,  ///< all: the process was killed, the machine lives on (and can lose power later)
    kRandom,      ///< what was synced, and of the rest any names and any sectors
  };
  /// The machine comes back: locks are gone, files that were open are dead, no fault is pending.
  void Restart(Survivors survivors, uint32_t seed = 0);

  /// Contents of a file, to be looked at or damaged on the disk; null if there is none.
  std::string* Contents(const std::string& path);
  /// Names in a directory.
  std::vector<std::string> Names(const std::string& directory);

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override;
  absl::StatusOr<bool> Exists(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override;
  absl::Status CreateDirectory(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override;

 private:
  struct Node;
  class OpenFile;
  class HeldLock;
  using NodePtr = std::shared_ptr<Node>;

  /// Counts a call; the error that it is to have.
  absl::Status Count(const std::string& what);
  bool PowerIsOn() const { return cut_at_ < 0 || calls_ < cut_at_; }
  NodePtr Find(const std::string& path);
  /// The directory that holds `path`, and in `*name` the last part.
  NodePtr FindParent(const std::string& path, std::string* name);
  int64_t UsedBytes() const;
  void Forget(Node& node, Survivors survivors, std::mt19937& random);

  mutable std::mutex mutex_;
  NodePtr root_;
  int64_t calls_ = 0;
  int64_t fail_at_ = -1;
  int64_t cut_at_ = -1;
  int64_t capacity_ = int64_t{1} << 40;
  int64_t claimed_free_ = -1;
  uint64_t generation_ = 0;
  std::set<std::string> locks_;
};

}  // namespace sparsed::engine
