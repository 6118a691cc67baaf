// update, list, show, explain, prepare, wait.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_replace.h"
#include "client/cli/commands.h"
#include "client/cli/explain_report.h"
#include "client/cli/features_report.h"
#include "client/cli/measurements_report.h"
#include "client/cli/missing_name.h"
#include "client/cli/npy.h"
#include "client/cli/packed_file.h"
#include "client/cli/product_text.h"
#include "client/cli/progress_bar.h"
#include "client/cli/suggestion.h"

namespace sparsed::cli {
namespace {

/// What ends a problem signature whose requests allow TF32.
constexpr std::string_view kTf32 = ":tf32";

/// Requests a second, where there were some lately.
std::string UseText(const PlanInfo& plan) {
  const std::string rate = plan.requests_per_second >= 0.005
                               ? fmt::format("{:.2f}", plan.requests_per_second)
                               : std::string();
  if (!plan.in_use) return rate;
  return rate.empty() ? "*" : rate + " *";
}

std::string Since(const PlanInfo& plan) {
  return plan.since.time_since_epoch().count() > 0 ? Time(plan.since) : "";
}

/// Of the one that most requests use: "SpMM K=32: aspt / cpu.aspt".
std::string PlanInUse(const MatrixInfo& info) {
  const auto used = std::ranges::find_if(info.plans, &PlanInfo::in_use);
  if (used == info.plans.end()) return "";
  return fmt::format("{}: {} / {}", Text(used->signature), PipelineText(*used), used->kernel);
}

std::string PlansText(const MatrixInfo& info, const PatternNames& names) {
  Table plans({"SIGNATURE", "USED/s", "PIPELINE", "KERNEL", "DEVICE", "BASELINE ms", "PLAN ms",
               "SINCE", "WHY"},
              {"SINCE", "BASELINE ms", "DEVICE", "WHY", "USED/s"}, {"DEVICE", "WHY"});
  for (const PlanInfo& plan : info.plans) {
    plans.Add({SignatureText(plan, info.pattern_hash, names), UseText(plan), PipelineText(plan),
               plan.kernel, plan.device,
               plan.plan_ms > 0 ? KnownMilliseconds(plan.baseline_ms) : "",
               KnownMilliseconds(plan.plan_ms), Since(plan), plan.reason});
  }
  const bool used = std::ranges::any_of(info.plans, &PlanInfo::in_use);
  return plans.empty() ? ""
                       : fmt::format("\nPlans{}\n{}{}", used ? " (* the one in use)" : "",
                                     plans.Text(), UnsureText(info));
}

/// What became of a transform pipeline that was tried: by its fastest kernel, or by the one that it
/// names.
std::string Outcome(const MatrixInfo& info, const Decision& decision) {
  double best = 0;
  for (const Measurement& m : info.measurements) {
    const bool of_it = m.pipeline == decision.pipeline ||
                       fmt::format("{} / {}", m.pipeline, m.kernel) == decision.pipeline;
    if (!of_it || m.median_ms <= 0 || Text(m.signature) != Text(decision.signature)) {
      continue;
    }
    best = std::max(best, m.baseline_ms / m.median_ms);
  }
  return best > 0 ? fmt::format("{:.2f}x", best) : "tried";
}

std::string DecisionsText(const MatrixInfo& info, const PatternNames& names) {
  Table pipelines({"SIGNATURE", "SPEED-UP", "WHY", "PIPELINE"});
  for (const Decision& decision : info.decisions) {
    const bool of_the_signature = decision.pipeline.empty();
    pipelines.Add({SignatureText(decision, info.pattern_hash, names),
                   decision.tried     ? Outcome(info, decision)
                   : of_the_signature ? ""
                                      : "not tried",
                   decision.reason, PipelineText(decision)});
  }
  return pipelines.empty() ? "" : fmt::format("\nTransform pipelines\n{}", pipelines.Text());
}

/// In a cluster: "node-1, node-3 (gone)".
std::string NodesText(const MatrixInfo& info, const std::vector<std::string>& nodes,
                      std::string_view separator) {
  std::vector<std::string> names;
  for (const std::string& node : nodes) {
    names.push_back(IsGone(info, node) ? node + " (gone)" : node);
  }
  return fmt::format("{}", fmt::join(names, separator));
}

/// Other nodes of the cluster have it, and none of them said more than its name and sizes.
bool IsUntold(const MatrixInfo& info) {
  return info.state == MatrixState::kUnknown && info.shards.empty();
}

std::string StateText(const MatrixInfo& info) {
  if (info.shards.empty()) return Name(info.state);
  const int64_t away = ShardsAway(info);
  return Counted(static_cast<int64_t>(info.shards.size()), "shard") +
         (away > 0 ? fmt::format(", {} away", away) : "");
}

/// Why some of a list are unknown; empty: none are.
std::string UntoldText(const std::vector<MatrixInfo>& matrices) {
  std::set<std::string> gone, silent;
  for (const MatrixInfo& info : matrices) {
    if (!IsUntold(info)) continue;
    for (const std::string& node : info.nodes) (IsGone(info, node) ? gone : silent).insert(node);
  }
  if (gone.empty() && silent.empty()) return "";
  std::string who;
  if (!gone.empty()) who = fmt::format("gone: {}", fmt::join(gone, ", "));
  if (!silent.empty()) {
    who += fmt::format("{}silent: {}", who.empty() ? "" : "; ", fmt::join(silent, ", "));
  }
  return fmt::format(
      "of matrices whose nodes said nothing of them only names and sizes are known ({})", who);
}

/// `text` with its commands as they are given to the server at `address`.
std::string AskedAt(const std::string& address, const std::string& text) {
  const std::string command = fmt::format("sparsectl --server={}", address);
  return absl::StrReplaceAll(text,
                             {{"sparsectl ", command + " "}, {"sparsectl\n", command + "\n"}});
}

/// Of a cluster's: how many nodes are to have it.
std::string CopiesText(const MatrixInfo& info) {
  if (info.replicas == 0) return "";
  return fmt::format("replicas     {}{}\n", info.replicas,
                     info.shards.empty() ? "" : " of each shard");
}

/// A matrix in shards is made of them: layouts, plans and state are theirs.
std::string ShardsText(const MatrixInfo& info) {
  std::string text =
      fmt::format("{}\nsize         {}\nversion      {}, {}\ncreated      {}\nowner        {}\n",
                  info.name, Summary(info), info.version, info.durable ? "durable" : "not durable",
                  Time(info.created), info.owner);
  text += CopiesText(info);
  for (const MatrixShare& share : info.shares) {
    text += fmt::format("shared with  {}{}\n", share.with == "*" ? "all" : share.with,
                        share.write ? ", who may write" : "");
  }
  Table shards({"SHARD", "ROWS", "COLUMNS NAMED", "NONZEROS", "NODES", "MATRIX"});
  for (const ShardInfo& shard : info.shards) {
    shards.Add({fmt::format("{}", &shard - info.shards.data()), Count(shard.rows),
                Count(shard.cols), Count(shard.nnz), NodesText(info, shard.nodes, ", "),
                shard.matrix});
  }
  return text + fmt::format("\nShards\n{}", shards.Text());
}

std::string DetailsText(const MatrixInfo& info, const PatternNames& names) {
  if (!info.shards.empty()) return ShardsText(info);
  std::string text = fmt::format(
      "{}\n"
      "size         {}\n"
      "state        {}\n"
      "{}"
      "version      {}, {}\n"
      "created      {}\n"
      "pattern      {}\n"
      "CSR          {}\n"
      "preparation  {:.3f} s, for all plans\n",
      info.name, Summary(info), Name(info.state),
      info.detail.empty() ? "" : Wrapped("note         " + info.detail, std::string(13, ' ')),
      info.version, info.durable ? "durable" : "not durable", Time(info.created), info.pattern_hash,
      Bytes(info.csr_bytes), info.preparation_seconds);
  text += fmt::format("owner        {}\n", info.owner);
  text += CopiesText(info);
  if (info.time_to_live.count() > 0) {
    text += fmt::format("time to live {}, unused for {}\n", Duration(info.time_to_live),
                        Duration(info.idle));
  }
  for (const MatrixShare& share : info.shares) {
    text += fmt::format("shared with  {}{}\n", share.with == "*" ? "all" : share.with,
                        share.write ? ", who may write" : "");
  }
  text += PlansText(info, names);
  Table layouts({"KIND", "BYTES", "BUILD s", "PIPELINE"});
  for (const LayoutInfo& layout : info.layouts) {
    layouts.Add({layout.kind, Bytes(layout.bytes), fmt::format("{:.3f}", layout.build_seconds),
                 layout.pipeline});
  }
  if (!layouts.empty()) text += fmt::format("\nLayouts\n{}", layouts.Text());
  text += DecisionsText(info, names);
  const Table measurements = MeasurementsTable(info.measurements, info.pattern_hash, names);
  if (!measurements.empty()) {
    const std::string heading = Wrapped(
        "Measurements (BASELINE: plain CSR, turn by turn with the line's kernel; ROOFLINE: of what "
        "memory allows)",
        "");
    text += fmt::format("\n{}{}", heading, measurements.Text());
  }
  return text;
}

/// Of the other matrices that products with it were with; those that are not there have none.
PatternNames NamesOfFactors(const Client& client, const MatrixInfo& info) {
  const auto has_other = [&info](const auto& of) {
    return !of.right_pattern_hash.empty() && of.right_pattern_hash != info.pattern_hash;
  };
  PatternNames names;
  if (std::ranges::none_of(info.plans, has_other) &&
      std::ranges::none_of(info.decisions, has_other) &&
      std::ranges::none_of(info.measurements, has_other)) {
    return names;
  }
  const CallOptions soon = {.timeout = std::chrono::seconds(2)};
  for (const auto& matrices : {client.ListMatrices("", soon), client.ListShared("", soon)}) {
    if (!matrices.ok()) continue;
    for (const MatrixInfo& matrix : *matrices) names.emplace(matrix.pattern_hash, matrix.name);
  }
  return names;
}

}  // namespace

absl::Status WaitReady(const Matrix& matrix) {
  ProgressBar bar;
  return matrix.WaitReady([&bar](const Progress& progress) {
    bar.Show(progress.stage.empty() ? Name(progress.state) : progress.stage, progress.done,
             progress.total);
  });
}

absl::StatusOr<std::vector<ProblemSignature>> ParseSignatures(
    const std::vector<std::string>& texts) {
  std::vector<ProblemSignature> signatures;
  for (const std::string& text : texts) {
    const absl::StatusOr<ProblemSignature> signature = ParseSignature(text);
    if (!signature.ok()) return signature.status();
    signatures.push_back(*signature);
  }
  return signatures;
}

std::string Summary(const MatrixInfo& info) {
  return fmt::format("{} x {}, {}, {}{}", Count(info.rows), Count(info.cols),
                     Counted(info.nnz, "nonzero"), Name(info.type),
                     info.shards.empty()
                         ? ""
                         : ", in " + Counted(static_cast<int64_t>(info.shards.size()), "shard"));
}

absl::StatusOr<Report> DescribeReady(const Client& client, const std::string& name) {
  const absl::StatusOr<MatrixInfo> info = client.MatrixNamed(name).Info();
  if (!info.ok()) return info.status();
  if (!info->shards.empty()) {
    return Report{ToJson(*info), fmt::format("{}: its shards are ready\n", name)};
  }
  const PatternNames names = NamesOfFactors(client, *info);
  return Report{ToJson(*info), fmt::format("{} is {} after {:.3f} s{}{}\n", name, Name(info->state),
                                           info->preparation_seconds,
                                           info->detail.empty() ? "" : ": ", info->detail) +
                                   PlansText(*info, names)};
}

absl::StatusOr<ValueType> ParseType(std::string_view text) {
  for (const ValueType type :
       {ValueType::kF32, ValueType::kF64, ValueType::kF16, ValueType::kBF16}) {
    if (text == Name(type)) return type;
  }
  // What NumPy and C call them.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kOthers = {
      {{"float32", "f32"},
       {"float", "f32"},
       {"float64", "f64"},
       {"double", "f64"},
       {"float16", "f16"},
       {"bfloat16", "bf16"}}};
  const std::vector<std::string> known = {"f32", "f64", "f16", "bf16"};
  const auto* const other = std::ranges::find(kOthers, text, &decltype(kOthers)::value_type::first);
  return absl::InvalidArgumentError(
      fmt::format("{} is none of f32, f64, f16 and bf16{}", text,
                  other == kOthers.end() ? DidYouMean(text, known)
                                         : fmt::format("; did you mean \"{}\"?", other->second)));
}

