// Statuses that say more than where they come from could.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace sparsed {

/// Another code and sentence. Payloads stay: when to try again, say.
inline absl::Status Reworded(const absl::Status& status, absl::StatusCode code,
                             const std::string& sentence) {
  absl::Status reworded(code, sentence);
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    reworded.SetPayload(type, payload);
  });
  return reworded;
}

/// The same code with another sentence.
inline absl::Status Reworded(const absl::Status& status, const std::string& sentence) {
  return Reworded(status, status.code(), sentence);
}

}  // namespace sparsed
