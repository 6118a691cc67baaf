// --calibrate: measures the devices without serving.
#pragma once

#include <iosfwd>

#include "server/config/config.h"

namespace sparsed::server {

/// Measures every device that would serve, keeps what was found in the data directory, if there is
/// one, which no server may use meanwhile, and writes it to `out`; to `err` what was wrong. Returns
/// the exit code: 0, or 1.
int CalibrateDevices(const Config& config, std::ostream& out, std::ostream& err);

}  // namespace sparsed::server
