// Memory that the server shares.
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "client/c/arguments.h"
#include "client/c/errors.h"
#include "client/c/handles.h"

using sparsed::c::Arguments;

struct sparsed_memory {
  sparsed::SharedBytes bytes;
};

namespace sparsed::c {
namespace {

/// Whose memory a framework's allocator gives, and whose it gave. Thread-safe.
class Pool {
 public:
  /// Lives as long as the process does.
  static Pool& Get() {
    static auto* const pool = new Pool;
    return *pool;
  }

  void Set(std::shared_ptr<LocalClient> client) {
    const MutexLock lock(mutex_);
    client_.swap(client);
  }

  void* Allocate(const Place& place, size_t bytes) {
    std::shared_ptr<LocalClient> client;
    {
      const MutexLock lock(mutex_);
      client = client_;
    }
    if (client == nullptr) return nullptr;
    const absl::StatusOr<void*> data = client->AllocateOnGpu(place, bytes);
    if (!data.ok()) return nullptr;
    const MutexLock lock(mutex_);
    given_[*data] = std::move(client);
    return *data;
  }

  void Free(const Place& place, void* data) {
    std::shared_ptr<LocalClient> client;
    {
      const MutexLock lock(mutex_);
      const auto found = given_.find(data);
      if (found == given_.end()) return;
      client = std::move(found->second);
      given_.erase(found);
    }
    client->FreeOnGpu(place, data).IgnoreError();
  }

 private:
  Mutex mutex_;
  std::shared_ptr<LocalClient> client_ ABSL_GUARDED_BY(mutex_);
  std::map<void*, std::shared_ptr<LocalClient>> given_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace
}  // namespace sparsed::c

extern "C" {

sparsed_error* sparsed_memory_allocate(sparsed_client* client, size_t bytes,
                                       sparsed_memory** memory) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(client, "client");
    in.Need(memory, "memory");
    if (!in.ok()) return in.status();
    absl::StatusOr<sparsed::SharedBytes> made = client->client().AllocateSharedBytes(bytes);
    if (!made.ok()) return made.status();
    *memory = new sparsed_memory{*std::move(made)};
    return absl::OkStatus();
  });
}

void* sparsed_memory_data(const sparsed_memory* memory) {
  return memory == nullptr ? nullptr : memory->bytes.data();
}

void sparsed_memory_free(sparsed_memory* memory) { delete memory; }

sparsed_error* sparsed_gpu_allocate(sparsed_client* client, int32_t gpu, size_t bytes, void* stream,
                                    void** data) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(client, "client");
    in.NotNegative(gpu, "gpu");
    in.Need(data, "data");
    if (!in.ok()) return in.status();
    const absl::StatusOr<void*> made = client->local->AllocateOnGpu({gpu, stream}, bytes);
    if (made.ok()) *data = *made;
    return made.status();
  });
}

sparsed_error* sparsed_gpu_free(sparsed_client* client, int32_t gpu, void* data, void* stream) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(client, "client");
    in.NotNegative(gpu, "gpu");
    if (!in.ok()) return in.status();
    if (data == nullptr) return absl::OkStatus();
    return client->local->FreeOnGpu({gpu, stream}, data);
  });
}

sparsed_error* sparsed_gpu_pool_set(sparsed_client* client) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    if (client != nullptr && !sparsed::c::HasKernels()) {
      return client->local->AllocateOnGpu({}, 0).status();
    }
    sparsed::c::Pool::Get().Set(client == nullptr ? nullptr : client->local);
    return absl::OkStatus();
  });
}

void* sparsed_gpu_pool_malloc(ptrdiff_t bytes, int gpu, void* stream) {
  if (bytes <= 0 || gpu < 0) return nullptr;
  try {
    return sparsed::c::Pool::Get().Allocate({gpu, stream}, static_cast<size_t>(bytes));
  } catch (const std::exception&) {
    return nullptr;
  }
}

void sparsed_gpu_pool_free(void* data, ptrdiff_t, int gpu, void* stream) {
  try {
    if (data != nullptr) sparsed::c::Pool::Get().Free({gpu, stream}, data);
  } catch (const std::exception&) {
    // It stays allocated until the process ends.
    return;
  }
}

}  // extern "C"
