// What happens when the operating system starts no more threads.
//
// libgomp, gRPC and the standard library end the process then. As they find pthread_create by its
// name at run time, and a program's own functions come first, thread_starts.cc defines it: it tries
// again until there is room, since the limits (pids.max of a control group, RLIMIT_NPROC) count
// other processes, too, and what they took comes back.
#pragma once

#include <chrono>
#include <cstdint>

namespace sparsed::server {

struct ThreadStarts {
  int64_t waiting = 0;   ///< threads that wait for one that they want to start
  uint64_t delayed = 0;  ///< starts that had to wait, ever
};
ThreadStarts CountThreadStarts();

/// For how long a start waits, then the process ends with exit code 1 and a sentence on standard
/// error; it holds for those that wait already, too. Ten seconds unless this was called.
void SetThreadPatience(std::chrono::seconds patience);
inline constexpr std::chrono::seconds kThreadPatience{10};
inline constexpr std::chrono::seconds kEndlessPatience = std::chrono::hours(24 * 365 * 100);

}  // namespace sparsed::server
