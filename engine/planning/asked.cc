#include "engine/planning/asked.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "engine/catalog/signature.h"
#include "kernels/formats/bcsr.h"
#include "kernels/formats/incsr.h"
#include "kernels/kernel_table.h"
#include "kernels/pipeline.h"
#include "kernels/pipeline_steps.h"

namespace sparsed::engine {
namespace {

constexpr std::string_view kReason = "it was asked for";

/// Against what the rules say.
void WantAnyway(Candidate& candidate, const std::string& ruled_out) {
  candidate.worth_trying = true;
  candidate.reason = fmt::format("{} ({})", kReason, ruled_out);
}

/// Of any operation.
bool IsKernel(std::string_view name) {
  return FindSpmmKernel(name) != nullptr || FindSddmmKernel(name) != nullptr ||
         FindSpgemmKernel(name) != nullptr;
}

/// What the pipeline makes of a small pattern on which every step has something to do: kernels tell
/// by it whether they take the pipeline's layouts. A skip rule that cannot be overruled leaves
/// none.
absl::StatusOr<BuiltLayout> Sample(const Pipeline& pipeline) {
  // Two kinds of rows, in turn.
  constexpr int64_t kRows = 64, kLength = 32;
  std::vector<int64_t> row_offsets = {0};
  std::vector<int32_t> column_indices;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kLength; ++i) {
      column_indices.push_back(static_cast<int32_t>(row % 2 * kLength + i));
    }
    row_offsets.push_back(static_cast<int64_t>(column_indices.size()));
  }
  BuildContext context;
  context.memory = &HeapMemory();
  return BuildLayout(Forced(pipeline),
                     {.rows = kRows,
                      .cols = 2 * kLength,
                      .row_offsets = row_offsets,
                      .column_indices = column_indices,
                      .row_order = {}},
                     context);
}

std::string Listed(const std::vector<std::string_view>& kernels) {
  return kernels.empty() ? "none" : fmt::format("{}", fmt::join(kernels, ", "));
}

/// Of a pipeline of a single step, which of SpGEMM's is the kind of its layout; else all of it.
std::string_view StepNameOf(std::string_view pipeline) {
  return pipeline.substr(0, pipeline.find('('));
}

/// `kind`: of the layout that the pipeline makes; empty: that is the kernel's. `kernels` are those
/// that serve.
absl::Status NoSuchKernel(std::string_view name, const ProblemSignature& c,
                          std::string_view pipeline, std::string_view kind,
                          const std::vector<std::string_view>& kernels) {
  std::string_view takes;
  if (const SpmmKernel* spmm = FindSpmmKernel(name)) takes = spmm->layout_kind;
  if (const SddmmKernel* sddmm = FindSddmmKernel(name)) takes = sddmm->layout_kind;
  if (const SpgemmKernel* spgemm = FindSpgemmKernel(name)) takes = spgemm->layout_kind;
  const std::string why = c.device == DeviceKind::kCpu && name.starts_with("cuda.")
                              ? "is for a GPU, and this server has none"
                          : c.device == DeviceKind::kCuda && name.starts_with("cpu.")
                              ? "is for a CPU, and this server computes on GPUs"
                          : !IsKernel(name) ? "is none"
                          : takes.empty() || kind.empty() || takes == kind
                              ? "does not do that"
                              : fmt::format("takes layouts of kind {}, not {}", takes, kind);
  return absl::InvalidArgumentError(fmt::format("kernel: '{}' {}; {} from {} is computed by: {}",
                                                name, why, SignatureText(c), pipeline,
                                                Listed(kernels)));
}

/// Whether the kernel is one of those that a client wants tried for SpGEMM.
bool IsAsked(const Asked& asked, const SpgemmKernel& kernel) {
  if (!asked.kernel.empty() && asked.kernel != kernel.name) return false;
  return asked.pipeline.empty() || asked.pipeline == kCsr ||
         StepNameOf(asked.pipeline) == kernel.layout_kind;
}

/// Of the layouts that kernels read factors from, plain CSR first.
std::vector<std::string_view> KindsOf(const std::vector<std::string_view>& kernels) {
  std::vector<std::string_view> kinds = {kCsr};
  for (const std::string_view kernel : kernels) {
    const std::string_view kind = FindSpgemmKernel(kernel)->layout_kind;
    if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
  }
  return kinds;
}

/// INVALID_ARGUMENT: the pipeline's layout is of a kind that kernels read, but not as it is.
absl::Status CheckParameters(const std::string& pipeline, ElementType type) {
  const absl::StatusOr<Pipeline> parsed = ParsePipeline(pipeline);
  if (!parsed.ok()) return parsed.status();
  const PipelineStep& step = parsed->steps.front();
  if (step.name == kBcsr) {
    const int64_t width = ValueOf(step, "width", 0);
    if (width >= kLeastSquareBlock && ValueOf(step, "height", width) == width) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        fmt::format("transform pipeline: SpGEMM reads {} of squares, width = {} to {}, not {}",
                    kBcsr, kLeastSquareBlock, kMostBlockSide, pipeline));
  }
  if (step.name != kIncsr) return absl::OkStatus();
  const int64_t columns = ValueOf(step, "columns", 0);
  const SectionShape shape = {columns, ValueOf(step, "block", columns)};
  if (AreVectors(shape, type)) return absl::OkStatus();
  const auto line = LineSections(type).block;
  return absl::InvalidArgumentError(
      fmt::format("transform pipeline: of {} kernels read {} in blocks of {} to {} columns, not {}",
                  Name(type), kIncsr, line / 4, line, shape.block));
}

