#include "client/src/trace_headers.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace sparsed {
inline namespace client {
namespace {

/// As the standard has it, and more than later versions are likely to need.
constexpr size_t kLeastParent = 55, kMostParent = 256, kMostState = 512;

/// Everything else would end the call.
bool IsHeader(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

TraceHeaders TraceOf(const CallOptions& options) {
  TraceHeaders trace{options.traceparent, options.tracestate};
  if (trace.empty()) {
    // Read once: others may change the environment while calls begin.
    static const TraceHeaders environment{FromEnvironment("TRACEPARENT"),
                                          FromEnvironment("TRACESTATE")};
    trace = environment;
  }
  if (trace.parent.size() < kLeastParent || trace.parent.size() > kMostParent ||
      !IsHeader(trace.parent)) {
    return {};
  }
  if (trace.state.size() > kMostState || !IsHeader(trace.state)) trace.state.clear();
  return trace;
}

}  // namespace client
}  // namespace sparsed
