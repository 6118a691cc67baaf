// info, stats, spy.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/progress_bar.h"
#include "client/cli/spy_picture.h"

namespace sparsed::cli {
namespace {

/// Of the columns that are in no sum.
constexpr std::string_view kBesideUse =
    "  KEPT is free memory that the next request gets, given up when it is needed; SET ASIDE is "
    "the part of --host-memory for messages on their way in (--wire-memory): neither is in use";

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
  report.text += fmt::format("{}: {} x {}, {}", arguments.name, Count(matrix->rows),
                             Count(matrix->cols), Counted(matrix->nnz(), "nonzero"));
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

std::map<std::string, int64_t> UsesOf(const sparsed::Stats& stats) {
  std::map<std::string, int64_t> uses = stats.memory_bytes;
  uses.erase("kept");  // in no sum
  return uses;
}

int64_t HostBytes(const sparsed::Stats& stats) {
  int64_t sum = 0;
  for (const auto& [use, bytes] : UsesOf(stats)) sum += bytes;
  return sum;
}

std::string WaitsFor(const std::string& activity) {
  if (activity == "receiving") return "bytes of the client";
  if (activity == "working") return "worker slot, kernel or disk";
  if (activity == "sending") return "the client to read";
  return activity;
}

absl::StatusOr<Report> Stats(const Client& client) {
  const auto stats = client.GetStats();
  if (!stats.ok()) return stats.status();
  Report report{ToJson(*stats), ""};
  report.text = fmt::format(
      "up            {:.0f} s, devices busy {:.1f} s\n"
      "holds         {}, {}, {}\n"
      "under way     {}, {} (running and waiting)\n",
      stats->uptime_seconds, stats->device_busy_seconds,
      Counted(stats->matrices, "matrix", "matrices"), Counted(stats->patterns, "pattern"),
      Counted(stats->dense_matrices, "buffer"), Counted(stats->requests_in_flight, "request"),
      Counted(stats->preparations_pending, "preparation"));
  Table devices({"DEVICE", "MEMORY IN USE", "OF", "MOST SO FAR", "KEPT", "SET ASIDE"});
  for (const DeviceUse& device : stats->devices) {
    devices.Add({device.name, Bytes(device.memory_bytes), Bytes(device.memory_limit_bytes),
                 Bytes(device.memory_peak_bytes), Bytes(device.memory_kept_bytes),
                 Bytes(device.memory_reserved_bytes)});
  }
  if (!devices.empty()) {
    report.text += fmt::format("\n{}{}", devices.Text(), Wrapped(kBesideUse, "  "));
  }
  Table memory({"HOST MEMORY FOR", "BYTES"});
  for (const auto& [use, bytes] : UsesOf(*stats)) memory.Add({use, Bytes(bytes)});
  if (!memory.empty()) {
    memory.Add({"all in use", Bytes(HostBytes(*stats))});
    report.text += fmt::format("\n{}", memory.Text());
  }
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

/// "2.61 TB/s", "8.1 us".
std::string Constant(std::string_view name, double value) {
  const auto ends = [name](std::string_view with) {
    return name.size() >= with.size() && name.substr(name.size() - with.size()) == with;
  };
  if (ends("_seconds")) return fmt::format("{:.3g} us", 1e6 * value);
  const char* const unit = ends("bytes_per_second") ? "B/s" : "op/s";
  if (value >= 1e12) return fmt::format("{:.3g} T{}", 1e-12 * value, unit);
  return fmt::format("{:.3g} G{}", 1e-9 * value, unit);
}

std::string ConstantsText(const std::vector<DeviceInfo>& devices) {
  Table table({"DEVICE", "CONSTANT", "VALUE", "FROM"});
  for (const DeviceInfo& device : devices) {
    for (const auto& [name, value] : device.constants) {
      table.Add({device.name, name, Constant(name, value),
                 device.calibrated ? Time(*device.calibrated) : "built in"});
    }
  }
  return table.empty() ? "" : fmt::format("\n{}", table.Text());
}

absl::StatusOr<Report> Calibrate(const Client& client, const std::string& device) {
  const absl::StatusOr<DeviceInfo> info = client.Calibrate(device);
  if (!info.ok()) return info.status();
  return Report{ToJson(*info), fmt::format("measured {} ({})\n{}", info->name, info->description,
                                           ConstantsText({*info}))};
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
  report.text += fmt::format("\n{}{}", devices.Text(), ConstantsText(info->devices));
  return report;
}

}  // namespace sparsed::cli
