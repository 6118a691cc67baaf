// The memory and the queues that processes of this machine share with the server, by the names that
// requests give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/execution/call.h"
#include "engine/memory/tenants.h"
#include "kernels/array.h"
#include "kernels/device_id.h"

namespace sparsed::server {

/// Of the operating system's, fit for secrets.
std::string RandomBytes(size_t count);

/// Memory, which device it is of, and what counts it as one of a tenant's regions.
struct SharedRegion {
  Buffer memory;
  DeviceId device = {};
  engine::TenantHold counted = nullptr;
};

/// Thread-safe.
class SharedRegions {
 public:
  /// Random, of 16 bytes: who has it was told it.
  static std::string NewName();
  void Add(const std::string& name, SharedRegion region);
  /// Requests that found it keep it.
  void Remove(const std::string& name);
  /// From byte `offset` on, one at least. NOT_FOUND; INVALID_ARGUMENT for an offset behind its end.
  absl::StatusOr<SharedRegion> Find(std::string_view name, uint64_t offset) const;
  int64_t count() const;

  void AddQueue(const std::string& name, std::shared_ptr<engine::DeviceQueue> queue);
  void RemoveQueue(const std::string& name);
  /// `place`: a queue's name and a request's number, as requests have them (OpenQueue); empty: no
  /// queue. NOT_FOUND; INVALID_ARGUMENT for one of another length.
  absl::StatusOr<engine::QueueSpec> FindQueue(std::string_view place) const;
  int64_t queues() const;

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::string, SharedRegion> regions_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::shared_ptr<engine::DeviceQueue>> queues_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::server
