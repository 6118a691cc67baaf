// Connections.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "client/c/arguments.h"
#include "client/c/errors.h"
#include "client/c/handles.h"
#include "client/c/json.h"

namespace sparsed::c {
namespace {

constexpr int64_t kMostStreams = 16;
constexpr int64_t kMostThreads = 1024;
constexpr int32_t kHighestPriority = 7;
/// A year: what clocks count in nanoseconds has no room for the longest times of callers.
constexpr int64_t kLongestSeconds = int64_t{366} * 24 * 3600;

/// What is 0 stays as it is.
template <typename T>
void SetUnlessZero(int64_t given, const char* what, Arguments& in, T& option) {
  if (in.NotNegative(given, what) > 0) option = T{static_cast<T>(given)};
}

void SetUnlessZero(int64_t given, const char* what, Arguments& in,
                   std::chrono::milliseconds& option) {
  if (in.NotNegative(given, what) > 0) {
    option = std::chrono::milliseconds(std::min(given, kLongestSeconds * 1'000));
  }
}

ClientOptions OptionsOf(const sparsed_client_options& given, Arguments& in) {
  ClientOptions options;
  SetUnlessZero(given.connect_timeout_ms, "connect_timeout_ms", in, options.connect_timeout);
  SetUnlessZero(given.max_attempts, "max_attempts", in, options.max_attempts);
  SetUnlessZero(given.initial_backoff_ms, "initial_backoff_ms", in, options.initial_backoff);
  SetUnlessZero(given.max_chunk_bytes, "max_chunk_bytes", in, options.max_chunk_bytes);
  SetUnlessZero(given.keepalive_ms, "keepalive_ms", in, options.keepalive);
  SetUnlessZero(given.streams, "streams", in, options.streams);
  options.ring = given.ring != 0;
  options.ring_spin = std::chrono::microseconds(
      std::min(in.NotNegative(given.ring_spin_us, "ring_spin_us"), kLongestSeconds * 1'000'000));
  const auto set = [](const char* text, std::string& option) {
    if (text != nullptr) option = text;
  };
  set(given.tls_ca, options.tls.ca);
  set(given.tls_certificate, options.tls.certificate);
  set(given.tls_key, options.tls.key);
  set(given.tls_server_name, options.tls.server_name);
  set(given.token, options.token);
  set(given.token_file, options.token_file);
  set(given.gateway, options.gateway);
  if (given.priority < 0 || given.priority > kHighestPriority) {
    in.Refuse(fmt::format("priority is {}, expected 0 to {}", given.priority, kHighestPriority));
  }
  options.priority = static_cast<uint32_t>(given.priority);
  if (given.streams > kMostStreams) in.Refuse("streams is more than 16, the most there can be");
  return options;
}

LocalOptions LocalOptionsOf(const sparsed_client_options& given, Arguments& in) {
  if (given.attach != SPARSED_ATTACH_AUTO && given.attach != SPARSED_ATTACH_NEVER) {
    in.Refuse("attach is neither SPARSED_ATTACH_AUTO (0) nor SPARSED_ATTACH_NEVER (1)");
  }
  if (given.threads > kMostThreads) in.Refuse("threads is more than 1024, the most there can be");
  return {.attach = given.attach == SPARSED_ATTACH_AUTO,
          .threads = static_cast<int>(in.NotNegative(given.threads, "threads"))};
}

}  // namespace
}  // namespace sparsed::c

using sparsed::c::Arguments;

extern "C" {

int32_t sparsed_c_version(void) { return SPARSED_C_VERSION; }
const char* sparsed_version(void) { return SPARSED_VERSION; }
int32_t sparsed_has_kernels(void) { return sparsed::c::HasKernels() ? 1 : 0; }
void sparsed_text_free(char* text) { delete[] text; }

sparsed_error* sparsed_connect(const char* address, const sparsed_client_options* options,
                               sparsed_client** client) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    const std::string where = in.Name(address, "address");
    in.Need(client, "client");
    const sparsed_client_options given =
        in.Options(options, sparsed_client_options SPARSED_CLIENT_OPTIONS_INIT, "options");
    const sparsed::ClientOptions how = sparsed::c::OptionsOf(given, in);
    const sparsed::c::LocalOptions local = sparsed::c::LocalOptionsOf(given, in);
    if (!in.ok()) return in.status();
    absl::StatusOr<sparsed::Client> connected = sparsed::Client::Connect(where, how);
    if (!connected.ok()) return connected.status();
    *client =
        new sparsed_client{std::make_shared<sparsed::c::LocalClient>(*std::move(connected), local)};
    return absl::OkStatus();
  });
}

void sparsed_client_free(sparsed_client* client) { delete client; }

sparsed_error* sparsed_server_info(sparsed_client* client, const sparsed_call_options* options,
                                   char** json) {
  return sparsed::c::Describe(
      client, "client", options, json,
      [&](const sparsed::CallOptions& call) { return client->client().GetServerInfo(call); });
}

sparsed_error* sparsed_server_stats(sparsed_client* client, const sparsed_call_options* options,
                                    char** json) {
  return sparsed::c::Describe(
      client, "client", options, json,
      [&](const sparsed::CallOptions& call) { return client->client().GetStats(call); });
}

}  // extern "C"
