#include "server/rpc/compute_request.h"

#include <algorithm>
#include <numeric>

#include "proto/wire/chunk_codec.h"
#include "server/rpc/compute_stream.h"
#include "server/rpc/convert.h"

namespace sparsed::server {

ComputeRequest::ComputeRequest(ComputeStream& stream, uint64_t id, StageRecord record,
                               uint64_t timeout_ns, std::shared_ptr<ConnectionShare> share)
    : last_byte(record.begun),
      operands(std::move(share)),
      stream_(stream),
      id_(id),
      record_(std::move(record)) {
  // As for calls, a century is none.
  constexpr uint64_t kLongest = 100ull * 365 * 24 * 3600 * 1000000000;
  if (timeout_ns > 0 && timeout_ns < kLongest) {
    deadline_ = record_.begun + std::chrono::nanoseconds(static_cast<int64_t>(timeout_ns));
  }
}

void ComputeRequest::OnBegin(engine::CallBegin begin) {
  stream_.Queue(*this, [&] { QueueBegin(std::move(begin)); });
}

void ComputeRequest::OnArray(uint32_t index, uint64_t offset, Array part) {
  stream_.Queue(*this, [&] { QueueChunks(index, offset, std::move(part)); });
}

void ComputeRequest::OnBlock(engine::ResultBlock block) {
  stream_.Queue(*this, [&] { QueueBlock(std::move(block)); });
}

void ComputeRequest::OnEnd(engine::CallEnd end) { stream_.QueueEnd(*this, std::move(end)); }

void ComputeRequest::QueueBegin(engine::CallBegin begin) {
  queued = nullptr;
  v1::ComputeReply reply;
  v1::Begin& message = *reply.mutable_begin();
  message.set_request_id(id_);
  message.set_plan(begin.plan);
  record_.plan = std::move(begin.plan);
  message.set_nnz(begin.nnz);
  message.set_rows(begin.rows);
  message.set_cols(begin.cols);
  for (const engine::ArrayFacts& array : begin.arrays) {
    AddArrayHeader(array.name, array.type, array.length, *message.mutable_arrays());
  }
  // With nothing in between, two messages would cost the caller one more turn of the wire.
  if (begin.arrays.empty() && record_.op != Op::kSpgemm) {
    begin_ = std::move(message);
    return;
  }
  queue_.emplace_back(std::move(reply));
}

void ComputeRequest::QueueChunks(uint32_t index, uint64_t offset, Array array) {
  if (array.bytes() == 0 || !refused.ok()) return;
  // The result may be an operand's memory.
  operands.Clear();
  absl::StatusOr<Buffer> held = operands.share().Hold(std::move(array.buffer));
  if (!held.ok()) {
    refused = held.status();
    return;
  }
  array.buffer = *std::move(held);
  if (!first_data_.has_value()) first_data_ = StageRecord::Clock::now();
  queued_bytes_ += static_cast<int64_t>(array.bytes());
  queue_.emplace_back(ArrayChunks(id_, index, offset, std::move(array)));
}

void ComputeRequest::QueueBlock(engine::ResultBlock block) {
  holds_credit = true;
  v1::ComputeReply reply;
  v1::RowBlock& message = *reply.mutable_block();
  message.set_request_id(id_);
  message.set_row_begin(block.rows.begin);
  message.set_rows(block.rows.end - block.rows.begin);
  message.set_nnz_begin(block.nnz_begin);
  message.set_nnz(block.column_indices.length);
  queue_.emplace_back(std::move(reply));
  const auto offset = [](int64_t element, const Array& array) {
    return static_cast<uint64_t>(element) * SizeOf(array.type);
  };
  const uint64_t offsets_at = offset(block.rows.begin + 1, block.row_offsets);
  const uint64_t columns_at = offset(block.nnz_begin, block.column_indices);
  const uint64_t values_at = offset(block.nnz_begin, block.values);
  QueueChunks(0, offsets_at, std::move(block.row_offsets));
  QueueChunks(1, columns_at, std::move(block.column_indices));
  QueueChunks(2, values_at, std::move(block.values));
}

void ComputeRequest::QueueEnd(engine::CallEnd end) {
  queued = nullptr;
  ended = true;
  call_.reset();
  operands.Clear();
  if (end.status.ok()) end.status = refused;
  record_[Phase::kQueue] = end.timings.queue_ns;
  record_.queue_trials_ns = end.timings.queue_trials_ns;
  record_.queue_others_ns = end.timings.queue_others_ns;
  record_[Phase::kSetup] = end.timings.setup_ns;
  record_[Phase::kToDevice] = end.timings.to_device_ns;
  record_[Phase::kKernel] = end.timings.kernel_ns;
  record_[Phase::kFromDevice] = end.timings.from_device_ns;
  record_.status = end.status;
  if (!end.status.ok()) {
    record_.held_bytes_in = record_.held_bytes_out = 0;
    record_.shared_bytes_in = record_.shared_bytes_out = 0;
    record_.gpu_bytes_in = record_.gpu_bytes_out = 0;
    DropQueue();
  }
  queue_.emplace_back(std::move(end));
}

void ComputeRequest::DropQueue() {
  queue_.clear();
  queued_bytes_ = 0;
}

void ComputeRequest::Count(InFlightTable& table) const {
  const bool sending = ended || queued_bytes_ > 0;
  const Activity activity = sending     ? Activity::kSending
                            : submitted ? Activity::kWorking
                                        : Activity::kReceiving;
  table[{record_.op, activity}].Add(
      sending ? queued_bytes_ : static_cast<int64_t>(record_.received_bytes), record_);
}

void ComputeRequest::EndIfLate(StageRecord::Clock::time_point now) {
  if (!deadline_.has_value() || now < *deadline_) return;
  EndSending(absl::DeadlineExceededError("the request's time was up before its result was taken"));
}

void ComputeRequest::KeepEarly(wire::ChunkView chunk) {
  early_bytes_ += static_cast<int64_t>(chunk.size);
  absl::Status room = operands.GrowTo(early_bytes_);
  if (room.ok()) return early.push_back(std::move(chunk));
  early.clear();
  failed = true;
  if (failure.ok()) failure = std::move(room);
}

void ComputeRequest::EndSending(const absl::Status& status) {
  const bool sending = std::ranges::any_of(
      queue_, [](const Queued& queued) { return std::holds_alternative<ArrayChunks>(queued); });
  if (ended && sending) FailSending(status);
}

void ComputeRequest::FailSending(const absl::Status& status) {
  Queued end = std::move(queue_.back());
  DropQueue();
  record_.status = status;
  std::get<engine::CallEnd>(end).status = status;
  queue_.push_back(std::move(end));
}

bool ComputeRequest::may_send() const {
  if (queue_.empty()) return false;
  const auto* const end = std::get_if<engine::CallEnd>(&queue_.front());
  return end == nullptr || carried == 0 || !end->status.ok();
}

bool ComputeRequest::MayCarry(const Carrier& carrier) const {
  return !queue_.empty() && std::holds_alternative<ArrayChunks>(queue_.front()) && Uses(carrier);
}

bool ComputeRequest::Uses(const Carrier& carrier) const {
  return std::ranges::find(carriers, &carrier) != carriers.end();
}

ComputeWrite ComputeRequest::TakeNext(const Carrier* by) {
  ComputeWrite write;
  Queued& next = queue_.front();
  if (auto* chunks = std::get_if<ArrayChunks>(&next)) {
    write.bytes = chunks->Next(&write.data_bytes);
    record_.stream_bytes_out += write.data_bytes;
    if (by != nullptr) record_.carried_bytes_out += write.data_bytes;
    queued_bytes_ -= static_cast<int64_t>(write.data_bytes);
    if (!chunks->done()) return write;
  } else if (const auto* end = std::get_if<engine::CallEnd>(&next)) {
    write.is_end = true;
    write.bytes = EncodeEnd(*end);
  } else {
    write.bytes = wire::Encode(std::get<v1::ComputeReply>(next));
  }
  queue_.pop_front();
  return write;
}

grpc::ByteBuffer ComputeRequest::EncodeEnd(const engine::CallEnd& end) {
  // All that came before has been written: a stream has one write outstanding, and it waited for
  // those of carriers.
  if (first_data_.has_value()) record_[Phase::kSend] = NanosecondsSince(*first_data_);
  record_.batch = end.batch;
  record_.total_ns = NanosecondsSince(record_.begun);
  // What no phase has: before the call was handed to the engine, or a thread was there for it.
  const uint64_t known =
      std::accumulate(record_.phase_ns.begin(), record_.phase_ns.end(), uint64_t{0});
  if (record_.status.ok() && record_.total_ns > known) {
    record_[Phase::kSetup] += record_.total_ns - known;
  }

  v1::ComputeReply reply;
  v1::End& message = *reply.mutable_end();
  message.set_request_id(id_);
  ToProto(end.status, *message.mutable_status());
  ToProto(record_, *message.mutable_timings());
  message.set_nnz(end.nnz);
  message.set_version(end.version);
  for (const engine::StepEnd& step : end.steps) {
    v1::StepReport& report = *message.add_steps();
    report.set_plan(step.plan);
    report.set_duration_ns(step.nanoseconds);
  }
  if (end.status.ok()) message.set_batch(end.batch);
  if (begin_.has_value() && end.status.ok()) *message.mutable_begin() = *std::move(begin_);
  return wire::Encode(reply);
}

}  // namespace sparsed::server
