#include "client/c/results.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace sparsed::c {
namespace {

void SetPlan(const std::string& plan, sparsed_result& to) {
  const size_t length = std::min(plan.size(), sizeof(to.plan) - 1);
  std::memcpy(to.plan, plan.data(), length);
  to.plan[length] = '\0';
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
  SetPlan(result.plan, *to);
}

void Set(const SpgemmResult& result, sparsed_result* to) {
  if (to == nullptr) return;
  to->version = result.version;
  to->transport = SPARSED_TRANSPORT_STREAM;
  to->batch = 1;
  SetTimings(result.timings, *to);
  SetPlan(result.plan, *to);
}

}  // namespace sparsed::c

const char* sparsed_transport_name(int32_t transport) {
  if (transport < SPARSED_TRANSPORT_STREAM || transport > SPARSED_TRANSPORT_ATTACHED) {
    return "unknown";
  }
  return sparsed::Name(static_cast<sparsed::Transport>(transport));
}
