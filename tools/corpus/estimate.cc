#include "tools/corpus/estimate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "engine/planning/candidates.h"

namespace sparsed::corpus {
namespace {

using Json = nlohmann::ordered_json;

Json RulesOf(const ProblemSignature& c, const Features& features) {
  Json passed = Json::array();
  const bool spgemm = c.operation == Operation::kSpgemm;
  for (const engine::Candidate& candidate :
       spgemm ? engine::SpgemmCandidatesFor(ProblemOf(c), &features, &features)
              : engine::CandidatesFor(c, features)) {
    if (candidate.worth_trying) passed.push_back(spgemm ? candidate.kernel : candidate.pipeline);
  }
  return passed;
}

}  // namespace

absl::StatusOr<Json> EstimatesOf(const ProblemSignature& signature, const Features& features,
                                 const std::vector<std::shared_ptr<const engine::Model>>& models,
                                 int repeat) {
  Json said = {{"class", ToString(signature)}, {"rules", RulesOf(signature, features)}};
  for (const std::shared_ptr<const engine::Model>& model : models) {
    if (!model->Covers(signature)) continue;
    absl::StatusOr<std::vector<engine::Estimate>> estimates;
    std::vector<double> microseconds;
    for (int i = 0; i < repeat; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      estimates = model->EstimateTimes(signature, features);
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      if (!estimates.ok()) return estimates.status();
      microseconds.push_back(took.count());
    }
    std::ranges::sort(*estimates, {}, &engine::Estimate::log2_ratio);
    std::ranges::sort(microseconds);
    Json candidates = Json::array();
    for (const engine::Estimate& estimate : *estimates) {
      candidates.push_back(
          {estimate.pipeline, estimate.kernel, std::round(1e4 * estimate.log2_ratio) / 1e4});
    }
    said["models"][model->name()] = {{"candidates", std::move(candidates)},
                                     {"microseconds", microseconds[microseconds.size() / 2]}};
  }
  return said;
}

}  // namespace sparsed::corpus
