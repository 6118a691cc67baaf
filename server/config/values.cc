#include "server/config/values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/byte_size.h"

namespace sparsed::server {
namespace {

struct Unit {
  std::string_view name;
  int64_t bytes;
};
/// That sizes are said in.
constexpr std::array<Unit, 4> kUnits = {
    {{"TiB", int64_t{1} << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}};

/// nullopt: `text` is no size, or one that no machine has.
std::optional<int64_t> ParseSize(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  long double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + digits, number);
  if (error != std::errc() || digits == 0 || end != text.data() + digits || text[0] == '.' ||
      text[digits - 1] == '.') {
    return std::nullopt;
  }
  std::string_view rest = text.substr(digits);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const std::optional<int64_t> unit = UnitBytes(rest);
  constexpr long double kMost = int64_t{1} << 60;
  if (!unit || number * *unit > kMost) return std::nullopt;
  return static_cast<int64_t>(number * *unit);
}

}  // namespace

CLI::Validator Size() {
  return {[](std::string& text) -> std::string {
            const std::optional<int64_t> bytes = ParseSize(text);
            if (!bytes) {
              return fmt::format(
                  "'{}' is not a size: a number of bytes, or one with KiB, MiB, GiB or TiB behind "
                  "it, such as 512MiB or 1.5GiB; 1GB is 1000 MB and less than 1GiB",
                  text);
            }
            text = std::to_string(*bytes);
            return {};
          },
          "SIZE"};
}

CLI::Validator Whole(int64_t least, int64_t most, const std::string& unit) {
  return {[least, most](std::string& text) -> std::string {
            int64_t number = 0;
            const char* const last = text.data() + text.size();
            const auto [end, error] = std::from_chars(text.data(), last, number);
            if (error == std::errc() && end == last && number >= least && number <= most) return {};
            return fmt::format("'{}' is not a whole number from {} to {}", text, least, most);
          },
          unit};
}

CLI::Validator Seconds(double least, double most) {
  return {[least, most](std::string& text) -> std::string {
            double seconds = 0;
            if (CLI::detail::lexical_cast(text, seconds) && seconds >= least && seconds <= most) {
              return {};
            }
            return fmt::format("'{}' is not a number of seconds from {} to {}", text, least, most);
          },
          "SECONDS"};
}

std::string SizeText(int64_t bytes) {
  const Unit* nearest = nullptr;
  for (const Unit& unit : kUnits) {
    if (bytes < unit.bytes) continue;
    // Of more the bytes say as much.
    constexpr int64_t kReadable = 10'000;
    if (bytes % unit.bytes == 0 && bytes / unit.bytes < kReadable)
      return fmt::format("{}{}", bytes / unit.bytes, unit.name);
    if (nearest == nullptr) nearest = &unit;
  }
  if (nearest == nullptr || nearest->bytes < 1 << 20) return fmt::format("{} bytes", bytes);
  return fmt::format("{} bytes ({:.2f} {})", bytes,
                     static_cast<double>(bytes) / static_cast<double>(nearest->bytes),
                     nearest->name);
}

}  // namespace sparsed::server
