#include "client/cli/product_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/cli/report.h"

namespace sparsed::cli {
namespace {

constexpr size_t kHashDigits = 32;
constexpr std::string_view kHexadecimal = "0123456789abcdef";
constexpr std::string_view kTimes = " * ";
constexpr std::string_view kTransposed = "transpose";

bool IsLetterOrDigit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

std::string_view PatternHashIn(std::string_view text) {
  for (size_t begin = 0; begin < text.size();) {
    if (!IsLetterOrDigit(text[begin])) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < text.size() && IsLetterOrDigit(text[end])) ++end;
    const std::string_view word = text.substr(begin, end - begin);
    if (word.size() == kHashDigits && word.find_first_not_of(kHexadecimal) == word.npos) {
      return word;
    }
    begin = end;
  }
  return {};
}

std::string PipelineText(std::string_view pipeline) {
  const std::string_view hash = PatternHashIn(pipeline);
  if (hash.empty()) return std::string(pipeline);
  const std::string_view before =
      pipeline.substr(0, static_cast<size_t>(hash.data() - pipeline.data()));
  const std::string_view behind = pipeline.substr(before.size() + hash.size());
  // Plain CSR is not said before a hash.
  if (before.ends_with(kTimes)) return fmt::format("{}csr{}", before, behind);
  return fmt::format("{}{}", before.substr(0, before.find_last_not_of(' ') + 1), behind);
}

std::string SignatureText(const ProblemSignature& signature, std::string_view pipeline,
                          const PatternNames& names) {
  const size_t times = pipeline.find(kTimes);
  if (times == pipeline.npos) return Text(signature);
  std::string right = "S";
  if (const std::string_view hash = PatternHashIn(pipeline); !hash.empty()) {
    const auto named = names.find(hash);
    right = named == names.end() ? "another" : named->second;
  }
  const auto transposed = [](std::string_view factor) {
    return factor.starts_with(kTransposed) ? "^T" : "";
  };
  return fmt::format("{} S{} * {}{}", Text(signature), transposed(pipeline), right,
                     transposed(pipeline.substr(times + kTimes.size())));
}

std::string WithNames(std::string_view sentence, const PatternNames& names) {
  std::string text;
  for (;;) {
    const std::string_view hash = PatternHashIn(sentence);
    if (hash.empty()) return text.append(sentence);
    const auto before = static_cast<size_t>(hash.data() - sentence.data());
    const auto named = names.find(hash);
    text.append(sentence.substr(0, before))
        .append(named == names.end() ? "another matrix" : named->second);
    sentence.remove_prefix(before + hash.size());
  }
}

}  // namespace sparsed::cli
