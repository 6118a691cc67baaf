// Sentences on their way to clients.
#pragma once

#include <string>
#include <string_view>

namespace sparsed::server {

/// `text` as a client may have it: of the server's files the names without the folders (the log
/// keeps both), control characters and what is no UTF-8 as "\x0a", and no more than fits into
/// HTTP/2 headers.
std::string ForClients(std::string_view text);

}  // namespace sparsed::server
