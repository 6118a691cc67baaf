// What a server needs of the machine: a port, a folder, limits, memory.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "client/cli/doctor.h"
#include "client/cli/machine.h"

namespace sparsed::cli {
namespace {

using Status = Finding::Status;

/// Descriptors that a server of many clients needs; the units of deploy/systemd ask for them.
constexpr int64_t kDescriptors = 65536;
constexpr int64_t kGiB = int64_t{1} << 30;
/// That a server leaves free on its disk (docs/storage.md).
constexpr int64_t kCatalogRoomBytes = int64_t{16} << 20;

bool IsUnix(std::string_view address) { return address.starts_with("unix:"); }

/// Tries to listen; the errno of what failed, 0 if it went well, none if the address makes no
/// sense.
std::optional<int> TryToListen(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int yes = 1;
  // As the server does, so that a connection that is going is no obstacle.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const bool listens = bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0;
  const int error = listens ? 0 : errno;
  close(fd);
  return error;
}

/// The limit behind a name of /proc/PID/limits: soft and hard; -1: none.
std::optional<std::pair<int64_t, int64_t>> LimitOf(std::string_view limits, std::string_view name) {
  const size_t found = limits.find(name);
  if (found == limits.npos) return std::nullopt;
  std::string_view line = limits.substr(found + name.size());
  line = line.substr(0, line.find('\n'));
  const auto next = [&line]() -> int64_t {
    const size_t begin = line.find_first_not_of(' ');
    if (begin == line.npos) return -1;
    const size_t end = std::min(line.find(' ', begin), line.size());
    int64_t number = -1;
    std::from_chars(line.data() + begin, line.data() + end, number);  // "unlimited" leaves -1
    line.remove_prefix(end);
    return number;
  };
  const int64_t soft = next();
  return std::pair(soft, next());
}

/// Processes of that name.
std::vector<std::string> Processes(const std::string& proc, std::string_view name) {
  std::vector<std::string> pids;
  for (const std::string& pid : NamesIn(proc)) {
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (ReadSmallFile(fmt::format("{}/{}/comm", proc, pid)) == fmt::format("{}\n", name)) {
      pids.push_back(pid);
    }
  }
  return pids;
}

/// A socket that listens, as /proc/PID/net/tcp has it.
struct Listener {
  int port = 0;
  std::string inode;
  uid_t user = 0;
};

void AddListeners(const std::string& table, std::vector<Listener>& listeners) {
  constexpr std::string_view kListens = "0A";
  std::istringstream lines(table);
  std::string line;
  std::getline(lines, line);  // what the columns are
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    // sl, local address, remote address, state, queues, timer, retransmits, uid, timeout, inode
    std::array<std::string, 10> word;
    for (std::string& next : word) words >> next;
    const size_t colon = word[1].rfind(':');
    int port = 0;
    if (word[3] != kListens || colon == std::string::npos) continue;
    std::from_chars(word[1].data() + colon + 1, word[1].data() + word[1].size(), port, 16);
    uid_t user = 0;
    std::from_chars(word[7].data(), word[7].data() + word[7].size(), user);
    listeners.push_back({port, word[9], user});
  }
}

/// Of the network that the process `process` (a folder of /proc) is in.
std::vector<Listener> ListenersOf(const std::string& process) {
  std::vector<Listener> listeners;
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    AddListeners(ReadSmallFile(process + table).value_or(""), listeners);
  }
  return listeners;
}

/// Unix sockets that listen, as /proc/PID/net/unix has them: paths by inode.
std::map<std::string, std::string> UnixListenersOf(const std::string& process) {
  constexpr std::string_view kListens = "00010000";
  std::map<std::string, std::string> listeners;
  std::istringstream lines(ReadSmallFile(process + "/net/unix").value_or(""));
  std::string line;
  std::getline(lines, line);  // what the columns are
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    // number, references, protocol, flags, type, state, inode; then the path
    std::array<std::string, 7> word;
    for (std::string& next : word) words >> next;
    std::string path;
    std::getline(words >> std::ws, path);
    if (word[3] == kListens && !path.empty() && path.front() != '@') listeners[word[6]] = path;
  }
  return listeners;
}

