#include "server/telemetry/status_page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <string_view>

#include "engine/engine.h"

namespace sparsed::server {
namespace {

constexpr size_t kMaxMatrices = 200;

constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<meta name="viewport" content="width=device-width"><title>sparsed</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em;
       color-scheme: light dark; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .2em .8em .2em 0; border-bottom: 1px solid #8884;
         vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
p.none { opacity: .6; }
</style></head><body>
)";

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string Size(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes);
  size_t unit = 0;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", size, kUnits[unit]);
}

std::string Duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole >= 86400) return fmt::format("{} d {} h", whole / 86400, whole % 86400 / 3600);
  if (whole >= 3600) return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

std::string Devices(const engine::Engine& engine) {
  std::string html = "<h2>Devices</h2><table>";
  for (const engine::DeviceFacts& device : engine.devices()) {
    html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>", Escaped(device.name),
                        Escaped(device.description),
                        device.unavailable.empty() ? "serves" : Escaped(device.unavailable));
  }
  return html + "</table>";
}

std::string Memory(engine::Engine& engine) {
  const engine::Budget& budget = engine.budget();
  std::string html = fmt::format("<h2>Memory</h2><p>{} of {} in use, at most {} so far</p><table>",
                                 Size(budget.used()), Size(budget.limit()), Size(budget.peak()));
  for (int use = 0; use < engine::kMemoryUses; ++use) {
    const auto memory_use = static_cast<engine::MemoryUse>(use);
    html += fmt::format("<tr><td>{}</td><td class=n>{}</td></tr>", engine::Name(memory_use),
                        Size(budget.used(memory_use)));
  }
  html += fmt::format("<tr><td>kept for the next request</td><td class=n>{}</td></tr>",
                      Size(budget.kept()));
  return html + "</table>";
}

std::string Matrices(engine::Engine& engine) {
  const std::vector<engine::MatrixLease> matrices = engine.catalog().All();
  std::string html = fmt::format("<h2>{} matrices</h2>", matrices.size());
  if (matrices.empty()) return html + "<p class=none>none yet</p>";
  html +=
      "<table><tr><th>name<th class=n>rows<th class=n>columns<th class=n>nonzeros<th>type"
      "<th>state<th>what the preparation says</tr>";
  for (size_t i = 0; i < std::min(matrices.size(), kMaxMatrices); ++i) {
    const engine::Matrix& matrix = *matrices[i];
    const engine::PreparationStatus status = matrix.pattern()->progress().status();
    const std::string state =
        status.stage.empty() ? std::string(engine::Name(status.state))
                             : fmt::format("{} ({})", engine::Name(status.state), status.stage);
    html +=
        fmt::format("<tr><td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td>{}<td>{}<td>{}</tr>",
                    Escaped(matrix.name()), matrix.pattern()->rows(), matrix.pattern()->cols(),
                    matrix.pattern()->nnz(), sparsed::Name(matrix.type()), Escaped(state),
                    Escaped(status.detail));
  }
  html += "</table>";
  if (matrices.size() > kMaxMatrices) {
    html += fmt::format("<p>and {} more</p>", matrices.size() - kMaxMatrices);
  }
  return html;
}

std::string Requests(const Telemetry& telemetry) {
  std::string html = "<h2>Recent requests</h2>";
  const std::vector<RecentRequest> recent = telemetry.Recent();
  if (recent.empty()) return html + "<p class=none>none yet</p>";
  html +=
      "<table><tr><th>ended (UTC)<th>operation<th>of<th>code<th class=n>total ms"
      "<th class=n>kernel ms<th>what was wrong</tr>";
  for (const RecentRequest& request : recent) {
    const StageRecord& record = request.record;
    html += fmt::format(
        "<tr><td>{:%H:%M:%S}<td>{}<td>{}<td>{}<td class=n>{:.3f}<td class=n>{:.3f}<td>{}</tr>",
        fmt::gmtime(std::chrono::system_clock::to_time_t(request.ended)), Name(record.op),
        Escaped(record.subject), absl::StatusCodeToString(record.status.code()),
        static_cast<double>(record.total_ns) * 1e-6,
        static_cast<double>(record[Phase::kKernel]) * 1e-6,
        Escaped({record.status.message().data(), record.status.message().size()}));
  }
  return html + "</table>";
}

}  // namespace

std::string StatusPage(const Config& config, engine::Engine& engine, const Telemetry& telemetry,
                       double uptime_seconds, const std::string& not_ready) {
  std::string html(kHead);
  html += fmt::format(
      "<h1>sparsed {}{}</h1><p>up {}; {}; serving at {}; "
      "<a href=\"/metrics\">metrics</a></p>",
      SPARSED_VERSION, not_ready.empty() ? "" : ", not ready: " + Escaped(not_ready),
      Duration(uptime_seconds),
      config.in_memory() ? "in memory only" : fmt::format("data in {}", Escaped(config.data_dir)),
      Escaped(fmt::format("{}", fmt::join(config.listen, ", "))));
  html += Devices(engine) + Memory(engine) + Matrices(engine) + Requests(telemetry);
  return html + "</body></html>\n";
}

}  // namespace sparsed::server
