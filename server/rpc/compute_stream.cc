#include "server/rpc/compute_stream.h"

#include <fmt/format.h>
#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <algorithm>
#include <memory>

#include "engine/engine.h"
#include "engine/retry.h"
#include "server/rpc/admit.h"
#include "server/rpc/convert.h"
#include "server/rpc/receive_chunk.h"
#include "server/rpc/routes.h"
#include "server/rpc/worker_pool.h"
#include "server/security/access.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {
namespace {

constexpr size_t kRememberedFailures = 1024;
/// Of one stream.
constexpr size_t kMostCarriers = engine::Tenant::kCarriers;

/// Calls `operand` and `result` with every OperandSpec and ResultSpec of a request.
template <typename Operand, typename Result>
void ForEachPlace(const ComputeSpec& spec, const Operand& operand, const Result& result) {
  if (const auto* spmm = std::get_if<engine::SpmmSpec>(&spec)) {
    operand(spmm->b);
    if (spmm->accumulate.has_value()) operand(*spmm->accumulate);
    if (spmm->values.has_value()) operand(*spmm->values);
    result(spmm->result);
  } else if (const auto* sddmm = std::get_if<engine::SddmmSpec>(&spec)) {
    operand(sddmm->a);
    operand(sddmm->b);
    if (sddmm->values.has_value()) operand(*sddmm->values);
    result(sddmm->result);
  } else if (const auto* chain = std::get_if<engine::ChainSpec>(&spec)) {
    for (const engine::OperandSpec& of : chain->operands) operand(of);
    for (const engine::ChainSpec::Result& of : chain->results) result(of.place);
  }
}

/// Bytes of operands and results that do not come and go in the stream, for the record.
void CountBytes(engine::Engine& engine, const ComputeSpec& spec, StageRecord& record) {
  const auto bytes_of = [](const engine::DenseShape& shape) {
    return static_cast<uint64_t>(shape.rows) * static_cast<uint64_t>(shape.cols) *
           SizeOf(shape.type);
  };
  const auto held = [&](const std::string& name) -> uint64_t {
    if (name.empty()) return 0;
    const auto found = engine.dense().Find(record.tenant, name);
    if (!found.ok()) return 0;
    const engine::DenseShape& shape = (*found)->shape;
    return static_cast<uint64_t>(shape.elements()) * SizeOf(shape.type);
  };
  const auto operand = [&](const engine::OperandSpec& of) {
    record.held_bytes_in += held(of.held);
    if (of.shared.size() == 0 || !of.shape) return;
    const bool host = of.shared_on.kind == DeviceKind::kCpu;
    (host ? record.shared_bytes_in : record.gpu_bytes_in) += bytes_of(*of.shape);
  };
  const auto result = [&](const engine::ResultSpec& of) {
    record.held_bytes_out += held(of.held);
    if (of.shared.size() == 0 || !of.shape) return;
    const bool host = of.shared_on.kind == DeviceKind::kCpu;
    (host ? record.shared_bytes_out : record.gpu_bytes_out) += bytes_of(*of.shape);
  };
  ForEachPlace(spec, operand, result);
}

/// INVALID_ARGUMENT if arrays would have to come or go with its messages.
absl::Status CheckNoArrays(const ComputeSpec& spec) {
  bool arrays = false;
  const auto look = [&](const auto& of) {
    arrays = arrays || (of.held.empty() && of.shared.size() == 0);
  };
  ForEachPlace(spec, look, look);
  if (!arrays) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a ring carries no arrays: operands and results of its requests are held, or lie in shared "
      "memory");
}

/// The name of what it makes that stays on the server, as a buffer or another; of several the
/// first. Empty: nothing stays.
std::string KeptResult(const ComputeSpec& spec) {
  std::string kept;
  ForEachPlace(
      spec, [](const engine::OperandSpec&) {},
      [&](const engine::ResultSpec& of) {
        if (kept.empty()) kept = of.held;
      });
  const auto* spgemm = std::get_if<engine::SpgemmSpec>(&spec);
  return spgemm == nullptr ? kept : spgemm->keep_as;
}

/// Columns of an operand; 0: nobody knows any of that name.
int64_t ColumnsOf(engine::Engine& engine, const std::string& tenant,
                  const engine::OperandSpec& operand) {
  if (operand.shape.has_value()) return operand.shape->cols;
  const auto held = engine.dense().Find(tenant, operand.held);
  return held.ok() ? (*held)->shape.cols : 0;
}

