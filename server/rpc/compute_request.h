// One request of a compute stream: where its call's results go, and what it has yet to send.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/execution/call.h"
#include "engine/memory/tenants.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/array_chunks.h"
#include "server/rpc/connection_share.h"
#include "server/telemetry/in_flight.h"
#include "server/telemetry/stage_record.h"
#include "sparsed/v1/compute.pb.h"

namespace sparsed::server {

class Carrier;
class ComputeStream;

/// A message ready to be written.
struct ComputeWrite {
  grpc::ByteBuffer bytes;
  size_t data_bytes = 0;  ///< of a chunk
  bool is_end = false;
};

/// The engine's worker slots call the sink's methods; everything else, and every member, is guarded
/// by the stream's lock. Kept alive by the stream, and by the call until its end.
class ComputeRequest final : public engine::ResultSink {
 public:
  /// `stream` outlives the request's end. `timeout_ns` is from the record's begin; 0: none.
  ComputeRequest(ComputeStream& stream, uint64_t id, StageRecord record, uint64_t timeout_ns,
                 std::shared_ptr<ConnectionShare> share);

  void OnBegin(engine::CallBegin begin) override;
  void OnArray(uint32_t index, uint64_t offset, Array part) override;
  void OnBlock(engine::ResultBlock block) override;
  void OnEnd(engine::CallEnd end) override;

  uint64_t id() const { return id_; }
  StageRecord& record() { return record_; }
  /// Null before the call was made and after it ended.
  const std::shared_ptr<engine::Call>& call() const { return call_; }
  void set_call(std::shared_ptr<engine::Call> call) { call_ = std::move(call); }

  /// The matrix that an OK end means was made; empty: none.
  std::string publishes;
  /// When an operand's bytes came.
  StageRecord::Clock::time_point last_byte;
  /// All operand bytes are here.
  bool submitted = false;
  /// The call was told to fail: its remaining chunks are not wanted.
  bool failed = false;
  /// Why, if it was to fail before the call was there.
  absl::Status failure;
  /// They carry chunks of it, besides the stream.
  std::vector<const Carrier*> carriers;
  /// Threads that are writing operand bytes.
  int feeding = 0;
  /// Chunks that carriers are writing: an end that is OK waits for them.
  int carried = 0;
  /// The call has ended, or there never was one; the end message may still wait.
  bool ended = false;
  /// For operands, until the call ended.
  ShareHold operands;
  /// Chunks that the stream brought before the call was there: they count as operands.
  std::vector<wire::ChunkView> early;
  /// Adds one; if its connection holds too much, the request is to fail.
  void KeepEarly(wire::ChunkView chunk);
  /// Why a result of it could not be queued: its connection holds too much.
  absl::Status refused;
  /// As one of the tenant's requests in flight.
  engine::TenantHold counted;
  /// As one that waits or is computed: until its result begins.
  engine::TenantHold queued;
  /// Blocks' bytes count against the call's credit until they are written.
  bool holds_credit = false;

  void QueueBegin(engine::CallBegin begin);
  void QueueBlock(engine::ResultBlock block);
  /// Sets `ended`; from then on the record says how it went. Of a call that failed, what is queued
  /// is not wanted any more.
  void QueueEnd(engine::CallEnd end);
  /// Ends the sending of a result that is there already with `status`; nothing if none of it is
  /// queued.
  void EndSending(const absl::Status& status);
  /// The same if the last of it is being written: only the end message may still be queued. The
  /// call has ended.
  void FailSending(const absl::Status& status);
  /// Likewise, with DEADLINE_EXCEEDED, if its time is up; while it runs that is the call's affair.
  void EndIfLate(StageRecord::Clock::time_point now);
  void DropQueue();
  void Count(InFlightTable& table) const;
  bool has_queued() const { return !queue_.empty(); }
  /// The next message is one for the stream to write, now.
  bool may_send() const;
  /// It is one that the carrier may write.
  bool MayCarry(const Carrier& carrier) const;
  bool Uses(const Carrier& carrier) const;
  /// The next message; has_queued(). `by`: a carrier; null: the stream.
  ComputeWrite TakeNext(const Carrier* by = nullptr);

 private:
  using Queued = std::variant<v1::ComputeReply, ArrayChunks, engine::CallEnd>;
  void QueueChunks(uint32_t index, uint64_t offset, Array array);
  grpc::ByteBuffer EncodeEnd(const engine::CallEnd& end);

  ComputeStream& stream_;
  const uint64_t id_;
  StageRecord record_;
  std::shared_ptr<engine::Call> call_;
  std::deque<Queued> queue_;
  int64_t queued_bytes_ = 0;  ///< of its chunks
  int64_t early_bytes_ = 0;
  std::optional<StageRecord::Clock::time_point> deadline_;
  std::optional<v1::Begin> begin_;                            ///< goes with the end
  std::optional<StageRecord::Clock::time_point> first_data_;  ///< when result bytes came
};

}  // namespace sparsed::server
