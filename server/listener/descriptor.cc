#include "server/listener/descriptor.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <cerrno>
#include <vector>

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

absl::Status CheckDescriptorsLeft(int count) {
  std::vector<Descriptor> opened;
  for (int i = 0; i < count; ++i) {
    opened.emplace_back(eventfd(0, EFD_CLOEXEC));
    if (opened.back().open()) continue;
    return absl::ResourceExhaustedError(fmt::format(
        "a start takes {} descriptors and only {} are left {}", count, i,
        errno == ENFILE
            ? "on this machine (fs.file-max)"
            : "of those that the process may have (ulimit -n, systemd's LimitNOFILE=)"));
  }
  return absl::OkStatus();
}

}  // namespace sparsed::server
