#include "engine/memory/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace sparsed::engine {
namespace {

std::string Reason(int error) { return std::generic_category().message(error); }

/// Its bytes.
absl::StatusOr<size_t> CheckFile(int file) {
  const int seals = fcntl(file, F_GET_SEALS);
  struct statfs system = {};
  // Huge pages of a file may turn out not to be there when they are touched.
  if (seals < 0 || fstatfs(file, &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError(
        "the descriptor is not of a memory file with pages of the usual size (memfd_create)");
  }
  if ((seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError(
        "the memory file is not sealed: it needs F_SEAL_SHRINK before it is shared");
  }
  struct stat facts = {};
  if (fstat(file, &facts) != 0 || facts.st_size <= 0) {
    return absl::InvalidArgumentError("the memory file is empty");
  }
  return static_cast<size_t>(facts.st_size);
}

}  // namespace

absl::StatusOr<Buffer> MapShared(int file, int64_t most_bytes, Budget& budget, MemoryOwner& owner) {
  const absl::StatusOr<size_t> bytes = CheckFile(file);
  if (!bytes.ok()) return bytes.status();
  // The file may have grown since, and may grow on: this size is what is counted and mapped.
  if (static_cast<int64_t>(*bytes) > most_bytes) {
    return absl::ResourceExhaustedError(
        fmt::format("the memory file has {} bytes, {} more may be shared over this connection "
                    "(--connection-memory); let go of some",
                    *bytes, most_bytes));
  }
  absl::StatusOr<Budget::Charge> charge = budget.Count(*bytes, MemoryUse::kShared, &owner);
  if (!charge.ok()) return charge.status();
  void* const at = mmap(nullptr, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) {
    const int error = errno;
    const std::string sentence =
        fmt::format("{} bytes of shared memory cannot be mapped: {}", *bytes, Reason(error));
    if (error == ENOMEM) return absl::ResourceExhaustedError(sentence);
    return absl::InvalidArgumentError(sentence);
  }
  return Buffer(std::shared_ptr<std::byte>(static_cast<std::byte*>(at),
                                           [size = *bytes, kept = *std::move(charge)](
                                               std::byte* mapped) { munmap(mapped, size); }),
                *bytes);
}

}  // namespace sparsed::engine
