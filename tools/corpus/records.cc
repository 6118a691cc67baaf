#include "tools/corpus/records.h"

#include <cstdint>
#include <string>

namespace sparsed::corpus {

using Json = nlohmann::ordered_json;

Json ToJson(const engine::Measurement& m) {
  const ProblemSignature& c = m.signature;
  return {{"operation", Name(c.operation)},
          {"transposed", c.transposed},
          {"type", Name(c.type)},
          {"allow_tf32", c.allow_tf32},
          {"class", c.k_bucket},
          {"k", m.k},
          {"recipe", m.pipeline},
          {"kernel", m.kernel},
          {"device", m.device},
          {"median_ms", m.median_ms},
          {"preparation_ms", m.preparation_ms},
          {"floor_ms", m.roofline_ms},
          {"csr_ms", m.baseline_ms},
          {"runs", m.runs},
          {"model", m.model},
          {"censored", m.censored}};
}

Json ToJson(const Features& features, bool map) {
  Json json;
  for (const FeatureField& field : kFeatureFields) {
    json[std::string(field.name)] = features.*field.value;
  }
  json[std::string(kDistanceHistogram)] = features.distance_histogram;
  if (!map) return json;
  Json tiles = Json::array();
  int64_t empty = 0;
  for (const int32_t count : features.density_map.Tiles()) {
    if (count == 0) {
      ++empty;
      continue;
    }
    tiles.push_back(empty);
    tiles.push_back(count);
    empty = 0;
  }
  json["density_map"] = std::move(tiles);
  return json;
}

}  // namespace sparsed::corpus
