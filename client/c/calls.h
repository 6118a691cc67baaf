// Calls under way, whatever they bring.
#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "sparsed/c.h"
#include "sparsed/call.h"

struct sparsed_call {
  virtual ~sparsed_call() = default;
  /// Whether it is done. No time: waits until it is.
  virtual bool Wait(std::optional<std::chrono::nanoseconds> time) = 0;
  virtual void Cancel() = 0;
  /// Waits, and gives the result to whom it is for. Once.
  virtual absl::Status Finish() = 0;
};

namespace sparsed::c {

/// Waits for the call's end and gives its result to `deliver`, which returns a status.
template <typename T, typename Deliver>
absl::Status Finish(Call<T>& call, const Deliver& deliver) {
  auto result = call.Wait();
  if constexpr (std::is_void_v<T>) {
    return result.ok() ? deliver() : result;
  } else {
    return result.ok() ? deliver(*std::move(result)) : std::move(result).status();
  }
}

template <typename T, typename Deliver>
class CallOf final : public sparsed_call {
 public:
  CallOf(Call<T> call, Deliver deliver) : deliver_(std::move(deliver)), call_(std::move(call)) {}

  bool Wait(std::optional<std::chrono::nanoseconds> time) override {
    // As long as clocks can add to.
    constexpr std::chrono::hours kLong{24};
    if (time) return call_.WaitFor(std::min<std::chrono::nanoseconds>(*time, kLong));
    while (!call_.WaitFor(kLong)) {
    }
    return true;
  }
  void Cancel() override { call_.Cancel(); }
  absl::Status Finish() override { return c::Finish(call_, deliver_); }

 private:
  Deliver deliver_;  ///< goes last: it may keep what the call uses
  Call<T> call_;
};

/// Finishes the call, or hands it out if `handle` is not null.
template <typename T, typename Deliver>
absl::Status FinishOrHandOut(Call<T> call, sparsed_call** handle, Deliver deliver) {
  if (handle == nullptr) return Finish(call, deliver);
  *handle = new CallOf<T, Deliver>(std::move(call), std::move(deliver));
  return absl::OkStatus();
}

}  // namespace sparsed::c
