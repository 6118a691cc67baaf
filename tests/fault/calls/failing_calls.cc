// Loaded before a program (LD_PRELOAD): counts its system calls, and fails the one that it is told
// to. The calls themselves go to the kernel directly, since an allocator makes some of them before
// anything can be looked up.
#include "tests/fault/calls/failing_calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sparsed::test {
namespace {

FailingCalls* shared = nullptr;
/// Code of the program, of its own libraries and of SQLite. Others end the program where they get
/// nothing for themselves: jemalloc 5.3 uses an arena that it could not map, Abseil aborts without
/// memory, and gRPC 1.51 without the first eventfd and epoll. Of that nothing is learned.
struct Code {
  uintptr_t begin, end;
} own[16];
int own_count = 0;

int FindOwn(dl_phdr_info* library, size_t /*size*/, void* /*unused*/) {
  const char* const name = library->dlpi_name;
  const bool is_own =
      *name == '\0' ||
      (strstr(name, "sparsed_") != nullptr && strstr(name, "failing_calls") == nullptr) ||
      strstr(name, "sqlite3") != nullptr;
  for (int i = 0; is_own && i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = library->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    if (own_count == static_cast<int>(sizeof(own) / sizeof(own[0]))) break;
    const uintptr_t begin = library->dlpi_addr + part.p_vaddr;
    own[own_count++] = {begin, begin + part.p_memsz};
  }
  return 0;
}

bool IsOwn(const void* caller) {
  const auto from = reinterpret_cast<uintptr_t>(caller);
  for (int i = 0; i < own_count; ++i) {
    if (from >= own[i].begin && from < own[i].end) return true;
  }
  return false;
}

__attribute__((constructor)) void Map() {
  const char* const path = getenv(kFailingCallsVariable);
  if (path == nullptr) return;
  const long file = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
  if (file < 0) _exit(125);
  void* const mapped = reinterpret_cast<void*>(syscall(
      SYS_mmap, nullptr, sizeof(FailingCalls), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  syscall(SYS_close, file);
  if (mapped == MAP_FAILED) _exit(125);
  dl_iterate_phdr(FindOwn, nullptr);
  shared = static_cast<FailingCalls*>(mapped);
}

/// Counts a call. Its errno, if it is to fail; else 0.
int Count(CallKind kind) {
  if (shared == nullptr) return 0;
  const int64_t number = ++shared->counts[kind];
  if (shared->kind != kind || shared->at != number) return 0;
  ++shared->failed;
  return shared->error;
}

template <typename... Arguments>
long Make(CallKind kind, long number, Arguments... arguments) {
  if (const int error = Count(kind); error != 0) {
    errno = error;
    return -1;
  }
  return syscall(number, arguments...);
}

bool IsRegular(int file) {
  struct stat status;
  return syscall(SYS_fstat, file, &status) == 0 && S_ISREG(status.st_mode);
}

void* Map(const void* caller, void* address, size_t length, int protection, int flags, int file,
          off_t offset) {
  if (!IsOwn(caller)) {
    return reinterpret_cast<void*>(
        syscall(SYS_mmap, address, length, protection, flags, file, offset));
  }
  return reinterpret_cast<void*>(Make(file < 0 ? kMmap : kMmapFile, SYS_mmap, address, length,
                                      protection, flags, file, offset));
}

/// The mode of a file that may be created.
mode_t ModeOf(int flags, va_list arguments) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace
}  // namespace sparsed::test

// NOLINTBEGIN: the names and the forms are the C library's.
using namespace sparsed::test;
extern "C" {

int accept4(int socket, sockaddr* address, socklen_t* length, int flags) {
  return Make(kAccept4, SYS_accept4, socket, address, length, flags);
}
int bind(int socket, const sockaddr* address, socklen_t length) noexcept {
  return Make(kBind, SYS_bind, socket, address, length);
}
int listen(int socket, int backlog) noexcept { return Make(kListen, SYS_listen, socket, backlog); }
int socket(int domain, int type, int protocol) noexcept {
  return Make(kSocket, SYS_socket, domain, type, protocol);
}
int socketpair(int domain, int type, int protocol, int* pair) noexcept {
  return Make(kSocketpair, SYS_socketpair, domain, type, protocol, pair);
}
int pipe(int* ends) noexcept { return Make(kPipe, SYS_pipe2, ends, 0); }
int pipe2(int* ends, int flags) noexcept { return Make(kPipe, SYS_pipe2, ends, flags); }
int eventfd(unsigned value, int flags) noexcept {
  if (!IsOwn(__builtin_return_address(0))) return syscall(SYS_eventfd2, value, flags);
  return Make(kEventfd, SYS_eventfd2, value, flags);
}
int epoll_create1(int flags) noexcept {
  if (!IsOwn(__builtin_return_address(0))) return syscall(SYS_epoll_create1, flags);
  return Make(kEpoll, SYS_epoll_create1, flags);
}
int memfd_create(const char* name, unsigned flags) noexcept {
  return Make(kMemfdCreate, SYS_memfd_create, name, flags);
}
void* mmap(void* address, size_t length, int protection, int flags, int file,
           off_t offset) noexcept {
  return Map(__builtin_return_address(0), address, length, protection, flags, file, offset);
}
void* mmap64(void* address, size_t length, int protection, int flags, int file,
             off64_t offset) noexcept {
  return Map(__builtin_return_address(0), address, length, protection, flags, file, offset);
}
int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return Make(kOpen, SYS_openat, AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return Make(kOpen, SYS_openat, AT_FDCWD, path, flags, mode);
}
DIR* opendir(const char* path) {
  if (const int error = Count(kOpendir); error != 0) {
    errno = error;
    return nullptr;
  }
  static auto* const real = reinterpret_cast<DIR* (*)(const char*)>(dlsym(RTLD_NEXT, "opendir"));
  return real(path);
}
ssize_t pread(int file, void* to, size_t size, off_t offset) {
  return Make(kPread, SYS_pread64, file, to, size, offset);
}
ssize_t pread64(int file, void* to, size_t size, off64_t offset) {
  return Make(kPread, SYS_pread64, file, to, size, offset);
}
ssize_t pwrite(int file, const void* from, size_t size, off_t offset) {
  return Make(kPwrite, SYS_pwrite64, file, from, size, offset);
}
ssize_t pwrite64(int file, const void* from, size_t size, off64_t offset) {
  return Make(kPwrite, SYS_pwrite64, file, from, size, offset);
}
ssize_t read(int file, void* to, size_t size) {
  if (!IsRegular(file)) return syscall(SYS_read, file, to, size);
  return Make(kRead, SYS_read, file, to, size);
}
ssize_t write(int file, const void* from, size_t size) {
  if (!IsRegular(file)) return syscall(SYS_write, file, from, size);
  return Make(kWrite, SYS_write, file, from, size);
}
int fsync(int file) { return Make(kFsync, SYS_fsync, file); }
int fdatasync(int file) { return Make(kFsync, SYS_fdatasync, file); }
int rename(const char* from, const char* to) noexcept {
  return Make(kRename, SYS_rename, from, to);
}
int ftruncate(int file, off_t length) noexcept {
  return Make(kFtruncate, SYS_ftruncate, file, length);
}
int ftruncate64(int file, off64_t length) noexcept {
  return Make(kFtruncate, SYS_ftruncate, file, length);
}
int unlink(const char* path) noexcept { return Make(kUnlink, SYS_unlink, path); }
int posix_fallocate(int file, off_t offset, off_t length) {
  return Make(kPosixFallocate, SYS_fallocate, file, 0, offset, length) == 0 ? 0 : errno;
}
int mkdir(const char* path, mode_t mode) noexcept { return Make(kMkdir, SYS_mkdir, path, mode); }
int statvfs(const char* path, struct statvfs* status) noexcept {
  if (const int error = Count(kStatvfs); error != 0) {
    errno = error;
    return -1;
  }
  static auto* const real =
      reinterpret_cast<int (*)(const char*, struct statvfs*)>(dlsym(RTLD_NEXT, "statvfs"));
  return real(path, status);
}

}  // extern "C"
// NOLINTEND
