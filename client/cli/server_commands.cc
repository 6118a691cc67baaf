// info, stats, buffers, spy.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/npy.h"
#include "client/cli/progress_bar.h"
#include "client/cli/spy_picture.h"

namespace sparsed::cli {
namespace {

std::string TimeToLive(const DenseInfo& info) {
  return info.time_to_live.has_value() ? Duration(*info.time_to_live) : "until deleted";
}

/// What a command that did `verb` to one says of it.
absl::StatusOr<Report> Describe(const absl::StatusOr<DenseInfo>& info, std::string_view verb) {
  if (!info.ok()) return info.status();
  return Report{ToJson(*info), fmt::format("{} {}: {} x {} {}, time to live {}\n", verb, info->name,
                                           Count(info->rows), Count(info->cols), Name(info->type),
                                           TimeToLive(*info))};
}

}  // namespace

absl::StatusOr<Report> Spy(const Client& client, const SpyArguments& arguments, bool json) {
  const absl::StatusOr<CsrMatrix> matrix = client.MatrixNamed(arguments.name).Download();
  if (!matrix.ok()) return matrix.status();
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  SpyOptions options;
  options.max_width = arguments.width > 0 ? arguments.width : TerminalWidth(STDOUT_FILENO);
  options.max_height = arguments.height > 0 ? arguments.height : std::max(8, options.max_width / 2);
  options.ascii = arguments.ascii || !ShowsUnicode();
  options.colour =
      !json && (arguments.colour == "always" ||
                (arguments.colour == "auto" && terminal && std::getenv("NO_COLOR") == nullptr));
  const SpyDrawing drawing = SpyPicture(*matrix, options);

  Report report;
  report.json = {{"name", arguments.name},
                 {"rows", matrix->rows},
                 {"cols", matrix->cols},
                 {"nnz", matrix->nnz()},
                 {"picture", drawing.lines}};
  for (const std::string& line : drawing.lines) report.text += line + '\n';
  report.text += fmt::format("{}: {} x {}, {} nonzeros", arguments.name, Count(matrix->rows),
                             Count(matrix->cols), Count(matrix->nnz()));
  const double elements = static_cast<double>(matrix->rows) * static_cast<double>(matrix->cols);
  if (elements > 0) {
    report.text += fmt::format(" ({:.3g}%)", 100 * static_cast<double>(matrix->nnz()) / elements);
  }
  if (drawing.dot_threshold > 1) {
    report.text += fmt::format("; a dot is {} or more", Count(drawing.dot_threshold));
  }
  report.text += '\n';
  return report;
}

absl::StatusOr<Report> ListBuffers(const Client& client, const std::string& prefix) {
  const absl::StatusOr<std::vector<DenseInfo>> buffers = client.ListDense(prefix);
  if (!buffers.ok()) return buffers.status();
  Report report{{{"buffers", Json::array()}}, ""};
  Table table({"NAME", "ROWS", "COLUMNS", "TYPE", "BYTES", "VERSION", "DURABLE", "TENANT", "OWNER",
               "TIME TO LIVE", "IDLE"});
  for (const DenseInfo& info : *buffers) {
    report.json["buffers"].push_back(ToJson(info));
    table.Add({info.name, Count(info.rows), Count(info.cols), Name(info.type), Bytes(info.bytes),
               std::to_string(info.version), info.durable ? "yes" : "no", info.tenant, info.owner,
               TimeToLive(info), Duration(info.idle)});
  }
  report.text = table.empty() ? "no held dense matrices\n" : table.Text();
  return report;
}

absl::StatusOr<std::chrono::nanoseconds> ParseDuration(std::string_view text) {
  constexpr std::array<std::pair<char, int64_t>, 4> kUnits = {
      {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}}};
  constexpr int64_t kMost = 366 * 86400;
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, number);
  for (const auto& [unit, seconds] : kUnits) {
    const bool is_it = error == std::errc() && end - parsed == 1 && *parsed == unit;
    if (is_it && number > 0 && number <= kMost / seconds) {
      return std::chrono::seconds(number * seconds);
    }
  }
  return absl::InvalidArgumentError(
      fmt::format("\"{}\" is not a time such as 90s, 10m, 24h or 7d, of at most 366 days", text));
}

