#include "server/telemetry/time_spent.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sparsed::server {
namespace {

/// Phases that have one cause and one remedy, as docs/operators-guide.md lists them.
enum class Part : uint8_t { kWire, kQueue, kSetup, kCopies, kKernel, kRest };
constexpr size_t kParts = 6;

/// What names of shards begin with (kShardPrefix, of a module that knows this one).
constexpr std::string_view kShards = "shards:";
/// A part that is worth a word beside the largest.
constexpr double kWorth = 0.2;

std::string_view NameOf(Part part) {
  constexpr std::array<std::string_view, kParts> kNames = {
      "operands and results on their way (receive, send)",
      "waiting for a worker slot (queue)",
      "making ready what it needs (setup)",
      "copies to and from the GPU (to_device, from_device)",
      "the multiplication (kernel)",
      "between the phases"};
  return kNames[static_cast<size_t>(part)];
}

std::string Remedy(Part part, std::string_view transport, std::string_view matrix) {
  switch (part) {
    case Part::kWire:
      if (transport == "held" && matrix.starts_with(kShards)) {
        return "The server keeps them already: it receives the rows that other nodes have of the "
               "operand and this shard's columns name; one that was uploaded with "
               "--partition=metis names fewer of them";
      }
      if (transport == "held") {
        return "The server keeps them already: what is left is the message itself, and a caller "
               "that takes its answer late. Several products in one request (a chain) share it";
      }
      if (matrix.starts_with(kShards)) {
        return "Keep them on the nodes, for the matrix that it is a shard of (sparsectl buffers "
               "put X X.npy --for=MATRIX; sparsectl spmm MATRIX --operand=@X --keep-as=Y)";
      }
      return fmt::format(
          "Keep them on the server (sparsectl buffers put X X.npy; sparsectl spmm {} "
          "--operand=@X --keep-as=Y){}",
          matrix,
          transport == "stream" ? ", or share memory or attach on the same machine"
                                : ": results that the caller takes late count, too");
    case Part::kQueue:
      return "The device is busy: wider products instead of many narrow ones, more worker slots "
             "for small requests on a CPU, or another server";
    case Part::kSetup:
      return "After a start it goes away; if it stays, what was dropped for want of memory is "
             "fetched or built again and again: raise --host-memory";
    case Part::kCopies:
      return "Keep operands and results on the server (sparsectl buffers), or in memory that the "
             "caller shares with it";
    case Part::kKernel:
      return fmt::format("Its plan and what was tried: sparsectl show {}", matrix);
    case Part::kRest:
      return "On a busy machine the server's threads wait for processors";
  }
  return "";
}

}  // namespace

void TimeSpent::Add(const StageRecord& record) {
  requests += 1;
  seconds += 1e-9 * static_cast<double>(record.total_ns);
  for (size_t phase = 0; phase < kPhases; ++phase) {
    phases[phase] += 1e-9 * static_cast<double>(record.phase_ns[phase]);
  }
  queue_trials += 1e-9 * static_cast<double>(record.queue_trials_ns);
  queue_others += 1e-9 * static_cast<double>(record.queue_others_ns);
  const auto transport = std::ranges::find(kTransportNames, TransportOf(record));
  if (transport == kTransportNames.end()) return;
  bytes[static_cast<size_t>(transport - kTransportNames.begin())] +=
      static_cast<double>(BytesIn(record) + BytesOut(record));
}

void TimeSpent::Add(const TimeSpent& other) {
  requests += other.requests;
  seconds += other.seconds;
  for (size_t i = 0; i < phases.size(); ++i) phases[i] += other.phases[i];
  queue_trials += other.queue_trials;
  queue_others += other.queue_others;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] += other.bytes[i];
}

TimeSpent MiddleOf(std::vector<TimeSpent> requests) {
  std::ranges::sort(requests, {}, &TimeSpent::seconds);
  const size_t left_out = requests.size() / 4;
  TimeSpent middle;
  for (size_t i = left_out; i < requests.size() - left_out; ++i) middle.Add(requests[i]);
  return middle;
}

std::string_view TransportOf(const TimeSpent& time) {
  const auto most = std::ranges::max_element(time.bytes);
  return *most > 0 ? kTransportNames[static_cast<size_t>(most - time.bytes.begin())] : "";
}

std::string Finding(const TimeSpent& time, std::string_view matrix) {
  if (time.requests <= 0 || time.seconds <= 0) return "";
  std::array<std::pair<double, Part>, kParts> parts = {
      {{time[Phase::kReceive] + time[Phase::kSend], Part::kWire},
       {time[Phase::kQueue], Part::kQueue},
       {time[Phase::kSetup], Part::kSetup},
       {time[Phase::kToDevice] + time[Phase::kFromDevice], Part::kCopies},
       {time[Phase::kKernel], Part::kKernel},
       {0, Part::kRest}}};
  double sum = 0;
  for (const auto& [seconds, part] : parts) sum += seconds;
  // Phases that overlap are more than the whole.
  const double whole = std::max(sum, time.seconds);
  parts.back().first = whole - sum;
  std::ranges::stable_sort(parts, std::greater<>(), &std::pair<double, Part>::first);
  const auto percent = [whole](double seconds) { return 100 * seconds / whole; };
  const auto& [most, what] = parts[0];
  std::string text =
      fmt::format("{}, {:.0f} %, is {}.", most > 0.5 * whole ? "Most of it" : "The largest part",
                  percent(most), NameOf(what));
  text += fmt::format(" {}.", Remedy(what, TransportOf(time), matrix));
  const auto& [second, next] = parts[1];
  if (second >= kWorth * whole) {
    text += fmt::format(" Next, {:.0f} %, is {}.", percent(second), NameOf(next));
  }
  return text;
}

}  // namespace sparsed::server
