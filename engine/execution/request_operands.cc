#include "engine/execution/request_operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sparsed::engine {

absl::StatusOr<Array> SharedArray(std::string_view what, const Buffer& memory,
                                  const DenseShape& shape) {
  if (reinterpret_cast<uintptr_t>(memory.data()) % Buffer::kAlignment != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} begins at an offset that {} does not divide", what, Buffer::kAlignment));
  }
  if (BytesOf(shape) > memory.size()) {
    return absl::InvalidArgumentError(
        fmt::format("{} takes {} bytes, {} are left of the shared memory from its offset on", what,
                    BytesOf(shape), memory.size()));
  }
  return Array{std::string(what), shape.type, shape.elements(), memory};
}

absl::StatusOr<HeldDenseLease> FindHeld(const Executor::Impl& impl, std::string_view what,
                                        const OperandSpec& spec, std::string_view tenant) {
  if (spec.found != nullptr) return spec.found;
  absl::StatusOr<HeldDenseLease> held = impl.dense.Find(tenant, spec.held);
  if (!held.ok() || !spec.shape.has_value()) return held;
  const DenseShape& shape = (*held)->shape;
  if (spec.shape->rows == shape.rows && spec.shape->cols == shape.cols &&
      spec.shape->type == shape.type) {
    return held;
  }
  return absl::InvalidArgumentError(
      fmt::format("operand {} is announced as {} x {} {}, but the buffer '{}' is {} x {} {}", what,
                  spec.shape->rows, spec.shape->cols, Name(spec.shape->type), spec.held, shape.rows,
                  shape.cols, Name(shape.type)));
}

absl::Status RequestOperands::Add(std::string_view what, const OperandSpec& spec,
                                  const std::string& tenant) {
  Operand operand;
  const bool held = spec.block.has_value() || spec.fetched != nullptr || spec.found != nullptr ||
                    !spec.held.empty();
  if (!held && !spec.shape.has_value()) {
    return absl::InvalidArgumentError(
        fmt::format("operand {} needs a shape or the name of a buffer", what));
  }
  if (spec.shared.size() > 0) {
    operand.shape = *spec.shape;
  } else if (!held) {
    operand.shape = *spec.shape;
    for (const Operand& other : operands_) {
      const auto* const announced = std::get_if<Operand::Announced>(&other.source);
      if (announced != nullptr && announced->stream_array == spec.stream_array) {
        return absl::InvalidArgumentError(
            fmt::format("two operands are announced as array {} of the stream", spec.stream_array));
      }
    }
    operand.source = Operand::Announced{std::string(what), spec.stream_array};
  } else if (spec.block.has_value()) {
    operand.shape = spec.block->shape;
    operand.source = spec.block->elements;
  } else if (spec.fetched != nullptr) {
    operand.shape = spec.fetched->shape;
    Operand::Fetched fetched{
        spec.fetched, {}, &impl_.budget.Source(MemoryUse::kRequests, &owner_), &owner_};
    for (const FetchedRows::Part& part : spec.fetched->parts) {
      fetched.gpus.push_back(impl_.gpu(part.device));
    }
    operand.source = std::move(fetched);
  } else {
    absl::StatusOr<HeldDenseLease> found = FindHeld(impl_, what, spec, tenant);
    if (!found.ok()) return found.status();
    operand.shape = (*found)->shape;
    operand.source = (*found)->elements;
  }
  if (operand.shape.leading_dimension == 0) operand.shape.leading_dimension = operand.shape.cols;
  if (absl::Status status = ValidateShape(fmt::format("operand {}", what), operand.shape);
      !status.ok()) {
    return status;
  }
  if (spec.shared.size() > 0) {
    absl::StatusOr<Array> array =
        SharedArray(fmt::format("operand {}", what), spec.shared, operand.shape);
    if (!array.ok()) return array.status();
    GpuBackend* const gpu = impl_.gpu(spec.shared_on);
    if (gpu == nullptr) {
      operand.source = *std::move(array);
    } else {
      operand.source = Operand::SharedOnGpu{*std::move(array), gpu,
                                            &impl_.budget.Source(MemoryUse::kRequests, &owner_)};
    }
  }
  operands_.push_back(std::move(operand));
  return absl::OkStatus();
}

