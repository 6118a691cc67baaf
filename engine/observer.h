// What the engine reports while it works; the server turns it into metrics.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/requester.h"
#include "kernels/problem.h"

namespace sparsed::engine {

struct DenseExpiry;
struct MatrixExpiry;
class Tenant;
enum class Quota : uint8_t;

/// One kernel run of a request (not of a trial).
struct KernelRun {
  Operation operation;
  std::string_view kernel;
  std::string_view device;
  double seconds = 0;
  double flops = 0;             ///< useful floating point operations
  double roofline_seconds = 0;  ///< memory-bound minimum: bytes to move over the device's rate
};

/// A preparation that ended.
struct PreparationReport {
  std::string state;     ///< "ready", "failed", "cancelled"
  std::string pattern;   ///< its hash
  std::string sentence;  ///< why it failed, or what came of it
  double seconds = 0;
  bool asked_for =
      false;  ///< by an upload or a client; else it restored, or tried a product's signature
  Requester requester = {};
};

/// Called from worker slots and workers: implementations are thread-safe and do not block.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void OnKernelRun(const KernelRun&) {}
  /// So many requests, two or more, ran as one on the "cpu" or a GPU.
  virtual void OnBatch(std::string_view /*device*/, int64_t /*requests*/) {}
  /// A request was computed by so many GPUs, two or more, each with its columns.
  virtual void OnDistributed(int64_t /*parts*/) {}
  /// So many bytes of buffers that are distributed were put together on the host, or cut there, for
  /// what is not computed where they lie.
  virtual void OnMovedByHost(int64_t /*bytes*/) {}
  /// A stage of a preparation ended: "features", "lsh_cluster", "aspt", "trial", "restore", ...
  virtual void OnPreparationStage(std::string_view /*stage*/, double /*seconds*/) {}
  /// A trial waited so long for a worker slot of "cpu" or a GPU, for one run.
  virtual void OnTrialWait(std::string_view /*device*/, double /*seconds*/) {}
  /// A preparation built a layout of this kind on the "cpu" or, a step of it at least, on a GPU.
  virtual void OnLayoutBuilt(std::string_view /*kind*/, std::string_view /*device*/,
                             double /*seconds*/) {}
  /// A stored array is damaged; `sentence` names it.
  virtual void OnDamage(std::string_view /*sentence*/) {}
  /// The GPU serves no more until a restart; `sentence` says why.
  virtual void OnDeviceLost(std::string_view /*sentence*/) {}
  /// The data directory is gone (UNAVAILABLE, with a sentence), or is there again (OK).
  virtual void OnStore(const absl::Status& /*status*/) {}
  /// A buffer was deleted because nothing used it, or could not be.
  virtual void OnDenseExpired(const DenseExpiry&) {}
  virtual void OnMatrixExpired(const MatrixExpiry&) {}
  /// Since the last call of it so often, the tenant's use went past its soft limit.
  virtual void OnSoftLimit(const Tenant& /*tenant*/, Quota /*quota*/, int64_t /*times*/) {}
  /// What became of a pipeline for a signature: "tried", "ruled_out", "no_memory", "no_time".
  virtual void OnPipeline(std::string_view /*outcome*/) {}
  /// A model that serves ("used"), or is only watched ("watched"), estimated for a signature what
  /// was then measured: its first choice had this share of the best speed that was measured.
  virtual void OnModelChoice(std::string_view /*model*/, std::string_view /*role*/,
                             double /*share*/) {}
  /// A model that was to be used or watched is not; `sentence` names it and says why.
  virtual void OnModelProblem(std::string_view /*sentence*/) {}
  /// Constants of a device were measured; `sentence` says so, and how long that took.
  virtual void OnCalibrated(std::string_view /*device*/, std::string_view /*sentence*/) {}
  /// What was measured of a device cannot be read, kept or found out; `sentence` says why.
  virtual void OnCalibrationProblem(std::string_view /*sentence*/) {}
  /// "ready", "failed", "cancelled".
  virtual void OnPreparationEnd(std::string_view /*state*/) {}
  /// Likewise, after it, with all that there is to say.
  virtual void OnPreparationReport(const PreparationReport& /*report*/) {}
};

}  // namespace sparsed::engine