/// Inodes of the sockets that a process has; none if that is not for this user to see.
std::set<std::string> SocketsOf(const std::string& process) {
  std::set<std::string> inodes;
  for (const std::string& name : NamesIn(process + "/fd")) {
    std::error_code error;
    const std::string link = std::filesystem::read_symlink(process + "/fd/" + name, error).string();
    constexpr std::string_view kSocket = "socket:[";
    if (error || !link.starts_with(kSocket)) continue;
    inodes.insert(link.substr(kSocket.size(), link.size() - kSocket.size() - 1));
  }
  return inodes;
}

/// Where a process listens, as far as this user may see it.
RunningServer ServerOf(const std::string& proc, const std::string& pid) {
  const std::string process = proc + "/" + pid;
  const std::set<std::string> sockets = SocketsOf(process);
  std::set<int> ports;
  for (const Listener& listener : ListenersOf(process)) {
    if (sockets.contains(listener.inode)) ports.insert(listener.port);
  }
  RunningServer server = {pid, {ports.begin(), ports.end()}};
  for (const auto& [inode, path] : UnixListenersOf(process)) {
    if (!sockets.contains(inode)) continue;
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::read_symlink(process + "/cwd", error);
    server.sockets.push_back((folder / path).lexically_normal().string());
  }
  std::ranges::sort(server.sockets);
  return server;
}

/// "process 17, at ports 7470, 7471 and unix:/run/sparsed.sock".
std::string TextOf(const RunningServer& server) {
  std::string text = fmt::format("process {}", server.pid);
  if (!server.ports.empty()) {
    text += fmt::format(", at port{} {}", server.ports.size() == 1 ? "" : "s",
                        fmt::join(server.ports, ", "));
  }
  for (const std::string& path : server.sockets) {
    text +=
        fmt::format("{} unix:{}",
                    server.ports.empty() && path == server.sockets.front() ? ", at" : " and", path);
  }
  return text;
}

/// The path of "unix:PATH" or "unix:///PATH", as a running server's.
std::string SocketOf(std::string_view address) {
  address.remove_prefix(std::string_view("unix:").size());
  if (address.starts_with("///")) address.remove_prefix(2);
  std::error_code error;
  return std::filesystem::absolute(address, error).lexically_normal().string();
}

/// Of "host:port"; 0 of any other address.
int PortOf(std::string_view address) {
  int port = 0;
  if (IsUnix(address)) return 0;
  const std::string_view digits = address.substr(address.rfind(':') + 1);
  std::from_chars(digits.data(), digits.data() + digits.size(), port);
  return port;
}

/// "a process of the user www-data"; of a sparsed whose ports are not to be seen, it. Everybody may
/// see whose a socket is, and who else's process it belongs to nobody but root.
std::string WhoListens(const std::string& proc, int port,
                       const std::vector<RunningServer>& servers) {
  const std::vector<Listener> listeners = ListenersOf(proc + "/self");
  const auto found = std::ranges::find(listeners, port, &Listener::port);
  if (found == listeners.end()) return "a process that is not to be seen from here";
  const passwd* const user = getpwuid(found->user);
  const std::string name = user != nullptr ? user->pw_name : std::to_string(found->user);
  for (const RunningServer& server : servers) {
    struct stat process {};
    const bool theirs = stat(fmt::format("{}/{}", proc, server.pid).c_str(), &process) == 0 &&
                        process.st_uid == found->user;
    if (theirs && server.ports.empty()) {
      return fmt::format("a process of the user {}, perhaps the sparsed that is process {}", name,
                         server.pid);
    }
  }
  return fmt::format("a process of the user {}", name);
}

