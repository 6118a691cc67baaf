#include "client/c/calls.h"

#include <chrono>
#include <exception>
#include <memory>

#include "client/c/errors.h"

extern "C" {

int32_t sparsed_call_wait(sparsed_call* call, int64_t timeout_ns) {
  if (call == nullptr) return 1;
  try {
    std::optional<std::chrono::nanoseconds> time;
    if (timeout_ns >= 0) time.emplace(timeout_ns);
    return call->Wait(time) ? 1 : 0;
  } catch (const std::exception&) {
    // No memory for what a callback was to get: the call's end says so.
    sparsed_call_cancel(call);
    return 0;
  }
}

void sparsed_call_cancel(sparsed_call* call) {
  if (call == nullptr) return;
  try {
    call->Cancel();
  } catch (const std::exception&) {
    // Without memory to say so, it goes on.
  }
}

sparsed_error* sparsed_call_finish(sparsed_call* call) {
  if (call == nullptr) {
    return sparsed::c::ToError(absl::InvalidArgumentError("call is a null pointer"));
  }
  const std::unique_ptr<sparsed_call> owned(call);
  return sparsed::c::Guarded([call] { return call->Finish(); });
}

void sparsed_call_free(sparsed_call* call) { delete call; }

}  // extern "C"
