// Pipelines: the steps that turn plain CSR into a layout, as text, and the builder that follows
// them.
//
//   pipeline := step { " > " step } ;  step := name [ "(" [ option { "," option } ] ")" ]
//   option := key "=" integer | flag
//
// The steps, in the order in which they may follow each other, stand above their table
// (pipeline_steps.cc).
// The flag "force" of lsh_cluster, row_panels and row_segments goes ahead even where a skip rule
// says no.
// Canonical text has every parameter spelt out, so that equal pipelines have equal text.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"

namespace sparsed {
class BuildAccelerator;

struct PipelineStep {
  std::string name;
  std::vector<std::pair<std::string, int64_t>> parameters;  ///< flags have value 1
};

struct Pipeline {
  std::vector<PipelineStep> steps;
};

/// INVALID_ARGUMENT names the step or parameter that is unknown and what is known.
absl::StatusOr<Pipeline> ParsePipeline(std::string_view text);
/// Canonical text, defaults filled in.
std::string ToString(const Pipeline& pipeline);

/// What a builder may use, and whom it tells.
struct BuildContext {
  int threads = 1;
  MemorySource* memory = nullptr;  ///< for the result and for scratch: what bounds the preparation
  /// A device for the builders that can use one (kernels/build_accelerator.h), with the same
  /// results; null, or without room there: the CPU does it.
  BuildAccelerator* accelerator = nullptr;
  const std::atomic<bool>* stop =
      nullptr;  ///< if it becomes true, the builder returns CANCELLED soon
  /// Called now and then from the building thread: stage ("lsh_pairs", "lsh_cluster",
  /// "nearest_rows", "aspt", "row_segments"), units done and in all.
  std::function<void(std::string_view stage, int64_t done, int64_t total)> progress;

  /// Threads worth their start for a pass over so many rows.
  int TeamFor(int64_t rows) const {
    return static_cast<int>(std::clamp<int64_t>(rows / 4096, 1, std::max(threads, 1)));
  }
  bool stopped() const { return stop != nullptr && stop->load(std::memory_order_relaxed); }
};

/// A layout, or the reason why the pipeline would bring nothing for this pattern.
struct BuiltLayout {
  Layout layout;
  bool skipped = false;  ///< a skip rule said so: no layout
  std::string notes;  ///< what each step found, in a sentence each ("dense ratio 0.71 > 0.10: first
                      ///< round skipped")
};

/// Builds a layout from a valid plain CSR pattern.
/// Errors: RESOURCE_EXHAUSTED (memory), CANCELLED.
absl::StatusOr<BuiltLayout> BuildLayout(const Pipeline& pipeline, const CsrView& csr,
                                        const BuildContext& context);

}  // namespace sparsed