/// What the record has of the request, for who looks at slow ones.
void Describe(engine::Engine& engine, const ComputeSpec& spec, StageRecord& record) {
  std::string& text = record.parameters;
  const auto add = [&text](bool there, std::string_view word) {
    if (there) text += fmt::format("{}{}", text.empty() ? "" : " ", word);
  };
  if (const auto* spmm = std::get_if<engine::SpmmSpec>(&spec)) {
    record.k = ColumnsOf(engine, record.tenant, spmm->b);
    record.transposed = spmm->transpose;
    add(spmm->transpose, "transpose");
    if (spmm->alpha != 1) add(true, fmt::format("alpha={}", spmm->alpha));
    if (spmm->beta != 0) add(true, fmt::format("beta={}", spmm->beta));
    add(spmm->allow_tf32, "allow_tf32");
    add(spmm->values.has_value(), "values");
  } else if (const auto* sddmm = std::get_if<engine::SddmmSpec>(&spec)) {
    record.k = ColumnsOf(engine, record.tenant, sddmm->b);
    add(sddmm->unscaled, "unscaled");
    add(sddmm->values.has_value(), "values");
  } else if (const auto* spgemm = std::get_if<engine::SpgemmSpec>(&spec)) {
    // Of what the wire says so far, which may be no name.
    text = fmt::format("right={:.255}", spgemm->right);
    add(spgemm->transpose_left, "transpose_left");
    add(spgemm->transpose_right, "transpose_right");
    if (spgemm->semiring != Semiring::kSumProduct) {
      add(true, fmt::format("semiring={}", Name(spgemm->semiring)));
    }
    if (!spgemm->mask.empty()) add(true, fmt::format("mask={:.255}", spgemm->mask));
    add(spgemm->count_first, "count_first");
  } else if (const auto* chain = std::get_if<engine::ChainSpec>(&spec)) {
    text = fmt::format("{} steps", chain->steps.size());
    if (!chain->operands.empty()) {
      record.k = ColumnsOf(engine, record.tenant, chain->operands.front());
    }
  }
}

uint64_t TimeoutOf(const ComputeSpec& spec) {
  return std::visit([](const auto& of_an_operation) { return of_an_operation.timeout_ns; }, spec);
}

/// What a client that closed its side may have left out.
absl::Status ClosedEarly() {
  return absl::InvalidArgumentError(
      "the stream was closed before all bytes of the operands had come");
}

}  // namespace

ComputeStream::ComputeStream(const ServiceContext& service, const Caller& caller,
                             std::shared_ptr<ConnectionShare> share, ComputeTransport& transport)
    : LiveStream(caller),
      service_(service),
      transport_(transport),
      account_(service.engine.tenants().Of(tenant_)),
      max_requests_(static_cast<size_t>(service.config.max_requests_per_stream)),
      share_(std::move(share)) {}

void ComputeStream::Begin() {
  Todo todo;
  todo.read = service_.live_streams.Add(this);
  {
    const MutexLock lock(mutex_);
    if (!todo.read) draining_ = true;
    handling_ = false;
    Proceed(todo);
  }
  Do(std::move(todo));
}

void ComputeStream::OnDone() { service_.live_streams.Remove(this); }

void ComputeStream::OnRefused(const absl::Status& why) {
  Todo todo;
  {
    const MutexLock lock(mutex_);
    if (finished_) return;
    Abandon(why, todo);
    // What is being written may wait for a client that takes nothing.
    if (writing_ && !cancelled_) {
      cancelled_ = true;
      transport_.Cancel(why);
    }
    Proceed(todo);
  }
  Do(std::move(todo));
}

bool ComputeStream::OnMessage(Op op, grpc::ByteBuffer bytes) {
  {
    const MutexLock lock(mutex_);
    handling_ = true;
  }
  auto message = DecodeComputeMessage(op, tenant_, service_.regions, bytes);
  bytes.Clear();
  const bool begins = message.ok() && std::holds_alternative<ComputeStart>(*message);
  Handled(message.ok() ? Handle(op, *std::move(message)) : absl::Status(message.status()));
  return begins;
}

void ComputeStream::Handled(const absl::Status& status) {
  Todo todo;
  {
    const MutexLock lock(mutex_);
    handling_ = false;
    if (finished_) return;
    if (!status.ok()) {
      reads_done_ = true;
      Abandon(status, todo);
    } else if (refused_ > max_requests_) {
      read_paused_ = true;
    } else {
      todo.read = true;
    }
    Proceed(todo);
  }
  Do(std::move(todo));
}

void ComputeStream::OnReadsDone(const absl::Status& why) {
  Todo todo;
  {
    const MutexLock lock(mutex_);
    handling_ = false;
    if (finished_) return;
    reads_done_ = true;
    if (!why.ok()) Abandon(why, todo);
    if (transport_.IsCancelled()) Abandon(absl::CancelledError("the client is gone"), todo);
    for (const auto& [id, request] : requests_) {
      // Of those with carriers, bytes may still come by these; of those whose call is yet to come
      // none may be missing.
      if (request->submitted || abandoned_ || !request->carriers.empty()) continue;
      if (request->call() != nullptr) Stop(*request, ClosedEarly(), todo);
    }
    Proceed(todo);
  }
  Do(std::move(todo));
}

