#include "client/cli/server_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <system_error>

namespace sparsed::cli {
namespace {

constexpr std::string_view kPort = "7470";

bool IsPort(std::string_view text) {
  uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, port);
  return error == std::errc() && rest == end && port > 0;
}

/// HOST:PORT, with the host of an IPv6 address in brackets.
bool IsHostAndPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos || colon == 0 || !IsPort(text.substr(colon + 1))) return false;
  const std::string_view host = text.substr(0, colon);
  if (host.front() == '[') return host.back() == ']';
  return host.find_first_of(":/ []") == host.npos;
}

/// HOST:PORT of a URL, or of what lacks its port; what it makes of nonsense is none either.
std::string Meant(std::string_view text) {
  if (text.starts_with('/')) return fmt::format("unix:{}", text);
  if (const size_t scheme = text.find("://"); scheme != text.npos) text.remove_prefix(scheme + 3);
  text = text.substr(0, text.find('/'));
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  if (text.starts_with(':')) {
    if (IsPort(text.substr(1))) return fmt::format("127.0.0.1{}", text);
  } else if (text.ends_with(':')) {
    text.remove_suffix(1);
  }
  const auto colons = std::ranges::count(text, ':');
  if (colons > 1 && !text.starts_with('[')) return fmt::format("[{}]:{}", text, kPort);
  if (colons == 0 || text.ends_with(']')) return fmt::format("{}:{}", text, kPort);
  return std::string(text);
}

/// Of one address.
std::string ProblemOf(std::string_view address) {
  // What gRPC takes without HOST:PORT.
  constexpr std::array<std::string_view, 6> kResolvers = {
      "unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "vsock:"};
  const bool resolved = std::ranges::any_of(
      kResolvers, [address](std::string_view known) { return address.starts_with(known); });
  if (resolved || IsHostAndPort(address)) return "";
  const std::string meant = Meant(address);
  const bool likely = meant.starts_with("unix:") || IsHostAndPort(meant);
  return fmt::format("\"{}\" is no address of a server: that is HOST:PORT or unix:/path{}{}",
                     address, address.starts_with("https:") ? ", and --tls-ca turns TLS on" : "",
                     likely ? fmt::format("; did you mean \"{}\"?", meant) : "");
}

}  // namespace

std::string AddressProblem(std::string_view addresses) {
  for (size_t begin = 0; begin <= addresses.size();) {
    const size_t comma = std::min(addresses.find(',', begin), addresses.size());
    std::string problem = ProblemOf(addresses.substr(begin, comma - begin));
    if (!problem.empty()) return problem;
    begin = comma + 1;
  }
  return "";
}

}  // namespace sparsed::cli
