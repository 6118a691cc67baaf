#include "client/attached/memory_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace sparsed {
inline namespace client {
namespace {

constexpr size_t kPageBytes = 4096;
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(UsagePage::Counters) == 4 * sizeof(uint64_t));

absl::Status NotToBeHad(size_t bytes) {
  return absl::ResourceExhaustedError(fmt::format("{} bytes of shared memory cannot be mapped: {}",
                                                  bytes, std::generic_category().message(errno)));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Map(const Descriptor& file,
                                                                  size_t bytes) {
  struct stat facts = {};
  const int seals = file.open() ? fcntl(file.fd(), F_GET_SEALS) : -1;
  // Behind the end of a file there are signals.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file.fd(), &facts) != 0 ||
      facts.st_size <= 0 || static_cast<size_t>(facts.st_size) < bytes) {
    return absl::InvalidArgumentError(
        fmt::format("the server sent no sealed memory file of {} bytes", bytes));
  }
  const auto size = static_cast<size_t>(facts.st_size);
  void* const at = mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_POPULATE, file.fd(), 0);
  // Kernels before 6.7 share a file that is sealed against writing with nobody who could have
  // written; what is never written is the same page in a private mapping.
  void* const mapped =
      at != MAP_FAILED ? at
                       : mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file.fd(), 0);
  if (mapped == MAP_FAILED) return NotToBeHad(size);
  return std::shared_ptr<const MappedFile>(new MappedFile(static_cast<std::byte*>(mapped), size));
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(data()), size()); }

absl::StatusOr<std::unique_ptr<UsagePage>> UsagePage::Make() {
  Descriptor file(memfd_create("sparsed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.open() || ftruncate(file.fd(), kPageBytes) != 0 ||
      fcntl(file.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return NotToBeHad(kPageBytes);
  }
  void* const at = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  if (at == MAP_FAILED) return NotToBeHad(kPageBytes);
  return std::unique_ptr<UsagePage>(
      new UsagePage(std::move(file), new (at) Counters[kOperations]()));
}

UsagePage::~UsagePage() { munmap(page_, kPageBytes); }

}  // namespace client
}  // namespace sparsed
