// How a test tells the library that is loaded before a program which of its system calls is to
// fail: in a file that both map.
#pragma once

#include <atomic>
#include <cstdint>
#include <iterator>

namespace sparsed::test {

/// The file's path, in the program's environment.
inline constexpr char kFailingCallsVariable[] = "SPARSED_FAILING_CALLS";

/// What can fail; of `eventfd`, `epoll` and `mmap` what the program's own code calls. `read` and
/// `write` are those of regular files: of sockets and eventfds they fail for other reasons.
inline constexpr const char* kCallNames[] = {
    "accept4",         "bind",         "listen", "socket",    "socketpair", "pipe",      "eventfd",
    "epoll",           "memfd_create", "mmap",   "mmap_file", "open",       "opendir",   "pread",
    "pwrite",          "read",         "write",  "fsync",     "rename",     "ftruncate", "unlink",
    "posix_fallocate", "mkdir",        "statvfs"};
enum CallKind : int {
  kAccept4,
  kBind,
  kListen,
  kSocket,
  kSocketpair,
  kPipe,
  kEventfd,
  kEpoll,  ///< epoll_create1
  kMemfdCreate,
  kMmap,      ///< of memory, by the program's own code
  kMmapFile,  ///< of a file, a memory file among them
  kOpen,
  kOpendir,
  kPread,
  kPwrite,
  kRead,
  kWrite,
  kFsync,  ///< fdatasync, too
  kRename,
  kFtruncate,
  kUnlink,
  kPosixFallocate,
  kMkdir,
  kStatvfs,
  kCallKinds
};
static_assert(std::size(kCallNames) == kCallKinds);

/// Zeros at first: calls are counted, none fails.
struct FailingCalls {
  std::atomic<int64_t> counts[kCallKinds];  ///< so far, by kind
  std::atomic<int32_t> kind;                ///< of the one that fails
  std::atomic<int32_t> error;               ///< its errno
  std::atomic<int64_t> at;                  ///< which one of its kind, from 1; 0: none
  std::atomic<int64_t> failed;              ///< how many did
};

}  // namespace sparsed::test
