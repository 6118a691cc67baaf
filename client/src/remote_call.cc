#include "client/src/remote_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sparsed {
inline namespace client {
namespace {

using std::chrono::system_clock;

/// Longer than any write that makes progress.
constexpr std::chrono::seconds kLeaseGrace{1};
/// Most products take less.
constexpr std::chrono::seconds kEndGrace{10};
constexpr std::chrono::seconds kMaxBackoff{2};
/// Nodes that know different things may send a call around for as long as that.
constexpr int kMostRedirects = 16;
/// In a cluster others take over from a node that is gone within 5 s, and another is asked often.
constexpr std::chrono::seconds kFailover{10};
constexpr std::chrono::milliseconds kMaxFailoverBackoff{250};

system_clock::time_point DeadlineOf(const CallOptions& options, const ClientOptions& client) {
  const auto timeout = options.timeout.has_value() ? options.timeout : client.default_timeout;
  // Without a timeout no clock is read.
  if (!timeout.has_value()) return system_clock::time_point::max();
  const auto now = system_clock::now();
  if (*timeout > system_clock::time_point::max() - now) return system_clock::time_point::max();
  return now + std::chrono::duration_cast<system_clock::duration>(*timeout);
}

}  // namespace

RemoteCall::RemoteCall(Connection& connection, const CallOptions& options, Repeat repeat)
    : connection_(&connection),
      deadline_(DeadlineOf(options, connection.options())),
      repeat_(repeat) {}

void RemoteCall::Start() {
  {
    const MutexLock lock(mutex_);
    self_ = shared_from_this();
    ++attempts_;
  }
  if (system_clock::now() < deadline_) {
    RunAttempt();
  } else {  // a quick server might still answer in time
    AttemptEnded(absl::DeadlineExceededError("the call's deadline passed before it began"));
  }
}

void RemoteCall::Cancel(absl::Status reason) {
  const auto keep = shared_from_this();
  bool deliver = false;
  bool stop = false;
  {
    const MutexLock lock(mutex_);
    if (ended_ || stopped_) return;
    stopped_ = std::move(reason);
    if (waiting_) {
      waiting_ = false;
      ended_ = true;
      final_ = *stopped_;
      deliver = ReadyToDeliverLocked();
    } else {
      stop = true;
    }
  }
  if (deliver) DeliverOnce();
  if (stop) StopAttempt();
}

void RemoteCall::MustNotRepeat() {
  const MutexLock lock(mutex_);
  repeat_ = Repeat::kNever;
}

void RemoteCall::SendingClosed() {
  const MutexLock lock(mutex_);
  if (repeat_ == Repeat::kUntilSent) repeat_ = Repeat::kIfRefused;
}

void RemoteCall::MadeProgress() {
  const MutexLock lock(mutex_);
  attempts_ = 1;
  redirects_ = 0;
  lost_.reset();
}

void RemoteCall::AttemptEnded(absl::Status status) { Ended(std::move(status), /*sent=*/true); }

void RemoteCall::Ended(absl::Status status, bool sent) {
  const auto keep = shared_from_this();
  Nodes& nodes = connection().nodes();
  std::optional<std::vector<std::string>> redirect = nodes.Follow(status);
  const bool several = AnyNode() && nodes.several();
  if (several && absl::IsUnavailable(status)) nodes.Forget(connection());
  bool deliver = false;
  bool overdue = false;
  system_clock::duration backoff{};
  std::function<void(const absl::Status&, std::chrono::nanoseconds)> told;
  {
    const MutexLock lock(mutex_);
    if (stopped_ && !status.ok()) status = *stopped_;
    if (absl::IsCancelled(status) && !stopped_) {
      // A server that shuts down resets calls that it has not accepted yet, or that outlived its
      // grace, and gRPC tells that as CANCELLED.
      status = absl::UnavailableError("the server ended the call, as it does when it shuts down");
    }
    if (redirect && redirects_ == kMostRedirects) {
      // Nodes that know of a change, and others that do not yet, send it to each other.
      status = absl::UnavailableError(
          fmt::format("nodes redirected the call {} times, one to the other: {}", redirects_,
                      std::string(status.message())));
      redirect.reset();
      redirects_ = 0;
      sent = false;
    }
    backoff = std::min<system_clock::duration>(
        connection().options().initial_backoff * (1 << std::min(attempts_ - 1, 10)), kMaxBackoff);
    const auto now = system_clock::now();
    elsewhere_ = several && absl::IsUnavailable(status);
    if (elsewhere_) {
      if (!lost_) lost_ = now;
      backoff = std::min<system_clock::duration>(backoff, kMaxFailoverBackoff);
    }
    const bool more =
        attempts_ < connection().options().max_attempts || (elsewhere_ && now - *lost_ < kFailover);
    const auto asked = RetryDelay(status);
    if (asked) backoff = std::max<system_clock::duration>(backoff, *asked);
    const bool harmless = !sent || repeat_ == Repeat::kSafe || repeat_ == Repeat::kUntilSent ||
                          (repeat_ == Repeat::kIfRefused && absl::IsResourceExhausted(status));
    waiting_ = (absl::IsUnavailable(status) || asked) && backoff <= kMaxBackoff && harmless &&
               !stopped_ && more && now + backoff < deadline_;
    if (redirect && !stopped_ && now < deadline_) {
      // Nothing was done there: it is not an attempt that failed.
      ++redirects_;
      asked_.clear();
      waiting_ = true;
      ++leases_;  // GoTo's
    } else {
      redirect.reset();
    }
    if (!waiting_) {
      ended_ = true;
      final_ = Worded(status, connection().address(), connection().options().gateway);
      deliver = ReadyToDeliverLocked();
      overdue = !deliver;
    } else if (!redirect) {
      // Once the lock is released, who cancels may end the call, and the connection with it.
      told = connection().options().on_retry;
    }
  }
  if (redirect) {
    GoTo(*std::move(redirect));
  } else if (deliver) {
    DeliverOnce();
  } else if (overdue) {
    RunAt(system_clock::now() + kLeaseGrace, &RemoteCall::alarm_, &RemoteCall::LeasesOverdue);
  } else {
    if (told) told(status, backoff);
    RunAt(system_clock::now() + backoff, &RemoteCall::alarm_, &RemoteCall::NextAttempt);
  }
}

void RemoteCall::NextAttempt() {
  bool elsewhere = false;
  std::string next;
  {
    const MutexLock lock(mutex_);
    if (!waiting_) return;
    ++attempts_;
    elsewhere = elsewhere_;
    waiting_ = elsewhere;
    if (elsewhere) {
      next = connection().nodes().After(asked_.empty() ? connection().address() : asked_);
      asked_ = next;
      ++leases_;  // GoTo's
    }
  }
  if (elsewhere) return GoTo({next});
  RunAttempt();
}

void RemoteCall::GoTo(std::vector<std::string> addresses) {
  connection().nodes().Connect(std::move(addresses),
                               [self = shared_from_this()](absl::StatusOr<Connection*> there) {
                                 self->WentTo(std::move(there));
                               });
  LeaseEnded();
}

void RemoteCall::WentTo(absl::StatusOr<Connection*> there) {
  {
    const MutexLock lock(mutex_);
    if (!waiting_) return;  // cancelled meanwhile
    waiting_ = false;
  }
  if (!there.ok()) return Ended(there.status(), /*sent=*/false);
  connection_ = *there;
  RunAttempt();
}

void RemoteCall::RunAttempt() {
  StartAttempt();
  bool stop = false;
  {
    const MutexLock lock(mutex_);
    stop = stopped_.has_value();  // while the attempt was not yet there to be stopped
  }
  if (stop) StopAttempt();
}

std::shared_ptr<void> RemoteCall::Lease() {
  {
    const MutexLock lock(mutex_);
    ++leases_;
  }
  return std::shared_ptr<void>(nullptr, [call = shared_from_this()](void*) { call->LeaseEnded(); });
}

void RemoteCall::LeaseEnded() {
  bool deliver = false;
  {
    const MutexLock lock(mutex_);
    --leases_;
    deliver = ReadyToDeliverLocked();
  }
  if (deliver) DeliverOnce();
}

void RemoteCall::LeasesOverdue() {
  {
    const MutexLock lock(mutex_);
    if (leases_ == 0) return;
  }
  BreakTransport();
}

void RemoteCall::AwaitEnd() {
  RunAt(system_clock::now() + kEndGrace, &RemoteCall::alarm_, &RemoteCall::EndOverdue);
}

void RemoteCall::EnforceDeadline() {
  if (has_deadline()) RunAt(deadline_, &RemoteCall::deadline_alarm_, &RemoteCall::DeadlinePassed);
}

void RemoteCall::DeadlinePassed() {
  Cancel(absl::DeadlineExceededError("the call's deadline passed before its result was complete"));
}

void RemoteCall::RunAt(system_clock::time_point time, Alarm RemoteCall::*alarm,
                       void (RemoteCall::*action)()) {
  auto next = std::make_unique<grpc::Alarm>();
  const MutexLock lock(mutex_);
  (this->*alarm).swap(next);
  (this->*alarm)->Set(time, [weak = weak_from_this(), action](bool fired) {
    if (!fired) return;
    if (const auto call = weak.lock()) ((*call).*action)();
  });
}

void RemoteCall::DeliverOnce() {
  std::shared_ptr<RemoteCall> self;  // the state it completes may be the last that refers to it
  absl::Status status;
  {
    const MutexLock lock(mutex_);
    self.swap(self_);
    status = final_;
  }
  if (!self) return;
  if (instead_ && IsInShards(status)) return instead_(status);
  Deliver(std::move(status));
}

}  // namespace client
}  // namespace sparsed
