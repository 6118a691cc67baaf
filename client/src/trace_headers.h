// The trace that a call belongs to, on its way to the server.
#pragma once

#include <cstddef>
#include <string>

#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

/// W3C's headers; empty: the call is in no trace.
struct TraceHeaders {
  std::string parent, state;

  bool empty() const { return parent.empty(); }
  /// No fewer than a message with them has more.
  size_t message_bytes() const { return empty() ? 0 : parent.size() + state.size() + 16; }
};

/// Of the options, or else of the environment; nothing of what no header may have.
TraceHeaders TraceOf(const CallOptions& options);

/// Writes them into the start of a request.
template <typename Start>
void SetTrace(const TraceHeaders& trace, Start& start) {
  if (trace.empty()) return;
  start.mutable_trace()->set_traceparent(trace.parent);
  start.mutable_trace()->set_tracestate(trace.state);
}

}  // namespace client
}  // namespace sparsed
