#include "engine/catalog/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

namespace sparsed::engine {
namespace {

/// Memory that was short may be free again; a trial that fails costs little.
constexpr std::chrono::minutes kTryAgainAfter{5};
constexpr double kUseHalfLife = 60;  // seconds

/// There are few enough: their text has one definition.
std::unordered_map<std::string, ProblemSignature> AllSignaturesByText() {
  std::unordered_map<std::string, ProblemSignature> signatures;
  for (Operation operation : {Operation::kSpmm, Operation::kSddmm, Operation::kSpgemm}) {
    for (bool transposed : {false, true}) {
      for (ElementType type :
           {ElementType::kF32, ElementType::kF64, ElementType::kF16, ElementType::kBF16}) {
        for (DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
          for (bool allow_tf32 : {false, true}) {
            for (int64_t k : kSignatureWidths) {
              const ProblemSignature c =
                  SignatureOf({operation, transposed, type, k, device, allow_tf32});
              signatures.emplace(ToString(c), c);
            }
          }
        }
      }
    }
  }
  return signatures;
}

/// What is left of its rate.
double UsedAt(const PlanUses::Use& use, PlanUses::Clock::time_point now) {
  const std::chrono::duration<double> idle = std::max(now - use.last, PlanUses::Clock::duration(0));
  return use.per_second * std::exp2(-idle.count() / kUseHalfLife);
}

}  // namespace

std::optional<ProblemSignature> ParseProblemSignature(std::string_view text) {
  static const auto* const signatures =
      new std::unordered_map<std::string, ProblemSignature>(AllSignaturesByText());
  const auto found = signatures->find(std::string(text));
  return found == signatures->end() ? std::nullopt : std::optional(found->second);
}

double StreamedBytes(const Problem& problem, int64_t rows, int64_t cols, int64_t nnz) {
  const auto size = static_cast<double>(SizeOf(problem.type));
  const auto nonzeros = static_cast<double>(nnz);
  const double sparse =
      nonzeros * (sizeof(int32_t) + size) + static_cast<double>(rows + 1) * sizeof(int64_t);
  if (problem.operation == Operation::kSddmm) return sparse + nonzeros * size;
  const int64_t result_rows = problem.transposed ? cols : rows;
  return sparse + static_cast<double>(result_rows) * static_cast<double>(problem.k) * size;
}

double CompulsoryBytes(const Problem& problem, int64_t rows, int64_t cols, int64_t nnz) {
  const auto touched = [&](int64_t operand_rows) {
    return static_cast<double>(std::min(operand_rows, nnz)) * static_cast<double>(problem.k) *
           static_cast<double>(SizeOf(problem.type));
  };
  const double streamed = StreamedBytes(problem, rows, cols, nnz);
  if (problem.operation == Operation::kSddmm) return streamed + touched(rows) + touched(cols);
  return streamed + touched(problem.transposed ? rows : cols);
}

double CompulsoryBytes(ElementType type, const CsrView& left, const CsrView& right,
                       int64_t result_nnz) {
  const auto entry = static_cast<double>(sizeof(int32_t) + SizeOf(type));
  return static_cast<double>(left.nnz() + right.nnz() + result_nnz) * entry +
         static_cast<double>(2 * left.rows + right.rows + 3) * sizeof(int64_t);
}

double Gflops(int64_t nnz, int64_t k, double milliseconds) {
  if (milliseconds <= 0) return 0;
  return 2e-6 * static_cast<double>(nnz) * static_cast<double>(k) / milliseconds;
}

std::string Plan::ToString() const { return fmt::format("{} / {}", pipeline, kernel); }

std::string ToString(const PatternPair& pair, std::string_view left_hash) {
  const std::string_view left = pair.transpose_left ? "transpose" : kCsr;
  if (pair.right == left_hash) {
    return fmt::format("{} * {}", left, pair.transpose_right ? "transpose" : kCsr);
  }
  return fmt::format("{} * {}{}", left, pair.transpose_right ? "transpose " : "", pair.right);
}

std::string ProductText(const PatternPair& pair, std::string_view left_hash) {
  return fmt::format("S{} * {}{}", pair.transpose_left ? "^T" : "",
                     pair.right == left_hash ? "S" : "another", pair.transpose_right ? "^T" : "");
}

bool PlanTable::Found::due() const {
  if (!exact) return true;
  return plan->plan.provisional && std::chrono::steady_clock::now() - plan->since >= kTryAgainAfter;
}

PlanTable::Found PlanTable::Find(const ProblemSignature& signature,
                                 const std::optional<PatternPair>& pair) const {
  const MutexLock lock(mutex_);
  if (const auto exact = plans_.find({signature, pair}); exact != plans_.end()) {
    return {exact->second, true};
  }
  Found found{NearestLocked(signature)};
  if (found.plan == nullptr && signature.allow_tf32) {
    ProblemSignature f32 = signature;
    f32.allow_tf32 = false;
    found.plan = NearestLocked(f32);
  }
  return found;
}

std::shared_ptr<const ActivePlan> PlanTable::NearestLocked(
    const ProblemSignature& signature) const {
  std::shared_ptr<const ActivePlan> nearest;
  double nearest_distance = 0;
  for (const auto& [key, plan] : plans_) {
    const auto& [c, pair] = key;
    if (pair) continue;
    ProblemSignature same_k = c;
    same_k.k_bucket = signature.k_bucket;
    if (same_k != signature) continue;
    // By powers of two; of two equally near the narrower comes first.
    const double distance =
        std::abs(std::log2(static_cast<double>(c.k_bucket) / signature.k_bucket));
    if (nearest == nullptr || distance < nearest_distance) {
      nearest = plan;
      nearest_distance = distance;
    }
  }
  return nearest;
}

void PlanTable::Replace(std::shared_ptr<const ActivePlan> plan) {
  const std::pair key(plan->plan.signature, plan->plan.pair);
  std::vector<std::shared_ptr<const std::function<void()>>> watchers;
  {
    const MutexLock lock(mutex_);
    plans_[key] = std::move(plan);
    for (const auto& watcher : watchers_) watchers.push_back(watcher.lock());
  }
  for (const auto& watcher : watchers) {
    if (watcher != nullptr) (*watcher)();
  }
}

std::shared_ptr<const void> PlanTable::Watch(std::function<void()> changed) {
  auto watcher = std::make_shared<const std::function<void()>>(std::move(changed));
  const MutexLock lock(mutex_);
  std::erase_if(watchers_, [](const auto& other) { return other.expired(); });
  watchers_.push_back(watcher);
  return watcher;
}

std::vector<std::shared_ptr<const ActivePlan>> PlanTable::List() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<const ActivePlan>> plans;
  for (const auto& [key, plan] : plans_) plans.push_back(plan);
  return plans;
}

