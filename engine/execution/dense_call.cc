#include "engine/execution/dense_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace sparsed::engine {
namespace {

/// What GPU kernels read at once.
constexpr size_t kWideBytes = 16;
/// Elements of a row: longer ones gain nothing.
constexpr int64_t kMostPadded = 1 << 16;

/// Rows of a matrix that the device has in another shape.
PitchedRows RowsOf(const DenseShape& host, const DenseShape& device) {
  const size_t size = SizeOf(host.type);
  return {.rows = static_cast<size_t>(host.rows),
          .row_bytes = static_cast<size_t>(host.cols) * size,
          .host_pitch = static_cast<size_t>(host.leading_dimension) * size,
          .device_pitch = static_cast<size_t>(device.leading_dimension) * size};
}

/// `array` in a shape of ShapeOnDevice.
DenseOnDevice Padded(std::shared_ptr<const Array> array, const DenseShape& there) {
  return {std::move(array), there, /*repacked=*/true};
}
DenseOnDevice AsItIs(std::shared_ptr<const Array> array, const DenseShape& shape) {
  return {std::move(array), shape, /*repacked=*/false};
}

/// Memory for a matrix in a shape of ShapeOnDevice.
absl::StatusOr<Array> NewPadded(MemorySource& memory, std::string_view name,
                                const DenseShape& there) {
  return AllocateArray(memory, name, there.type, there.rows * there.leading_dimension);
}

/// Zeros the gaps between the rows: what was in that memory before is nobody's business.
void ClearGaps(Array& array, const DenseShape& shape) {
  const size_t size = SizeOf(shape.type);
  for (int64_t row = 0; row + 1 < shape.rows; ++row) {
    std::memset(array.buffer.mutable_data() + (row * shape.leading_dimension + shape.cols) * size,
                0, (shape.leading_dimension - shape.cols) * size);
  }
}

/// A shape that a request or a held matrix promises, before anything is read or written by it.
absl::Status CheckHolds(const Array& array, const DenseShape& shape) {
  if (array.length >= shape.elements() && array.type == shape.type) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("an array of {} {} elements was to be {} x {} {} with a leading dimension of {}",
                  array.length, Name(array.type), shape.rows, shape.cols, Name(shape.type),
                  shape.leading_dimension));
}

}  // namespace

ConstDense View(const Array& array, const DenseShape& shape) {
  return {array.buffer.data(), shape.rows, shape.cols, shape.leading_dimension};
}

std::optional<DenseShape> ShapeOnDevice(const DenseShape& shape) {
  const auto wide = static_cast<int64_t>(kWideBytes / SizeOf(shape.type));
  DenseShape there = shape;
  if (shape.cols <= 1) {
    there.leading_dimension = shape.cols;
    if (shape.leading_dimension == shape.cols) return std::nullopt;
    return there;
  }
  if (shape.cols % wide == 0 && shape.leading_dimension % wide == 0) return std::nullopt;
  there.leading_dimension = (shape.cols + wide - 1) / wide * wide;
  const bool small = there.leading_dimension <= 2 * shape.cols;
  if (!small || there.leading_dimension > kMostPadded) return std::nullopt;
  return there;
}

int64_t WidthOnDevice(const DenseOnDevice& one, const DenseOnDevice& other) {
  return one.width() == other.width() ? one.width() : one.shape.cols;
}

void CopyRows(const Array& from, const DenseShape& from_shape, Array& to,
              const DenseShape& to_shape) {
  const size_t size = SizeOf(to_shape.type);
  for (int64_t row = 0; row < to_shape.rows; ++row) {
    std::memcpy(to.buffer.mutable_data() + row * to_shape.leading_dimension * size,
                from.buffer.data() + row * from_shape.leading_dimension * size,
                to_shape.cols * size);
  }
}

std::vector<std::shared_ptr<LazyArray>> HeldOperands(const Executor::Impl& impl,
                                                     const std::string& tenant,
                                                     const std::vector<std::string>& names) {
  std::vector<std::shared_ptr<LazyArray>> operands;
  for (const std::string& name : names) {
    if (name.empty()) continue;
    // Those that there are not are told of when they are looked up to be used.
    absl::StatusOr<HeldDenseLease> held = impl.dense.Find(tenant, name);
    if (held.ok()) operands.push_back((*held)->elements);
  }
  return operands;
}

