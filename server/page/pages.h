// The status page: what the server is and does, for people. Files that show nothing of anybody's,
// and the answers, in JSON, that they ask for.
#pragma once

#include <memory>
#include <string_view>

#include "server/page/sources.h"
#include "server/telemetry/http_port.h"

namespace sparsed::server {

/// Whether the path is one of the page's files: those are the same for everybody.
bool IsPageFile(std::string_view path);

/// By path. Each keeps `tables`.
HttpPort::Pages StatusPages(const std::shared_ptr<PageTables>& tables);

}  // namespace sparsed::server
