#include "client/src/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "base/descriptor.h"

namespace sparsed {
inline namespace client {
namespace {

/// After a server could not be asked, or refused a block.
constexpr std::chrono::seconds kPause{5};
/// For the server to answer that it has forgotten memory: longer than most products take.
constexpr std::chrono::seconds kForgetPatience{30};

size_t PhysicalBytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 ? static_cast<size_t>(pages * page) : std::numeric_limits<size_t>::max();
}

bool TakePages(int file, size_t bytes) {
  int result = 0;
  do {
    result = fallocate(file, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

std::string Reason(int error) { return std::generic_category().message(error); }

}  // namespace

absl::StatusOr<std::unique_ptr<SharedBlock>> SharedBlock::Make(size_t bytes) {
  const auto refuse = [&](int error) {
    return absl::ResourceExhaustedError(
        fmt::format("{} bytes of memory to share are not to be had: {}", bytes, Reason(error)));
  };
  // The system would take pages until it ends processes for want of them.
  if (bytes > PhysicalBytes()) return refuse(ENOMEM);
  Descriptor file(memfd_create("sparsed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Its pages are this process's then, not the first's that happens to touch them, for whom it
  // would be a signal that there are none.
  if (!file.open() || !TakePages(file.fd(), bytes) ||
      fcntl(file.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return refuse(errno);
  }
  void* const at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.fd(), 0);
  if (at == MAP_FAILED) return refuse(errno);
  return std::unique_ptr<SharedBlock>(
      new SharedBlock(file.Release(), static_cast<std::byte*>(at), bytes));
}

std::unique_ptr<SharedBlock> SharedBlock::OfGpu(std::byte* data, size_t size,
                                                std::shared_ptr<void> there) {
  return std::unique_ptr<SharedBlock>(new SharedBlock(-1, data, size, std::move(there)));
}

SharedBlock::~SharedBlock() {
  if (on_gpu()) return;
  munmap(data_, size_);
  close(file_);
}

bool SharedMemory::OfThisProcess() const { return getpid() == process_; }

absl::StatusOr<std::shared_ptr<SharedBlock>> SharedMemory::Allocate(size_t bytes) {
  absl::StatusOr<std::unique_ptr<SharedBlock>> made = SharedBlock::Make(bytes);
  if (!made.ok() || !OfThisProcess()) return made;
  return Adopt(*std::move(made), nullptr, "");
}

std::shared_ptr<SharedBlock> SharedMemory::Adopt(std::unique_ptr<SharedBlock> made,
                                                 std::shared_ptr<LocalSocket> socket,
                                                 std::string region) {
  std::shared_ptr<SharedBlock> block(made.release(),
                                     [self = shared_from_this()](SharedBlock* gone) {
                                       self->Forget(std::unique_ptr<SharedBlock>(gone));
                                     });
  const MutexLock lock(mutex_);
  Known& known = blocks_[block->data()];
  known.block = block;
  known.socket = std::move(socket);
  known.region = std::move(region);
  return block;
}

std::map<const std::byte*, SharedMemory::Known>::iterator SharedMemory::BlockOf(
    const std::byte* begin) {
  const auto after = blocks_.upper_bound(begin);
  return after == blocks_.begin() ? blocks_.end() : std::prev(after);
}

void SharedMemory::Ask(std::weak_ptr<Foreign> foreign) {
  const MutexLock lock(mutex_);
  std::erase_if(foreigners_, [](const auto& one) { return one.expired(); });
  foreigners_.push_back(std::move(foreign));
}

std::vector<std::shared_ptr<SharedMemory::Foreign>> SharedMemory::Foreigners() {
  std::vector<std::shared_ptr<Foreign>> alive;
  const MutexLock lock(mutex_);
  for (const std::weak_ptr<Foreign>& one : foreigners_) {
    if (auto there = one.lock()) alive.push_back(std::move(there));
  }
  return alive;
}

bool SharedMemory::OnGpu(const void* data) {
  const auto* const begin = static_cast<const std::byte*>(data);
  {
    std::shared_ptr<SharedBlock> block;  // goes without the lock, if it is the last
    const MutexLock lock(mutex_);
    const auto found = BlockOf(begin);
    if (found != blocks_.end()) block = found->second.block.lock();
    if (block != nullptr && begin < block->data() + block->size()) return block->on_gpu();
  }
  return OfThisProcess() && std::ranges::any_of(Foreigners(), [data](const auto& foreign) {
           return foreign->OnGpu(data);
         });
}

void SharedMemory::Forget(std::unique_ptr<SharedBlock> block) {
  if (!OfThisProcess()) return;
  Known known;
  {
    const MutexLock lock(mutex_);
    known = std::move(blocks_.extract(block->data()).mapped());
  }
  if (known.region.empty()) return;
  v1::LocalRequest request;
  request.mutable_forget()->set_region(known.region);
  known.socket->Send(std::move(request));
}

std::optional<SharedMemory::Place> SharedMemory::Find(const void* data, size_t bytes,
                                                      size_t alignment) {
  if (!OfThisProcess()) return std::nullopt;
  const auto* const begin = static_cast<const std::byte*>(data);
  // Before the lock, as they may be the last: Forget takes it, and a socket waits for its thread.
  Place place;
  std::shared_ptr<LocalSocket> former;
  MutexLock lock(mutex_);
  const auto found = BlockOf(begin);
  if (found != blocks_.end()) place.block = found->second.block.lock();
  if (place.block == nullptr || begin >= place.block->data() + place.block->size()) {
    lock.Unlock();
    for (const std::shared_ptr<Foreign>& foreign : Foreigners()) {
      if (std::optional<Place> there = foreign->Find(data, bytes, alignment)) return there;
    }
    return std::nullopt;
  }
  Known& known = found->second;  // there as long as its block
  place.offset = static_cast<uint64_t>(begin - place.block->data());
  if (bytes > place.block->size() - place.offset || place.offset % alignment != 0)
    return std::nullopt;
  while (known.asking) changed_.Wait(mutex_);
  if (known.region.empty() || !known.socket->Alive()) {
    if (place.block->on_gpu()) return std::nullopt;
    if (Clock::now() < known.not_before) return std::nullopt;
    known.asking = true;
    known.region.clear();
    lock.Unlock();
    absl::StatusOr<std::shared_ptr<LocalSocket>> socket = Socket();
    v1::LocalRequest request;
    request.mutable_share();
    absl::StatusOr<LocalSocket::Reply> reply =
        socket.ok() ? (*socket)->Ask(std::move(request), place.block->file())
                    : absl::StatusOr<LocalSocket::Reply>(socket.status());
    lock.Lock();
    known.asking = false;
    changed_.NotifyAll();
    if (!reply.ok()) {
      // An end of the connection says nothing of the block.
      if (!absl::IsUnavailable(reply.status())) known.not_before = Clock::now() + kPause;
      return std::nullopt;
    }
    former = std::exchange(known.socket, *std::move(socket));
    known.region = reply->message.region();
  }
  place.region = known.region;
  place.socket = known.socket;
  return place;
}

void SharedMemory::GiveUp(const std::vector<Place>& places, std::function<void()> done) {
  // Called when the last answer, which holds a copy, has come.
  const std::shared_ptr<void> all(nullptr, [done = std::move(done)](void*) { done(); });
  for (const Place& place : places) {
    {
      const MutexLock lock(mutex_);
      const auto found = blocks_.find(place.block->data());
      if (found != blocks_.end() && found->second.region == place.region) {
        found->second.region.clear();
      }
    }
    if (place.foreign) {
      for (const std::shared_ptr<Foreign>& foreign : Foreigners()) foreign->GivenUp(place);
    }
    v1::LocalRequest request;
    request.mutable_forget()->set_region(place.region);
    place.socket->Send(
        std::move(request), [all](const absl::StatusOr<LocalSocket::Reply>& /*reply*/) {},
        Clock::now() + kForgetPatience);
  }
}

absl::StatusOr<std::shared_ptr<LocalSocket>> SharedMemory::Socket() {
  const absl::Status not_there = absl::UnavailableError("the server shares no memory");
  if (!OfThisProcess()) return not_there;
  std::shared_ptr<LocalSocket> ended;  // goes without the lock
  MutexLock lock(mutex_);
  while (connecting_) changed_.Wait(mutex_);
  if (socket_ != nullptr && socket_->Alive()) return socket_;
  if (Clock::now() < not_before_) return not_there;
  connecting_ = true;
  ended.swap(socket_);
  lock.Unlock();
  absl::StatusOr<std::shared_ptr<LocalSocket>> connected = not_there;
  if (const absl::StatusOr<LocalAddress> address = find_(); address.ok()) {
    connected = LocalSocket::Connect(*address);
  }
  lock.Lock();
  connecting_ = false;
  changed_.NotifyAll();
  if (connected.ok()) {
    socket_ = *connected;
  } else {
    not_before_ = Clock::now() + kPause;
  }
  return connected;
}

}  // namespace client
}  // namespace sparsed
