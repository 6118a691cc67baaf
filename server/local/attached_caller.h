// A caller on this machine that attached to a matrix: what it was given, and what it says it ran.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "engine/execution/attachments.h"
#include "server/telemetry/attached_runs.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed::engine {
class Engine;
}

namespace sparsed::server {

/// Of one connection. Used by one thread at a time, except for Collect.
class AttachedCaller {
 public:
  /// `usage`: see AttachMatrix of local.proto. Its errors.
  static absl::StatusOr<std::unique_ptr<AttachedCaller>> Attach(engine::Engine& engine,
                                                                std::string tenant,
                                                                const v1::AttachMatrix& request,
                                                                const Descriptor& usage);
  AttachedCaller(const AttachedCaller&) = delete;
  AttachedCaller& operator=(const AttachedCaller&) = delete;
  ~AttachedCaller();

  /// What says that the matrix changed.
  absl::StatusOr<Descriptor> Sequence() const;

  /// Blocks on the disk and on copies. Errors as of ExportRun in local.proto.
  absl::StatusOr<v1::ExportedRun> Export(const v1::ExportRun& request);
  absl::StatusOr<Descriptor> Get(uint64_t id) const;
  /// What it names is gone when this returns, if nobody else has it: which may take a while.
  absl::Status Release(uint64_t run);

  /// For each operation that it ran since the last call. What it says may be anything. On one
  /// thread at a time, whatever another one does here.
  void Collect(const std::function<void(const AttachedRuns&)>& use);

 private:
  static constexpr size_t kCounters = 12;

  AttachedCaller(std::shared_ptr<engine::Attachment> attachment, const uint64_t* usage);
  absl::StatusOr<engine::ExportedRun> ExportOf(const v1::ExportRun& request);

  const std::shared_ptr<engine::Attachment> attachment_;
  const uint64_t* const usage_;             ///< the caller's page, mapped
  std::array<uint64_t, kCounters> seen_{};  ///< Collect's
  std::map<uint64_t, engine::ExportedRun> runs_;
  uint64_t next_ = 1;
};

}  // namespace sparsed::server
