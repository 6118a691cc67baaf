// What models and rules say of patterns, without building or timing anything of them.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/planning/model.h"
#include "kernels/features/features.h"
#include "kernels/problem.h"

namespace sparsed::corpus {

/// Of a signature on a pattern, for SpGEMM on its square: `rules`, the pipelines, or the kernels of
/// SpGEMM, that rules let through; and for each of the models that know the signature, by name,
/// `candidates`, [pipeline, kernel, log2(time / default's time)], the most promising first, and
/// `microseconds`, what estimating them takes: the median of `repeat` times. Errors: as of
/// Model::EstimateTimes.
absl::StatusOr<nlohmann::ordered_json> EstimatesOf(
    const ProblemSignature& signature, const Features& features,
    const std::vector<std::shared_ptr<const engine::Model>>& models, int repeat);

}  // namespace sparsed::corpus
