#include "engine/execution/operand.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace sparsed::engine {

StreamedOperand::StreamedOperand(std::string name, const DenseShape& shape, uint32_t stream_array,
                                 GpuBackend* gpu, MemorySource& host, const MemoryOwner& owner)
    : shape_(shape),
      bytes_(static_cast<size_t>(shape.elements()) * SizeOf(shape.type)),
      stream_array_(stream_array),
      gpu_(gpu),
      host_(host) {
  auto memory = std::make_unique<OperandMemory>(gpu == nullptr ? nullptr : &gpu->device(), host,
                                                owner, bytes_);
  memory_ = memory.get();
  assembler_ =
      ArrayAssembler({std::move(name), shape.type, shape.elements(), {}}, std::move(memory));
}

StreamedOperand::~StreamedOperand() {
  const MutexLock lock(mutex_);
  if (!on_gpu_ || !pieces_under_way_) return;
  // Copies into memory that is about to be somebody else's. This may be a thread that must not
  // wait for them.
  gpu_->device().KeepUntilSent({assembler_.array().buffer, std::move(array_.buffer)});
}

absl::StatusOr<ClaimedBytes> StreamedOperand::Claim(uint64_t offset, uint64_t size) {
  const MutexLock lock(mutex_);
  const absl::StatusOr<std::byte*> to = assembler_.Claim(offset, size);
  if (absl::IsUnavailable(to.status())) return gpu_->Checked(to.status());
  on_gpu_ = memory_->on_device();
  if (!to.ok()) return to.status();
  const auto into = [this, size](std::byte* data) {
    return ClaimedBytes(data, [this, size] { return Written(nullptr, {}, size); });
  };
  if (!on_gpu_ || size == 0) return into(*to);
  if (StagingBlock piece = gpu_->device().TakePieceBlock(size)) {
    std::byte* const data = piece.data();
    return ClaimedBytes(data, [this, to = *to, piece = std::move(piece), size]() mutable {
      return Written(to, std::move(piece), size);
    });
  }
  // To copy it from here would make this thread wait for the device.
  absl::StatusOr<Buffer> late = host_.Allocate(size);
  if (!late.ok()) return late.status();
  late_.push_back({offset, size, *std::move(late)});
  late_bytes_ += size + kLateBytes;
  return into(late_.back().bytes.mutable_data());
}

absl::Status StreamedOperand::Written(std::byte* to, StagingBlock block, size_t size) {
  if (block) {
    {
      const MutexLock lock(mutex_);
      pieces_under_way_ = true;
    }
    if (absl::Status s = gpu_->device().SendPiece(to, std::move(block), size); !s.ok()) return s;
  }
  const MutexLock lock(mutex_);
  written_ += size;
  return absl::OkStatus();
}

bool StreamedOperand::complete() const {
  const MutexLock lock(mutex_);
  return written_ == bytes_;
}

std::string StreamedOperand::Missing() const {
  const MutexLock lock(mutex_);
  return fmt::format("operand {} has {} of {} bytes", assembler_.array().name,
                     assembler_.received(), bytes_);
}

size_t StreamedOperand::counted() const {
  const MutexLock lock(mutex_);
  return assembler_.counted() + late_bytes_;
}

void StreamedOperand::Settled() {
  const MutexLock lock(mutex_);
  pieces_under_way_ = false;
}

bool StreamedOperand::on_host() const {
  const MutexLock lock(mutex_);
  return !on_gpu_;
}

absl::Status StreamedOperand::TakeArray() {
  if (taken_) return absl::OkStatus();
  const MutexLock lock(mutex_);
  absl::StatusOr<Array> array = assembler_.Finish();
  if (!array.ok()) return array.status();
  array_ = *std::move(array);
  to_bring_ = std::move(late_);
  taken_ = true;
  return absl::OkStatus();
}

absl::StatusOr<Array> StreamedOperand::OnHost() {
  if (absl::Status s = TakeArray(); !s.ok()) return s;
  return array_;
}

absl::StatusOr<PlacedDense> StreamedOperand::On(Backend& backend, WorkerSlot& slot,
                                                const Token& token) {
  if (on_host()) {
    absl::StatusOr<Array> host = OnHost();
    if (!host.ok()) return host.status();
    return backend.Bring(*std::move(host), shape_, slot);
  }
  if (absl::Status s = TakeArray(); !s.ok()) return s;
  Device& device = gpu_->device();
  for (const Late& late : to_bring_) {
    // There may be very many.
    if (token.stopped()) return token.status();
    absl::Status copied = device.CopyIn(
        slot.gpu->stream, array_.buffer.mutable_data() + late.offset, late.bytes.data(), late.size);
    if (!copied.ok()) return copied;
  }
  to_bring_.clear();
  if (absl::Status s = device.AwaitPieces(slot.gpu->stream); !s.ok()) return s;
  return gpu_->Repacked(array_, shape_, slot);
}

