#include "client/cli/measurements_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <tuple>

namespace sparsed::cli {
namespace {

/// The features that a header names: those of the first pattern that has any.
std::vector<std::string> FeatureNames(const std::vector<PatternMeasurements>& patterns) {
  std::vector<std::string> names;
  for (const PatternMeasurements& pattern : patterns) {
    for (const Feature& feature : pattern.features.values) names.push_back(feature.name);
    if (!names.empty()) break;
  }
  return names;
}

std::string Quoted(std::string_view text) {
  if (text.find_first_of(",\"\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

/// As many digits as it takes; empty for 0: not known.
std::string Known(double value) { return value > 0 ? fmt::format("{}", value) : ""; }

std::string CsvOf(const Measurement& m) {
  const ProblemSignature& c = m.signature;
  return fmt::format("{},{:d},{},{:d},{},{},{},{},{},{},{},{},{},{},{},{:d},{},{:d},{:d}",
                     Name(c.operation), c.transposed, Name(m.type), c.allow_tf32, c.k, m.k,
                     Quoted(m.pipeline), Quoted(m.kernel), Quoted(m.device), m.median_ms,
                     m.preparation_ms, Known(m.roofline_ms), Known(m.baseline_ms), m.runs,
                     Quoted(m.model), m.censored, m.right_pattern_hash, m.transpose_left,
                     m.transpose_right);
}

}  // namespace

std::string MeasurementsCsv(const std::vector<PatternMeasurements>& patterns) {
  const std::vector<std::string> names = FeatureNames(patterns);
  std::string csv = "pattern_hash,";
  for (const std::string& name : names) csv += Quoted(name) + ',';
  csv +=
      "operation,transposed,type,allow_tf32,class,k,recipe,kernel,device,median_ms,"
      "preparation_ms,floor_ms,csr_ms,runs,model,censored,right_pattern_hash,transpose_left,"
      "transpose_right,past\n";
  for (const PatternMeasurements& pattern : patterns) {
    std::string begin = pattern.pattern_hash + ',';
    for (const std::string& name : names) {
      const auto feature = std::ranges::find(pattern.features.values, name, &Feature::name);
      if (feature != pattern.features.values.end()) begin += fmt::format("{}", feature->value);
      begin += ',';
    }
    for (const Measurement& m : pattern.measurements)
      csv += fmt::format("{}{},{:d}\n", begin, CsvOf(m), pattern.past);
  }
  return csv;
}

std::string KnownMilliseconds(double milliseconds) {
  if (milliseconds <= 0) return "";
  // Tiny matrices take no microsecond.
  return milliseconds < 0.01 ? fmt::format("{:.5f}", milliseconds)
                             : fmt::format("{:.3f}", milliseconds);
}

std::string RooflineShare(double share, std::string_view roof) {
  if (share <= 0) return "";
  if (roof == "cache" || share > 1) return "in cache";
  return fmt::format("{:.0f} %", 100 * share);
}

Table MeasurementsTable(const std::vector<Measurement>& measurements, std::string_view pattern_hash,
                        const PatternNames& names) {
  Table table({"SIGNATURE", "TYPE", "K", "MEDIAN ms", "BASELINE ms", "BUILD ms", "GFLOP/s",
               "ROOFLINE", "RUNS", "DEVICE", "KERNEL", "PIPELINE"},
              {"RUNS", "TYPE", "K", "DEVICE", "BUILD ms", "GFLOP/s", "BASELINE ms", "ROOFLINE"});
  for (const Measurement& m : measurements) {
    table.Add({SignatureText(m, pattern_hash, names), Name(m.type), std::to_string(m.k),
               KnownMilliseconds(m.median_ms), KnownMilliseconds(m.baseline_ms),
               KnownMilliseconds(m.preparation_ms),
               m.gflops > 0 ? fmt::format("{:.2f}", m.gflops) : "",
               RooflineShare(m.roofline_share, m.roof), std::to_string(m.runs), m.device, m.kernel,
               PipelineText(m)});
  }
  return table;
}

std::string UnsureText(const BusyTrials& trials, std::string_view name) {
  return fmt::format(
      "timed on a busy machine: plain CSR took {} to {} ms from turn to turn, which differs by "
      "more "
      "than the plan gains (sparsectl prepare {} --retune)",
      KnownMilliseconds(trials.least_baseline_ms), KnownMilliseconds(trials.most_baseline_ms),
      name);
}

std::string UnsureText(const MatrixInfo& info) {
  std::string text;
  for (const PlanInfo& plan : info.plans) {
    if (!plan.busy_trials) continue;
    text += Wrapped(
        fmt::format("  {}: {}", Text(plan.signature), UnsureText(*plan.busy_trials, info.name)),
        "    ");
  }
  return text;
}

std::string MeasurementsText(const std::vector<PatternMeasurements>& patterns,
                             const PatternNames& names) {
  std::string text;
  for (const PatternMeasurements& pattern : patterns) {
    if (pattern.measurements.empty()) continue;
    std::vector<Measurement> sorted = pattern.measurements;
    std::ranges::stable_sort(sorted, {}, [](const Measurement& m) {
      const ProblemSignature& c = m.signature;
      return std::tuple(m.type, c.operation, c.transposed, c.allow_tf32, c.k, m.device,
                        m.median_ms);
    });
    text += fmt::format("{}pattern {}{}\n{}", text.empty() ? "" : "\n", pattern.pattern_hash,
                        pattern.past ? ", which no matrix has any more" : "",
                        MeasurementsTable(sorted, pattern.pattern_hash, names).Text());
  }
  return text.empty() ? "nothing was measured yet\n" : text;
}

}  // namespace sparsed::cli
