#include "client/attached/caller_memory.h"

#include <utility>
#include <variant>
#include <vector>

#include "kernels/cuda/capture.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ipc_memory.h"

namespace sparsed {
inline namespace client {
namespace {

/// After the server could not use an allocation.
constexpr std::chrono::seconds kPause{1};
/// What was freed stays on the card until the server has heard of it.
constexpr std::chrono::milliseconds kLook{200};
constexpr std::chrono::minutes kUnused{1};
/// Allocations that the server knows, if they are not all in use.
constexpr size_t kMost = 256;

}  // namespace

CallerMemory::CallerMemory(SharedMemory& shared, int gpu, std::string uuid)
    : shared_(shared), gpu_(gpu), uuid_(std::move(uuid)) {}

CallerMemory::~CallerMemory() {
  KnownMap gone;
  {
    const MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyAll();
    gone.swap(known_);
  }
  if (keeper_.joinable()) keeper_.join();
  Forget(gone);
}

bool CallerMemory::OnGpu(const void* data) {
  const cuda::DeviceScope scope(gpu_);
  const cuda::CaptureScope whatever_others_capture;
  return cuda::IsDeviceMemory(data);
}

std::optional<CallerMemory::Allocation> CallerMemory::AllocationOf(const void* data) const {
  const cuda::DeviceScope scope(gpu_);
  const cuda::CaptureScope whatever_others_capture;
  const std::optional<cuda::Allocation> found = cuda::AllocationOf(data);
  if (!found) return std::nullopt;
  return Allocation{found->begin, found->bytes, found->id};
}

absl::StatusOr<LocalSocket::Reply> CallerMemory::Ask(LocalSocket& socket,
                                                     const Allocation& allocation) const {
  absl::StatusOr<cuda::IpcHandle> handle;
  {
    const cuda::DeviceScope scope(gpu_);
    const cuda::CaptureScope whatever_others_capture;
    handle = cuda::HandleOf({allocation.begin, allocation.bytes, allocation.id});
  }
  if (!handle.ok()) return handle.status();
  v1::LocalRequest request;
  v1::OpenCallerMemory& open = *request.mutable_open_caller_memory();
  open.set_gpu(uuid_);
  open.set_handle(handle->data(), handle->size());
  open.set_bytes(allocation.bytes);
  open.set_allocation(allocation.id);
  return socket.Ask(std::move(request));
}

bool CallerMemory::RefusedLocked() const {
  const std::shared_ptr<LocalSocket> socket = refused_over_.lock();
  return socket != nullptr && socket->Alive();
}

std::optional<SharedMemory::Place> CallerMemory::Find(const void* data, size_t bytes,
                                                      size_t alignment) {
  {
    const MutexLock lock(mutex_);
    if (RefusedLocked()) return std::nullopt;
  }
  const std::optional<Allocation> there = AllocationOf(data);
  if (!there) return std::nullopt;
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(data) - there->begin);
  if (bytes > there->bytes - offset || offset % alignment != 0) return std::nullopt;
  KnownMap gone;
  std::optional<SharedMemory::Place> place = PlaceOf(*there, gone);
  Forget(gone);
  if (place) place->offset = offset;
  return place;
}

std::optional<SharedMemory::Place> CallerMemory::PlaceOf(const Allocation& allocation,
                                                         KnownMap& gone) {
  MutexLock lock(mutex_);
  for (auto it = known_.find(allocation.begin); it != known_.end() && it->second.asking;
       it = known_.find(allocation.begin)) {
    changed_.Wait(mutex_);
  }
  const auto before = known_.find(allocation.begin);
  if (before != known_.end() && before->second.allocation.id != allocation.id) {
    gone.insert(known_.extract(before));
  }
  if (!known_.contains(allocation.begin)) LimitLocked(gone);
  Known& known = known_[allocation.begin];  // stays while it asks
  known.allocation = allocation;
  known.used = Clock::now();
  if (known.region.empty() || !known.socket->Alive()) {
    if (RefusedLocked() || known.used < known.not_before) return std::nullopt;
    known.region.clear();
    known.asking = true;
    lock.Unlock();
    Forget(std::exchange(gone, {}));  // first: it may be in the way
    absl::StatusOr<std::shared_ptr<LocalSocket>> socket = shared_.Socket();
    absl::StatusOr<LocalSocket::Reply> reply =
        socket.ok() ? Ask(**socket, allocation)
                    : absl::StatusOr<LocalSocket::Reply>(socket.status());
    lock.Lock();
    known.asking = false;
    changed_.NotifyAll();
    if (!reply.ok()) {
      if (socket.ok() && absl::IsPermissionDenied(reply.status())) refused_over_ = *socket;
      // An end of the connection says nothing of the allocation.
      if (!absl::IsUnavailable(reply.status())) known.not_before = Clock::now() + kPause;
      return std::nullopt;
    }
    known.socket = *std::move(socket);
    known.region = reply->message.region();
    known.block =
        SharedBlock::OfGpu(allocation.begin, allocation.bytes, std::make_shared<std::monostate>());
    if (!keeper_.joinable()) keeper_ = std::thread([this] { Keep(); });
  }
  return SharedMemory::Place{known.block, known.socket, known.region, /*offset=*/0,
                             /*foreign=*/true};
}

void CallerMemory::GivenUp(const SharedMemory::Place& place) {
  const MutexLock lock(mutex_);
  const auto found = known_.find(place.block->data());
  if (found != known_.end() && found->second.region == place.region) found->second.region.clear();
}

void CallerMemory::LimitLocked(KnownMap& gone) {
  while (known_.size() >= kMost) {
    auto oldest = known_.end();
    for (auto it = known_.begin(); it != known_.end(); ++it) {
      if (it->second.asking || it->second.block.use_count() > 1) continue;
      if (oldest == known_.end() || it->second.used < oldest->second.used) oldest = it;
    }
    if (oldest == known_.end()) return;
    gone.insert(known_.extract(oldest));
  }
}

void CallerMemory::Forget(const KnownMap& gone) {
  for (const auto& [begin, known] : gone) {
    if (known.region.empty()) continue;
    v1::LocalRequest request;
    request.mutable_forget()->set_region(known.region);
    known.socket->Send(std::move(request));
  }
}

void CallerMemory::Tidy() {
  std::vector<Allocation> all;
  {
    const MutexLock lock(mutex_);
    for (const auto& [begin, known] : known_) all.push_back(known.allocation);
  }
  KnownMap gone;
  for (const Allocation& allocation : all) {
    const std::optional<Allocation> there = AllocationOf(allocation.begin);
    const bool freed = !there || there->id != allocation.id;
    const MutexLock lock(mutex_);
    const auto found = known_.find(allocation.begin);
    if (found == known_.end() || found->second.asking ||
        found->second.allocation.id != allocation.id) {
      continue;
    }
    const bool unused =
        found->second.used + kUnused < Clock::now() && found->second.block.use_count() <= 1;
    if (freed || unused) gone.insert(known_.extract(found));
  }
  Forget(gone);
}

void CallerMemory::Keep() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      const Clock::time_point until = Clock::now() + kLook;
      while (!closing_ && Clock::now() < until) changed_.WaitUntil(mutex_, until);
      if (closing_) return;
    }
    Tidy();
  }
}

}  // namespace client
}  // namespace sparsed
