#include "server/config/otlp_endpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/config/config.h"

namespace sparsed::server {
namespace {

constexpr std::string_view kScheme = "http://";
constexpr std::string_view kTracesPath = "/v1/traces";

}  // namespace

absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(std::string_view url) {
  const auto refuse = [url](std::string_view why) {
    return absl::InvalidArgumentError(fmt::format("'{}' is not http://HOST:PORT, {}", url, why));
  };
  if (url.starts_with("https://")) {
    return refuse(
        "and spans are sent in plain text: have a collector on this machine pass them on");
  }
  if (!url.starts_with(kScheme)) return refuse("as http://127.0.0.1:4318");
  const std::string_view rest = url.substr(kScheme.size());
  const bool plain = std::ranges::all_of(rest, [](char c) { return c > ' ' && c <= '~'; });
  if (!plain || rest.find_first_of("@?#") != std::string_view::npos) {
    return refuse("with a path behind it at most");
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  OtlpEndpoint endpoint{std::string(rest.substr(0, slash)), std::string(rest.substr(slash))};
  const std::string wrong = AddressError(endpoint.address, /*unix_too=*/false);
  if (!wrong.empty()) return refuse(wrong);
  if (endpoint.address.ends_with(":0")) return refuse("nobody listens on port 0");
  if (endpoint.path.empty() || endpoint.path == "/") endpoint.path = kTracesPath;
  return endpoint;
}

}  // namespace sparsed::server
