#include "client/src/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "client/src/convert.h"

namespace sparsed {
inline namespace client {
namespace {

constexpr size_t kMostReply = 4096;
/// For the server to map, and a GPU's driver to pin, what it was given.
constexpr time_t kPatienceSeconds = 120;
/// After a server could not be asked.
constexpr std::chrono::seconds kPause{5};

std::string Reason(int error) { return std::generic_category().message(error); }

bool Send(int socket, const std::string& bytes, int file, int flags = 0) {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  if (file >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | flags);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

/// RESOURCE_EXHAUSTED: with MSG_DONTWAIT, there is none yet.
absl::StatusOr<v1::LocalReply> Receive(int socket, int flags = 0) {
  std::string bytes(kMostReply, 0);
  ssize_t size = 0;
  do {
    size = recv(socket, bytes.data(), bytes.size(), flags);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == EAGAIN && flags != 0) {
    return absl::ResourceExhaustedError("no answer yet");
  }
  v1::LocalReply reply;
  if (size <= 0 || !reply.ParseFromArray(bytes.data(), static_cast<int>(size))) {
    return absl::UnavailableError("the server's local socket gave no answer");
  }
  return reply;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedBlock>> SharedBlock::Make(size_t bytes) {
  const int file = memfd_create("sparsed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const auto refuse = [&](int error) {
    if (file >= 0) close(file);
    return absl::ResourceExhaustedError(
        fmt::format("{} bytes of memory to share are not to be had: {}", bytes, Reason(error)));
  };
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0 ||
      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return refuse(errno);
  }
  // The pages are this process's then, not the first's that happens to touch them.
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (at == MAP_FAILED) return refuse(errno);
  return std::unique_ptr<SharedBlock>(new SharedBlock(file, static_cast<std::byte*>(at), bytes));
}

SharedBlock::~SharedBlock() {
  munmap(data_, size_);
  close(file_);
}

SharedMemory::~SharedMemory() {
  const MutexLock lock(mutex_);
  DisconnectLocked();
}

absl::StatusOr<std::shared_ptr<SharedBlock>> SharedMemory::Allocate(size_t bytes) {
  absl::StatusOr<std::unique_ptr<SharedBlock>> made = SharedBlock::Make(bytes);
  if (!made.ok()) return made.status();
  std::shared_ptr<SharedBlock> block(made->release(),
                                     [self = shared_from_this()](SharedBlock* gone) {
                                       self->Forget(std::unique_ptr<SharedBlock>(gone));
                                     });
  const MutexLock lock(mutex_);
  blocks_[block->data()] = {block, {}};
  return block;
}

void SharedMemory::Forget(std::unique_ptr<SharedBlock> block) {
  const MutexLock lock(mutex_);
  auto node = blocks_.extract(block->data());
  if (!node || node.mapped().region.empty() || !AliveLocked()) return;
  v1::LocalRequest request;
  request.mutable_forget()->set_region(node.mapped().region);
  // This may be a thread of the transport's: it waits for nobody. A server that takes nothing
  // forgets all of it with the connection.
  if (Send(socket_, request.SerializeAsString(), -1, MSG_DONTWAIT)) {
    ++unanswered_;
  } else {
    DisconnectLocked();
  }
}

std::optional<SharedMemory::Place> SharedMemory::Find(const void* data, size_t bytes,
                                                      size_t alignment) {
  const auto* const begin = static_cast<const std::byte*>(data);
  Place place;  // before the lock: should it be the block's last, Forget takes that
  const MutexLock lock(mutex_);
  auto found = blocks_.upper_bound(begin);
  if (found == blocks_.begin()) return std::nullopt;
  Known& known = std::prev(found)->second;
  place.block = known.block.lock();
  if (place.block == nullptr) return std::nullopt;
  place.offset = static_cast<uint64_t>(begin - place.block->data());
  const bool inside =
      place.offset <= place.block->size() && bytes <= place.block->size() - place.offset;
  if (!inside || place.offset % alignment != 0 || !ConnectLocked().ok()) return std::nullopt;
  if (known.region.empty()) {
    v1::LocalRequest request;
    request.mutable_share();
    absl::StatusOr<v1::LocalReply> reply = AskLocked(request, place.block->file());
    if (!reply.ok()) return std::nullopt;
    known.region = reply->region();
  }
  place.region = known.region;
  return place;
}

bool SharedMemory::AliveLocked() {
  if (socket_ < 0) return false;
  for (; unanswered_ > 0; --unanswered_) {
    const absl::Status status = Receive(socket_, MSG_DONTWAIT).status();
    if (!status.ok()) return absl::IsResourceExhausted(status);
  }
  char byte = 0;
  // Nothing comes that was not asked for: what can be read is the end.
  return recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

void SharedMemory::DisconnectLocked() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
  unanswered_ = 0;
  for (auto& [data, known] : blocks_) known.region.clear();
}

absl::Status SharedMemory::ConnectLocked() {
  if (AliveLocked()) return absl::OkStatus();
  DisconnectLocked();
  const absl::Status not_there = absl::UnavailableError("the server shares no memory");
  const auto now = std::chrono::steady_clock::now();
  if (now < not_before_) return not_there;
  not_before_ = now + kPause;
  const absl::StatusOr<Door> door = ask_();
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (!door.ok() || door->path.empty() || door->path.size() >= sizeof(name.sun_path)) {
    return not_there;
  }
  std::memcpy(name.sun_path, door->path.data(), door->path.size());
  socket_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const timeval patience = {kPatienceSeconds, 0};
  if (socket_ < 0 ||
      setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) != 0 ||
      connect(socket_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    DisconnectLocked();
    return not_there;
  }
  // A server of another machine may have a socket of the same name there.
  const absl::StatusOr<v1::LocalReply> hello = Receive(socket_);
  if (!hello.ok() || hello->hello().server_id() != door->server_id) {
    DisconnectLocked();
    return not_there;
  }
  not_before_ = {};
  return absl::OkStatus();
}

absl::StatusOr<v1::LocalReply> SharedMemory::AskLocked(const v1::LocalRequest& request, int file) {
  absl::StatusOr<v1::LocalReply> reply =
      absl::UnavailableError("the server's local socket took no request");
  if (Send(socket_, request.SerializeAsString(), file)) {
    // Answers come in order.
    for (reply = Receive(socket_); reply.ok() && unanswered_ > 0; --unanswered_) {
      reply = Receive(socket_);
    }
  }
  if (!reply.ok()) {
    DisconnectLocked();
    return reply;
  }
  const absl::Status status = FromProto(reply->status());
  if (!status.ok()) return status;
  return reply;
}

}  // namespace client
}  // namespace sparsed
