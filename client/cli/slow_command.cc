// slow.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "client/cli/command_line.h"
#include "client/cli/commands.h"

namespace sparsed::cli {
namespace {

double InMilliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

Json ToJson(const SlowRequest& slow) {
  const Timings& t = slow.timings;
  Json json = {{"request_id", slow.request_id},
               {"ended_unix_ms",
                std::chrono::duration_cast<std::chrono::milliseconds>(slow.ended.time_since_epoch())
                    .count()},
               {"tenant", slow.tenant},
               {"caller", slow.caller},
               {"operation", slow.operation},
               {"subject", slow.subject},
               {"code", slow.code},
               {"message", slow.message},
               {"timings_ms",
                {{"total", InMilliseconds(t.total)},
                 {"queue", InMilliseconds(t.queue)},
                 {"queue_trials", InMilliseconds(t.queue_trials)},
                 {"queue_others", InMilliseconds(t.queue_others)},
                 {"receive", InMilliseconds(t.receive)},
                 {"setup", InMilliseconds(t.setup)},
                 {"to_device", InMilliseconds(t.to_device)},
                 {"kernel", InMilliseconds(t.kernel)},
                 {"from_device", InMilliseconds(t.from_device)},
                 {"send", InMilliseconds(t.send)}}},
               {"plan", slow.plan},
               {"k", slow.k},
               {"parameters", slow.parameters},
               {"transport", slow.transport},
               {"bytes_in", slow.bytes_in},
               {"bytes_out", slow.bytes_out}};
  if (!slow.trace_id.empty()) json["trace_id"] = slow.trace_id;
  return json;
}

std::vector<Listing::Column> RequestColumns() {
  return {{"TOTAL", "timings_ms/total"},
          {"OPERATION", "operation"},
          {"NAME", "subject"},
          {"PARAMETERS", "parameters"},
          {"PLAN", "plan"},
          {"TRANSPORT", "transport"},
          {"CODE", "code"},
          {"ENDED", "ended_unix_ms"},
          {"TENANT", "tenant"},
          {"REQUEST", "request_id"}};
}

/// "K=64 transpose".
std::string Parameters(const SlowRequest& slow) {
  std::string text = slow.k > 0 ? fmt::format("K={}", slow.k) : "";
  if (!slow.parameters.empty()) text += (text.empty() ? "" : " ") + slow.parameters;
  return text;
}

/// Whether the server would not do what was asked, and said so at once. What ran out of time, was
/// given up or went wrong is none such.
bool WasRefusedAtOnce(const SlowRequest& slow) {
  constexpr std::array<std::string_view, 9> kRefusals = {
      "INVALID_ARGUMENT",  "NOT_FOUND",          "ALREADY_EXISTS",
      "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "OUT_OF_RANGE",      "UNIMPLEMENTED",      "UNAUTHENTICATED"};
  return slow.timings.total < std::chrono::milliseconds(1) &&
         std::ranges::find(kRefusals, slow.code) != kRefusals.end();
}

/// Whether it is one that was asked for.
bool IsWanted(const SlowRequest& slow, const SlowArguments& arguments) {
  const bool of_name = arguments.name.empty() || slow.subject == arguments.name ||
                       fmt::format("{}~{}", slow.tenant, slow.subject) == arguments.name;
  return of_name && (arguments.tenant.empty() || slow.tenant == arguments.tenant) &&
         (arguments.refused || !WasRefusedAtOnce(slow));
}

/// What is said where there is none; `matrix`: that NAME is, empty if it is none.
std::string NoneText(const SlowOptions& asked, const std::string& matrix, int64_t of_others) {
  std::string text = "no such requests";
  if (!asked.tenant.empty()) {
    text += fmt::format(" of tenant {}'s", asked.tenant);
  } else if (!asked.all) {
    text += " of this tenant's";
  }
  text += " among the slowest of the last hour";
  if (!matrix.empty()) {
    // The fastest of a matrix's are not kept where others were slower.
    text += fmt::format("; what requests of a matrix take: sparsectl explain {}", matrix);
  }
  if (of_others > 0) text += fmt::format("; other tenants have {}: --all", of_others);
  return text;
}

/// The matrix that a name is of; empty: a buffer. NOT_FOUND if it is of neither.
absl::StatusOr<std::string> MatrixOfName(const Client& client, const std::string& name) {
  const absl::Status matrix = client.MatrixNamed(name).Info().status();
  if (!absl::IsNotFound(matrix)) return name;
  if (!absl::IsNotFound(client.DenseNamed(name).Info().status())) return "";
  return Reworded(matrix, fmt::format("there is no matrix or buffer named '{}'", name));
}

/// Likewise for an operator: of a tenant's, or without one of any tenant's.
absl::StatusOr<std::string> MatrixOfAnyone(const Client& client, const std::string& name,
                                           const std::string& tenant) {
  const bool says_whose = name.find('~') != std::string::npos;
  const bool of_any = tenant.empty() && !says_whose;
  const std::string reference = tenant.empty() || says_whose ? name : tenant + "~" + name;
  const auto has_name = [&](const auto& info) {
    return of_any ? info.name.ends_with("~" + name) : info.name == reference;
  };
  const std::string prefix = of_any ? "" : reference;
  const absl::StatusOr<std::vector<MatrixInfo>> matrices = client.ListAll(prefix);
  if (!matrices.ok()) return matrices.status();
  const auto matrix = std::ranges::find_if(*matrices, has_name);
  if (matrix != matrices->end()) return matrix->name;
  const absl::StatusOr<std::vector<DenseInfo>> buffers = client.ListAllDense(prefix);
  if (!buffers.ok()) return buffers.status();
  if (std::ranges::any_of(*buffers, has_name)) return "";
  return absl::NotFoundError(fmt::format("there is no matrix or buffer named '{}'", reference));
}

/// Quotas that refused requests, below the list; empty: none did.
std::string RefusedText(const std::vector<QuotaInfo>& refused_at, const SlowOptions& asked) {
  if (refused_at.empty()) return "";
  std::string text;
  for (const QuotaInfo& quota : refused_at) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", quota.quota,
                        quota.refused == 1 ? "once" : fmt::format("{} times", quota.refused));
  }
  // The list is of all tenants, but the quotas are one's.
  const std::string whose = !asked.tenant.empty() ? fmt::format("tenant {}'s ", asked.tenant)
                            : asked.all           ? "your own tenant's "
                                                  : "";
  return Wrapped(
      fmt::format("refused at {}quotas since the server's start: {}. Clients wait at some "
                  "of them and ask again, which no request here has the time of; limits: "
                  "sparsectl {}",
                  whose, text, asked.all ? "tenants" : "quota"),
      "    ");
}

/// Whose requests, and what of them.
absl::StatusOr<SlowOptions> Asked(const Client& client, const SlowArguments& arguments) {
  SlowOptions asked = {.all = arguments.all,
                       .limit = 100,  // the most: some of them are not wanted
                       .operation = arguments.operation,
                       .tenant = arguments.tenant,
                       .subject = arguments.name};
  const size_t mark = arguments.name.find('~');
  if (asked.all || (asked.tenant.empty() && mark == std::string::npos)) return asked;
  const absl::StatusOr<ServerInfo> server = client.GetServerInfo();
  if (!server.ok()) return server.status();
  // One's own are for everybody, those of others for operators. Who is none and says
  // TENANT~NAME asks for his own requests with what is shared with him.
  asked.all = asked.tenant.empty()
                  ? server->role == "operator" && arguments.name.substr(0, mark) != server->tenant
                  : asked.tenant != server->tenant;
  return asked;
}

}  // namespace