absl::Status StreamedOperand::MoveToHost(const Token& token) {
  if (on_host()) return absl::OkStatus();
  if (absl::Status s = TakeArray(); !s.ok()) return s;
  Device& device = gpu_->device();
  if (absl::Status s = device.DrainPieces(); !s.ok()) return s;
  Settled();
  absl::StatusOr<Array> on_host = device.ToHost(array_, host_);
  if (!on_host.ok()) return on_host.status();
  for (const Late& late : to_bring_) {
    if (token.stopped()) return token.status();
    std::memcpy(on_host->buffer.mutable_data() + late.offset, late.bytes.data(), late.size);
  }
  to_bring_.clear();
  array_ = *std::move(on_host);
  const MutexLock lock(mutex_);
  on_gpu_ = false;
  return absl::OkStatus();
}

namespace {

absl::StatusOr<Array> RowsOnHost(const FetchedRows& fetched, MemorySource& memory) {
  absl::StatusOr<Array> all =
      AllocateArray(memory, "fetched", fetched.shape.type, fetched.shape.elements());
  if (!all.ok()) return all;
  const size_t row_bytes = static_cast<size_t>(fetched.shape.cols) * SizeOf(fetched.shape.type);
  std::byte* to = all->buffer.mutable_data();
  for (const FetchedRows::Part& part : fetched.parts) {
    if (part.count == 0) continue;
    const absl::StatusOr<Array> block = part.block.elements->Get();
    if (!block.ok()) return block.status();
    if (absl::Status s = CheckHolds(*block, part.block.shape); !s.ok()) return s;
    absl::StatusOr<Array> rows = Array();
    if (part.rows != nullptr) rows = part.rows->Get();
    if (!rows.ok()) return rows.status();
    for (int64_t i = 0; i < part.count; ++i) {
      const int64_t row = part.rows == nullptr ? i : rows->As<int64_t>()[i];
      std::memcpy(to, block->buffer.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
      to += row_bytes;
    }
  }
  return all;
}

}  // namespace

absl::StatusOr<PlacedDense> Operand::On(Backend& backend, WorkerSlot& slot,
                                        const Token& token) const {
  if (StreamedOperand* const bytes = streamed()) return bytes->On(backend, slot, token);
  if (gpu() == &backend) return PlacedDense{std::make_shared<const Array>(*shared()), shape};
  if (gpu() != nullptr) {
    absl::StatusOr<Array> host = OnHost();
    if (!host.ok()) return host.status();
    return backend.Bring(*std::move(host), shape, slot);
  }
  if (shared() != nullptr) return backend.Bring(*shared(), shape, slot);
  if (const auto* const fetched = std::get_if<Fetched>(&source)) {
    if (backend.id().kind == DeviceKind::kCuda) {
      return static_cast<GpuBackend&>(backend).FetchRows(
          *fetched->rows, fetched->gpus, backend.MemoryFor(MemoryUse::kRequests, *fetched->owner),
          slot);
    }
    absl::StatusOr<Array> host = OnHost();
    if (!host.ok()) return host.status();
    return backend.Bring(*std::move(host), shape, slot);
  }
  return backend.PlaceHeld(std::get<Held>(source), shape);
}

absl::StatusOr<Array> Operand::OnHost() const {
  if (StreamedOperand* const bytes = streamed()) return bytes->OnHost();
  if (const auto* const there = std::get_if<SharedOnGpu>(&source)) {
    absl::StatusOr<Array> host = there->gpu->device().ToHost(there->array, *there->host);
    return host.ok() ? host : there->gpu->Checked(host.status());
  }
  if (shared() != nullptr) return *shared();
  if (const auto* const fetched = std::get_if<Fetched>(&source)) {
    return RowsOnHost(*fetched->rows, *fetched->host);
  }
  absl::StatusOr<Array> array = held()->Get();
  if (!array.ok()) return array;
  if (absl::Status s = CheckHolds(*array, shape); !s.ok()) return s;
  return array;
}

}  // namespace sparsed::engine
