// A program that runs with its output in a file, and may be stopped or killed at any moment.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sparsed::test {

/// Ends with the thread that started it. Not thread-safe.
class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { End(9); }

  /// `log` grows from run to run.
  absl::Status Start(const std::vector<std::string>& words, const std::string& log);
  /// Whether it is there, and has not ended by itself.
  bool Lives();
  /// Of one that has ended by itself: its exit code, -1 if it was by a signal.
  int exit_code() const { return exit_code_; }
  void Signal(int signal) const;
  /// Sends the signal and waits until it is gone.
  void End(int signal);

 private:
  pid_t pid_ = 0;
  int exit_code_ = 0;
};

}  // namespace sparsed::test
