#include "server/check_start.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/cuda/device.h"
#include "kernels/device_id.h"
#include "server/listener/listen_socket.h"
#include "server/security/access.h"
#include "server/security/certificates.h"

namespace sparsed::server {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";

/// Empty, or why no file can be made in `folder`.
std::string WhyNotWritable(const std::string& folder) {
  const auto why = [&folder](std::string_view reason) {
    return fmt::format("nothing can be made in {}: {}", folder, reason);
  };
  struct stat facts = {};
  struct statfs system = {};
  if (stat(folder.c_str(), &facts) != 0) return why(std::generic_category().message(errno));
  if (!S_ISDIR(facts.st_mode)) return why(std::generic_category().message(ENOTDIR));
  // Root may write there, and nothing can be made even so.
  if (statfs(folder.c_str(), &system) == 0 &&
      (system.f_type == PROC_SUPER_MAGIC || system.f_type == SYSFS_MAGIC)) {
    return why("the kernel's own files are there");
  }
  return access(folder.c_str(), W_OK | X_OK) == 0 ? std::string()
                                                  : why(std::generic_category().message(errno));
}

/// In which the path is, which may have slashes behind its name.
std::string WithoutSlashBehind(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string FolderOf(const std::string& path) {
  return std::filesystem::absolute(WithoutSlashBehind(path)).parent_path().string();
}

}  // namespace

absl::StatusOr<std::string> InstalledModels(const Config& config) {
  std::error_code error;
  if (config.models == "off") return "";
  if (config.models != "auto") {
    if (std::filesystem::is_directory(config.models, error)) return config.models;
    return absl::FailedPreconditionError(fmt::format("{} is no folder", config.models));
  }
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path folder =
      program.parent_path().parent_path() / "share" / "sparsed" / "models";
  return std::filesystem::is_directory(folder, error) ? folder.string() : std::string();
}

std::string DataDirectoryProblem(const Config& config) {
  if (config.in_memory()) return "";
  std::error_code error;
  const std::string directory = WithoutSlashBehind(config.data_dir);
  if (std::filesystem::exists(directory, error)) return WhyNotWritable(directory);
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(directory, error))) {
    return fmt::format("{} is a link to what is not there", directory);
  }
  const std::string folder = FolderOf(config.data_dir);
  if (std::filesystem::exists(folder, error) || error) return WhyNotWritable(folder);
  return fmt::format("{} cannot be made: there is no {} (mkdir -p {}, if that is its name)",
                     config.data_dir, folder, folder);
}

std::optional<UnsafeAddress> FindUnsafeAddress(const Config& config) {
  const auto unsafe = [](const char* flag, const std::string& address, const char* why) {
    return UnsafeAddress{flag, fmt::format("{}: other machines reach it, and {}", address, why)};
  };
  for (const std::string& address : config.listen) {
    if (StaysOnThisMachine(address)) continue;
    const bool tls = !config.tls_certificate.empty();
    if (!config.access_file.empty() && !tls) {
      return unsafe("listen", address,
                    "tokens do not travel in plain text; give --tls-certificate and --tls-key, or "
                    "listen at 127.0.0.1");
    }
    if (config.insecure || !config.access_file.empty()) continue;
    return unsafe("listen", address,
                  "nothing says who calls; give --tls-certificate, --tls-key and --access-file, "
                  "listen at 127.0.0.1 or unix:/PATH, or say --insecure if whoever reaches it may "
                  "do everything");
  }
  if (config.metrics_token && !StaysOnThisMachine(config.metrics_listen)) {
    return unsafe("metrics-listen", config.metrics_listen,
                  "the token of --metrics-token does not travel in plain text; have "
                  "--metrics-listen be at 127.0.0.1");
  }
  return std::nullopt;
}

void CheckStart(const Config& config, Problems& problems) {
  if (!config.access_file.empty()) {
    const auto access = Access::Open(config.access_file);
    if (!access.ok()) problems.Add("access-file", std::string(access.status().message()));
  }
  // One without the other is told already.
  if (!config.tls_certificate.empty() && !config.tls_key.empty()) {
    const std::array<std::pair<const char*, const std::string*>, 3> files = {
        {{"tls-certificate", &config.tls_certificate},
         {"tls-key", &config.tls_key},
         {"tls-client-ca", &config.tls_client_ca}}};
    bool all_there = true;
    for (const auto& [flag, file] : files) {
      if (file->empty() || access(file->c_str(), R_OK) == 0) continue;
      problems.Add(flag, fmt::format("{}: {}", *file, std::generic_category().message(errno)));
      all_there = false;
    }
    absl::Status status;
    if (all_there) {
      status = Certificates::Open({config.tls_certificate, config.tls_key, config.tls_client_ca})
                   .status();
    }
    if (!status.ok()) {
      const std::string why(status.message());
      // One file's name may begin with another's.
      const auto fit = [&](const auto& file) {
        return !file.second->empty() && why.starts_with(*file.second) ? file.second->size() : 0;
      };
      problems.Add(std::ranges::max_element(files, {}, fit)->first, why);
    }
  }
  if (const absl::StatusOr<std::string> models = InstalledModels(config); !models.ok()) {
    problems.Add("models", std::string(models.status().message()));
  }
  if (const std::optional<UnsafeAddress> unsafe = FindUnsafeAddress(config)) {
    problems.Add(unsafe->flag, unsafe->why);
  }
  const auto check_folder = [&](const char* flag, const std::string& folder) {
    if (const std::string why = WhyNotWritable(folder); !why.empty()) problems.Add(flag, why);
  };
  const auto check_address = [&](const char* flag, const std::string& address) {
    if (absl::Status status = CheckAddress(address); !status.ok()) {
      problems.Add(flag, std::string(status.message()));
      return;
    }
    if (!address.starts_with(kUnixPrefix)) return;
    // A folder below /run that is not there may be made for each start, as systemd does with
    // /run/sparsed; /var/run is a link there.
    const std::string folder = FolderOf(address.substr(kUnixPrefix.size()));
    std::error_code ignored;
    const std::string real = std::filesystem::weakly_canonical(folder, ignored).string();
    if (real.starts_with("/run/") && !std::filesystem::exists(folder, ignored)) return;
    check_folder(flag, folder);
  };
  if (const std::string problem = DataDirectoryProblem(config); !problem.empty()) {
    problems.Add("data-dir", problem);
  }
  if (!config.audit_log.empty()) check_folder("audit-log", FolderOf(config.audit_log));
  for (const std::string& address : config.listen) check_address("listen", address);
  const auto check_if_any = [&](const char* flag, const std::string& address) {
    if (!address.empty() && address != "auto") check_address(flag, address);
  };
  check_if_any("metrics-listen", config.metrics_listen);
  check_if_any("local-listen", config.local_listen);
  for (const std::string& name : config.devices) {
    const std::optional<DeviceId> device = ParseDeviceId(name);
    if (!device || device->kind != DeviceKind::kCuda) continue;
    // What needs no context on the card, which may be busy with the server that is to be restarted.
    if (const auto found = cuda::DeviceUuid(device->ordinal); !found.ok()) {
      problems.Add("devices",
                   fmt::format("{} cannot serve: {}", name, std::string(found.status().message())));
    }
  }
}

}  // namespace sparsed::server
