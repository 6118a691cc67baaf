// Builds the layouts of one preparation, each once, however many signatures try it.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "engine/catalog/pattern.h"
#include "engine/planning/candidates.h"
#include "engine/preparation/progress.h"
#include "kernels/device_id.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed::engine {

/// Until when a preparation may build layouts and try them.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// `seconds` from now; 0: no limit.
  explicit Deadline(double seconds)
      : seconds_(seconds),
        end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  bool limited() const { return seconds_ > 0; }
  bool passed() const { return limited() && Clock::now() >= end_; }
  /// Until when a trial that begins now waits for worker slots: a little longer, as plain CSR is
  /// timed whatever time there is.
  Clock::time_point ForTrials() const;
  /// Milliseconds that are left of it, `most` at the most.
  double LeftOf(double most) const;
  /// "the preparation's 60 s are used up (--preparation-seconds)".
  std::string Sentence() const;

 private:
  double seconds_;
  Clock::time_point end_;
};

/// Copies an array, or a layout's one at a time, to where they are counted under another use.
absl::Status MoveTo(MemorySource& memory, Array& array);
absl::Status MoveTo(MemorySource& memory, Layout& layout);

/// Used by one thread.
class LayoutBuilder {
 public:
  struct Built {
    std::shared_ptr<Layout> layout;  ///< null: there is none, `note` says why
    double seconds = 0;
    std::string note;              ///< without a full stop
    bool short_of_memory = false;  ///< with more memory there might be one
    bool out_of_time = false;      ///< with more time
  };

  /// `context` has threads, memory and the flag to stop, and may have an accelerator, `gpu`;
  /// `pattern`, `progress` outlive the builder.
  /// A build for trials is given up at `deadline`.
  LayoutBuilder(const Pattern& pattern, std::shared_ptr<const Layout> csr, BuildContext context,
                DeviceId gpu, Progress& progress, Deadline deadline);

  /// The candidate's layout for trials of the signature: the one that was built before, or a new
  /// one. Want of memory or time is a note. `again`: what was measured for another K does not rule
  /// it out; nothing but a skip rule of its own does if it is asked for. Errors: CANCELLED.
  absl::StatusOr<Built> Get(const Candidate& candidate, const ProblemSignature& signature,
                            bool again);
  /// The layout of a pipeline for trials, whatever the rules say, as Get.
  absl::StatusOr<Built> GetInTime(const std::string& pipeline);
  /// The layout of a pipeline, whatever the rules and the clock say. Errors: RESOURCE_EXHAUSTED,
  /// CANCELLED.
  absl::StatusOr<Built> Build(const std::string& pipeline);
  /// There is a layout of the pipeline that Get or GetInTime returned.
  bool Has(const std::string& pipeline) const;
  /// Hands a layout over that Get or GetInTime returned.
  Built Take(const std::string& pipeline);
  /// Forgets the layouts, all but those of these pipelines.
  void DropAllBut(const std::set<std::string>& pipelines);

 private:
  absl::StatusOr<Built> Build(const std::string& pipeline, const BuildContext& context);
  /// Why building it for this signature would be in vain, if it would.
  absl::StatusOr<std::optional<std::string>> Futile(const Candidate& candidate,
                                                    const ProblemSignature& signature, bool again);
  /// Measures the dense tiles that a clustered order of rows would have, if the layout is one.
  absl::Status LookForTiles(const Layout& layout);

  const Pattern& pattern_;
  const std::shared_ptr<const Layout> csr_;
  const BuildContext context_;
  const DeviceId gpu_;
  Progress& progress_;
  const Deadline deadline_;
  std::optional<double> clustered_ratio_;  ///< of dense tiles, once lsh_cluster was built
  std::map<std::string, Built> built_;     ///< by pipeline; those without a layout too
};

}  // namespace sparsed::engine
