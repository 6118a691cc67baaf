#include "server/telemetry/time_spent.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace sparsed::server {
namespace {

/// Phases that have one cause and one remedy, as docs/operators-guide.md lists them.
enum class Part : uint8_t { kWire, kQueue, kSetup, kCopies, kKernel, kRest };
constexpr size_t kParts = 6;

/// What names of shards begin with (kShardPrefix, of a module that knows this one).
constexpr std::string_view kShards = "shards:";
/// Of a request's time, the share that a remedy has to save to be worth a word: by less it is as
/// far from one time to the next.
constexpr double kWorth = 0.2;
/// Seconds of each part that are left whatever one does: two messages without an array, a turn of
/// the queue, what is made ready where all lies in memory, two copies of a few bytes, a launch, and
/// threads that start each other. Only what is above can be saved.
constexpr std::array<double, kParts> kLeft = {2e-4, 2e-4, 5e-4, 1e-4, 1e-4, 2e-4};
/// Bytes a second of the slowest network that arrays are sent over, 100 Mbit/s. What takes far
/// longer than that is not waiting for its bytes.
constexpr double kSlowNetwork = 12.5e6;
/// Seconds by which a request's phases add up to more than it took for nothing but rounding.
constexpr double kRounding = 1e-6;

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

/// What of `late`, seconds on the way, is no time of bytes; "" where it is.
std::string LateText(const TimeSpent& time, double late) {
  const double bytes = std::accumulate(time.bytes.begin(), time.bytes.end(), 0.0);
  if (TransportOf(time) == "held" || 2 * bytes > kSlowNetwork * late) return "";
  return fmt::format(
      "They are {:.1f} KiB, whose bytes do not take so long: the machine or the network is busy, "
      "or the caller sends or takes them late",
      bytes / time.requests / 1024);
}

/// By who had the worker slots for most of the wait.
std::string QueueRemedy(const TimeSpent& time) {
  if (2 * time.queue_trials > time[Phase::kQueue]) {
    return "Autotuning had it for most of that: this ends when the matrices that are being "
           "prepared are ready (sparsectl list)";
  }
  if (2 * time.queue_others > time[Phase::kQueue]) {
    return "Other tenants' requests had it for most of that: operators can give this tenant a "
           "larger weight, or another server";
  }
  return "This tenant's own requests had it, or the machine's processors were busy: wider products "
         "instead of many narrow ones, more worker slots for small requests on a CPU, or another "
         "server";
}

std::string Remedy(Part part, const TimeSpent& time, std::string_view matrix) {
  const std::string_view transport = TransportOf(time);
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
      return QueueRemedy(time);
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
  const std::array<double, kParts> spent = {
      time[Phase::kReceive] + time[Phase::kSend],        time[Phase::kQueue],  time[Phase::kSetup],
      time[Phase::kToDevice] + time[Phase::kFromDevice], time[Phase::kKernel], 0};
  const double sum = std::accumulate(spent.begin(), spent.end(), 0.0);
  // Phases that overlap are more than the whole.
  const double whole = std::max(sum, time.seconds);
  struct Share {
    Part part;
    double seconds;  ///< of all requests
    double saved;    ///< of these, at most, where what helps is done
  };
  std::array<Share, kParts> parts;
  for (size_t i = 0; i < kParts; ++i) {
    const auto part = static_cast<Part>(i);
    const double seconds = part == Part::kRest ? whole - sum : spent[i];
    parts[i] = {part, seconds, std::max(seconds - kLeft[i] * time.requests, 0.0)};
  }
  const auto percent = [whole](double seconds) { return 100 * seconds / whole; };
  const auto milliseconds = [&time](double seconds) { return 1e3 * seconds / time.requests; };
  std::ranges::stable_sort(parts, std::greater<>(), &Share::seconds);
  const std::string overlap = sum > time.seconds + kRounding * time.requests
                                  ? " Phases overlap: shares are of their sum."
                                  : "";
  const auto worth = [whole](const Share& share) { return share.saved >= kWorth * whole; };
  const auto found = std::ranges::find_if(parts, worth);
  if (found == parts.end()) {
    return fmt::format(
        "Nothing here is slow: a request takes {:.3f} ms, of which {:.0f} % is {}.{}",
        milliseconds(time.seconds), percent(parts[0].seconds), NameOf(parts[0].part), overlap);
  }
  const auto& [part, seconds, saved] = *found;
  const std::string late = part == Part::kWire ? LateText(time, saved) : "";
  std::string text =
      fmt::format("{}, {:.0f} %, is {}. {}.",
                  seconds > 0.5 * whole    ? "Most of it"
                  : found == parts.begin() ? "The largest part"
                                           : "A part",
                  percent(seconds), NameOf(part), late.empty() ? Remedy(part, time, matrix) : late);
  // Of a kernel nobody knows what another plan takes; who is late is not to be helped from here.
  if (late.empty() && part != Part::kKernel && part != Part::kRest) {
    text += fmt::format(" That saves at most {:.0f} %, {:.3f} ms of a request.", percent(saved),
                        milliseconds(saved));
  }
  const auto next = std::find_if(found + 1, parts.end(), worth);
  if (next != parts.end()) {
    text += fmt::format(" Next, {:.0f} %, is {}.", percent(next->seconds), NameOf(next->part));
  }
  return text + overlap;
}

}  // namespace sparsed::server