absl::StatusOr<ProblemSignature> ParseSignature(const std::string_view whole) {
  ProblemSignature c;
  std::string_view text = whole;
  c.allow_tf32 = text.ends_with(kTf32);
  if (c.allow_tf32) text.remove_suffix(kTf32.size());
  const size_t colon = text.find(':');
  std::string_view operation = text.substr(0, colon);
  c.transposed = operation.ends_with("^T");
  if (c.transposed) operation.remove_suffix(2);
  if (colon != std::string_view::npos) {
    const std::string_view k = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(k.data(), k.data() + k.size(), c.k);
    if (error != std::errc() || end != k.data() + k.size()) c.k = -1;
  }
  const bool sparse = operation == "spgemm";
  c.operation = sparse                ? Operation::kSpgemm
                : operation == "spmm" ? Operation::kSpmm
                                      : Operation::kSddmm;
  if ((!sparse && operation != "spmm" && operation != "sddmm") || (sparse ? c.k != 0 : c.k < 1) ||
      ((c.transposed || c.allow_tf32) && operation != "spmm")) {
    const std::vector<std::string> known = {"spmm", "spmm^T", "sddmm", "spgemm"};
    const std::string_view name = whole.substr(0, colon);
    const bool transposed =
        name.starts_with("spmm") && name.size() > 4 && (name.back() == 'T' || name.back() == 't');
    std::string meant = transposed ? "spmm^T" : Nearest(name, known);
    if (!meant.empty() && meant != name) {
      meant = fmt::format("; did you mean \"{}{}\"?", meant, whole.substr(name.size()));
    } else {
      meant.clear();
    }
    return absl::InvalidArgumentError(
        fmt::format("{} is none of spmm:K, spmm^T:K (both also with :tf32 behind), sddmm:K (with K "
                    "at least 1) and spgemm{}",
                    whole, meant));
  }
  return c;
}

