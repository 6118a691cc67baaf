#include "server/telemetry/call_origin.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

namespace sparsed::server {
namespace {

constexpr size_t kVersionDigits = 2, kTraceDigits = 32, kSpanDigits = 16, kFlagDigits = 2;
/// Of version 00: those four and three dashes.
constexpr size_t kParentSize = kVersionDigits + kTraceDigits + kSpanDigits + kFlagDigits + 3;
constexpr size_t kMostState = 512;
constexpr size_t kMostRequestId = 64;

bool IsHex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
bool IsZero(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c == '0'; });
}
bool IsPrintable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

uint64_t Random() {
  static thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  uint64_t number = 0;
  while (number == 0) number = generator();
  return number;
}

/// Of what this thread does now.
TraceContext& CurrentTrace() {
  static thread_local TraceContext trace;
  return trace;
}

}  // namespace

std::string TraceParentOf(const TraceContext& trace) {
  return fmt::format("00-{}-{}-{}", trace.trace_id,
                     trace.parent_id.empty() ? NewSpanId() : trace.parent_id,
                     trace.sampled ? "01" : "00");
}

TraceScope::TraceScope(TraceContext trace)
    : before_(std::exchange(CurrentTrace(), std::move(trace))) {}
TraceScope::~TraceScope() { CurrentTrace() = std::move(before_); }
const TraceContext& TraceScope::Current() { return CurrentTrace(); }

std::optional<TraceContext> ParseTraceContext(std::string_view traceparent,
                                              std::string_view tracestate) {
  if (traceparent.size() < kParentSize || traceparent[2] != '-' || traceparent[35] != '-' ||
      traceparent[52] != '-') {
    return std::nullopt;
  }
  const std::string_view version = traceparent.substr(0, kVersionDigits);
  const std::string_view trace = traceparent.substr(3, kTraceDigits);
  const std::string_view span = traceparent.substr(36, kSpanDigits);
  const std::string_view flags = traceparent.substr(53, kFlagDigits);
  if (!IsHex(version) || !IsHex(trace) || !IsHex(span) || !IsHex(flags)) return std::nullopt;
  if (version == "ff" || IsZero(trace) || IsZero(span)) return std::nullopt;
  // Later versions may have more behind.
  const bool more = traceparent.size() > kParentSize;
  if (more && (version == "00" || traceparent[kParentSize] != '-')) return std::nullopt;
  TraceContext context{std::string(trace), std::string(span), "", false};
  const char low = flags[1];
  context.sampled = ((low <= '9' ? low - '0' : low - 'a' + 10) & 1) != 0;
  if (tracestate.size() <= kMostState && IsPrintable(tracestate)) context.state = tracestate;
  return context;
}

std::string NewSpanId() { return fmt::format("{:016x}", Random()); }
std::string NewTraceId() { return fmt::format("{:016x}{:016x}", Random(), Random()); }

bool IsRequestId(std::string_view text) {
  return !text.empty() && text.size() <= kMostRequestId && std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  });
}

std::string NewRequestId() {
  // Of the operating system's, some hundreds at once: who has seen them all cannot go on.
  constexpr size_t kAtOnce = 256;
  static thread_local std::array<uint64_t, kAtOnce> numbers;
  static thread_local size_t left = 0;
  if (left == 0) {
    for (size_t done = 0; done < sizeof(numbers);) {
      const ssize_t n = getrandom(reinterpret_cast<char*>(numbers.data()) + done,
                                  sizeof(numbers) - done, /*flags=*/0);
      if (n > 0) done += static_cast<size_t>(n);
    }
    left = kAtOnce;
  }
  return fmt::format("{:016x}", numbers[--left]);
}

}  // namespace sparsed::server
