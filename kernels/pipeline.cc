#include "kernels/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
#include <utility>

#include "kernels/formats/aspt.h"
#include "kernels/formats/csr_build.h"
#include "kernels/formats/permute.h"
#include "kernels/pipeline_steps.h"

namespace sparsed {
namespace {

/// Reads the text from left to right.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool AtEnd() {
    SkipSpace();
    return position_ == text_.size();
  }
  bool Take(char c) {
    SkipSpace();
    if (position_ == text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  /// A name of letters, digits and underscores, perhaps empty.
  std::string_view Word() {
    SkipSpace();
    const size_t begin = position_;
    while (position_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[position_])) != 0 ||
            text_[position_] == '_' || text_[position_] == '-')) {
      ++position_;
    }
    return text_.substr(begin, position_ - begin);
  }
  absl::Status Expected(std::string_view what) const {
    const std::string_view rest = text_.substr(position_, 16);
    return absl::InvalidArgumentError(
        fmt::format("transform pipeline: expected {} at position {}, found {}", what, position_,
                    rest.empty() ? "the end" : fmt::format("'{}'", rest)));
  }

 private:
  void SkipSpace() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
  }

  std::string_view text_;
  size_t position_ = 0;
};

std::string KnownSteps() {
  std::vector<std::string_view> names;
  for (const StepDefinition& definition : StepDefinitions()) {
    if (names.empty() || names.back() != definition.name) names.push_back(definition.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string KnownOptions(std::string_view name) {
  std::set<std::string_view> options;
  for (const StepDefinition& definition : StepDefinitions()) {
    if (definition.name != name) continue;
    for (const ParameterDefinition& parameter : definition.parameters)
      options.insert(parameter.key);
    options.insert(definition.flags.begin(), definition.flags.end());
  }
  return options.empty() ? "none" : fmt::format("{}", fmt::join(options, ", "));
}

/// Unlike a flag it has a value.
bool IsParameter(std::string_view step, std::string_view key) {
  return std::ranges::any_of(StepDefinitions(), [&](const StepDefinition& definition) {
    return definition.name == step &&
           std::ranges::find(definition.parameters, key, &ParameterDefinition::key) !=
               definition.parameters.end();
  });
}

absl::StatusOr<PipelineStep> ParseStep(Scanner& scanner) {
  PipelineStep step;
  step.name = scanner.Word();
  if (step.name.empty()) return scanner.Expected("the name of a step");
  if (!scanner.Take('(') || scanner.Take(')')) return step;
  do {
    std::string key(scanner.Word());
    if (key.empty()) return scanner.Expected("a parameter or flag");
    int64_t value = 1;
    if (scanner.Take('=')) {
      const std::string_view digits = scanner.Word();
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) {
        return absl::InvalidArgumentError(fmt::format(
            "transform pipeline: {}: {} = '{}' is not a 64-bit integer", step.name, key, digits));
      }
    } else if (IsParameter(step.name, key)) {
      return absl::InvalidArgumentError(
          fmt::format("transform pipeline: {}: {} needs a value", step.name, key));
    }
    if (ValueOf(step, key, -1) != -1) {
      return absl::InvalidArgumentError(
          fmt::format("transform pipeline: {}: {} is given twice", step.name, key));
    }
    step.parameters.emplace_back(std::move(key), value);
  } while (scanner.Take(','));
  if (!scanner.Take(')')) return scanner.Expected("',' or ')'");
  return step;
}

/// Flags are 1 or absent.
absl::Status CheckFlags(const PipelineStep& step) {
  for (const StepDefinition& definition : StepDefinitions()) {
    if (definition.name != step.name) continue;
    for (std::string_view flag : definition.flags) {
      if (ValueOf(step, flag, 1) != 1) {
        return absl::InvalidArgumentError(
            fmt::format("transform pipeline: {}: {} is a flag and has no value", step.name, flag));
      }
    }
  }
  return absl::OkStatus();
}

/// The step with the flags that are set, first, and every parameter, in the table's order.
absl::StatusOr<PipelineStep> Complete(const PipelineStep& step) {
  const StepDefinition* definition = FindStep(step);
  if (definition == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("transform pipeline: unknown step '{}'; known: {}", step.name, KnownSteps()));
  }
  if (absl::Status status = CheckFlags(step); !status.ok()) return status;
  PipelineStep complete{step.name, {}};
  for (std::string_view flag : definition->flags) {
    if (ValueOf(step, flag, 0) == 1) complete.parameters.emplace_back(flag, 1);
  }
  for (const ParameterDefinition& parameter : definition->parameters) {
    const int64_t fallback = ValueOf(complete, parameter.like, parameter.fallback);
    const int64_t value = ValueOf(step, parameter.key, fallback);
    if (!parameter.like.empty() && value == fallback) continue;
    if (value < parameter.least || value > parameter.most) {
      return absl::InvalidArgumentError(
          fmt::format("transform pipeline: {}: {} = {} is out of range [{}, {}]", step.name,
                      parameter.key, value, parameter.least, parameter.most));
    }
    complete.parameters.emplace_back(parameter.key, value);
  }
  for (const auto& [key, value] : step.parameters) {
    if (ValueOf(complete, key, value - 1) != value && !IsParameter(step.name, key)) {
      return absl::InvalidArgumentError(
          fmt::format("transform pipeline: {} has no option '{}'; known: {}", step.name, key,
                      KnownOptions(step.name)));
    }
  }
  const int64_t siglen = ValueOf(complete, "siglen", 0);
  const int64_t bsize = ValueOf(complete, "bsize", 1);
  if (siglen % bsize != 0) {
    return absl::InvalidArgumentError(
        fmt::format("transform pipeline: {}: siglen = {} is not a multiple of bsize = {}",
                    step.name, siglen, bsize));
  }
  if (ValueOf(complete, "width", -1) == 0 && ValueOf(complete, "height", 0) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("transform pipeline: {}: height = {} needs a width", step.name,
                    ValueOf(complete, "height", 0)));
  }
  return complete;
}

