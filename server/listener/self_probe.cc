#include "server/listener/self_probe.h"

#include <fmt/format.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "absl/status/statusor.h"
#include "base/sleep.h"
#include "server/listener/descriptor.h"
#include "server/listener/front_door.h"

namespace sparsed::server {
namespace {

constexpr std::string_view kUnix = "unix:";
/// Failures in a row before the server is given up, however long one took: a machine that stood
/// still makes one.
constexpr int kMinFailures = 3;

constexpr std::chrono::milliseconds kNextTry(20);

struct Name {
  sockaddr_storage bytes = {};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

Name UnixName(std::string_view path) {
  Name name;
  auto& address = reinterpret_cast<sockaddr_un&>(name.bytes);
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
  name.size = sizeof(sockaddr_un);
  return name;
}

absl::StatusOr<Name> TcpName(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &list);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  Name name;
  std::memcpy(&name.bytes, list->ai_addr, list->ai_addrlen);
  name.size = list->ai_addrlen;
  freeaddrinfo(list);
  return name;
}

/// Gives our end a name, so that the front door knows it. For TCP the other end's host is ours.
void BindOwnEnd(int fd, const Name& other) {
  Name own = other;
  if (own.bytes.ss_family == AF_UNIX) {
    own.size = sizeof(sa_family_t);  // the system finds an abstract one
  } else if (own.bytes.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(own.bytes).sin6_port = 0;
  } else {
    reinterpret_cast<sockaddr_in&>(own.bytes).sin_port = 0;
  }
  (void)bind(fd, own.get(), own.size);  // without one it waits in line like others
}

absl::Status Connect(int fd, const Name& name, std::chrono::milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  int error = connect(fd, name.get(), name.size) == 0 ? 0 : errno;
  // A Unix socket's queue may be full for a moment.
  while (error == EAGAIN && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kNextTry);
    error = connect(fd, name.get(), name.size) == 0 ? 0 : errno;
  }
  if (error == EINPROGRESS) {
    pollfd ready = {.fd = fd, .events = POLLOUT, .revents = 0};
    if (poll(&ready, 1, static_cast<int>(time.count())) == 0) {
      return absl::UnavailableError("no connection in time");
    }
    socklen_t size = sizeof(error);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  return error == 0 ? absl::OkStatus()
                    : absl::UnavailableError(std::generic_category().message(error));
}

absl::Status CallHealth(Descriptor fd, std::chrono::milliseconds time) {
  grpc::GenericStub stub(grpc::CreateInsecureChannelFromFd("self", fd.Release()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + time);
  grpc::CompletionQueue queue;
  const grpc::Slice nothing;  // a HealthCheckRequest for the whole server
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                          grpc::ByteBuffer(&nothing, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status.ok() ? absl::OkStatus() : absl::UnavailableError(status.error_message());
}

/// Over TLS: that the other end shakes hands and begins to speak HTTP/2 is all that is asked.
absl::Status GreetOverTls(const Descriptor& fd, std::chrono::milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> settings(SSL_CTX_new(TLS_client_method()),
                                                                   &SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(settings.get()), &SSL_free);
  const std::array<unsigned char, 3> protocols = {2, 'h', '2'};
  SSL_set_alpn_protos(ssl.get(), protocols.data(), protocols.size());
  SSL_set_fd(ssl.get(), fd.fd());
  SSL_set_connect_state(ssl.get());
  // Does `step` until it is done, or no time is left.
  const auto finish = [&](const auto& step) {
    for (int result; (result = step()) <= 0;) {
      const int why = SSL_get_error(ssl.get(), result);
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      if ((why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) || left.count() <= 0) {
        ERR_clear_error();
        return false;
      }
      const int events = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
      pollfd ready = {.fd = fd.fd(), .events = static_cast<int16_t>(events), .revents = 0};
      poll(&ready, 1, static_cast<int>(left.count()));
    }
    return true;
  };
  if (!finish([&] { return SSL_do_handshake(ssl.get()); })) {
    return absl::UnavailableError("no TLS handshake in time");
  }
  constexpr std::string_view kGreeting(  // and no settings
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  std::array<unsigned char, 9> frame = {};
  constexpr unsigned char kSettings = 4;
  const bool spoke =
      finish([&] { return SSL_write(ssl.get(), kGreeting.data(), kGreeting.size()); }) &&
      finish([&] { return SSL_read(ssl.get(), frame.data(), frame.size()); });
  if (spoke) SSL_shutdown(ssl.get());
  if (spoke && frame[3] == kSettings) return absl::OkStatus();
  return absl::UnavailableError("nobody speaks HTTP/2 behind TLS");
}

absl::Status Ask(const std::string& address, std::chrono::milliseconds time,
                 const std::function<void(std::string)>& about_to_connect, bool tls) {
  const absl::StatusOr<Name> name =
      address.starts_with(kUnix) ? UnixName(address.substr(kUnix.size())) : TcpName(address);
  if (!name.ok()) return name.status();
  Descriptor fd(socket(name->bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.open()) return absl::UnavailableError(std::generic_category().message(errno));
  BindOwnEnd(fd.fd(), *name);
  if (about_to_connect) about_to_connect(SocketName(fd.fd(), /*peer=*/false));
  const absl::Status connected = Connect(fd.fd(), *name, time);
  if (!connected.ok()) return connected;
  const bool encrypted = tls && name->bytes.ss_family != AF_UNIX;
  return encrypted ? GreetOverTls(fd, time) : CallHealth(std::move(fd), time);
}

}  // namespace

absl::Status AskHealth(const std::string& address, std::chrono::milliseconds time,
                       const std::function<void(std::string)>& about_to_connect, bool tls) {
  const absl::Status status = Ask(address, time, about_to_connect, tls);
  if (status.ok()) return status;
  return absl::UnavailableError(
      fmt::format("the server does not answer at {}: {}", address, std::string(status.message())));
}

SelfProbe::SelfProbe(Options options)
    : options_(std::move(options)), thread_([this](const std::stop_token& stop) { Run(stop); }) {}

absl::Status SelfProbe::AskAll() {
  for (const std::string& address : options_.addresses) {
    absl::Status status =
        AskHealth(address, options_.time, options_.about_to_connect, options_.tls);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void SelfProbe::Run(const std::stop_token& stop) {
  using Clock = std::chrono::steady_clock;
  int failures = 0;
  bool gave_up = false;
  Clock::time_point first_failure;
  while (SleepFor(options_.interval, stop)) {
    const auto began = Clock::now();
    const absl::Status status = AskAll();
    options_.told(status);
    if (status.ok()) {
      failures = 0;
    } else if (failures++ == 0) {
      first_failure = began;
    }
    if (!gave_up && options_.patience.count() > 0 && failures >= kMinFailures &&
        Clock::now() - first_failure >= options_.patience) {
      gave_up = true;
      options_.give_up();
    }
  }
}

}  // namespace sparsed::server
