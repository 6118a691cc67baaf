// Where spans are sent to.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sparsed::server {

/// A collector of OpenTelemetry's that takes OTLP over plain HTTP.
struct OtlpEndpoint {
  std::string address;  ///< "host:port", "[v6 address]:port"
  std::string path;     ///< "/v1/traces"
};

/// Of "http://HOST:PORT" or "http://HOST:PORT/PATH". INVALID_ARGUMENT.
absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(std::string_view url);

}  // namespace sparsed::server
