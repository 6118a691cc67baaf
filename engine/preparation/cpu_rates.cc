#include "engine/preparation/cpu_rates.h"

#include <algorithm>
#include <ctime>

#include "engine/memory/processor.h"

namespace sparsed::engine {

CpuRates& CpuRates::OfThisProcess() {
  static CpuRates rates;
  return rates;
}

double CpuRates::Known(const Key& key, Clock::time_point now) const {
  const MutexLock lock(mutex_);
  const auto found = rates_.find(key);
  if (found == rates_.end()) return 0;
  const Rate& rate = found->second;
  return rate.certain || now - rate.taken < kAgainAfter ? rate.best : 0;
}

bool CpuRates::certain(const Key& key) const {
  const MutexLock lock(mutex_);
  const auto found = rates_.find(key);
  return found != rates_.end() && found->second.certain;
}

double CpuRates::Measure(const Key& key, const std::function<double()>& work) {
  std::vector<RateTry> tries(4);
  for (RateTry& one : tries) {
    const auto begin = Clock::now();
    const double caller = ProcessorSeconds(CLOCK_THREAD_CPUTIME_ID);
    const double process = ProcessorSeconds(CLOCK_PROCESS_CPUTIME_ID);
    const double done = work();
    const double seconds =
        std::max(std::chrono::duration<double>(Clock::now() - begin).count(), 1e-9);
    one.per_second = done / seconds;
    one.shares = {(ProcessorSeconds(CLOCK_THREAD_CPUTIME_ID) - caller) / seconds,
                  (ProcessorSeconds(CLOCK_PROCESS_CPUTIME_ID) - process) / (seconds * key.second)};
  }
  Take(key, tries);
  return Known(key);
}

void CpuRates::Take(const Key& key, const std::vector<RateTry>& tries, Clock::time_point now) {
  constexpr double kAgree = 0.9;
  const auto [slowest, fastest] = std::ranges::minmax(tries, {}, &RateTry::per_second);
  const bool certain =
      slowest.per_second >= kAgree * fastest.per_second &&
      std::ranges::all_of(tries, [&key](const RateTry& one) {
        return CheckAlone(key.first, one.shares, /*computes=*/key.second == 1).ok();
      });
  const MutexLock lock(mutex_);
  Rate& rate = rates_[key];
  // Tries of somebody else who measured meanwhile.
  if (rate.certain) return;
  rate.best = certain ? fastest.per_second : std::max(rate.best, fastest.per_second);
  rate.certain = certain;
  rate.taken = now;
}

}  // namespace sparsed::engine
