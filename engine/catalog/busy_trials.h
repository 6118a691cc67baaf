// Whether trials can be believed: plain CSR, the baseline, is timed beside each candidate.
#pragma once

#include <optional>
#include <vector>

#include "engine/catalog/plan.h"

namespace sparsed::engine {

/// What plain CSR took beside one candidate and beside another one of the same signature and width,
/// in milliseconds, while the machine did other work.
struct BusyTrials {
  double least_baseline_ms = 0, most_baseline_ms = 0;
};

/// Of the trials that `plan` was chosen by, if these differ by more than it gains, and by more than
/// trials of different minutes on a quiet machine. None of SpGEMM, whose baseline is another one.
std::optional<BusyTrials> FindBusyTrials(const Plan& plan,
                                         const std::vector<Measurement>& measurements);

}  // namespace sparsed::engine
