// The configuration file: YAML with the flags' names, underscores for dashes.
#pragma once

#include <memory>

#include "CLI/CLI.hpp"

namespace sparsed::server {

/// Lets `app` read its --config file, `file_option`. A key that is no flag or is there
/// twice, or a file that is no YAML, is an error that names file, line and key. Flags on the
/// command line win over the file.
std::shared_ptr<CLI::Config> YamlFile(const CLI::App& app, const CLI::Option& file_option);

}  // namespace sparsed::server
