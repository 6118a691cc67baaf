#include "client/src/nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "client/src/connection.h"
#include "proto/wire/status_details.h"
#include "sparsed/v1/types.pb.h"

namespace sparsed {
inline namespace client {
namespace {

using wire::kRedirectUrl;

/// Of what a server says; beyond that the client asks home again.
constexpr size_t kMostAddresses = 1024;
constexpr size_t kMostRoutes = 65536;
/// Of the time to connect in, what one node may take where there are others to ask.
constexpr std::chrono::seconds kNodePatience(3);

/// What gRPC takes for something else than a host before a colon: a socket's path, a list.
constexpr std::array<std::string_view, 10> kSchemes = {
    "unix",  "unix-abstract", "dns",        "ipv4",     "ipv6",
    "vsock", "xds",           "google-c2p", "sockaddr", "binder"};

/// What an address is that a server may send clients to. All else that gRPC takes would have a
/// client speak to what it knows nothing of, and over Unix sockets without TLS.
bool IsHostAndPort(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return false;
  std::string_view host = address.substr(0, colon);
  const std::string_view digits = address.substr(colon + 1);
  unsigned port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port == 0 || port > 65535) {
    return false;
  }
  constexpr std::string_view kOfAddress = "0123456789abcdefABCDEF:.";
  if (host.starts_with('[')) {
    return host.size() > 2 && host.ends_with(']') &&
           host.substr(1, host.size() - 2).find_first_not_of(kOfAddress) == std::string_view::npos;
  }
  constexpr std::string_view kOfName =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  std::string lower(host);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return !host.empty() && host.find_first_not_of(kOfName) == std::string_view::npos &&
         std::ranges::find(kSchemes, lower) == kSchemes.end();
}

}  // namespace

Nodes::~Nodes() {
  std::list<Opening> openings;
  {
    const MutexLock lock(mutex_);
    openings.swap(openings_);
  }
  for (Opening& opening : openings) {
    // The last call may have ended on it.
    if (opening.thread.get_id() == std::this_thread::get_id()) {
      opening.thread.detach();
    } else {
      opening.thread.join();
    }
  }
}

void Nodes::Learn(const std::vector<std::string>& addresses) {
  const MutexLock lock(mutex_);
  for (const std::string& address : addresses) {
    if (addresses_.size() == kMostAddresses) return;
    if (!IsHostAndPort(address)) continue;
    if (std::ranges::find(addresses_, address) == addresses_.end()) addresses_.push_back(address);
  }
}

bool Nodes::several() const {
  const MutexLock lock(mutex_);
  return addresses_.size() > 1;
}

bool Nodes::in_cluster() const {
  const MutexLock lock(mutex_);
  return !addresses_.empty();
}

std::optional<std::vector<std::string>> Nodes::Follow(const absl::Status& status) {
  const auto payload = status.GetPayload(kRedirectUrl);
  v1::Redirect redirect;
  if (!payload || !redirect.ParseFromString(std::string(*payload)) ||
      redirect.addresses().empty()) {
    return std::nullopt;
  }
  std::vector<std::string> addresses(redirect.addresses().begin(), redirect.addresses().end());
  if (addresses.size() > kMostAddresses) addresses.resize(kMostAddresses);
  Learn(addresses);
  const MutexLock lock(mutex_);
  if (routes_.size() >= kMostRoutes) routes_.clear();
  routes_[redirect.matrix()] = addresses.front();
  return addresses;
}

Connection* Nodes::FindLocked(const std::string& address) {
  if (address == home_.address()) return &home_;
  const auto found = open_.find(address);
  return found == open_.end() ? nullptr : found->second.get();
}

Connection& Nodes::Of(const std::string& matrix) {
  const MutexLock lock(mutex_);
  if (routes_.empty()) return home_;
  const auto route = routes_.find(matrix);
  if (route == routes_.end()) return home_;
  Connection* const connection = FindLocked(route->second);
  return connection == nullptr ? home_ : *connection;
}

void Nodes::RouteLike(const std::string& matrix, const std::string& other) {
  const MutexLock lock(mutex_);
  const auto route = routes_.find(other);
  if (route == routes_.end()) return;
  const std::string address = route->second;
  if (routes_.size() >= kMostRoutes) routes_.clear();
  routes_[matrix] = address;
}

std::shared_ptr<ShardedMatrix> Nodes::FindSharded(const std::string& matrix) const {
  const MutexLock lock(mutex_);
  const auto found = sharded_.find(matrix);
  return found == sharded_.end() ? nullptr : found->second;
}

void Nodes::LearnSharded(const std::string& matrix, std::shared_ptr<ShardedMatrix> sharded) {
  const MutexLock lock(mutex_);
  if (sharded_.size() >= kMostRoutes) sharded_.clear();
  sharded_[matrix] = std::move(sharded);
}

void Nodes::ForgetSharded(const std::string& matrix) {
  const MutexLock lock(mutex_);
  sharded_.erase(matrix);
}

void Nodes::Forget(const Connection& lost) {
  const MutexLock lock(mutex_);
  std::erase_if(routes_, [&](const auto& route) { return route.second == lost.address(); });
}

std::string Nodes::After(const std::string& address) const {
  const MutexLock lock(mutex_);
  if (addresses_.empty()) return home_.address();
  const auto found = std::ranges::find(addresses_, address);
  if (found == addresses_.end() || std::next(found) == addresses_.end()) return addresses_.front();
  return *std::next(found);
}

absl::StatusOr<Connection*> Nodes::Open(const std::string& address) {
  if (!IsHostAndPort(address)) {
    constexpr size_t kMostSaid = 100;
    return absl::FailedPreconditionError(
        fmt::format("the server at {} redirects to '{}', which is not HOST:PORT", home_.address(),
                    absl::CHexEscape(address.substr(0, kMostSaid))));
  }
  ClientOptions options = home_.options();
  if (several()) {
    options.connect_timeout =
        std::min<decltype(options.connect_timeout)>(options.connect_timeout, kNodePatience);
  }
  absl::StatusOr<std::shared_ptr<Connection>> opened =
      Connection::OpenNode(address, options, home_);
  if (!opened.ok()) return opened.status();
  const MutexLock lock(mutex_);
  // Another thread may have been faster; who has a connection keeps it.
  return open_.try_emplace(address, *std::move(opened)).first->second.get();
}

void Nodes::OpenOneOf(const std::vector<std::string>& addresses) {
  absl::StatusOr<Connection*> last = absl::UnavailableError("a redirect names no node");
  for (const std::string& address : addresses) {
    {
      const MutexLock lock(mutex_);
      if (Connection* const found = FindLocked(address)) last = found;
    }
    if (!last.ok()) last = Open(address);
    if (last.ok()) break;
  }
  std::vector<Connected> waiting;
  {
    const MutexLock lock(mutex_);
    waiting = std::move(waiting_.extract(addresses).mapped());
  }
  // What ends with the last of the calls may be the client itself, and with it this.
  for (Connected& connected : waiting) std::exchange(connected, nullptr)(last);
}

void Nodes::Connect(std::vector<std::string> addresses, Connected connected) {
  absl::StatusOr<Connection*> known = nullptr;
  {
    const MutexLock lock(mutex_);
    known = FindLocked(addresses.front());
    if (*known == nullptr) {
      const auto [waiting, first] = waiting_.try_emplace(addresses);
      if (!first) {
        waiting->second.push_back(std::move(connected));
        return;
      }
      for (auto it = openings_.begin(); it != openings_.end();) {
        if (!*it->done) {
          ++it;
          continue;
        }
        it->thread.join();
        it = openings_.erase(it);
      }
      Opening& opening = openings_.emplace_back();
      try {
        opening.thread = std::thread([this, done = opening.done, addresses] {
          OpenOneOf(addresses);
          *done = true;
        });
        waiting->second.push_back(std::move(connected));
        return;
      } catch (const std::system_error& error) {
        openings_.pop_back();
        waiting_.erase(waiting);
        known = absl::UnavailableError(
            fmt::format("no thread to connect to {} on: {}", addresses.front(), error.what()));
      }
    }
  }
  connected(std::move(known));
}

std::shared_ptr<Connection> RouteOf(const std::shared_ptr<Connection>& connection,
                                    const std::string& matrix) {
  return {connection, &connection->nodes().Of(matrix)};
}

}  // namespace client
}  // namespace sparsed
