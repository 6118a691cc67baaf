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

}  // namespace

CLI::Validator Size() {
  return {[](std::string& text) -> std::string {
            const std::optional<int64_t> bytes = ParseByteSize(text);
            if (!bytes) {
              return fmt::format("'{}' {}", text, kNoByteSize);
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
