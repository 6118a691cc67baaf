// Everything that was measured, for a spreadsheet or a program that learns from it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/cli/product_text.h"
#include "client/cli/report.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// A header and a line for each measurement, as RFC 4180 has it but for line ends: pattern_hash;
/// the pattern's features by name (empty if they are not computed); operation, transposed (0 or 1),
/// type, allow_tf32 (0 or 1), class (the widest K of the signature), k (that was timed), recipe,
/// kernel, device, median_ms, preparation_ms, floor_ms, csr_ms (empty if not known), runs, model
/// (of the processor or the card; empty if not known), censored (0 or 1), right_pattern_hash (of
/// SpGEMM), transpose_left, transpose_right, past (0 or 1). Columns are only added, at the end.
std::string MeasurementsCsv(const std::vector<PatternMeasurements>& patterns);
/// For people: a table for each pattern, fastest first within a signature.
std::string MeasurementsText(const std::vector<PatternMeasurements>& patterns,
                             const PatternNames& names = {});

/// "45 %" of what memory allows; "in cache" where caches hold what is multiplied, so that memory is
/// not what bounds it; empty if it is 0: not known.
std::string RooflineShare(double share, std::string_view roof);
/// "0.123" milliseconds; empty if it is 0: not known.
std::string KnownMilliseconds(double milliseconds);
/// Of the measurements of a pattern with that hash, in the order given.
Table MeasurementsTable(const std::vector<Measurement>& measurements, std::string_view pattern_hash,
                        const PatternNames& names = {});
/// Of a plan of the matrix `name`: what the machine did besides may have chosen it.
std::string UnsureText(const BusyTrials& trials, std::string_view name);
/// Lines on those of the matrix' plans of which that is so.
std::string UnsureText(const MatrixInfo& info);

}  // namespace sparsed::cli
