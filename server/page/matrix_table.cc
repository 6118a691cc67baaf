#include "server/page/matrix_table.h"

#include <algorithm>
#include <utility>

#include "engine/catalog/busy_trials.h"
#include "engine/catalog/signature.h"

namespace sparsed::server {
namespace {

int64_t BytesInMemory(const engine::Matrix& matrix) {
  const engine::Pattern& pattern = *matrix.pattern();
  int64_t bytes = matrix.resident_bytes() + pattern.resident_bytes();
  for (const engine::Pattern::BuiltEntry& entry : pattern.Layouts()) {
    bytes += matrix.LayoutValueBytes(entry.description->pipeline);
    if (entry.layout->resident()) bytes += entry.description->bytes();
  }
  return bytes;
}

}  // namespace

double GainOf(const engine::Plan& plan) {
  if (plan.plan_ms <= 0 || plan.plan_ms == plan.baseline_ms) return 0;
  return plan.baseline_ms / plan.plan_ms;
}

namespace {

void SetPlan(const engine::Matrix& matrix, const engine::Executor& executor, bool tells_use,
             MatrixRow& row) {
  const engine::Pattern& pattern = *matrix.pattern();
  const engine::Plan* shown = nullptr;
  const auto plans = matrix.UsedPlans();
  for (const engine::PlanTable::Used& used : plans) {
    const engine::Plan& plan = used.plan->plan;
    const bool in_use = tells_use && used.in_use;
    if (in_use || (!row.in_use && (shown == nullptr || plan.baseline_ms > shown->baseline_ms))) {
      shown = &plan;
      row.in_use = in_use;
    }
  }
  if (shown == nullptr) return;
  row.signature = engine::SignatureText(shown->signature);
  row.plan = shown->ToString();
  row.gain = GainOf(*shown);
  const std::vector<engine::Measurement> measurements = pattern.trials().measurements();
  row.busy = engine::FindBusyTrials(*shown, measurements).has_value();
  row.roofline = engine::RooflineOf(*shown, measurements, executor);
}

}  // namespace

MatrixRow MakeMatrixRow(const engine::Matrix& matrix, engine::Engine& engine,
                        const LiveRequests& live, bool tells_use) {
  const engine::Pattern& pattern = *matrix.pattern();
  MatrixRow row;
  row.tenant = matrix.tenant();
  row.name = matrix.name();
  row.pattern = matrix.pattern();
  row.identity = &pattern;
  row.rows = pattern.rows();
  row.cols = pattern.cols();
  row.nnz = pattern.nnz();
  row.type = matrix.type();
  row.version = matrix.version();
  row.created_unix_ns = matrix.created_unix_ns();
  row.durable = matrix.durable();
  row.bytes = BytesInMemory(matrix);
  row.state = pattern.progress().status().state;
  SetPlan(matrix, engine.executor(), tells_use, row);
  row.owners_use = live.UseOf(row.tenant, row.name, row.tenant);
  row.owners_use.products = {};
  row.owners_use.transports = {};
  row.use = live.UseOf(row.tenant, row.name, /*by=*/"");
  return row;
}

std::vector<MatrixRow> MakeMatrixTable(engine::Engine& engine, const LiveRequests& live,
                                       const ShardOf& shard_of) {
  std::vector<MatrixRow> table;
  const std::vector<engine::MatrixLease> matrices = engine.catalog().All();
  table.reserve(matrices.size());
  for (const engine::MatrixLease& matrix : matrices) {
    std::optional<std::string> shard;
    if (shard_of != nullptr) shard = shard_of({matrix->tenant(), matrix->name()});
    if (shard.has_value() && shard->empty()) continue;
    table.push_back(MakeMatrixRow(*matrix, engine, live));
    table.back().shard = std::move(shard).value_or("");
  }
  std::ranges::sort(table, {}, [](const MatrixRow& row) {
    return std::pair<std::string_view, std::string_view>(row.tenant, row.name);
  });
  return table;
}

}  // namespace sparsed::server
