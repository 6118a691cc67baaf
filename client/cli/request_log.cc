#include "client/cli/request_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/line_reader.h"
#include "client/cli/words.h"

namespace sparsed::cli {
namespace {

using std::chrono::nanoseconds;

constexpr int64_t kMostColumns = 65536;
/// Some 100 bytes each are kept.
constexpr size_t kMostRequests = 50'000'000;

/// What a line says, or what is wrong with it.
struct Line {
  bool product = false;  ///< that can be made again
  std::string why_not;   ///< otherwise; empty: it is no request
  ProductKind kind;
  std::string tenant;
  int64_t arrived_unix_ns = 0;
};

/// In a sentence. Arrays and objects by what they are: they may be nested too deeply to be written.
std::string Shown(const Json& value) {
  return value.is_structured() ? fmt::format("an {}", value.type_name()) : value.dump();
}

absl::StatusOr<std::string> TextIn(const Json& object, const char* key, bool required) {
  const auto found = object.find(key);
  if (found == object.end() && !required) return std::string();
  if (found == object.end()) {
    return absl::InvalidArgumentError(fmt::format("a request without \"{}\"", key));
  }
  if (!found->is_string()) {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" is {}, expected a text", key, Shown(*found)));
  }
  return found->get<std::string>();
}

absl::StatusOr<double> NumberIn(const Json& object, const char* key, double least, double most) {
  const auto found = object.find(key);
  if (found == object.end()) {
    return absl::InvalidArgumentError(fmt::format("a request without \"{}\"", key));
  }
  if (!found->is_number() || found->get<double>() < least || found->get<double>() > most) {
    return absl::InvalidArgumentError(fmt::format("\"{}\" is {}, expected a number from {} to {}",
                                                  key, Shown(*found), least, most));
  }
  return found->get<double>();
}