DenseCall::DenseCall(std::shared_ptr<Executor::Impl> impl, Device* gpu, std::string tenant,
                     std::shared_ptr<ResultSink> sink, MatrixLease matrix)
    : Job(impl->scheduler, std::move(tenant), std::move(sink),
          gpu == nullptr ? DeviceId{} : gpu->id()),
      impl_(std::move(impl)),
      gpu_(gpu),
      matrix_(std::move(matrix)) {
  end_.version = matrix_->version();
}

DenseCall::~DenseCall() {
  if (!pieces_under_way_) return;
  // Copies into memory that is about to be somebody else's. This may be a thread that must not
  // wait for them.
  std::vector<Buffer> destinations;
  for (Operand& operand : operands_) {
    if (!operand.on_device) continue;
    destinations.push_back(operand.assembler.array().buffer);
    destinations.push_back(std::move(operand.array.buffer));
  }
  gpu_device().KeepUntilSent(std::move(destinations));
}

absl::StatusOr<std::byte*> DenseCall::Claim(uint32_t array, uint64_t offset, uint64_t size) {
  for (Operand& operand : operands_) {
    if (!operand.streamed || operand.stream_array != array) continue;
    absl::StatusOr<std::byte*> to = operand.assembler.Claim(offset, size);
    if (absl::IsUnavailable(to.status())) return gpu_device().Checked(to.status());
    operand.on_device = operand.memory->on_device();
    if (!to.ok() || !operand.on_device || size == 0) return to;
    piece_ = gpu_device().TakePieceBlock(size);
    if (piece_) {
      piece_to_ = *to;
      piece_bytes_ = size;
      return piece_.data();
    }
    // To copy it from here would make this thread wait for the device.
    absl::StatusOr<Buffer> late = impl_->budget.Source(MemoryUse::kRequests).Allocate(size);
    if (!late.ok()) {
      lost_ = true;
      return late.status();
    }
    operand.late.push_back({offset, size, *std::move(late)});
    operand.late_bytes += size + Operand::kLateBytes;
    return operand.late.back().bytes.mutable_data();
  }
  return absl::InvalidArgumentError(
      fmt::format("no operand of the request is announced as array {}", array));
}

absl::Status DenseCall::Commit() {
  if (!piece_) return absl::OkStatus();
  pieces_under_way_ = true;
  return gpu_device().SendPiece(piece_to_, std::exchange(piece_, {}), piece_bytes_);
}

bool DenseCall::complete() const {
  return !lost_ && std::all_of(operands_.begin(), operands_.end(), [](const Operand& o) {
    return !o.streamed || o.assembler.complete();
  });
}

std::string DenseCall::Missing() const {
  for (const Operand& operand : operands_) {
    if (!operand.streamed || operand.assembler.complete()) continue;
    return fmt::format("operand {} has {} of {} bytes", operand.assembler.array().name,
                       operand.assembler.received(), operand.assembler.array().bytes());
  }
  return Job::Missing();
}

size_t DenseCall::announced() const {
  size_t bytes = 0;
  for (const Operand& operand : operands_) bytes += operand.assembler.array().bytes();
  return bytes;
}

size_t DenseCall::counted() const {
  size_t bytes = 0;
  for (const Operand& operand : operands_) {
    bytes += operand.assembler.counted() + operand.late_bytes;
  }
  return bytes;
}

void DenseCall::Drop() {
  destination_ = DenseWrite();
  matrix_.reset();
}

Job::Loader DenseCall::ToLoad() const {
  std::vector<Loader> loaders = {
      LoaderOf(matrix_, Asked(operands_.front().shape.cols, device().kind))};
  for (const Operand& operand : operands_) {
    if (operand.held == nullptr) continue;
    const bool on_device = gpu_ != nullptr && gpu_->residency().PresenceOf(operand.held) !=
                                                  Residency::Presence::kNothing;
    if (!on_device) loaders.push_back(LoaderOf(operand.held));
  }
  return LoaderOf(std::move(loaders));
}

