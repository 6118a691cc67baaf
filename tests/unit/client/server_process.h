// The server's program, started for a test on a Unix socket of its own.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace sparsed::test {

/// Of this machine; free a moment ago.
inline std::string FreeTcpAddress() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener, generic, size), 0);
  EXPECT_EQ(getsockname(listener, generic, &size), 0);
  close(listener);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

class ServerProcess {
 public:
  /// Without metrics; `flags` are added; in memory if they name no --data-dir. Clients wait for it
  /// in Connect.
  explicit ServerProcess(std::vector<std::string> flags = {}, std::string address = "") {
    std::string folder = testing::TempDir() + "sparsed_client_XXXXXX";
    folder_ = mkdtemp(folder.data());
    address_ = address.empty() ? "unix:" + folder_ + "/socket" : std::move(address);
    std::vector<std::string> words = {SPARSED_PROGRAM, "--metrics-listen=off", "--log-level=error",
                                      "--listen=" + address_};
    words.insert(words.end(), flags.begin(), flags.end());
    if (std::none_of(flags.begin(), flags.end(),
                     [](const std::string& flag) { return flag.rfind("--data-dir", 0) == 0; })) {
      words.push_back("--in-memory");
    }
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, SPARSED_PROGRAM, nullptr, nullptr, arguments.data(), environ), 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess() {
    End(SIGKILL);
    std::filesystem::remove_all(folder_);
  }

  /// Sends the signal and waits until the program is gone.
  void End(int signal) {
    if (pid_ == 0) return;
    kill(pid_, signal);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  /// Between the two the program does nothing, and its callers get no answers.
  void Pause() {
    kill(pid_, SIGSTOP);
    // Its threads run on for a moment after the signal is sent.
    waitpid(pid_, nullptr, WUNTRACED);
  }
  void Resume() { kill(pid_, SIGCONT); }

  const std::string& address() const { return address_; }

 private:
  std::string folder_;
  std::string address_;
  pid_t pid_ = 0;
};

}  // namespace sparsed::test
