// What requests will take on a device, as far as earlier ones tell.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/mutex.h"
#include "kernels/problem.h"

namespace sparsed::engine {

struct Forecast {
  double seconds = 0;     ///< 0: nothing is known
  bool measured = false;  ///< of requests of its kind; else of others of the same operation
};

/// Of one device. Thread-safe.
class Costs {
 public:
  /// Kinds of requests that are remembered; of more, all are forgotten.
  static constexpr size_t kMostKinds = 8192;

  /// Of a request of that kind, with so many multiplications.
  Forecast Of(uint64_t kind, Operation operation, double work) const;
  /// One took so long.
  void Took(uint64_t kind, Operation operation, double work, double seconds);

 private:
  mutable Mutex mutex_;
  /// Seconds for a multiplication: a running average.
  std::unordered_map<uint64_t, double> rates_ ABSL_GUARDED_BY(mutex_);
  std::array<double, 4> of_operations_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace sparsed::engine
