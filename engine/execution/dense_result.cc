#include "engine/execution/dense_result.h"

#include <fmt/format.h>

#include <utility>

#include "engine/execution/request_operands.h"

namespace sparsed::engine {
namespace {

/// Whether two matrices have a byte in common. Those of one leading dimension may lie side by side:
/// columns of one matrix. Of others all that lies between their rows counts as theirs.
bool ShareBytes(const Array& one, const DenseShape& one_shape, const Array& other,
                const DenseShape& other_shape) {
  if (one.buffer.data() > other.buffer.data()) {
    return ShareBytes(other, other_shape, one, one_shape);
  }
  if (one.length == 0 || other.length == 0) return false;
  const auto distance = static_cast<uint64_t>(other.buffer.data() - one.buffer.data());
  if (one_shape.leading_dimension != other_shape.leading_dimension || one.type != other.type) {
    return distance < one.bytes();
  }
  const uint64_t size = SizeOf(one.type);
  const uint64_t stride = static_cast<uint64_t>(one_shape.leading_dimension) * size;
  const auto rows = static_cast<uint64_t>(one_shape.rows);
  // The other's first row begins in this row of the one, its last byte maybe in the next.
  const uint64_t row = distance / stride, in_row = distance % stride;
  return (row < rows && in_row < static_cast<uint64_t>(one_shape.cols) * size) ||
         (row + 1 < rows && in_row + static_cast<uint64_t>(other_shape.cols) * size > stride);
}

}  // namespace

absl::StatusOr<DenseWrite> BeginWrite(Executor::Impl& impl, std::string_view tenant,
                                      std::string_view buffer, const DenseShape& shape) {
  absl::StatusOr<DenseWrite> write = impl.dense.BeginWrite(tenant, buffer);
  if (!write.ok()) return write;
  const DenseShape& held = write->base()->shape;
  if (held.rows == shape.rows && held.cols == shape.cols && held.type == shape.type) return write;
  return absl::InvalidArgumentError(
      fmt::format("the result is {} x {} {}, but the buffer '{}' is {} x {} {}", shape.rows,
                  shape.cols, Name(shape.type), buffer, held.rows, held.cols, Name(held.type)));
}

absl::StatusOr<DenseResult> DenseResult::Find(Executor::Impl& impl, const std::string& tenant,
                                              const ResultSpec& spec, DenseShape shape) {
  DenseResult result;
  if (spec.shared.size() > 0) {
    if (!spec.shape.has_value() || spec.shape->rows != shape.rows ||
        spec.shape->cols != shape.cols || spec.shape->type != shape.type) {
      return absl::InvalidArgumentError(fmt::format(
          "the result is {} x {} {}, its destination {}", shape.rows, shape.cols, Name(shape.type),
          spec.shape.has_value() ? fmt::format("{} x {} {}", spec.shape->rows, spec.shape->cols,
                                               Name(spec.shape->type))
                                 : "has no shape"));
    }
    shape.leading_dimension = spec.shape->leading_dimension;
  }
  if (shape.leading_dimension == 0) shape.leading_dimension = shape.cols;
  result.shape_ = shape;
  if (spec.blocks != nullptr) {
    const DenseShape& block = spec.blocks->shape(spec.block);
    if (block.rows != shape.rows || block.cols != shape.cols || block.type != shape.type) {
      return absl::InvalidArgumentError(fmt::format(
          "what each GPU computes of the result is {} x {} {}, what it has of its "
          "destination {} x {} {}",
          shape.rows, shape.cols, Name(shape.type), block.rows, block.cols, Name(block.type)));
    }
    result.blocks_ = spec.blocks;
    result.block_ = spec.block;
    result.shape_ = block;
    result.kept_ = true;
    return result;
  }
  if (spec.held.empty()) {
    if (absl::Status s = ValidateSizes("the result", shape); !s.ok()) return s;
    if (spec.shared.size() == 0) return result;
    absl::StatusOr<Array> array = SharedArray("the result", spec.shared, shape);
    if (!array.ok()) return array.status();
    result.shared_ = *std::move(array);
    result.gpu_ = impl.gpu(spec.shared_on);
    return result;
  }
  absl::StatusOr<DenseWrite> write = BeginWrite(impl, tenant, spec.held, shape);
  if (!write.ok()) return write.status();
  if (spec.version != 0) write->SetVersion(spec.version);
  result.shape_ = write->base()->shape;
  result.destination_ = *std::move(write);
  result.kept_ = true;
  return result;
}

absl::Status DenseResult::CheckApart(const Operand& operand, bool is_old, bool* in_place) const {
  if (!shared_.has_value()) return absl::OkStatus();
  const Array* const shared = operand.shared();
  if (shared == nullptr || !ShareBytes(*shared, operand.shape, *shared_, shape_)) {
    return absl::OkStatus();
  }
  if (!is_old || shared->buffer.data() != shared_->buffer.data() ||
      operand.shape.leading_dimension != shape_.leading_dimension) {
    return absl::InvalidArgumentError(
        fmt::format("the result would overwrite {}: they share bytes", shared->name));
  }
  *in_place = true;
  return absl::OkStatus();
}

absl::Status DenseResult::CheckApart(const DenseResult& other) const {
  if (!shared_ || !other.shared_ || !ShareBytes(*shared_, shape_, *other.shared_, other.shape_)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("it would overwrite another result: they share bytes");
}

absl::StatusOr<PlacedDense> DenseResult::New(std::string_view name, MemoryOwner& owner,
                                             WorkerSlot& slot) {
  Backend& backend = *slot.backend;
  haloed_.reset();
  if (written_in_place(backend)) {
    if (gpu_ == nullptr) return backend.Bring(*shared_, shape_, slot);
    return PlacedDense{std::make_shared<const Array>(*shared_), shape_};
  }
  MemorySource& memory = backend.MemoryFor(use(), owner);
  const HeldDenseLease& base = destination_.base();
  if (base != nullptr && base->halo.rows() > 0 && backend.shares_host_memory()) {
    // Without memory for it, the next product copies what it needs.
    auto haloed = HaloedDense::Allocate(name, shape_, base->halo, memory);
    if (haloed.ok()) {
      haloed_ = *std::move(haloed);
      return backend.Bring(haloed_->own(), shape_, slot);
    }
  }
  return backend.NewDense(name, shape_, memory, slot);
}

absl::Status DenseResult::SendToGpu(const PlacedDense& result, Backend& from, WorkerSlot& slot,
                                    MemorySource& memory) {
  if (gpu_ == &from) {
    const PlacedDense there = {std::make_shared<const Array>(*shared_), shape_};
    const absl::Status copied = from.CopyDense(result, there, slot);
    const absl::Status done = from.Settle(slot);
    return copied.ok() ? done : copied;
  }
  DenseShape packed = shape_;
  packed.leading_dimension = shape_.cols;
  absl::StatusOr<Array> host = AllocateArray(memory, shared_->name, shape_.type, packed.elements());
  if (!host.ok()) return host.status();
  if (absl::Status s = from.FetchInto(result, packed, *host, slot); !s.ok()) return s;
  const PitchedRows rows = RowsOf(packed, shape_);
  return gpu_->Checked(
      gpu_->device().PutRows(shared_->buffer.mutable_data(), host->buffer.data(), rows));
}

absl::Status DenseResult::Send(PlacedDense result, Backend& from, WorkerSlot& slot, uint32_t index,
                               MemorySource& memory, MemorySource& held_memory, ResultSink& sink) {
  if (absl::Status s = CheckHolds(*result.array, result.shape); !s.ok()) return s;
  if (blocks_ != nullptr) {
    MemorySource& of = use() == MemoryUse::kBuffers ? held_memory : memory;
    blocks_->Set(block_, from.Hold(std::move(result), shape_, of));
    return absl::OkStatus();
  }
  if (kept_) {
    const bool with_halo =
        haloed_ != nullptr && haloed_->own().buffer.data() == result.array->buffer.data();
    return destination_.Publish(from.Hold(std::move(result), shape_, held_memory),
                                with_halo ? std::move(haloed_) : nullptr);
  }
  if (shared_.has_value()) {
    if (result.array->buffer.data() == shared_->buffer.data()) return absl::OkStatus();
    if (gpu_ != nullptr) return SendToGpu(result, from, slot, memory);
    return from.FetchInto(result, shape_, *shared_, slot);
  }
  size_t sent = 0;
  return from.Fetch(result, shape_, memory, slot, [&](const Array& host, size_t bytes) {
    const auto length = static_cast<int64_t>((bytes - sent) / SizeOf(host.type));
    sink.OnArray(index, sent, {host.name, host.type, length, host.buffer.Part(sent, bytes - sent)});
    sent = bytes;
  });
}

}  // namespace sparsed::engine
