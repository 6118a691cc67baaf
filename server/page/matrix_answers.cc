// Matrices: their table, and what is known of one of them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <list>
#include <optional>
#include <set>

#include "absl/strings/escaping.h"
#include "server/page/pattern_picture.h"
#include "server/page/sources.h"
#include "server/page/table.h"
#include "server/rpc/sentence.h"

namespace sparsed::server {
namespace {

using nlohmann::json;

/// Plans and layouts of one matrix in an answer.
constexpr size_t kMostOfMatrix = 100;

constexpr std::array<std::string_view, 10> kMatrixColumns = {
    "name", "tenant", "bytes", "nnz", "rate", "p50", "p99", "gain", "roofline", "state"};

SortKey KeyOf(const MatrixRow& row, size_t column) {
  const auto known = [](double value) { return SortKey{.number = value, .known = value > 0}; };
  switch (column) {
    case 0:
      return {.text = row.name};
    case 1:
      return {.text = row.tenant};
    case 2:
      return {.number = static_cast<double>(row.bytes)};
    case 3:
      return {.number = static_cast<double>(row.nnz)};
    case 4:
      return {.number = row.use.per_second};
    case 5:
      return known(row.use.p50);
    case 6:
      return known(row.use.p99);
    case 7:
      return known(row.gain);
    case 8:
      return known(row.roofline);
    default:
      return {.text = engine::Name(row.state)};
  }
}

/// Null where it is not known.
json KnownOr(double value) { return value > 0 ? json(value) : json(nullptr); }

json RowJson(const MatrixRow& row) {
  return {{"tenant", row.tenant},
          {"name", row.name},
          {"rows", row.rows},
          {"cols", row.cols},
          {"nnz", row.nnz},
          {"type", Name(row.type)},
          {"version", row.version},
          {"created", static_cast<double>(row.created_unix_ns) * 1e-9},
          {"durable", row.durable},
          {"bytes", row.bytes},
          {"state", engine::Name(row.state)},
          {"class", row.problem_class},
          {"plan", row.plan},
          {"gain", KnownOr(row.gain)},
          {"roofline", KnownOr(row.roofline)},
          {"rate", row.use.per_second},
          {"p50", KnownOr(row.use.p50)},
          {"p99", KnownOr(row.use.p99)}};
}

bool Matches(const MatrixRow& row, std::string_view search) {
  return search.empty() || LowerCase(row.name).find(search) != std::string::npos ||
         LowerCase(row.tenant).find(search) != std::string::npos;
}

struct Found {
  std::shared_ptr<const MatrixTable> table;  ///< keeps `row`
  const MatrixRow* row = nullptr;
  std::shared_ptr<engine::Pattern> pattern;
};

/// The matrix that the parameters tenant (the viewer's own without) and name say. To look at it is
/// no use of it. NOT_FOUND, the same for what the viewer must not see.
absl::StatusOr<Found> FindMatrix(PageTables& tables, const Viewer& viewer, const Query& query) {
  const std::string& name = query.Text("name");
  if (name.empty()) return absl::InvalidArgumentError("name is missing");
  const std::string& tenant = query.Text("tenant").empty() ? viewer.tenant : query.Text("tenant");
  Found found;
  if (MaySee(viewer, tenant)) {
    found.table = tables.matrices.Get();
    found.row = found.table->Find(tenant, name);
  }
  if (found.row != nullptr) found.pattern = found.row->pattern.lock();
  if (found.pattern == nullptr) return absl::NotFoundError("there is no such matrix");
  return found;
}

/// Folders of the server are for operators.
json ProgressJson(const engine::PreparationStatus& status, const Viewer& viewer) {
  const auto text = [&viewer](const std::string& sentence) {
    return viewer.all ? sentence : ForClients(sentence);
  };
  return {{"state", engine::Name(status.state)},
          {"stage", status.stage},
          {"done", status.done},
          {"total", status.total},
          {"message", text(status.message)},
          {"detail", text(status.detail)},
          {"seconds", status.seconds}};
}

json PlansJson(const engine::Pattern& pattern) {
  const std::vector<engine::Measurement> measurements = pattern.trials().measurements();
  json list = json::array();
  for (const auto& active : pattern.plans().List()) {
    if (list.size() == kMostOfMatrix) break;
    const engine::Plan& plan = active->plan;
    list.push_back({{"class", ToString(plan.problem_class)},
                    {"product", plan.pair ? ToString(*plan.pair, pattern.hash()) : ""},
                    {"recipe", plan.recipe},
                    {"kernel", plan.kernel},
                    {"csr_ms", KnownOr(plan.baseline_ms)},
                    {"plan_ms", KnownOr(plan.plan_ms)},
                    {"gain", KnownOr(plan.plan_ms > 0 ? plan.baseline_ms / plan.plan_ms : 0)},
                    {"roofline", KnownOr(FloorShare(plan, measurements))},
                    {"provisional", plan.provisional},
                    {"reason", ForClients(plan.reason)}});
  }
  return list;
}

json LayoutsJson(const engine::Pattern& pattern) {
  json list = json::array();
  for (const engine::Pattern::BuiltEntry& entry : pattern.Layouts()) {
    if (list.size() == kMostOfMatrix) break;
    const Layout& layout = *entry.description;
    list.push_back({{"recipe", layout.recipe},
                    {"kind", layout.kind},
                    {"bytes", layout.bytes()},
                    {"resident", entry.layout->resident()},
                    {"on_disk", pattern.on_disk(layout.recipe)},
                    {"build_seconds", entry.build_seconds},
                    {"reordered", !layout.transposed && layout.Find("row_order") != nullptr}});
  }
  return list;
}

json FeaturesJson(const Features& features) {
  return {{"density", features.density},
          {"row_nonzeros_min", features.row_nonzeros_min},
          {"row_nonzeros_mean", features.row_nonzeros_mean},
          {"row_nonzeros_max", features.row_nonzeros_max},
          {"row_nonzeros_cv", features.row_nonzeros_cv},
          {"empty_rows", features.empty_rows},
          {"dense_ratio", features.dense_ratio},
          {"near_nonzeros", features.near_nonzeros()},
          {"unlike_neighbours", features.unlike_neighbours()}};
}

/// Measurements, the fastest first within a class, then what was not tried.
struct Candidate {
  std::optional<engine::Measurement> measured;
  std::optional<engine::Decision> decision;

