// The reactor of Compute.Carry: one connection more for the chunks of a compute stream's requests.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/connection_share.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/reactors.h"

namespace sparsed::server {

class ComputeStream;

/// Belongs to the stream that names it first, and ends with it. A chunk whose request is not there
/// yet waits here, and nothing is read behind it. Keeps itself until its call is done; its stream
/// may keep it longer. Thread-safe: streams' locks are taken before its own, and it calls its
/// stream without.
class Carrier final : public BytesBidiReactor,
                      public LiveStream,
                      public std::enable_shared_from_this<Carrier> {
 public:
  static BytesBidiReactor* Start(const ServiceContext& service,
                                 grpc::CallbackServerContext* context, const Caller& caller);
  Carrier(const ServiceContext& service, grpc::CallbackServerContext* context,
          const Caller& caller);

  const std::string& name() const { return name_; }
  const std::string& tenant() const { return caller()->tenant; }

  // For its stream.

  /// From now on it is that stream's: `*writing` until the stream hears of CarrierReady.
  /// FAILED_PRECONDITION if it is another's, UNAVAILABLE if it has ended.
  absl::Status Join(std::shared_ptr<ComputeStream> stream, bool* writing);
  /// Until Resume: the chunk's request is not there yet. RESOURCE_EXHAUSTED if its connection holds
  /// too much.
  absl::Status Keep(wire::ChunkView chunk);
  /// A request has come.
  void Resume();
  /// Writes a message, if it has not ended; the one before is written.
  void Write(grpc::ByteBuffer bytes);
  /// Ends it; its stream is told, if it is not the one that ends it.
  void End(absl::Status status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void OnRefused(const absl::Status& why) override { End(why); }
  void OnDrain() override;
  void OnTick(const Patience& patience) override;

 private:
  void Begin();
  absl::Status WhyGone();
  void Take(wire::ChunkView chunk);
  void StartWriting(grpc::ByteBuffer bytes);
  absl::Status KeepLocked(wire::ChunkView chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  const std::string name_;
  std::shared_ptr<Carrier> self_;  ///< until its call is done
  grpc::ByteBuffer in_;
  grpc::ByteBuffer out_;  ///< while `writing_`, of who writes

  Mutex mutex_;
  std::shared_ptr<ComputeStream> stream_ ABSL_GUARDED_BY(mutex_);  ///< null: nobody's, or no more
  std::optional<wire::ChunkView> waiting_ ABSL_GUARDED_BY(mutex_);
  Patience::Clock::time_point waiting_since_ ABSL_GUARDED_BY(mutex_);
  ShareHold held_ ABSL_GUARDED_BY(mutex_);  ///< for `waiting_`, of its own connection
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  Patience::Clock::time_point write_began_ ABSL_GUARDED_BY(mutex_);
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);  ///< not OK: by us, as its client took nothing
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;      ///< with `status_`
  bool forgotten_ ABSL_GUARDED_BY(mutex_) = false;  ///< by the others, after its end
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

/// Those that have not ended. Thread-safe.
class Carriers {
 public:
  void Add(std::shared_ptr<Carrier> carrier);
  void Remove(const std::string& name);
  /// UNAVAILABLE; another tenant's are not known, either.
  absl::StatusOr<std::shared_ptr<Carrier>> Find(const std::string& tenant,
                                                const std::string& name) const;

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Carrier>> carriers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::server
