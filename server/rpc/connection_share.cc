#include "server/rpc/connection_share.h"

#include <fmt/format.h>
#include <grpcpp/server_context.h>

#include <utility>

namespace sparsed::server {
namespace {

/// What tells connections apart, also those of a Unix socket (see FrontDoor).
std::string ConnectionOf(const grpc::ServerContextBase& context) { return context.peer(); }

}  // namespace

absl::Status ConnectionShare::Take(int64_t bytes) {
  const int64_t held = held_ += bytes;
  if (held <= limit_) return absl::OkStatus();
  held_ -= bytes;
  return absl::ResourceExhaustedError(fmt::format(
      "this connection holds {} bytes of requests, uploads and unread results, and with {} more it "
      "would pass the {} that one may hold (--connection-memory); read results, or send less at "
      "once",
      held - bytes, bytes, limit_));
}

absl::Status ConnectionShare::Check(std::string_view what, int64_t bytes) const {
  if (bytes <= limit_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{} needs {} bytes, more than the {} that one connection may hold at once "
                  "(--connection-memory)",
                  what, bytes, limit_));
}

absl::StatusOr<Buffer> ConnectionShare::Hold(Buffer buffer) {
  const auto bytes = static_cast<int64_t>(buffer.size());
  if (absl::Status status = Take(bytes); !status.ok()) return status;
  std::byte* const data = buffer.mutable_data();
  const size_t size = buffer.size();
  return Buffer(std::shared_ptr<std::byte>(data,
                                           [share = shared_from_this(), bytes,
                                            held = std::move(buffer)](std::byte*) mutable {
                                             held = Buffer();
                                             share->Give(bytes);
                                           }),
                size);
}

absl::Status ShareHold::GrowTo(int64_t bytes) {
  if (bytes <= held_) return absl::OkStatus();
  if (absl::Status status = share_->Take(bytes - held_); !status.ok()) return status;
  held_ = bytes;
  return absl::OkStatus();
}

void ShareHold::Clear() { share_->Give(std::exchange(held_, 0)); }

std::shared_ptr<ConnectionShare> ConnectionShares::Of(const grpc::ServerContextBase& context) {
  const std::string connection = ConnectionOf(context);
  const MutexLock lock(live_->mutex);
  std::weak_ptr<ConnectionShare>& share = live_->shares[connection];
  if (std::shared_ptr<ConnectionShare> alive = share.lock()) return alive;
  std::shared_ptr<ConnectionShare> made = {
      new ConnectionShare(limit_), [live = live_, connection](ConnectionShare* gone) {
        delete gone;
        const MutexLock lock(live->mutex);
        const auto found = live->shares.find(connection);
        if (found != live->shares.end() && found->second.expired()) live->shares.erase(found);
      }};
  share = made;
  return made;
}

}  // namespace sparsed::server