/// `gpu`: memory that cannot be locked matters.
void CheckLimitsOf(const std::string& limits, const std::string& whose, bool gpu,
                   Findings& findings) {
  const auto files = LimitOf(limits, "Max open files");
  if (files.has_value()) {
    const int64_t hard = files->second;
    const bool few = hard >= 0 && hard < kDescriptors;
    findings.push_back(
        {"limits", few ? Status::kWarning : Status::kOk,
         fmt::format("{}: {} open files at most", whose,
                     hard < 0 ? "any number of" : std::to_string(hard)),
         few ? "each connection takes one: LimitNOFILE=65536 in the unit, `ulimit -n 65536`, or "
               "--ulimit nofile=65536 of docker run"
             : ""});
  }
  const auto locked = LimitOf(limits, "Max locked memory");
  if (locked.has_value()) {
    const bool little = gpu && locked->second >= 0 && locked->second < kGiB;
    findings.push_back({"limits", little ? Status::kNote : Status::kOk,
                        fmt::format("{}: {} of locked memory at most", whose,
                                    locked->second < 0 ? "any amount" : Bytes(locked->second)),
                        little ? "on its way to a GPU, shared memory that cannot be pinned is "
                                 "copied once more: LimitMEMLOCK=infinity, or --ulimit memlock=-1"
                               : ""});
  }
  const auto memory = LimitOf(limits, "Max address space");
  if (memory.has_value() && memory->second >= 0) {
    findings.push_back({"limits", Status::kWarning,
                        fmt::format("{}: {} of address space", whose, Bytes(memory->second)),
                        "a GPU's driver maps all of its memory: `ulimit -v unlimited`, and limit "
                        "memory by --host-memory or a cgroup"});
  }
}

/// statfs's numbers of file systems that matter.
std::string_view FileSystemName(int64_t type) {
  switch (type) {
    case 0x01021994:
      return "tmpfs";
    case 0x6969:
      return "nfs";
    case 0xFF534D42:
    case 0xFE534D42:
      return "smb";
    case 0x65735546:
      return "fuse";
    default:
      return "";
  }
}

void CheckFileSystem(const std::string& path, Findings& findings) {
  struct statfs disk {};
  if (statfs(path.c_str(), &disk) != 0) return;
  const auto block = static_cast<int64_t>(disk.f_bsize);
  findings.push_back(DescribeDisk(path, static_cast<int64_t>(disk.f_bavail) * block,
                                  static_cast<int64_t>(disk.f_blocks) * block));
  if (disk.f_files > 0 && disk.f_ffree < 1000) {
    findings.push_back({"disk", Status::kProblem,
                        fmt::format("only {} files can still be made at {}", disk.f_ffree, path),
                        "every array is a file: free inodes, or take another file system"});
  }
  const std::string_view name = FileSystemName(static_cast<int64_t>(disk.f_type) & 0xFFFFFFFF);
  if (name == "tmpfs") {
    findings.push_back({"disk", Status::kWarning, fmt::format("{} is in memory (tmpfs)", path),
                        "uploads do not survive the machine's restart: take a folder on a disk"});
  } else if (!name.empty()) {
    findings.push_back({"disk", Status::kWarning,
                        fmt::format("{} is on a network or in user space ({})", path, name),
                        "what is acknowledged is as durable as its sync, and its locks must hold "
                        "between machines: prefer a local disk"});
  }
}

/// A server's word, not that of whatever else may be there.
bool Refuses(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
}

}  // namespace

std::vector<RunningServer> RunningServers(const std::string& proc) {
  std::vector<RunningServer> servers;
  for (const std::string& pid : Processes(proc, "sparsed")) {
    servers.push_back(ServerOf(proc, pid));
  }
  return servers;
}