void AddTf32Note(const Client& client, ValueType type, Report& report) {
  std::string why;
  if (type != ValueType::kF32) {
    why = fmt::format("it is for f32, this matrix is {}", Name(type));
  } else {
    const absl::StatusOr<ServerInfo> server = client.GetServerInfo();
    if (!server.ok()) return;
    const bool gpu = std::ranges::any_of(server->devices, [](const DeviceInfo& device) {
      return device.name.starts_with("cuda") && device.unavailable.empty();
    });
    if (gpu) return;
    why = "it is for GPUs, this server uses none";
  }
  report.json["note"] = "TF32 makes no difference: " + why;
  report.text += fmt::format("note    TF32 makes no difference: {}\n", why);
}

absl::StatusOr<Report> Update(const Client& client, const UpdateArguments& arguments) {
  const Matrix matrix = client.MatrixNamed(arguments.name);
  const absl::StatusOr<MatrixInfo> info = matrix.Info();
  if (!info.ok()) return info.status();
  const absl::StatusOr<NpyArray> values = ReadNpy(arguments.values, info->type);
  if (!values.ok()) return values.status();
  if (values->rows * values->cols != info->nnz) {
    return absl::InvalidArgumentError(fmt::format("{} has {}, {} has {}", arguments.values,
                                                  Counted(values->rows * values->cols, "value"),
                                                  arguments.name, Counted(info->nnz, "nonzero")));
  }
  const ConstValues span =
      std::visit([](const auto& v) { return ConstValues(std::span(v)); }, values->values);
  const absl::StatusOr<uint64_t> version =
      matrix.UpdateValues(span, {.durable = arguments.durable});
  if (!version.ok()) return version.status();
  // The nodes of a cluster may store more than they were asked to.
  absl::StatusOr<MatrixInfo> now = info->nodes.empty() ? info : matrix.Info();
  const bool durable = arguments.durable || (now.ok() && !now->nodes.empty() && now->durable);
  Report report{{{"name", arguments.name}, {"version", *version}},
                fmt::format("{} has new values, version {}{}\n", arguments.name, *version,
                            durable ? "" : ", in memory only (--durable keeps them)")};
  if (now.ok()) AddNote(MissingCopies(*now), report);
  return report;
}

