// What the server says, as JSON: of sparsectl --json, and of the C interface.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sparsed/types.h"

namespace sparsed::cli {

struct MatrixFile;

using Json = nlohmann::ordered_json;

Json ToJson(const Timings& timings);
Json ToJson(const Measurement& measurement);
Json ToJson(const MatrixInfo& info);
Json ToJson(const DenseInfo& info);
Json ToJson(const std::vector<MatrixInfo>& infos);
Json ToJson(const std::vector<DenseInfo>& infos);
Json ToJson(const DeviceInfo& device);
Json ToJson(const ServerInfo& info);
Json ToJson(const sparsed::Stats& stats);
Json ToJson(const MatrixFeatures& features);
Json ToJson(const PatternMeasurements& pattern);
Json ToJson(const std::vector<PatternMeasurements>& patterns);
/// What is to be told of a file that was read.
Json ToJson(const MatrixFile& file);
/// Of the matrix of that name.
Json ToJson(const std::string& name, const Explanation& explanation);

/// Operations a byte; 0 of none.
double Intensity(double flops, double bytes);
/// What the roofline gives for so many bytes, in 10^9 operations a second.
double RooflineGflops(const Explanation& explanation, double flops, double bytes);

}  // namespace sparsed::cli
