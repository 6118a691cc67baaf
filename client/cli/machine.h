// What this machine has, as Linux says it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace sparsed::cli {

/// The whole of a small file, such as those of /proc; none if it cannot be read.
std::optional<std::string> ReadSmallFile(const std::string& path);

/// What is in a folder, sorted; nothing if it cannot be read.
std::vector<std::string> NamesIn(const std::string& folder);

/// A number of /proc/meminfo, in bytes, such as "MemTotal"; 0 if it is not there.
int64_t MemoryInfo(const std::string& meminfo, const std::string& name);

/// The least limit of this process's cgroup and those around it: of a file such as "memory.max",
/// and of cgroup v1's "memory.limit_in_bytes". None: there is no limit.
std::optional<int64_t> CgroupMemoryLimit();

/// Bytes that programs may still take without swapping; 0 if it is not known.
int64_t AvailableMemory();
/// RESOURCE_EXHAUSTED if `what` needs more than three quarters of that, with `instead`, which would
/// need less.
absl::Status CheckFitsMemory(std::string_view what, double bytes, std::string_view instead);

}  // namespace sparsed::cli