Job::Next DenseCall::Run(Lane& lane, absl::Status* end) {
  if (lane.gpu == nullptr) {
    *end = RunOnCpu(lane);
    return Next::kEnded;
  }
  const auto elsewhere = [&](const absl::Status& status) {
    return !sent_ && (absl::IsResourceExhausted(status) || absl::IsUnimplemented(status));
  };
  // What stopped it says nothing of the device.
  const auto checked = [&](absl::Status status) {
    return token().stopped() ? status : gpu_device().Checked(std::move(status));
  };
  *end = checked(RunOnDevice(*lane.gpu));
  if (!elsewhere(*end)) return Next::kEnded;
  // Without room on the host either, what the device said stands.
  if (absl::Status home = BringHome(); !home.ok()) {
    if (!absl::IsResourceExhausted(home)) *end = std::move(home);
    return Next::kEnded;
  }
  lane.gpu->prepared.Clear();  // it may be what there is no room for
  *end = checked(RunInSlabs(*lane.gpu));
  if (!elsewhere(*end)) return Next::kEnded;
  MoveTo(DeviceId{});
  return Next::kAgain;
}

absl::Status DenseCall::BringHome() {
  for (Operand& operand : operands_) {
    if (!operand.streamed || !operand.on_device) continue;
    if (operand.assembler.array().buffer.size() > 0) {
      absl::StatusOr<Array> array = operand.assembler.Finish();
      if (!array.ok()) return array.status();
      operand.array = *std::move(array);
    }
    if (absl::Status s = gpu_device().DrainPieces(); !s.ok()) return s;
    absl::StatusOr<Array> home =
        gpu_device().ToHost(operand.array, impl_->budget.Source(MemoryUse::kRequests));
    if (!home.ok()) return home.status();
    for (const Operand::Late& late : operand.late) {
      if (token().stopped()) return token().status();
      std::memcpy(home->buffer.mutable_data() + late.offset, late.bytes.data(), late.size);
    }
    operand.late.clear();
    operand.array = *std::move(home);
    operand.on_device = false;
  }
  pieces_under_way_ = false;
  return absl::OkStatus();
}

absl::Status DenseCall::AddOperand(std::string_view what, const std::string& tenant,
                                   const OperandSpec& spec, int64_t rows, int64_t cols) {
  Operand operand;
  if (spec.held.empty()) {
    if (!spec.shape.has_value()) {
      return absl::InvalidArgumentError(
          fmt::format("operand {} needs a shape or the name of a held matrix", what));
    }
    operand.shape = *spec.shape;
    operand.streamed = true;
    operand.stream_array = spec.stream_array;
    for (const Operand& other : operands_) {
      if (other.streamed && other.stream_array == spec.stream_array) {
        return absl::InvalidArgumentError(
            fmt::format("two operands are announced as array {} of the stream", spec.stream_array));
      }
    }
  } else {
    absl::StatusOr<HeldDenseLease> held = impl_->dense.Find(tenant, spec.held);
    if (!held.ok()) return held.status();
    operand.shape = (*held)->shape;
    operand.held = (*held)->elements;
    if (spec.shape.has_value() &&
        (spec.shape->rows != operand.shape.rows || spec.shape->cols != operand.shape.cols ||
         spec.shape->type != operand.shape.type)) {
      return absl::InvalidArgumentError(fmt::format(
          "operand {} is announced as {} x {} {}, but the held matrix '{}' is {} x {} {}", what,
          spec.shape->rows, spec.shape->cols, Name(spec.shape->type), spec.held, operand.shape.rows,
          operand.shape.cols, Name(operand.shape.type)));
    }
  }
  if (operand.shape.leading_dimension == 0) operand.shape.leading_dimension = operand.shape.cols;
  if (absl::Status status = ValidateShape(fmt::format("operand {}", what), operand.shape);
      !status.ok())
    return status;
  if (operand.shape.type != matrix_->type()) {
    return absl::InvalidArgumentError(fmt::format("operand {} is {}, but matrix '{}' is {}", what,
                                                  Name(operand.shape.type), matrix_->name(),
                                                  Name(matrix_->type())));
  }
  if (operand.shape.rows != rows || (cols >= 0 && operand.shape.cols != cols)) {
    return absl::InvalidArgumentError(fmt::format("operand {} is {} x {}, expected {} x {}", what,
                                                  operand.shape.rows, operand.shape.cols, rows,
                                                  cols >= 0 ? fmt::to_string(cols) : "K"));
  }
  if (operand.streamed) {
    const int64_t elements = operand.shape.elements();
    const size_t bytes = static_cast<size_t>(elements) * SizeOf(operand.shape.type);
    // What cannot fit is refused before it is sent; memory is taken as it comes.
    if (gpu_ == nullptr || static_cast<int64_t>(bytes) > gpu_->budget().limit()) {
      if (absl::Status s = CheckRoom(impl_->budget, MemoryUse::kRequests, bytes); !s.ok()) return s;
    }
    auto memory = std::make_unique<OperandMemory>(gpu_, impl_->budget, bytes);
    operand.memory = memory.get();
    operand.assembler =
        ArrayAssembler({std::string(what), operand.shape.type, elements, {}}, std::move(memory));
  }
  operands_.push_back(std::move(operand));
  return absl::OkStatus();
}

