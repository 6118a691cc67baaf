// A real etcd on loopback, for tests; its data stays when it is killed.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/cluster/etcd.h"

namespace sparsed::test {

/// A port that is free now, and that a program which starts soon finds free, too.
inline int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(name);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size), 0);
  close(fd);
  return ntohs(name.sin_port);
}

class TestEtcd {
 public:
  static bool Installed() { return std::system("command -v etcd > /dev/null") == 0; }
  static constexpr char kMissing[] = "etcd is not installed (Debian package etcd-server)";

  TestEtcd() {
    std::string folder = testing::TempDir() + "sparsed_etcd_XXXXXX";
    folder_ = mkdtemp(folder.data());
    client_ = fmt::format("127.0.0.1:{}", FreePort());
    peer_ = fmt::format("127.0.0.1:{}", FreePort());
    Start();
  }
  ~TestEtcd() {
    Kill();
    std::filesystem::remove_all(folder_);
  }
  TestEtcd(const TestEtcd&) = delete;
  TestEtcd& operator=(const TestEtcd&) = delete;

  /// Returns when it answers.
  void Start() {
    const std::vector<std::string> words = {
        "etcd",
        "--name=test",
        fmt::format("--data-dir={}/data", folder_),
        fmt::format("--listen-client-urls=http://{}", client_),
        fmt::format("--advertise-client-urls=http://{}", client_),
        fmt::format("--listen-peer-urls=http://{}", peer_),
        fmt::format("--initial-advertise-peer-urls=http://{}", peer_),
        fmt::format("--initial-cluster=test=http://{}", peer_)};
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const std::string log = folder_ + "/log";
    pid_ = fork();
    if (pid_ == 0) {
      const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(out, STDOUT_FILENO);
      dup2(out, STDERR_FILENO);
      execvp("etcd", arguments.data());
      _exit(127);
    }
    const std::unique_ptr<server::Directory> directory = server::OpenEtcd({client_});
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!directory->Read("/").ok() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }
  const std::string& address() const { return client_; }

 private:
  std::string folder_, client_, peer_;
  pid_t pid_ = -1;
};

}  // namespace sparsed::test
