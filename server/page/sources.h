// What the status page's answers are made from.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "server/config/config.h"
#include "server/page/matrix_table.h"
#include "server/page/query.h"
#include "server/page/snapshot.h"
#include "server/telemetry/http_port.h"
#include "server/telemetry/in_flight.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {

/// Outlives the pages.
struct PageSources {
  const Config& config;
  engine::Engine& engine;
  const Telemetry& telemetry;
  std::function<InFlightTable()> in_flight;
  std::function<std::string()> not_ready;  ///< empty: requests are served
  /// The nodes of the cluster, as this server knows them; null of a server by itself.
  std::function<nlohmann::json()> cluster;
  ShardOf shard_of;  ///< likewise
  std::vector<std::string> addresses;
  std::chrono::system_clock::time_point started;
  std::chrono::steady_clock::time_point started_steady;
};

/// A buffer, as the page lists it.
struct BufferRow {
  std::string tenant, name, owner;
  engine::DenseShape shape;
  uint64_t version = 0;
  bool durable = false, resident = false;
  int64_t bytes = 0;
  double idle_seconds = 0, time_to_live_seconds = 0;
  int parts = 0;  ///< GPUs that it is distributed over; 0: it is whole
};
/// The sources, and what is made of them now and then. Thread-safe.
class PageTables {
 public:
  explicit PageTables(PageSources sources);
  const PageSources sources;
  Snapshot<std::vector<MatrixRow>> matrices;
  Snapshot<std::vector<BufferRow>> buffers;
};

/// Whether what is a tenant's is shown.
inline bool MaySee(const Viewer& viewer, std::string_view tenant) {
  return viewer.all || viewer.tenant == tenant;
}

// The answers, each of bounded size. INVALID_ARGUMENT for parameters that are wrong, NOT_FOUND,
// PERMISSION_DENIED.
using Answer = absl::StatusOr<nlohmann::json>;
Answer StatusAnswer(PageTables& tables, const HttpRequest& request);
Answer MatricesAnswer(PageTables& tables, const HttpRequest& request);
Answer MatrixAnswer(PageTables& tables, const HttpRequest& request);
Answer CandidatesAnswer(PageTables& tables, const HttpRequest& request);
Answer PictureAnswer(PageTables& tables, const HttpRequest& request);
Answer PreparationsAnswer(PageTables& tables, const HttpRequest& request);
Answer BuffersAnswer(PageTables& tables, const HttpRequest& request);
Answer RequestsAnswer(PageTables& tables, const HttpRequest& request);
Answer TenantsAnswer(PageTables& tables, const HttpRequest& request);
Answer ConfigurationAnswer(PageTables& tables, const HttpRequest& request);

}  // namespace sparsed::server
