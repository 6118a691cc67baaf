// sparsed_scale: what products with a matrix on several cards, or on many, would exchange, need of
// memory and take, for each way of distributing it. A model: see docs/scale.md.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "absl/strings/numbers.h"
#include "tools/exit_codes.h"
#include "tools/matrix_file.h"
#include "tools/scale/distributions.h"
#include "tools/scale/partition.h"
#include "tools/scale/row_exchange.h"
#include "tools/scale/synthetic.h"

namespace sparsed::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9, kMilli = 1e-3, kMicro = 1e-6;

const std::map<std::string, int64_t> kTypes = {{"f16", 2}, {"bf16", 2}, {"f32", 4}, {"f64", 8}};

struct Options {
  std::string file;
  SyntheticGraph graph;
  int64_t generated_rows = int64_t{1} << 20;
  std::vector<int> cards = {1, 2, 4, 8};
  std::vector<std::string> partitions;
  int64_t k = 128;
  std::string type = "f32";
  std::string machine = "h100";
  int cards_per_node = 8;
  // In GB, GB/s, microseconds and milliseconds; the machine's own where none is given.
  std::optional<double> memory, memory_rate, link_rate, network_rate;
  std::vector<std::string> spmm_rate, sddmm_rate;
  std::optional<double> launch_us, latency_us;
  std::optional<double> one_card_ms, one_card_sddmm_ms;
  std::vector<std::string> measured;
  bool from_one_card = false;
  bool json = false;
};

/// A pattern, and how many times larger the one is that is meant.
struct Source {
  std::string name;
  int64_t rows = 0, cols = 0, nnz = 0;  ///< of what is meant
  corpus::Pattern pattern;
  std::optional<corpus::Pattern> quarter;  ///< where it is meant larger: of a quarter of the rows

  bool scaled() const { return pattern.rows != rows; }
};

CsrView ViewOf(const corpus::Pattern& p) {
  return {p.rows, p.cols, p.row_offsets, p.column_indices, {}};
}

absl::StatusOr<Source> ReadSource(const std::string& file) {
  absl::StatusOr<SparseMatrix> matrix = ReadMatrix(file);
  if (!matrix.ok()) return matrix.status();
  Source source{NameOfMatrixFile(file), matrix->rows, matrix->cols, matrix->nnz(), {}, {}};
  source.pattern = {matrix->rows, matrix->cols, std::move(matrix->row_offsets),
                    std::move(matrix->column_indices)};
  return source;
}

absl::StatusOr<Source> MakeSource(const Options& options) {
  const SyntheticGraph& graph = options.graph;
  Source source{graph.generator, graph.rows, graph.rows, graph.nonzeros, {}, {}};
  const int64_t rows = std::min(graph.rows, options.generated_rows);
  absl::StatusOr<corpus::Pattern> pattern = Generate(graph, rows);
  if (!pattern.ok()) return pattern.status();
  source.pattern = *std::move(pattern);
  if (rows == graph.rows) {
    // What rounding left: then it is the pattern that is meant.
    source.rows = source.cols = source.pattern.rows;
    source.nnz = source.pattern.nnz();
    return source;
  }
  absl::StatusOr<corpus::Pattern> quarter = Generate(graph, std::max<int64_t>(rows / 4, 1));
  if (!quarter.ok()) return quarter.status();
  source.quarter = *std::move(quarter);
  return source;
}

absl::StatusOr<Source> SourceOf(const Options& options) {
  absl::StatusOr<Source> source =
      options.file.empty() ? MakeSource(options) : ReadSource(options.file);
  if (!source.ok()) return source;
  if (source->rows == 0 || source->cols == 0 || source->pattern.nnz() == 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} is {} x {} and has no nonzeros: there is nothing to distribute",
                    source->name, source->rows, source->cols));
  }
  const int most = *std::ranges::max_element(options.cards);
  const int64_t rows = source->quarter.has_value() ? source->quarter->rows : source->pattern.rows;
  if (most > rows) {
    return absl::InvalidArgumentError(
        fmt::format("{} cards for {} rows{}", most, rows,
                    source->quarter.has_value() ? " of the smaller pattern that is generated: "
                                                  "--generated-rows"
                                                : ": each card needs a row"));
  }
  return source;
}

/// Of times, rates and sizes: neither NaN nor so large that sums are not finite.
bool IsRate(double value) { return value >= 1e-6 && value <= 1e9; }