/// Its own, or that of its end less how long it took.
absl::StatusOr<int64_t> ArrivalOf(const Json& object) {
  constexpr double kMostMs = 366.0 * 86400e3;
  if (const auto exact = object.find("arrived_unix_ns"); exact != object.end()) {
    if (exact->is_number_integer() && exact->get<int64_t>() >= 0) return exact->get<int64_t>();
    return absl::InvalidArgumentError(
        fmt::format("\"arrived_unix_ns\" is {}, expected nanoseconds", Shown(*exact)));
  }
  const absl::StatusOr<std::string> text = TextIn(object, "time", /*required=*/true);
  if (!text.ok()) return text.status();
  absl::Time ended;
  std::string error;
  if (!absl::ParseTime(absl::RFC3339_full, *text, &ended, &error)) {
    return absl::InvalidArgumentError(
        fmt::format("\"time\" is \"{}\", expected one such as 2026-01-31T12:00:00.000Z", *text));
  }
  const absl::StatusOr<double> took = NumberIn(object, "total_ms", 0, kMostMs);
  if (!took.ok()) return took.status();
  const absl::Time arrived = ended - absl::Milliseconds(*took);
  // "infinite-past" is a time, too.
  if (arrived < absl::UnixEpoch() ||
      arrived > absl::FromUnixNanos(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(
        fmt::format("\"time\" is \"{}\", expected one from 1970 to 2262", *text));
  }
  return absl::ToUnixNanos(arrived);
}

/// What the words of "parameters" say.
absl::Status ReadParameters(std::string_view text, Line& line) {
  ProductKind& kind = line.kind;
  for (std::string_view word = NextWord(text); !word.empty(); word = NextWord(text)) {
    const auto value = [&word](std::string_view name) -> std::optional<std::string> {
      if (!word.starts_with(name)) return std::nullopt;
      return std::string(word.substr(name.size()));
    };
    const bool spgemm = kind.operation == Operation::kSpgemm;
    if (word == "transpose" && kind.operation == Operation::kSpmm) {
      kind.transpose = true;
    } else if (word == "allow_tf32") {
      kind.allow_tf32 = true;
    } else if (word == "unscaled") {
      kind.unscaled = true;
    } else if (word == "transpose_left" && spgemm) {
      kind.transpose = true;
    } else if (word == "transpose_right" && spgemm) {
      kind.transpose_right = true;
    } else if (word == "count_first" && spgemm) {
      kind.count_first = true;
    } else if (const auto semiring = value("semiring="); semiring.has_value() && spgemm) {
      const absl::StatusOr<Semiring> named = ParseSemiring(*semiring);
      if (!named.ok()) return named.status();
      kind.semiring = *named;
    } else if (const auto right = value("right="); right.has_value()) {
      kind.right = *right;
    } else if (const auto mask = value("mask="); mask.has_value()) {
      kind.mask = *mask;
    } else if (word.starts_with("alpha=") || word.starts_with("beta=") || word == "values") {
      // They change little of what it costs: an operand more, at most.
    } else {
      return absl::InvalidArgumentError(
          fmt::format("\"parameters\" has \"{}\", which no {} has", word, Name(kind.operation)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Line> ReadLine(std::string_view text) {
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("it is no object of JSON");
  Line line;
  const absl::StatusOr<std::string> event = TextIn(object, "event", /*required=*/false);
  if (!event.ok()) return event.status();
  // A log has other events, too.
  if (!event->empty() && *event != "request") return line;
  const absl::StatusOr<std::string> op = TextIn(object, "op", /*required=*/true);
  if (!op.ok()) return op.status();
  const absl::StatusOr<std::string> tenant = TextIn(object, "tenant", /*required=*/false);
  if (!tenant.ok()) return tenant.status();
  line.tenant = *tenant;
  const absl::StatusOr<std::string> code = TextIn(object, "code", /*required=*/false);
  if (!code.ok()) return code.status();
  const absl::StatusOr<int64_t> arrived = ArrivalOf(object);
  if (!arrived.ok()) return arrived.status();
  line.arrived_unix_ns = *arrived;
  if (*op == "spmm") {
    line.kind.operation = Operation::kSpmm;
  } else if (*op == "sddmm") {
    line.kind.operation = Operation::kSddmm;
  } else if (*op == "spgemm") {
    line.kind.operation = Operation::kSpgemm;
  } else {
    line.why_not = fmt::format("made no product: {}", *op);
    return line;
  }
  // What did not come to a kernel says nothing of what one takes; what was too much does.
  if (!code->empty() && *code != "OK" && *code != "RESOURCE_EXHAUSTED" &&
      *code != "DEADLINE_EXCEEDED") {
    line.why_not = fmt::format("ended with {}", *code);
    return line;
  }
  absl::StatusOr<std::string> matrix = TextIn(object, "subject", /*required=*/true);
  if (!matrix.ok()) return matrix.status();
  if (matrix->empty()) return absl::InvalidArgumentError("a request with an empty \"subject\"");
  line.kind.matrix = *std::move(matrix);
  if (line.kind.operation != Operation::kSpgemm) {
    const absl::StatusOr<double> k = NumberIn(object, "k", 1, kMostColumns);
    if (!k.ok()) return k.status();
    line.kind.k = static_cast<int64_t>(*k);
  }
  const absl::StatusOr<std::string> parameters = TextIn(object, "parameters", /*required=*/false);
  if (!parameters.ok()) return parameters.status();
  if (absl::Status read = ReadParameters(*parameters, line); !read.ok()) return read;
  if (line.kind.operation == Operation::kSpgemm && line.kind.right.empty()) {
    return absl::InvalidArgumentError("an spgemm without \"right=NAME\" among its \"parameters\"");
  }
  line.product = true;
  return line;
}

}  // namespace

std::string RequestLine(const SlowRequest& request) {
  const auto took = std::chrono::duration_cast<nanoseconds>(request.timings.total);
  const auto ended =
      std::chrono::duration_cast<nanoseconds>(request.ended.time_since_epoch()).count();
  Json line = {{"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromUnixNanos(ended),
                                         absl::UTCTimeZone())},
               {"event", "request"},
               {"op", request.operation},
               {"tenant", request.tenant},
               {"caller", request.caller},
               {"request_id", request.request_id},
               {"subject", request.subject},
               {"code", request.code},
               {"total_ms", static_cast<double>(took.count()) * 1e-6},
               {"arrived_unix_ns", ended - took.count()}};
  if (request.k > 0) line["k"] = request.k;
  if (!request.parameters.empty()) line["parameters"] = request.parameters;
  if (!request.plan.empty()) line["plan"] = request.plan;
  if (!request.transport.empty()) line["transport"] = request.transport;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<RequestLog> ReadRequestLog(const std::string& path, std::string_view tenant) {
  absl::StatusOr<LineReader> lines = LineReader::Open(path);
  if (!lines.ok()) return lines.status();
  RequestLog log;
  std::map<ProductKind, size_t> kinds;
  while (const std::optional<std::string_view> text = lines->Next()) {
    if (text->find_first_not_of(" \t\r") == text->npos) continue;
    absl::StatusOr<Line> line = ReadLine(*text);
    if (!line.ok()) return lines->Error(std::string(line.status().message()));
    if (!line->product && line->why_not.empty()) continue;
    if (!tenant.empty() && line->tenant != tenant) {
      ++log.left_out["came from another tenant"];
      continue;
    }
    if (!line->product) {
      ++log.left_out[line->why_not];
      continue;
    }
    if (log.requests.size() >= kMostRequests) {
      return lines->Error(fmt::format("more than {} requests", kMostRequests));
    }
    ++log.tenants[line->tenant];
    const auto [kind, added] = kinds.emplace(std::move(line->kind), log.kinds.size());
    if (added) log.kinds.push_back(kind->first);
    log.requests.push_back({nanoseconds(line->arrived_unix_ns), kind->second});
  }
  if (!lines->status().ok()) return lines->status();
  if (log.requests.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{} has no products that could be made again{}", lines->name(),
                    tenant.empty() ? "" : fmt::format(" of tenant {}", tenant)));
  }
  // They are written as they end.
  std::ranges::stable_sort(log.requests, {}, &RecordedRequest::arrived);
  const nanoseconds first = log.requests.front().arrived;
  for (RecordedRequest& request : log.requests) request.arrived -= first;
  return log;
}

absl::StatusOr<std::vector<nanoseconds>> ScheduleOf(std::span<const RecordedRequest> requests,
                                                    double speed) {
  constexpr std::chrono::hours kLongest{366 * 24};
  std::vector<nanoseconds> schedule;
  schedule.reserve(requests.size());
  for (const RecordedRequest& request : requests) {
    const std::chrono::duration<double, std::nano> due =
        (request.arrived - requests.front().arrived) / speed;
    if (due > kLongest) {
      return absl::InvalidArgumentError(
          fmt::format("a request of the recording would be due after {:.0f} days, and no replay "
                      "takes more than 366: raise --speed, or leave that request out",
                      std::chrono::duration<double, std::ratio<86400>>(due).count()));
    }
    schedule.push_back(std::chrono::duration_cast<nanoseconds>(due));
  }
  return schedule;
}

}  // namespace sparsed::cli