absl::Status CheckSpgemm(const Asked& asked, const ProblemSignature& c) {
  const std::vector<std::string_view> kernels = KernelsFor(ProblemOf(c), Layout());
  const std::vector<std::string_view> kinds = KindsOf(kernels);
  if (std::ranges::find(kinds, StepNameOf(asked.pipeline)) == kinds.end()) {
    return absl::InvalidArgumentError(fmt::format(
        "transform pipeline: no kernel of SpGEMM reads its factors from {}; there are kernels for: "
        "{}",
        asked.pipeline, fmt::join(kinds, ", ")));
  }
  const auto serves = [&](std::string_view kernel) {
    return IsAsked(asked, *FindSpgemmKernel(kernel));
  };
  if (std::ranges::any_of(kernels, serves)) return CheckParameters(asked.pipeline, c.type);
  return NoSuchKernel(asked.kernel, c, asked.pipeline == kCsr ? "csr * csr" : asked.pipeline,
                      asked.pipeline == kCsr ? "" : StepNameOf(asked.pipeline), kernels);
}

}  // namespace

absl::StatusOr<Asked> ParseAsked(std::string_view pipeline, std::string_view kernel) {
  const absl::StatusOr<Pipeline> parsed = ParsePipeline(pipeline.empty() ? kCsr : pipeline);
  if (!parsed.ok()) return parsed.status();
  return Asked{ToString(*parsed), std::string(kernel)};
}

absl::Status CheckAsked(const Asked& asked, const ProblemSignature& c, int64_t rows, int64_t cols,
                        int64_t nnz) {
  if (asked.pipeline.empty()) return absl::OkStatus();
  if (c.operation == Operation::kSpgemm) return CheckSpgemm(asked, c);
  const absl::StatusOr<Pipeline> pipeline = ParsePipeline(asked.pipeline);
  if (!pipeline.ok()) return pipeline.status();
  absl::StatusOr<BuiltLayout> sample = Sample(*pipeline);
  if (!sample.ok()) return sample.status();
  if (sample->skipped) return absl::OkStatus();
  Layout& layout = sample->layout;
  // Some kernels over CSR are for large matrices alone.
  if (layout.kind == kCsr) {
    layout.rows = layout.transposed ? cols : rows;
    layout.cols = layout.transposed ? rows : cols;
    layout.nnz = layout.value_slots = nnz;
  }
  const std::vector<std::string_view> kernels = KernelsFor(ProblemOf(c), layout);
  if (kernels.empty()) {
    std::vector<std::string> pipelines = {std::string(kCsr)};
    for (const Candidate& candidate : CandidatesFor(c, {})) pipelines.push_back(candidate.pipeline);
    return absl::InvalidArgumentError(
        fmt::format("transform pipeline: no kernel computes {} from {}; there are kernels for: {}",
                    SignatureText(c), asked.pipeline, fmt::join(pipelines, ", ")));
  }
  if (asked.kernel.empty() || std::ranges::count(kernels, asked.kernel) > 0) {
    return absl::OkStatus();
  }
  return NoSuchKernel(asked.kernel, c, asked.pipeline, layout.kind, kernels);
}

std::string WithoutSkipRules(const std::string& pipeline) {
  const absl::StatusOr<Pipeline> parsed = ParsePipeline(pipeline);
  return parsed.ok() ? ToString(Forced(*parsed)) : pipeline;
}

void AddAsked(const std::set<Asked>& asked, bool nothing_else, std::vector<Candidate>& candidates) {
  if (asked.contains(Asked())) {
    for (Candidate& candidate : candidates) {
      candidate.asked = true;
      candidate.pipeline = WithoutSkipRules(candidate.pipeline);
      if (!candidate.worth_trying) WantAnyway(candidate, candidate.reason);
    }
  } else if (nothing_else) {
    candidates.clear();
  }
  for (const Asked& one : asked) {
    // All of plain CSR's kernels are tried anyway.
    if (one.pipeline.empty() || one.pipeline == kCsr) continue;
    const auto known = std::ranges::find(candidates, one.pipeline, &Candidate::pipeline);
    if (known == candidates.end()) {
      Candidate candidate;
      candidate.pipeline = one.pipeline;
      candidate.worth_trying = candidate.asked = true;
      candidate.reason = kReason;
      candidate.kernel = one.kernel;
      candidates.push_back(std::move(candidate));
      continue;
    }
    if (!known->worth_trying) {
      WantAnyway(*known, known->reason);
      known->kernel = one.kernel;
    } else if (known->kernel != one.kernel) {
      known->kernel.clear();
    }
    known->asked = true;
    known->promise.reset();
  }
}

void AddAskedKernels(const std::set<Asked>& asked, bool nothing_else,
                     std::vector<Candidate>& candidates) {
  std::vector<Candidate> all;
  for (Candidate& candidate : candidates) {
    const SpgemmKernel& kernel = *FindSpgemmKernel(candidate.kernel);
    std::set<std::string> pipelines;  // that are asked for; empty: the kernel's own
    for (const Asked& wanted : asked) {
      const bool own = wanted.pipeline.empty() || wanted.pipeline == kCsr;
      if (IsAsked(wanted, kernel)) pipelines.insert(own ? std::string() : wanted.pipeline);
    }
    // What the rules choose is tried, too.
    const bool is_left_alone = pipelines.empty() || candidate.worth_trying;
    if (is_left_alone && !nothing_else && !pipelines.contains("")) all.push_back(candidate);
    for (const std::string& pipeline : pipelines) {
      Candidate& one = all.emplace_back(candidate);
      one.pipeline = pipeline;
      one.promise.reset();
      if (!one.worth_trying) WantAnyway(one, candidate.reason);
    }
  }
  candidates = std::move(all);
}

}  // namespace sparsed::engine
