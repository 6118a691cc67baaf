// Any file of a model must be a network that gives numbers, or be refused in a sentence.
#include <cmath>
#include <vector>

#include "engine/planning/network.h"
#include "tests/fuzz/check.h"

using sparsed::DensityMap;
using sparsed::engine::Network;
using sparsed::fuzz::Check;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int kInputs = 8;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const int outputs : {1, 2, 3, 4}) {
    const auto network = Network::Load(bytes, kInputs, outputs);
    sparsed::fuzz::CheckSentence(network.status());
    if (!network.ok()) continue;
    const auto said = (*network)->Predict(std::vector<float>(kInputs, 3), DensityMap());
    // Sums that are no numbers are told.
    if (!said.ok()) continue;
    Check(said->size() == static_cast<size_t>(outputs));
    for (const double number : *said) Check(std::isfinite(number));
  }
  return 0;
}
