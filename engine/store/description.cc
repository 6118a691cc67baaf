#include "engine/store/description.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

namespace sparsed::engine {
namespace {

using Kind = ArrayOwner::Kind;

constexpr std::array<std::pair<Kind, std::string_view>, 4> kKinds = {{{Kind::kPattern, "pattern"},
                                                                      {Kind::kMatrix, "matrix"},
                                                                      {Kind::kLayout, "layout"},
                                                                      {Kind::kBuffer, "buffer"}}};

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '%') {
      escaped += c;
    } else {
      escaped += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

/// None if a '%' is not followed by two hexadecimal digits.
std::optional<std::string> Unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    unsigned char byte = 0;
    if (text.size() - i < 3) return std::nullopt;
    const char* const end = text.data() + i + 3;
    const auto [parsed, error] = std::from_chars(text.data() + i + 1, end, byte, 16);
    if (error != std::errc() || parsed != end) return std::nullopt;
    plain += static_cast<char>(byte);
    i += 2;
  }
  return plain;
}

/// Calls `text` or `number` with each field and its name. `Description` may be const.
template <typename Description, typename Text, typename Number>
void VisitFields(Description& d, const Text& text, const Number& number) {
  text("array", d.array);
  text("pattern", d.owner.pattern_hash);
  text("tenant", d.owner.tenant);
  text("name", d.owner.name);
  text("recipe", d.owner.pipeline);
  text("owner", d.buffer_owner);
  number("rows", d.rows);
  number("cols", d.cols);
  number("nnz", d.nnz);
  number("leading_dimension", d.leading_dimension);
  number("version", d.version);
  number("created_unix_ns", d.created_unix_ns);
  number("time_to_live_ns", d.time_to_live_ns);
  number("value_order", d.has_value_order);
}

/// Takes a line's value into the field of that name. False if it is none of the field's values.
bool TakeField(ArrayDescription& d, std::string_view name, std::string_view value) {
  bool good = true;
  VisitFields(
      d,
      [&](std::string_view field, std::string& place) {
        if (field != name) return;
        std::optional<std::string> plain = Unescaped(value);
        good = plain.has_value();
        if (good) place = *std::move(plain);
      },
      [&]<typename T>(std::string_view field, T& place) {
        if (field != name) return;
        int64_t number = 0;
        const char* const end = value.data() + value.size();
        const auto [parsed, error] = std::from_chars(value.data(), end, number);
        good = error == std::errc() && parsed == end && number >= 0;
        place = static_cast<T>(number);
      });
  return good;
}

}  // namespace

std::string Encode(const ArrayDescription& description) {
  std::string lines;
  const auto add = [&](std::string_view name, std::string_view value) {
    if (lines.size() + name.size() + value.size() + 2 > kMaxDescriptionBytes) return;
    lines += fmt::format("{}={}\n", name, value);
  };
  for (const auto& [kind, name] : kKinds) {
    if (kind == description.owner.kind) add("kind", name);
  }
  VisitFields(
      description,
      [&](std::string_view name, const std::string& value) {
        if (!value.empty()) add(name, Escaped(value));
      },
      [&](std::string_view name, auto value) {
        if (value != 0) add(name, fmt::format("{}", static_cast<int64_t>(value)));
      });
  return lines;
}

std::optional<ArrayDescription> DecodeDescription(std::string_view text) {
  ArrayDescription description;
  bool has_kind = false;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string_view name = line.substr(0, equals);
    const std::string_view value = line.substr(equals + 1);
    if (name == "kind") {
      for (const auto& [kind, word] : kKinds) {
        if (word != value) continue;
        description.owner.kind = kind;
        has_kind = true;
      }
    } else if (!TakeField(description, name, value)) {
      return std::nullopt;
    }
  }
  if (!has_kind || description.array.empty()) return std::nullopt;
  return description;
}

}  // namespace sparsed::engine
