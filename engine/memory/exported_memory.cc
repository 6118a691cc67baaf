#include "engine/memory/exported_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <new>
#include <system_error>

// Of Linux 5.1; glibc's header may be older.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace sparsed::engine {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// Of the size of a page, which is what is mapped.
constexpr size_t kSequenceBytes = 4096;

absl::Status NotToBeHad(size_t bytes, int error) {
  return absl::ResourceExhaustedError(
      fmt::format("{} bytes of memory for processes of this machine are not to be had: {}", bytes,
                  std::generic_category().message(error)));
}

/// All pages of it are there: none is missed later, by a signal.
absl::StatusOr<Descriptor> NewFile(size_t bytes) {
  Descriptor file(memfd_create("sparsed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.open()) return NotToBeHad(bytes, errno);
  int error = 0;
  do {
    error = posix_fallocate(file.fd(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) return NotToBeHad(bytes, error);
  return file;
}

}  // namespace

ExportedMemory::ExportedMemory(Descriptor file, size_t bytes, std::shared_ptr<const void> kept)
    : id_([] {
        static std::atomic<uint64_t> next = 1;
        return next.fetch_add(1, std::memory_order_relaxed);
      }()),
      file_(std::move(file)),
      bytes_(bytes),
      kept_(std::move(kept)) {}

absl::StatusOr<std::shared_ptr<const ExportedMemory>> ExportedMemory::Make(
    size_t bytes, Budget& budget, MemoryOwner& owner, const std::function<void(std::byte*)>& fill) {
  absl::StatusOr<Budget::Charge> charge = budget.Count(bytes, MemoryUse::kShared, &owner);
  if (!charge.ok()) return charge.status();
  absl::StatusOr<Descriptor> file = NewFile(bytes);
  if (!file.ok()) return file.status();
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd(), 0);
  if (at == MAP_FAILED) return NotToBeHad(bytes, errno);
  fill(static_cast<std::byte*>(at));
  munmap(at, bytes);
  // Refused while somebody could still write.
  if (fcntl(file->fd(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
      0) {
    return NotToBeHad(bytes, errno);
  }
  return std::shared_ptr<const ExportedMemory>(new ExportedMemory(
      *std::move(file), bytes, std::make_shared<const Budget::Charge>(*std::move(charge))));
}

std::shared_ptr<const ExportedMemory> ExportedMemory::OfGpu(Descriptor file, size_t bytes,
                                                            std::shared_ptr<const void> kept) {
  return std::shared_ptr<const ExportedMemory>(
      new ExportedMemory(std::move(file), bytes, std::move(kept)));
}

absl::StatusOr<std::unique_ptr<ExportedSequence>> ExportedSequence::Make() {
  absl::StatusOr<Descriptor> file = NewFile(kSequenceBytes);
  if (!file.ok()) return file.status();
  void* const at = mmap(nullptr, kSequenceBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd(), 0);
  if (at == MAP_FAILED) return NotToBeHad(kSequenceBytes, errno);
  auto sequence =
      std::unique_ptr<ExportedSequence>(new ExportedSequence(*std::move(file), new (at) Numbers));
  // From here on nobody else maps it to write.
  if (fcntl(sequence->file(), F_ADD_SEALS,
            F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return NotToBeHad(kSequenceBytes, errno);
  }
  return sequence;
}

ExportedSequence::~ExportedSequence() { munmap(numbers_, kSequenceBytes); }

}  // namespace sparsed::engine
