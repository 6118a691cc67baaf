// Matrices: their table, and what is known of one of them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <list>
#include <optional>
#include <set>

#include "absl/strings/escaping.h"
#include "engine/catalog/busy_trials.h"
#include "engine/catalog/pattern_product.h"
#include "engine/catalog/shares.h"
#include "engine/catalog/signature.h"
#include "server/page/matrix_table.h"
#include "server/page/pattern_picture.h"
#include "server/page/sources.h"
#include "server/page/table.h"
#include "server/rpc/sentence.h"

namespace sparsed::server {
namespace {

using nlohmann::json;

/// Plans and layouts of one matrix in an answer.
constexpr size_t kMostOfMatrix = 100;

SortKey Known(double value) { return {.number = value, .known = value > 0}; }

std::string TextOf(const MatrixRow& row) { return row.name + '\n' + row.tenant; }

/// Sorted by one of MatrixRow's uses.
template <MatrixUse MatrixRow::*kUse>
const PageTable<MatrixRow>& Matrices() {
  using Row = MatrixRow;
  static const PageTable<Row> table = {
      {{"name", [](const Row& row) { return SortKey{.text = row.name}; }},
       {"tenant", [](const Row& row) { return SortKey{.text = row.tenant}; }},
       {"bytes", [](const Row& row) { return SortKey{static_cast<double>(row.bytes)}; }},
       {"nnz", [](const Row& row) { return SortKey{static_cast<double>(row.nnz)}; }},
       {"rate", [](const Row& row) { return SortKey{(row.*kUse).per_second}; }},
       {"p50", [](const Row& row) { return Known((row.*kUse).p50); }},
       {"p99", [](const Row& row) { return Known((row.*kUse).p99); }},
       {"gain", [](const Row& row) { return Known(row.gain); }},
       {"roofline",
        [](const Row& row) {
          // What caches hold is above all that memory bounds.
          return row.roofline.roof == engine::Roof::kCache ? SortKey{2} : Known(row.roofline.share);
        }},
       {"state", [](const Row& row) { return SortKey{.text = engine::Name(row.state)}; }}},
      TextOf};
  return table;
}

/// Those that are not ready: what is under way first, then what failed, then what waits.
const PageTable<MatrixRow> kPreparations = {
    {}, TextOf, [](const MatrixRow& row) {
      constexpr std::array<double, 4> kOrder = {2, 0, 3, 1};
      return SortKey{kOrder[static_cast<size_t>(row.state)]};
    }};

/// Null where it is not known.
json KnownOr(double value) { return value > 0 ? json(value) : json(nullptr); }

/// A share of memory's roof where that is the one, else which it is.
void AddRoofline(const engine::RooflinePosition& position, json& to) {
  to["roof"] = engine::Name(position.roof);
  to["roofline"] = KnownOr(position.roof == engine::Roof::kMemory ? position.share : 0);
}

/// `use`: what who looks is told of its use.
json RowJson(const MatrixRow& row, const MatrixUse& use) {
  json object = {{"tenant", row.tenant},
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
                 {"signature", row.signature},
                 {"plan", row.plan},
                 {"in_use", row.in_use},
                 {"gain", KnownOr(row.gain)},
                 {"busy", row.busy},
                 {"shard", row.shard},
                 {"rate", use.per_second},
                 {"p50", KnownOr(use.p50)},
                 {"p99", KnownOr(use.p99)}};
  AddRoofline(row.roofline, object);
  return object;
}

/// The matrix that the parameters tenant (the viewer's own without) and name say; another tenant's
/// if it is shared with the viewer's. NOT_FOUND, the same for what the viewer must not see.
absl::StatusOr<engine::MatrixLease> FindMatrix(PageTables& tables, const Viewer& viewer,
                                               const Query& query) {
  const std::string& name = query.Text("name");
  if (name.empty()) return absl::InvalidArgumentError("name is missing");
  const std::string& tenant = query.Text("tenant").empty() ? viewer.tenant : query.Text("tenant");
  const engine::Catalog& catalog = tables.sources.engine.catalog();
  const engine::MatrixLease found = MaySee(viewer, tenant)
                                        ? catalog.Look(tenant, name)
                                        : catalog.LookAtShared(viewer.tenant, {tenant, name});
  if (found == nullptr) return absl::NotFoundError("there is no such matrix");
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

/// Where the time of its products by one transport went, on average. `matrix`: its name for who
/// looks.
json TimeJson(const MatrixUse::OfTransport& of, std::string_view matrix) {
  const TimeSpent& time = of.time;
  json phases = json::object();
  for (int phase = 0; phase < kPhases; ++phase) {
    const double seconds = time[static_cast<Phase>(phase)];
    if (seconds > 0) {
      phases[std::string(Name(static_cast<Phase>(phase)))] = seconds / time.requests;
    }
  }
  return {{"products", of.products},
          {"seconds", time.seconds / time.requests},
          {"phases", std::move(phases)},
          {"queue",
           {{"trials", time.queue_trials / time.requests},
            {"others", time.queue_others / time.requests}}},
          {"transport", TransportOf(time)},
          {"finding", Finding(time, matrix)}};
}

/// That of its last products, of each transport by which they came; null where there was none.
json TimesJson(const MatrixUse& use, std::string_view matrix) {
  if (use.transports.empty()) return nullptr;
  json transports = json::array();
  for (const MatrixUse::OfTransport& of : use.transports)
    transports.push_back(TimeJson(of, matrix));
  return {{"transports", std::move(transports)}, {"reference", matrix}};
}

/// Seconds since the epoch; null if it is none.
json UnixTime(std::chrono::steady_clock::time_point time) {
  if (time == std::chrono::steady_clock::time_point()) return nullptr;
  const std::chrono::duration<double> ago = std::chrono::steady_clock::now() - time;
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return now.count() - ago.count();
}

/// Of an SpGEMM: which product it is, and the layouts that it reads both factors from, as
/// sparsectl says them. `tried`: a plan or a measurement.
void AddProduct(const auto& tried, std::string_view left_hash, json& row) {
  if (!tried.pair) return;
  const engine::PatternPair& pair = *tried.pair;
  row["product"] = engine::ProductText(pair, left_hash);
  // Without the hash of the right one.
  row["factors"] = engine::FactorsText(pair, pair.right, tried.pipeline, tried.kernel);
}

/// `tells_use`: also how much they are used, which whom the matrix is only shared with is not told.
/// `tells_since`: also when they came into use, which those of others with the pattern may have
/// done.
json PlansJson(const engine::Matrix& matrix, bool tells_use, bool tells_since,
               const engine::Executor& executor) {
  const engine::Pattern& pattern = *matrix.pattern();
  const std::vector<engine::Measurement> measurements = pattern.trials().measurements();
  json list = json::array();
  for (const auto& [active, per_second, in_use] : matrix.UsedPlans()) {
    if (list.size() == kMostOfMatrix) break;
    const engine::Plan& plan = active->plan;
    list.push_back({{"signature", engine::SignatureText(plan.signature)},
                    {"pipeline", plan.pipeline},
                    {"kernel", plan.kernel},
                    {"baseline_ms", KnownOr(plan.baseline_ms)},
                    {"plan_ms", KnownOr(plan.plan_ms)},
                    {"gain", KnownOr(GainOf(plan))},
                    {"rate", tells_use ? json(per_second) : json(nullptr)},
                    {"in_use", tells_use && in_use},
                    {"since", tells_since ? UnixTime(active->since) : json(nullptr)},
                    {"provisional", plan.provisional},
                    {"busy", engine::FindBusyTrials(plan, measurements).has_value()},
                    {"reason", ForClients(plan.reason)}});
    AddProduct(plan, pattern.hash(), list.back());
    AddRoofline(engine::RooflineOf(plan, measurements, executor), list.back());
  }
  return list;
}

json LayoutsJson(const engine::Matrix& matrix) {
  const engine::Pattern& pattern = *matrix.pattern();
  json list = json::array();
  for (const engine::Pattern::BuiltEntry& entry : pattern.Layouts()) {
    if (list.size() == kMostOfMatrix) break;
    const Layout& layout = *entry.description;
    list.push_back({{"pipeline", layout.pipeline},
                    {"kind", layout.kind},
                    {"bytes", layout.bytes() + matrix.LayoutValueBytes(layout.pipeline)},
                    {"resident", entry.layout->resident()},
                    {"on_disk", pattern.on_disk(layout.pipeline)},
                    {"build_seconds", entry.build_seconds},
                    {"reordered", !layout.transposed && Reorders(layout.pipeline)}});
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

/// Measurements, the fastest first within a signature, then what was not tried.
struct Candidate {
  std::optional<engine::Measurement> measured;
  std::optional<engine::Decision> decision;

  const ProblemSignature& of() const {
    return measured ? measured->signature : decision->signature;
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

std::string TextOf(const Candidate& candidate) {
  const auto text = [&](const auto& of) {
    return ToString(candidate.of()) + '\n' + of.pipeline + '\n' + of.kernel;
  };
  return candidate.measured ? text(*candidate.measured) : text(*candidate.decision);
}

json CandidateJson(const Candidate& candidate, const engine::Pattern& pattern,
                   const engine::Executor& executor, const std::set<std::string>& plans) {
  json row = {{"signature", engine::SignatureText(candidate.of())}};
  if (!candidate.measured) {
    const engine::Decision& decision = *candidate.decision;
    row["pipeline"] = decision.pipeline;
    row["kernel"] = decision.kernel;
    row["reason"] = ForClients(decision.reason);
    return row;
  }
  const engine::Measurement& m = *candidate.measured;
  AddProduct(m, pattern.hash(), row);
  row["pipeline"] = m.pipeline;
  row["kernel"] = m.kernel;
  row["device"] = m.device;
  row["k"] = m.k;
  row["median_ms"] = m.median_ms;
  row["baseline_ms"] = KnownOr(m.baseline_ms);
  row["gain"] = KnownOr(m.median_ms > 0 ? m.baseline_ms / m.median_ms : 0);
  AddRoofline(engine::RooflineOf(m, executor), row);
  row["gflops"] = KnownOr(m.gflops);
  row["preparation_ms"] = KnownOr(m.preparation_ms);
  row["runs"] = m.runs;
  row["chosen"] = plans.contains(ToString(m.signature) + m.pipeline + m.kernel);
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
Answer MakePicture(engine::Pattern& pattern, const std::string& pipeline) {
  const std::shared_ptr<const Layout> csr = CsrForPicture(pattern);
  if (pipeline.empty()) {
    if (csr != nullptr) return PictureJson(PictureOf(ViewCsr(*csr), {}));
    const auto features = pattern.features();
    if (features == nullptr) return Unavailable("the pattern is not in host memory now");
    return PictureJson(PictureOf(features->density_map, pattern.rows(), pattern.cols()));
  }
  const std::shared_ptr<engine::LazyLayout> lazy = pattern.FindLayout(pipeline);
  if (lazy == nullptr) return absl::NotFoundError("there is no such layout");
  const std::shared_ptr<const Layout> layout = lazy->Resident();
  if (layout == nullptr) return Unavailable("the layout is not in host memory now");
  const std::span<const int32_t> order = layout->Elements<int32_t>("row_order");
  if (layout->transposed || static_cast<int64_t>(order.size()) != pattern.rows()) {
    return absl::NotFoundError("the layout has the rows in the order of the upload");
  }
  // Of a square matrix with its columns in the order, too: they have the rows' names, and what it
  // brought together is seen in one place.
  const bool square = pattern.rows() == pattern.cols();
  const std::span<const int32_t> columns = square ? order : std::span<const int32_t>();
  if (layout->kind == kCsr) return PictureJson(PictureOf(ViewCsr(*layout), {}, columns));
  if (csr == nullptr) return Unavailable("the pattern is not in host memory now");
  return PictureJson(PictureOf(ViewCsr(*csr), order, columns));
}

}  // namespace

Answer MatricesAnswer(PageTables& tables, const HttpRequest& request) {
  const bool all = request.viewer.all;
  const PageTable<MatrixRow>& table =
      all ? Matrices<&MatrixRow::use>() : Matrices<&MatrixRow::owners_use>();
  const absl::StatusOr<TableQuery> asked = table.Parse(request.query);
  if (!asked.ok()) return asked.status();
  const auto matrices = tables.matrices.Get();
  json answer = table.Answer(
      asked->page, *matrices,
      [&](const MatrixRow& row) { return MaySee(request.viewer, row.tenant); },
      [&](const MatrixRow& row) { return RowJson(row, all ? row.use : row.owners_use); });
  if (request.viewer.all) answer["all"] = matrices->size();
  return answer;
}

Answer MatrixAnswer(PageTables& tables, const HttpRequest& request) {
  const absl::StatusOr<Query> query = Query::Parse(request.query, {"tenant", "name"});
  if (!query.ok()) return query.status();
  const absl::StatusOr<engine::MatrixLease> found = FindMatrix(tables, request.viewer, *query);
  if (!found.ok()) return found.status();
  const engine::Matrix& matrix = **found;
  const engine::Pattern& pattern = *matrix.pattern();
  const engine::Executor& executor = tables.sources.engine.executor();
  const Viewer& viewer = request.viewer;
  const LiveRequests& live = tables.sources.telemetry.live();
  const bool tells_use = MaySee(viewer, matrix.tenant());
  MatrixRow row = MakeMatrixRow(matrix, tables.sources.engine, live, tells_use);
  // As Catalog.Explain tells it.
  const MatrixUse use =
      live.UseOf(matrix.tenant(), matrix.name(), viewer.all ? matrix.tenant() : viewer.tenant);
  if (tables.sources.shard_of != nullptr) {
    row.shard = tables.sources.shard_of({matrix.tenant(), matrix.name()}).value_or("");
  }
  json answer = RowJson(row, viewer.all ? row.use : use);
  answer["pattern"] = pattern.hash();
  answer["csr_bytes"] =
      (pattern.rows() + 1) * 8 +
      pattern.nnz() * static_cast<int64_t>(sizeof(int32_t) + SizeOf(matrix.type()));
  answer["preparation"] = ProgressJson(pattern.progress().status(), viewer);
  const bool tells_since = viewer.all || (tells_use && pattern.IsOnlyOf(matrix.tenant()));
  answer["plans"] = PlansJson(matrix, tells_use, tells_since, executor);
  answer["layouts"] = LayoutsJson(matrix);
  answer["time"] =
      TimesJson(use, engine::ReferenceFor(viewer.tenant, {matrix.tenant(), matrix.name()}));
  if (const auto features = pattern.features()) answer["features"] = FeaturesJson(*features);
  return answer;
}

Answer CandidatesAnswer(PageTables& tables, const HttpRequest& request) {
  static const PageTable<Candidate> table = {{}, TextOf};
  const absl::StatusOr<TableQuery> asked = table.Parse(request.query, {"tenant", "name"});
  if (!asked.ok()) return asked.status();
  const absl::StatusOr<engine::MatrixLease> found =
      FindMatrix(tables, request.viewer, asked->query);
  if (!found.ok()) return found.status();
  const engine::Pattern& pattern = *(*found)->pattern();
  std::set<std::string> plans;
  for (const auto& active : pattern.plans().List()) {
    const engine::Plan& plan = active->plan;
    plans.insert(ToString(plan.signature) + plan.pipeline + plan.kernel);
  }
  return table.Answer(
      asked->page, CandidatesOf(pattern), [](const Candidate&) { return true; },
      [&](const Candidate& candidate) {
        return CandidateJson(candidate, pattern, tables.sources.engine.executor(), plans);
      });
}

Answer PictureAnswer(PageTables& tables, const HttpRequest& request) {
  static KeptPictures kept;
  const absl::StatusOr<Query> query = Query::Parse(request.query, {"tenant", "name", "pipeline"});
  if (!query.ok()) return query.status();
  const absl::StatusOr<engine::MatrixLease> found = FindMatrix(tables, request.viewer, *query);
  if (!found.ok()) return found.status();
  const std::string& pipeline = query->Text("pipeline");
  engine::Pattern& pattern = *(*found)->pattern();
  const std::string key = pattern.hash() + pipeline;
  if (std::optional<json> known = kept.Find(key)) return *std::move(known);
  Answer picture = MakePicture(pattern, pipeline);
  if (picture.ok() && !picture->contains("unavailable")) kept.Keep(key, *picture);
  return picture;
}

Answer PreparationsAnswer(PageTables& tables, const HttpRequest& request) {
  const absl::StatusOr<TableQuery> asked = kPreparations.Parse(request.query);
  if (!asked.ok()) return asked.status();
  const auto matrices = tables.matrices.Get();
  std::array<int64_t, 4> states = {};
  std::set<const void*> seen;
  json answer = kPreparations.Answer(
      asked->page, *matrices,
      [&](const MatrixRow& row) {
        if (!MaySee(request.viewer, row.tenant) || !seen.insert(row.identity).second) return false;
        ++states[static_cast<size_t>(row.state)];
        return row.state != engine::PreparationState::kReady;
      },
      [&](const MatrixRow& row) {
        const std::shared_ptr<engine::Pattern> pattern = row.pattern.lock();
        json one = ProgressJson(
            pattern == nullptr ? engine::PreparationStatus() : pattern->progress().status(),
            request.viewer);
        one["tenant"] = row.tenant;
        one["name"] = row.name;
        one["nnz"] = row.nnz;
        return one;
      });
  answer["queued"] = states[0];
  answer["preparing"] = states[1];
  answer["ready"] = states[2];
  answer["failed"] = states[3];
  return answer;
}

}  // namespace sparsed::server
