// What the store's tests put into it, and how they see what is in it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/store.h"

namespace sparsed::engine {

/// An array of pseudo-random bytes that `seed` determines.
Array RandomArray(const std::string& name, ElementType type, int64_t length, uint32_t seed);

/// A matrix whose pattern arrays follow from the hash and whose values follow from the seed.
NewMatrix RandomMatrix(const std::string& name, const std::string& pattern_hash, uint32_t seed);

/// A layout with two parameters and three arrays.
Layout RandomLayout(const std::string& pipeline, uint32_t seed);

NewBuffer RandomBuffer(const std::string& name, uint32_t seed);

/// Features of numbers that `seed` determines.
Features RandomFeatures(uint32_t seed);

/// All past patterns, in the order of their hashes.
absl::StatusOr<std::vector<PastPattern>> PastPatterns(Store& store);
/// Everything in the store, contents of all arrays included, as text.
absl::StatusOr<std::string> Dump(Store& store);

/// A change of a store, and its name for messages.
struct Step {
  std::string name;
  std::function<absl::Status(Store&)> run;
};

/// Every kind of change, each with something to do given that those before it were done.
std::vector<Step> AllSteps();

}  // namespace sparsed::engine
