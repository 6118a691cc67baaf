#include "server/listener/front_door.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "server/listener/socket_calls.h"

namespace sparsed::server {
namespace {

/// What every HTTP/2 client says first (RFC 9113, section 3.4).
constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

Opening OpeningOf(std::string_view bytes) {
  if (bytes.substr(0, kPreface.size()) != kPreface.substr(0, bytes.size())) return Opening::kWrong;
  return bytes.size() >= kPreface.size() ? Opening::kComplete : Opening::kIncomplete;
}

/// Of TLS: a record of type 22 with a ClientHello (RFC 8446, sections 5.1 and 4.1.2).
Opening TlsOpeningOf(std::string_view bytes) {
  constexpr char kHandshake = 22, kClientHello = 1;
  if (bytes[0] != kHandshake || (bytes.size() > 1 && bytes[1] != 3)) return Opening::kWrong;
  if (bytes.size() > 5) {
    // Cut into records so small that its random is not where it is looked for.
    const size_t record =
        static_cast<unsigned char>(bytes[3]) * 256u + static_cast<unsigned char>(bytes[4]);
    if (bytes[5] != kClientHello || record + 5 < kTlsOpeningBytes) return Opening::kWrong;
  }
  return bytes.size() >= kTlsOpeningBytes ? Opening::kComplete : Opening::kIncomplete;
}

}  // namespace

FrontDoor::FrontDoor(Options options)
    : options_(std::move(options)),
      connections_(std::make_shared<Connections>(options_.guard, options_.max_unfinished_bytes)) {}

FrontDoor::~FrontDoor() { Close(); }

absl::StatusOr<std::unique_ptr<FrontDoor>> FrontDoor::Open(Options options) {
  std::unique_ptr<FrontDoor> door(new FrontDoor(std::move(options)));
  for (const std::string& address : door->options_.addresses) {
    auto socket = ListenSocket::Open(address, door->options_.socket_file);
    if (!socket.ok()) return socket.status();
    door->sockets_.push_back(*std::move(socket));
  }
  return door;
}

absl::Status FrontDoor::Serve(std::unique_ptr<ConnectionAcceptor> plain,
                              std::unique_ptr<ConnectionAcceptor> tls) {
  plain_ = std::move(plain);
  tls_ = std::move(tls);
  AcceptRules rules;
  rules.admit = [this](int fd) { return Admit(fd); };
  rules.opening = [this](int fd, std::string_view bytes) {
    return IsTls(fd) ? TlsOpeningOf(bytes) : OpeningOf(bytes);
  };
  rules.opening_bytes = std::max(kPreface.size(), kTlsOpeningBytes);
  rules.take = [this](Descriptor fd) { Take(std::move(fd)); };
  rules.refused = [this](Refusal refusal) { connections_->CountRefusal(refusal); };
  rules.max_waiting = options_.max_waiting;
  rules.every_second = [this] {
    connections_->WakeHeld();
    connections_->EndUnwelcome();
  };
  auto loop = AcceptLoop::Start(sockets_, std::move(rules));
  if (!loop.ok()) return loop.status();
  loop_ = *std::move(loop);
  return absl::OkStatus();
}

void FrontDoor::Close() {
  loop_.reset();
  sockets_.clear();
}

std::vector<std::string> FrontDoor::addresses() const {
  std::vector<std::string> addresses;
  for (const ListenSocket& socket : sockets_) addresses.push_back(socket.address());
  return addresses;
}

std::vector<std::string> FrontDoor::own_addresses() const {
  std::vector<std::string> addresses;
  for (const ListenSocket& socket : sockets_) addresses.push_back(socket.own_address());
  return addresses;
}

void FrontDoor::LetIn(std::string name) {
  const MutexLock lock(mutex_);
  let_in_ = std::move(name);
}

bool FrontDoor::Admit(int fd) {
  if (fd >= kWatchable) return false;
  if (connections_->open() < options_.max_connections) return true;
  const MutexLock lock(mutex_);
  return !let_in_.empty() && SocketName(fd, /*peer=*/true) == let_in_;
}

bool FrontDoor::IsTls(int fd) const {
  if (!options_.tls) return false;
  int domain = AF_UNIX;
  socklen_t size = sizeof(domain);
  getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  return domain != AF_UNIX;
}

void FrontDoor::Take(Descriptor fd) {
  if (!Admit(fd.fd())) {  // others were faster
    connections_->CountRefusal(Refusal::kLimit);
    return;
  }
  const bool tls = IsTls(fd.fd());
  if (!connections_->Add(fd.fd(), tls)) {
    connections_->CountRefusal(Refusal::kProtocol);
    return;
  }
  ConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = fd.Release();
  (tls ? tls_ : plain_)->HandleNewConnection(&connection);
}

}  // namespace sparsed::server