  const ProblemClass& of() const {
    return measured ? measured->problem_class : decision->problem_class;
  }
};

std::vector<Candidate> CandidatesOf(const engine::Pattern& pattern) {
  std::vector<Candidate> all;
  for (engine::Measurement& m : pattern.trials().measurements()) all.push_back({std::move(m), {}});
  for (engine::Decision& d : pattern.trials().decisions()) {
    if (!d.tried) all.push_back({{}, std::move(d)});
  }
  std::ranges::stable_sort(all, [](const Candidate& a, const Candidate& b) {
    if (a.of() != b.of()) return a.of() < b.of();
    if (a.measured.has_value() != b.measured.has_value()) return a.measured.has_value();
    return a.measured && a.measured->median_ms < b.measured->median_ms;
  });
  return all;
}

json CandidateJson(const Candidate& candidate, const engine::Pattern& pattern,
                   const std::set<std::string>& plans) {
  json row = {{"class", ToString(candidate.of())}};
  if (!candidate.measured) {
    const engine::Decision& decision = *candidate.decision;
    row["recipe"] = decision.recipe;
    row["kernel"] = decision.kernel;
    row["reason"] = ForClients(decision.reason);
    return row;
  }
  const engine::Measurement& m = *candidate.measured;
  row["product"] = m.pair ? ToString(*m.pair, pattern.hash()) : "";
  row["recipe"] = m.recipe;
  row["kernel"] = m.kernel;
  row["device"] = m.device;
  row["k"] = m.k;
  row["median_ms"] = m.median_ms;
  row["csr_ms"] = KnownOr(m.baseline_ms);
  row["gain"] = KnownOr(m.median_ms > 0 ? m.baseline_ms / m.median_ms : 0);
  row["roofline"] = KnownOr(m.floor_share());
  row["gflops"] = KnownOr(m.gflops);
  row["preparation_ms"] = KnownOr(m.preparation_ms);
  row["runs"] = m.runs;
  row["chosen"] = plans.contains(ToString(m.problem_class) + m.recipe + m.kernel);
  return row;
}

json PictureJson(const PatternPicture& picture) {
  const std::string_view bytes(reinterpret_cast<const char*>(picture.shades.data()),
                               picture.shades.size());
  return {{"width", picture.width},
          {"height", picture.height},
          {"sampled", picture.sampled},
          {"shades", absl::Base64Escape({bytes.data(), bytes.size()})}};
}

/// The last few: who reloads a page does not make the server look at the nonzeros again.
class KeptPictures {
 public:
  std::optional<json> Find(const std::string& key) {
    const MutexLock lock(mutex_);
    for (auto kept = pictures_.begin(); kept != pictures_.end(); ++kept) {
      if (kept->first != key) continue;
      pictures_.splice(pictures_.begin(), pictures_, kept);
      return kept->second;
    }
    return std::nullopt;
  }
  void Keep(const std::string& key, const json& picture) {
    const MutexLock lock(mutex_);
    pictures_.emplace_front(key, picture);
    if (pictures_.size() > kMost) pictures_.pop_back();
  }

