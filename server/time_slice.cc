#include "server/time_slice.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace sparsed::server {
namespace {

constexpr uint64_t kSliceNanoseconds = 100'000;

/// The kernel's struct sched_attr, which Debian 12's C library has not; of a thread of SCHED_OTHER
/// `runtime` is the length of its slices.
struct Attributes {
  uint32_t size = sizeof(Attributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = kSliceNanoseconds, deadline = 0, period = 0;
};

}  // namespace

void ShortenTimeSlice() {
  // Another policy was somebody's choice.
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  Attributes attributes;
  errno = 0;
  attributes.nice = getpriority(PRIO_PROCESS, 0);  // set along with it
  if (errno != 0) return;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace sparsed::server
