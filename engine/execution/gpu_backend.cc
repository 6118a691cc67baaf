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
  /// `lane` outlives it, and is used by the same thread.
  GpuMoment(cuda::Event event, DeviceLane& lane) : event_(std::move(event)), lane_(lane) {}
  ~GpuMoment() override { lane_.spare_events.push_back(std::move(event_)); }
  GpuMoment(const GpuMoment&) = delete;
  GpuMoment& operator=(const GpuMoment&) = delete;
  absl::Status Record(const cuda::Stream& stream) { return event_.Record(stream); }
  absl::Status Await() const override { return event_.Synchronize(); }
  absl::StatusOr<double> MillisecondsSince(const Moment& begin) const override {
    return event_.MillisecondsSince(static_cast<const GpuMoment&>(begin).event_);
  }

 private:
  cuda::Event event_;
  DeviceLane& lane_;
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

std::vector<Lane> GpuBackend::NewLanes() {
  std::vector<Lane> lanes;
  for (DeviceLane& lane : device_.lanes()) {
    lanes.push_back({.backend = this, .threads = 1, .gpu = &lane});
  }
  lanes.front().express = lanes.size() > 1;
  return lanes;
}

std::optional<Lane> GpuBackend::TrialLane() {
  return Lane{.backend = this, .threads = 1, .gpu = &device_.trial_lane()};
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

Context GpuBackend::ContextOf(Lane& lane, const std::atomic<bool>* stop) const {
  return {.threads = 1, .workspace = {}, .stop = stop, .stream = lane.gpu->stream.handle()};
}

absl::Status GpuBackend::Timed(Lane& lane, const std::function<absl::Status()>& work,
                               double* milliseconds) {
  const absl::StatusOr<double> timed = device_.Timed(*lane.gpu, work);
  if (timed.ok()) *milliseconds = *timed;
  return timed.status();
}

absl::Status GpuBackend::CopyIn(Lane& lane, void* to, const void* from, size_t bytes) {
  return device_.CopyIn(lane.gpu->stream, to, from, bytes);
}

absl::Status GpuBackend::CopyOut(Lane& lane, void* to, const void* from, size_t bytes) {
  return device_.CopyOut(lane.gpu->stream, to, from, bytes);
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
  absl::StatusOr<std::shared_ptr<const Array>> slots =
      device_.residency().PlaceValues(*values, layout, host);
  if (!slots.ok()) return slots.status();
  placed.values = *std::move(slots);
  return placed;
}

absl::StatusOr<std::shared_ptr<const Array>> GpuBackend::OrderValues(const PlacedDense& csr_values,
                                                                     const Layout& layout,
                                                                     MemorySource& memory,
                                                                     Lane& lane) {
  if (layout.Find(kValueSource) == nullptr) return csr_values.array;
  const ElementType type = csr_values.shape.type;
  absl::StatusOr<Array> slots = AllocateArray(memory, "values", type, layout.value_slots);
  if (!slots.ok()) return slots.status();
  cuda::Stream& stream = lane.gpu->stream;
  const absl::Status status = cuda::PlaceValues(
      stream, layout, type, csr_values.array->buffer.data(), slots->buffer.mutable_data());
  // Those in CSR's order may go then, and who fails before the kernel lets both go.
  if (absl::Status done = Queued(status, lane); !done.ok()) return done;
  return std::make_shared<const Array>(*std::move(slots));
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

absl::StatusOr<PlacedDense> GpuBackend::Bring(Array host, const DenseShape& shape, Lane& lane) {
  const std::optional<DenseShape> padded = PaddedShape(shape);
  absl::StatusOr<Array> array = NewArray(memory(MemoryUse::kRequests), host.name, shape, padded);
  if (!array.ok()) return array.status();
  std::byte* const to = array->buffer.mutable_data();
  const absl::Status copied =
      padded ? device_.CopyRowsIn(lane.gpu->stream, to, host.buffer.data(), RowsOf(shape, *padded))
             : device_.CopyIn(lane.gpu->stream, to, host.buffer.data(), array->bytes());
  if (!copied.ok()) return copied;
  return PlacedDense{std::make_shared<const Array>(*std::move(array)), padded.value_or(shape),
                     padded.has_value()};
}

absl::StatusOr<PlacedDense> GpuBackend::Repacked(const Array& array, const DenseShape& shape,
                                                 Lane& lane) {
  const PlacedDense as_it_is = {std::make_shared<const Array>(array), shape};
  const std::optional<DenseShape> there = PaddedShape(shape);
  if (!there) return as_it_is;
  absl::StatusOr<Array> padded =
      NewArray(device_.budget().SpareSource(MemoryUse::kRequests), array.name, shape, there);
  if (absl::IsResourceExhausted(padded.status())) return as_it_is;
  if (!padded.ok()) return padded.status();
  const PitchedRows rows = RowsOf(shape, *there);
  std::byte* const to = padded->buffer.mutable_data();
  cuda::Stream& stream = lane.gpu->stream;
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
                                                 MemorySource& memory, Lane& lane) {
  const std::optional<DenseShape> padded = PaddedShape(shape);
  absl::StatusOr<Array> array = NewArray(memory, name, shape, padded);
  if (!array.ok()) return array.status();
  if (!padded && shape.leading_dimension > shape.cols) {
    absl::Status filled = lane.gpu->stream.Fill(array->buffer.mutable_data(), 0, array->bytes());
    // Who fails before the kernel lets the memory go.
    if (filled = Queued(std::move(filled), lane); !filled.ok()) return filled;
  }
  return PlacedDense{std::make_shared<const Array>(*std::move(array)), padded.value_or(shape),
                     padded.has_value()};
}

absl::Status GpuBackend::CopyDense(std::span<const DenseCopy> copies, Lane& lane) {
  absl::Status status;
  for (const auto& [from, to] : copies) {
    const size_t size = SizeOf(to.shape.type);
    Array written = *to.array;
    status = lane.gpu->stream.CopyRows(
        written.buffer.mutable_data(), to.shape.leading_dimension * size, from.array->buffer.data(),
        from.shape.leading_dimension * size, to.shape.cols * size, to.shape.rows);
    if (!status.ok()) break;
  }
  // The lane's stream has read it before whoever owns it lets it go, also where it failed midway.
  return Queued(std::move(status), lane);
}

absl::StatusOr<std::shared_ptr<const Array>> GpuBackend::PlaceIndices(
    const std::shared_ptr<LazyArray>& indices) {
  return device_.residency().Place(indices, std::nullopt, MemoryUse::kMatrices);
}

absl::Status GpuBackend::Scatter(const PlacedDense& from, const Array* order, const PlacedDense& to,
                                 Lane& lane) {
  if (order == nullptr) return CopyDense(from, to, lane);
  const int64_t columns = to.shape.cols;
  absl::Status status = cuda::ScatterRows(lane.gpu->stream, order->As<int64_t>(), to.shape.type,
                                          from.View(columns), to.MutableView(columns));
  return Queued(std::move(status), lane);
}

absl::StatusOr<PlacedDense> GpuBackend::Gather(const PlacedDense& from, const Array& order,
                                               MemorySource& memory, Lane& lane) {
  DenseShape shape = from.shape;
  shape.leading_dimension = shape.cols;
  absl::StatusOr<PlacedDense> to = NewDense(from.array->name, shape, memory, lane);
  if (!to.ok()) return to;
  absl::Status status = cuda::GatherRows(lane.gpu->stream, order.As<int64_t>(), shape.type,
                                         from.View(shape.cols), to->MutableView(shape.cols));
  if (status.ok()) status = ClearPadding(*to, lane);
  // What it reads may go then, and who fails before the kernel lets both go.
  if (absl::Status done = Queued(status, lane); !done.ok()) return done;
  return to;
}

absl::Status GpuBackend::Sum(std::span<const WeightedTerm> terms, const PlacedDense& to,
                             Lane& lane) {
  return Queued(
      cuda::WeightedSum(lane.gpu->stream, terms, to.shape.type, to.MutableView(to.shape.cols)),
      lane);
}

absl::Status GpuBackend::Softmax(const Layout& csr, double scale, const PlacedDense& from,
                                 const PlacedDense* gradient, const PlacedDense& to, Lane& lane) {
  const std::span<const int64_t> rows = ViewCsr(csr).row_offsets;
  cuda::Stream& stream = lane.gpu->stream;
  const int64_t heads = to.shape.cols;
  const Dense result = to.MutableView(heads);
  const ConstDense x = from.View(heads);
  const ElementType type = to.shape.type;
  return Queued(gradient == nullptr ? cuda::RowSoftmax(stream, rows, type, scale, x, result)
                                    : cuda::RowSoftmaxGradient(stream, rows, type, scale, x,
                                                               gradient->View(heads), result),
                lane);
}

absl::Status GpuBackend::ComputeRowProducts(const RowProducts& products, ElementType type,
                                            Lane& lane) {
  absl::StatusOr<Context> context = ContextWith(cuda::RowProductsWorkspace(products, type), lane,
                                                {lane.workspace, memory(MemoryUse::kRequests)});
  if (!context.ok()) return context.status();
  return Queued(cuda::ComputeRowProducts(*context, products, type), lane);
}

absl::Status GpuBackend::ComputeHeadDots(const HeadDots& dots, ElementType type, Lane& lane) {
  return Queued(cuda::ComputeHeadDots(ContextOf(lane, nullptr), dots, type), lane);
}

absl::Status GpuBackend::ScaleNonzeros(const NonzeroScaling& scaling, ElementType type,
                                       Lane& lane) {
  return Queued(cuda::ScaleNonzeros(lane.gpu->stream, scaling, type), lane);
}

absl::Status GpuBackend::TotalNonzeros(const NonzeroTotals& totals, ElementType type, Lane& lane) {
  return Queued(cuda::TotalNonzeros(lane.gpu->stream, totals, type), lane);
}

absl::Status GpuBackend::ComputeEdgeAttention(const EdgeAttention& attention, ElementType type,
                                              Lane& lane, const RunOptions& options) {
  absl::StatusOr<Context> context =
      ContextWith(cuda::EdgeAttentionWorkspace(attention, type), lane, options);
  if (!context.ok()) return context.status();
  return Queued(cuda::ComputeEdgeAttention(*context, attention, type), lane);
}

absl::Status GpuBackend::ComputeEdgeAttentionGradient(const EdgeAttentionGradient& gradient,
                                                      ElementType type, Lane& lane,
                                                      const RunOptions& options) {
  absl::StatusOr<Context> context =
      ContextWith(cuda::EdgeAttentionWorkspace(gradient, type), lane, options);
  if (!context.ok()) return context.status();
  return Queued(cuda::ComputeEdgeAttentionGradient(*context, gradient, type), lane);
}

absl::StatusOr<Context> GpuBackend::ContextWith(size_t workspace, Lane& lane,
                                                const RunOptions& options) {
  const absl::Status grown = GrowWorkspace(options.workspace, workspace, options.memory, lane);
  if (!grown.ok()) return grown;
  Context context = ContextOf(lane, nullptr);
  context.workspace = {options.workspace.mutable_data(), options.workspace.size()};
  return context;
}

absl::StatusOr<std::unique_ptr<Moment>> GpuBackend::Now(Lane& lane) {
  std::vector<cuda::Event>& spare = lane.gpu->spare_events;
  if (spare.empty()) {
    absl::StatusOr<cuda::Event> event = cuda::Event::Create();
    if (!event.ok()) return Checked(event.status());
    spare.push_back(*std::move(event));
  }
  auto moment = std::make_unique<GpuMoment>(std::move(spare.back()), *lane.gpu);
  spare.pop_back();
  if (absl::Status s = moment->Record(lane.gpu->stream); !s.ok()) return Checked(std::move(s));
  return moment;
}

absl::Status GpuBackend::Settle(Lane& lane) {
  const absl::Status done = device_.Settle(lane.gpu->stream);
  if (!std::exchange(lane.fetches, false)) return done;
  const absl::Status fetched = device_.Settle(lane.gpu->second);
  return done.ok() ? fetched : done;
}

absl::Status GpuBackend::AwaitFetched(Lane& lane) {
  if (!lane.fetches) return absl::OkStatus();
  const cuda::DeviceScope scope(device_.ordinal());
  absl::StatusOr<cuda::Event> there = cuda::Event::CreateUntimed();
  if (!there.ok()) return there.status();
  absl::Status status = there->Record(lane.gpu->second);
  if (status.ok()) status = there->Hold(lane.gpu->stream);
  if (status.ok()) lane.fetches = false;
  return status;
}

absl::Status GpuBackend::FetchPart(const FetchedRows::Part& part, GpuBackend* gpu,
                                   const PlacedDense& to, int64_t first,
                                   std::vector<std::shared_ptr<const void>>& kept, Lane& lane) {
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
        no_gaps ? lane.gpu->second.Copy(begin, rows_from.data, count * width)
                : lane.gpu->second.CopyRows(begin, pitch, rows_from.data, from_pitch, width, count);
  } else {
    const absl::StatusOr<std::shared_ptr<const Array>> rows = PlaceIndices(part.rows);
    if (!rows.ok()) return rows.status();
    kept.push_back(*rows);
    status = cuda::GatherRows(lane.gpu->second, (*rows)->As<int64_t>(), shape.type, rows_from,
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
                                    std::vector<std::shared_ptr<const void>>& kept, Lane& lane) {
  const absl::StatusOr<std::shared_ptr<const Array>> indices = PlaceIndices(rows);
  if (!indices.ok()) return indices.status();
  kept.push_back(*indices);
  Dense into = to.MutableView(to.shape.cols);
  const auto row_bytes = static_cast<int64_t>(SizeOf(to.shape.type));
  into.data = static_cast<std::byte*>(into.data) + first * into.leading_dimension * row_bytes;
  into.rows = count;
  device_.CountFromPeers(count * to.shape.cols * row_bytes);
  return cuda::GatherRows(lane.gpu->second, (*indices)->As<int64_t>(), to.shape.type,
                          from.View(to.shape.cols), into);
}

absl::StatusOr<PlacedDense> GpuBackend::FetchRows(const FetchedRows& rows,
                                                  std::span<GpuBackend* const> gpus,
                                                  MemorySource& memory, Lane& lane) {
  absl::StatusOr<PlacedDense> to = NewDense("fetched", rows.shape, memory, lane);
  if (!to.ok()) return to;
  struct Kept {
    std::shared_ptr<const Array> array;
    std::vector<std::shared_ptr<const void>> read;
  };
  const auto kept = std::make_shared<Kept>();
  kept->array = to->array;
  absl::Status status = ClearPadding(*to, lane);
  int64_t first = 0;
  for (size_t i = 0; i < rows.parts.size() && status.ok(); ++i) {
    if (rows.parts[i].count == 0) continue;
    lane.fetches = true;
    status = FetchPart(rows.parts[i], gpus[i], *to, first, kept->read, lane);
    first += rows.parts[i].count;
  }
  if (!status.ok()) {
    // Some may be on their way.
    Settle(lane).IgnoreError();
    return status;
  }
  to->array = std::shared_ptr<const Array>(kept, kept->array.get());
  return to;
}

absl::Status GpuBackend::Queued(absl::Status status, Lane& lane) {
  if (lane.queues) return status;
  const absl::Status done = Settle(lane);
  return status.ok() ? done : status;
}

absl::Status GpuBackend::GrowWorkspace(Buffer& workspace, size_t bytes, MemorySource& memory,
                                       Lane& lane) {
  if (lane.queues && bytes > workspace.size()) {
    if (absl::Status s = Settle(lane); !s.ok()) return s;
  }
  return Grow(workspace, bytes, memory);
}

absl::Status GpuBackend::Repeat(const Array& period, Array& to, Lane& lane) {
  cuda::Stream& stream = lane.gpu->stream;
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

absl::Status GpuBackend::ClearPadding(const PlacedDense& dense, Lane& lane) {
  if (dense.width() == dense.shape.cols) return absl::OkStatus();
  const PitchedRows rows = RowsOf(dense.shape, dense.shape);
  Array written = *dense.array;
  return lane.gpu->stream.FillRows(written.buffer.mutable_data() + rows.row_bytes,
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
                               MemorySource& memory, Lane& lane, const Arrived& arrived) {
  const Array& array = *result.array;
  absl::StatusOr<Array> host = AllocateArray(memory, array.name, array.type, shape.elements());
  if (!host.ok()) return host.status();
  std::byte* const to = host->buffer.mutable_data();
  if (!result.padded) {
    return device_.CopyOut(lane.gpu->stream, to, array.buffer.data(), host->bytes(),
                           [&](size_t bytes) { arrived(*host, bytes); });
  }
  const PitchedRows rows = RowsOf(shape, result.shape);
  ClearGaps(*host, shape);
  return device_.CopyRowsOut(lane.gpu->stream, to, array.buffer.data(), rows, [&](size_t count) {
    // Behind the last row there is no gap.
    arrived(*host, std::min(count * rows.host_pitch, host->bytes()));
  });
}

absl::Status GpuBackend::FetchInto(const PlacedDense& result, const DenseShape& shape, Array& into,
                                   Lane& lane) {
  return device_.CopyRowsOut(lane.gpu->stream, into.buffer.mutable_data(),
                             result.array->buffer.data(), RowsOf(shape, result.shape));
}

absl::Status GpuBackend::Run(Lane& lane, const BoundRun& run, const RunOptions& options,
                             double* milliseconds) {
  Context context = ContextOf(lane, options.stop);
  // What is queued may use what would go for it.
  const auto now = std::chrono::steady_clock::now();
  if (lane.queues && run.prepares() && !lane.gpu->prepared.Has(run, now)) {
    if (absl::Status s = Settle(lane); !s.ok()) return s;
  }
  context.prepared =
      lane.gpu->prepared.For(run, context, device_.budget().SpareSource(MemoryUse::kLayouts), now);
  // What is prepared needs none.
  if (context.prepared == nullptr) {
    const absl::Status grown =
        GrowWorkspace(options.workspace, run.Workspace(context.threads), options.memory, lane);
    if (!grown.ok()) return grown;
    context.workspace = {options.workspace.mutable_data(), options.workspace.size()};
  }
  if (lane.queues) return run.Run(context);
  const absl::StatusOr<double> timed = device_.Timed(
      *lane.gpu, [&] { return run.Run(context); }, options.behind);
  if (timed.ok()) *milliseconds = *timed;
  return timed.status();
}

}  // namespace sparsed::engine
