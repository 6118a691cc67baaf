// An ordinary client beside an attack: whether it goes on being served.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "absl/status/status.h"

namespace sparsed::test {

/// A new client uploads a matrix and multiplies with it; OK if that worked within `seconds`.
absl::Status OneClientWorks(const std::string& address, double seconds);

/// Does that again and again, in a thread of its own, each time with a new connection.
class Bystander {
 public:
  explicit Bystander(const std::string& address);
  ~Bystander();

  int64_t served() const { return served_; }
  int64_t failed() const { return failed_; }
  double slowest_seconds() const { return slowest_seconds_; }

 private:
  const std::string address_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> served_ = 0, failed_ = 0;
  std::atomic<double> slowest_seconds_ = 0;
  std::thread thread_;
};

}  // namespace sparsed::test
