// token new, token hash.
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iostream>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/commands.h"

namespace sparsed::cli {
namespace {

/// 256 bits: nobody guesses them, and one SHA-256 hides them.
absl::StatusOr<std::string> NewToken() {
  std::array<char, 32> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::UnavailableError("the operating system gives no random bytes");
  }
  // A prefix that programs which look for leaked secrets can know it by.
  return "sparsed_" + absl::WebSafeBase64Escape(absl::string_view(bytes.data(), bytes.size()));
}

absl::StatusOr<std::string> ReadToken() {
  constexpr size_t kFewest = 20;
  std::string token;
  std::getline(std::cin, token);
  if (token.size() < kFewest) {
    return absl::InvalidArgumentError(fmt::format(
        "the token on standard input has {} characters, and fewer than {} can be guessed",
        token.size(), kFewest));
  }
  if (std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7F; })) return token;
  return absl::InvalidArgumentError("a token is one word of visible ASCII characters");
}

std::string Sha256Hex(const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

/// In YAML, whatever is in it.
std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace

std::string TenantError(const std::string& text) {
  constexpr size_t kLongest = 64;
  const bool fits =
      !text.empty() && text.size() <= kLongest && std::ranges::all_of(text, [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
      });
  if (fits) return "";
  return fmt::format("\"{}\" is no tenant's name: 1 to 64 letters, digits, '.', '_' and '-'", text);
}

std::string ExpiryError(const std::string& text) {
  absl::Time time;
  std::string error;
  if (!absl::ParseTime(absl::RFC3339_full, text, &time, &error) &&
      !absl::ParseTime("%Y-%m-%d", text, &time, &error)) {
    return fmt::format("\"{}\" is no time such as 2027-01-31 or 2027-01-31T12:00:00Z", text);
  }
  return time > absl::Now() ? "" : fmt::format("{} is over", text);
}

absl::StatusOr<Report> MakeToken(const TokenArguments& arguments) {
  const absl::StatusOr<std::string> token = arguments.make ? NewToken() : ReadToken();
  if (!token.ok()) return token.status();
  std::string line =
      fmt::format("  - {{name: {}, sha256: {}, tenant: {}, role: {}", Quoted(arguments.name),
                  Sha256Hex(*token), Quoted(arguments.tenant), arguments.role);
  if (!arguments.expires.empty()) line += fmt::format(", expires: {}", Quoted(arguments.expires));
  line += "}";
  Report report{{{"line", line}}, ""};
  if (arguments.make) {
    report.json["token"] = *token;
    report.text = fmt::format("{}\n\nThat is the token, which is kept nowhere. ", *token);
  }
  report.text += fmt::format("In the server's access file, under \"tokens:\"\n\n{}\n", line);
  return report;
}

}  // namespace sparsed::cli