absl::StatusOr<Report> Slow(const Client& client, const SlowArguments& arguments) {
  const absl::StatusOr<SlowOptions> asked = Asked(client, arguments);
  if (!asked.ok()) return asked.status();
  absl::StatusOr<SlowList> list = client.ListSlow(*asked);
  if (!list.ok()) return list.status();
  std::vector<SlowRequest>* slow = &list->requests;
  // What an older server does not leave out, too.
  std::erase_if(*slow, [&](const SlowRequest& request) { return !IsWanted(request, arguments); });
  std::string matrix;
  if (slow->empty() && !arguments.name.empty()) {
    absl::StatusOr<std::string> named = asked->all
                                            ? MatrixOfAnyone(client, arguments.name, asked->tenant)
                                            : MatrixOfName(client, arguments.name);
    if (!named.ok()) return named.status();
    matrix = *std::move(named);
  }
  // The slowest of them, in the order that is asked for.
  slow->resize(std::min(slow->size(), static_cast<size_t>(arguments.limit)));
  if (const std::string key = SortKey(arguments.sort, RequestColumns()); !key.empty()) {
    std::ranges::stable_sort(*slow, [&](const SlowRequest& a, const SlowRequest& b) {
      return SortsBefore(ToJson(a), ToJson(b), key, arguments.sort.starts_with('-'));
    });
  }
  Listing listing("requests", NoneText(*asked, matrix, list->of_others), RequestColumns());
  // The list below has plans and ids.
  listing.LeaveOut({"TRANSPORT", "PLAN", "REQUEST", "TENANT", "ENDED"});
  std::string phases;
  std::chrono::nanoseconds longest{};
  for (const SlowRequest& request : *slow) {
    listing.Add(ToJson(request),
                {Milliseconds(request.timings.total), request.operation, request.subject,
                 Parameters(request), request.plan, request.transport, request.code,
                 Time(request.ended), request.tenant, request.request_id});
    longest = std::max(longest, request.timings.total);
    phases += Wrapped(fmt::format("{}  {}{}{}", request.request_id, Text(request.timings),
                                  request.plan.empty() ? "" : "; ", request.plan),
                      "    ");
  }
  Report report = Report::Of(std::move(listing));
  if (!phases.empty()) {
    report.below = "\nwhere the time went\n" + phases;
    if (longest < std::chrono::milliseconds(1)) {
      report.below +=
          fmt::format("\nnone of them is slow: the longest took {}\n", ShortTime(longest));
    }
    if (list->of_others > 0) {
      report.below += fmt::format("\n{} more of other tenants: --all\n", list->of_others);
    }
  }
  if (const std::string refused = RefusedText(list->refused_at, *asked); !refused.empty()) {
    report.below += "\n" + refused;
  }
  report.json["of_others"] = list->of_others;
  report.json["refused_at"] = Json::array();
  for (const QuotaInfo& quota : list->refused_at) {
    report.json["refused_at"].push_back({{"quota", quota.quota}, {"refused", quota.refused}});
  }
  return report;
}