absl::Status DenseCall::SetResult(const std::string& tenant, const std::string& held,
                                  DenseShape shape) {
  if (shape.leading_dimension == 0) shape.leading_dimension = shape.cols;
  result_shape_ = shape;
  if (held.empty()) return ValidateShape("the result", shape);
  absl::StatusOr<DenseWrite> write = impl_->dense.BeginWrite(tenant, held);
  if (!write.ok()) return write.status();
  const DenseShape& there = write->base()->shape;
  if (there.rows != shape.rows || there.cols != shape.cols || there.type != shape.type) {
    return absl::InvalidArgumentError(
        fmt::format("the result is {} x {} {}, but the held matrix '{}' is {} x {} {}", shape.rows,
                    shape.cols, Name(shape.type), held, there.rows, there.cols, Name(there.type)));
  }
  result_shape_ = there;
  destination_ = *std::move(write);
  keep_result_ = true;
  return absl::OkStatus();
}

absl::Status DenseCall::MayFit(bool new_result) const {
  if (gpu_ != nullptr) return absl::OkStatus();
  const auto bytes = [](const DenseShape& shape) {
    return static_cast<size_t>(shape.elements()) * SizeOf(shape.type);
  };
  // Operands may fit each, and a result is below 2^63: no overflow.
  size_t all = new_result ? bytes(result_shape_) : 0;
  for (const Operand& operand : operands_) all += operand.streamed ? bytes(operand.shape) : 0;
  return impl_->budget.MayFit(all, MemoryUse::kRequests);
}

absl::StatusOr<Array> DenseCall::OnHost(Operand& operand) {
  if (!operand.streamed) {
    absl::StatusOr<Array> held = operand.held->Get();
    if (!held.ok()) return held;
    if (absl::Status s = CheckHolds(*held, operand.shape); !s.ok()) return s;
    return held;
  }
  if (operand.assembler.array().buffer.size() > 0 || operand.shape.elements() == 0) {
    absl::StatusOr<Array> array = operand.assembler.Finish();
    if (!array.ok()) return array.status();
    operand.array = *std::move(array);
  }
  return operand.array;
}

absl::StatusOr<DenseOnDevice> DenseCall::OnDevice(Operand& operand, DeviceLane& gpu) {
  Device& device = gpu_device();
  const std::optional<DenseShape> there = ShapeOnDevice(operand.shape);
  const auto placed = [&](std::shared_ptr<const Array> array) {
    return there ? Padded(std::move(array), *there) : AsItIs(std::move(array), operand.shape);
  };
  if (!operand.streamed) {
    absl::StatusOr<std::shared_ptr<const Array>> held = device.residency().Place(
        operand.held, there ? std::optional(RowsOf(operand.shape, *there)) : std::nullopt);
    if (!held.ok()) return held.status();
    if (absl::Status s = CheckHolds(**held, there.value_or(operand.shape)); !s.ok()) return s;
    return placed(*std::move(held));
  }
  if (operand.on_device) {
    absl::StatusOr<Array> array = operand.assembler.Finish();
    if (!array.ok()) return array.status();
    operand.array = *std::move(array);
    for (const Operand::Late& late : operand.late) {
      // There may be very many.
      if (token().stopped()) return token().status();
      absl::Status copied =
          device.CopyIn(gpu.stream, operand.array.buffer.mutable_data() + late.offset,
                        late.bytes.data(), late.size);
      if (!copied.ok()) return copied;
    }
    operand.late.clear();
    if (absl::Status s = device.AwaitPieces(gpu.stream); !s.ok()) return s;
    if (there) return PaddedThere(operand, *there, gpu);
    return AsItIs(std::make_shared<const Array>(operand.array), operand.shape);
  }
  absl::StatusOr<Array> host = OnHost(operand);
  if (!host.ok()) return host.status();
  MemorySource& memory = device.budget().Source(MemoryUse::kRequests);
  absl::StatusOr<Array> array = there ? NewPadded(memory, host->name, *there)
                                      : AllocateArray(memory, host->name, host->type, host->length);
  if (!array.ok()) return array.status();
  std::byte* const to = array->buffer.mutable_data();
  const absl::Status copied =
      there ? device.CopyRowsIn(gpu.stream, to, host->buffer.data(), RowsOf(operand.shape, *there))
            : device.CopyIn(gpu.stream, to, host->buffer.data(), host->bytes());
  if (!copied.ok()) return copied;
  return placed(std::make_shared<const Array>(*std::move(array)));
}