std::vector<Listing::Column> MatrixColumns() {
  return {{"NAME", "name"},
          {"ROWS", "rows"},
          {"COLUMNS", "cols"},
          {"NONZEROS", "nnz"},
          {"TYPE", "type"},
          {"STATE", "state"},
          {"PLANS", "plans"},
          {"CSR", "csr_bytes"},
          {"PLAN IN USE", "plan_in_use", true},
          {"OWNER", "owner", true},
          {"VERSION", "version", true},
          {"DURABLE", "durable", true},
          {"CREATED", "created_unix_ns", true},
          {"NODES", "nodes", true},
          {"REPLICAS", "replicas", true},
          {"PATTERN", "pattern_hash", true}};
}

absl::StatusOr<Report> List(const Client& client, const ListArguments& arguments, Hints* hints) {
  const absl::StatusOr<std::vector<MatrixInfo>> matrices =
      arguments.all      ? client.ListAll(arguments.prefix)
      : arguments.shared ? client.ListShared(arguments.prefix)
                         : client.ListMatrices(arguments.prefix);
  if (!matrices.ok()) return matrices.status();
  std::string none =
      arguments.prefix.empty()
          ? "no matrices"
          : fmt::format("no matrix has a name that begins with \"{}\"", arguments.prefix);
  if (matrices->empty() && arguments.prefix.empty() && !arguments.all && hints != nullptr) {
    if (const size_t others = hints->MatricesOfOthers(); others > 0) {
      none += fmt::format("; other tenants have {}: `sparsectl list --all`", others);
    }
  }
  Listing listing("matrices", none, MatrixColumns());
  for (const MatrixInfo& info : *matrices) {
    Json json = ToJson(info);
    const std::string plan = PlanInUse(info);
    json["plan_in_use"] = plan;
    const bool told = !IsUntold(info);
    if (!told) json["csr_bytes"] = json["durable"] = nullptr;
    listing.Add(
        std::move(json),
        {info.name, Count(info.rows), Count(info.cols), Count(info.nnz), Name(info.type),
         StateText(info), told && info.shards.empty() ? std::to_string(info.plans.size()) : "",
         told ? Bytes(info.csr_bytes) : "", plan, info.owner, std::to_string(info.version),
         !told          ? ""
         : info.durable ? "yes"
                        : "no",
         Time(info.created), NodesText(info, info.nodes, ","),
         info.replicas > 0 ? std::to_string(info.replicas) : "", info.pattern_hash});
  }
  Report report = Report::Of(std::move(listing));
  if (const std::string untold = UntoldText(*matrices); !untold.empty()) {
    report.json["note"] = untold;
    report.problems = fmt::format("note    {}\n", untold);
  }
  return report;
}

