#include "tests/fault/server_under_attack.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <utility>

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kStart = std::chrono::seconds(60);
constexpr auto kLook = std::chrono::milliseconds(10);

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  return static_cast<bool>(file.flush());
}

/// A new group of `controller` in v1's hierarchy or v2's, whichever is there and writable, with
/// `limit` in the file of that name. Returns its folder.
absl::StatusOr<std::string> NewControlGroup(const std::string& controller,
                                            const std::string& v1_file, const std::string& v2_file,
                                            int64_t limit) {
  static int made = 0;
  const std::string name = fmt::format("sparsed_attack_{}_{}", getpid(), ++made);
  const std::string root = "/sys/fs/cgroup/";
  const std::pair<std::string, std::string> places[] = {
      {root + controller + "/" + name, v1_file},
      {root + name, v2_file},
  };
  for (const auto& [folder, file] : places) {
    std::error_code error;
    if (!std::filesystem::create_directory(folder, error)) continue;
    if (Write(folder + "/" + file, std::to_string(limit))) return folder;
    rmdir(folder.c_str());  // of a hierarchy without this controller
  }
  return absl::UnimplementedError(
      fmt::format("no control group for {} can be made here (it takes root)", controller));
}

/// Between fork and exec: only what is safe in a copy of a program with threads. False: it failed.
bool Enter(const std::vector<std::string>& groups, int64_t descriptors, int log) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a killed test leaves no server behind
  for (const std::string& group : groups) {
    const int procs = open(group.c_str(), O_WRONLY | O_CLOEXEC);
    if (procs < 0 || write(procs, "0", 1) != 1) return false;
  }
  if (descriptors > 0) {
    const rlimit limit{static_cast<rlim_t>(descriptors), static_cast<rlim_t>(descriptors)};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  }
  return dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0;
}

/// $SPARSED_PROGRAM, to attack another build; or that of this one.
std::string Program() {
  const char* const other = std::getenv("SPARSED_PROGRAM");
  return other != nullptr ? other : SPARSED_PROGRAM;
}

