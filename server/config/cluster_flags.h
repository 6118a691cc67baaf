// The flags of a server that is a node of a cluster.
#pragma once

#include "CLI/CLI.hpp"
#include "server/config/config.h"
#include "server/config/problems.h"

namespace sparsed::server {

void DefineClusterFlags(CLI::App& app, Config& config);
/// Fills in the node's name, and says what does not go together.
void CompleteCluster(Config& config, Problems& problems);

}  // namespace sparsed::server
