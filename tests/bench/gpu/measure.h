// Measures every kernel that takes a matrix's layouts, side by side.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/gpu/device.h"
#include "tests/generate.h"

namespace sparsed::test {

struct Settings {
  std::vector<std::string> operations;  ///< of "spmm", "spmm^T", "sddmm"
  std::vector<std::string> pipelines;   ///< of layouts besides "csr" and, for spmm^T, "transpose"
  std::vector<std::string> kernels;     ///< parts of the names of those to measure; none: all
  std::vector<int64_t> widths;
  std::vector<std::string>
      types;  ///< of "f32", "f64", "f16", "bf16", "tf32": f32 that may be rounded
  int rounds = 15;
  double copy_rate = 0;  ///< GB/s, read and written: what the roofline is counted with
};

/// A moment after which nothing new begins, and what was left out because of it or for other
/// reasons.
class Schedule {
 public:
  /// Never over, without a number.
  explicit Schedule(std::optional<double> seconds);
  bool over() const { return std::chrono::steady_clock::now() >= end_; }
  void LeaveOut(std::string what) { left_out_.push_back(std::move(what)); }
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  std::chrono::steady_clock::time_point end_;
  std::vector<std::string> left_out_;
};

/// A line of JSON on standard output for each measurement, a line for people on standard error for
/// each problem signature. Returns how many results were wrong; an error if the device failed in a
/// way that leaves nothing to go on with.
absl::StatusOr<int> Measure(Device& device, const Settings& settings, Schedule& schedule,
                            const NamedPattern& matrix);

}  // namespace sparsed::test