/// GB/s, or BYTES:GB/s for rows of the operand of so many bytes.
absl::Status SetRates(const std::vector<std::string>& texts, std::vector<Rate>& rates) {
  if (!texts.empty()) rates.clear();
  for (const std::string& text : texts) {
    const size_t colon = text.find(':');
    const bool everywhere = colon == std::string::npos;
    Rate rate{1, 0};
    if ((!everywhere && !absl::SimpleAtod(text.substr(0, colon), &rate.row_bytes)) ||
        !absl::SimpleAtod(everywhere ? text : text.substr(colon + 1), &rate.bytes_per_second) ||
        !IsRate(rate.bytes_per_second) || !IsRate(rate.row_bytes) ||
        (!rates.empty() && rate.row_bytes <= rates.back().row_bytes)) {
      return absl::InvalidArgumentError(fmt::format(
          "{} is no rate: GB/s, or for rows of ascending BYTES, as in 128:2400,512:2800", text));
    }
    rate.bytes_per_second *= kGiga;
    rates.push_back(rate);
  }
  return absl::OkStatus();
}

absl::StatusOr<Machine> MachineOf(const Options& options) {
  absl::StatusOr<Machine> machine = MachineByName(options.machine);
  if (!machine.ok()) return machine;
  const auto set = [](const std::optional<double>& value, double unit, double& field) {
    if (value.has_value()) field = *value * unit;
  };
  if (options.memory.has_value()) machine->card_bytes = std::llround(*options.memory * kGiga);
  set(options.memory_rate, kGiga, machine->memory_rate);
  set(options.link_rate, kGiga, machine->link_rate);
  set(options.network_rate, kGiga, machine->network_rate);
  set(options.launch_us, kMicro, machine->launch_seconds);
  set(options.latency_us, kMicro, machine->latency_seconds);
  absl::Status status = SetRates(options.spmm_rate, machine->spmm);
  status.Update(SetRates(options.sddmm_rate, machine->sddmm));
  if (!status.ok()) return status;
  machine->cards_per_node = options.cards_per_node;
  return machine;
}

/// What one card was measured to take, over what the model says; kernels alone, without launches.
absl::StatusOr<double> FactorOf(const std::optional<double>& measured_ms, const Times& model) {
  if (!measured_ms.has_value()) return 1.0;
  const double kernel = *measured_ms * kMilli - model.latency;
  if (kernel > 0) return kernel / model.compute;
  return absl::InvalidArgumentError(
      fmt::format("{} ms on one card are not more than the launch of a kernel, {} ms", *measured_ms,
                  model.latency / kMilli));
}

/// By number of parts.
absl::StatusOr<std::map<int, Partition>> PartitionsOf(const Options& options,
                                                      const Source& source) {
  std::map<int, Partition> partitions;
  const std::set<int> cards(options.cards.begin(), options.cards.end());
  for (const std::string& name : options.partitions) {
    if (source.scaled()) {
      return absl::InvalidArgumentError(
          "a partition is of a pattern that is there, not of one that is only described");
    }
    std::vector<absl::StatusOr<Partition>> made;
    if (name == "metis") {
      for (const int parts : cards) {
        if (parts > 1) made.push_back(MetisPartition(ViewOf(source.pattern), parts));
      }
    } else {
      made.push_back(ReadPartition(name, source.rows));
    }
    for (absl::StatusOr<Partition>& partition : made) {
      if (!partition.ok()) return partition.status();
      const int parts = partition->parts;
      if (!cards.contains(parts)) {
        return absl::InvalidArgumentError(fmt::format(
            "{} has {} parts: name so many cards with --cards, too", partition->name, parts));
      }
      if (!partitions.emplace(parts, *std::move(partition)).second) {
        return absl::InvalidArgumentError(
            fmt::format("{} is the second partition into {} parts", name, parts));
      }
    }
  }
  return partitions;
}

Json ToJson(const Times& times) {
  return {{"ms", times.total / kMilli},           {"compute_ms", times.compute / kMilli},
          {"link_ms", times.link / kMilli},       {"network_ms", times.network / kMilli},
          {"latency_ms", times.latency / kMilli}, {"spread_ms", times.spread / kMilli}};
}