 private:
  static constexpr size_t kMost = 16;  ///< of some 90 KB
  Mutex mutex_;
  std::list<std::pair<std::string, json>> pictures_ ABSL_GUARDED_BY(mutex_);
};

/// In the place of a picture of what is not in host memory.
json Unavailable(std::string_view why) { return {{"unavailable", why}}; }

/// Of plain CSR, read from the disk for a picture where it is small and there is room that nobody
/// else needs; else null if it is not in host memory.
std::shared_ptr<const Layout> CsrForPicture(engine::Pattern& pattern) {
  constexpr int64_t kMostRead = 64 << 20;
  if (auto resident = pattern.resident_csr()) return resident;
  if ((pattern.rows() + 1) * 8 + pattern.nnz() * 4 > kMostRead) return nullptr;
  const engine::Budget::SpareOnly spare;
  const absl::StatusOr<std::shared_ptr<const Layout>> read = pattern.Csr();
  return read.ok() ? *read : nullptr;
}

/// NOT_FOUND for what no picture can be of.
Answer MakePicture(engine::Pattern& pattern, const std::string& recipe) {
  const std::shared_ptr<const Layout> csr = CsrForPicture(pattern);
  if (recipe.empty()) {
    if (csr != nullptr) return PictureJson(PictureOf(ViewCsr(*csr), {}));
    const auto features = pattern.features();
    if (features == nullptr) return Unavailable("the pattern is not in host memory now");
    return PictureJson(PictureOf(features->density_map, pattern.rows(), pattern.cols()));
  }
  const std::shared_ptr<engine::LazyLayout> lazy = pattern.FindLayout(recipe);
  if (lazy == nullptr) return absl::NotFoundError("there is no such layout");
  const std::shared_ptr<const Layout> layout = lazy->Resident();
  if (layout == nullptr) return Unavailable("the layout is not in host memory now");
  const std::span<const int32_t> order = layout->Elements<int32_t>("row_order");
  if (layout->transposed || static_cast<int64_t>(order.size()) != pattern.rows()) {
    return absl::NotFoundError("the layout has the rows in the order of the upload");
  }
  if (layout->kind == kCsr) return PictureJson(PictureOf(ViewCsr(*layout), {}));
  if (csr == nullptr) return Unavailable("the pattern is not in host memory now");
  return PictureJson(PictureOf(ViewCsr(*csr), order));
}

}  // namespace

Answer MatricesAnswer(PageTables& tables, const HttpRequest& request) {
  const absl::StatusOr<Query> query =
      Query::Parse(request.query, {"offset", "limit", "search", "sort", "order"});
  if (!query.ok()) return query.status();
  const absl::StatusOr<PageOf> page = PageOfTable(*query, kMatrixColumns);
  if (!page.ok()) return page.status();
  const auto table = tables.matrices.Get();
  const auto shown = CutPage(
      table->rows, *page,
      [&](const MatrixRow& row) {
        return MaySee(request.viewer, row.tenant) && Matches(row, page->search);
      },
      [&](const MatrixRow& row) { return KeyOf(row, page->sort); });
  json rows = json::array();
  for (const MatrixRow* row : shown.rows) rows.push_back(RowJson(*row));
  json answer = {{"total", shown.total}, {"offset", page->offset}, {"rows", std::move(rows)}};
  if (request.viewer.all) {
    answer["listed"] = table->rows.size();
    answer["all"] = table->all;
  }
  return answer;
}

Answer MatrixAnswer(PageTables& tables, const HttpRequest& request) {
  const absl::StatusOr<Query> query = Query::Parse(request.query, {"tenant", "name"});
  if (!query.ok()) return query.status();
  const absl::StatusOr<Found> found = FindMatrix(tables, request.viewer, *query);
  if (!found.ok()) return found.status();
  const engine::Pattern& pattern = *found->pattern;
  json answer = RowJson(*found->row);
  answer["pattern"] = pattern.hash();
  answer["csr_bytes"] =
      (pattern.rows() + 1) * 8 +
      pattern.nnz() * static_cast<int64_t>(sizeof(int32_t) + SizeOf(found->row->type));
  answer["preparation"] = ProgressJson(pattern.progress().status(), request.viewer);
  answer["plans"] = PlansJson(pattern);
  answer["layouts"] = LayoutsJson(pattern);
  if (const auto features = pattern.features()) answer["features"] = FeaturesJson(*features);
  return answer;
}

Answer CandidatesAnswer(PageTables& tables, const HttpRequest& request) {
  const absl::StatusOr<Query> query =
      Query::Parse(request.query, {"tenant", "name", "offset", "limit", "search"});
  if (!query.ok()) return query.status();
  const absl::StatusOr<PageOf> page = PageOfTable(*query, {});
  if (!page.ok()) return page.status();
  const absl::StatusOr<Found> found = FindMatrix(tables, request.viewer, *query);
  if (!found.ok()) return found.status();
  const engine::Pattern& pattern = *found->pattern;
  std::set<std::string> plans;
  for (const auto& active : pattern.plans().List()) {
    const engine::Plan& plan = active->plan;
    plans.insert(ToString(plan.problem_class) + plan.recipe + plan.kernel);
  }
  const std::vector<Candidate> all = CandidatesOf(pattern);
  const auto shown = CutPage(
      all, *page,
      [&](const Candidate& candidate) {
        const std::string text = candidate.measured
                                     ? candidate.measured->recipe + candidate.measured->kernel
                                     : candidate.decision->recipe + candidate.decision->kernel;
        return LowerCase(ToString(candidate.of()) + text).find(page->search) != std::string::npos;
      },
      [](const Candidate&) { return SortKey(); });
  json rows = json::array();
  for (const Candidate* candidate : shown.rows) {
    rows.push_back(CandidateJson(*candidate, pattern, plans));
  }
  return json{{"total", shown.total}, {"offset", page->offset}, {"rows", std::move(rows)}};
}

Answer PictureAnswer(PageTables& tables, const HttpRequest& request) {
  static KeptPictures kept;
  const absl::StatusOr<Query> query = Query::Parse(request.query, {"tenant", "name", "recipe"});
  if (!query.ok()) return query.status();
  const absl::StatusOr<Found> found = FindMatrix(tables, request.viewer, *query);
  if (!found.ok()) return found.status();
  const std::string& recipe = query->Text("recipe");
  const std::string key = found->pattern->hash() + recipe;
  if (std::optional<json> known = kept.Find(key)) return *std::move(known);
  Answer picture = MakePicture(*found->pattern, recipe);
  if (picture.ok() && !picture->contains("unavailable")) kept.Keep(key, *picture);
  return picture;
}

Answer PreparationsAnswer(PageTables& tables, const HttpRequest& request) {
  const absl::StatusOr<Query> query = Query::Parse(request.query, {"offset", "limit", "search"});
  if (!query.ok()) return query.status();
  const absl::StatusOr<PageOf> page = PageOfTable(*query, {});
  if (!page.ok()) return page.status();
  const auto table = tables.matrices.Get();
  std::array<int64_t, 4> states = {};
  std::set<const void*> seen;
  const auto shown = CutPage(
      table->rows, *page,
      [&](const MatrixRow& row) {
        if (!MaySee(request.viewer, row.tenant) || !seen.insert(row.identity).second) return false;
        ++states[static_cast<size_t>(row.state)];
        return row.state != engine::PreparationState::kReady && Matches(row, page->search);
      },
      [](const MatrixRow& row) {
        // What is under way first, then what failed, then what waits.
        constexpr std::array<double, 4> kOrder = {2, 0, 3, 1};
        return SortKey{.number = kOrder[static_cast<size_t>(row.state)]};
      });
  json rows = json::array();
  for (const MatrixRow* row : shown.rows) {
    const std::shared_ptr<engine::Pattern> pattern = row->pattern.lock();
    if (pattern == nullptr) continue;
    json one = ProgressJson(pattern->progress().status(), request.viewer);
    one["tenant"] = row->tenant;
    one["name"] = row->name;
    one["nnz"] = row->nnz;
    rows.push_back(std::move(one));
  }
  return json{{"total", shown.total},   {"offset", page->offset}, {"queued", states[0]},
              {"preparing", states[1]}, {"ready", states[2]},     {"failed", states[3]},
              {"rows", std::move(rows)}};
}

}  // namespace sparsed::server
