#include "engine/execution/gpu_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "kernels/cuda/exportable_memory.h"
#include "kernels/formats/csr.h"
#include "kernels/kernels_version.h"

namespace sparsed::engine {
namespace {

constexpr size_t kKeptWorkspace = size_t{64} << 20;

std::string ModelOf(const Device& device) {
  return fmt::format("{}, driver {}, kernels {}", device.info().name, device.info().driver,
                     kKernelsVersion);
}

class GpuMoment final : public Moment {
 public:
  /// `slot` outlives it, and is used by the same thread.
  GpuMoment(cuda::Event event, DeviceSlot& slot) : event_(std::move(event)), slot_(slot) {}
  ~GpuMoment() override { slot_.spare_events.push_back(std::move(event_)); }
  GpuMoment(const GpuMoment&) = delete;
  GpuMoment& operator=(const GpuMoment&) = delete;
  absl::Status Record(const cuda::Stream& stream) { return event_.Record(stream); }
  absl::Status Await() const override { return event_.Synchronize(); }
  absl::StatusOr<double> MillisecondsSince(const Moment& begin) const override {
    return event_.MillisecondsSince(static_cast<const GpuMoment&>(begin).event_);
  }

 private:
  cuda::Event event_;
  DeviceSlot& slot_;
};

}  // namespace

GpuBackend::GpuBackend(Device& device)
    : Backend(device.id(), ModelOf(device)), device_(device), queues_(device, *this) {}

absl::StatusOr<std::shared_ptr<const ExportedMemory>> GpuBackend::Export(
    const std::shared_ptr<const Layout>& placed, MemoryOwner& owner) {
  size_t bytes = 0;
  const Buffer* some = nullptr;
  for (const Array& array : placed->arrays) {
    bytes = PackedBytes(bytes) + array.bytes();
    if (array.bytes() > 0) some = &array.buffer;
  }
  if (some == nullptr) {
    return ExportNew(0, owner, [](std::byte*) { return absl::OkStatus(); });
  }
  absl::StatusOr<Descriptor> file = cuda::Export(*some);
  if (!file.ok()) return Checked(file.status());
  return ExportedMemory::OfGpu(*std::move(file), bytes, placed);
}

absl::StatusOr<std::shared_ptr<const ExportedMemory>> GpuBackend::ExportNew(
    size_t bytes, MemoryOwner& owner, const std::function<absl::Status(std::byte*)>& fill) {
  // There is none of no bytes.
  bytes = std::max<size_t>(bytes, 1);
  absl::StatusOr<Buffer> memory =
      device_.budget().ExportableSource(MemoryUse::kShared, &owner).Allocate(bytes);
  if (!memory.ok()) return memory.status();
  if (absl::Status status = fill(memory->mutable_data()); !status.ok()) return status;
  absl::StatusOr<Descriptor> file = cuda::Export(*memory);
  if (!file.ok()) return Checked(file.status());
  return ExportedMemory::OfGpu(*std::move(file), bytes,
                               std::make_shared<const Buffer>(*std::move(memory)));
}

std::vector<WorkerSlot> GpuBackend::NewWorkerSlots() {
  std::vector<WorkerSlot> slots;
  for (DeviceSlot& slot : device_.slots()) {
    slots.push_back({.backend = this, .threads = 1, .gpu = &slot});
  }
  slots.front().express = slots.size() > 1;
  return slots;
}

std::optional<WorkerSlot> GpuBackend::TrialSlot() {
  return WorkerSlot{.backend = this, .threads = 1, .gpu = &device_.trial_slot()};
}

size_t GpuBackend::kept_workspace() const { return kKeptWorkspace; }

void GpuBackend::OnThread(const std::function<void()>& loop) {
  const cuda::DeviceScope scope(device_.ordinal());
  loop();
}

void GpuBackend::Tidy(bool rests) {
  device_.DrainPieces().IgnoreError();
  if (rests) device_.Rest();
}

Context GpuBackend::ContextOf(WorkerSlot& slot, const std::atomic<bool>* stop) const {
  return {.threads = 1, .workspace = {}, .stop = stop, .stream = slot.gpu->stream.handle()};
}

absl::Status GpuBackend::Timed(WorkerSlot& slot, const std::function<absl::Status()>& work,
                               double* milliseconds) {
  const absl::StatusOr<double> timed = device_.Timed(*slot.gpu, work);
  if (timed.ok()) *milliseconds = *timed;
  return timed.status();
}

absl::Status GpuBackend::CopyIn(WorkerSlot& slot, void* to, const void* from, size_t bytes) {
  return device_.CopyIn(slot.gpu->stream, to, from, bytes);
}

absl::Status GpuBackend::CopyOut(WorkerSlot& slot, void* to, const void* from, size_t bytes) {
  return device_.CopyOut(slot.gpu->stream, to, from, bytes);
}

absl::StatusOr<Array> GpuBackend::ValuesFor(const Matrix& matrix, const Layout& /*layout*/,
                                            MemorySource& /*memory*/, int /*threads*/) {
  return matrix.Values();
}

absl::StatusOr<PlacedSparse> GpuBackend::Place(const std::shared_ptr<const Layout>& layout,
                                               const Array* values, MemorySource& host) {
  PlacedSparse placed;
  absl::StatusOr<std::shared_ptr<const Layout>> there = device_.residency().Place(layout);
  if (!there.ok()) return there.status();
  placed.layout = *std::move(there);
  if (values == nullptr) return placed;
  absl::StatusOr<std::shared_ptr<const Array>> ordered =
      device_.residency().PlaceValues(*values, layout, host);
  if (!ordered.ok()) return ordered.status();
  placed.values = *std::move(ordered);
  return placed;
}

absl::StatusOr<std::shared_ptr<const Array>> GpuBackend::OrderValues(const PlacedDense& csr_values,
                                                                     const Layout& layout,
                                                                     MemorySource& memory,
                                                                     WorkerSlot& slot) {
  if (layout.Find(kValueSource) == nullptr) return csr_values.array;
  const ElementType type = csr_values.shape.type;
  absl::StatusOr<Array> ordered = AllocateArray(memory, "values", type, layout.value_slots);
  if (!ordered.ok()) return ordered.status();
  cuda::Stream& stream = slot.gpu->stream;
  const absl::Status status = cuda::PlaceValues(
      stream, layout, type, csr_values.array->buffer.data(), ordered->buffer.mutable_data());
  // Those in CSR's order may go then, and who fails before the kernel lets both go.
  if (absl::Status done = Queued(status, slot); !done.ok()) return done;
  return std::make_shared<const Array>(*std::move(ordered));
}

absl::StatusOr<PlacedDense> GpuBackend::PlaceHeld(const std::shared_ptr<LazyArray>& held,
                                                  const DenseShape& shape) {
  const std::optional<DenseShape> padded = PaddedShape(shape);
  absl::StatusOr<std::shared_ptr<const Array>> array = device_.residency().Place(
      held, padded ? std::optional(RowsOf(shape, *padded)) : std::nullopt);
  if (!array.ok()) return array.status();
  const DenseShape there = padded.value_or(shape);
  if (absl::Status s = CheckHolds(**array, there); !s.ok()) return s;
  return PlacedDense{*std::move(array), there, padded.has_value()};
}

absl::StatusOr<Array> GpuBackend::NewArray(MemorySource& memory, std::string_view name,
                                           const DenseShape& shape,
                                           const std::optional<DenseShape>& padded) {
  const int64_t elements = padded ? padded->rows * padded->leading_dimension : shape.elements();
  return AllocateArray(memory, name, shape.type, elements);
}

absl::StatusOr<PlacedDense> GpuBackend::Bring(Array host, const DenseShape& shape,
                                              WorkerSlot& slot) {
  const std::optional<DenseShape> padded = PaddedShape(shape);
  absl::StatusOr<Array> array = NewArray(memory(MemoryUse::kRequests), host.name, shape, padded);
  if (!array.ok()) return array.status();
  std::byte* const to = array->buffer.mutable_data();
  const absl::Status copied =
      padded ? device_.CopyRowsIn(slot.gpu->stream, to, host.buffer.data(), RowsOf(shape, *padded))
             : device_.CopyIn(slot.gpu->stream, to, host.buffer.data(), array->bytes());
  if (!copied.ok()) return copied;
  return PlacedDense{std::make_shared<const Array>(*std::move(array)), padded.value_or(shape),
                     padded.has_value()};
}

absl::StatusOr<PlacedDense> GpuBackend::Repacked(const Array& array, const DenseShape& shape,
                                                 WorkerSlot& slot) {
  const PlacedDense as_it_is = {std::make_shared<const Array>(array), shape};
  const std::optional<DenseShape> there = PaddedShape(shape);
  if (!there) return as_it_is;
  absl::StatusOr<Array> padded =
      NewArray(device_.budget().SpareSource(MemoryUse::kRequests), array.name, shape, there);
  if (absl::IsResourceExhausted(padded.status())) return as_it_is;
  if (!padded.ok()) return padded.status();
  const PitchedRows rows = RowsOf(shape, *there);
  std::byte* const to = padded->buffer.mutable_data();
  cuda::Stream& stream = slot.gpu->stream;
  absl::Status status = stream.FillRows(to + rows.row_bytes, rows.device_pitch, 0,
                                        rows.device_pitch - rows.row_bytes, rows.rows);
  if (status.ok()) {
    status = stream.CopyRows(to, rows.device_pitch, array.buffer.data(), rows.host_pitch,
                             rows.row_bytes, rows.rows);
  }
  // Who fails before the kernel lets the memory go.
  const absl::Status done = device_.Settle(stream);
  if (status.ok()) status = done;
  if (!status.ok()) return status;
  return PlacedDense{std::make_shared<const Array>(*std::move(padded)), *there, /*padded=*/true};
}

absl::StatusOr<PlacedDense> GpuBackend::NewDense(std::string_view name, const DenseShape& shape,
                                                 MemorySource& memory, WorkerSlot& slot) {
  const std::optional<DenseShape> padded = PaddedShape(shape);
  absl::StatusOr<Array> array = NewArray(memory, name, shape, padded);
  if (!array.ok()) return array.status();
  if (!padded && shape.leading_dimension > shape.cols) {
    absl::Status filled = slot.gpu->stream.Fill(array->buffer.mutable_data(), 0, array->bytes());
    // Who fails before the kernel lets the memory go.
    if (filled = Queued(std::move(filled), slot); !filled.ok()) return filled;
  }
  return PlacedDense{std::make_shared<const Array>(*std::move(array)), padded.value_or(shape),
                     padded.has_value()};
}

absl::Status GpuBackend::CopyDense(std::span<const DenseCopy> copies, WorkerSlot& slot) {
  absl::Status status;
  for (const auto& [from, to] : copies) {
    const size_t size = SizeOf(to.shape.type);
    Array written = *to.array;
    status = slot.gpu->stream.CopyRows(
        written.buffer.mutable_data(), to.shape.leading_dimension * size, from.array->buffer.data(),
        from.shape.leading_dimension * size, to.shape.cols * size, to.shape.rows);
    if (!status.ok()) break;
  }
  // The worker slot's stream has read it before whoever owns it lets it go, also where it failed
  // midway.
  return Queued(std::move(status), slot);
}

absl::StatusOr<std::shared_ptr<const Array>> GpuBackend::PlaceIndices(
    const std::shared_ptr<LazyArray>& indices) {
  return device_.residency().Place(indices, std::nullopt, MemoryUse::kMatrices);
}

absl::Status GpuBackend::Scatter(const PlacedDense& from, const Array* order, const PlacedDense& to,
                                 WorkerSlot& slot) {
  if (order == nullptr) return CopyDense(from, to, slot);
  const int64_t columns = to.shape.cols;
  absl::Status status = cuda::ScatterRows(slot.gpu->stream, order->As<int64_t>(), to.shape.type,
                                          from.View(columns), to.MutableView(columns));
  return Queued(std::move(status), slot);
}

absl::StatusOr<PlacedDense> GpuBackend::Gather(const PlacedDense& from, const Array& order,
                                               MemorySource& memory, WorkerSlot& slot) {
  DenseShape shape = from.shape;
  shape.leading_dimension = shape.cols;
  absl::StatusOr<PlacedDense> to = NewDense(from.array->name, shape, memory, slot);
  if (!to.ok()) return to;
  absl::Status status = cuda::GatherRows(slot.gpu->stream, order.As<int64_t>(), shape.type,
                                         from.View(shape.cols), to->MutableView(shape.cols));
  if (status.ok()) status = ClearPadding(*to, slot);
  // What it reads may go then, and who fails before the kernel lets both go.
  if (absl::Status done = Queued(status, slot); !done.ok()) return done;
  return to;
}

absl::Status GpuBackend::Sum(std::span<const WeightedTerm> terms, const PlacedDense& to,
                             WorkerSlot& slot) {
  return Queued(
      cuda::WeightedSum(slot.gpu->stream, terms, to.shape.type, to.MutableView(to.shape.cols)),
      slot);
}

absl::Status GpuBackend::Softmax(const Layout& csr, double scale, const PlacedDense& from,
                                 const PlacedDense* gradient, const PlacedDense& to,
                                 WorkerSlot& slot) {
  const std::span<const int64_t> rows = ViewCsr(csr).row_offsets;
  cuda::Stream& stream = slot.gpu->stream;
  const int64_t heads = to.shape.cols;
  const Dense result = to.MutableView(heads);
  const ConstDense x = from.View(heads);
  const ElementType type = to.shape.type;
  return Queued(gradient == nullptr ? cuda::RowSoftmax(stream, rows, type, scale, x, result)
                                    : cuda::RowSoftmaxGradient(stream, rows, type, scale, x,
                                                               gradient->View(heads), result),
                slot);
}

absl::Status GpuBackend::ComputeRowProducts(const RowProducts& products, ElementType type,
                                            WorkerSlot& slot) {
  absl::StatusOr<Context> context = ContextWith(cuda::RowProductsWorkspace(products, type), slot,
                                                {slot.workspace, memory(MemoryUse::kRequests)});
  if (!context.ok()) return context.status();
  return Queued(cuda::ComputeRowProducts(*context, products, type), slot);
}

absl::Status GpuBackend::ComputeHeadDots(const HeadDots& dots, ElementType type, WorkerSlot& slot) {
  return Queued(cuda::ComputeHeadDots(ContextOf(slot, nullptr), dots, type), slot);
}

absl::Status GpuBackend::ScaleNonzeros(const NonzeroScaling& scaling, ElementType type,
                                       WorkerSlot& slot) {
  return Queued(cuda::ScaleNonzeros(slot.gpu->stream, scaling, type), slot);
}

absl::Status GpuBackend::TotalNonzeros(const NonzeroTotals& totals, ElementType type,
                                       WorkerSlot& slot) {
  return Queued(cuda::TotalNonzeros(slot.gpu->stream, totals, type), slot);
}

absl::Status GpuBackend::ComputeEdgeAttention(const EdgeAttention& attention, ElementType type,
                                              WorkerSlot& slot, const RunOptions& options) {
  absl::StatusOr<Context> context =
      ContextWith(cuda::EdgeAttentionWorkspace(attention, type), slot, options);
  if (!context.ok()) return context.status();
  return Queued(cuda::ComputeEdgeAttention(*context, attention, type), slot);
}

absl::Status GpuBackend::ComputeEdgeAttentionGradient(const EdgeAttentionGradient& gradient,
                                                      ElementType type, WorkerSlot& slot,
                                                      const RunOptions& options) {
  absl::StatusOr<Context> context =
      ContextWith(cuda::EdgeAttentionWorkspace(gradient, type), slot, options);
  if (!context.ok()) return context.status();
  return Queued(cuda::ComputeEdgeAttentionGradient(*context, gradient, type), slot);
}

absl::StatusOr<Context> GpuBackend::ContextWith(size_t workspace, WorkerSlot& slot,
                                                const RunOptions& options) {
  const absl::Status grown = GrowWorkspace(options.workspace, workspace, options.memory, slot);
  if (!grown.ok()) return grown;
  Context context = ContextOf(slot, nullptr);
  context.workspace = {options.workspace.mutable_data(), options.workspace.size()};
  return context;
}

absl::StatusOr<std::unique_ptr<Moment>> GpuBackend::Now(WorkerSlot& slot) {
  std::vector<cuda::Event>& spare = slot.gpu->spare_events;
  if (spare.empty()) {
    absl::StatusOr<cuda::Event> event = cuda::Event::Create();
    if (!event.ok()) return Checked(event.status());
    spare.push_back(*std::move(event));
  }
  auto moment = std::make_unique<GpuMoment>(std::move(spare.back()), *slot.gpu);
  spare.pop_back();
  if (absl::Status s = moment->Record(slot.gpu->stream); !s.ok()) return Checked(std::move(s));
  return moment;
}

absl::Status GpuBackend::Settle(WorkerSlot& slot) {
  const absl::Status done = device_.Settle(slot.gpu->stream);
  if (!std::exchange(slot.fetches, false)) return done;
  const absl::Status fetched = device_.Settle(slot.gpu->second);
  return done.ok() ? fetched : done;
}

absl::Status GpuBackend::AwaitFetched(WorkerSlot& slot) {
  if (!slot.fetches) return absl::OkStatus();
  const cuda::DeviceScope scope(device_.ordinal());
  absl::StatusOr<cuda::Event> there = cuda::Event::CreateUntimed();
  if (!there.ok()) return there.status();
  absl::Status status = there->Record(slot.gpu->second);
  if (status.ok()) status = there->Hold(slot.gpu->stream);
  if (status.ok()) slot.fetches = false;
  return status;
}

absl::Status GpuBackend::FetchPart(const FetchedRows::Part& part, GpuBackend* gpu,
                                   const PlacedDense& to, int64_t first,
                                   std::vector<std::shared_ptr<const void>>& kept,
                                   WorkerSlot& slot) {
  const auto placed_on = [&](GpuBackend& there) {
    const cuda::DeviceScope scope(there.device_.ordinal());
    return there.PlaceHeld(part.block.elements, part.block.shape);
  };
  bool direct = gpu != nullptr && gpu != this && gpu->status().ok() && device_.Reads(gpu->device());
  absl::StatusOr<PlacedDense> block = placed_on(direct ? *gpu : *this);
  if (!block.ok() && direct) {
    // Without room there, or lost: nothing of that is this GPU's.
    direct = false;
    block = placed_on(*this);
  }
  if (!block.ok()) return block.status();
  kept.push_back(block->array);
  const DenseShape& shape = to.shape;
  const size_t pitch = static_cast<size_t>(shape.leading_dimension) * SizeOf(shape.type);
  std::byte* const begin =
      static_cast<std::byte*>(to.MutableView(shape.cols).data) + static_cast<size_t>(first) * pitch;
  const ConstDense rows_from = block->View(shape.cols);
  absl::Status status;
  if (part.rows == nullptr) {
    const size_t from_pitch = static_cast<size_t>(rows_from.leading_dimension) * SizeOf(shape.type);
    const size_t width = static_cast<size_t>(shape.cols) * SizeOf(shape.type);
    const auto count = static_cast<size_t>(part.count);
    // Narrow rows one by one take far longer.
    const bool no_gaps = pitch == width && from_pitch == width;
    status =
        no_gaps ? slot.gpu->second.Copy(begin, rows_from.data, count * width)
                : slot.gpu->second.CopyRows(begin, pitch, rows_from.data, from_pitch, width, count);
  } else {
    const absl::StatusOr<std::shared_ptr<const Array>> rows = PlaceIndices(part.rows);
    if (!rows.ok()) return rows.status();
    kept.push_back(*rows);
    status = cuda::GatherRows(slot.gpu->second, (*rows)->As<int64_t>(), shape.type, rows_from,
                              {begin, part.count, shape.cols, shape.leading_dimension});
  }
  if (status.ok() && direct) {
    device_.CountFromPeers(part.count * shape.cols * static_cast<int64_t>(SizeOf(shape.type)));
  }
  return status;
}

absl::StatusOr<std::shared_ptr<const cuda::Event>> GpuBackend::Mark(const cuda::Stream& stream) {
  absl::StatusOr<cuda::Event> event = cuda::Event::CreateUntimed();
  if (!event.ok()) return event.status();
  if (absl::Status s = event->Record(stream); !s.ok()) return s;
  return std::make_shared<const cuda::Event>(*std::move(event));
}

absl::Status GpuBackend::FetchShown(const PlacedDense& from, const std::shared_ptr<LazyArray>& rows,
                                    int64_t count, const PlacedDense& to, int64_t first,
                                    std::vector<std::shared_ptr<const void>>& kept,
                                    WorkerSlot& slot) {
  const absl::StatusOr<std::shared_ptr<const Array>> indices = PlaceIndices(rows);
  if (!indices.ok()) return indices.status();
  kept.push_back(*indices);
  Dense into = to.MutableView(to.shape.cols);
  const auto row_bytes = static_cast<int64_t>(SizeOf(to.shape.type));
  into.data = static_cast<std::byte*>(into.data) + first * into.leading_dimension * row_bytes;
  into.rows = count;
  device_.CountFromPeers(count * to.shape.cols * row_bytes);
  return cuda::GatherRows(slot.gpu->second, (*indices)->As<int64_t>(), to.shape.type,
                          from.View(to.shape.cols), into);
}

absl::StatusOr<PlacedDense> GpuBackend::FetchRows(const FetchedRows& rows,
                                                  std::span<GpuBackend* const> gpus,
                                                  MemorySource& memory, WorkerSlot& slot) {
  absl::StatusOr<PlacedDense> to = NewDense("fetched", rows.shape, memory, slot);
  if (!to.ok()) return to;
  struct Kept {
    std::shared_ptr<const Array> array;
    std::vector<std::shared_ptr<const void>> read;
  };
  const auto kept = std::make_shared<Kept>();
  kept->array = to->array;
  absl::Status status = ClearPadding(*to, slot);
  int64_t first = 0;
  for (size_t i = 0; i < rows.parts.size() && status.ok(); ++i) {
    if (rows.parts[i].count == 0) continue;
    slot.fetches = true;
    status = FetchPart(rows.parts[i], gpus[i], *to, first, kept->read, slot);
    first += rows.parts[i].count;
  }
  if (!status.ok()) {
    // Some may be on their way.
    Settle(slot).IgnoreError();
    return status;
  }
  to->array = std::shared_ptr<const Array>(kept, kept->array.get());
  return to;
}

absl::Status GpuBackend::Queued(absl::Status status, WorkerSlot& slot) {
  if (slot.queues) return status;
  const absl::Status done = Settle(slot);
  return status.ok() ? done : status;
}

absl::Status GpuBackend::GrowWorkspace(Buffer& workspace, size_t bytes, MemorySource& memory,
                                       WorkerSlot& slot) {
  if (slot.queues && bytes > workspace.size()) {
    if (absl::Status s = Settle(slot); !s.ok()) return s;
  }
  return Grow(workspace, bytes, memory);
}

absl::Status GpuBackend::Repeat(const Array& period, Array& to, WorkerSlot& slot) {
  cuda::Stream& stream = slot.gpu->stream;
  std::byte* const begin = to.buffer.mutable_data();
  absl::Status status;
  for (size_t at = 0; at < to.bytes() && status.ok(); at += period.bytes()) {
    const size_t bytes = std::min(period.bytes(), to.bytes() - at);
    // After the first, from where it is already.
    status = at == 0 ? device_.CopyIn(stream, begin, period.buffer.data(), bytes)
                     : stream.Copy(begin + at, begin, bytes);
  }
  const absl::Status done = device_.Settle(stream);
  return status.ok() ? done : status;
}

absl::Status GpuBackend::ClearPadding(const PlacedDense& dense, WorkerSlot& slot) {
  if (dense.width() == dense.shape.cols) return absl::OkStatus();
  const PitchedRows rows = RowsOf(dense.shape, dense.shape);
  Array written = *dense.array;
  return slot.gpu->stream.FillRows(written.buffer.mutable_data() + rows.row_bytes,
                                   rows.device_pitch, 0, rows.device_pitch - rows.row_bytes,
                                   rows.rows);
}

std::shared_ptr<LazyArray> GpuBackend::Hold(PlacedDense result, const DenseShape& shape,
                                            MemorySource& memory) {
  const auto held = std::make_shared<LazyArray>(
      [&device = device_, &memory, there = result.array, padded = result.padded,
       rows = RowsOf(shape, result.shape), length = shape.elements()](LazyArray::Stop) {
        absl::StatusOr<Array> host =
            padded ? device.ToHost(*there, rows, length, memory) : device.ToHost(*there, memory);
        if (!absl::IsUnavailable(host.status())) return host;
        // Lest another device that needs it seem lost, too.
        return absl::StatusOr<Array>(absl::DataLossError(fmt::format(
            "it was only on {}: {}", device.name(), std::string(host.status().message()))));
      });
  device_.residency().Adopt(held, std::move(result.array));
  return held;
}

absl::Status GpuBackend::Fetch(const PlacedDense& result, const DenseShape& shape,
                               MemorySource& memory, WorkerSlot& slot, const Arrived& arrived) {
  const Array& array = *result.array;
  absl::StatusOr<Array> host = AllocateArray(memory, array.name, array.type, shape.elements());
  if (!host.ok()) return host.status();
  std::byte* const to = host->buffer.mutable_data();
  if (!result.padded) {
    return device_.CopyOut(slot.gpu->stream, to, array.buffer.data(), host->bytes(),
                           [&](size_t bytes) { arrived(*host, bytes); });
  }
  const PitchedRows rows = RowsOf(shape, result.shape);
  ClearGaps(*host, shape);
  return device_.CopyRowsOut(slot.gpu->stream, to, array.buffer.data(), rows, [&](size_t count) {
    // Behind the last row there is no gap.
    arrived(*host, std::min(count * rows.host_pitch, host->bytes()));
  });
}

absl::Status GpuBackend::FetchInto(const PlacedDense& result, const DenseShape& shape, Array& into,
                                   WorkerSlot& slot) {
  return device_.CopyRowsOut(slot.gpu->stream, into.buffer.mutable_data(),
                             result.array->buffer.data(), RowsOf(shape, result.shape));
}

absl::Status GpuBackend::Run(WorkerSlot& slot, const BoundRun& run, const RunOptions& options,
                             double* milliseconds) {
  Context context = ContextOf(slot, options.stop);
  // What is queued may use what would go for it.
  const auto now = std::chrono::steady_clock::now();
  if (slot.queues && run.prepares() && !slot.gpu->prepared.Has(run, now)) {
    if (absl::Status s = Settle(slot); !s.ok()) return s;
  }
  context.prepared =
      slot.gpu->prepared.For(run, context, device_.budget().SpareSource(MemoryUse::kLayouts), now);
  // What is prepared needs none.
  if (context.prepared == nullptr) {
    const absl::Status grown =
        GrowWorkspace(options.workspace, run.Workspace(context.threads), options.memory, slot);
    if (!grown.ok()) return grown;
    context.workspace = {options.workspace.mutable_data(), options.workspace.size()};
  }
  if (slot.queues) return run.Run(context);
  const absl::StatusOr<double> timed = device_.Timed(
      *slot.gpu, [&] { return run.Run(context); }, options.behind);
  if (timed.ok()) *milliseconds = *timed;
  return timed.status();
}

}  // namespace sparsed::engine