absl::StatusOr<DenseOnDevice> DenseCall::PaddedThere(const Operand& operand,
                                                     const DenseShape& there, DeviceLane& gpu) {
  absl::StatusOr<Array> padded =
      NewPadded(gpu_device().budget().SpareSource(MemoryUse::kRequests), operand.array.name, there);
  if (absl::IsResourceExhausted(padded.status())) {
    return AsItIs(std::make_shared<const Array>(operand.array), operand.shape);
  }
  if (!padded.ok()) return padded.status();
  const PitchedRows rows = RowsOf(operand.shape, there);
  std::byte* const to = padded->buffer.mutable_data();
  absl::Status status = gpu.stream.FillRows(to + rows.row_bytes, rows.device_pitch, 0,
                                            rows.device_pitch - rows.row_bytes, rows.rows);
  if (status.ok()) {
    status = gpu.stream.CopyRows(to, rows.device_pitch, operand.array.buffer.data(),
                                 rows.host_pitch, rows.row_bytes, rows.rows);
  }
  // Who fails before the kernel lets the memory go.
  const absl::Status done = gpu_device().Settle(gpu.stream);
  if (status.ok()) status = done;
  if (!status.ok()) return status;
  return Padded(std::make_shared<const Array>(*std::move(padded)), there);
}

absl::StatusOr<DenseCall::OnDeviceSparse> DenseCall::PlaceSparse(
    const std::shared_ptr<const Layout>& layout, bool with_values) {
  OnDeviceSparse sparse;
  absl::StatusOr<std::shared_ptr<const Layout>> there = gpu_device().residency().Place(layout);
  if (!there.ok()) return there.status();
  sparse.layout = *std::move(there);
  if (!with_values) return sparse;
  absl::StatusOr<Array> host = matrix_->Values();
  if (!host.ok()) return host.status();
  absl::StatusOr<std::shared_ptr<const Array>> values =
      gpu_device().residency().PlaceValues(*host, layout, host_memory());
  if (!values.ok()) return values.status();
  sparse.values = *std::move(values);
  return sparse;
}

absl::StatusOr<Array> DenseCall::NewResult(std::string_view name, const DenseShape& shape) {
  absl::StatusOr<Array> result =
      AllocateArray(impl_->budget.Source(keep_result_ ? MemoryUse::kBuffers : MemoryUse::kRequests),
                    name, shape.type, shape.elements());
  if (result.ok() && shape.leading_dimension > shape.cols) ClearGaps(*result, shape);
  return result;
}

absl::StatusOr<DenseOnDevice> DenseCall::NewDeviceResult(std::string_view name, DeviceLane& gpu) {
  MemorySource& memory =
      gpu_device().budget().Source(keep_result_ ? MemoryUse::kBuffers : MemoryUse::kRequests);
  const std::optional<DenseShape> there = ShapeOnDevice(result_shape_);
  absl::StatusOr<Array> result =
      there ? NewPadded(memory, name, *there)
            : AllocateArray(memory, name, result_shape_.type, result_shape_.elements());
  if (!result.ok()) return result.status();
  if (there) return Padded(std::make_shared<const Array>(*std::move(result)), *there);
  if (result_shape_.leading_dimension > result_shape_.cols) {
    absl::Status filled = gpu.stream.Fill(result->buffer.mutable_data(), 0, result->bytes());
    // Who fails before the kernel lets the memory go.
    if (filled.ok()) filled = gpu_device().Settle(gpu.stream);
    if (!filled.ok()) return filled;
  }
  return AsItIs(std::make_shared<const Array>(*std::move(result)), result_shape_);
}

