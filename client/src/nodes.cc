#include "client/src/nodes.h"

#include <algorithm>
#include <utility>

#include "client/src/connection.h"
#include "sparsed/v1/types.pb.h"

namespace sparsed {
inline namespace client {
namespace {

constexpr char kRedirectUrl[] = "type.googleapis.com/sparsed.v1.Redirect";
/// Of what a server says; beyond that the client asks home again.
constexpr size_t kMostAddresses = 1024;
constexpr size_t kMostRoutes = 65536;

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
    if (std::ranges::find(addresses_, address) == addresses_.end()) addresses_.push_back(address);
  }
}

bool Nodes::several() const {
  const MutexLock lock(mutex_);
  return addresses_.size() > 1;
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
  absl::StatusOr<std::shared_ptr<Connection>> opened =
      Connection::OpenNode(address, home_.options(), home_);
  if (!opened.ok()) return opened.status();
  const MutexLock lock(mutex_);
  // Another thread may have been faster; who has a connection keeps it.
  return open_.try_emplace(address, *std::move(opened)).first->second.get();
}

void Nodes::Connect(std::vector<std::string> addresses, Connected connected) {
  Connection* known = nullptr;
  {
    const MutexLock lock(mutex_);
    known = FindLocked(addresses.front());
    if (known == nullptr) {
      for (auto it = openings_.begin(); it != openings_.end();) {
        if (!*it->done) {
          ++it;
          continue;
        }
        it->thread.join();
        it = openings_.erase(it);
      }
      Opening& opening = openings_.emplace_back();
      opening.thread = std::thread([this, done = opening.done, addresses = std::move(addresses),
                                    connected = std::move(connected)]() mutable {
        absl::StatusOr<Connection*> last = absl::UnavailableError("a redirect names no node");
        for (const std::string& address : addresses) {
          {
            const MutexLock looking(mutex_);
            if (Connection* const found = FindLocked(address)) last = found;
          }
          if (!last.ok()) last = Open(address);
          if (last.ok()) break;
        }
        // What ends with the call may be the client itself, and with it this.
        std::exchange(connected, nullptr)(std::move(last));
        *done = true;
      });
      return;
    }
  }
  connected(known);
}

std::shared_ptr<Connection> RouteOf(const std::shared_ptr<Connection>& connection,
                                    const std::string& matrix) {
  return {connection, &connection->nodes().Of(matrix)};
}

}  // namespace client
}  // namespace sparsed