/// "lsh_cluster(remainder)": what a person calls the step.
std::string Title(const StepDefinition& definition) {
  return definition.variant.empty() ? std::string(definition.name)
                                    : fmt::format("{}({})", definition.name, definition.variant);
}

absl::Status CheckSequence(const Pipeline& pipeline) {
  for (size_t i = 1; i < pipeline.steps.size(); ++i) {
    const StepDefinition& before = *FindStep(pipeline.steps[i - 1]);
    const StepDefinition& step = *FindStep(pipeline.steps[i]);
    if (before.phase == Phase::kPlain || step.phase == Phase::kPlain) {
      return absl::InvalidArgumentError("transform pipeline: csr stands alone");
    }
    if (step.phase <= before.phase) {
      return absl::InvalidArgumentError(
          fmt::format("transform pipeline: {} cannot follow {}", Title(step), Title(before)));
    }
  }
  const StepDefinition& last = *FindStep(pipeline.steps.back());
  if (last.phase == Phase::kRefine &&
      (pipeline.steps.size() == 1 || pipeline.steps[pipeline.steps.size() - 2].name != kAspt)) {
    return absl::InvalidArgumentError(fmt::format(
        "transform pipeline: {} must follow a step that leaves a remainder: aspt", Title(last)));
  }
  return absl::OkStatus();
}

/// Makes a layout of a transposed pattern speak of the nonzeros of the original.
void ComposeSource(Layout& layout, const Layout& transposed, const BuildContext& context) {
  const Array& base = *transposed.Find(kValueSource);
  for (Array& array : layout.arrays) {
    if (array.name != kValueSource) continue;
    WithSource(array, [&](auto source) {
      const auto from = base.As<typename decltype(source)::value_type>();
      const int64_t slots = static_cast<int64_t>(source.size());
#pragma omp parallel for num_threads(context.TeamFor(slots)) schedule(static)
      for (int64_t slot = 0; slot < slots; ++slot) {
        if (source[slot] >= 0) source[slot] = from[source[slot]];  // else padding
      }
    });
  }
  layout.transposed = true;
}

absl::Status Finish(Draft& draft) {
  if (!draft.layout.has_value()) {
    if (draft.row_order.has_value()) {
      auto layout = PermuteRows(draft.csr, *std::move(draft.row_order), draft.context);
      if (!layout.ok()) return layout.status();
      draft.layout = *std::move(layout);
    } else if (draft.transposed.has_value()) {
      draft.layout = *std::move(draft.transposed);
      return absl::OkStatus();
    } else {
      auto layout = CopyCsr(draft.csr, draft.context);
      if (!layout.ok()) return layout.status();
      draft.layout = *std::move(layout);
    }
  }
  if (draft.transposed.has_value()) ComposeSource(*draft.layout, *draft.transposed, draft.context);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Pipeline> ParsePipeline(std::string_view text) {
  Scanner scanner(text);
  Pipeline pipeline;
  do {
    auto step = ParseStep(scanner);
    if (!step.ok()) return step.status();
    auto complete = Complete(*step);
    if (!complete.ok()) return complete.status();
    pipeline.steps.push_back(*std::move(complete));
  } while (scanner.Take('>'));
  if (!scanner.AtEnd()) return scanner.Expected("'>' or the end");
  if (absl::Status status = CheckSequence(pipeline); !status.ok()) return status;
  return pipeline;
}

std::string ToString(const Pipeline& pipeline) {
  std::vector<std::string> steps;
  for (const PipelineStep& given : pipeline.steps) {
    const auto complete = Complete(given);
    const PipelineStep& step = complete.ok() ? *complete : given;
    const StepDefinition* definition = FindStep(step);
    std::vector<std::string> options;
    for (const auto& [key, value] : step.parameters) {
      const bool parameter =
          definition == nullptr ||
          std::any_of(definition->parameters.begin(), definition->parameters.end(),
                      [&key = key](const ParameterDefinition& p) { return p.key == key; });
      options.push_back(parameter ? fmt::format("{}={}", key, value) : key);
    }
    steps.push_back(options.empty() ? step.name
                                    : fmt::format("{}({})", step.name, fmt::join(options, ",")));
  }
  return fmt::format("{}", fmt::join(steps, " > "));
}

absl::StatusOr<BuiltLayout> BuildLayout(const Pipeline& given, const CsrView& csr,
                                        const BuildContext& context) {
  const auto pipeline = ParsePipeline(ToString(given));
  if (!pipeline.ok()) return pipeline.status();
  Draft draft{*pipeline, context, csr, {}, {}, {}, false, {}};
  for (const PipelineStep& step : pipeline->steps) {
    if (context.stopped()) return absl::CancelledError("the build was stopped");
    if (absl::Status status = FindStep(step)->apply(step, draft); !status.ok()) return status;
    if (draft.skipped) return BuiltLayout{{}, true, std::move(draft.notes)};
  }
  if (absl::Status status = Finish(draft); !status.ok()) return status;
  draft.layout->pipeline = ToString(*pipeline);
  return BuiltLayout{*std::move(draft.layout), false, std::move(draft.notes)};
}

}  // namespace sparsed
