#include "client/cli/explain_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/cli/json.h"
#include "client/cli/measurements_report.h"
#include "client/cli/report.h"

namespace sparsed::cli {
namespace {

/// A gain that is worth a sentence.
constexpr double kWorth = 1.05;

std::string NameOf(const ExplainedOperation& operation) {
  if (operation.operation == Operation::kSpgemm) return "S * S";
  return operation.k == 1 ? "SpMV" : fmt::format("SpMM K={}", operation.k);
}

double RooflineMs(const Explanation& e, const Movement& m, double bytes) {
  return 1e3 * std::max(m.flops / e.flops_per_second, bytes / e.bytes_per_second);
}

std::string MiB(double bytes) { return fmt::format("{:.2f}", bytes / (1 << 20)); }

std::string Title(const ExplainedOperation& o) {
  return NameOf(o) + (o.stored.estimate ? " (estimate)" : "");
}

/// What the model says bounds it from above.
std::string RoofOf(const Explanation& e, const ExplainedOperation& o) {
  if (o.limit == "nothing" || o.limit == "cache") return o.limit == "cache" ? "cache" : "";
  return o.stored.flops / e.flops_per_second > o.stored.moved_bytes / e.bytes_per_second
             ? "arithmetic"
             : "memory";
}

/// What the plan's trial says of this problem; of a neighbouring K it says so.
std::string MeasuredCell(const ExplainedOperation& o) {
  if (o.measured_ms > 0) return fmt::format("{:.4f}", o.measured_ms);
  return o.trial_ms > 0 ? fmt::format("{:.4f} (K={})", o.trial_ms, o.trial_k) : "";
}

/// Of the plan's trial, beside the roof that it was under. `assumed`: the model has another cache.
std::string MeasuredText(const ExplainedOperation& o, bool assumed) {
  if (o.measured.empty()) return "";
  if (o.measured_ms > 0) {
    const std::string share = RooflineShare(o.roofline_share, o.roof);
    const std::string where = assumed ? ", with the device's own cache and not the one assumed here"
                              : share.empty()       ? ""
                              : share == "in cache" ? ", where caches bound it and not memory"
                              : o.limit == "cache"
                                  ? ""
                                  : fmt::format(", at {} of the memory roofline", share);
    return fmt::format("measured: {:.4f} ms by {}{}", o.measured_ms, o.measured, where);
  }
  std::string text = o.operation == Operation::kSpgemm || o.plan_k == 0
                         ? fmt::format("served by {}", o.measured)
                         : fmt::format("served by the plan of spmm K={}, {}", o.plan_k, o.measured);
  if (o.trial_ms <= 0) return text + ", which was not timed";
  return text + fmt::format(
                    ", which took {:.4f} ms for K={}; K={} itself was not timed (sparsectl prepare "
                    "--tune-for=spmm:{})",
                    o.trial_ms, o.trial_k, o.k, o.k);
}

std::string TablesText(const Explanation& e) {
  Table moved({"MiB MOVED", "AT LEAST", "BY ROWS", "IN PARTS", "REORDERED", "REORDERED PARTS"});
  // By rows, as stored, and if all was moved once, which no order of rows is better than.
  Table roofline({"ROOFLINE", "ROOF", "FLOP/BYTE", "GFLOP/s", "ms", "BEST FLOP/BYTE",
                  "BEST GFLOP/s", "BEST ms", "MEASURED ms"},
                 {"BEST FLOP/BYTE", "BEST GFLOP/s", "FLOP/BYTE", "GFLOP/s"});
  for (const ExplainedOperation& o : e.operations) {
    const Movement& m = o.stored;
    moved.Add({Title(o), MiB(m.footprint_bytes), MiB(m.moved_bytes), MiB(m.partition_bytes),
               MiB(o.reordered.moved_bytes), MiB(o.reordered.partition_bytes)});
    // Memory's rate says nothing of what the cache holds.
    const auto by_memory = [&](double value, int digits) {
      return o.limit == "cache" ? "" : fmt::format("{:.{}f}", value, digits);
    };
    roofline.Add({Title(o), RoofOf(e, o), fmt::format("{:.3f}", Intensity(m.flops, m.moved_bytes)),
                  by_memory(RooflineGflops(e, m.flops, m.moved_bytes), 2),
                  by_memory(RooflineMs(e, m, m.moved_bytes), 4),
                  fmt::format("{:.3f}", Intensity(m.flops, m.footprint_bytes)),
                  by_memory(RooflineGflops(e, m.flops, m.footprint_bytes), 2),
                  by_memory(RooflineMs(e, m, m.footprint_bytes), 4), MeasuredCell(o)});
  }
  return fmt::format("{}\n{}", moved.Text(), roofline.Text());
}

std::string LimitText(const Explanation& e, const ExplainedOperation& o) {
  const Movement& m = o.stored;
  if (o.limit == "nothing") return "there is nothing to multiply";
  if (o.limit == "cache") {
    return fmt::format(
        "all {} MiB fit the last level cache: memory's roofline is no limit, and an order of rows "
        "can only help the caches before it (--cache=)",
        MiB(m.footprint_bytes));
  }
  if (o.limit == "arithmetic") {
    return fmt::format("arithmetic: {:.1f} operations a byte, the device has {:.1f}",
                       Intensity(m.flops, m.moved_bytes), e.flops_per_second / e.bytes_per_second);
  }
  if (o.limit == "imbalance") {
    return fmt::format(
        "one row has {:.1f} % of the work, {:.1f} times the fair share of one of {} workers: a "
        "kernel must cut rows",
        100 * m.largest_row, o.imbalance, e.workers);
  }
  if (o.limit == "cache_misses") {
    return fmt::format("cache misses: the other operand's rows are fetched {:.1f} times on average",
                       m.operand_moved_bytes / std::max(m.operand_footprint_bytes, 1.0));
  }
  return "memory bandwidth: next to nothing is fetched twice";
}

std::string GainText(const Explanation& e, const ExplainedOperation& o) {
  if (o.limit == "nothing" || o.limit == "cache") return "";
  if (o.greatest_gain < kWorth) return "a reordering has nothing to gain";
  std::string text = fmt::format("a reordering gains {:.2f}x at most", o.greatest_gain);
  if (o.known_gain < kWorth) return text + ", and none is known that does";
  const double best = std::min(o.reordered.moved_bytes, o.reordered.partition_bytes);
  const bool by_order = best < std::min(o.stored.moved_bytes, o.stored.partition_bytes);
  return text + fmt::format(", {:.2f}x by {}", o.known_gain,
                            by_order ? "rows in the order of " + e.reordered_by
                                     : std::string("parts of the rows as they are"));
}

/// "columns over 2 GPUs".
std::string NameOf(const ExplainedDistribution& d) {
  return d.gpus < 2 ? std::string("one GPU")
                    : fmt::format("{} over {} GPUs", Name(d.distribution), d.gpus);
}

/// What a server with several GPUs could do with them.
std::vector<std::string> DistributionTexts(const ExplainedOperation& o) {
  std::vector<std::string> texts;
  double whole_ms = 0, best_ms = 0;
  for (const ExplainedDistribution& d : o.distributions) {
    const bool whole = d.gpus < 2;
    if (whole) whole_ms = best_ms = d.estimated_ms;
    best_ms = std::min(best_ms, d.estimated_ms);
    std::string text =
        fmt::format("{}{}: {:.4f} ms estimated", d.chosen ? "* " : "  ", NameOf(d), d.estimated_ms);
    if (!whole) {
      text += d.exchanged_bytes > 0 ? fmt::format(", {} MiB exchanged", MiB(d.exchanged_bytes))
                                    : std::string(", nothing exchanged");
    }
    if (d.measured_ms > 0) text += fmt::format(", {:.4f} ms tried", d.measured_ms);
    texts.push_back(std::move(text));
  }
  if (texts.empty()) return texts;
  // Of one that is not held.
  const double with_spread = best_ms + o.spread_ms;
  texts.push_back(fmt::format(
      "an operand that lies on one GPU: {:.4f} ms to spread it and to collect the result, {:.4f} "
      "ms in all against {:.4f} ms on one: {}",
      o.spread_ms, with_spread, whole_ms,
      with_spread < whole_ms ? "it pays"
      : best_ms < whole_ms   ? "it does not pay; hold it distributed (buffers put --over-gpus)"
                             : "it does not pay, and would not if it were held distributed"));
  return texts;
}

}  // namespace

std::string ExplanationText(const std::string& name, const Explanation& e, bool assumed_cache) {
  std::string text = Wrapped(
      fmt::format(
          "{} on {}: memory {:.1f} GB/s, {:.0f} GFLOP/s, {}cache of {} in lines of {} bytes", name,
          e.device, 1e-9 * e.bytes_per_second, 1e-9 * e.flops_per_second,
          assumed_cache ? "assumed " : "", Bytes(e.cache_bytes), e.line_bytes),
      "  ");
  if (e.measured_while_busy) {
    text += Wrapped(
        "  others computed whenever memory's rate was measured: it may be higher, and what follows "
        "from it another time differ (`sparsectl calibrate` on a quiet machine settles it)",
        "  ");
  }
  text += fmt::format("\n{}\n", TablesText(e));
  for (const ExplainedOperation& o : e.operations) {
    text += Wrapped(fmt::format("{}: {}", Title(o), LimitText(e, o)), "  ");
    for (const std::string& more : {GainText(e, o), MeasuredText(o, assumed_cache)}) {
      if (!more.empty()) text += Wrapped("  " + more, "    ");
    }
    for (const std::string& more : DistributionTexts(o)) text += Wrapped("  " + more, "      ");
  }
  return text;
}

}  // namespace sparsed::cli