Json ToJson(const Outlook& o) {
  Json json = {{"cards", o.cards}, {"nodes", o.nodes}, {"distribution", o.distribution}};
  if (o.distribution == "1.5d") json["copies"] = o.copies;
  if (o.distribution == "2d") json["grid"] = {o.grid_rows, o.grid_cols};
  json["counted"] = o.counted;
  json["exchanged_bytes"] = o.exchanged_bytes;
  json["largest_card_bytes"] = o.largest_card_bytes;
  json["network_bytes"] = o.network_bytes;
  json["sddmm_exchanged_bytes"] = o.sddmm_exchanged_bytes;
  json["card_memory_bytes"] = o.card_memory_bytes;
  json["node_memory_bytes"] = o.node_memory_bytes;
  json["fits"] = o.fits;
  json["idle_cards"] = o.idle_cards;
  json["imbalance"] = o.imbalance.has_value() ? Json(*o.imbalance) : Json();
  json["spmm"] = ToJson(o.spmm);
  json["sddmm"] = ToJson(o.sddmm);
  return json;
}

Json ToJson(const Machine& machine) {
  const auto rates = [](const std::vector<Rate>& known) {
    Json list = Json::array();
    for (const Rate& rate : known) list.push_back({rate.row_bytes, rate.bytes_per_second});
    return list;
  };
  return {{"name", machine.name},
          {"card_bytes", machine.card_bytes},
          {"cards_per_node", machine.cards_per_node},
          {"memory_bytes_per_second", machine.memory_rate},
          {"spmm_bytes_per_second", rates(machine.spmm)},
          {"sddmm_bytes_per_second", rates(machine.sddmm)},
          {"link_bytes_per_second", machine.link_rate},
          {"network_bytes_per_second", machine.network_rate},
          {"launch_ms", machine.launch_seconds / kMilli},
          {"latency_ms", machine.latency_seconds / kMilli}};
}

/// Everything about one number of cards; what is not possible goes to `left_out`.
class Survey {
 public:
  Survey(const Options& options, const Source& source, const ScaleModel& model,
         std::map<int, Partition> partitions)
      : options_(options), source_(source), model_(model), partitions_(std::move(partitions)) {}

  Json Run() {
    for (const int cards : std::set<int>(options_.cards.begin(), options_.cards.end())) {
      if (cards > 1) Look(cards);
    }
    return {{"distributions", std::move(found_)},
            {"left_out", std::move(left_out_)},
            {"drift", source_.scaled() ? Json(drift_) : Json()}};
  }

 private:
  void Look(int cards) {
    Add(model_.Columns(cards));
    Add(model_.RotatingColumns(cards));
    Add(RowBlocks(cards));
    if (const auto found = partitions_.find(cards); found != partitions_.end()) {
      Outlook outlook =
          model_.Rows(CountExchange(ViewOf(source_.pattern), found->second.part_of_row, cards,
                                    options_.cards_per_node),
                      "partition");
      Add(outlook);
    }
    Add(model_.AllRows(cards));
    Try("1.5d", cards, model_.OneAndAHalfD(cards));
    Try("2d", cards, model_.TwoD(cards));
  }

  RowExchange Count(const corpus::Pattern& pattern, int cards) {
    const CsrView csr = ViewOf(pattern);
    return CountExchange(csr, BlocksByNonzeros(csr, cards), cards, options_.cards_per_node);
  }

  Outlook RowBlocks(int cards) {
    RowExchange exchange = Count(source_.pattern, cards);
    if (!source_.scaled()) return model_.Rows(exchange, "rows");
    const auto share = [](const RowExchange& of, const corpus::Pattern& pattern) {
      return static_cast<double>(of.fetched_rows()) / static_cast<double>(pattern.rows);
    };
    const double here = share(exchange, source_.pattern),
                 smaller = share(Count(*source_.quarter, cards), *source_.quarter);
    if (here > 0) drift_ = std::max(drift_, std::abs(here - smaller) / here);
    exchange = Scaled(
        exchange, static_cast<double>(source_.rows) / static_cast<double>(source_.pattern.rows),
        static_cast<double>(source_.nnz) / static_cast<double>(source_.pattern.nnz()));
    Outlook outlook = model_.Rows(exchange, "rows");
    outlook.counted = false;
    return outlook;
  }

  void Add(const Outlook& outlook) { found_.push_back(ToJson(outlook)); }

  void Try(std::string_view distribution, int cards, const absl::StatusOr<Outlook>& outlook) {
    if (outlook.ok()) return Add(*outlook);
    left_out_.push_back({{"cards", cards},
                         {"distribution", distribution},
                         {"why", std::string(outlook.status().message())}});
  }

  const Options& options_;
  const Source& source_;
  const ScaleModel& model_;
  std::map<int, Partition> partitions_;
  Json found_ = Json::array(), left_out_ = Json::array();
  double drift_ = 0;
};

