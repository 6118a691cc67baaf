// What the models of histories have in common: a matrix as clients see it, and what is shown to
// people of a history that no order explains.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "tests/fault/history/linearizability.h"

namespace sparsed::test {

/// A matrix of a check: `degree` nonzeros in each row, all of them `value`; every upload and update
/// has a value of its own.
struct MatrixContent {
  bool present = false;
  int degree = 0;
  int64_t value = 0;
  uint64_t version = 0;  ///< 0: nobody has seen it yet
  uint64_t least = 0;    ///< it is not below

  auto Key() const { return std::tie(present, degree, value, version, least); }
  bool operator<(const MatrixContent& other) const { return Key() < other.Key(); }
  bool operator==(const MatrixContent& other) const { return Key() == other.Key(); }
};

/// "3 nonzeros a row, value 17, version 5"; of one that is present.
inline std::string ToString(const MatrixContent& content) {
  return fmt::format("{} nonzeros a row, value {}, {} {}", content.degree, content.value,
                     content.version == 0 ? "a version not below" : "version",
                     content.version == 0 ? content.least : content.version);
}

/// "12.345 .. 13.001 ms  client 3  update value=17 by call: version 5"; times since `begin`.
template <typename Model>
std::string EventText(const Event<Model>& event, int64_t begin, std::string_view asked,
                      std::string_view by, std::string_view came) {
  const auto milliseconds = [&](int64_t time) { return static_cast<double>(time - begin) / 1e6; };
  return fmt::format("{:9.3f} .. {:9.3f} ms  client {:2}  {} by {}: {}{}",
                     milliseconds(event.invoked), milliseconds(event.returned), event.client, asked,
                     by, came, event.may_be_lost ? " (may be lost)" : "");
}

/// The verdict's failing calls and states; empty if there are none. By ToString of the model's own.
template <typename Verdict>
std::string VerdictText(const Verdict& verdict) {
  if (verdict.failing.empty()) return "";
  std::string text = "One of these states:\n";
  for (const auto& state : verdict.before) text += "  " + ToString(state) + "\n";
  text += "and then calls that no order explains:\n";
  for (const auto& event : verdict.failing) {
    text += "  " + ToString(event, verdict.failing.front().invoked) + "\n";
  }
  return text;
}

}  // namespace sparsed::test
