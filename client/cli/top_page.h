// What `top` shows: a page from two looks at a server's counters.
#pragma once

#include <string>
#include <vector>

#include "client/cli/json.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// What the server said at one moment.
struct Look {
  sparsed::Stats stats;
  std::vector<TenantInfo> tenants;
};

/// Rates are those between the two looks; of a single one, the averages since the server's start.
Json TopJson(const ServerInfo& server, const Look* before, const Look& now);
std::string TopText(const Json& page);

}  // namespace sparsed::cli