bool Names(const std::vector<std::string>& flags, const std::string& flag) {
  return std::any_of(flags.begin(), flags.end(),
                     [&](const std::string& word) { return word.starts_with(flag); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerUnderAttack>> ServerUnderAttack::Start(
    std::vector<std::string> flags, const AttackLimits& limits) {
  std::unique_ptr<ServerUnderAttack> server(new ServerUnderAttack());
  if (absl::Status status = server->MakeFolder(); !status.ok()) return status;
  if (absl::Status status = server->MakeControlGroups(limits); !status.ok()) return status;
  if (absl::Status status = server->Spawn(std::move(flags), limits); !status.ok()) return status;
  if (absl::Status status = server->AwaitServing(); !status.ok()) return status;
  return server;
}

ServerUnderAttack::~ServerUnderAttack() {
  if (pid_ > 0) End(SIGKILL);
  for (const std::string& group : control_groups_) {
    // A group is busy for a moment after its last process.
    for (int i = 0; i < 100 && rmdir(group.c_str()) != 0 && errno == EBUSY; ++i) {
      std::this_thread::sleep_for(kLook);
    }
  }
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  if (!log_path_.empty()) unlink(log_path_.c_str());
  if (!access_path_.empty()) unlink(access_path_.c_str());
}

absl::Status ServerUnderAttack::MakeFolder() {
  const char* const temp = std::getenv("TMPDIR");
  std::string folder = std::string(temp == nullptr ? "/tmp" : temp) + "/sparsed_attack_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, folder);
  folder_ = folder;
  log_path_ = folder + ".log";
  return absl::OkStatus();
}

absl::Status ServerUnderAttack::MakeControlGroups(const AttackLimits& limits) {
  if (limits.memory_bytes > 0) {
    auto group =
        NewControlGroup("memory", "memory.limit_in_bytes", "memory.max", limits.memory_bytes);
    if (!group.ok()) return group.status();
    control_groups_.push_back(*std::move(group));
  }
  if (limits.tasks > 0) {
    auto group = NewControlGroup("pids", "pids.max", "pids.max", limits.tasks);
    if (!group.ok()) return group.status();
    tasks_group_ = *group;
    control_groups_.push_back(*std::move(group));
  }
  return absl::OkStatus();
}

absl::Status ServerUnderAttack::SetTasks(int64_t tasks) const {
  if (!tasks_group_.empty() && Write(tasks_group_ + "/pids.max", std::to_string(tasks))) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError("the limit of tasks cannot be changed here");
}

absl::Status ServerUnderAttack::Spawn(std::vector<std::string> flags, const AttackLimits& limits) {
  std::vector<std::string> words = {Program(), "--log-format=json"};
  if (!Names(flags, "--listen")) words.push_back("--listen=127.0.0.1:0");
  if (!Names(flags, "--metrics-listen")) words.push_back("--metrics-listen=127.0.0.1:0");
  if (!Names(flags, "--devices")) words.push_back("--devices=cpu");
  if (!Names(flags, "--data-dir") && !Names(flags, "--in-memory")) words.push_back("--in-memory");
  words.insert(words.end(), flags.begin(), flags.end());
  if (!limits.access_file.empty()) {
    access_path_ = folder_ + ".access";
    const int file = open(access_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return absl::ErrnoToStatus(errno, access_path_);
    close(file);
    if (!Write(access_path_, limits.access_file)) {
      return absl::UnavailableError(access_path_ + " cannot be written");
    }
    words.push_back("--access-file=" + access_path_);
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  std::vector<std::string> more = limits.environment;
  for (std::string& entry : more) environment.push_back(entry.data());
  environment.push_back(nullptr);
  std::vector<std::string> groups;
  for (const std::string& group : control_groups_) groups.push_back(group + "/cgroup.procs");

  const int log = open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return absl::ErrnoToStatus(errno, log_path_);
  pid_ = fork();
  if (pid_ == 0) {
    constexpr int kCannotEnter = 126;
    if (!Enter(groups, limits.descriptors, log)) _exit(kCannotEnter);
    execve(arguments[0], arguments.data(), environment.data());
    _exit(kCannotEnter);
  }
  const int error = errno;
  close(log);
  if (pid_ < 0) return absl::ErrnoToStatus(error, "fork");
  return absl::OkStatus();
}

absl::Status ServerUnderAttack::AwaitServing() {
  const auto deadline = Clock::now() + kStart;
  while (Clock::now() < deadline) {
    const bool lives = Lives();
    std::istringstream lines(log());
    for (std::string text; std::getline(lines, text);) {
      const auto line = nlohmann::json::parse(text, nullptr, false);
      if (!line.is_object() || line.value("event", "") != "serving") continue;
      address_ = line.value("listen", "");
      metrics_address_ = line.value("metrics", "");
      return absl::OkStatus();
    }
    if (!lives && ended_ == 126) {
      return absl::UnimplementedError("the program could not enter its limits here");
    }
    if (!lives) {
      return absl::FailedPreconditionError(
          fmt::format("the program ended with {}; its log:\n{}", ended_, log()));
    }
    std::this_thread::sleep_for(kLook);
  }
  return absl::DeadlineExceededError(fmt::format("not serving; its log:\n{}", log()));
}

bool ServerUnderAttack::Lives() {
  if (gone_) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  gone_ = true;
  ended_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  return false;
}

int ServerUnderAttack::End(int signal) {
  if (!Lives()) return ended_;
  kill(pid_, signal);
  int status = 0;
  waitpid(pid_, &status, 0);
  gone_ = true;
  ended_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  return ended_;
}

int64_t ServerUnderAttack::StatusNumber(const std::string& key) const {
  std::istringstream words(Contents(fmt::format("/proc/{}/status", pid_)));
  for (std::string word; words >> word;) {
    int64_t number = 0;
    if (word == key && words >> number) return number;
  }
  return 0;
}

void ServerUnderAttack::ForgetPeak() const { Write(fmt::format("/proc/{}/clear_refs", pid_), "5"); }

absl::StatusOr<double> ServerUnderAttack::Metric(const std::string& sample) const {
  absl::StatusOr<std::string> page = HttpGet(metrics_address_, "/metrics", 10);
  if (!page.ok()) return page.status();
  std::istringstream lines(*page);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(sample + " ")) return std::stod(line.substr(sample.size() + 1));
  }
  return absl::NotFoundError(fmt::format("no sample {}", sample));
}

std::string ServerUnderAttack::log() const { return Contents(log_path_); }

absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path,
                                    double seconds, int* code) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
  if (colon == std::string::npos ||
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) != 1) {
    return absl::InvalidArgumentError(fmt::format("'{}' is not IPV4:PORT", address));
  }
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connection < 0) return absl::ErrnoToStatus(errno, "socket");
  timeval slice{};  // of waiting: the deadline holds for the whole answer
  slice.tv_usec = 100'000;
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice));
  const timeval sending{static_cast<time_t>(seconds) + 1, 0};
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &sending, sizeof(sending));
  const std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", path, address);
  std::string answer;
  bool whole = false;
  if (connect(connection, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
      send(connection, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char piece[1 << 14];
    while (!whole && Clock::now() < deadline) {
      const ssize_t got = recv(connection, piece, sizeof(piece), 0);
      if (got > 0) answer.append(piece, static_cast<size_t>(got));
      if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) break;
      whole = got == 0;
    }
  }
  close(connection);
  const size_t body = answer.find("\r\n\r\n");
  if (!whole || body == std::string::npos) {
    return absl::UnavailableError(
        fmt::format("no answer to {} from {} in {} s", path, address, seconds));
  }
  if (code != nullptr) *code = std::atoi(answer.c_str() + std::strlen("HTTP/1.1 "));
  return answer.substr(body + 4);
}

}  // namespace sparsed::test