absl::StatusOr<Report> Show(const Client& client, const ShowArguments& arguments) {
  const Matrix matrix = client.MatrixNamed(arguments.name);
  const absl::StatusOr<MatrixInfo> info = matrix.Info();
  if (!info.ok()) return info.status();
  Report report{ToJson(*info), ""};
  if (!arguments.features) {
    report.text = DetailsText(*info, NamesOfFactors(client, *info));
    return report;
  }
  const absl::StatusOr<MatrixFeatures> features = matrix.Features();
  if (!features.ok()) return features.status();
  AddFeatures(*info, *features, report);
  return report;
}

absl::StatusOr<Report> Explain(const Client& client, const ExplainArguments& arguments) {
  ExplainOptions options;
  options.k = arguments.k;
  options.device = arguments.device;
  options.cache_bytes = static_cast<int64_t>(arguments.cache_bytes);
  const Matrix matrix = client.MatrixNamed(arguments.name);
  absl::StatusOr<Explanation> explanation = matrix.Explain(options);
  if (!explanation.ok()) return explanation.status();
  const std::optional<std::string> node = matrix.RedirectedTo();
  std::string text = ExplanationText(arguments.name, *explanation, arguments.cache_bytes > 0);
  if (!node.has_value()) return Report{ToJson(arguments.name, *explanation), std::move(text)};
  // What is measured, and what is held, is the node's.
  explanation->requests.finding = AskedAt(*node, explanation->requests.finding);
  for (TransportTimes& times : explanation->requests.transports) {
    times.finding = AskedAt(*node, times.finding);
  }
  Report report{ToJson(arguments.name, *explanation),
                Wrapped(fmt::format("{} is on another node, at {}: what follows is of that one",
                                    arguments.name, *node),
                        "") +
                    "\n" + AskedAt(*node, text)};
  report.json["server"] = *node;
  return report;
}

