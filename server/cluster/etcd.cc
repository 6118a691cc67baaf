#include "server/cluster/etcd.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "etcd/etcd.grpc.pb.h"

namespace sparsed::server {
namespace {

namespace pb = etcdserverpb;

/// For one endpoint's answer; a member that has no leader answers later than that.
constexpr auto kPatience = std::chrono::milliseconds(1500);
constexpr int kMostMessageBytes = 64 << 20;

/// What comes after all keys that begin with `prefix`.
std::string EndOf(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

Directory::Entry EntryOf(const pb::KeyValue& pair) {
  return {pair.key(), pair.value(), pair.mod_revision()};
}

class Etcd final : public Directory {
 public:
  Etcd(const std::vector<std::string>& endpoints,
       const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : endpoints_(endpoints) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // A watch says nothing for long: a member that vanished without a word is noticed by this.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetMaxReceiveMessageSize(kMostMessageBytes);
    for (const std::string& endpoint : endpoints) {
      members_.push_back(
          std::make_unique<Member>(grpc::CreateCustomChannel(endpoint, credentials, arguments)));
    }
  }

  absl::StatusOr<Contents> Get(const std::string& key) override {
    pb::RangeRequest request;
    request.set_key(key);
    pb::RangeResponse response;
    absl::Status status = Ask([&](Member& member, grpc::ClientContext& context) {
      response.Clear();
      return member.kv->Range(&context, request, &response);
    });
    if (!status.ok()) return status;
    Contents contents;
    contents.revision = response.header().revision();
    for (const pb::KeyValue& pair : response.kvs()) contents.entries.push_back(EntryOf(pair));
    return contents;
  }

  absl::StatusOr<Contents> Read(const std::string& prefix) override {
    constexpr int64_t kPage = 1000;
    Contents contents;
    std::string from = prefix;
    while (true) {
      pb::RangeRequest request;
      request.set_key(from);
      request.set_range_end(EndOf(prefix));
      request.set_limit(kPage);
      // All pages of one moment.
      request.set_revision(contents.revision);
      pb::RangeResponse response;
      absl::Status status = Ask([&](Member& member, grpc::ClientContext& context) {
        response.Clear();
        return member.kv->Range(&context, request, &response);
      });
      if (!status.ok()) return status;
      if (contents.revision == 0) contents.revision = response.header().revision();
      for (const pb::KeyValue& pair : response.kvs()) contents.entries.push_back(EntryOf(pair));
      if (!response.more() || response.kvs().empty()) return contents;
      from = response.kvs().rbegin()->key() + '\0';
    }
  }

  absl::StatusOr<int64_t> Apply(const std::vector<Change>& changes) override {
    pb::TxnRequest request;
    for (const Change& change : changes) {
      if (change.if_revision.has_value()) {
        pb::Compare& compare = *request.add_compare();
        compare.set_target(pb::Compare::MOD);
        compare.set_result(pb::Compare::EQUAL);
        compare.set_key(change.key);
        compare.set_mod_revision(*change.if_revision);
      }
      pb::RequestOp& op = *request.add_success();
      if (change.value.has_value()) {
        op.mutable_request_put()->set_key(change.key);
        op.mutable_request_put()->set_value(*change.value);
        op.mutable_request_put()->set_lease(change.lease);
      } else {
        op.mutable_request_delete_range()->set_key(change.key);
      }
    }
    pb::TxnResponse response;
    int asked = 0;
    absl::Status status = Ask([&](Member& member, grpc::ClientContext& context) {
      response.Clear();
      ++asked;
      return member.kv->Txn(&context, request, &response);
    });
    if (!status.ok()) return status;
    // The member that did not answer may have done it.
    if (!response.succeeded() && asked > 1) {
      return absl::UnavailableError(
          "a member of etcd did not answer: whether the change was made is not known");
    }
    if (!response.succeeded()) {
      return absl::AbortedError("another node has changed it in the directory meanwhile");
    }
    return response.header().revision();
  }

  absl::Status Watch(const std::string& prefix, int64_t revision,
                     const std::function<void(const std::vector<Event>&)>& on_events,
                     const std::stop_token& stop) override {
    grpc::ClientContext context;
    // A member that is cut off from the others ends the watch then, rather than to say nothing.
    context.AddMetadata("hasleader", "true");
    Member& member = Present();
    const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
    const Watching watching(member, context);
    const auto stream = member.watch->Watch(&context);
    pb::WatchRequest request;
    request.mutable_create_request()->set_key(prefix);
    request.mutable_create_request()->set_range_end(EndOf(prefix));
    request.mutable_create_request()->set_start_revision(revision);
    stream->Write(request);
    pb::WatchResponse response;
    absl::Status end;
    while (stream->Read(&response)) {
      if (response.compact_revision() != 0) {
        end = absl::OutOfRangeError("etcd has compacted changes that were not seen");
      } else if (response.canceled()) {
        end = absl::UnavailableError(
            fmt::format("etcd ended the watch: {}", response.cancel_reason()));
      }
      if (!end.ok()) break;
      std::vector<Event> events;
      for (const pb::Event& event : response.events()) {
        events.push_back({EntryOf(event.kv()), event.type() == pb::Event::DELETE});
      }
      if (!events.empty()) on_events(events);
    }
    context.TryCancel();
    const grpc::Status status = stream->Finish();
    if (stop.stop_requested()) return absl::OkStatus();
    if (!end.ok()) return end;
    Next(member);
    return absl::UnavailableError(
        fmt::format("the watch of etcd broke: {}", status.error_message()));
  }

  absl::StatusOr<int64_t> Grant(int64_t seconds) override {
    pb::LeaseGrantRequest request;
    request.set_ttl(seconds);
    pb::LeaseGrantResponse response;
    absl::Status status = Ask([&](Member& member, grpc::ClientContext& context) {
      response.Clear();
      return member.lease->LeaseGrant(&context, request, &response);
    });
    if (!status.ok()) return status;
    if (!response.error().empty())
      return absl::UnavailableError(fmt::format("etcd: {}", response.error()));
    return response.id();
  }

  absl::Status KeepAlive(int64_t lease) override {
    pb::LeaseKeepAliveRequest request;
    request.set_id(lease);
    pb::LeaseKeepAliveResponse response;
    absl::Status status = Ask([&](Member& member, grpc::ClientContext& context) {
      response.Clear();
      const auto stream = member.lease->LeaseKeepAlive(&context);
      const bool answered = stream->Write(request) && stream->Read(&response);
      stream->WritesDone();
      if (answered) context.TryCancel();  // etcd ends it when it likes
      const grpc::Status end = stream->Finish();
      return answered   ? grpc::Status::OK
             : end.ok() ? grpc::Status(grpc::UNAVAILABLE, "no answer")
                        : end;
    });
    if (!status.ok()) return status;
    return response.ttl() > 0 ? absl::OkStatus() : absl::NotFoundError("the lease has ended");
  }

  absl::Status Revoke(int64_t lease) override {
    pb::LeaseRevokeRequest request;
    request.set_id(lease);
    return Ask([&](Member& member, grpc::ClientContext& context) {
      pb::LeaseRevokeResponse response;
      return member.lease->LeaseRevoke(&context, request, &response);
    });
  }

 private:
  struct Member {
    explicit Member(const std::shared_ptr<grpc::Channel>& channel)
        : kv(pb::KV::NewStub(channel)),
          watch(pb::Watch::NewStub(channel)),
          lease(pb::Lease::NewStub(channel)) {}
    const std::unique_ptr<pb::KV::Stub> kv;
    const std::unique_ptr<pb::Watch::Stub> watch;
    const std::unique_ptr<pb::Lease::Stub> lease;
    Mutex mutex;
    std::set<grpc::ClientContext*> watches ABSL_GUARDED_BY(mutex);  ///< under way
  };
  /// A watch at a member.
  class Watching {
   public:
    Watching(Member& member, grpc::ClientContext& context) : member_(member), context_(context) {
      const MutexLock lock(member_.mutex);
      member_.watches.insert(&context_);
    }
    ~Watching() {
      const MutexLock lock(member_.mutex);
      member_.watches.erase(&context_);
    }
    Watching(const Watching&) = delete;
    Watching& operator=(const Watching&) = delete;

   private:
    Member& member_;
    grpc::ClientContext& context_;
  };

  Member& Present() { return *members_[present_ % members_.size()]; }
  /// Others are asked from now on, unless that has happened; and watched: one that does not answer
  /// may not tell what happens either.
  void Next(Member& failed) {
    size_t present = present_;
    if (members_[present % members_.size()].get() == &failed) {
      present_.compare_exchange_strong(present, present + 1);
    }
    const MutexLock lock(failed.mutex);
    for (grpc::ClientContext* const context : failed.watches) context->TryCancel();
  }

  /// Asks one member after the other until one answers.
  template <typename Call>
  absl::Status Ask(const Call& call) {
    grpc::Status last;
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& member = Present();
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kPatience);
      // While nobody waits, no thread brings a new connection about.
      context.set_wait_for_ready(true);
      last = call(member, context);
      if (last.ok()) return absl::OkStatus();
      const bool away =
          last.error_code() == grpc::UNAVAILABLE || last.error_code() == grpc::DEADLINE_EXCEEDED;
      if (!away) break;
      Next(member);
    }
    // etcd's own words say nothing of what to do.
    if (last.error_code() == grpc::RESOURCE_EXHAUSTED &&
        last.error_message().find("database space exceeded") != std::string::npos) {
      return absl::UnavailableError(fmt::format(
          "etcd at {} is full (NOSPACE) and refuses to write: compact and defragment it (etcdctl "
          "compact, etcdctl defrag), or raise --quota-backend-bytes, then etcdctl alarm disarm",
          fmt::join(endpoints_, ", ")));
    }
    return absl::UnavailableError(fmt::format("etcd does not answer at {}: {}",
                                              fmt::join(endpoints_, ", "), last.error_message()));
  }

  const std::vector<std::string> endpoints_;
  std::vector<std::unique_ptr<Member>> members_;
  std::atomic<size_t> present_ = 0;
};

}  // namespace

std::unique_ptr<Directory> OpenEtcd(const std::vector<std::string>& endpoints,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  return std::make_unique<Etcd>(endpoints, credentials);
}

}  // namespace sparsed::server
