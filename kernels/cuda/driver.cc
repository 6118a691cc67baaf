#include "kernels/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace sparsed::cuda {
namespace {

namespace fs = std::filesystem;

/// How a service is allowed to open the devices.
constexpr const char* kHowToAllow =
    "systemd: deploy/systemd/sparsed-gpu.conf; Docker: --gpus all; Kubernetes: nvidia.com/gpu: 1";

/// Names in a folder; none if it cannot be read.
std::vector<std::string> Names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string FirstWord(const fs::path& file) {
  std::ifstream stream(file);
  std::string word;
  stream >> word;
  return word;
}

bool HasDeviceFiles(const fs::path& root) {
  std::error_code error;
  if (fs::exists(root / "proc/driver/nvidia/version", error)) return true;
  return std::ranges::any_of(Names(root / "dev"), [](const std::string& name) {
    constexpr std::string_view kPrefix = "nvidia";
    return name == "nvidiactl" ||
           (name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
            std::isdigit(static_cast<unsigned char>(name[kPrefix.size()])) != 0);
  });
}

/// The PCI address of the first display or compute controller of NVIDIA's.
std::string FindCard(const fs::path& root) {
  const fs::path devices = root / "sys/bus/pci/devices";
  for (const std::string& address : Names(devices)) {
    if (FirstWord(devices / address / "vendor") == "0x10de" &&
        FirstWord(devices / address / "class").starts_with("0x03")) {
      return address;
    }
  }
  return {};
}

std::string LibraryError(const char* library) {
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const error = dlerror();
    return error == nullptr ? "no reason given" : error;
  }
  dlclose(handle);
  return {};
}

/// Whoever hides all cards wants none. CUDA looks no further than the first that does not exist.
bool HiddenByEnvironment() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return false;
  const std::string_view list = visible;
  return list.empty() || list.starts_with("-1") || list == "NoDevFiles";
}

}  // namespace

Build ThisBuild() {
#ifdef SPARSED_CUDA_VERSION
  return {SPARSED_CUDA_VERSION, SPARSED_CUDA_BUILT_FOR};
#else
  return {"none", ""};
#endif
}

Traces FindTraces(const std::string& root, const char* library) {
  const fs::path base = root.empty() ? "/" : root;
  return {LibraryError(library), HasDeviceFiles(base), FindCard(base)};
}

absl::Status CheckTraces(const Traces& traces) {
  if (HiddenByEnvironment()) return absl::NotFoundError("CUDA_VISIBLE_DEVICES hides every GPU");
  const bool library = traces.library_error.empty();
  if (!library && !traces.device_files && traces.card.empty()) {
    return absl::NotFoundError("no NVIDIA driver here");
  }
  if (ThisBuild().architectures.empty()) {
    return absl::UnavailableError(
        "there is a GPU or a driver here, but this build has no GPU kernels: build it where "
        "NVIDIA's nvcc is");
  }
  if (library) return absl::OkStatus();
  if (!traces.device_files) {
    return absl::UnavailableError(fmt::format(
        "there is an NVIDIA card (PCI {}), but no NVIDIA driver here: install the driver, or let "
        "this process have the card ({})",
        traces.card, kHowToAllow));
  }
  return absl::UnavailableError(
      fmt::format("an NVIDIA driver is loaded, but its library is not here ({}): install it, or in "
                  "a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                  traces.library_error));
}

absl::Status DriverRefuses(const Traces& traces, std::string_view words) {
  if (!traces.device_files) {
    return absl::UnavailableError(
        fmt::format("an NVIDIA driver's library is here, but no /dev/nvidia*: load the driver's "
                    "modules, or let this process have the card ({}). The driver says: {}",
                    kHowToAllow, words));
  }
  for (const char* file : {"/dev/nvidiactl", "/dev/nvidia-uvm"}) {
    if (access(file, F_OK) == 0 && access(file, R_OK | W_OK) != 0) {
      return absl::UnavailableError(fmt::format(
          "this process may not open {} ({}). The driver says: {}", file, kHowToAllow, words));
    }
  }
  return absl::UnavailableError(
      fmt::format("the NVIDIA driver refuses: {}; nvidia-smi says whether it works at all", words));
}

}  // namespace sparsed::cuda
