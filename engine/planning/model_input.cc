#include "engine/planning/model_input.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <system_error>

namespace sparsed::engine {
namespace {

constexpr std::string_view kDistance = "distance_";

double ShareOfBin(const Features& features, int bin) {
  const auto& counts = features.distance_histogram;
  const auto all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return static_cast<double>(counts[static_cast<size_t>(bin)]) /
         static_cast<double>(std::max<int64_t>(all, 1));
}

}  // namespace

std::optional<ModelInput::Factor> ModelInput::ParseFactor(std::string_view name) {
  if (name == "k") return Factor{.number = Said::kK};
  if (name == "value_bytes") return Factor{.number = Said::kValueBytes};
  if (name == "tf32") return Factor{.number = Said::kTf32};
  if (name.starts_with(kDistance)) {
    const std::string_view digits = name.substr(kDistance.size());
    int bin = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bin);
    const bool whole = error == std::errc() && end == digits.data() + digits.size();
    if (!whole || bin < 0 || bin >= kDistanceBins) return std::nullopt;
    return Factor{.number = DistanceBin{bin}};
  }
  const auto field = std::ranges::find(kFeatureFields, name, &FeatureField::name);
  if (field == kFeatureFields.end()) return std::nullopt;
  return Factor{.number = field->value};
}

std::optional<ModelInput> ModelInput::Parse(std::string_view text) {
  ModelInput input;
  bool divides = false;
  while (true) {
    const size_t end = std::min(text.find_first_of("*/"), text.size());
    std::optional<Factor> factor = ParseFactor(text.substr(0, end));
    if (!factor) return std::nullopt;
    factor->divides = divides;
    input.factors_.push_back(*factor);
    if (end == text.size()) return input;
    divides = text[end] == '/';
    text.remove_prefix(end + 1);
  }
}

double ModelInput::Of(const Factor& factor, const ProblemSignature& c, const Features& features) {
  if (const auto* const said = std::get_if<Said>(&factor.number)) {
    switch (*said) {
      case Said::kK:
        return c.operation == Operation::kSpgemm ? 0 : static_cast<double>(c.k_bucket);
      case Said::kValueBytes:
        return static_cast<double>(SizeOf(c.type));
      case Said::kTf32:
        return c.allow_tf32 ? 1 : 0;
    }
  }
  if (const auto* const bin = std::get_if<DistanceBin>(&factor.number)) {
    return ShareOfBin(features, bin->number);
  }
  return features.*std::get<double Features::*>(factor.number);
}

double ModelInput::Of(const ProblemSignature& signature, const Features& features) const {
  double value = 1;
  for (const Factor& factor : factors_) {
    const double number = Of(factor, signature, features);
    if (factor.divides && number == 0) return 0;
    value = factor.divides ? value / number : value * number;
  }
  return value;
}

}  // namespace sparsed::engine