std::vector<PlanTable::Used> PlanTable::ListUsed(ElementType type, const PlanUses& uses,
                                                 Clock::time_point now) const {
  std::vector<Used> used;
  {
    const MutexLock lock(mutex_);
    for (const auto& [key, plan] : plans_) {
      if (key.first.type == type) used.push_back({plan});
    }
  }
  Used* most = nullptr;
  std::pair<double, Clock::time_point> most_use;
  for (Used& one : used) {
    const std::optional<PlanUses::Use> found = uses.Of(one.plan->plan, now);
    if (!found) continue;
    one.per_second = found->per_second;
    const std::pair use(found->per_second, found->last);
    if (most != nullptr && use <= most_use) continue;
    most = &one;
    most_use = use;
  }
  if (most != nullptr) most->in_use = true;
  return used;
}

void PlanUses::Count(const Plan& plan, Clock::time_point now) {
  const MutexLock lock(mutex_);
  Use& use = uses_[{plan.signature, plan.pair}];
  use = {UsedAt(use, now) + std::log(2) / kUseHalfLife, now};
}

std::optional<PlanUses::Use> PlanUses::Of(const Plan& plan, Clock::time_point now) const {
  const MutexLock lock(mutex_);
  const auto found = uses_.find({plan.signature, plan.pair});
  if (found == uses_.end()) return std::nullopt;
  return Use{UsedAt(found->second, now), found->second.last};
}

}  // namespace sparsed::engine
