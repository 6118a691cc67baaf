#include "server/telemetry/otlp_exporter.h"

#include <fmt/format.h>
#include <httplib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/log/log.h"
#include "server/telemetry/sample.h"

namespace sparsed::server {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr int kLowestPriority = 19;
constexpr size_t kMostInOne = 256;  ///< requests in a message
/// How often it is looked whether a message is full: requests wake nobody.
constexpr std::chrono::milliseconds kLook{50};
constexpr size_t kMostReply = 64 << 10;
// Of OTLP's enumerations.
constexpr int kInternalSpan = 1, kServerSpan = 2, kErrorStatus = 2;

int64_t SpansOf(const StageRecord& record) {
  return 1 + std::ranges::count_if(record.phase_ns, [](uint64_t ns) { return ns > 0; });
}

void AddText(Json& attributes, const char* key, std::string_view value) {
  if (value.empty()) return;
  attributes.push_back({{"key", key}, {"value", {{"stringValue", std::string(value)}}}});
}
/// OTLP's JSON has 64-bit numbers as text.
void AddNumber(Json& attributes, const char* key, uint64_t value) {
  attributes.push_back({{"key", key}, {"value", {{"intValue", std::to_string(value)}}}});
}

Json AttributesOf(const StageRecord& record) {
  Json attributes = Json::array();
  AddText(attributes, "sparsed.tenant", record.tenant);
  AddText(attributes, "sparsed.request_id", record.id);
  AddText(attributes, "sparsed.subject", record.subject);
  if (record.k > 0) AddNumber(attributes, "sparsed.k", static_cast<uint64_t>(record.k));
  AddText(attributes, "sparsed.parameters", record.parameters);
  AddText(attributes, "sparsed.plan", record.plan);
  AddText(attributes, "sparsed.transport", TransportOf(record));
  AddText(attributes, "rpc.system", "grpc");
  AddNumber(attributes, "rpc.grpc.status_code", static_cast<uint64_t>(record.status.code()));
  return attributes;
}

Json SpanOf(const StageRecord& record, std::string_view name, int kind, const std::string& id,
            const std::string& parent, nanoseconds begin, nanoseconds end) {
  Json span = {{"traceId", record.trace.trace_id}, {"spanId", id}};
  if (!parent.empty()) span["parentSpanId"] = parent;
  if (!record.trace.state.empty()) span["traceState"] = record.trace.state;
  span["name"] = std::string(name);
  span["kind"] = kind;
  span["startTimeUnixNano"] = std::to_string(begin.count());
  span["endTimeUnixNano"] = std::to_string(std::max(begin, end).count());
  return span;
}

/// The request's, and one for each phase. Of phases it is known how long they were: they are laid
/// one after the other, in their order, and sending ends with the request.
void AddSpans(const StageRecord& record, nanoseconds end, Json& spans) {
  const auto length = [](uint64_t ns) { return nanoseconds(static_cast<int64_t>(ns)); };
  const nanoseconds begin = end - length(record.total_ns);
  const std::string id = NewSpanId();
  Json whole = SpanOf(record, fmt::format("sparsed.{}", Name(record.op)), kServerSpan, id,
                      record.trace.parent_id, begin, end);
  whole["attributes"] = AttributesOf(record);
  if (CauseOf(record.status) == ErrorCause::kServer) {
    whole["status"] = {{"code", kErrorStatus}, {"message", std::string(record.status.message())}};
  }
  spans.push_back(std::move(whole));
  nanoseconds at = begin;
  for (const Phase phase : {Phase::kReceive, Phase::kQueue, Phase::kSetup, Phase::kToDevice,
                            Phase::kKernel, Phase::kFromDevice, Phase::kSend}) {
    const nanoseconds took = length(record[phase]);
    if (took.count() == 0) continue;
    if (phase == Phase::kSend) at = std::max(begin, end - took);
    spans.push_back(SpanOf(record, Name(phase), kInternalSpan, NewSpanId(), id, std::min(at, end),
                           std::min(at + took, end)));
    at += took;
  }
}

}  // namespace

/// To the collector; used by one thread but for Stop.
class OtlpExporter::Connection {
 public:
  explicit Connection(const Options& options)
      : path_(options.endpoint.path), client_("http://" + options.endpoint.address) {
    client_.set_connection_timeout(options.patience);
    client_.set_read_timeout(options.patience);
    client_.set_write_timeout(options.patience);
    client_.set_keep_alive(true);
  }
  /// Empty if the collector took it, else why not.
  std::string Post(std::string body) {
    httplib::Request request;
    request.method = "POST";
    request.path = path_;
    request.set_header("Content-Type", "application/json");
    request.body = std::move(body);
    size_t size = 0;
    request.content_receiver = [&size](const char*, size_t bytes, uint64_t, uint64_t) {
      size += bytes;
      return size <= kMostReply;
    };
    const httplib::Result result = client_.send(request);
    if (!result) return httplib::to_string(result.error());
    if (result->status / 100 == 2) return {};
    return fmt::format("it answered {}", result->status);
  }
  /// Ends what is under way.
  void Stop() { client_.stop(); }

 private:
  const std::string path_;
  httplib::Client client_;
};

