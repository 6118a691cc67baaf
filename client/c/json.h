// JSON texts of what calls bring.
#pragma once

#include "absl/status/status.h"
#include "client/c/arguments.h"
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

}  // namespace sparsed::c
