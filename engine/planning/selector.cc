#include "engine/planning/selector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <utility>

#include "engine/planning/asked.h"

namespace sparsed::engine {
namespace {

/// Of a trial: so many turns of default and candidate, and what starting them takes.
constexpr double kTurns = 8, kTrialStartMs = 1;
/// Kernels of one layout are tried that are not likely slower than its most promising one: by more
/// than so many standard deviations of the difference.
constexpr double kUnlikely = 1.0;
constexpr size_t kMostKernels = 3;

double NormalCdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

/// Keeps the most promising estimate first, and behind it those that may well beat it.
void KeepLikely(std::vector<Estimate>& kernels) {
  std::ranges::sort(kernels, {}, &Estimate::log2_ratio);
  const Estimate& first = kernels.front();
  const auto unlikely = [&](const Estimate& e) {
    return e.log2_ratio - first.log2_ratio > kUnlikely * std::hypot(e.deviation, first.deviation);
  };
  kernels.erase(std::find_if(kernels.begin() + 1, kernels.end(), unlikely), kernels.end());
  if (kernels.size() > kMostKernels) kernels.resize(kMostKernels);
}

std::string LeftOut(const Model& model) {
  return fmt::format("left out by model {}: it was hardly ever among the fastest", model.name());
}

}  // namespace

double ExpectedGain(double log2_ratio, double log2_deviation, double default_ms, double best_ms,
                    double least_speedup) {
  const double mean = std::log(default_ms) + log2_ratio * std::numbers::ln2;
  const double deviation = log2_deviation * std::numbers::ln2;
  const double slowest = best_ms / least_speedup;  // that takes the best's place
  if (deviation <= 0) return std::exp(mean) < slowest ? best_ms - std::exp(mean) : 0;
  const double z = (std::log(slowest) - mean) / deviation;
  return std::max(0.0, best_ms * NormalCdf(z) -
                           std::exp(mean + deviation * deviation / 2) * NormalCdf(z - deviation));
}

Worth Weigh(const Promise& promise, const Stakes& stakes) {
  const double ratio = promise.best().log2_ratio + stakes.shared_error;
  const double deviation = std::hypot(promise.best().deviation, std::sqrt(stakes.shared_variance));
  const double gain_ms = stakes.requests * ExpectedGain(ratio, deviation, stakes.default_ms,
                                                        stakes.best_ms, stakes.least_speedup);
  const double trial_ms = kTrialStartMs + kTurns * stakes.default_ms * (1 + std::exp2(ratio));
  const double cost_ms = (stakes.is_built ? 0 : 1e3 * promise.build_seconds) +
                         static_cast<double>(promise.kernels.size()) * trial_ms;
  const std::string reached =
      stakes.best_ms < stakes.default_ms
          ? fmt::format(", {:.2f}x is reached", stakes.default_ms / stakes.best_ms)
          : "";
  const double gain_s = 1e-3 * gain_ms;
  const bool pays = gain_ms > cost_ms;
  return {
      pays, gain_ms - cost_ms,
      fmt::format(
          "{:.2f}x expected ({:.2f} to {:.2f}) by model {}{}: over that range, as what turns out "
          "slower is not used, {} in {:.0f} requests on average, {} the {:.2g} s of building and "
          "trying",
          std::exp2(-ratio), std::exp2(-ratio - deviation), std::exp2(-ratio + deviation),
          promise.model, reached,
          gain_s < 1e-3 ? "nothing is saved" : fmt::format("{:.2g} s are saved", gain_s),
          stakes.requests, pays ? "more than" : "not worth", 1e-3 * cost_ms)};
}

void Selector::Use(DeviceKind device, std::shared_ptr<const Model> model) {
  const MutexLock lock(mutex_);
  (device == DeviceKind::kCuda ? cuda_ : cpu_).used.swap(model);
}

void Selector::Watch(DeviceKind device, std::shared_ptr<const Model> model) {
  const MutexLock lock(mutex_);
  (device == DeviceKind::kCuda ? cuda_ : cpu_).watched.swap(model);
}

Selector::Models Selector::ModelsFor(DeviceKind device) const {
  const MutexLock lock(mutex_);
  return device == DeviceKind::kCuda ? cuda_ : cpu_;
}

std::shared_ptr<const Model> Selector::used(DeviceKind device) const {
  return ModelsFor(device).used;
}

std::shared_ptr<const Model> Selector::watched(DeviceKind device) const {
  return ModelsFor(device).watched;
}

std::vector<Candidate> Selector::CandidatesFor(const ProblemSignature& c, const Features& features,
                                               const DeviceConstants& measured) const {
  std::vector<Candidate> candidates = engine::CandidatesFor(c, features, measured);
  const std::shared_ptr<const Model> model = used(c.device);
  if (model == nullptr || !model->Covers(c)) return candidates;
  const absl::StatusOr<std::vector<Estimate>> estimates = model->EstimateTimes(c, features);
  const absl::StatusOr<std::map<std::string, double>> building =
      model->EstimateBuilding(c, features);
  if (!estimates.ok() || !building.ok()) return candidates;
  std::map<std::string, std::vector<Estimate>> of_pipeline;
  for (const Estimate& estimate : *estimates) of_pipeline[estimate.pipeline].push_back(estimate);
  // Of those that there is a rule for, and of no others, it is known which signatures they are for.
  for (const auto& [pipeline, kernels] : of_pipeline) {
    if (!HasRule(c.device, pipeline)) candidates.push_back({pipeline, false, ""});
  }
  for (Candidate& candidate : candidates) {
    const auto found = of_pipeline.find(candidate.pipeline);
    if (found == of_pipeline.end()) {
      // Of pipelines that came after the model, the rules decide.
      if (!model->HasSeen(c, candidate.pipeline)) continue;
      candidate.worth_trying = false;
      candidate.reason = LeftOut(*model);
      continue;
    }
    KeepLikely(found->second);
    Promise promise{model->name(), std::move(found->second), model->SharedDeviation(c), 0};
    const auto seconds = building->find(candidate.pipeline);
    if (seconds != building->end()) promise.build_seconds = seconds->second;
    candidate.worth_trying = true;
    candidate.needs_clustered_tiles = false;
    candidate.pipeline = WithoutSkipRules(candidate.pipeline);
    candidate.promise = std::move(promise);
  }
  return candidates;
}

std::vector<Candidate> Selector::SpgemmCandidatesFor(const Problem& problem, bool square,
                                                     const Features* left,
                                                     const Features* right) const {
  std::vector<Candidate> candidates = engine::SpgemmCandidatesFor(problem, left, right);
  const ProblemSignature c = SignatureOf(problem);
  const std::shared_ptr<const Model> model = used(c.device);
  if (model == nullptr || !square || left == nullptr || !model->Covers(c)) return candidates;
  const absl::StatusOr<std::vector<Estimate>> estimates = model->EstimateTimes(c, *left);
  const absl::StatusOr<std::map<std::string, double>> building = model->EstimateBuilding(c, *left);
  if (!estimates.ok() || !building.ok()) return candidates;
  for (Candidate& candidate : candidates) {
    if (candidate.forbidden) continue;
    // Of a kernel with several pipelines, the one that the model prefers.
    const Estimate* found = nullptr;
    for (const Estimate& estimate : *estimates) {
      if (estimate.kernel != candidate.kernel) continue;
      if (found == nullptr || estimate.log2_ratio < found->log2_ratio) found = &estimate;
    }
    if (found == nullptr) {
      candidate.worth_trying = false;
      candidate.reason =
          fmt::format("left out by model {}, which does not estimate it", model->name());
      continue;
    }
    const auto seconds = building->find(found->pipeline);
    candidate.worth_trying = true;
    candidate.promise = {model->name(),
                         {*found},
                         model->SharedDeviation(c),
                         seconds == building->end() ? 0 : seconds->second};
  }
  return candidates;
}

std::optional<Choice> Selector::ChoiceOf(const Model& model, const ProblemSignature& c,
                                         const Features& features,
                                         const std::vector<Measurement>& measured) {
  if (!model.Covers(c)) return std::nullopt;
  const absl::StatusOr<std::vector<Estimate>> estimates = model.EstimateTimes(c, features);
  if (!estimates.ok() || estimates->empty()) return std::nullopt;
  const Estimate& first = *std::ranges::min_element(*estimates, {}, &Estimate::log2_ratio);
  // Ratios, as each was measured beside the default; that itself is 1.
  const auto ratio = [](const Measurement& m) {
    return m.baseline_ms > 0 ? m.median_ms / m.baseline_ms : 0;
  };
  double least = 1;
  std::optional<double> chosen;
  if (first.log2_ratio >= 0) chosen = 1;
  for (const Measurement& m : measured) {
    if (m.signature != c || ratio(m) <= 0) continue;
    least = std::min(least, ratio(m));
    const bool is_first = m.kernel == first.kernel &&
                          WithoutSkipRules(m.pipeline) == WithoutSkipRules(first.pipeline);
    if (is_first && first.log2_ratio < 0) chosen = ratio(m);
  }
  if (!chosen) return std::nullopt;
  if (first.log2_ratio >= 0) return Choice{std::string(kCsr), "", least};
  return Choice{first.pipeline, first.kernel, least / *chosen};
}

}  // namespace sparsed::engine
