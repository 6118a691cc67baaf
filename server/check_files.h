// The files that settings name, as far as they can be looked at without starting.
#pragma once

#include <string>
#include <vector>

#include "server/config/config.h"

namespace sparsed::server {

/// What a start with these settings would find wrong with them: the access file, certificates and
/// their key, the data directory, and the folders of the audit log and of Unix sockets. A sentence
/// each, empty: nothing. Makes and changes nothing.
std::vector<std::string> FileProblems(const Config& config);

}  // namespace sparsed::server
