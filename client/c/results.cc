#include "client/c/results.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace sparsed::c {
namespace {

/// Cut off where it is longer.
template <size_t size>
void SetText(const std::string& text, char (&to)[size]) {
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

void SetTimings(const Timings& from, sparsed_result& to) {
  to.queue_ns = from.queue.count();
  to.receive_ns = from.receive.count();
  to.to_device_ns = from.to_device.count();
  to.kernel_ns = from.kernel.count();
  to.from_device_ns = from.from_device.count();
  to.send_ns = from.send.count();
  to.setup_ns = from.setup.count();
  to.total_ns = from.total.count();
}

}  // namespace

void Set(const ComputeResult& result, sparsed_result* to) {
  if (to == nullptr) return;
  to->version = result.version;
  to->transport = static_cast<int32_t>(result.transport);
  to->batch = static_cast<int32_t>(result.batch);
  SetTimings(result.timings, *to);
  SetText(result.plan, to->plan);
  SetText(result.request_id, to->request_id);
}

void Set(const SpgemmResult& result, sparsed_result* to) {
  if (to == nullptr) return;
  to->version = result.version;
  to->transport = SPARSED_TRANSPORT_STREAM;
  to->batch = 1;
  SetTimings(result.timings, *to);
  SetText(result.plan, to->plan);
  SetText(result.request_id, to->request_id);
}

}  // namespace sparsed::c

const char* sparsed_transport_name(int32_t transport) {
  if (transport < SPARSED_TRANSPORT_STREAM || transport > SPARSED_TRANSPORT_ATTACHED) {
    return "unknown";
  }
  return sparsed::Name(static_cast<sparsed::Transport>(transport));
}
