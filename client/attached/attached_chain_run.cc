// Chains of an attached matrix, here or on the server.
#include <fmt/format.h>

#include <chrono>
#include <list>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "client/attached/attached_chain.h"
#include "client/attached/attached_state.h"
#include "client/attached/views.h"
#include "client/src/arrays.h"
#include "client/src/compute_calls.h"
#include "client/src/time_left.h"

namespace sparsed {
inline namespace client {

std::optional<absl::StatusOr<ComputeResult>> AttachedMatrix::State::Run(
    const Chain& chain, const ExportedProduct::Where& where, Clock::time_point deadline) {
  const std::shared_ptr<Attachment> attachment = this->attachment();
  if (attachment == nullptr) return std::nullopt;
  AttachedChain built(*attachment, chain, matrix_.name(), deadline);
  const absl::StatusOr<bool> here = built.Build();
  if (!here.ok()) return here.status();
  if (!*here) return std::nullopt;
  std::vector<std::string>& plans = built.plans();
  std::vector<std::chrono::nanoseconds> durations(plans.size());
  const ExportedProduct::Accounted ran =
      attachment->chains().Run(built.program(), where, durations);
  // Nothing but results was written.
  if (absl::IsUnimplemented(ran.status()) || absl::IsResourceExhausted(ran.status())) {
    return std::nullopt;
  }
  absl::StatusOr<ComputeResult> result =
      Count(fmt::format("chain of {}: {}", plans.size(), plans[0]), built.version(),
            attachment->usage().chain(), built.bytes_in(), built.bytes_out(), ran);
  if (!result.ok()) return result;
  result->steps.reserve(plans.size());
  for (size_t i = 0; i < plans.size(); ++i) {
    result->steps.push_back({std::move(plans[i]), durations[i]});
  }
  return result;
}

absl::StatusOr<ComputeResult> AttachedMatrix::State::RunThere(const Chain& chain,
                                                              const CallOptions& options) const {
  return client::Run(connection_, chain, options).Wait();
}

absl::StatusOr<ComputeResult> AttachedMatrix::State::RunThere(const Chain& chain,
                                                              GpuStream stream) const {
  return AttachedChain::RunOverHost(connection_, chain, *gpu_, stream);
}

absl::StatusOr<ComputeResult> AttachedMatrix::Run(const Chain& chain,
                                                  const CallOptions& options) const {
  const TimeLeft time(options);
  if (!state_->gpu()) {
    auto here = state_->Run(chain, state_->Where(), time.deadline());
    if (here) return *std::move(here);
  }
  return state_->RunThere(chain, time.rest());
}

absl::StatusOr<ComputeResult> AttachedMatrix::Run(GpuStream stream, const Chain& chain) const {
  if (!state_->gpu()) return NotOnGpu();
  auto here = state_->Run(chain, state_->Where(stream));
  if (here) return *std::move(here);
  return state_->RunThere(chain, stream);
}

absl::StatusOr<ComputeResult> AttachedMatrix::RunOverHost(const Client& client, const Chain& chain,
                                                          int gpu, GpuStream stream) {
  return AttachedChain::RunOverHost(client.connection_, chain, gpu, stream);
}

absl::StatusOr<ComputeResult> AttachedChain::RunOverHost(
    const std::shared_ptr<Connection>& connection, const Chain& chain, int gpu, GpuStream stream) {
  absl::Status status = CheckNotPartOfGraph(gpu, stream.handle);
  Chain there = chain;
  std::list<HostCopy> copies;
  for (size_t i = 0; i < there.operands_.size() && status.ok(); ++i) {
    auto* const view = std::get_if<DenseView>(&there.operands_[i]);
    if (view == nullptr) continue;
    status = client::BytesOf(*view, fmt::format("operand {}", i)).status();
    if (status.ok()) status = copies.emplace_back(gpu, stream).Take(*view);
    if (status.ok()) *view = copies.back().view();
  }
  std::vector<std::pair<MutableDenseView, HostCopy*>> results;
  for (size_t i = 0; i < there.outputs_.size() && status.ok(); ++i) {
    auto* const view = std::get_if<MutableDenseView>(&there.outputs_[i].second);
    if (view == nullptr) continue;
    status = client::BytesOf(*view, fmt::format("result {}", i)).status();
    for (const auto& [other, copy] : results) {
      if (!Overlap(other, *view)) continue;
      status.Update(absl::InvalidArgumentError(
          fmt::format("result {} shares memory with another result", i)));
    }
    if (status.ok()) status = copies.emplace_back(gpu, stream).Resize(*view);
    if (!status.ok()) break;
    results.emplace_back(*view, &copies.back());
    *view = copies.back().mutable_view();
  }
  if (!status.ok()) return status;
  absl::StatusOr<ComputeResult> done = client::Run(connection, there, {}).Wait();
  for (auto it = results.begin(); it != results.end() && done.ok(); ++it) {
    if (status = it->second->Put(it->first); !status.ok()) return status;
  }
  return done;
}

}  // namespace client
}  // namespace sparsed
