#include "server/page/matrix_table.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace sparsed::server {
namespace {

int64_t BytesInMemory(const engine::Matrix& matrix) {
  const engine::Pattern& pattern = *matrix.pattern();
  int64_t bytes = matrix.resident_bytes() + pattern.resident_bytes();
  for (const engine::Pattern::BuiltEntry& entry : pattern.Layouts()) {
    bytes += matrix.LayoutValueBytes(entry.description->recipe);
    if (entry.layout->resident()) bytes += entry.description->bytes();
  }
  return bytes;
}

void SetPlan(const engine::Matrix& matrix, const engine::Executor& executor, MatrixRow& row) {
  const engine::Pattern& pattern = *matrix.pattern();
  // Which plan others' requests use is nobody's business.
  const bool known = pattern.IsOnlyOf(matrix.tenant());
  const engine::Plan* shown = nullptr;
  bool shown_in_use = false;
  const auto plans = pattern.plans().ListUsed(matrix.type());
  for (const engine::PlanTable::Used& used : plans) {
    const engine::Plan& plan = used.plan->plan;
    const bool in_use = known && used.in_use;
    if (in_use || (!shown_in_use && (shown == nullptr || plan.baseline_ms > shown->baseline_ms))) {
      shown = &plan;
      shown_in_use = in_use;
    }
  }
  row.in_use = known ? std::optional(shown_in_use) : std::nullopt;
  if (shown == nullptr) return;
  row.problem_class = ToString(shown->problem_class);
  row.plan = shown->ToString();
  if (shown->plan_ms > 0) row.gain = shown->baseline_ms / shown->plan_ms;
  row.roofline = engine::RooflineOf(*shown, pattern.trials().measurements(), executor);
}

}  // namespace

std::vector<MatrixRow> MakeMatrixTable(engine::Engine& engine, const LiveRequests& live) {
  std::vector<MatrixRow> table;
  const std::vector<engine::MatrixLease> matrices = engine.catalog().All();
  table.reserve(matrices.size());
  for (const engine::MatrixLease& lease : matrices) {
    const engine::Matrix& matrix = *lease;
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
    SetPlan(matrix, engine.executor(), row);
    row.use = live.UseOf(row.tenant, row.name);
    table.push_back(std::move(row));
  }
  std::ranges::sort(table, {}, [](const MatrixRow& row) {
    return std::pair<std::string_view, std::string_view>(row.tenant, row.name);
  });
  return table;
}

const MatrixRow* FindRow(const std::vector<MatrixRow>& table, std::string_view tenant,
                         std::string_view name) {
  const std::pair<std::string_view, std::string_view> wanted(tenant, name);
  const auto key = [](const MatrixRow& row) {
    return std::pair<std::string_view, std::string_view>(row.tenant, row.name);
  };
  const auto found = std::ranges::lower_bound(table, wanted, {}, key);
  return found == table.end() || key(*found) != wanted ? nullptr : &*found;
}

}  // namespace sparsed::server