/// CARDS:DISTRIBUTION:MS, each beside what the model says of SpMM.
absl::Status AddMeasured(const std::vector<std::string>& measured, Json& distributions) {
  for (const std::string& text : measured) {
    const size_t first = text.find(':'), last = text.rfind(':');
    int cards = 0;
    double ms = 0;
    if (first == last || !absl::SimpleAtoi(text.substr(0, first), &cards) ||
        !absl::SimpleAtod(text.substr(last + 1), &ms) || !IsRate(ms)) {
      return absl::InvalidArgumentError(
          fmt::format("--measured={} is not CARDS:DISTRIBUTION:MS, as in 2:rows:1.3", text));
    }
    const std::string name = text.substr(first + 1, last - first - 1);
    const auto found = std::ranges::find_if(distributions, [&](const Json& d) {
      return d["cards"] == cards && d["distribution"] == name;
    });
    if (found == distributions.end()) {
      return absl::InvalidArgumentError(fmt::format(
          "--measured={}: {} on {} cards is not among the distributions", text, name, cards));
    }
    (*found)["spmm"]["measured_ms"] = ms;
    (*found)["spmm"]["error"] = (*found)["spmm"]["ms"].get<double>() / ms - 1;
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> Scale(const Options& options) {
  const absl::StatusOr<Machine> machine = MachineOf(options);
  if (!machine.ok()) return machine.status();
  const absl::StatusOr<Source> source = SourceOf(options);
  if (!source.ok()) return source.status();
  absl::StatusOr<std::map<int, Partition>> partitions = PartitionsOf(options, *source);
  if (!partitions.ok()) return partitions.status();

  const CsrView csr = ViewOf(source->pattern);
  const std::vector<CardNumber> all_on_one(static_cast<size_t>(csr.rows), CardNumber{0});
  RowExchange one = CountExchange(csr, all_on_one, 1, 1);
  if (source->scaled()) {
    one = Scaled(one, static_cast<double>(source->rows) / static_cast<double>(csr.rows), 1);
  }
  const Product product{source->rows, source->cols,
                        source->nnz,  one.cards[0].own_used_rows,
                        options.k,    kTypes.at(options.type)};
  ScaleModel::Options model_options{.from_one_card = options.from_one_card};
  const Outlook raw = ScaleModel(product, *machine, model_options).OneCard();
  const absl::StatusOr<double> spmm = FactorOf(options.one_card_ms, raw.spmm),
                               sddmm = FactorOf(options.one_card_sddmm_ms, raw.sddmm);
  if (!spmm.ok()) return spmm.status();
  if (!sddmm.ok()) return sddmm.status();
  model_options.spmm_factor = *spmm;
  model_options.sddmm_factor = *sddmm;
  const ScaleModel model(product, *machine, model_options);

  Json report = {{"matrix", source->name},     {"rows", product.rows}, {"cols", product.cols},
                 {"nnz", product.nnz},         {"k", product.k},       {"type", options.type},
                 {"machine", ToJson(*machine)}};
  if (options.file.empty()) {
    const SyntheticGraph& graph = options.graph;
    report["generated"] = {{"rows", csr.rows},           {"nnz", csr.nnz()},
                           {"exponent", graph.exponent}, {"inside", graph.inside},
                           {"blocks", graph.blocks},     {"seed", graph.seed}};
  }
  report["calibrated"] = {{"spmm", *spmm}, {"sddmm", *sddmm}};
  report["from_one_card"] = options.from_one_card;
  report["one_card"] = ToJson(model.OneCard());
  report.update(Survey(options, *source, model, *std::move(partitions)).Run());
  Json& found = report["distributions"];
  for (Json& d : found) {
    for (const char* const operation : {"spmm", "sddmm"}) {
      d[operation]["speed_up"] =
          report["one_card"][operation]["ms"].get<double>() / d[operation]["ms"].get<double>();
    }
  }
  if (absl::Status status = AddMeasured(options.measured, found); !status.ok()) return status;
  return report;
}

/// The part of the time that is the longest.
std::string Mostly(const Json& times) {
  std::string mostly = "compute";
  for (const char* const part : {"link", "network", "latency", "spread"}) {
    const auto ms = [&](const std::string& name) { return times[name + "_ms"].get<double>(); };
    if (ms(part) > ms(mostly)) mostly = part;
  }
  return mostly;
}

std::string Line(const Json& d) {
  std::string name = d["distribution"];
  if (d.contains("copies")) name += fmt::format(" c={}", d["copies"].get<int>());
  if (d.contains("grid"))
    name += fmt::format(" {}x{}", d["grid"][0].get<int>(), d["grid"][1].get<int>());
  const auto giga = [&d](const char* field) { return d[field].get<double>() / kGiga; };
  const Json &spmm = d["spmm"], &sddmm = d["sddmm"];
  std::string line = fmt::format(
      "{:>5}  {:<17}{:>10.3f}{:>10.3f}{:>10.3f}{:>9.2f}{:>2}{:>9.2f}{:>10}{:>11.3f}{:>9}  "
      "{:<9}{:>11.3f}{:>9}",
      d["cards"].get<int>(), name, giga("exchanged_bytes"), giga("largest_card_bytes"),
      giga("network_bytes"), giga("card_memory_bytes"), d["fits"].get<bool>() ? "" : " !",
      giga("node_memory_bytes"),
      d["imbalance"].is_null() ? "" : fmt::format("{:.2f}", d["imbalance"].get<double>()),
      spmm["ms"].get<double>(),
      spmm.contains("speed_up") ? fmt::format("{:.2f}x", spmm["speed_up"].get<double>()) : "",
      Mostly(spmm), sddmm["ms"].get<double>(),
      sddmm.contains("speed_up") ? fmt::format("{:.2f}x", sddmm["speed_up"].get<double>()) : "");
  if (spmm.contains("measured_ms")) {
    line += fmt::format("  measured {:.3f} ms: the model errs by {:+.1f} %",
                        spmm["measured_ms"].get<double>(), 100 * spmm["error"].get<double>());
  }
  return line + '\n';
}

std::string Text(const Json& report) {
  const Json& machine = report["machine"];
  std::string text = fmt::format(
      "{}: {} x {}, {} nonzeros, K = {}, {}\n"
      "{}, {} cards a node: memory {:.0f} GB, links {:.0f} GB/s, network {:.0f} GB/s a card\n",
      report["matrix"].get<std::string>(), report["rows"].get<int64_t>(),
      report["cols"].get<int64_t>(), report["nnz"].get<int64_t>(), report["k"].get<int64_t>(),
      report["type"].get<std::string>(), machine["name"].get<std::string>(),
      machine["cards_per_node"].get<int>(), machine["card_bytes"].get<double>() / kGiga,
      machine["link_bytes_per_second"].get<double>() / kGiga,
      machine["network_bytes_per_second"].get<double>() / kGiga);
  if (!report["drift"].is_null()) {
    text += fmt::format(
        "Row blocks are those of {} generated rows, in proportion; a quarter of them would have "
        "exchanged {:.1f} % more or less\n",
        report["generated"]["rows"].get<int64_t>(), 100 * report["drift"].get<double>());
  }
  text += fmt::format(
      "\n{:>5}  {:<17}{:>10}{:>10}{:>10}{:>9}{:>2}{:>9}{:>10}{:>11}{:>9}  {:<9}{:>11}{:>9}\n",
      "CARDS", "DISTRIBUTION", "GB MOVED", "LARGEST", "NETWORK", "GB/CARD", "", "GB/NODE",
      "IMBALANCE", "SPMM ms", "", "MOSTLY", "SDDMM ms", "");
  text += Line(report["one_card"]);
  int cards = 1;
  for (const Json& d : report["distributions"]) {
    if (d["cards"] != cards) text += '\n';
    cards = d["cards"];
    text += Line(d);
  }
  text += "\n!: more than a card has\n";
  for (const Json& left : report["left_out"]) {
    text += fmt::format("{} cards, {}: {}\n", left["cards"].get<int>(),
                        left["distribution"].get<std::string>(), left["why"].get<std::string>());
  }
  return text;
}

void AddMachineFlags(CLI::App& app, Options& options) {
  app.add_option("--machine", options.machine, "Rates and memory of a card: h100 or h200")
      ->capture_default_str();
  app.add_option("--cards-per-node", options.cards_per_node, "Cards that reach each other by links")
      ->check(CLI::Range(1, kMostCards))
      ->capture_default_str();
  const auto positive = [&app](const char* name, std::optional<double>& value, const char* help) {
    app.add_option(name, value, help)->check([](const std::string& text) {
      double number = 0;
      const bool right = absl::SimpleAtod(text, &number) && IsRate(number);
      return right ? std::string() : fmt::format("{} is not in [1e-6, 1e9]", text);
    });
  };
  positive("--memory", options.memory, "Memory of a card, in GB of 10^9 bytes");
  positive("--memory-rate", options.memory_rate, "Rate of a card's memory, in GB/s");
  app.add_option("--spmm-rate", options.spmm_rate,
                 "What SpMM reaches, in GB/s, a row of the operand counted for each nonzero; or "
                 "BYTES:GB/s,... for rows of so many bytes")
      ->delimiter(',');
  app.add_option("--sddmm-rate", options.sddmm_rate, "What SDDMM reaches, likewise")
      ->delimiter(',');
  positive("--link-rate", options.link_rate, "Between cards of a node, in GB/s each way");
  positive("--network-rate", options.network_rate,
           "Between nodes, in GB/s for each card and each way");
  positive("--launch-us", options.launch_us, "Microseconds that the launch of a kernel takes");
  positive("--latency-us", options.latency_us, "Microseconds that a step of an exchange takes");
  positive("--measured-one-card-ms", options.one_card_ms,
           "What SpMM took on one card: the model's kernels are as fast");
  positive("--measured-one-card-sddmm-ms", options.one_card_sddmm_ms, "What SDDMM took");
  app.add_option("--measured", options.measured,
                 "CARDS:DISTRIBUTION:MS, what SpMM took there, to be held beside the model; "
                 "repeatable");
}

void AddGraphFlags(CLI::App& app, Options& options) {
  SyntheticGraph& graph = options.graph;
  CLI::Option* const rows =
      app.add_option("--rows", graph.rows, "Rows of a graph that is described, not read")
          ->check(CLI::Range(int64_t{1}, kMostRows));
  CLI::Option* const nonzeros = app.add_option("--nonzeros", graph.nonzeros, "Its nonzeros")
                                    ->check(CLI::Range(int64_t{1}, kMostNonzeros));
  rows->needs(nonzeros);
  nonzeros->needs(rows);
  app.add_option("--generator", graph.generator,
                 "What is like it: power_law, rmat, blocks (communities) or uniform")
      ->capture_default_str();
  app.add_option("--exponent", graph.exponent, "Of power_law: 0.5, 0.75 or 1")
      ->capture_default_str();
  app.add_option("--inside", graph.inside, "Of blocks: edges in a thousand that stay inside")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--blocks", graph.blocks, "Of blocks: how many")
      ->check(CLI::Range(int64_t{1}, kMostGenerated))
      ->capture_default_str();
  app.add_option("--generated-rows", options.generated_rows,
                 "Rows that are generated at most; what they exchange is scaled up")
      ->check(CLI::Range(int64_t{4}, kMostGenerated))
      ->capture_default_str();
  app.add_option("--seed", graph.seed, "Of the generator")->capture_default_str();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Says what SpMM and SDDMM with a matrix on several cards would exchange, need of memory and "
      "take, for each way of distributing it. A model: docs/scale.md.");
  CLI::Option* const file = app.add_option(
      "FILE", options.file, "A file of any format that sparsectl uploads, by its content");
  app.add_option("--cards", options.cards, "Numbers of cards, as in 2,4,8")
      ->delimiter(',')
      ->check(CLI::Range(1, kMostCards))
      ->capture_default_str();
  app.add_option("--partition", options.partitions,
                 "A file with a part for each row, as METIS writes it, or metis; repeatable, once "
                 "for each number of cards");
  app.add_option("--k", options.k, "Columns of the dense matrices")
      ->check(CLI::Range(int64_t{1}, kMostColumns))
      ->capture_default_str();
  app.add_option("--type", options.type, "Of values")
      ->check(CLI::IsMember(kTypes))
      ->capture_default_str();
  app.add_flag("--from-one-card", options.from_one_card,
               "The operand lies on one card, and the result is to be there");
  AddGraphFlags(app, options);
  AddMachineFlags(app, options);
  app.add_flag("--json", options.json, "Print one JSON object");
  file->excludes("--rows");
  try {
    app.parse(argc, argv);
    if (options.file.empty() && options.graph.rows == 0) {
      throw CLI::RequiredError("FILE, or --rows and --nonzeros");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUse;
  }

  absl::StatusOr<Json> report =
      absl::ResourceExhaustedError("no memory for a pattern of this size");
  try {
    report = Scale(options);
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  if (!report.ok()) return ExitWith("sparsed_scale", report.status());
  fmt::print("{}", options.json
                       ? report->dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                       : Text(*report));
  return 0;
}

}  // namespace
}  // namespace sparsed::tools

int main(int argc, char** argv) { return sparsed::tools::Main(argc, argv); }