const RunningServer* ServerAt(const std::string& address,
                              const std::vector<RunningServer>& servers) {
  const int port = PortOf(address);
  const std::string socket = IsUnix(address) ? SocketOf(address) : "";
  for (const RunningServer& server : servers) {
    if (port > 0 && std::ranges::find(server.ports, port) != server.ports.end()) return &server;
    if (std::ranges::find(server.sockets, socket) != server.sockets.end()) return &server;
  }
  if (servers.size() != 1) return nullptr;
  const RunningServer& only = servers.front();
  const bool hidden = only.ports.empty() && only.sockets.empty();
  return hidden || (port == 0 && only.sockets.empty()) ? &only : nullptr;
}

std::optional<std::string> DataFolderOf(const std::string& proc, const RunningServer& server) {
  constexpr std::string_view kCatalog = "/catalog.sqlite";
  const std::string descriptors = fmt::format("{}/{}/fd", proc, server.pid);
  for (const std::string& name : NamesIn(descriptors)) {
    std::error_code error;
    const std::string link =
        std::filesystem::read_symlink(fmt::format("{}/{}", descriptors, name), error).string();
    if (!error && link.ends_with(kCatalog)) return link.substr(0, link.size() - kCatalog.size());
  }
  return std::nullopt;
}

void CheckOtherServers(const std::string& address, const std::vector<RunningServer>& servers,
                       Findings& findings) {
  const RunningServer* const asked = ServerAt(address, servers);
  for (const RunningServer& server : servers) {
    if (&server == asked) continue;
    findings.push_back({"server", Status::kNote,
                        fmt::format("another sparsed runs here: {}", TextOf(server)),
                        "it shares processors, memory and GPUs with this one"});
  }
}

bool CheckServer(const std::string& address, const ClientOptions& options, Findings& findings) {
  ClientOptions soon = options;
  soon.connect_timeout = std::min(soon.connect_timeout, std::chrono::milliseconds(3000));
  const absl::StatusOr<Client> client = Client::Connect(address, soon);
  if (!client.ok()) {
    const bool none = absl::IsUnavailable(client.status());
    findings.push_back(
        {"server", none ? Status::kNote : Status::kProblem, std::string(client.status().message()),
         none ? "start one (`sparsed --in-memory`, or `systemctl start sparsed`), or "
                "say where it is by --server or SPARSED_SERVER"
              : "docs/security.md says how a client shows who it is"});
    return Refuses(client.status());
  }
  const absl::StatusOr<ServerInfo> info =
      client->GetServerInfo({.timeout = std::chrono::seconds(5)});
  if (!info.ok()) {
    findings.push_back({"server", Status::kProblem, std::string(info.status().message()),
                        "docs/security.md says how a client shows who it is"});
    return Refuses(info.status());
  }
  findings.push_back(
      {"server", Status::kOk, fmt::format("sparsed {} answers at {}", info->version, address)});
  for (const DeviceInfo& device : info->devices) {
    const bool serves = device.unavailable.empty();
    findings.push_back(
        {"server", serves ? Status::kOk : Status::kNote,
         serves ? fmt::format("{} serves: {}", device.name, device.description)
                : fmt::format("{} does not serve: {}", device.name, device.unavailable),
         serves ? "" : "if it should, run `sparsectl doctor` on the server's machine"});
  }
  if (!info->durable) {
    findings.push_back({"server", Status::kNote, "it keeps everything in memory",
                        "--data-dir=FOLDER keeps uploads over a restart"});
  }
  constexpr std::string_view kUnix = "unix:";
  std::string socket = info->local_socket;
  if (socket.starts_with(kUnix)) socket = socket.substr(kUnix.size());
  struct stat there {};
  if (socket.empty() || stat(socket.c_str(), &there) != 0) return true;
  const bool usable = access(socket.c_str(), R_OK | W_OK) == 0;
  findings.push_back(
      {"socket", usable ? Status::kOk : Status::kWarning,
       fmt::format("{} {}", socket,
                   usable ? "can be used: operands need not be copied"
                          : "is not for this user: operands are copied"),
       usable ? "" : "--socket-group= and --socket-mode= of the server say who may"});
  return true;
}

