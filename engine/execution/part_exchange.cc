#include "engine/execution/part_exchange.h"

#include <chrono>
#include <utility>

namespace sparsed::engine {
namespace {

/// Between looks at whether the part was stopped.
constexpr std::chrono::milliseconds kLook{5};

}  // namespace

absl::StatusOr<std::vector<PartExchange::Shown>> PartExchange::Meet(size_t part, Shown mine,
                                                                    const Token& token) {
  const MutexLock lock(mutex_);
  if (!stopped_.ok()) return stopped_;
  const uint64_t number = next_[part]++;
  Round& round = rounds_[number];  // until it is stopped
  round.shown.resize(parts_);
  round.shown[part] = std::move(mine);
  if (++round.came == parts_) changed_.NotifyAll();
  while (round.came < parts_) {
    if (token.stopped()) return token.status();
    changed_.WaitFor(mutex_, kLook);
    if (!stopped_.ok()) return stopped_;
  }
  std::vector<Shown> all;
  for (const std::optional<Shown>& shown : round.shown) all.push_back(*shown);
  if (++round.left == parts_) rounds_.erase(number);
  return all;
}

void PartExchange::Stop(absl::Status why) {
  std::map<uint64_t, Round> rounds;  // let go of without the lock
  const MutexLock lock(mutex_);
  if (stopped_.ok()) stopped_ = std::move(why);
  rounds.swap(rounds_);
  changed_.NotifyAll();
}

}  // namespace sparsed::engine
