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

void SetPlan(const engine::Pattern& pattern, MatrixRow& row) {
  std::shared_ptr<const engine::ActivePlan> longest;
  for (auto& active : pattern.plans().List()) {
    if (longest == nullptr || active->plan.baseline_ms > longest->plan.baseline_ms) {
      longest = std::move(active);
    }
  }
  if (longest == nullptr) return;
  const engine::Plan& plan = longest->plan;
  row.problem_class = ToString(plan.problem_class);
  row.plan = plan.ToString();
  if (plan.plan_ms > 0) row.gain = plan.baseline_ms / plan.plan_ms;
  row.roofline = FloorShare(plan, pattern.trials().measurements());
}

}  // namespace

double FloorShare(const engine::Plan& plan, const std::vector<engine::Measurement>& measurements) {
  const engine::Measurement* fastest = nullptr;
  for (const engine::Measurement& m : measurements) {
    if (m.problem_class != plan.problem_class || m.recipe != plan.recipe ||
        m.kernel != plan.kernel || m.pair != plan.pair || m.floor_ms <= 0) {
      continue;
    }
    if (fastest == nullptr || m.median_ms < fastest->median_ms) fastest = &m;
  }
  return fastest == nullptr ? 0 : fastest->floor_share();
}

MatrixTable MakeMatrixTable(engine::Engine& engine, const LiveRequests& live) {
  MatrixTable table;
  const std::vector<engine::MatrixLease> matrices = engine.catalog().All();
  table.all = static_cast<int64_t>(matrices.size());
  const size_t listed = std::min(matrices.size(), MatrixTable::kMost);
  table.rows.reserve(listed);
  for (size_t i = 0; i < listed; ++i) {
    const engine::Matrix& matrix = *matrices[i];
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
    SetPlan(pattern, row);
    row.use = live.UseOf(row.tenant, row.name);
    table.rows.push_back(std::move(row));
  }
  std::ranges::sort(table.rows, {}, [](const MatrixRow& row) {
    return std::pair<std::string_view, std::string_view>(row.tenant, row.name);
  });
  return table;
}

const MatrixRow* MatrixTable::Find(std::string_view tenant, std::string_view name) const {
  const std::pair<std::string_view, std::string_view> wanted(tenant, name);
  const auto key = [](const MatrixRow& row) {
    return std::pair<std::string_view, std::string_view>(row.tenant, row.name);
  };
  const auto found = std::ranges::lower_bound(rows, wanted, {}, key);
  return found == rows.end() || key(*found) != wanted ? nullptr : &*found;
}

}  // namespace sparsed::server
