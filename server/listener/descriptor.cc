#include "server/listener/descriptor.h"

#include <sys/resource.h>

namespace sparsed::server {

int64_t RaiseDescriptorLimit() {
  constexpr int64_t kPosixMinimum = 20;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kPosixMinimum;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace sparsed::server
