#include "engine/execution/operand.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace sparsed::engine {

StreamedOperand::StreamedOperand(std::string name, const DenseShape& shape, uint32_t stream_array,
                                 GpuBackend* gpu, MemorySource& host, const MemoryOwner& owner)
    : shape_(shape), stream_array_(stream_array), gpu_(gpu), host_(host) {
  const int64_t elements = shape.elements();
  auto memory =
      std::make_unique<OperandMemory>(gpu == nullptr ? nullptr : &gpu->device(), host, owner,
                                      static_cast<size_t>(elements) * SizeOf(shape.type));
  memory_ = memory.get();
  assembler_ = ArrayAssembler({std::move(name), shape.type, elements, {}}, std::move(memory));
}

StreamedOperand::~StreamedOperand() {
  if (!on_gpu_ || !pieces_under_way_) return;
  // Copies into memory that is about to be somebody else's. This may be a thread that must not
  // wait for them.
  gpu_->device().KeepUntilSent({assembler_.array().buffer, std::move(array_.buffer)});
}

absl::StatusOr<std::byte*> StreamedOperand::Claim(uint64_t offset, uint64_t size) {
  absl::StatusOr<std::byte*> to = assembler_.Claim(offset, size);
  if (absl::IsUnavailable(to.status())) return gpu_->Checked(to.status());
  on_gpu_ = memory_->on_device();
  if (!to.ok() || !on_gpu_ || size == 0) return to;
  piece_ = gpu_->device().TakePieceBlock(size);
  if (piece_) {
    piece_to_ = *to;
    piece_bytes_ = size;
    return piece_.data();
  }
  // To copy it from here would make this thread wait for the device.
  absl::StatusOr<Buffer> late = host_.Allocate(size);
  if (!late.ok()) {
    lost_ = true;
    return late.status();
  }
  late_.push_back({offset, size, *std::move(late)});
  late_bytes_ += size + kLateBytes;
  return late_.back().bytes.mutable_data();
}

absl::Status StreamedOperand::Commit() {
  if (!piece_) return absl::OkStatus();
  pieces_under_way_ = true;
  return gpu_->device().SendPiece(piece_to_, std::exchange(piece_, {}), piece_bytes_);
}

std::string StreamedOperand::Missing() const {
  return fmt::format("operand {} has {} of {} bytes", assembler_.array().name,
                     assembler_.received(), assembler_.array().bytes());
}

absl::Status StreamedOperand::TakeArray() {
  if (taken_) return absl::OkStatus();
  absl::StatusOr<Array> array = assembler_.Finish();
  if (!array.ok()) return array.status();
  array_ = *std::move(array);
  taken_ = true;
  return absl::OkStatus();
}

absl::StatusOr<Array> StreamedOperand::OnHost() {
  if (absl::Status s = TakeArray(); !s.ok()) return s;
  return array_;
}

absl::StatusOr<PlacedDense> StreamedOperand::On(Backend& backend, Lane& lane, const Token& token) {
  if (!on_gpu_) {
    absl::StatusOr<Array> host = OnHost();
    if (!host.ok()) return host.status();
    return backend.Bring(*std::move(host), shape_, lane);
  }
  if (absl::Status s = TakeArray(); !s.ok()) return s;
  Device& device = gpu_->device();
  for (const Late& late : late_) {
    // There may be very many.
    if (token.stopped()) return token.status();
    absl::Status copied = device.CopyIn(
        lane.gpu->stream, array_.buffer.mutable_data() + late.offset, late.bytes.data(), late.size);
    if (!copied.ok()) return copied;
  }
  late_.clear();
  if (absl::Status s = device.AwaitPieces(lane.gpu->stream); !s.ok()) return s;
  return gpu_->Repacked(array_, shape_, lane);
}

absl::Status StreamedOperand::MoveToHost(const Token& token) {
  if (!on_gpu_) return absl::OkStatus();
  if (absl::Status s = TakeArray(); !s.ok()) return s;
  Device& device = gpu_->device();
  if (absl::Status s = device.DrainPieces(); !s.ok()) return s;
  pieces_under_way_ = false;
  absl::StatusOr<Array> on_host = device.ToHost(array_, host_);
  if (!on_host.ok()) return on_host.status();
  for (const Late& late : late_) {
    if (token.stopped()) return token.status();
    std::memcpy(on_host->buffer.mutable_data() + late.offset, late.bytes.data(), late.size);
  }
  late_.clear();
  array_ = *std::move(on_host);
  on_gpu_ = false;
  return absl::OkStatus();
}

absl::StatusOr<PlacedDense> Operand::On(Backend& backend, Lane& lane, const Token& token) const {
  if (StreamedOperand* const bytes = streamed()) return bytes->On(backend, lane, token);
  if (gpu() == &backend) return PlacedDense{std::make_shared<const Array>(*shared()), shape};
  if (gpu() != nullptr) {
    absl::StatusOr<Array> host = OnHost();
    if (!host.ok()) return host.status();
    return backend.Bring(*std::move(host), shape, lane);
  }
  if (shared() != nullptr) return backend.Bring(*shared(), shape, lane);
  return backend.PlaceHeld(std::get<Held>(source), shape);
}

absl::StatusOr<Array> Operand::OnHost() const {
  if (StreamedOperand* const bytes = streamed()) return bytes->OnHost();
  if (const auto* const there = std::get_if<SharedOnGpu>(&source)) {
    absl::StatusOr<Array> host = there->gpu->device().ToHost(there->array, *there->host);
    return host.ok() ? host : there->gpu->Checked(host.status());
  }
  if (shared() != nullptr) return *shared();
  absl::StatusOr<Array> array = held()->Get();
  if (!array.ok()) return array;
  if (absl::Status s = CheckHolds(*array, shape); !s.ok()) return s;
  return array;
}

}  // namespace sparsed::engine