void ComputeStream::OnWritten(bool ok) {
  Todo todo;
  {
    const MutexLock lock(mutex_);
    writing_ = false;
    todo.credit_of = std::move(credit_of_);
    todo.credit = credit_;
    if (!ok) Abandon(absl::CancelledError("the client is gone"), todo);
    if (read_paused_ && refused_ <= max_requests_ && !finished_) {
      read_paused_ = false;
      todo.read = true;
    }
    Proceed(todo);
  }
  Do(std::move(todo));
}

void ComputeStream::OnCancel() {
  Todo todo;
  {
    const MutexLock lock(mutex_);
    Abandon(absl::CancelledError("the client is gone"), todo);
    Proceed(todo);
  }
  Do(std::move(todo));
}

void ComputeStream::OnDrain() {
  Todo todo;
  {
    const MutexLock lock(mutex_);
    draining_ = true;
    Proceed(todo);
  }
  Do(std::move(todo));
}

void ComputeStream::OnTick(const Patience& patience) {
  Todo todo;
  {
    const MutexLock lock(mutex_);
    if (finished_) return;
    if (writing_ && !cancelled_ && patience.IsOver(write_began_, patience.send)) {
      const absl::Status status = patience.NothingTaken(
          fmt::format("the reader took nothing of the results of {} requests", requests_.size()));
      Abandon(status, todo);
      cancelled_ = true;
      transport_.Cancel(status);
    }
    EndLate(patience.now);
    StopSilent(patience, todo);
    Proceed(todo);
  }
  Do(std::move(todo));
}

void ComputeStream::StopSilent(const Patience& patience, Todo& todo) {
  if (abandoned_ || handling_ || read_paused_) return;
  for (const auto& [id, request] : requests_) {
    if (request->submitted || request->failed || request->call() == nullptr) continue;
    if (request->feeding > 0) continue;
    // One that was only announced holds nothing, and may wait for the operands of those before it.
    // Shared memory is held from the start.
    const StageRecord& record = request->record();
    const bool begun = record.received_bytes > 0;
    const bool holds = begun || record.shared_bytes_in > 0 || record.shared_bytes_out > 0 ||
                       record.gpu_bytes_in > 0 || record.gpu_bytes_out > 0;
    const auto since = holds ? request->last_byte : read_began_;
    if (!(patience.draining && !begun) && !patience.IsOver(since, patience.receive)) continue;
    Stop(*request, patience.NothingReceived(request->call()->Missing() + ", and nothing more came"),
         todo);
  }
}

void ComputeStream::EndLate(Patience::Clock::time_point now) {
  for (const auto& [id, request] : requests_) request->EndIfLate(now);
}

void ComputeStream::Count(InFlightTable& table) {
  const MutexLock lock(mutex_);
  for (const auto& [id, request] : requests_) request->Count(table);
}

absl::Status ComputeStream::Handle(Op op, ComputeMessage message) {
  if (auto* chunk = std::get_if<wire::ChunkView>(&message)) {
    if (!transport_.is_ring()) return Receive(*chunk, nullptr, nullptr);
    return absl::InvalidArgumentError("a ring carries no chunks");
  }
  if (auto* start = std::get_if<ComputeStart>(&message)) {
    if (transport_.is_ring() && start->spec.ok()) {
      if (absl::Status s = CheckNoArrays(*start->spec); !s.ok()) start->spec = std::move(s);
    }
    Open(op, std::move(*start));
    ResumeCarriers();
  } else {
    Cancel(std::get<ComputeCancel>(message));
  }
  return absl::OkStatus();
}

absl::Status ComputeStream::Admit(const ComputeStart& start, ComputeRequest& request, Todo& todo) {
  if (abandoned_) return status_;
  if (draining_) return absl::UnavailableError("the server is shutting down");
  const auto same = requests_.find(start.request_id);
  if (same != requests_.end()) {
    // Replies and chunks of two requests of one id cannot be told apart: the first ends, too.
    absl::Status status = absl::InvalidArgumentError(
        fmt::format("request id {} was still in flight when it was used again; both requests end",
                    start.request_id));
    Stop(*same->second, status, todo);
    return status;
  }
  if (absl::Status status = service_.access.Check(*caller()); !status.ok()) return status;
  if (!start.spec.ok()) return start.spec.status();
  request.record().keeps = KeptResult(*start.spec);
  if (!request.record().keeps.empty()) {
    if (absl::Status status = MayKeepResults(service_, *caller()); !status.ok()) return status;
  }
  if (requests_.size() >= max_requests_) {
    return engine::RetryLater(absl::ResourceExhaustedError(
        fmt::format("{} requests are in flight on this stream, at most {} may be; wait for an end",
                    requests_.size(), max_requests_)));
  }
  if (absl::Status status = CountRequest(account_, *caller()); !status.ok()) return status;
  absl::StatusOr<engine::TenantHold> counted = account_.Hold(engine::Quota::kRequests);
  if (!counted.ok()) return counted.status();
  request.counted = *std::move(counted);
  return Join(start.carriers, request);
}

