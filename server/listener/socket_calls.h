// What gRPC does with the sockets that it was given.
//
// gRPC takes sockets, but says nothing about them afterwards, and lets nobody see their bytes
// before it acts on them. As it is a library of its own, it finds recvmsg, sendmsg, getpeername,
// epoll_ctl and close by their names at run time, and a program's own functions come first:
// socket_calls.cc defines these five. For sockets that are watched they tell the watcher and go on
// to the system's functions; for all others they only go on.
//
// What is encrypted is watched in SSL_read and SSL_write in the same way. They know no sockets; the
// random number in the ClientHello, which both ends of the call see, says whose bytes they have.
#pragma once

#include <sys/epoll.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/listener/descriptor.h"

namespace sparsed::server {

/// Called by whoever reads, writes or closes: reading and writing may go on at once.
class SocketWatcher {
 public:
  /// The socket is about to be closed.
  virtual ~SocketWatcher() = default;
  /// The socket was added to `epoll` with `events`.
  virtual void OnPolled(int epoll, const epoll_event& events) = 0;
  /// How many bytes may be read at once now. 0: nothing seems to be there (EAGAIN), and the watcher
  /// has the reader told by its epoll when there is.
  virtual size_t MayRead() = 0;
  /// Bytes that were read (and decrypted), in order. False: they are not to be seen, and the
  /// connection has ended.
  virtual bool OnReceived(std::string_view bytes) = 0;
  /// Bytes that were written (before they were encrypted), in order.
  virtual void OnSent(std::string_view bytes) = 0;
  /// True: nothing more is read.
  virtual bool ended() const = 0;
  /// What a Unix socket's other end is called, which has no name of its own.
  virtual const std::string& name() const = 0;
};

/// Descriptors from this number on cannot be watched.
constexpr int kWatchable = 1 << 20;

/// Of a TLS connection, what has to be there before it can be watched: up to the end of the
/// ClientHello's random.
constexpr size_t kTlsOpeningBytes = 43;

/// Watches `fd` until it is closed. `fd` is below kWatchable and not watched. If `tls`, its
/// ClientHello has come and is unread; false, and nothing is watched, if another connection that is
/// watched began with the same.
bool Watch(int fd, std::shared_ptr<SocketWatcher> watcher, bool tls = false);

}  // namespace sparsed::server