void CheckPort(const std::string& proc, const std::string& address, std::string_view what,
               bool in_use, const std::vector<RunningServer>& servers, Findings& findings) {
  if (in_use || IsUnix(address)) return;
  const std::optional<int> error = TryToListen(address);
  if (!error.has_value()) {
    findings.push_back({"port", Status::kNote,
                        fmt::format("{} ({}) is no address of this machine", address, what), ""});
    return;
  }
  switch (*error) {
    case 0:
      findings.push_back({"port", Status::kOk, fmt::format("{} is free for {}", address, what)});
      return;
    case EADDRINUSE:
      for (const RunningServer& server : servers) {
        if (std::ranges::find(server.ports, PortOf(address)) == server.ports.end()) continue;
        findings.push_back({"port", Status::kProblem,
                            fmt::format("{}, which is to be {}'s, is another sparsed's ({})",
                                        address, what, TextOf(server)),
                            "give this server another (--listen=, --metrics-listen=)"});
        return;
      }
      findings.push_back(
          {"port", Status::kProblem,
           fmt::format("{}, which is to be {}'s, is taken, by {}", address, what,
                       WhoListens(proc, PortOf(address), servers)),
           fmt::format("as root `ss -ltnp 'sport = :{}'` names it; or give the server "
                       "another (--listen=, --metrics-listen=)",
                       address.substr(address.rfind(':') + 1))});
      return;
    case EADDRNOTAVAIL:
      findings.push_back(
          {"port", Status::kNote, fmt::format("{} ({}) is on another machine", address, what), ""});
      return;
    default:
      findings.push_back({"port", Status::kWarning,
                          fmt::format("cannot listen at {}: {}", address, std::strerror(*error)),
                          "ports below 1024 need a capability: take one above"});
  }
}

Finding DescribeDisk(const std::string& path, int64_t free, int64_t whole) {
  Finding finding = {"disk", Status::kOk,
                     fmt::format("{} of {} are free at {}", Bytes(free), Bytes(whole), path)};
  if (free <= kCatalogRoomBytes) {
    finding.status = Status::kProblem;
    finding.remedy = fmt::format(
        "every upload is refused, as {} are kept for the catalog: {}", Bytes(kCatalogRoomBytes),
        whole <= 2 * kCatalogRoomBytes
            ? "take a larger volume"
            : "delete matrices (`sparsectl delete`), or move the folder to a larger disk");
  } else if (free < kGiB || free < whole / 20) {
    finding.status = free < kGiB ? Status::kProblem : Status::kWarning;
    finding.remedy = fmt::format(
        "uploads are refused when less than {} are free: delete matrices (`sparsectl delete`), or "
        "move the folder to a larger disk",
        Bytes(kCatalogRoomBytes));
  }
  return finding;
}

void CheckDataFolder(const std::string& path, bool asked_for, Findings& findings) {
  struct stat folder {};
  if (stat(path.c_str(), &folder) != 0) {
    findings.push_back({"folder", asked_for ? Status::kProblem : Status::kNote,
                        fmt::format("{}: {}", path, std::strerror(errno)),
                        "the packages and the systemd unit make it; else `install -d -m 700 -o "
                        "sparsed FOLDER`"});
    return;
  }
  if (!S_ISDIR(folder.st_mode)) {
    findings.push_back({"folder", Status::kProblem, fmt::format("{} is not a folder", path),
                        "give --data-dir= a folder"});
    return;
  }
  // Who looks need not be who serves: root sees all, others their own.
  const bool mine = folder.st_uid == geteuid();
  if (mine && access(path.c_str(), R_OK | W_OK | X_OK) != 0) {
    findings.push_back({"folder", Status::kProblem,
                        fmt::format("{} cannot be written by its owner", path),
                        fmt::format("chmod u+rwx {}", path)});
  } else if ((folder.st_mode & (S_IROTH | S_IWOTH)) != 0 && (folder.st_mode & S_ISVTX) == 0) {
    findings.push_back({"folder", Status::kWarning,
                        fmt::format("{} can be read or written by everybody", path),
                        fmt::format("chmod 700 {}", path)});
  } else {
    findings.push_back({"folder", Status::kOk,
                        fmt::format("{} is there, mode {:o}", path, folder.st_mode & 07777)});
  }
  CheckFileSystem(path, findings);
}

