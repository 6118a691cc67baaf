// Measures what layouts cost to make.
#pragma once

#include "tests/bench/gpu/measure.h"

namespace sparsed::test {

/// A line of JSON on standard output for each of the settings' pipelines: milliseconds from CSR on
/// the host to the layout there, by the CPU alone and with the GPU, stage by stage; for
/// "row_segments" alone also from CSR on the device to the layout there. Layouts that differ are
/// counted: the number of these is returned.
absl::StatusOr<int> MeasureBuilds(Device& device, const Settings& settings, Schedule& schedule,
                                  const NamedPattern& matrix);

/// The median milliseconds of "row_segments" as `layout` is, from CSR on the GPU to the layout
/// there.
absl::StatusOr<double> RowSegmentsOnDevice(const NamedPattern& matrix, const Layout& layout,
                                           int rounds);

}  // namespace sparsed::test
