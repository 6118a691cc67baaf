// NVIDIA's cards, their driver and libraries, by what the system shows and the driver says. The
// libraries are opened by their sonames, as the server does; no header of theirs is needed.
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/doctor.h"
#include "client/cli/machine.h"

namespace sparsed::cli {
namespace {

using Status = Finding::Status;
namespace fs = std::filesystem;

/// How a service is allowed to open the devices.
constexpr const char* kHowToAllow =
    "systemd: share/sparsed/systemd/sparsed-gpu.conf; Docker: --gpus all; Kubernetes: "
    "nvidia.com/gpu: 1";
constexpr const char* kInstallDriver =
    "install NVIDIA's driver (Debian: nvidia-driver; a data center: the driver of its GPU "
    "operator) and `modprobe nvidia`";

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

template <typename Function>
Function* Find(const Library& library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library.get(), name));
}

/// PCI addresses of NVIDIA's display and compute controllers.
std::vector<std::string> Cards(const std::string& root) {
  const std::string folder = root + "/sys/bus/pci/devices";
  std::vector<std::string> cards;
  for (const std::string& address : NamesIn(folder)) {
    const std::string device = folder + "/" + address;
    if (ReadSmallFile(device + "/vendor").value_or("").starts_with("0x10de") &&
        ReadSmallFile(device + "/class").value_or("").starts_with("0x03")) {
      cards.push_back(address);
    }
  }
  return cards;
}

/// Files of /dev that the driver needs and this process may not open.
std::vector<std::string> Forbidden(const std::string& root) {
  std::vector<std::string> forbidden;
  for (const std::string& name : NamesIn(root + "/dev")) {
    const bool device =
        name == "nvidiactl" || name == "nvidia-uvm" ||
        (name.starts_with("nvidia") && name.size() > 6 && name[6] >= '0' && name[6] <= '9');
    const std::string path = root + "/dev/" + name;
    if (device && access(path.c_str(), R_OK | W_OK) != 0) forbidden.push_back("/dev/" + name);
  }
  return forbidden;
}

/// The driver's API, as far as it is needed (cuda.h; stable since CUDA 4).
constexpr int kNoDevice = 100;           ///< CUDA_ERROR_NO_DEVICE
constexpr int kMajor = 75, kMinor = 76;  ///< CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
constexpr int kComputeMode = 20;         ///< CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
constexpr int kExclusiveProcess = 3, kProhibited = 2;
constexpr int kLeastDriver = 12000;  ///< CUDA 12: what the kernels and cuSPARSE are built for
constexpr int kLeastMajor = 8;       ///< compute capability 8.0

void CheckDevice(const Library& driver, int device, Findings& findings) {
  auto* const name_of = Find<int(char*, int, int)>(driver, "cuDeviceGetName");
  auto* const attribute = Find<int(int*, int, int)>(driver, "cuDeviceGetAttribute");
  std::array<char, 128> name{};
  int major = 0, minor = 0, mode = 0;
  if (name_of == nullptr || attribute == nullptr ||
      name_of(name.data(), static_cast<int>(name.size()) - 1, device) != 0 ||
      attribute(&major, kMajor, device) != 0 || attribute(&minor, kMinor, device) != 0) {
    findings.push_back({"gpu", Status::kProblem,
                        fmt::format("GPU {} does not answer its driver", device),
                        "`nvidia-smi` and `dmesg | grep NVRM` say more"});
    return;
  }
  const bool old = major < kLeastMajor;
  findings.push_back(
      {"gpu", old ? Status::kProblem : Status::kOk,
       fmt::format("GPU {}: {}, compute capability {}.{}", device, name.data(), major, minor),
       old ? "kernels need 8.0 (A100) or newer: --devices=cpu serves without it" : ""});
  if (attribute(&mode, kComputeMode, device) == 0 &&
      (mode == kExclusiveProcess || mode == kProhibited)) {
    findings.push_back(
        {"gpu", mode == kProhibited ? Status::kProblem : Status::kWarning,
         fmt::format("GPU {} is in compute mode {}", device,
                     mode == kProhibited ? "PROHIBITED" : "EXCLUSIVE_PROCESS"),
         fmt::format("callers that share its memory are other processes: nvidia-smi -i {} -c "
                     "DEFAULT",
                     device)});
  }
}

