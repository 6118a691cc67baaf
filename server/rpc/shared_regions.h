// The memory that processes of this machine share with the server, by the names that requests give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/array.h"

namespace sparsed::server {

/// Of the operating system's, fit for secrets.
std::string RandomBytes(size_t count);

/// Thread-safe.
class SharedRegions {
 public:
  /// Random, of 16 bytes: who has it was told it.
  static std::string NewName();
  void Add(const std::string& name, Buffer memory);
  /// Requests that found it keep it.
  void Remove(const std::string& name);
  /// From byte `offset` on, one at least. NOT_FOUND; INVALID_ARGUMENT for an offset behind its end.
  absl::StatusOr<Buffer> Find(std::string_view name, uint64_t offset) const;
  int64_t count() const;

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::string, Buffer> regions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::server
