// JSON values as YAML.
#pragma once

#include <string>

#include "client/cli/json.h"

namespace sparsed::cli {

/// Block style, a document without its marks. Strings that another reader might take for something
/// else are in double quotes, as JSON has them.
std::string ToYaml(const Json& json);

}  // namespace sparsed::cli
