#include "server/cluster/placement.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace sparsed::server {

std::vector<std::string> Place(std::string_view key, const std::vector<PlacementNode>& nodes) {
  std::vector<std::pair<double, std::string>> scores;
  const XXH64_hash_t of_key = XXH3_64bits(key.data(), key.size());
  for (const PlacementNode& node : nodes) {
    if (!(node.weight > 0)) continue;
    const XXH64_hash_t hash = XXH3_64bits_withSeed(node.name.data(), node.name.size(), of_key);
    // Uniform in (0, 1): of the hash the 53 bits that a double has.
    const double uniform = (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
    scores.emplace_back(-std::log(uniform) / node.weight, node.name);
  }
  std::ranges::sort(scores);
  std::vector<std::string> order;
  for (auto& [score, name] : scores) order.push_back(std::move(name));
  return order;
}

}  // namespace sparsed::server