absl::StatusOr<Report> Measurements(const Client& client, const MeasurementsArguments& arguments,
                                    Hints* hints) {
  const bool to_file = !arguments.out.empty();
  const absl::StatusOr<std::vector<PatternMeasurements>> patterns =
      client.ListMeasurements(arguments.name, {.all = arguments.all, .density_maps = to_file});
  if (!patterns.ok()) return patterns.status();
  if (!to_file) {
    std::string text = arguments.csv ? MeasurementsCsv(*patterns) : MeasurementsText(*patterns);
    if (patterns->empty() && arguments.name.empty() && !arguments.csv && !arguments.all &&
        hints != nullptr && hints->MatricesOfOthers() > 0) {
      text =
          "nothing was measured yet; other tenants have matrices: `sparsectl measurements "
          "--all`\n";
    }
    return Report{{{"patterns", ToJson(*patterns)}}, std::move(text)};
  }
  absl::StatusOr<PackedFile> file = PackedFile::Create(arguments.out);
  if (!file.ok()) return file.status();
  size_t measurements = 0;
  for (const PatternMeasurements& pattern : *patterns) {
    measurements += pattern.measurements.size();
    if (absl::Status s = file->Write(ToJson(pattern).dump() + "\n"); !s.ok()) return s;
  }
  if (absl::Status s = file->Commit(); !s.ok()) return s;
  return Report{
      {{"out", arguments.out}, {"patterns", patterns->size()}, {"measurements", measurements}},
      fmt::format("wrote {}: {} on {}\n", arguments.out, Counted(measurements, "measurement"),
                  Counted(patterns->size(), "pattern"))};
}

/// The steps of a transform pipeline without their parameters, which the server writes behind those
/// that a user left out.
std::string StepsOf(std::string_view pipeline) {
  std::string steps = WithoutParameters(pipeline);
  std::erase(steps, ' ');
  return steps;
}

/// "spmm K=64: breadth_first, which was asked for: 0.63x plain CSR's speed": what became of the
/// transform pipeline that was asked for, also where another one serves.
std::string AskedText(const MatrixInfo& info, const PrepareArguments& arguments,
                      const std::vector<ProblemSignature>& expected) {
  std::string text;
  if (arguments.pipeline.empty()) return text;
  const std::string steps = StepsOf(arguments.pipeline);
  for (const Decision& decision : info.decisions) {
    const bool of_it = StepsOf(decision.pipeline) == steps;
    const bool of_signature =
        expected.empty() || std::ranges::any_of(expected, [&](const ProblemSignature& c) {
          return Text(c) == Text(decision.signature);
        });
    if (!of_it || !of_signature) continue;
    const std::string gain = Outcome(info, decision);
    const std::string outcome = !decision.tried   ? fmt::format("not tried: {}", decision.reason)
                                : gain == "tried" ? gain
                                                  : fmt::format("{} plain CSR's speed", gain);
    text += Wrapped(fmt::format("  {}: {}, which was asked for: {}", Text(decision.signature),
                                decision.pipeline, outcome),
                    "    ");
  }
  return text;
}

absl::StatusOr<Report> Prepare(const Client& client, const PrepareArguments& arguments) {
  absl::StatusOr<std::vector<ProblemSignature>> expected = ParseSignatures(arguments.expect);
  if (!expected.ok()) return expected.status();
  const PrepareOptions options = {.expected = *std::move(expected),
                                  .again = arguments.again,
                                  .pipeline = arguments.pipeline,
                                  .kernel = arguments.kernel,
                                  .explore = arguments.explore};
  const Matrix matrix = client.MatrixNamed(arguments.name);
  if (absl::Status status = matrix.Prepare(options); !status.ok()) return status;
  if (arguments.wait) {
    if (absl::Status status = WaitReady(matrix); !status.ok()) return status;
  }
  const absl::StatusOr<MatrixInfo> info = matrix.Info();
  if (!info.ok()) return info.status();
  absl::StatusOr<Report> report =
      arguments.wait
          ? DescribeReady(client, arguments.name)
          : Report{ToJson(*info), fmt::format("{} is {}\n", info->name, Name(info->state))};
  if (report.ok() && arguments.wait) {
    report->text += AskedText(*info, arguments, options.expected);
  }
  if (report.ok() && std::ranges::any_of(options.expected, &ProblemSignature::allow_tf32)) {
    AddTf32Note(client, info->type, *report);
  }
  return report;
}

absl::StatusOr<Report> Wait(const Client& client, const std::string& name) {
  if (absl::Status status = WaitReady(client.MatrixNamed(name)); !status.ok()) return status;
  return DescribeReady(client, name);
}

}  // namespace sparsed::cli
