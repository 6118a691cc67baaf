#include "client/cli/server_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
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
  if (host.front() == '[') return host.find_first_of("[] /", 1) == host.size() - 1;
  return host.find_first_of(":/ []") == host.npos;
}

bool IsIpv6(std::string_view text) {
  in6_addr address{};
  return inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1;
}

/// Of an IPv6 address without brackets; empty where its last group may be a port as well.
std::string WithBrackets(std::string_view text) {
  const size_t colon = text.rfind(':');
  const std::string_view host = text.substr(0, colon), last = text.substr(colon + 1);
  if (IsIpv6(host) && IsPort(last)) {
    // A group has four digits at most.
    return last == kPort || !IsIpv6(text) ? fmt::format("[{}]:{}", host, last) : "";
  }
  return IsIpv6(text) ? fmt::format("[{}]:{}", text, kPort) : "";
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
  if (IsPort(text)) return fmt::format("127.0.0.1:{}", text);
  const auto colons = std::ranges::count(text, ':');
  if (colons > 1 && !text.starts_with('[')) return WithBrackets(text);
  if (colons == 0 || text.ends_with(']')) return fmt::format("{}:{}", text, kPort);
  return std::string(text);
}

/// Of one server.
bool IsAddress(std::string_view text) {
  // What gRPC takes without HOST:PORT.
  constexpr std::array<std::string_view, 6> kResolvers = {
      "unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "vsock:"};
  return IsHostAndPort(text) || std::ranges::any_of(kResolvers, [text](std::string_view known) {
           return text.starts_with(known);
         });
}

}  // namespace

std::string AddressProblem(std::string_view addresses) {
  std::optional<std::string_view> wrong;  // the first of them
  std::string meant;                      // all of them
  bool likely = true;
  for (size_t begin = 0; begin <= addresses.size();) {
    const size_t comma = std::min(addresses.find(',', begin), addresses.size());
    const std::string_view address = addresses.substr(begin, comma - begin);
    if (begin > 0) meant += ',';
    if (IsAddress(address)) {
      meant += address;
    } else {
      if (!wrong) wrong = address;
      const std::string one = Meant(address);
      likely = likely && IsAddress(one);
      meant += one;
    }
    begin = comma + 1;
  }
  if (!wrong) return "";
  return fmt::format("\"{}\" is no address of a server: that is HOST:PORT or unix:/path{}{}",
                     *wrong, wrong->starts_with("https:") ? ", and --tls-ca turns TLS on" : "",
                     likely ? fmt::format("; did you mean \"{}\"?", meant) : "");
}

}  // namespace sparsed::cli
