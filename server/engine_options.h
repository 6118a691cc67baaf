// What settings come to for the engine.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "server/config/config.h"

namespace sparsed::server {

/// But for the folder of installed models.
engine::EngineOptions ToEngineOptions(const Config& config);

/// Bytes that one connection may hold.
int64_t ConnectionMemory(const Config& config);

}  // namespace sparsed::server