void AddSlow(CLI::App& app, Invocation& invocation) {
  CLI::App* slow = AddCommand(
      app, "slow", "The slowest requests of the last hour, with their parameters and phases",
      {"slow", "slow --limit=5 --json", "slow g --sort=-ended", "slow --op=explain"});
  auto arguments = std::make_shared<SlowArguments>();
  slow->add_option("NAME", arguments->name,
                   "Of one matrix or buffer, another's as TENANT~NAME (default: all)")
      ->type_name("MATRIX");
  slow->add_flag("--all", arguments->all, "Of all tenants; for operators");
  slow->add_option("--tenant", arguments->tenant, "Of one tenant; another's for operators")
      ->type_name("TENANT");
  slow->add_option(
          "--op", arguments->operation,
          "Of one operation: spmm, upload, explain, ...; without it explain and those that "
          "only ask what the server knows (list, show, ...) are left out")
      ->type_name(
          "spmm|sddmm|spgemm|chain|upload|update_values|download|explain|prepare|put_buffer|"
          "get_buffer|OPERATION");
  slow->add_flag("--refused", arguments->refused,
                 "Also those that the server refused within a millisecond: what was not there, "
                 "not allowed or wrong; JSON and YAML have them always");
  slow->add_option("--limit", arguments->limit, "How many at most, 1 to 100")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  invocation.columns[slow] = RequestColumns();
  slow->callback([&invocation, arguments] {
    invocation.lists = true;
    arguments->sort = invocation.sort;
    arguments->refused = arguments->refused || ForPrograms(invocation.output);
    invocation.run = [arguments](const Client& client) { return Slow(client, *arguments); };
  });
}

}  // namespace sparsed::cli
