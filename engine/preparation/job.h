// What waits in the queue of preparations, and in which order.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "engine/catalog/pattern.h"
#include "engine/memory/budget.h"
#include "engine/preparation/pattern_job.h"
#include "engine/requester.h"
#include "kernels/problem.h"

namespace sparsed::engine {

struct PreparationJob {
  /// Least important first.
  enum class Priority : uint8_t { kRestore, kTrial, kClient };
  using Clock = std::chrono::steady_clock;

  std::shared_ptr<Pattern> pattern;
  Priority priority = Priority::kTrial;
  Clock::time_point queued = {};
  std::set<ProblemSignature> signatures;
  std::optional<StoredPreparation> stored;  ///< to be restored before anything else
  Pairs pairs;
  std::set<ProblemSignature> again;  ///< those to be tried whatever is known of them
  AskedOf asked = {};                ///< what is to be tried for some, whatever the rules say
  ProductsInRows rows = {};          ///< whose parts are to have layouts
  TenantHold hold = {};              ///< as one of the preparations of who pays for the pattern
  Requester requester = {};          ///< who asked first

  /// Who pays for the pattern; empty: it belongs to all.
  std::string_view tenant() const {
    return pattern->payer() == nullptr ? std::string_view() : NameOf(*pattern->payer());
  }
  bool wants_nothing() const { return signatures.empty() && pairs.empty() && rows.empty(); }
  /// Nonzeros that it works on, over all signatures.
  int64_t nonzeros() const {
    // What is stored alone is read, which counts as one.
    int64_t sum = pattern->nnz() * static_cast<int64_t>(std::max<size_t>(signatures.size(), 1));
    for (const auto& [key, pattern_of_right] : pairs) {
      const std::shared_ptr<Pattern> right = pattern_of_right.lock();
      if (right != nullptr) sum += pattern->nnz() + right->nnz();
    }
    return sum;
  }
  /// Roughly what it takes on a few threads.
  std::chrono::duration<double> seconds() const {
    constexpr double kNonzerosASecond = 500e3;
    return std::chrono::duration<double>(static_cast<double>(nonzeros()) / kNonzerosASecond);
  }
  /// When it would end if it had begun at once: of a tenant's the next job is the one that would
  /// have ended first. So shorter ones go before it, but not those that came too late.
  Clock::time_point would_end() const {
    return queued + std::chrono::duration_cast<Clock::duration>(seconds());
  }
};

}  // namespace sparsed::engine
