#include "server/telemetry/stage_record.h"

namespace sparsed::server {

std::string_view Name(Op op) {
  constexpr std::array<std::string_view, kOps> kNames = {
      "spmm",
      "sddmm",
      "spgemm",
      "chain",
      "upload",
      "update_values",
      "download",
      "get",
      "list",
      "watch",
      "list_measurements",
      "delete",
      "put_buffer",
      "get_buffer",
      "delete_buffer",
      "list_buffers",
      "renew_buffer",
      "get_server_info",
      "get_stats",
      "explain",
      "prepare",
      "share",
      "list_tenants",
      "rename",
      "copy",
  };
  return kNames[static_cast<size_t>(op)];
}

std::string_view Name(Phase phase) {
  constexpr std::array<std::string_view, kPhases> kNames = {
      "queue", "receive", "setup", "to_device", "kernel", "from_device", "send"};
  return kNames[static_cast<size_t>(phase)];
}

}  // namespace sparsed::server
