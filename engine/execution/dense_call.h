// What SpMM and SDDMM calls have in common: dense operands in, one kernel run, a dense result out.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/execution/executor_impl.h"
#include "engine/execution/operand_memory.h"
#include "engine/memory/device.h"

namespace sparsed::engine {

/// A dense operand: in the stream (then it is put together here, in the memory of the device that
/// will use it), or held.
struct Operand {
  /// Bytes that came when all blocks to the device were taken: a lane takes them there.
  struct Late {
    size_t offset, size;
    Buffer bytes;
  };
  /// What one takes besides its bytes, roughly: they may be few.
  static constexpr size_t kLateBytes = 256;

  DenseShape shape;
  bool streamed = false;
  uint32_t stream_array = 0;
  bool on_device = false;    ///< where a streamed one is put together, known with its first bytes
  ArrayAssembler assembler;  ///< of a streamed one
  const OperandMemory* memory = nullptr;  ///< the assembler's
  std::vector<Late> late;
  size_t late_bytes = 0;  ///< of all that came late, with kLateBytes each
  Array array;            ///< a streamed one, once it was taken from the assembler
  std::shared_ptr<LazyArray> held;
};

ConstDense View(const Array& array, const DenseShape& shape);

/// How the device has a matrix of this shape, if not as it is: rows begin at multiples of 16 bytes,
/// to be read by so many at once, and zeros follow them; a single column has no gaps. None: as it
/// is, rows are very long, or padding would more than double them. It is the same for the same
/// shape every time.
std::optional<DenseShape> ShapeOnDevice(const DenseShape& shape);

/// A dense matrix on the device.
struct DenseOnDevice {
  std::shared_ptr<const Array> array;
  DenseShape shape;       ///< as it is there
  bool repacked = false;  ///< by ShapeOnDevice: the array has all of its last row's gap, too

  /// Columns, and the zeros behind them that may be computed with.
  int64_t width() const { return repacked ? shape.leading_dimension : shape.cols; }
};
/// What a kernel computes: K, or, where all have as many zeros behind, up to those.
int64_t WidthOnDevice(const DenseOnDevice& one, const DenseOnDevice& other);

/// Runs on the GPU that it was given; what finds no room there, or has none, moves to the CPU.
class DenseCall : public Job {
 public:
  /// `gpu` may be null.
  DenseCall(std::shared_ptr<Executor::Impl> impl, Device* gpu, std::string tenant,
            std::shared_ptr<ResultSink> sink, MatrixLease matrix);
  ~DenseCall() override;

  absl::StatusOr<std::byte*> Claim(uint32_t array, uint64_t offset, uint64_t size) override;
  absl::Status Commit() override;
  bool complete() const override;
  std::string Missing() const override;
  size_t announced() const override;
  size_t counted() const override;

 protected:
  Next Run(Lane& lane, absl::Status* end) final;
  void Drop() override;
  Loader ToLoad() const override;
  /// What it asks for, with that K and on such a device.
  virtual Problem Asked(int64_t k, DeviceKind device) const = 0;
  virtual absl::Status RunOnCpu(Lane& lane) = 0;
  /// RESOURCE_EXHAUSTED before anything was sent: it runs elsewhere instead.
  virtual absl::Status RunOnDevice(DeviceLane& gpu) = 0;
  /// Likewise, in parts that fit, its operands being on the host.
  virtual absl::Status RunInSlabs(DeviceLane& gpu) = 0;

  /// Resolves one operand and prepares for its bytes. `cols` is -1 where the operand itself defines
  /// it.
  absl::Status AddOperand(std::string_view what, const std::string& tenant, const OperandSpec& spec,
                          int64_t rows, int64_t cols);
  /// Where the result goes: `result_shape_` is complete afterwards.
  absl::Status SetResult(const std::string& tenant, const std::string& held, DenseShape shape);

  /// The operand in host memory.
  absl::StatusOr<Array> OnHost(Operand& operand);
  /// The operand in device memory; work queued in the lane's stream may use it.
  absl::StatusOr<DenseOnDevice> OnDevice(Operand& operand, DeviceLane& gpu);
  /// S on the device.
  struct OnDeviceSparse {
    std::shared_ptr<const Layout> layout;
    std::shared_ptr<const Array> values;  ///< null: not asked for
  };
  absl::StatusOr<OnDeviceSparse> PlaceSparse(const std::shared_ptr<const Layout>& layout,
                                             bool with_values);
  /// Memory for a result of `shape` on the host, or of the result's own on the device; gaps between
  /// rows are zeros.
  absl::StatusOr<Array> NewResult(std::string_view name, const DenseShape& shape);
  absl::StatusOr<DenseOnDevice> NewDeviceResult(std::string_view name, DeviceLane& gpu);
  /// Where workspaces and operands of this call come from.
  MemorySource& host_memory() { return impl_->budget.Source(MemoryUse::kRequests); }
  MemorySource& device_memory() { return gpu_device().budget().Source(MemoryUse::kRequests); }

