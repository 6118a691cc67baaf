// What whoever started the process wants to know: systemd's sd_notify protocol, of Type=notify and
// WatchdogSec.
#pragma once

#include <string_view>

namespace sparsed::server {

/// Sends `state`, lines such as "READY=1", to the socket that the environment's NOTIFY_SOCKET
/// names; nothing if there is none. Gives up after a second. Whether it was sent. Thread-safe as
/// long as nobody changes the environment.
bool NotifyServiceManager(std::string_view state);

}  // namespace sparsed::server
