#include "server/check_start.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

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
  struct stat facts = {};
  if (stat(folder.c_str(), &facts) != 0) return std::generic_category().message(errno);
  if (!S_ISDIR(facts.st_mode)) return std::generic_category().message(ENOTDIR);
  return access(folder.c_str(), W_OK | X_OK) == 0 ? std::string()
                                                  : std::generic_category().message(errno);
}

/// Where `path`, which a start would make, would be made: the first folder above it that is there.
std::string FirstThatIsThere(const std::string& path) {
  std::filesystem::path folder = path;
  std::error_code ignored;
  while (!std::filesystem::exists(folder, ignored) && folder.has_parent_path() &&
         folder != folder.parent_path()) {
    folder = folder.parent_path();
  }
  return folder.string();
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
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
  const auto check_folder = [&](const char* flag, const std::string& folder) {
    if (const std::string why = WhyNotWritable(folder); !why.empty()) {
      problems.Add(flag, fmt::format("nothing can be made in {}: {}", folder, why));
    }
  };
  // One below /run that is not there may be made for each start, as systemd does with /run/sparsed;
  // /var/run is a link there.
  const auto check_socket = [&](const char* flag, const std::string& address) {
    if (!address.starts_with(kUnixPrefix)) return;
    const std::string folder = FolderOf(address.substr(kUnixPrefix.size()));
    std::error_code ignored;
    const std::string real = std::filesystem::weakly_canonical(folder, ignored).string();
    if (real.starts_with("/run/") && !std::filesystem::exists(folder, ignored)) return;
    check_folder(flag, folder);
  };
  if (!config.access_file.empty()) {
    const auto access = Access::Open(config.access_file);
    if (!access.ok()) problems.Add("access-file", std::string(access.status().message()));
  }
  // One without the other is told already.
  if (!config.tls_certificate.empty() && !config.tls_key.empty()) {
    const auto certificates =
        Certificates::Open({config.tls_certificate, config.tls_key, config.tls_client_ca});
    if (!certificates.ok()) {
      const std::string why(certificates.status().message());
      const auto names = [&](const std::string& file) {
        return !file.empty() && why.starts_with(file);
      };
      const char* const flag = names(config.tls_key)         ? "tls-key"
                               : names(config.tls_client_ca) ? "tls-client-ca"
                                                             : "tls-certificate";
      problems.Add(flag, why);
    }
  }
  if (!config.in_memory()) {
    const std::filesystem::path folder = std::filesystem::absolute(config.data_dir);
    check_folder("data-dir", FirstThatIsThere(folder.string()));
  }
  if (const absl::StatusOr<std::string> models = InstalledModels(config); !models.ok()) {
    problems.Add("models", std::string(models.status().message()));
  }
  if (!config.audit_log.empty()) check_folder("audit-log", FolderOf(config.audit_log));
  if (const std::optional<UnsafeAddress> unsafe = FindUnsafeAddress(config)) {
    problems.Add(unsafe->flag, unsafe->why);
  }
  for (const std::string& address : config.listen) check_socket("listen", address);
  for (const std::string& name : config.devices) {
    const std::optional<DeviceId> device = ParseDeviceId(name);
    if (!device || device->kind != DeviceKind::kCuda) continue;
    // What needs no context on the card, which may be busy with the server that is to be restarted.
    if (const auto found = cuda::DeviceUuid(device->ordinal); !found.ok()) {
      problems.Add("devices",
                   fmt::format("{} cannot serve: {}", name, std::string(found.status().message())));
    }
  }
  check_socket("local-listen", config.local_listen);
}

}  // namespace sparsed::server