void CheckLimits(const std::string& proc, Findings& findings) {
  std::error_code error;
  const bool gpu = std::filesystem::exists(proc + "/driver/nvidia", error);
  const std::vector<std::string> servers = Processes(proc, "sparsed");
  std::map<std::string, std::vector<std::string>> alike;  // by their limits: process ids
  for (const std::string& pid : servers) {
    const auto limits = ReadSmallFile(fmt::format("{}/{}/limits", proc, pid));
    if (limits.has_value()) alike[*limits].push_back(pid);
  }
  for (const auto& [limits, pids] : alike) {
    CheckLimitsOf(
        limits,
        fmt::format("sparsed, process{} {}", pids.size() == 1 ? "" : "es", fmt::join(pids, ", ")),
        gpu, findings);
  }
  if (!servers.empty()) return;
  const auto limits = ReadSmallFile(proc + "/self/limits");
  if (limits.has_value()) CheckLimitsOf(*limits, "a server from this shell", gpu, findings);
}

void CheckMachine(const std::string& proc, Findings& findings) {
  const std::string meminfo = ReadSmallFile(proc + "/meminfo").value_or("");
  const int64_t total = MemoryInfo(meminfo, "MemTotal");
  const int64_t available = MemoryInfo(meminfo, "MemAvailable");
  const std::optional<int64_t> limit = CgroupMemoryLimit();
  std::string memory = fmt::format("{} of memory, {} available", Bytes(total), Bytes(available));
  if (limit.has_value() && *limit < total) {
    memory += fmt::format("; this cgroup may have {}", Bytes(*limit));
  }
  const bool little = std::min(available, limit.value_or(available)) < kGiB;
  findings.push_back({"memory", little ? Status::kWarning : Status::kOk, std::move(memory),
                      little ? "a matrix needs its CSR and its layouts: free some, or raise the "
                               "cgroup's limit (MemoryMax=, docker run --memory)"
                             : ""});
  if (ReadSmallFile(proc + "/sys/vm/overcommit_memory") == "2\n") {
    findings.push_back(
        {"memory", Status::kWarning,
         "the kernel promises no memory beyond what is "
         "there (vm.overcommit_memory=2)",
         "a GPU's driver reserves much address space: sysctl vm.overcommit_memory=0"});
  }
  const std::string cpuinfo = ReadSmallFile(proc + "/cpuinfo").value_or("");
  const bool x86 = cpuinfo.find("flags") != std::string::npos;
  const bool avx2 = cpuinfo.find(" avx2") != std::string::npos;
  const bool avx512 = cpuinfo.find(" avx512f") != std::string::npos;
  findings.push_back(
      {"cpu", x86 && !avx2 ? Status::kWarning : Status::kOk,
       fmt::format("{} processors{}", std::thread::hardware_concurrency(),
                   avx512 ? " with AVX-512"
                   : avx2 ? " with AVX2"
                          : ""),
       x86 && !avx2
           ? "products on the CPU are several times slower without AVX2: a virtual machine "
             "may hide it (-cpu host)"
           : ""});
  const std::string quota = ReadSmallFile("/sys/fs/cgroup/cpu.max").value_or("max");
  if (!quota.starts_with("max")) {
    findings.push_back(
        {"cpu", Status::kWarning,
         fmt::format("this cgroup's time is limited (cpu.max: {})",
                     quota.substr(0, quota.find('\n'))),
         "threads that are stopped in the middle keep the others waiting: --threads= "
         "of the server no higher than the limit"});
  }
}

}  // namespace sparsed::cli
