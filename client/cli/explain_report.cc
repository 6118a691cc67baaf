#include "client/cli/explain_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "client/cli/json.h"
#include "client/cli/measurements_report.h"
#include "client/cli/report.h"

namespace sparsed::cli {
namespace {

/// A gain that is worth a sentence.
constexpr double kWorth = 1.1;
/// By the roof. Below that, what starting and ending a product take is all that there is.
constexpr double kTinyMilliseconds = 1e-3;
/// Likewise of a matrix whose every product is small beside what a request takes on its way, and of
/// the kernel in its last requests.
constexpr double kSmallMilliseconds = 0.05;
constexpr std::chrono::microseconds kSmallKernel{200};
/// More than that in the mean, and something holds requests up that is worth a look.
constexpr std::chrono::milliseconds kQuickRequest{1};
/// Nonzeros of a row that are few beside what a row itself takes.
constexpr double kShortRow = 16;
/// Columns above which more of them at once help little.
constexpr int64_t kWide = 64;
/// Times by which a kernel is slower or faster in requests than in its trial that are worth a word.
constexpr double kOtherwise = 1.5;
/// Times by which a trial is slower than the rates allow, and milliseconds, above which starting
/// and waiting alone is no explanation.
constexpr double kFarTimes = 4;
constexpr double kFarMilliseconds = 1;

std::string NameOf(const ExplainedOperation& operation) {
  if (operation.operation == Operation::kSpgemm) return "S * S";
  return operation.k == 1 ? "SpMV" : fmt::format("SpMM K={}", operation.k);
}

/// Values that are fewer bytes: of a type that is narrower by one step; "" where there is none.
std::string NarrowerText(const Explanation& e) {
  if (!e.type) return "values of a narrower type, at the cost of precision";
  if (*e.type == ValueType::kF64) return "values of f32, at the cost of precision";
  if (*e.type == ValueType::kF32) return "values of f16 or bf16, at the cost of precision";
  return "";
}

/// ": a, or b" of what may help.
std::string HelpText(const std::string& one, const std::string& other) {
  const bool both = !one.empty() && !other.empty();
  const std::string text = fmt::format("{}{}{}", one, both ? ", or " : "", other);
  return text.empty() ? "" : ": " + text;
}

/// Bytes in a sentence.
std::string BytesText(double bytes) { return Bytes(static_cast<int64_t>(bytes)); }

std::string Title(const ExplainedOperation& o) {
  return NameOf(o) + (o.served.estimate ? " (estimate)" : "");
}

/// What bounds it by the model: the bytes, where they come from and at which rate; 0: not known.
struct Roof {
  const char* name;
  double bytes_per_second;
  const Movement& served;
  const Movement& stored;
  const Movement& reordered;
};
Roof RoofOf(const Explanation& e, const ExplainedOperation& o) {
  if (o.limit == "cache") {
    return {"cache", e.cache_bytes_per_second, o.inner_served, o.inner, o.inner_reordered};
  }
  return {"memory", e.bytes_per_second, o.served, o.stored, o.reordered};
}

double Milliseconds(const Explanation& e, const Roof& roof, double bytes) {
  return 1e3 * std::max(roof.served.flops / e.flops_per_second, bytes / roof.bytes_per_second);
}

/// What the plan's trial says of this problem; of a neighbouring K it says so.
std::string MeasuredCell(const ExplainedOperation& o) {
  if (o.measured_ms > 0) return fmt::format("{:.4f}", o.measured_ms);
  // SpMV is another product.
  return o.trial_ms > 0 && o.k > 1 ? fmt::format("{:.4f} (K={})", o.trial_ms, o.trial_k) : "";
}

/// A product so small that no roof matters.
bool IsTiny(const Explanation& e, const ExplainedOperation& o) {
  const Roof roof = RoofOf(e, o);
  return o.limit != "nothing" && roof.bytes_per_second > 0 && e.flops_per_second > 0 &&
         Milliseconds(e, roof, roof.served.moved_bytes) < kTinyMilliseconds;
}

/// Operations a second that the plan's trial reached, and their share of what arithmetic allows
/// where that is what bounds it.
std::string ReachedText(const Explanation& e, const ExplainedOperation& o) {
  const double flops_per_second = o.served.flops / (1e-3 * o.measured_ms);
  const std::string reached = fmt::format("{:.1f} GFLOP/s", 1e-9 * flops_per_second);
  if (o.cache_limit != "arithmetic") return reached;
  return fmt::format("{}, {:.0f} % of what arithmetic allows", reached,
                     100 * flops_per_second / e.flops_per_second);
}

/// Of the plan's trial, beside the roof that it was under. `assumed`: the model has another cache.
std::string MeasuredText(const std::string& name, const Explanation& e, const ExplainedOperation& o,
                         bool assumed) {
  if (o.measured.empty()) return "";
  if (o.measured_ms > 0) {
    const std::string share = RooflineShare(o.roofline_share, o.roof);
    const std::string where = assumed ? ", with the device's own cache and not the one assumed here"
                              : o.limit == "cache" ? fmt::format(": {}", ReachedText(e, o))
                              : share.empty()      ? ""
                              : share == "in cache"
                                  ? ", where caches bound it and not memory"
                                  : fmt::format(", at {} of the memory roofline", share);
    return fmt::format("measured when it was tuned: {:.4f} ms by {}{}", o.measured_ms, o.measured,
                       where);
  }
  std::string text = o.operation == Operation::kSpgemm || o.plan_k == 0
                         ? fmt::format("served by {}", o.measured)
                         : fmt::format("served by the plan of spmm K={}, {}", o.plan_k, o.measured);
  if (o.trial_ms <= 0) return text + ", which was not timed";
  return text + fmt::format(
                    ", which took {:.4f} ms for K={}; K={} itself was not timed (sparsectl prepare "
                    "{} --tune-for=spmm:{})",
                    o.trial_ms, o.trial_k, o.k, name, o.k);
}

/// Where the kernel takes another time in requests than it took in the plan's trial.
std::string RecentText(const std::string& name, const ExplainedOperation& o) {
  if (o.measured_ms <= 0 || o.recent_kernel_ms <= 0) return "";
  if (o.recent_kernel_ms > kOtherwise * o.measured_ms) {
    return fmt::format(
        "in the last requests with this K its kernel took {:.4f} ms (the median), {:.1f} times "
        "that: a processor that "
        "rested finds its caches and clocks cold, and threads asleep, where trials follow each "
        "other without a pause (sparsectl bench {} measures requests that do), or others compute "
        "beside it",
        o.recent_kernel_ms, o.recent_kernel_ms / o.measured_ms, name);
  }
  if (kOtherwise * o.recent_kernel_ms < o.measured_ms) {
    return fmt::format(
        "in the last requests with this K its kernel took {:.4f} ms (the median): the machine was "
        "busy when it was tuned; "
        "have it tuned again (sparsectl prepare {} --retune)",
        o.recent_kernel_ms, name);
  }
  return "";
}

/// Of what lies in cache: its trial took far longer than arithmetic and the cache need for it.
bool FarFromCacheRoof(const Explanation& e, const ExplainedOperation& o) {
  if (o.limit != "cache" || o.cache_limit != "overhead") return false;
  const Roof roof = RoofOf(e, o);
  const double needed = Milliseconds(e, roof, roof.served.moved_bytes);
  return o.measured_ms > kFarTimes * needed && o.measured_ms > needed + kFarMilliseconds;
}

/// What may be behind that, and how to know.
std::string FarText(const std::string& name, const Explanation& e, const ExplainedOperation& o) {
  if (o.busy_trials || !FarFromCacheRoof(e, o)) return "";
  return fmt::format(
      "that is far from what it needs: if the machine was busy when it was tuned, have it tuned "
      "again while it is quiet (sparsectl prepare {} --retune)",
      name);
}

std::string TablesText(const Explanation& e) {
  // One unit for all, in which the greatest is not 0.00.
  double most = 0;
  for (const ExplainedOperation& o : e.operations)
    most = std::max(most, RoofOf(e, o).served.moved_bytes);
  const bool small = most < (1 << 20);
  const auto in_unit = [small](double bytes) {
    return fmt::format("{:.2f}", bytes / (small ? 1 << 10 : 1 << 20));
  };
  Table moved({small ? "KiB MOVED" : "MiB MOVED", "AT LEAST", "BY ROWS", "IN PARTS", "REORDERED",
               "REORDERED PARTS"});
  // By rows, as served, and if all was moved once, which no order of rows is better than.
  Table roofline({"ROOFLINE", "ROOF", "FLOP/BYTE", "GFLOP/s", "ms", "BEST FLOP/BYTE",
                  "BEST GFLOP/s", "BEST ms", "MEASURED ms"},
                 {"BEST FLOP/BYTE", "BEST GFLOP/s", "FLOP/BYTE", "GFLOP/s"});
  bool has_roof = false;
  for (const ExplainedOperation& o : e.operations) {
    const Roof roof = RoofOf(e, o);
    const Movement& m = roof.served;
    moved.Add({Title(o), in_unit(m.footprint_bytes), in_unit(m.moved_bytes),
               in_unit(m.partition_bytes), in_unit(roof.reordered.moved_bytes),
               in_unit(roof.reordered.partition_bytes)});
    if (m.flops <= 0 || roof.bytes_per_second <= 0) {
      roofline.Add({Title(o), "", "", "", "", "", "", "", MeasuredCell(o)});
      continue;
    }
    has_roof = true;
    const double milliseconds = Milliseconds(e, roof, m.moved_bytes);
    const double best = Milliseconds(e, roof, m.footprint_bytes);
    const bool arithmetic = m.flops / e.flops_per_second > m.moved_bytes / roof.bytes_per_second;
    roofline.Add({Title(o), arithmetic ? "arithmetic" : roof.name,
                  fmt::format("{:.3f}", Intensity(m.flops, m.moved_bytes)),
                  fmt::format("{:.2f}", 1e-6 * m.flops / milliseconds),
                  fmt::format("{:.4f}", milliseconds),
                  fmt::format("{:.3f}", Intensity(m.flops, m.footprint_bytes)),
                  fmt::format("{:.2f}", 1e-6 * m.flops / best), fmt::format("{:.4f}", best),
                  MeasuredCell(o)});
  }
  roofline.LeaveOutEmptyColumns();
  const bool in_cache = std::ranges::any_of(
      e.operations, [](const ExplainedOperation& o) { return o.limit == "cache"; });
  const bool ordered = std::ranges::any_of(
      e.operations, [](const ExplainedOperation& o) { return !o.order.empty(); });
  std::string text = moved.Text();
  text += Wrapped(
      fmt::format(
          "  between {} and the cache{}; BY ROWS: row after row {}, IN PARTS: parts "
          "of the rows that fit the cache one after another, REORDERED: likewise, "
          "in the order of {}",
          in_cache ? "memory, or the last level cache where it holds everything," : "memory",
          in_cache ? " before it" : "",
          ordered ? "in the order of the plan that serves" : "as they are stored", e.reordered_by),
      "  ");
  text += fmt::format("\n{}", roofline.Text());
  if (!has_roof) return text;
  text += Wrapped(
      "  what the ROOF, the rate of memory, of the cache or of arithmetic, allows for the bytes "
      "that are moved BY ROWS, and at BEST, if each was moved once; MEASURED: of the plan, when it "
      "was tuned",
      "  ");
  return text;
}

/// What takes the time that no roof accounts for, and what to try.
std::string OverheadText(const ExplainedOperation& o) {
  const bool dense = o.operation != Operation::kSpgemm;
  const double longest_row =
      dense && o.k > 0 ? o.served.largest_row * o.served.flops / (2 * static_cast<double>(o.k))
                       : kShortRow;
  return fmt::format("reads that wait for each other,{} and threads that start and wait{}",
                     longest_row > 0 && longest_row < kShortRow ? " short rows," : "",
                     dense && o.k < kWide ? ": try wider products (more columns at once)" : "");
}

bool OnCpu(const Explanation& e) { return e.device == "cpu"; }

/// Of what the last level cache holds. `assumed`: it is not that with which the plan was timed.
std::string CacheLimitText(const Explanation& e, const ExplainedOperation& o, bool assumed) {
  const std::string held =
      fmt::format("in cache: all {} fit the last level cache, so that memory does not bound it",
                  BytesText(o.served.footprint_bytes));
  if (o.cache_limit.empty()) {
    return held +
           "; what does, its own rate, arithmetic or neither, is not known before that rate is "
           "measured: sparsectl calibrate";
  }
  const Roof roof = RoofOf(e, o);
  const Movement& m = roof.served;
  const double milliseconds = Milliseconds(e, roof, m.moved_bytes);
  if (o.cache_limit == "uncertain") {
    return fmt::format(
        "{}; what does is not known: by the rates of arithmetic and of the cache it needs {:.4f} "
        "ms, but its plan took {:.4f} ms when it was tuned, so that {}",
        held, milliseconds, o.measured_ms,
        e.calibrated
            ? "the nearer caches keep more than this model of them does, which counts bytes "
              "as at least so many"
            : "these rates are not known well enough: sparsectl calibrate, on a quiet "
              "machine");
  }
  if (o.cache_limit == "overhead") {
    return fmt::format(
        "{}, and neither do arithmetic and the cache, which need {:.4f} ms of the {:.4f} ms that "
        "its plan took when it was tuned; the rest is {}",
        held, milliseconds, o.measured_ms, OverheadText(o));
  }
  // Of rates that nobody calibrated nothing is certain.
  const char* const perhaps = e.calibrated ? "" : "perhaps ";
  const bool most = assumed || o.measured_ms <= 2 * milliseconds;
  const std::string verb = fmt::format("{}{}", e.calibrated ? " does" : "", most ? "" : " in part");
  const std::string rest =
      most ? ""
           : fmt::format(
                 "; of the {:.4f} ms that its plan took when it was tuned, the rest "
                 "is {}",
                 o.measured_ms, OverheadText(o));
  if (o.cache_limit == "arithmetic") {
    return fmt::format(
        "{}; {}arithmetic{}: {:.3g} operations take {:.4f} ms at {:.0f} GFLOP/s{}{}", held, perhaps,
        verb, m.flops, milliseconds, 1e-9 * e.flops_per_second,
        HelpText(OnCpu(e) ? "more processors (--threads) or a GPU" : NarrowerText(e), ""), rest);
  }
  return fmt::format(
      "{}; {}the cache's own rate{}: {} go from it to the caches before it, of {} each, "
      "{:.4f} ms at {:.1f} GB/s{}{}",
      held, perhaps, verb, BytesText(m.moved_bytes), Bytes(e.inner_cache_bytes), milliseconds,
      1e-9 * e.cache_bytes_per_second,
      HelpText(NarrowerText(e), OnCpu(e) ? "more processors (--threads), whose caches add up" : ""),
      rest);
}

std::string LimitText(const Explanation& e, const ExplainedOperation& o, bool assumed_cache) {
  const Movement& m = o.served;
  if (o.limit == "nothing") return "there is nothing to multiply";
  if (IsTiny(e, o)) return "too small: starting and ending a product is all that takes time";
  if (o.limit == "cache") return CacheLimitText(e, o, assumed_cache);
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

/// Of a product whose plan reads rows in an order of its own: which, and its speed-up.
std::string OrderText(const ExplainedOperation& o) {
  if (o.order.empty()) return "";
  std::string text = fmt::format("rows are read in the order of {}", o.order);
  if (o.measured_ms > 0 && o.baseline_ms > 0) {
    text +=
        fmt::format(": {:.2f}x over plain CSR when it was tuned", o.baseline_ms / o.measured_ms);
  }
  return text;
}

/// Where the order that the model compares with was tried: it is no advice any more.
std::string TriedText(const Explanation& e, const ExplainedOperation& o) {
  const std::string tried = fmt::format(
      "the order of {} was tried: {:.4f} ms, and the plan that "
      "serves took",
      e.reordered_by, o.reordered_ms);
  return o.trial_ms > 0 ? fmt::format("{} {:.4f} ms", tried, o.trial_ms) : "";
}

/// What other schedules gain: orders of the rows, or parts of them that fit the cache.
std::string GainText(const std::string& name, const Explanation& e, const ExplainedOperation& o) {
  if (o.limit == "nothing" || IsTiny(e, o)) return "";
  // No schedule helps what the cache's bytes do not bound; but a trial of a busy machine does not
  // say what bounds it.
  if (o.limit == "cache" && o.cache_limit != "cache_bandwidth" && o.cache_limit != "uncertain" &&
      !FarFromCacheRoof(e, o)) {
    return "";
  }
  const bool serves = o.order == e.reordered_by;
  if (o.greatest_gain < kWorth) {
    return serves ? "another reordering has nothing to gain" : "a reordering has nothing to gain";
  }
  std::string text = fmt::format(
      "if each byte moved once: {:.2f}x, the most that any schedule gains", o.greatest_gain);
  if (o.known_gain < kWorth) {
    return text + (o.order.empty()
                       ? "; no known reordering gains anything, nor do parts of the rows"
                       : "; no other known order gains anything, nor do parts of the "
                         "rows");
  }
  const Roof roof = RoofOf(e, o);
  const Movement& served = roof.served;
  const double as_they_are =
      Milliseconds(e, roof, served.moved_bytes) /
      Milliseconds(e, roof, std::min(served.moved_bytes, served.partition_bytes));
  // An order that adds next to nothing is not what gains.
  if (o.known_gain < kWorth * as_they_are) {
    return text +
           fmt::format(
               "; at most {:.2f}x by parts of the rows {}, to which no known reordering adds; "
               "no flag asks for parts, they are a kernel's schedule (sparsectl prepare {} "
               "--retune times the kernels that there are){}",
               as_they_are, o.order.empty() ? "as they are" : "in their order", name,
               o.operation == Operation::kSpmm && o.k == 1
                   ? fmt::format("; of the operand, parts count values, BY ROWS the {} bytes "
                                 "that are fetched for one",
                                 e.line_bytes)
                   : "");
  }
  const double reordered = std::min(roof.reordered.moved_bytes, roof.reordered.partition_bytes);
  const double stored = std::min(roof.stored.moved_bytes, roof.stored.partition_bytes);
  if (stored < reordered) {
    return text + fmt::format("; by bytes, rows as they are stored would gain at most {:.2f}x",
                              o.known_gain);
  }
  const bool in_parts = roof.reordered.partition_bytes < roof.reordered.moved_bytes;
  text += fmt::format("; a reordering gains at most {:.2f}x, by {}rows in the order of {}",
                      o.known_gain, in_parts ? "parts of " : "", e.reordered_by);
  if (serves || o.reordered_ms > 0) {
    const std::string tried = serves ? "that order serves already" : TriedText(e, o);
    return tried.empty() ? text : text + "; " + tried;
  }
  if (o.operation != Operation::kSpmm) return text;
  return text + fmt::format(" (sparsectl prepare {} --pipeline={} --tune-for=spmm:{})", name,
                            e.reordered_by, o.k);
}

/// Of the rates, how far they can be trusted.
std::string RatesText(const Explanation& e) {
  if (e.measured_while_busy) {
    return "these rates were measured while the machine did other work: they, and what follows "
           "from them, may come out several times higher another time (`sparsectl calibrate` on a "
           "quiet "
           "machine settles it)";
  }
  return e.calibrated ? fmt::format("calibrated {}", Time(*e.calibrated))
                      : std::string(
                            "not calibrated: these rates are of a short measurement, and "
                            "what follows from them is as uncertain (`sparsectl "
                            "calibrate`)");
}

/// Where the time of requests went, of each transport by itself.
std::string RequestsText(const std::string& name, const RequestTimes& times) {
  if (times.requests <= 0) return "";
  const bool several = times.transports.size() > 1;
  std::string text;
  if (several) {
    text = Wrapped(fmt::format("the last {:.0f} products with {}, on average of each transport:",
                               times.requests, name),
                   "  ");
  }
  const std::string indent = several ? "  " : "";
  for (const TransportTimes& of : times.transports) {
    // Of fewer none is left out.
    const char* const without =
        of.requests < 4 ? "" : " (without the fastest and the slowest quarter)";
    const std::string whose =
        several           ? fmt::format("  {:.0f} took{}", of.requests, without)
        : of.requests > 1 ? fmt::format("the last {:.0f} products with {} took on average{}",
                                        of.requests, name, without)
                          : fmt::format("the last product with {} took", name);
    const std::string transport =
        of.transport.empty() ? "" : fmt::format(" (transport: {})", of.transport);
    text += Wrapped(fmt::format("{} {}{}", whose, Text(of.mean), transport), indent + "  ") +
            Wrapped(indent + "  " + of.finding, indent + "  ");
  }
  if (times.transposed > 0) {
    text += Wrapped(fmt::format("  {:.0f} of them multiplied with the transpose, of which what "
                                "follows does not speak; their plan: sparsectl show {}",
                                times.transposed, name),
                    "  ");
  }
  return text + "\n";
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
      text += d.exchanged_bytes > 0 ? fmt::format(", {} exchanged", BytesText(d.exchanged_bytes))
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

/// Of a matrix for whose products nothing below is worth doing: that, in a sentence; else empty.
std::string SmallText(const std::string& name, const Explanation& e) {
  double longest = 0;
  for (const ExplainedOperation& o : e.operations) {
    if (o.limit == "nothing") continue;
    const Roof roof = RoofOf(e, o);
    if (roof.bytes_per_second <= 0 || e.flops_per_second <= 0) return "";
    longest = std::max(longest, Milliseconds(e, roof, roof.served.moved_bytes));
    if (o.measured_ms > kSmallMilliseconds) return "";
  }
  const bool kernels_are_short = std::ranges::all_of(
      e.requests.transports,
      [](const TransportTimes& times) { return times.mean.kernel < kSmallKernel; });
  if (longest <= 0 || longest > kSmallMilliseconds || !kernels_are_short) return "";
  std::string requests;
  if (!e.requests.transports.empty()) {
    // Of the transport that most of them came by. What slow ones wait for is said elsewhere.
    const std::chrono::nanoseconds total = e.requests.transports.front().mean.total;
    if (total > kQuickRequest) return "";
    requests = fmt::format(" where requests took {} in the mean", ShortTime(total));
  }
  return Wrapped(
      fmt::format("{} is small: its products need {} or less{}, so that nothing of what follows is "
                  "worth doing but to ask for more at once: wider operands, or several products in "
                  "a chain",
                  name, ShortTime(std::chrono::nanoseconds(static_cast<int64_t>(1e6 * longest))),
                  requests),
      "  ");
}

}  // namespace

std::string ExplanationText(const std::string& name, const Explanation& e, bool assumed_cache) {
  const std::string small = SmallText(name, e);
  std::string text = small.empty() ? "" : small + "\n";
  text += RequestsText(name, e.requests);
  text += Wrapped(
      fmt::format(
          "{} on {}: memory {:.1f} GB/s,{} {:.0f} GFLOP/s, {}cache of {} in lines of {} bytes",
          name, e.device, 1e-9 * e.bytes_per_second,
          e.cache_bytes_per_second > 0
              ? fmt::format(" cache {:.1f} GB/s,", 1e-9 * e.cache_bytes_per_second)
              : "",
          1e-9 * e.flops_per_second, assumed_cache ? "assumed " : "", Bytes(e.cache_bytes),
          e.line_bytes),
      "  ");
  text += Wrapped("  " + RatesText(e), "  ");
  text += fmt::format("\n{}\n", TablesText(e));
  for (const ExplainedOperation& o : e.operations) {
    text += Wrapped(fmt::format("{}: {}", Title(o), LimitText(e, o, assumed_cache)), "  ");
    for (const std::string& more :
         {FarText(name, e, o), OrderText(o), GainText(name, e, o),
          MeasuredText(name, e, o, assumed_cache),
          o.busy_trials ? UnsureText(*o.busy_trials, name) : "", RecentText(name, o)}) {
      if (!more.empty()) text += Wrapped("  " + more, "    ");
    }
    for (const std::string& more : DistributionTexts(o)) text += Wrapped("  " + more, "      ");
  }
  // Operators may look at it, and no more.
  if (const size_t mark = name.find('~'); mark != name.npos) {
    text += Wrapped(fmt::format("These are commands of tenant {}, who calls it {}",
                                name.substr(0, mark), name.substr(mark + 1)),
                    "  ");
  }
  return text;
}

}  // namespace sparsed::cli
