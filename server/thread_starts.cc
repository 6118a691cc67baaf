#include "server/thread_starts.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <iostream>
#include <thread>

#include "server/hidden_function.h"
#include "server/log/log.h"
#include "server/log/log_limit.h"

namespace sparsed::server {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kBetweenTries = std::chrono::milliseconds(20);

std::atomic<int64_t> waiting = 0;
std::atomic<uint64_t> delayed = 0;
std::atomic<std::chrono::seconds> patience = kThreadPatience;

void Tell() {
  static LogLimit limit(/*per_second=*/0.1, /*burst=*/1);
  if (!limit.Admit().has_value()) return;
  Log(LogLevel::kError, "the operating system starts no more threads; waiting",
      {{"waiting", waiting.load()},
       {"limits", std::string("pids.max of the control group, RLIMIT_NPROC, memory")}});
}

[[noreturn]] void GiveUp() {
  StopLog();
  std::cerr << "sparsed: the operating system starts no more threads: raise pids.max of the "
               "control group (TasksMax=, --pids-limit) or RLIMIT_NPROC\n";
  _exit(1);
}

/// Calls `start` until it says something else than EAGAIN.
template <typename Start>
int TryAgain(const Start& start) {
  const Clock::time_point begin = Clock::now();
  ++delayed;
  ++waiting;
  int error = EAGAIN;
  while (error == EAGAIN) {
    Tell();
    if (Clock::now() - begin >= patience.load()) GiveUp();
    std::this_thread::sleep_for(kBetweenTries);
    error = start();
  }
  --waiting;
  return error;
}

}  // namespace

ThreadStarts CountThreadStarts() { return {waiting, delayed}; }

void SetThreadPatience(std::chrono::seconds seconds) { patience = seconds; }

}  // namespace sparsed::server

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*function)(void*), void* argument) noexcept {
  static auto* const hidden = sparsed::server::Hidden<decltype(pthread_create)>("pthread_create");
  const auto start = [&] { return hidden(thread, attributes, function, argument); };
  const int error = start();
  return error == EAGAIN ? sparsed::server::TryAgain(start) : error;
}
