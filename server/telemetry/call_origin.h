// What a call is known by: its request id, and the trace that its caller has it in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace sparsed::server {

/// A place in a trace, as W3C's Trace Context has it. Ids are lower-case hexadecimal.
struct TraceContext {
  std::string trace_id;   ///< 32 digits; empty: the call is in no trace
  std::string parent_id;  ///< 16 digits: the caller's span; empty: it has none
  std::string state;      ///< `tracestate`, as it came
  bool sampled = false;   ///< the caller records this trace

  bool traced() const { return !trace_id.empty(); }
};

/// The context that the two headers say; nothing if `traceparent` is malformed or of no version
/// that is known, as if there were none. A `tracestate` that is too long or no text is left out.
std::optional<TraceContext> ParseTraceContext(std::string_view traceparent,
                                              std::string_view tracestate);

/// `traceparent` of a call that is made on behalf of one in that trace.
std::string TraceParentOf(const TraceContext& trace);

/// While it exists, calls of this thread to other nodes are on behalf of a request in this trace.
class TraceScope {
 public:
  explicit TraceScope(TraceContext trace);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;
  /// The innermost one's of this thread; not traced() if there is none.
  static const TraceContext& Current();

 private:
  TraceContext before_;
};

/// 16 random hexadecimal digits, never all zero. Not for secrets.
std::string NewSpanId();
/// 32 of them.
std::string NewTraceId();

/// What one call of a client, or one ring, is known by.
struct CallOrigin {
  std::string request_id;  ///< "5e0c2a711f40be93": of this server's making, or the caller's own
  TraceContext trace = {};
};

/// The name of the metadata, in both directions.
inline constexpr char kRequestIdKey[] = "x-request-id";

/// Whether a caller's own request id is one: 1 to 64 of [A-Za-z0-9._:-].
bool IsRequestId(std::string_view text);
/// One that no other call has, of this process or of another: 16 hexadecimal digits that tell
/// nothing of how many there were before, nor what the next is.
std::string NewRequestId();

}  // namespace sparsed::server
