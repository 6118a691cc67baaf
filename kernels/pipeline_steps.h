// The steps that pipelines are made of. A new layout is a file in kernels/formats (a new order of
// rows one in kernels/reorder) and its step in pipeline_steps.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/pipeline.h"

namespace sparsed {

/// What a step does to the draft; the steps of a pipeline ascend in it, each at most once.
enum class Phase : uint8_t {
  kPlain,      ///< nothing; alone
  kTranspose,  ///< swaps rows and columns
  kReorder,    ///< orders the rows
  kFormat,     ///< makes the layout; without one it is CSR
  kRefine,     ///< improves the layout
};

/// A layout in the making.
struct Draft {
  const Pipeline& pipeline;
  const BuildContext& context;
  CsrView csr;                       ///< the pattern, in its row_order, as the next step sees it
  std::optional<Layout> transposed;  ///< owns csr's arrays, if they are not the caller's
  std::optional<Array> row_order;    ///< owns csr's row_order
  std::optional<Layout> layout;      ///< once there is one
  bool skipped = false;              ///< the pipeline brings nothing; no further step runs
  std::string notes;

  /// Adds a sentence to the notes.
  void Note(std::string_view sentence);
};

struct ParameterDefinition {
  std::string_view key;
  int64_t fallback;
  int64_t least;
  int64_t most;
  /// A parameter before it whose value it has by default, and is not written then.
  std::string_view like = {};
};

struct StepDefinition {
  std::string_view name;
  Phase phase;
  /// The flag that tells it from others of its name: "remainder" of lsh_cluster(remainder).
  std::string_view variant;
  std::vector<std::string_view> flags;  ///< with the variant
  std::vector<ParameterDefinition> parameters;
  absl::Status (*apply)(const PipelineStep& step, Draft& draft);
};

/// All of them; those of one name are neighbours.
std::span<const StepDefinition> StepDefinitions();

/// Null if there is none.
const StepDefinition* FindStep(const PipelineStep& step);

/// A parameter's value or a flag's 1; `fallback` if the step does not have it.
int64_t ValueOf(const PipelineStep& step, std::string_view key, int64_t fallback);

/// The pipeline with the flag "force" at every step that knows it: no skip rule ends it.
Pipeline Forced(Pipeline pipeline);

}  // namespace sparsed
