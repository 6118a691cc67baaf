#include "engine/execution/dense_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace sparsed::engine {
namespace {

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

void CopyRows(const Array& from, const DenseShape& from_shape, Array& to,
              const DenseShape& to_shape) {
  const size_t size = SizeOf(to_shape.type);
  for (int64_t row = 0; row < to_shape.rows; ++row) {
    std::memcpy(to.buffer.mutable_data() + row * to_shape.leading_dimension * size,
                from.buffer.data() + row * from_shape.leading_dimension * size,
                to_shape.cols * size);
  }
}

DenseCall::DenseCall(std::shared_ptr<Executor::Impl> impl, std::string tenant,
                     std::shared_ptr<ResultSink> sink, MatrixLease matrix)
    : Job(impl->scheduler, std::move(tenant), std::move(sink), impl->first_choice()),
      impl_(std::move(impl)),
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
    if (!late.ok()) return late.status();
    operand.late.push_back({offset, size, *std::move(late)});
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
  return std::all_of(operands_.begin(), operands_.end(),
                     [](const Operand& o) { return !o.streamed || o.assembler.complete(); });
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
  for (const Operand& operand : operands_) bytes += operand.assembler.counted();
  return bytes;
}

void DenseCall::Drop() {
  destination_ = DenseWrite();
  matrix_.reset();
}

Job::Loader DenseCall::ToLoad() const {
  std::vector<Loader> loads;
  if (Loader load = LoaderOf(matrix_)) loads.push_back(std::move(load));
  for (const Operand& operand : operands_) {
    if (operand.held != nullptr && operand.held->on_disk()) {
      loads.emplace_back(
          [held = operand.held](Store::Stop stop) { held->Get(stop).status().IgnoreError(); });
    }
  }
  if (loads.empty()) return nullptr;
  return [loads = std::move(loads)](Store::Stop stop) {
    for (const Loader& load : loads) load(stop);
  };
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
  MoveTo(DeviceKind::kCpu);
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
    Device* const there = device() == DeviceKind::kCuda ? impl_->device : nullptr;
    // What cannot fit is refused before it is sent; memory is taken as it comes.
    if (there == nullptr || static_cast<int64_t>(bytes) > there->budget().limit()) {
      if (absl::Status s = CheckRoom(impl_->budget, MemoryUse::kRequests, bytes); !s.ok()) return s;
    }
    auto memory =
        std::make_unique<OperandMemory>(there, impl_->arriving_on_device, impl_->budget, bytes);
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
  if (device() != DeviceKind::kCpu) return absl::OkStatus();
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

absl::StatusOr<std::shared_ptr<const Array>> DenseCall::OnDevice(Operand& operand,
                                                                 DeviceLane& gpu) {
  Device& device = gpu_device();
  if (!operand.streamed) {
    absl::StatusOr<std::shared_ptr<const Array>> held = device.residency().Place(operand.held);
    if (!held.ok()) return held;
    if (absl::Status s = CheckHolds(**held, operand.shape); !s.ok()) return s;
    return held;
  }
  if (operand.on_device) {
    absl::StatusOr<Array> array = operand.assembler.Finish();
    if (!array.ok()) return array.status();
    operand.array = *std::move(array);
    for (const Operand::Late& late : operand.late) {
      absl::Status copied =
          device.CopyIn(gpu.stream, operand.array.buffer.mutable_data() + late.offset,
                        late.bytes.data(), late.size);
      if (!copied.ok()) return copied;
    }
    operand.late.clear();
    if (absl::Status s = device.AwaitPieces(gpu.stream); !s.ok()) return s;
    return std::make_shared<const Array>(operand.array);
  }
  absl::StatusOr<Array> host = OnHost(operand);
  if (!host.ok()) return host.status();
  absl::StatusOr<Array> there = AllocateArray(device.budget().Source(MemoryUse::kRequests),
                                              host->name, host->type, host->length);
  if (!there.ok()) return there.status();
  if (absl::Status s = device.CopyIn(gpu.stream, there->buffer.mutable_data(), host->buffer.data(),
                                     host->bytes());
      !s.ok()) {
    return s;
  }
  return std::make_shared<const Array>(*std::move(there));
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

absl::StatusOr<Array> DenseCall::NewDeviceResult(std::string_view name, DeviceLane& gpu) {
  absl::StatusOr<Array> result = AllocateArray(
      gpu_device().budget().Source(keep_result_ ? MemoryUse::kBuffers : MemoryUse::kRequests), name,
      result_shape_.type, result_shape_.elements());
  if (result.ok() && result_shape_.leading_dimension > result_shape_.cols) {
    absl::Status filled = gpu.stream.Fill(result->buffer.mutable_data(), 0, result->bytes());
    // Who fails before the kernel lets the memory go.
    if (filled.ok()) filled = gpu_device().Settle(gpu.stream);
    if (!filled.ok()) return filled;
  }
  return result;
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

absl::Status DenseCall::SendDeviceResult(Array result, DeviceLane& gpu) {
  if (absl::Status s = CheckHolds(result, result_shape_); !s.ok()) return s;
  Device& device = gpu_device();
  if (keep_result_) {
    auto there = std::make_shared<const Array>(std::move(result));
    const auto held = std::make_shared<LazyArray>(
        [&device, &budget = impl_->budget, there](LazyArray::Stop) {
          return device.ToHost(*there, budget.Source(MemoryUse::kBuffers));
        },
        LazyArray::Where::kDevice);
    device.residency().Adopt(held, std::move(there));
    return destination_.Publish(held);
  }
  absl::StatusOr<Array> host = AllocateArray(impl_->budget.Source(MemoryUse::kRequests),
                                             result.name, result.type, result.length);
  if (!host.ok()) return host.status();
  size_t sent = 0;
  return device.CopyOut(
      gpu.stream, host->buffer.mutable_data(), result.buffer.data(), result.bytes(),
      [&](size_t arrived) {
        const auto length = static_cast<int64_t>((arrived - sent) / SizeOf(result.type));
        sink().OnArray(0, sent,
                       {host->name, result.type, length, host->buffer.Part(sent, arrived - sent)});
        sent = arrived;
      });
}

absl::Status DenseCall::TimedOnDevice(DeviceLane& gpu, const std::function<absl::Status()>& queue) {
  const absl::StatusOr<double> milliseconds = gpu_device().Timed(gpu, queue);
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