OtlpExporter::OtlpExporter(Options options)
    : options_(std::move(options)),
      connection_(std::make_unique<Connection>(options_)),
      thread_([this] { Run(); }) {}

OtlpExporter::~OtlpExporter() {
  bool ended = false;
  closing_ = true;
  {
    const MutexLock lock(mutex_);
    changed_.NotifyAll();
    const auto deadline = steady_clock::now() + options_.patience;
    while (!ended_ && steady_clock::now() < deadline) changed_.WaitUntil(mutex_, deadline);
    ended = ended_;
  }
  if (!ended) connection_->Stop();
  thread_.join();
  Take();  // what came too late
}

void OtlpExporter::Add(const StageRecord& record) {
  if (!record.trace.traced() || !record.trace.sampled) return;
  const bool full = waiting_.fetch_add(1) >= options_.most_waiting;
  if (full || closing_) {
    --waiting_;
    dropped_ += SpansOf(record);
    return;
  }
  auto ended = std::make_unique<Ended>();
  ended->at = std::chrono::system_clock::now();
  ended->record = record;
  ended->next = newest_.load(std::memory_order_relaxed);
  while (!newest_.compare_exchange_weak(ended->next, ended.get(), std::memory_order_release,
                                        std::memory_order_relaxed)) {
  }
  ended.release();  // the stack's
}

void OtlpExporter::Take() {
  Ended* ended = newest_.exchange(nullptr, std::memory_order_acquire);
  const auto end = static_cast<std::ptrdiff_t>(taken_.size());
  while (ended != nullptr) {
    Ended* const before = ended->next;
    taken_.emplace(taken_.begin() + end, ended);
    ended = before;
  }
}

void OtlpExporter::Run() {
  // Of this thread alone, on Linux.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLowestPriority);
  auto next = steady_clock::now() + options_.interval;
  bool away = false, closing = false;
  while (!closing) {
    {
      const MutexLock lock(mutex_);
      while (!closing_ && steady_clock::now() < next && (away || waiting_ < kMostInOne)) {
        changed_.WaitUntil(mutex_, std::min(next, steady_clock::now() + kLook));
      }
    }
    closing = closing_;
    Take();
    const size_t count = std::min(taken_.size(), kMostInOne);
    closing = closing && count == taken_.size();
    Batch requests;
    for (size_t i = 0; i < count; ++i) {
      requests.push_back(std::move(taken_.front()));
      taken_.pop_front();
    }
    const bool sent = !(closing && away) && Send(requests);
    if (!sent) {
      for (const auto& ended : requests) dropped_ += SpansOf(ended->record);
    }
    waiting_ -= count;
    away = !sent && (away || !requests.empty());
    next = steady_clock::now() + (away ? options_.pause : options_.interval);
  }
  const MutexLock lock(mutex_);
  ended_ = true;
  changed_.NotifyAll();
}

bool OtlpExporter::Send(const Batch& requests) {
  if (requests.empty()) return true;
  std::string why;
  try {
    why = connection_->Post(Encode(requests));
  } catch (const std::exception& error) {
    why = error.what();
  }
  const bool sent = why.empty();
  if (sent != !failing_) {
    failing_ = !sent;
    if (sent) {
      Log(LogLevel::kInfo, "spans can be sent again", {{"collector", options_.endpoint.address}});
    } else {
      Log(LogLevel::kWarn, "spans cannot be sent",
          {{"collector", options_.endpoint.address},
           {"reason", why},
           {"meanwhile", std::string("they are dropped, and sparsed_spans_total counts them")}});
    }
  }
  if (!sent) return false;
  for (const auto& ended : requests) exported_ += SpansOf(ended->record);
  return true;
}

std::string OtlpExporter::Encode(const Batch& requests) const {
  Json resource = Json::array();
  AddText(resource, "service.name", "sparsed");
  AddText(resource, "service.version", SPARSED_VERSION);
  AddText(resource, "service.instance.id", options_.instance);
  Json spans = Json::array();
  for (const auto& ended : requests) {
    AddSpans(ended->record, nanoseconds(ended->at.time_since_epoch()), spans);
  }
  Json scope = Json::object();
  scope["scope"] = {{"name", "sparsed"}, {"version", SPARSED_VERSION}};
  scope["spans"] = std::move(spans);
  Json of_server = Json::object();
  of_server["resource"]["attributes"] = std::move(resource);
  of_server["scopeSpans"] = Json::array({std::move(scope)});
  Json message = Json::object();
  message["resourceSpans"] = Json::array({std::move(of_server)});
  // Names are what clients sent: what is no UTF-8 is replaced.
  return message.dump(-1, ' ', false, Json::error_handler_t::replace);
}

prometheus::MetricFamily SpanMetric(const OtlpExporter::Counts& counts) {
  prometheus::MetricFamily family{"sparsed_spans_total",
                                  "Spans for --otlp-endpoint that the collector took, or that were "
                                  "dropped because it was away or the queue full",
                                  prometheus::MetricType::Counter,
                                  {}};
  family.metric.push_back(Sample(static_cast<double>(counts.exported), {{"result", "exported"}}));
  family.metric.push_back(Sample(static_cast<double>(counts.dropped), {{"result", "dropped"}}));
  return family;
}

}  // namespace sparsed::server