  /// RESOURCE_EXHAUSTED if its streamed operands and (if it is `new_result`) its result together
  /// are more than the host ever has; on a GPU, parts may do.
  absl::Status MayFit(bool new_result) const;

  void SendBegin(const std::string& plan, std::string_view name);
  /// Sends or publishes the result.
  absl::Status SendResult(Array result);
  /// Likewise, from the device: parts leave as they arrive on the host; what is held stays there.
  absl::Status SendDeviceResult(DenseOnDevice result, DeviceLane& gpu);

  /// Runs `queue` between two events, then `queue_behind`, and waits: the milliseconds between the
  /// events are the kernel time.
  absl::Status TimedOnDevice(DeviceLane& gpu, const std::function<absl::Status()>& queue,
                             const std::function<absl::Status()>& queue_behind = nullptr);
  /// Queues zeros behind the rows of a result that is kept: what kernels left there, of infinities
  /// say, is in no later product.
  absl::Status ClearGap(const DenseOnDevice& result, DeviceLane& gpu);
  Context DeviceContext(DeviceLane& gpu) const;
  /// The same with what `kernel` needs: prepared for many runs on `layout`, or else workspace.
  template <typename Kernel, typename Arguments>
  absl::StatusOr<Context> DeviceContext(DeviceLane& gpu, const Kernel& kernel,
                                        const std::shared_ptr<const Layout>& layout,
                                        const Problem& problem, const Arguments& arguments) {
    Context context = DeviceContext(gpu);
    context.prepared = gpu.prepared.For(kernel, layout, context, problem, arguments,
                                        gpu_device().budget().SpareSource(MemoryUse::kLayouts));
    if (context.prepared != nullptr) return context;
    const absl::Status grown =
        Grow(gpu.workspace, kernel.workspace(problem, *layout, /*threads=*/1), device_memory());
    if (!grown.ok()) return grown;
    context.workspace = {gpu.workspace.mutable_data(), gpu.workspace.size()};
    return context;
  }
  Device& gpu_device() { return *gpu_; }

  /// Bytes that any kernel must move for it.
  double MustMove(const Problem& problem) const {
    const Pattern& pattern = *matrix_->pattern();
    return CompulsoryBytes(problem, pattern.rows(), pattern.cols(), pattern.nnz());
  }

  const std::shared_ptr<Executor::Impl> impl_;
  Device* const gpu_;  ///< null: the CPU's
  MatrixLease matrix_;
  std::vector<Operand> operands_;
  DenseShape result_shape_;  ///< where the result goes; SetResult alone sets it
  DenseWrite destination_;
  bool keep_result_ = false;
  bool sent_ = false;  ///< something of the result

 private:
  /// A streamed operand's rows in another shape, if the device has room for both.
  absl::StatusOr<DenseOnDevice> PaddedThere(const Operand& operand, const DenseShape& there,
                                            DeviceLane& gpu);
  /// Streamed operands that were put together on the device, in host memory.
  absl::Status BringHome();

  StagingBlock piece_;  ///< claimed last, not committed yet; none: there is nothing to send
  std::byte* piece_to_ = nullptr;
  size_t piece_bytes_ = 0;
  bool lost_ = false;  ///< a claimed part of an operand found no memory after all
  bool pieces_under_way_ = false;
};

/// Copies rows of `from` into `to`, whose leading dimension may be another.
void CopyRows(const Array& from, const DenseShape& from_shape, Array& to,
              const DenseShape& to_shape);

/// Those of these names that there are; empty names are nobody's.
std::vector<std::shared_ptr<LazyArray>> HeldOperands(const Executor::Impl& impl,
                                                     const std::string& tenant,
                                                     const std::vector<std::string>& names);

template <typename CallType, typename Spec>
absl::StatusOr<std::shared_ptr<Call>> BeginDense(std::shared_ptr<Executor::Impl> impl,
                                                 const Spec& spec,
                                                 std::shared_ptr<ResultSink> sink) {
  absl::StatusOr<MatrixLease> matrix = impl->catalog.Find(spec.tenant, spec.matrix);
  if (!matrix.ok()) return matrix.status();
  const std::vector<std::shared_ptr<LazyArray>> held =
      impl->gpus.size() < 2 ? std::vector<std::shared_ptr<LazyArray>>()
                            : HeldOperands(*impl, spec.tenant, CallType::HeldNames(spec));
  absl::StatusOr<Device*> gpu = impl->Place(*(*matrix)->pattern(), held);
  if (!gpu.ok()) return gpu.status();
  auto call = std::make_shared<CallType>(std::move(impl), *gpu, spec.tenant, std::move(sink),
                                         *std::move(matrix));
  if (absl::Status status = call->Set(spec); !status.ok()) return status;
  if (absl::Status status = call->Start(spec.timeout_ns); !status.ok()) return status;
  return call;
}

}  // namespace sparsed::engine
