#include "server/config/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace sparsed::server {
namespace {

/// Calls `read` with a path and the open file, named `file`, in our control group's folder and each
/// above it. Knows cgroup v2, and v1's `controller` where that is mounted.
template <typename Read>
void ForEachControlGroup(const std::string& controller, const std::string& file, Read read) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" is v2; "5:memory:/path" is v1.
    std::istringstream fields(line);
    std::string id, controllers, path;
    std::getline(fields, id, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    if (!controllers.empty() && controllers.find(controller) == std::string::npos) continue;
    const std::string root =
        controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controllers;
    for (std::filesystem::path folder = path; !folder.empty(); folder = folder.parent_path()) {
      const std::string at = root + (folder == "/" ? "" : folder.string()) + "/" + file;
      std::ifstream limit(at);
      if (limit) read(at, limit);
      if (folder == folder.parent_path()) break;
    }
  }
}

}  // namespace

UsableMemory MemoryOfThisMachine() {
  UsableMemory memory{static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE), ""};
  const auto read = [&memory](const std::string& path, std::ifstream& file) {
    int64_t limit = 0;  // "max" is no number
    if (file >> limit && limit < memory.bytes) memory = {limit, path};
  };
  ForEachControlGroup("memory", "memory.max", read);
  ForEachControlGroup("memory", "memory.limit_in_bytes", read);
  return memory;
}

int64_t DefaultHostMemory(int64_t usable_bytes) {
  constexpr int64_t kNotCounted = int64_t{1} << 30;
  return usable_bytes - std::min(std::max(usable_bytes / 5, kNotCounted), usable_bytes / 2);
}

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = sched_getaffinity(0, sizeof(set), &set) == 0
                 ? CPU_COUNT(&set)
                 : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  ForEachControlGroup("cpu", "cpu.max", [&cpus](const std::string&, std::ifstream& file) {
    double quota = 0, period = 0;
    if (file >> quota >> period && period > 0) {
      cpus = std::min(cpus, static_cast<int>(std::ceil(quota / period)));
    }
  });
  return std::max(cpus, 1);
}

}  // namespace sparsed::server