void DenseCall::SendBegin(const std::string& plan, std::string_view name) {
  CallBegin begin{plan, 0, result_shape_.rows, result_shape_.cols, {}};
  if (!keep_result_)
    begin.arrays.push_back({std::string(name), result_shape_.type, result_shape_.elements()});
  sent_ = true;
  sink().OnBegin(std::move(begin));
}

absl::Status DenseCall::SendResult(Array result) {
  if (absl::Status s = CheckHolds(result, result_shape_); !s.ok()) return s;
  if (keep_result_) return destination_.Publish(std::make_shared<LazyArray>(std::move(result)));
  sink().OnArray(0, 0, std::move(result));
  return absl::OkStatus();
}

absl::Status DenseCall::SendDeviceResult(DenseOnDevice result, DeviceLane& gpu) {
  if (absl::Status s = CheckHolds(*result.array, result.shape); !s.ok()) return s;
  Device& device = gpu_device();
  const PitchedRows rows = RowsOf(result_shape_, result.shape);
  if (keep_result_) {
    const auto held = std::make_shared<LazyArray>(
        [&device, &budget = impl_->budget, there = result.array, repacked = result.repacked, rows,
         length = result_shape_.elements()](LazyArray::Stop) {
          MemorySource& memory = budget.Source(MemoryUse::kBuffers);
          absl::StatusOr<Array> host = repacked ? device.ToHost(*there, rows, length, memory)
                                                : device.ToHost(*there, memory);
          if (!absl::IsUnavailable(host.status())) return host;
          // Lest another device that needs it seem lost, too.
          return absl::StatusOr<Array>(absl::DataLossError(fmt::format(
              "it was only on {}: {}", device.name(), std::string(host.status().message()))));
        });
    device.residency().Adopt(held, std::move(result.array));
    return destination_.Publish(held);
  }
  const Array& array = *result.array;
  absl::StatusOr<Array> host = result.repacked
                                   ? NewResult(array.name, result_shape_)
                                   : AllocateArray(impl_->budget.Source(MemoryUse::kRequests),
                                                   array.name, array.type, array.length);
  if (!host.ok()) return host.status();
  size_t sent = 0;
  const auto arrived = [&](size_t bytes) {
    const auto length = static_cast<int64_t>((bytes - sent) / SizeOf(array.type));
    sink().OnArray(0, sent,
                   {host->name, array.type, length, host->buffer.Part(sent, bytes - sent)});
    sent = bytes;
  };
  if (!result.repacked) {
    return device.CopyOut(gpu.stream, host->buffer.mutable_data(), array.buffer.data(),
                          array.bytes(), arrived);
  }
  return device.CopyRowsOut(gpu.stream, host->buffer.mutable_data(), array.buffer.data(), rows,
                            [&](size_t count) {
                              // Behind the last row there is no gap.
                              arrived(std::min(count * rows.host_pitch, host->bytes()));
                            });
}

absl::Status DenseCall::ClearGap(const DenseOnDevice& result, DeviceLane& gpu) {
  if (!keep_result_ || result.width() == result_shape_.cols) return absl::OkStatus();
  const PitchedRows rows = RowsOf(result_shape_, result.shape);
  Array there = *result.array;
  return gpu.stream.FillRows(there.buffer.mutable_data() + rows.row_bytes, rows.device_pitch, 0,
                             rows.device_pitch - rows.row_bytes, rows.rows);
}

absl::Status DenseCall::TimedOnDevice(DeviceLane& gpu, const std::function<absl::Status()>& queue,
                                      const std::function<absl::Status()>& queue_behind) {
  const absl::StatusOr<double> milliseconds = gpu_device().Timed(gpu, queue, queue_behind);
  if (!milliseconds.ok()) return milliseconds.status();
  pieces_under_way_ = false;
  end_.timings.kernel_ns += static_cast<uint64_t>(*milliseconds * 1e6);
  return absl::OkStatus();
}

Context DenseCall::DeviceContext(DeviceLane& gpu) const {
  return {.threads = 1,
          .workspace = {gpu.workspace.mutable_data(), gpu.workspace.size()},
          .stop = token().flag(),
          .stream = gpu.stream.handle()};
}

}  // namespace sparsed::engine
