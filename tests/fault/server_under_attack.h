// The server's program as a process of its own that may be attacked: under limits of the operating
// system, measured by the operating system's counts.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sparsed::test {

struct AttackLimits {
  int64_t memory_bytes = 0;  ///< of a memory control group around the program; 0: none
  int64_t tasks = 0;         ///< of a pids control group around it; 0: none
  int64_t descriptors = 0;   ///< soft and hard RLIMIT_NOFILE; 0: as ours
  std::vector<std::string> environment = {};  ///< "NAME=VALUE", after ours
  std::string access_file = {};               ///< what is in it; empty: there is none
};

/// Ends the program, and removes its control groups and its folder, when it goes. Not thread-safe.
class ServerUnderAttack {
 public:
  /// Runs `sparsed` ($SPARSED_PROGRAM, if it is set) with `flags` added and waits until it serves.
  /// Unless they say otherwise it listens on free TCP ports of 127.0.0.1, in memory, on the CPU.
  /// The program ends with the thread that started it. UNIMPLEMENTED if this machine lets us set no
  /// such limits (no control group that is writable, no right to raise a limit);
  /// FAILED_PRECONDITION with its log if the program ended.
  static absl::StatusOr<std::unique_ptr<ServerUnderAttack>> Start(
      std::vector<std::string> flags = {}, const AttackLimits& limits = {});
  ServerUnderAttack(const ServerUnderAttack&) = delete;
  ServerUnderAttack& operator=(const ServerUnderAttack&) = delete;
  ~ServerUnderAttack();

  /// "127.0.0.1:41234", or as --listen said.
  const std::string& address() const { return address_; }
  /// Of the HTTP port.
  const std::string& metrics_address() const { return metrics_address_; }
  pid_t pid() const { return pid_; }
  /// Empty, with parents, and gone with the server; for a --data-dir, say.
  const std::string& folder() const { return folder_; }

  bool Lives();
  /// Sends the signal, waits until the program is gone, and returns how it ended: its exit status,
  /// or minus the signal that ended it. Of a program that is gone, how it ended.
  int End(int signal);

  /// VmRSS and VmHWM of /proc/PID/status, and its Threads; 0 if it is gone.
  int64_t resident_bytes() const { return StatusBytes("VmRSS:"); }
  int64_t peak_resident_bytes() const { return StatusBytes("VmHWM:"); }
  int64_t threads() const { return StatusNumber("Threads:"); }
  /// Another limit of tasks, which may be below what there are; UNIMPLEMENTED without one so far.
  absl::Status SetTasks(int64_t tasks) const;
  /// The peak counts anew from what is resident now.
  void ForgetPeak() const;
  /// One sample of /metrics, as `sparsed_memory_bytes{device="cpu",use="requests"}`; UNAVAILABLE if
  /// the port does not answer within 10 s, NOT_FOUND if there is no such sample.
  absl::StatusOr<double> Metric(const std::string& sample) const;
  /// What it has logged so far: one JSON object a line.
  std::string log() const;

 private:
  ServerUnderAttack() = default;
  absl::Status MakeFolder();
  absl::Status MakeControlGroups(const AttackLimits& limits);
  absl::Status Spawn(std::vector<std::string> flags, const AttackLimits& limits);
  absl::Status AwaitServing();
  int64_t StatusNumber(const std::string& key) const;
  int64_t StatusBytes(const std::string& key) const { return StatusNumber(key) * 1024; }

  std::string folder_;
  std::string log_path_;
  std::string access_path_;                  ///< empty: there is none
  std::vector<std::string> control_groups_;  ///< their folders
  std::string tasks_group_;                  ///< one of them; empty: none
  std::string address_;
  std::string metrics_address_;
  pid_t pid_ = 0;
  bool gone_ = false;
  int ended_ = 0;  ///< as End returns it
};

/// The body of an HTTP GET from "host:port"; UNAVAILABLE if nobody answers within `seconds`. The
/// status line's code goes to `*code` if that is not null.
absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path,
                                    double seconds, int* code = nullptr);

}  // namespace sparsed::test
