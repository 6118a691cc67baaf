// The status page: what the server is and does, for people.
#pragma once

#include <string>

#include "server/config/config.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::engine {
class Engine;
}

namespace sparsed::server {

/// HTML. Names that clients chose are escaped.
std::string StatusPage(const Config& config, engine::Engine& engine, const Telemetry& telemetry,
                       double uptime_seconds, const std::string& not_ready);

}  // namespace sparsed::server