absl::Status ComputeStream::Join(const std::vector<std::string>& carriers,
                                 ComputeRequest& request) {
  if (carriers.size() > kMostCarriers) {
    return absl::InvalidArgumentError(
        fmt::format("a request has at most {} carriers, not {}", kMostCarriers, carriers.size()));
  }
  for (const std::string& name : carriers) {
    auto joined = std::ranges::find_if(
        carriers_, [&](const Joined& other) { return other.carrier->name() == name; });
    if (joined == carriers_.end()) {
      absl::StatusOr<std::shared_ptr<Carrier>> carrier = service_.carriers.Find(tenant_, name);
      if (!carrier.ok()) return carrier.status();
      if (carriers_.size() >= kMostCarriers) {
        return absl::InvalidArgumentError(
            fmt::format("a stream has at most {} carriers", kMostCarriers));
      }
      bool writing = false;
      if (absl::Status s = (*carrier)->Join(shared_from_this(), &writing); !s.ok()) return s;
      waiting_.push_back(*carrier);
      joined = carriers_.insert(carriers_.end(), Joined{*std::move(carrier), writing, nullptr});
    }
    if (!request.Uses(*joined->carrier)) request.carriers.push_back(joined->carrier.get());
  }
  return absl::OkStatus();
}

void ComputeStream::ResumeCarriers() {
  std::vector<std::shared_ptr<Carrier>> waiting;
  {
    const MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  for (const std::shared_ptr<Carrier>& carrier : waiting) carrier->Resume();
}

absl::StatusOr<std::shared_ptr<engine::Call>> ComputeStream::BeginCall(
    ComputeSpec& spec, const std::shared_ptr<ComputeRequest>& request, bool waited) {
  const auto until = TimeoutOf(spec) == 0
                         ? Patience::Clock::time_point::max()
                         : request->record().begun + std::chrono::nanoseconds(TimeoutOf(spec));
  const auto stopped = [&] {
    const MutexLock lock(mutex_);
    return abandoned_ || !request->failure.ok() || Patience::Clock::now() > until;
  };
  const TraceScope trace(request->record().trace);
  // It may have waited for a thread that waits for other nodes.
  absl::Status here = waited && stopped() ? absl::CancelledError("it was stopped before it began")
                                          : RoutedProduct(service_, tenant_, spec, stopped);
  if (absl::IsCancelled(here) && Patience::Clock::now() > until) {
    here = absl::DeadlineExceededError(std::string(here.message()));
  }
  if (!here.ok()) return here;
  if (until != Patience::Clock::time_point::max()) {
    // What it waited for other nodes is of its time.
    const auto left = std::chrono::nanoseconds(until - Patience::Clock::now()).count();
    std::visit([&](auto& of) { of.timeout_ns = static_cast<uint64_t>(std::max<int64_t>(left, 1)); },
               spec);
  }
  if (auto* spgemm = std::get_if<engine::SpgemmSpec>(&spec)) {
    spgemm->requester = {tenant_, request->record().caller, request->record().id, spgemm->keep_as};
  }
  return std::visit(
      [&](auto& of) { return service_.engine.executor().Begin(std::move(of), request); }, spec);
}

void ComputeStream::Open(Op op, ComputeStart start) {
  auto request = std::make_shared<ComputeRequest>(
      *this, start.request_id, service_.telemetry.Begin(op, *caller(), start.subject),
      start.spec.ok() ? TimeoutOf(*start.spec) : 0, share_);
  request->record().ring = transport_.is_ring();
  request->record().id += fmt::format("/{}", start.request_id);
  if (start.trace.has_value()) request->record().trace = *std::move(start.trace);
  if (start.spec.ok()) Describe(service_.engine, *start.spec, request->record());
  Todo todo;
  absl::Status admitted;
  {
    const MutexLock lock(mutex_);
    std::erase(recently_failed_, start.request_id);
    admitted = Admit(start, *request, todo);
    if (admitted.ok()) {
      requests_.emplace(start.request_id, request);
    } else {
      Refuse(request, admitted, todo);
      Proceed(todo);
    }
  }
  if (!admitted.ok()) {
    return Do(std::move(todo));
  }
  CountBytes(service_.engine, *start.spec, request->record());
  if (const auto* spgemm = std::get_if<engine::SpgemmSpec>(&*start.spec)) {
    request->publishes = spgemm->keep_as;
  }
  if (!WaitsForNodes(service_, *start.spec)) {
    return BeginAdmitted(*start.spec, request, /*here=*/true);
  }
  // Other messages are read meanwhile; the request's own chunks wait for the call.
  auto spec = std::make_shared<ComputeSpec>(*std::move(start.spec));
  const absl::Status queued =
      service_.gathers.Run(tenant_, [self = shared_from_this(), request, spec] {
        self->BeginAdmitted(*spec, request, /*here=*/false);
        self->ResumeCarriers();
        self->TakeEarly(request);
      });
  if (!queued.ok()) RefuseAdmitted(request, queued);
}

void ComputeStream::TakeEarly(const std::shared_ptr<ComputeRequest>& request) {
  std::vector<wire::ChunkView> chunks;
  {
    const MutexLock lock(mutex_);
    chunks.swap(request->early);
    // Refused: another one may have its id by now.
    const auto found = requests_.find(request->id());
    if (found == requests_.end() || found->second != request) return;
  }
  absl::Status status;
  for (wire::ChunkView& chunk : chunks) {
    if (status.ok()) status = Receive(chunk, nullptr, nullptr);
  }
  Todo todo;
  {
    const MutexLock lock(mutex_);
    if (finished_) return;
    if (!status.ok()) {
      Abandon(status, todo);
    } else if (reads_done_ && request->call() != nullptr && !request->submitted &&
               !request->failed && !request->ended && request->carriers.empty()) {
      Stop(*request, ClosedEarly(), todo);
    }
    if (todo.stop.empty() && status.ok()) return;
    Proceed(todo);
  }
  Do(std::move(todo));
}

void ComputeStream::RefuseAdmitted(const std::shared_ptr<ComputeRequest>& request,
                                   const absl::Status& status) {
  Todo todo;
  {
    const MutexLock lock(mutex_);
    Forget(*request);
    Refuse(request, status, todo);
    Proceed(todo);
  }
  Do(std::move(todo));
}

void ComputeStream::BeginAdmitted(ComputeSpec& spec, const std::shared_ptr<ComputeRequest>& request,
                                  bool here) {
  absl::StatusOr<std::shared_ptr<engine::Call>> call = BeginCall(spec, request, /*waited=*/!here);
  absl::Status failure;
  {
    const MutexLock lock(mutex_);
    StageRecord& record = request->record();
    if (!here) {
      record[Phase::kReceive] = NanosecondsSince(record.begun);
      // Nothing was to come meanwhile.
      request->last_byte = Patience::Clock::now();
    }
    failure = request->failure;
  }
  if (!call.ok()) return RefuseAdmitted(request, failure.ok() ? call.status() : failure);
  Todo todo;
  bool complete = (*call)->complete();
  {
    const MutexLock lock(mutex_);
    if (!request->ended) request->set_call(*call);
    const absl::Status fits =
        share_->Check("the request", static_cast<int64_t>((*call)->announced()));
    if (!fits.ok()) Stop(*request, fits, todo);
    if (!request->failure.ok()) Stop(*request, request->failure, todo);
    if (abandoned_) Stop(*request, status_, todo);
    complete = complete && todo.stop.empty();
    if (complete) {
      if (absl::Status s = MarkSubmitted(*request); !s.ok()) Stop(*request, std::move(s), todo);
    }
    if (!todo.stop.empty()) Proceed(todo);
  }
  if (!todo.stop.empty()) return Do(std::move(todo));
  if (!complete) return;
  if (here && transport_.idle()) {
    (*call)->SubmitHere();
  } else {
    (*call)->Submit();
  }
}

bool ComputeStream::FailedRecently(uint64_t id) const {
  return std::ranges::find(recently_failed_, id) != recently_failed_.end();
}

bool ComputeStream::IsWaiting(const wire::ChunkView& chunk) const {
  const auto found = requests_.find(chunk.request_id);
  if (abandoned_ || found == requests_.end()) return false;
  const ComputeRequest& request = *found->second;
  return request.call() == nullptr && !request.ended && !request.failed;
}

bool ComputeStream::IsEarly(const wire::ChunkView& chunk) const {
  if (abandoned_ || finished_) return false;
  if (requests_.contains(chunk.request_id)) return IsWaiting(chunk);
  return !FailedRecently(chunk.request_id);
}

absl::StatusOr<bool> ComputeStream::ReceiveFrom(Carrier& carrier, wire::ChunkView chunk) {
  bool kept = false;
  const absl::Status status = Receive(chunk, &carrier, &kept);
  // What is wrong with a chunk whose request is there, or was, is no reason to end the carrier.
  if (!kept) return true;
  if (!status.ok()) return status;
  return false;
}

absl::Status ComputeStream::Receive(wire::ChunkView& chunk, Carrier* by, bool* kept) {
  std::shared_ptr<ComputeRequest> request;
  std::shared_ptr<engine::Call> call;
  absl::Status status;
  {
    const MutexLock lock(mutex_);
    if (by == nullptr && IsWaiting(chunk)) {
      requests_.at(chunk.request_id)->KeepEarly(std::move(chunk));
      return absl::OkStatus();
    }
    if (by != nullptr && IsEarly(chunk)) {
      // Under the lock: whoever opens the request resumes it afterwards.
      *kept = true;
      if (absl::Status s = by->Keep(std::move(chunk)); !s.ok()) return s;
      waiting_.push_back(by->shared_from_this());
      return absl::OkStatus();
    }
    const auto found = requests_.find(chunk.request_id);
    if (found == requests_.end()) {
      if (FailedRecently(chunk.request_id)) return absl::OkStatus();
      return absl::InvalidArgumentError(
          fmt::format("a chunk came for request {}, which is not in flight", chunk.request_id));
    }
    request = found->second;
    if (request->ended || request->failed) return absl::OkStatus();
    call = request->call();
    CountChunk(chunk, request->record(), by != nullptr);
    // Messages without a byte are silence, too.
    if (chunk.bytes() > 0) request->last_byte = Patience::Clock::now();
    if (request->submitted && chunk.bytes() == 0) return absl::OkStatus();
    if (request->submitted) {
      status = absl::InvalidArgumentError(
          fmt::format("a chunk of array {} came after all operand bytes had come", chunk.array));
    } else if (by != nullptr && !request->Uses(*by)) {
      status = absl::InvalidArgumentError(fmt::format(
          "a chunk of array {} came by a carrier that the request does not name", chunk.array));
    }
    if (!status.ok()) {
      request->failed = true;
    } else {
      ++request->feeding;
    }
  }
  if (!status.ok()) {
    call->Fail(status);
    return absl::OkStatus();
  }
  status = ReceiveChunk(chunk, service_.config.max_chunk_bytes, service_.regions, *call);
  const auto counted = static_cast<int64_t>(call->counted());
  bool complete = false;
  {
    const MutexLock lock(mutex_);
    --request->feeding;
    if (status.ok() && !request->ended) status = request->operands.GrowTo(counted);
    if (!status.ok()) request->failed = true;
    // Whoever leaves last: nobody else is in the call then, or gets in.
    complete = request->feeding == 0 && !request->failed && !request->ended && call->complete();
    if (complete) {
      status = MarkSubmitted(*request);
      if (!status.ok()) request->failed = true;
    }
  }
  if (!status.ok()) {
    call->Fail(status);
  } else if (complete) {
    call->Submit();
  }
  return absl::OkStatus();
}

absl::Status ComputeStream::MarkSubmitted(ComputeRequest& request) {
  absl::StatusOr<engine::TenantHold> queued = account_.Hold(engine::Quota::kQueued);
  if (!queued.ok()) return queued.status();
  request.queued = *std::move(queued);
  request.submitted = true;
  StageRecord& record = request.record();
  if (record.received_bytes > 0) record[Phase::kReceive] = NanosecondsSince(record.begun);
  return absl::OkStatus();
}

void ComputeStream::Cancel(const ComputeCancel& cancel) {
  std::shared_ptr<engine::Call> call;
  {
    const MutexLock lock(mutex_);
    const auto found = requests_.find(cancel.request_id);
    if (found == requests_.end()) return;
    found->second->EndSending(
        absl::CancelledError("the request was cancelled while its result was sent"));
    call = found->second->call();
    if (call == nullptr && !found->second->ended) {
      // It waits for other nodes.
      found->second->failed = true;
      if (found->second->failure.ok()) {
        found->second->failure = absl::CancelledError("the request was cancelled");
      }
    }
  }
  if (call != nullptr) call->Cancel();
}

void ComputeStream::QueueEnd(ComputeRequest& request, engine::CallEnd end) {
  if (!end.status.ok() || request.publishes.empty()) return QueueLastly(request, std::move(end));
  service_.live_streams.MatrixChanged(tenant_, request.publishes);
  if (service_.cluster == nullptr) return QueueLastly(request, std::move(end));
  // It is acknowledged when the cluster has it.
  std::shared_ptr<ComputeRequest> kept;
  {
    const MutexLock lock(mutex_);
    kept = requests_.at(request.id());
  }
  const auto ending = std::make_shared<engine::CallEnd>(std::move(end));
  const absl::Status runs =
      service_.changes.Run(tenant_, [self = shared_from_this(), kept, ending] {
        ending->status = self->service_.cluster->Enter({self->tenant_, kept->publishes});
        self->QueueLastly(*kept, std::move(*ending));
      });
  if (runs.ok()) return;
  ending->status = absl::UnavailableError(
      fmt::format("\"{}\" is here, and will be told to the cluster later: {}", kept->publishes,
                  std::string(runs.message())));
  QueueLastly(*kept, std::move(*ending));
}

void ComputeStream::QueueLastly(ComputeRequest& request, engine::CallEnd end) {
  Todo todo;
  {
    const MutexLock lock(mutex_);
    if (!end.status.ok()) RememberFailed(request.id());
    const bool waits = request.has_queued();
    request.QueueEnd(std::move(end));
    if (abandoned_) {
      todo.ended.push_back(request.record());
      Forget(request);
    } else if (!waits) {
      sending_.push_back(requests_.at(request.id()));
    }
    Proceed(todo);
  }
  Do(std::move(todo));
}

void ComputeStream::RememberFailed(uint64_t id) {
  recently_failed_.push_back(id);
  if (recently_failed_.size() > kRememberedFailures) recently_failed_.pop_front();
}

void ComputeStream::Refuse(const std::shared_ptr<ComputeRequest>& request, absl::Status status,
                           Todo& todo) {
  RememberFailed(request->id());
  engine::CallEnd end;
  end.status = std::move(status);
  request->QueueEnd(std::move(end));
  if (abandoned_ || finished_) {
    todo.ended.push_back(request->record());
    return;
  }
  sending_.push_back(request);
  ++refused_;
}

bool ComputeStream::Forget(const ComputeRequest& request) {
  const auto found = requests_.find(request.id());
  if (found == requests_.end() || found->second.get() != &request) return false;
  requests_.erase(found);
  return true;
}

void ComputeStream::Stop(ComputeRequest& request, absl::Status status, Todo& todo) {
  request.failed = true;
  if (request.call() != nullptr) {
    todo.stop.emplace_back(request.call(), std::move(status));
  } else {
    request.failure = std::move(status);
  }
}

void ComputeStream::Abandon(absl::Status status, Todo& todo) {
  if (abandoned_ || finished_) return;
  abandoned_ = true;
  status_ = std::move(status);
  // Refused ones are only here; those in flight leave `requests_` when their call has ended.
  for (const auto& request : sending_) {
    request->DropQueue();
    if (!request->ended) continue;
    todo.ended.push_back(request->record());
    Forget(*request);
  }
  sending_.clear();
  for (const auto& [id, request] : requests_) {
    Stop(*request, absl::CancelledError("the stream ended"), todo);
  }
  EndCarriers(status_, todo);
}

void ComputeStream::EndCarriers(const absl::Status& status, Todo& todo) {
  for (Joined& joined : carriers_)
    todo.end_carriers.emplace_back(std::move(joined.carrier), status);
  carriers_.clear();
  waiting_.clear();
}

void ComputeStream::CarrierReady(const Carrier& carrier) {
  Todo todo;
  {
    const MutexLock lock(mutex_);
    const auto joined = Find(carrier);
    if (joined == carriers_.end()) return;
    joined->writing = false;
    if (joined->of != nullptr) --std::exchange(joined->of, nullptr)->carried;
    Proceed(todo);
  }
  Do(std::move(todo));
}

void ComputeStream::CarrierEnded(const Carrier& carrier, const absl::Status& why) {
  const bool gone = why.ok() || absl::IsCancelled(why);
  const absl::Status status(
      gone ? absl::StatusCode::kUnavailable : why.code(),
      fmt::format("a carrier of the request ended: {}",
                  why.ok() ? "its client closed it" : std::string(why.message())));
  Todo todo;
  {
    const MutexLock lock(mutex_);
    const auto joined = Find(carrier);
    if (joined == carriers_.end()) return;
    const std::shared_ptr<ComputeRequest> lost = std::move(joined->of);
    if (lost != nullptr) --lost->carried;
    carriers_.erase(joined);
    std::erase_if(waiting_, [&](const auto& other) { return other.get() == &carrier; });
    for (const auto& [id, request] : requests_) {
      if (!request->Uses(carrier)) continue;
      std::erase(request->carriers, &carrier);
      if (!request->ended) {
        Stop(*request, status, todo);
      } else if (request == lost) {
        request->FailSending(status);
      } else {
        request->EndSending(status);
      }
    }
    Proceed(todo);
  }
  Do(std::move(todo));
}

std::vector<ComputeStream::Joined>::iterator ComputeStream::Find(const Carrier& carrier) {
  return std::ranges::find_if(
      carriers_, [&](const Joined& joined) { return joined.carrier.get() == &carrier; });
}

void ComputeStream::TakeCarried(Todo& todo) {
  for (Joined& joined : carriers_) {
    if (joined.writing) continue;
    const auto next = std::ranges::find_if(
        sending_, [&](const auto& request) { return request->MayCarry(*joined.carrier); });
    if (next == sending_.end()) continue;
    joined.of = std::move(*next);
    sending_.erase(next);
    joined.writing = true;
    ++joined.of->carried;
    todo.carried.emplace_back(joined.carrier, joined.of->TakeNext(joined.carrier.get()).bytes);
    if (joined.of->has_queued()) sending_.push_back(joined.of);
  }
}

bool ComputeStream::TakeWrite(Todo& todo) {
  const auto may_send = [](const auto& request) { return request->may_send(); };
  const auto next = std::ranges::find_if(sending_, may_send);
  if (writing_ || next == sending_.end()) return false;
  const std::shared_ptr<ComputeRequest> request = std::move(*next);
  sending_.erase(next);
  write_began_ = Patience::Clock::now();
  request->EndIfLate(write_began_);
  ComputeWrite write = request->TakeNext();
  out_.Swap(&write.bytes);
  credit_ = static_cast<int64_t>(write.data_bytes);
  credit_of_ = request->holds_credit && credit_ > 0 ? request->call() : nullptr;
  if (write.is_end) {
    if (!Forget(*request)) --refused_;
    // Before its caller can know: who has but one may send the next at once.
    request->counted = engine::TenantHold();
    todo.ended.push_back(request->record());
  } else if (request->has_queued()) {
    sending_.push_back(request);
  }
  // Not what carriers may take before it is this stream's turn.
  todo.more_follow = std::ranges::any_of(
      sending_, [&](const auto& other) { return may_send(other) && other->carriers.empty(); });
  writing_ = true;
  return true;
}

std::optional<absl::Status> ComputeStream::TakeFinish() {
  if (finished_ || handling_ || writing_ || !requests_.empty() || !sending_.empty())
    return std::nullopt;
  if (!abandoned_ && !reads_done_ && !draining_) return std::nullopt;
  finished_ = true;
  if (!abandoned_ && !reads_done_) return absl::UnavailableError("the server is shutting down");
  return status_;
}

void ComputeStream::Proceed(Todo& todo) {
  todo.write = TakeWrite(todo);
  TakeCarried(todo);
  todo.finish = TakeFinish();
  // They brought what they were to bring.
  if (todo.finish.has_value()) EndCarriers(absl::OkStatus(), todo);
  if (todo.write || todo.finish.has_value()) todo.stream = this;
  todo.telemetry = &service_.telemetry;
  if (todo.read && !todo.finish.has_value()) {
    // Under the lock: who finishes the stream comes before it or after it.
    read_began_ = Patience::Clock::now();
    transport_.Read();
  }
}

void ComputeStream::Do(Todo todo) {
  for (auto& [call, status] : todo.stop) call->Fail(std::move(status));
  if (todo.credit_of != nullptr) todo.credit_of->Release(todo.credit);
  const auto write = [&todo] {
    ComputeStream& stream = *todo.stream;
    if (stream.transport_.Write(&stream.out_, todo.more_follow)) stream.OnWritten(true);
  };
  // A ring's caller looks for its reply: it is there before what is for others to look at.
  const bool first = todo.write && todo.stream->transport_.is_ring();
  if (first) write();
  for (StageRecord& record : todo.ended) todo.telemetry->End(std::move(record));
  for (auto& [carrier, bytes] : todo.carried) carrier->Write(std::move(bytes));
  for (const auto& [carrier, status] : todo.end_carriers) carrier->End(status);
  if (todo.write && !first) write();
  if (todo.finish.has_value()) todo.stream->transport_.Finish(*todo.finish);
}

void ComputeStream::DoElsewhere(Todo todo) {
  struct Later {
    std::shared_ptr<ComputeStream> stream;
    Todo todo;
    grpc::Alarm now = {};
  };
  auto* const later = new Later{shared_from_this(), std::move(todo)};
  // In the past: what is due now goes through a timer, a millisecond later.
  later->now.Set(gpr_inf_past(GPR_CLOCK_MONOTONIC), [later](bool /*ok*/) {
    const std::unique_ptr<Later> own(later);
    Do(std::move(own->todo));
  });
}

}  // namespace sparsed::server
