#include "client/src/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace sparsed {
inline namespace client {
namespace {

/// After a server could not be asked.
constexpr std::chrono::seconds kPause{5};

std::string Reason(int error) { return std::generic_category().message(error); }

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
  if (!node || node.mapped().region.empty() || socket_ == nullptr) return;
  v1::LocalRequest request;
  request.mutable_forget()->set_region(node.mapped().region);
  // This may be a thread of the transport's: it waits for nobody. A server that takes nothing
  // forgets all of it with the connection.
  if (!socket_->Tell(request)) DisconnectLocked();
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
    const absl::StatusOr<LocalSocket::Reply> reply = socket_->Ask(request, place.block->file());
    if (!reply.ok()) {
      if (!socket_->Alive()) DisconnectLocked();
      return std::nullopt;
    }
    known.region = reply->message.region();
  }
  place.region = known.region;
  return place;
}

void SharedMemory::DisconnectLocked() {
  socket_ = nullptr;
  for (auto& [data, known] : blocks_) known.region.clear();
}

absl::Status SharedMemory::ConnectLocked() {
  if (socket_ != nullptr && socket_->Alive()) return absl::OkStatus();
  DisconnectLocked();
  const auto now = std::chrono::steady_clock::now();
  if (now < not_before_) return absl::UnavailableError("the server shared no memory just now");
  not_before_ = now + kPause;
  const absl::StatusOr<LocalAddress> address = find_();
  if (!address.ok()) return address.status();
  absl::StatusOr<std::unique_ptr<LocalSocket>> socket = LocalSocket::Connect(*address);
  if (!socket.ok()) return socket.status();
  socket_ = *std::move(socket);
  not_before_ = {};
  return absl::OkStatus();
}

}  // namespace client
}  // namespace sparsed