/// Whether there are devices that can be used.
bool CheckDriver(const std::string& root, Findings& findings) {
  const Library driver(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
  const std::vector<std::string> cards = Cards(root);
  if (driver == nullptr) {
    if (cards.empty()) {
      findings.push_back({"gpu", Status::kNote, "no NVIDIA GPU is here: the CPU serves", ""});
      return false;
    }
    const bool module = fs::exists(root + "/proc/driver/nvidia/version");
    findings.push_back(
        {"driver", Status::kProblem,
         fmt::format("{} NVIDIA GPU{} (PCI {}), but libcuda.so.1 is not", cards.size(),
                     cards.size() == 1 ? " is here" : "s are here", cards.front()),
         module ? fmt::format("its module is loaded, its library is not reachable. {}", kHowToAllow)
                : kInstallDriver});
    return false;
  }
  for (const std::string& path : Forbidden(root)) {
    findings.push_back(
        {"driver", Status::kProblem, fmt::format("{} cannot be opened by this user", path),
         fmt::format("add the server's user to the group that it belongs to. {}", kHowToAllow)});
  }
  auto* const init = Find<int(unsigned)>(driver, "cuInit");
  auto* const version_of = Find<int(int*)>(driver, "cuDriverGetVersion");
  auto* const count_of = Find<int(int*)>(driver, "cuDeviceGetCount");
  if (init == nullptr || version_of == nullptr || count_of == nullptr) {
    findings.push_back(
        {"driver", Status::kProblem, "libcuda.so.1 is not NVIDIA's driver", kInstallDriver});
    return false;
  }
  const int begun = init(0);
  int version = 0, count = 0;
  if (begun != 0 || version_of(&version) != 0 || count_of(&count) != 0 || count == 0) {
    const bool none = (begun == kNoDevice || begun == 0) && cards.empty();
    findings.push_back({"driver", none ? Status::kNote : Status::kProblem,
                        begun == kNoDevice || begun == 0
                            ? std::string("the driver sees no GPU")
                            : fmt::format("the driver does not start: error {} of cuInit", begun),
                        none
                            ? ""
                            : fmt::format("`nvidia-smi` and `dmesg | grep NVRM` say more; after an "
                                          "upgrade of the driver restart the machine. {}",
                                          kHowToAllow)});
    return false;
  }
  const bool old = version < kLeastDriver;
  findings.push_back({"driver", old ? Status::kProblem : Status::kOk,
                      fmt::format("the driver is for CUDA {}.{}, and sees {} GPU{}", version / 1000,
                                  version % 1000 / 10, count, count == 1 ? "" : "s"),
                      old ? "CUDA 12 is needed: upgrade the driver to 525 or newer" : ""});
  for (int device = 0; device < count; ++device) CheckDevice(driver, device, findings);
  return true;
}

void CheckCusparse(Findings& findings) {
  const Library library(dlopen("libcusparse.so.12", RTLD_LAZY | RTLD_LOCAL));
  if (library != nullptr) {
    findings.push_back({"library", Status::kOk, "libcusparse.so.12 is among the candidates"});
    return;
  }
  findings.push_back({"library", Status::kWarning,
                      "libcusparse.so.12 cannot be opened: plans choose among our kernels alone",
                      "install it (CUDA's package libcusparse-12-x, or pip install "
                      "nvidia-cusparse-cu12) and put its folder into LD_LIBRARY_PATH"});
}

/// NVML's, as far as it is needed (nvml.h).
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlProcess {  // nvmlProcessInfo_v2_t, which the functions ending in _v3 fill
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

std::string NameOf(unsigned pid) {
  std::string name = ReadSmallFile(fmt::format("/proc/{}/comm", pid)).value_or("");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

/// The program's file name, as the driver has it; "" where it has none.
std::string NameOf(const Library& nvml, unsigned pid) {
  auto* const name_of = Find<int(unsigned, char*, unsigned)>(nvml, "nvmlSystemGetProcessName");
  std::array<char, 1024> path{};
  if (name_of == nullptr || name_of(pid, path.data(), path.size() - 1) != 0) return "";
  const std::string_view whole = std::string_view(path.data()).substr(0, path.size());
  const std::string_view program = whole.substr(0, whole.find(' '));
  return std::string(program.substr(program.rfind('/') + 1));
}

void CheckOthers(const RunningServer* asked, Findings& findings) {
  const Library nvml(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL));
  if (nvml == nullptr) return;
  auto* const init = Find<int()>(nvml, "nvmlInit_v2");
  auto* const end = Find<int()>(nvml, "nvmlShutdown");
  auto* const count_of = Find<int(unsigned*)>(nvml, "nvmlDeviceGetCount_v2");
  auto* const handle_of = Find<int(unsigned, void**)>(nvml, "nvmlDeviceGetHandleByIndex_v2");
  auto* const memory_of = Find<int(void*, NvmlMemory*)>(nvml, "nvmlDeviceGetMemoryInfo");
  auto* const processes_of =
      Find<int(void*, unsigned*, NvmlProcess*)>(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
  unsigned count = 0;
  if (init == nullptr || end == nullptr || count_of == nullptr || handle_of == nullptr ||
      memory_of == nullptr || processes_of == nullptr || init() != 0) {
    return;
  }
  if (count_of(&count) != 0) count = 0;
  for (unsigned device = 0; device < count; ++device) {
    void* handle = nullptr;
    NvmlMemory memory{};
    std::array<NvmlProcess, 256> processes{};
    auto running = static_cast<unsigned>(processes.size());
    if (handle_of(device, &handle) != 0 || memory_of(handle, &memory) != 0) continue;
    if (processes_of(handle, &running, processes.data()) != 0) running = 0;
    std::vector<GpuProcess> named;
    for (unsigned i = 0; i < running; ++i) {
      std::string name = NameOf(processes[i].pid);
      if (name.empty()) name = NameOf(nvml, processes[i].pid);
      named.push_back({processes[i].pid, std::move(name)});
    }
    findings.push_back(DescribeGpuUse(
        fmt::format("GPU {}: {} of {} are free", device, Bytes(static_cast<int64_t>(memory.free)),
                    Bytes(static_cast<int64_t>(memory.total))),
        named, asked));
  }
  end();
}

}  // namespace

Finding DescribeGpuUse(const std::string& of, const std::vector<GpuProcess>& processes,
                       const RunningServer* asked) {
  std::string others;
  bool others_use_it = false;
  for (const GpuProcess& process : processes) {
    const bool server = process.name == "sparsed";
    if (server && asked != nullptr && asked->pid == std::to_string(process.pid)) continue;
    others_use_it = others_use_it || !server;
    others += fmt::format("{}{} ({})", others.empty() ? "" : ", ",
                          server                 ? "another sparsed"
                          : process.name.empty() ? "a process of another container or user"
                                                 : process.name,
                          process.pid);
  }
  if (others.empty()) return {"gpu", Status::kOk, of};
  return {"gpu", others_use_it ? Status::kWarning : Status::kNote,
          fmt::format("{}; in use by {}", of, others),
          "measurements and latencies are theirs, too; --device-memory= keeps room for them"};
}

void CheckGpus(const std::string& root, const RunningServer* asked, Findings& findings) {
  if (!CheckDriver(root, findings)) return;
  CheckCusparse(findings);
  CheckOthers(asked, findings);
}

}  // namespace sparsed::cli
