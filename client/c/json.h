// JSON texts of what calls bring.
#pragma once

#include "absl/status/status.h"
#include "client/c/arguments.h"
#include "client/c/errors.h"
#include "client/cli/json.h"

namespace sparsed::c {

/// Sets *text, the caller's.
inline absl::Status SetText(const cli::Json& json, char** text) {
  *text = NewText(json.dump(-1, ' ', false, cli::Json::error_handler_t::replace));
  return absl::OkStatus();
}

/// Of what a call brought, unless it is an error.
template <typename Result>
absl::Status SetJson(const Result& result, char** text) {
  return result.ok() ? SetText(cli::ToJson(*result), text) : result.status();
}

/// A function that describes something: checks its arguments, `handle` being the one named `what`,
/// and sets *json from what `get` (of CallOptions) brings.
template <typename Handle, typename Get>
sparsed_error* Describe(Handle* handle, const char* what, const sparsed_call_options* options,
                        char** json, const Get& get) {
  return Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(handle, what);
    in.Need(json, "json");
    const CallOptions call = in.Call(options);
    if (!in.ok()) return in.status();
    return SetJson(get(call), json);
  });
}

}  // namespace sparsed::c