absl::Status RequestOperands::ExpectStreams(GpuBackend* gpu) {
  for (Operand& operand : operands_) {
    const auto* const announced = std::get_if<Operand::Announced>(&operand.source);
    if (announced == nullptr) continue;
    const size_t bytes = BytesOf(operand.shape);
    // Memory is taken as it comes.
    if (gpu == nullptr || static_cast<int64_t>(bytes) > gpu->device().budget().limit()) {
      if (absl::Status s = CheckRoom(impl_.budget, MemoryUse::kRequests, bytes, &owner_); !s.ok()) {
        return s;
      }
    }
    operand.source = std::make_unique<StreamedOperand>(
        announced->name, operand.shape, announced->stream_array, gpu,
        impl_.budget.Source(MemoryUse::kRequests, &owner_), owner_);
  }
  return absl::OkStatus();
}

std::vector<Operand::Held> RequestOperands::held() const {
  std::vector<Operand::Held> held;
  for (const Operand& operand : operands_) {
    if (operand.held() != nullptr) held.push_back(std::get<Operand::Held>(operand.source));
  }
  return held;
}

GpuBackend* RequestOperands::gpu() const {
  const auto count = [&](GpuBackend* gpu) {
    return std::ranges::count(operands_, gpu, [](const Operand& operand) { return operand.gpu(); });
  };
  GpuBackend* most = nullptr;
  for (const Operand& operand : operands_) {
    GpuBackend* const gpu = operand.gpu();
    if (gpu != nullptr && (most == nullptr || count(gpu) > count(most))) most = gpu;
  }
  return most;
}

size_t RequestOperands::streamed_bytes() const {
  size_t bytes = 0;
  for (const Operand& operand : operands_) {
    bytes += operand.streamed() != nullptr ? BytesOf(operand.shape) : 0;
  }
  return bytes;
}

absl::StatusOr<ClaimedBytes> RequestOperands::Claim(uint32_t array, uint64_t offset,
                                                    uint64_t size) {
  for (const Operand& operand : operands_) {
    StreamedOperand* const streamed = operand.streamed();
    if (streamed == nullptr || streamed->stream_array() != array) continue;
    return streamed->Claim(offset, size);
  }
  return absl::InvalidArgumentError(
      fmt::format("no operand of the request is announced as array {}", array));
}

bool RequestOperands::complete() const {
  return std::ranges::all_of(operands_, [](const Operand& operand) {
    return operand.streamed() == nullptr || operand.streamed()->complete();
  });
}

std::string RequestOperands::Missing() const {
  for (const Operand& operand : operands_) {
    const StreamedOperand* const streamed = operand.streamed();
    if (streamed != nullptr && !streamed->complete()) return streamed->Missing();
  }
  return "";
}

size_t RequestOperands::announced() const {
  size_t bytes = 0;
  for (const Operand& operand : operands_) {
    if (const StreamedOperand* const streamed = operand.streamed()) bytes += streamed->announced();
  }
  return bytes;
}

size_t RequestOperands::counted() const {
  size_t bytes = 0;
  for (const Operand& operand : operands_) {
    if (const StreamedOperand* const streamed = operand.streamed()) bytes += streamed->counted();
  }
  return bytes;
}

void RequestOperands::AppendLoaders(GpuBackend* gpu, std::vector<Job::Loader>& loaders) const {
  const auto load = [&](const std::shared_ptr<LazyArray>& held, GpuBackend* on) {
    const bool on_device =
        on != nullptr && on->device().residency().PresenceOf(held) != Residency::Presence::kNothing;
    if (!on_device) loaders.push_back(LoaderOf(held));
  };
  for (const Operand& operand : operands_) {
    if (operand.held() != nullptr) load(std::get<Operand::Held>(operand.source), gpu);
    const auto* const fetched = std::get_if<Operand::Fetched>(&operand.source);
    if (fetched == nullptr) continue;
    for (size_t i = 0; i < fetched->gpus.size(); ++i) {
      const FetchedRows::Part& part = fetched->rows->parts[i];
      if (part.count > 0) load(part.block.elements, gpu == nullptr ? nullptr : fetched->gpus[i]);
    }
  }
}

bool RequestOperands::on_host() const {
  return std::ranges::all_of(operands_, [](const Operand& operand) {
    return operand.streamed() == nullptr || operand.streamed()->on_host();
  });
}

absl::Status RequestOperands::MoveToHost(const Token& token) {
  for (const Operand& operand : operands_) {
    StreamedOperand* const streamed = operand.streamed();
    if (streamed == nullptr) continue;
    if (absl::Status s = streamed->MoveToHost(token); !s.ok()) return s;
  }
  return absl::OkStatus();
}

void RequestOperands::Settled() {
  for (const Operand& operand : operands_) {
    if (operand.streamed() != nullptr) operand.streamed()->Settled();
  }
}

}  // namespace sparsed::engine
