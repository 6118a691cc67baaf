// Measures every candidate for given problem signatures on a pattern, as the server's preparation
// does it, in this process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/observer.h"
#include "engine/planning/asked.h"
#include "engine/preparation/preparation.h"
#include "kernels/device_id.h"
#include "kernels/problem.h"
#include "tools/corpus/pattern.h"

namespace sparsed::corpus {

/// "spmm:128", "spmm^T:64:tf32", "sddmm:32", "spgemm", as `sparsectl prepare --tune-for` has them,
/// of values of a type ("f32", "f64", "f16", "bf16"). INVALID_ARGUMENT for anything else; widths
/// are those of signatures.
absl::StatusOr<ProblemSignature> ParseSignature(std::string_view text, std::string_view type);

struct MeasureOptions {
  DeviceId device;
  std::vector<ProblemSignature> signatures;  ///< of any types
  bool explore = false;              ///< also what rules and earlier trials of a pattern rule out
  std::vector<engine::Asked> asked;  ///< these besides plain CSR, and no others; empty: candidates
  std::string model;                 ///< directory of one that chooses what is tried; empty: rules
  double expected_requests = engine::PreparationOptions().expected_requests;  ///< by a model
  int threads = 1;
  int64_t memory_bytes = int64_t{16} << 30;  ///< of the host
  double trial_budget_ms = 2000;             ///< for all trials of a signature
  double seconds = 0;  ///< of a pattern, after which no further layout is built; 0: no limit
};

struct Measured {
  std::shared_ptr<const Features> features;  ///< null: there was no memory for them
  std::vector<engine::Measurement> measurements;
  double seconds = 0;  ///< of the preparations
};

/// Used by one thread.
class Measurer {
 public:
  /// FAILED_PRECONDITION, NOT_FOUND or UNAVAILABLE where there is no such device; what Model::Load
  /// says.
  static absl::StatusOr<std::unique_ptr<Measurer>> Open(const MeasureOptions& options);

  /// The processor or the card, and with which driver and kernels it computes.
  const std::string& device_model() const;
  /// OK, or why the device computes no more.
  absl::Status device_status() const;

  /// Errors: RESOURCE_EXHAUSTED (memory); INTERNAL (a preparation failed, with its sentence).
  absl::StatusOr<Measured> Measure(const Pattern& pattern);

 private:
  explicit Measurer(MeasureOptions options) : options_(std::move(options)) {}

  std::vector<ProblemSignature> SignaturesOf(ElementType type) const;
  absl::StatusOr<engine::MatrixLease> Upload(const Pattern& pattern, ElementType type);
  /// Waits until nothing is to be prepared any more.
  absl::Status Finish(const engine::Matrix& matrix);

  const MeasureOptions options_;
  engine::Observer observer_;
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace sparsed::corpus
