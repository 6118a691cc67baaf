// What the programs tests/fault/attack_NAME.cc share: their command line, and how they report.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sparsed::test {

struct AttackOptions {
  double seconds = 0;              ///< how long to go on; at least one round is run
  std::vector<std::string> flags;  ///< of the server, after the attack's own
  uint32_t seed = 0;               ///< of what chance decides
};

/// What was measured, held against what was promised; printed as the program's last lines.
class Bounds {
 public:
  /// "peak resident: 1180 MiB, at most 1330: holds".
  void AtMost(const std::string& what, double measured, double bound, const std::string& unit);
  void AtLeast(const std::string& what, double measured, double bound, const std::string& unit);
  /// Of memory. Sanitizers take memory of their own: with one, anything holds.
  void MebibytesAtMost(const std::string& what, double measured, double bound);
  /// "the server lives: holds".
  void True(const std::string& what, bool holds);

  bool hold() const { return hold_; }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  void Add(std::string line, bool holds);

  std::vector<std::string> lines_;
  bool hold_ = true;
};

/// Returned by a program that cannot run on this machine; ctest calls it skipped.
inline constexpr int kExitSkipped = 77;

/// The main function of an attack: reads --seconds=N (`seconds` by default), --seed=N (another each
/// time by default; printed), --server-flag=FLAG (repeatable) and --help (which prints `about`),
/// runs `attack`, and prints its bounds. Returns 0
/// if they hold, 1 if one does not or the attack failed, kExitSkipped if it returned UNIMPLEMENTED.
int AttackMain(int argc, char** argv, const std::string& about, double seconds,
               const std::function<absl::Status(const AttackOptions&, Bounds&)>& attack);

}  // namespace sparsed::test
