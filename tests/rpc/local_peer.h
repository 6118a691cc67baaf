// A process at the server's local socket that says what it likes, and memory files for it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "sparsed/v1/local.pb.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {

inline std::string LocalPathOf(const TestServer& server) {
  const std::string address = server.address();
  return address.substr(address.find(':') + 1) + ".local";
}
/// For `adjust`: with a local socket.
inline void WithLocal(server::Config& config) {
  config.local_listen = config.listen.front() + ".local";
}

/// A process at the local socket, which says what it likes.
class Peer {
 public:
  explicit Peer(const TestServer& server) : fd_(socket(AF_UNIX, SOCK_SEQPACKET, 0)) {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    const std::string path = LocalPathOf(server);
    std::memcpy(name.sun_path, path.data(), path.size());
    const timeval patience = {30, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() { close(fd_); }

  /// False: the server has closed the connection.
  bool Send(const std::string& bytes, const std::vector<int>& files = {}) {
    iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, 256> control = {};
    if (!files.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), files.data(), files.size() * sizeof(int));
    }
    return sendmsg(fd_, &message, MSG_NOSIGNAL) >= 0;
  }
  /// None: the server closed the connection. What came with it is in file().
  std::optional<v1::LocalReply> Receive() {
    std::string bytes(4096, 0);
    iovec part = {bytes.data(), bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
    file_ = Descriptor();
    if (const cmsghdr* const header = size < 0 ? nullptr : CMSG_FIRSTHDR(&message)) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(header), sizeof(file));
      file_ = Descriptor(file);
    }
    v1::LocalReply reply;
    if (size <= 0 || !reply.ParseFromArray(bytes.data(), static_cast<int>(size))) return {};
    return reply;
  }
  v1::LocalReply Share(const std::vector<int>& files) {
    v1::LocalRequest request;
    request.mutable_share();
    Send(request.SerializeAsString(), files);
    return Receive().value_or(v1::LocalReply());
  }
  v1::LocalReply Forget(const std::string& region) {
    v1::LocalRequest request;
    request.mutable_forget()->set_region(region);
    Send(request.SerializeAsString());
    return Receive().value_or(v1::LocalReply());
  }
  v1::LocalReply Ask(const v1::LocalRequest& request, const std::vector<int>& files = {}) {
    Send(request.SerializeAsString(), files);
    return Receive().value_or(v1::LocalReply());
  }
  v1::LocalReply Attach(const std::string& matrix, const std::string& kernels,
                        const std::vector<int>& files) {
    v1::LocalRequest request;
    request.mutable_attach()->set_matrix(matrix);
    request.mutable_attach()->set_kernels(kernels);
    return Ask(request, files);
  }
  v1::LocalReply Export(int64_t k, v1::ProblemClass::Operation operation = v1::ProblemClass::SPMM,
                        bool transposed = false) {
    v1::LocalRequest request;
    v1::ProblemClass& problem = *request.mutable_export_()->mutable_problem();
    problem.set_operation(operation);
    problem.set_transposed(transposed);
    problem.set_k(k);
    return Ask(request);
  }
  v1::LocalReply Get(uint64_t id) {
    v1::LocalRequest request;
    request.mutable_get()->set_id(id);
    return Ask(request);
  }
  v1::LocalReply Release(uint64_t run) {
    v1::LocalRequest request;
    request.mutable_release()->set_run(run);
    return Ask(request);
  }
  /// That came with the last reply; -1: none.
  int file() const { return file_.fd(); }
  int fd() const { return fd_; }

 private:
  const int fd_;
  Descriptor file_;
};

/// A memory file; its mapping is the test's.
class File {
 public:
  explicit File(size_t bytes, int seals = F_SEAL_SHRINK, unsigned flags = MFD_ALLOW_SEALING)
      : fd_(memfd_create("test", MFD_CLOEXEC | flags)), bytes_(bytes) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(bytes)), 0);
    EXPECT_TRUE(seals == 0 || fcntl(fd_, F_ADD_SEALS, seals) == 0);
    if (bytes > 0) at_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (bytes_ > 0) munmap(at_, bytes_);
    close(fd_);
  }
  int fd() const { return fd_; }
  float* floats() const { return static_cast<float*>(at_); }

 private:
  const int fd_;
  const size_t bytes_;
  void* at_ = nullptr;
};

/// Codes of statuses.
inline constexpr int kOk = 0, kInvalid = 3, kNotFound = 5, kExhausted = 8, kPrecondition = 9;

/// Descriptors of this process.
inline size_t OpenFiles() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

}  // namespace sparsed::test
