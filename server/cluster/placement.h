// Which nodes a matrix belongs on: weighted rendezvous hashing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sparsed::server {

struct PlacementNode {
  std::string name;
  /// How much it takes in relation to others: its memory, in bytes. One with nothing gets nothing.
  double weight = 1;
};

/// The names of the nodes, the one for `key` first, then those that take its place, in order. Each
/// node is scored by itself, from XXH3 of its name and the key, so that the order of others does
/// not change when a node comes or goes, and of all keys it is first for the share of its weight.
/// Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998), with the
/// weights of Schindelhauer and Schomaker, "Weighted distributed hash tables" (2005), section 4:
/// the logarithmic method.
std::vector<std::string> Place(std::string_view key, const std::vector<PlacementNode>& nodes);

}  // namespace sparsed::server
