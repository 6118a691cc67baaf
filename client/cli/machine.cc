#include "client/cli/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "client/cli/report.h"

namespace sparsed::cli {
namespace {

/// cgroup v1 says so of no limit: the greatest multiple of a page.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadSmallFile(path);
  if (!text.has_value()) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || number >= kNoLimit) return std::nullopt;  // "max"
  return number;
}

/// The path behind "0::" (v2) or behind ":memory:" (v1) in /proc/self/cgroup.
std::string CgroupPath(std::string_view text, std::string_view mark) {
  const size_t found = text.find(mark);
  if (found == text.npos) return "";
  const size_t begin = found + mark.size();
  return std::string(text.substr(begin, text.find('\n', begin) - begin));
}

}  // namespace

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::optional<std::string> ReadSmallFile(const std::string& path) {
  constexpr size_t kMost = 64 << 10;
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return std::nullopt;
  std::string text(kMost, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return std::nullopt;
  return text;
}

int64_t MemoryInfo(const std::string& meminfo, const std::string& name) {
  const size_t found = meminfo.find(name + ":");
  if (found == std::string::npos) return 0;
  const size_t begin = meminfo.find_first_of("0123456789", found + name.size());
  if (begin == std::string::npos) return 0;
  int64_t kib = 0;
  std::from_chars(meminfo.data() + begin, meminfo.data() + meminfo.size(), kib);
  return kib << 10;
}

std::optional<int64_t> CgroupMemoryLimit() {
  const std::string cgroups = ReadSmallFile("/proc/self/cgroup").value_or("");
  std::optional<int64_t> least;
  const auto look = [&least](std::string root, std::string path, const char* file) {
    while (true) {
      const std::optional<int64_t> limit = ReadNumber(root + path + "/" + file);
      if (limit.has_value()) least = std::min(*limit, least.value_or(*limit));
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos) return;
      path.resize(slash);
    }
  };
  look("/sys/fs/cgroup", CgroupPath(cgroups, "0::"), "memory.max");
  look("/sys/fs/cgroup/memory", CgroupPath(cgroups, ":memory:"), "memory.limit_in_bytes");
  return least;
}

int64_t AvailableMemory() {
  const std::optional<std::string> meminfo = ReadSmallFile("/proc/meminfo");
  if (!meminfo.has_value()) return 0;
  const int64_t available = MemoryInfo(*meminfo, "MemAvailable");
  return std::min(available, CgroupMemoryLimit().value_or(available));
}

absl::Status CheckFitsMemory(std::string_view what, double bytes, std::string_view instead) {
  const auto room = static_cast<double>(AvailableMemory());
  if (room <= 0 || bytes <= 0.75 * room) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{} need {}, which leaves too little of the {} that are available here: {}", what,
                  Bytes(static_cast<int64_t>(bytes)), Bytes(static_cast<int64_t>(room)), instead));
}

}  // namespace sparsed::cli
