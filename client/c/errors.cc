#include "client/c/errors.h"

#include <cstdint>
#include <string>
#include <utility>

#include "sparsed/client.h"

struct sparsed_error {
  int32_t code;
  std::string message;
  int64_t retry_ms;
  std::string request_id;
};

namespace sparsed::c {
namespace {

/// There from the start: nothing has to be allocated to say that nothing can be.
sparsed_error& NoMemory() {
  static auto* const error = new sparsed_error{SPARSED_RESOURCE_EXHAUSTED,
                                               "this process has no memory left for it", -1, ""};
  return *error;
}

const bool no_memory_is_there = (NoMemory(), true);

}  // namespace

sparsed_error* ToError(const absl::Status& status) noexcept {
  if (status.ok()) return nullptr;
  try {
    const auto delay = RetryDelay(status);
    return new sparsed_error{static_cast<int32_t>(status.code()), std::string(status.message()),
                             delay ? static_cast<int64_t>(delay->count()) : -1,
                             RequestId(status).value_or("")};
  } catch (const std::exception&) {
    return OutOfMemory();
  }
}

sparsed_error* OutOfMemory() noexcept { return &NoMemory(); }

}  // namespace sparsed::c

extern "C" {

int32_t sparsed_error_code(const sparsed_error* error) {
  return error == nullptr ? SPARSED_OK : error->code;
}

const char* sparsed_error_message(const sparsed_error* error) {
  return error == nullptr ? "" : error->message.c_str();
}

int64_t sparsed_error_retry_ms(const sparsed_error* error) {
  return error == nullptr ? -1 : error->retry_ms;
}

const char* sparsed_error_request_id(const sparsed_error* error) {
  return error == nullptr ? "" : error->request_id.c_str();
}

void sparsed_error_free(sparsed_error* error) {
  if (error != sparsed::c::OutOfMemory()) delete error;
}

}  // extern "C"