absl::StatusOr<Report> PutBuffer(const Client& client, const PutBufferArguments& arguments) {
  const absl::StatusOr<ValueType> type = ParseType(arguments.type);
  if (!type.ok()) return type.status();
  PutOptions put = {.durable = arguments.durable, .owner = arguments.owner};
  if (!arguments.time_to_live.empty()) {
    const auto time_to_live = ParseDuration(arguments.time_to_live);
    if (!time_to_live.ok()) return time_to_live.status();
    put.time_to_live = *time_to_live;
  }
  const absl::StatusOr<NpyArray> array = ReadNpy(arguments.file, *type);
  if (!array.ok()) return array.status();
  const auto held = client.PutDense(arguments.name, array->View(), put);
  if (!held.ok()) return held.status();
  return Describe(held->Info(), "put");
}

absl::StatusOr<Report> RenewBuffer(const Client& client, const std::string& name) {
  return Describe(client.DenseNamed(name).Renew(), "renewed");
}

absl::StatusOr<Report> DeleteBuffer(const Client& client, const std::string& name) {
  if (absl::Status status = client.DenseNamed(name).Delete(); !status.ok()) return status;
  return Report{{{"deleted", name}}, fmt::format("deleted {}\n", name)};
}

/// An activity in the words of whoever asks why it takes so long.
std::string WaitsFor(const std::string& activity) {
  if (activity == "receiving") return "bytes of the client";
  if (activity == "working") return "lane, kernel or disk";
  if (activity == "sending") return "the client to read";
  return activity;
}

absl::StatusOr<Report> Stats(const Client& client) {
  const auto stats = client.GetStats();
  if (!stats.ok()) return stats.status();
  Report report{ToJson(*stats), ""};
  report.text = fmt::format(
      "up            {:.0f} s, devices busy {:.1f} s\n"
      "holds         {} matrices, {} patterns, {} dense matrices\n"
      "under way     {} requests, {} preparations (running and waiting)\n",
      stats->uptime_seconds, stats->device_busy_seconds, stats->matrices, stats->patterns,
      stats->dense_matrices, stats->requests_in_flight, stats->preparations_pending);
  Table memory({"MEMORY", "BYTES"});
  for (const auto& [use, bytes] : stats->memory_bytes) memory.Add({use, Bytes(bytes)});
  if (!memory.empty()) report.text += fmt::format("\n{}", memory.Text());
  Table in_flight({"IN FLIGHT", "WAITS FOR", "COUNT", "BYTES", "OLDEST"});
  for (const RequestsInFlight& requests : stats->in_flight) {
    in_flight.Add({requests.operation, WaitsFor(requests.activity), Count(requests.count),
                   Bytes(requests.bytes), fmt::format("{:.1f} s", requests.oldest_seconds)});
  }
  if (!in_flight.empty()) report.text += fmt::format("\n{}", in_flight.Text());
  Table requests({"REQUESTS", "CODE", "COUNT"});
  for (const RequestCount& request : stats->requests) {
    requests.Add({request.operation, request.code, Count(request.count)});
  }
  if (!requests.empty()) report.text += fmt::format("\n{}", requests.Text());
  return report;
}

absl::StatusOr<Report> Info(const Client& client) {
  const absl::StatusOr<ServerInfo> info = client.GetServerInfo();
  if (!info.ok()) return info.status();
  Report report{ToJson(*info), ""};
  report.text = fmt::format(
      "sparsed {}, started {}\n"
      "memory   {} at most\n"
      "uploads  {}\n"
      "metrics  {}\n"
      "local    {}\n",
      info->version, Time(info->started), Bytes(info->host_memory_limit_bytes),
      info->durable ? "survive a restart" : "are kept in memory only",
      info->metrics_address.empty() ? "not served"
                                    : fmt::format("http://{}/metrics", info->metrics_address),
      info->local_socket.empty()
          ? "no memory is shared"
          : fmt::format("processes here share memory at {}", info->local_socket));
  Table devices({"DEVICE", "THREADS", "DESCRIPTION", "NOTE"});
  for (const DeviceInfo& device : info->devices) {
    devices.Add(
        {device.name, std::to_string(device.threads), device.description, device.unavailable});
  }
  report.text += fmt::format("\n{}", devices.Text());
  return report;
}

}  // namespace sparsed::cli
