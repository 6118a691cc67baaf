#include "client/src/shard_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "proto/wire/status_details.h"

namespace sparsed {
inline namespace client {
namespace {

using wire::kInShardsUrl;

std::optional<std::chrono::steady_clock::time_point> DeadlineOf(const CallOptions& options,
                                                                const ClientOptions& client) {
  const auto timeout = options.timeout.has_value() ? options.timeout : client.default_timeout;
  const auto now = std::chrono::steady_clock::now();
  if (!timeout.has_value() || *timeout > std::chrono::steady_clock::time_point::max() - now) {
    return std::nullopt;
  }
  return now + std::chrono::duration_cast<std::chrono::steady_clock::duration>(*timeout);
}

}  // namespace

bool IsInShards(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && status.GetPayload(kInShardsUrl).has_value();
}

ShardWork::ShardWork(const CallOptions& options, const ClientOptions& client)
    : options_(options), deadline_(DeadlineOf(options, client)) {}

ShardWork::~ShardWork() {
  if (!thread_.joinable()) return;
  // The thread itself may be the last that knows of it.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void ShardWork::Start(std::function<std::function<void()>(ShardWork&)> run,
                      const std::function<void(absl::Status)>& failed) {
  try {
    thread_ = std::thread([self = shared_from_this(), run = std::move(run), failed]() mutable {
      std::function<void()> end;
      try {
        end = std::exchange(run, nullptr)(*self);
      } catch (const std::bad_alloc&) {
        end = [&failed] {
          failed(absl::ResourceExhaustedError("no memory to put the shards' parts together"));
        };
      } catch (const std::exception& error) {
        end = [&failed, what = std::string(error.what())] { failed(absl::InternalError(what)); };
      }
      end();
    });
  } catch (const std::system_error& error) {
    failed(absl::UnavailableError(
        fmt::format("no thread to put the shards' parts together on: {}", error.what())));
  }
}

CallOptions ShardWork::options() const {
  CallOptions options = options_;
  if (deadline_.has_value()) {
    options.timeout = std::max(*deadline_ - std::chrono::steady_clock::now(),
                               std::chrono::steady_clock::duration::zero());
  }
  return options;
}

void ShardWork::Pause(std::chrono::milliseconds time) const {
  auto end = std::chrono::steady_clock::now() + time;
  if (deadline_.has_value()) end = std::min(end, *deadline_);
  for (auto now = std::chrono::steady_clock::now(); now < end && !cancelled_;
       now = std::chrono::steady_clock::now()) {
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(kLook, end - now));
  }
}

}  // namespace client
}  // namespace sparsed
