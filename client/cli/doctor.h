// What `doctor` looks at: whatever keeps a server on this machine from starting, or makes it slow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/report.h"
#include "sparsed/client.h"

namespace sparsed::cli {

/// One thing that was looked at.
struct Finding {
  enum class Status : uint8_t { kOk, kNote, kWarning, kProblem };
  std::string check;  ///< "driver", "disk", ...
  Status status = Status::kOk;
  std::string what;
  std::string remedy = {};  ///< of a warning or a problem: what to do about it
};
/// "ok", "note", "warning", "problem".
std::string_view Name(Finding::Status status);

using Findings = std::vector<Finding>;

/// A sparsed of this machine, as far as this user may see it.
struct RunningServer {
  std::string pid;
  std::vector<int> ports;  ///< where it listens; empty: at none, or that is not to be seen
  /// Paths of the Unix sockets at which it listens; likewise.
  std::vector<std::string> sockets = {};
};
/// Those that run. `proc` is /proc.
std::vector<RunningServer> RunningServers(const std::string& proc);
/// The one that listens at "host:port" or "unix:PATH", or the only one there is if that does not
/// show where it listens; null: it is none of them.
const RunningServer* ServerAt(const std::string& address,
                              const std::vector<RunningServer>& servers);
/// The folder of its --data-dir, by the catalog that it has open; none if it has none, or that is
/// not for this user to see. `proc` is /proc.
std::optional<std::string> DataFolderOf(const std::string& proc, const RunningServer& server);
/// Of those that are not the one which was asked for.
void CheckOtherServers(const std::string& address, const std::vector<RunningServer>& servers,
                       Findings& findings);

/// The server at that address, or why there is none; what it says of its devices and its socket.
/// Whether one answers there, if only to refuse.
bool CheckServer(const std::string& address, const ClientOptions& options, Findings& findings);
/// Whether a server could listen at "host:port", and who does in its place; `in_use` is whether a
/// server answers there. `proc` is /proc.
void CheckPort(const std::string& proc, const std::string& address, std::string_view what,
               bool in_use, const std::vector<RunningServer>& servers, Findings& findings);
/// The folder of --data-dir: that it is there, is the server's alone, is on a disk, and has room.
void CheckDataFolder(const std::string& path, bool asked_for, Findings& findings);
/// `free` bytes of `whole` at a data directory's path: whether uploads find room.
Finding DescribeDisk(const std::string& path, int64_t free, int64_t whole);
/// Of running servers, those with the same limits together, or of this shell where none runs.
/// `proc` is /proc.
void CheckLimits(const std::string& proc, Findings& findings);
/// Memory and processors, and what of them this machine's cgroups leave.
void CheckMachine(const std::string& proc, Findings& findings);
/// The card, its driver, the libraries that are opened at run time, and who else uses it than
/// `asked`, the server that was asked for. `root` comes before /dev, /proc and /sys; nothing is
/// opened there but by the driver's own library.
void CheckGpus(const std::string& root, const RunningServer* asked, Findings& findings);
/// A process that computes on a GPU; no name: it is not to be seen from here.
struct GpuProcess {
  unsigned pid = 0;
  std::string name;
};
/// `of` the GPU's memory, and whose the rest is.
Finding DescribeGpuUse(const std::string& of, const std::vector<GpuProcess>& processes,
                       const RunningServer* asked);

Report Describe(const Findings& findings);

}  // namespace sparsed::cli
