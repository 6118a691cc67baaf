// SpGEMM calls: row blocks of the result, streamed as they are computed or kept as a new matrix. On
// the GPU a block leaves while the next one is computed; what finds no room there before the first
// block runs on the CPU.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/execution/executor_impl.h"
#include "engine/planning/candidates.h"
#include "kernels/spgemm_blocks.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// Entries of a block on the GPU: enough that starting a block does not count beside copying it.
constexpr int64_t kDeviceBlockEntries = int64_t{1} << 22;
/// Smaller ones are not worth it, where memory is short.
constexpr int64_t kLeastDeviceBlockEntries = int64_t{1} << 16;

/// On no device in particular.
Problem ProblemOf(const SpgemmSpec& spec, ElementType type) {
  return {.operation = Operation::kSpgemm,
          .type = type,
          .semiring = spec.semiring,
          .masked = !spec.mask.empty()};
}

/// Whether GPUs have a kernel for it.
bool GpusServe(Problem problem) {
  problem.device = DeviceKind::kCuda;
  const auto serves = [&problem](const SpgemmKernel& kernel) {
    return kernel.device == problem.device && kernel.supports(problem);
  };
  return std::ranges::any_of(SpgemmKernels(), serves);
}

class SpgemmCall final : public Job {
 public:
  /// `gpu`: where it begins; null: on the CPU.
  SpgemmCall(std::shared_ptr<Executor::Impl> impl, Device* gpu, SpgemmSpec spec,
             std::shared_ptr<ResultSink> sink, MatrixLease left, MatrixLease right,
             MatrixLease mask)
      : Job(impl->scheduler, spec.tenant, std::move(sink), gpu == nullptr ? DeviceId{} : gpu->id()),
        impl_(std::move(impl)),
        gpu_(gpu),
        spec_(std::move(spec)),
        left_(std::move(left)),
        right_(std::move(right)),
        mask_(std::move(mask)),
        problem_(ProblemOf(spec_, left_->type())) {
    problem_.device = device().kind;
    end_.version = left_->version();
  }

  absl::StatusOr<std::byte*> Claim(uint32_t array, uint64_t, uint64_t) override {
    return absl::InvalidArgumentError(
        fmt::format("SpGEMM has no operands in the stream, but array {} came", array));
  }
  bool complete() const override { return true; }

 private:
  struct Entries {
    Array columns, values;
  };
  /// What it has in the GPU's memory.
  struct OnDevice {
    std::shared_ptr<const Layout> left, right, mask;
    std::shared_ptr<const Array> left_values, right_values;
    Buffer workspace;
    Array row_begin, row_nnz;       ///< of the block that is being computed
    std::array<Entries, 2> blocks;  ///< one leaves while the other is computed
    int64_t block_entries = 0;      ///< of a block, but for single rows of more
    size_t turn = 0;                ///< of the blocks, which one was computed last
    RowRange computed;              ///< its rows; empty before the first
  };

  Next Run(Lane& lane, absl::Status* end) override {
    if (!begun_) {
      *end = Begin(lane);
      begun_ = end->ok();
      if (!begun_ && lane.gpu != nullptr && !token().stopped() &&
          (absl::IsResourceExhausted(*end) || absl::IsUnimplemented(*end))) {
        there_ = OnDevice();
        prepared_.reset();
        problem_.device = DeviceKind::kCpu;
        MoveTo(DeviceId{});
        return Next::kAgain;
      }
      if (begun_ && exact_ && !spec_.keep_as.empty()) *end = CanBeKept(ExactNonzeros(), "");
      return end->ok() ? Next::kAgain : Next::kEnded;
    }
    if (next_row_ < rows()) {
      absl::StatusOr<int64_t> bytes =
          lane.gpu == nullptr ? ComputeBlock(lane) : ComputeBlockOnDevice(*lane.gpu);
      if (!bytes.ok()) {
        *end = bytes.status();
        return Next::kEnded;
      }
      if (*end = CanBeKept(nnz_, "at least "); !end->ok()) return Next::kEnded;
      if (next_row_ < rows()) return *bytes > 0 && Charge(*bytes) ? Next::kPaused : Next::kAgain;
    }
    end_.nnz = nnz_;
    if (!found_sizes_ && !kernel_->from_library)
      impl_->derived->KeepSizes(Patterns(), {bounds_, products_});
    Ran(/*share=*/1);
    if (spec_.keep_as.empty()) {
      *end = absl::OkStatus();
      return Next::kEnded;
    }
    *end = Keep();
    return end->ok() ? Next::kLeft : Next::kEnded;
  }

  Loader ToLoad() const override {
    std::vector<Loader> loaders = {LoaderOf(left_), LoaderOf(right_)};
    // A mask's values are never read.
    if (mask_ != nullptr && !mask_->pattern()->resident()) {
      loaders.emplace_back([mask = mask_](Store::Stop stop) -> Held {
        const absl::StatusOr<std::shared_ptr<const Layout>> csr = mask->pattern()->Csr(stop);
        if (!csr.ok()) return {};
        return {*csr};
      });
    }
    return LoaderOf(std::move(loaders));
  }

  void Drop() override {
    // Of one that was stopped, the rows that it computed count, roughly.
    if (!ran_ && next_row_ > 0) Ran(ShareOfNonzeros());
    there_ = OnDevice();
    prepared_.reset();
    bounds_ = block_row_begin_ = block_row_nnz_ = scratch_columns_ = scratch_values_ = Array();
    blocks_.clear();
    left_values_ = right_values_ = Array();
    left_csr_.reset();
    right_csr_.reset();
    mask_csr_.reset();
    left_.reset();
    right_.reset();
    mask_.reset();
  }

  int64_t rows() const { return left_rows_; }

  PatternProduct Patterns() const {
    return {left_->pattern(), right_->pattern(), spec_.transpose_left, spec_.transpose_right,
            mask_ == nullptr ? nullptr : mask_->pattern()};
  }

  SpgemmArguments Arguments() const {
    SpgemmArguments arguments = {ViewCsr(*left_csr_), left_values_.buffer.data(),
                                 ViewCsr(*right_csr_), right_values_.buffer.data()};
    if (mask_csr_ != nullptr) arguments.mask = ViewCsr(*mask_csr_);
    return arguments;
  }

  Context KernelContext(Lane& lane) const {
    return {.threads = lane.threads,
            .workspace = {lane.workspace.mutable_data(), lane.workspace.size()},
            .stop = token().flag(),
            .prepared = prepared_.get()};
  }

  /// Loads both matrices, chooses the kernel, finds how large the rows may be, tells the sink.
  absl::Status Begin(Lane& lane) {
    if (absl::Status status = Load(lane); !status.ok()) return status;
    FindSizes();
    if (absl::Status status = ChooseKernel(); !status.ok()) return status;
    if (absl::Status status = AllocateRows(); !status.ok()) return status;
    if (lane.gpu == nullptr) return BeginOnCpu(lane);
    const absl::Status status = BeginOnDevice(*lane.gpu);
    // What stopped it says nothing of the device.
    return token().stopped() ? status : gpu_->Checked(status);
  }

  absl::Status Load(Lane& lane) {
    absl::Status status = LoadOne(lane, *left_, spec_.transpose_left, left_csr_, left_values_);
    if (status.ok()) {
      status = LoadOne(lane, *right_, spec_.transpose_right, right_csr_, right_values_);
    }
    if (status.ok() && mask_ != nullptr) {
      absl::StatusOr<std::shared_ptr<const Layout>> mask = mask_->pattern()->Csr();
      status = mask.status();
      if (mask.ok()) mask_csr_ = *std::move(mask);
    }
    if (status.ok()) left_rows_ = left_csr_->rows;
    return status;
  }

  /// A matrix, or its transpose, and its values: on the CPU in the layout's order, for the GPU in
  /// that of the matrix.
  absl::Status LoadOne(Lane& lane, const Matrix& matrix, bool transpose,
                       std::shared_ptr<const Layout>& csr, Array& values) {
    if (csr == nullptr) {  // what came here from the GPU may have it
      BuildContext context;
      context.threads = lane.threads;
      context.stop = token().flag();
      absl::StatusOr<std::shared_ptr<const Layout>> layout =
          transpose ? Timed([&] { return impl_->derived->Transposed(matrix.pattern(), context); })
                    : matrix.pattern()->Csr();
      if (!layout.ok()) return layout.status();
      csr = *std::move(layout);
    }
    absl::StatusOr<Array> placed =
        transpose && lane.gpu == nullptr
            ? Timed([&] { return matrix.ValuesIn(*csr, host_memory(), lane.threads); })
            : matrix.Values();
    if (!placed.ok()) return placed.status();
    values = *std::move(placed);
    return absl::OkStatus();
  }

  bool Serves(const SpgemmKernel* kernel) const {
    return kernel != nullptr && kernel->device == problem_.device && kernel->supports(problem_);
  }

  /// The device's first kernel.
  absl::Status ChooseDefault() {
    for (const SpgemmKernel& kernel : SpgemmKernels()) {
      kernel_ = &kernel;
      if (Serves(kernel_)) return absl::OkStatus();
    }
    return absl::UnimplementedError(
        fmt::format("no kernel serves {}", ToString(ClassOf(problem_))));
  }

  /// Sums of products, all of the result: what there are plans for.
  bool IsPlain() const { return mask_ == nullptr && problem_.semiring == Semiring::kSumProduct; }

  /// The plan's of the pair; without one, what the features of both promise, and trials are asked
  /// for.
  absl::Status ChooseKernel() {
    if (!IsPlain()) return ChooseDefault();
    Pattern& left = *left_->pattern();
    const Pattern& right = *right_->pattern();
    const PlanTable::Found found = left.plans().Find(
        ClassOf(problem_), PairKey(right.hash(), spec_.transpose_left, spec_.transpose_right));
    if (found.due() && impl_->on_unknown_pair) {
      impl_->on_unknown_pair(Patterns(), problem_);
    }
    const auto left_features = spec_.transpose_left ? nullptr : left.features();
    const auto right_features = spec_.transpose_right ? nullptr : right.features();
    kernel_ = FindSpgemmKernel(
        found.exact ? std::string_view(found.plan->plan.kernel)
                    : PromisingSpgemm(problem_, left_features.get(), right_features.get()));
    if (!Serves(kernel_) && found.plan != nullptr) {
      kernel_ = FindSpgemmKernel(found.plan->plan.kernel);
    }
    // A library computes whole products, whatever is known of their rows.
    if (!Serves(kernel_) || (found_sizes_ && kernel_->from_library)) return ChooseDefault();
    return absl::OkStatus();
  }

  /// Whether the default kernel, which is chosen then, may serve after another one failed so: the
  /// matrices don't suit it, or there is no memory for it.
  bool FallsBack(const absl::Status& why) {
    if (!absl::IsFailedPrecondition(why) && !absl::IsResourceExhausted(why)) return false;
    prepared_.reset();
    there_.workspace = Buffer();
    there_.row_begin = there_.row_nnz = Array();
    there_.blocks = {};
    if (kernel_->from_library) exact_ = found_sizes_;
    const SpgemmKernel* const failed = kernel_;
    return ChooseDefault().ok() && kernel_ != failed;
  }

  /// What the kernel makes of the matrices before it begins.
  absl::Status PrepareOperands(Lane& lane) {
    if (kernel_->prepare == nullptr) return absl::OkStatus();
    absl::StatusOr<std::shared_ptr<void>> prepared = Timed([&] {
      return kernel_->prepare(KernelContext(lane), problem_, Arguments(), host_memory());
    });
    if (prepared.ok()) {
      prepared_ = *std::move(prepared);
      return absl::OkStatus();
    }
    return FallsBack(prepared.status()) ? PrepareOperands(lane) : prepared.status();
  }

  /// The sizes of the rows, if a request of the same patterns left them: then only the numeric
  /// phase is left to do.
  void FindSizes() {
    if (found_sizes_) return;
    std::optional<RowSizes> sizes = impl_->derived->FindSizes(Patterns());
    if (!sizes.has_value()) return;
    bounds_ = std::move(sizes->row_nnz);
    products_ = sizes->products;
    found_sizes_ = exact_ = true;
  }

  absl::Status BeginOnCpu(Lane& lane) {
    if (absl::Status status = PrepareOperands(lane); !status.ok()) return status;
    if (!exact_) {
      if (absl::Status status = Prepare(lane); !status.ok()) return status;
      const auto bounds = bounds_.MutableAs<int64_t>();
      absl::Status status = Timed(
          [&] { return kernel_->analyse(KernelContext(lane), Arguments(), bounds, &products_); });
      if (status.ok() && spec_.count_first) {
        status = Timed([&] {
          return kernel_->symbolic(KernelContext(lane), Arguments(), {0, rows()}, bounds);
        });
        exact_ = status.ok();
      }
      if (!status.ok()) return status;
    }
    SendBegin();
    return absl::OkStatus();
  }

  /// Once the rows' sizes are exact.
  int64_t ExactNonzeros() const {
    const auto sizes = bounds_.As<int64_t>();
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  }

  void SendBegin() {
    const int64_t exact = exact_ ? ExactNonzeros() : int64_t{-1};
    const std::string& left = left_csr_->recipe;
    const std::string& right = right_csr_->recipe;
    CallBegin message{left == right ? fmt::format("{} / {}", left, kernel_->name)
                                    : fmt::format("{} * {} / {}", left, right, kernel_->name),
                      exact,
                      rows(),
                      right_csr_->cols,
                      {}};
    if (spec_.keep_as.empty()) {
      message.arrays = {{"row_offsets", ElementType::kI64, rows() + 1},
                        {"column_indices", ElementType::kI32, exact},
                        {"values", problem_.type, exact}};
    }
    sink().OnBegin(std::move(message));
  }

  MemorySource& host_memory() { return impl_->budget.Source(MemoryUse::kRequests); }
  MemorySource& device_memory() { return gpu_->budget().Source(MemoryUse::kRequests); }

  /// Both matrices to the GPU, what the kernel makes of them, the exact counts of the rows and
  /// memory for the largest block: whatever may not fit.
  absl::Status BeginOnDevice(DeviceLane& gpu) {
    if (absl::Status status = PlaceOperands(); !status.ok()) return status;
    absl::Status status = PrepareOnDevice(gpu);
    if (status.ok()) status = token().status();
    if (status.ok()) status = AllocateOnDevice(gpu);
    // Without what was prepared there is more room.
    if (absl::IsResourceExhausted(status) && FallsBack(status)) {
      status = PrepareOnDevice(gpu);
      if (status.ok()) status = AllocateOnDevice(gpu);
    }
    if (status.ok()) SendBegin();
    return status;
  }

  absl::Status PlaceOperands() {
    const auto begin = Clock::now();
    Residency& residency = gpu_->residency();
    const auto place = [&](const std::shared_ptr<const Layout>& csr, const Array& values,
                           std::shared_ptr<const Layout>& layout_there,
                           std::shared_ptr<const Array>& values_there) {
      absl::StatusOr<std::shared_ptr<const Layout>> layout = residency.Place(csr);
      if (!layout.ok()) return layout.status();
      absl::StatusOr<std::shared_ptr<const Array>> placed =
          residency.PlaceValues(values, csr, host_memory());
      if (!placed.ok()) return placed.status();
      layout_there = *std::move(layout);
      values_there = *std::move(placed);
      return absl::OkStatus();
    };
    absl::Status status = place(left_csr_, left_values_, there_.left, there_.left_values);
    if (status.ok()) status = place(right_csr_, right_values_, there_.right, there_.right_values);
    if (status.ok() && mask_csr_ != nullptr) {
      absl::StatusOr<std::shared_ptr<const Layout>> mask = residency.Place(mask_csr_);
      status = mask.status();
      if (mask.ok()) there_.mask = *std::move(mask);
    }
    end_.timings.to_device_ns += NanosecondsSince(begin);
    return status;
  }

  absl::Status PrepareOnDevice(DeviceLane& gpu) {
    if (kernel_->prepare == nullptr) return absl::OkStatus();
    std::shared_ptr<void> prepared;
    const absl::StatusOr<double> milliseconds = gpu_->Timed(gpu, [&] {
      absl::StatusOr<std::shared_ptr<void>> made =
          kernel_->prepare(DeviceContext(gpu), problem_, ArgumentsThere(), device_memory());
      if (made.ok()) prepared = *std::move(made);
      return made.status();
    });
    if (!milliseconds.ok()) {
      return FallsBack(milliseconds.status()) ? PrepareOnDevice(gpu) : milliseconds.status();
    }
    AddKernelTime(*milliseconds);
    prepared_ = std::move(prepared);
    return absl::OkStatus();
  }

  absl::Status AllocateOnDevice(DeviceLane& gpu) {
    absl::Status status;
    const auto allocate = [&](std::string_view name, ElementType type, int64_t length,
                              Array& array) {
      if (!status.ok()) return;
      absl::StatusOr<Array> allocated = AllocateArray(device_memory(), name, type, length);
      status = allocated.status();
      if (allocated.ok()) array = *std::move(allocated);
    };
    allocate("row begins", ElementType::kI64, block_row_begin_.length, there_.row_begin);
    allocate("row counts", ElementType::kI64, block_row_nnz_.length, there_.row_nnz);
    if (!status.ok()) return status;
    absl::StatusOr<Buffer> workspace =
        device_memory().Allocate(kernel_->workspace(problem_, ArgumentsThere(), /*threads=*/1));
    if (!workspace.ok()) return workspace.status();
    there_.workspace = *std::move(workspace);
    if (!exact_) status = CountOnDevice(gpu);
    return status.ok() ? AllocateBlocks() : status;
  }

  absl::Status CountOnDevice(DeviceLane& gpu) {
    absl::StatusOr<Array> row_counts =
        AllocateArray(device_memory(), "row counts", ElementType::kI64, rows());
    if (!row_counts.ok()) return row_counts.status();
    absl::StatusOr<Array> product_count =
        AllocateArray(device_memory(), "products", ElementType::kI64, 1);
    if (!product_count.ok()) return product_count.status();
    Array& counts = *row_counts;
    Array& products = *product_count;
    const Context context = DeviceContext(gpu);
    const auto row_nnz = counts.MutableAs<int64_t>();
    const absl::StatusOr<double> milliseconds = gpu_->Timed(gpu, [&] {
      absl::Status queued = kernel_->analyse(context, ArgumentsThere(), row_nnz,
                                             products.MutableAs<int64_t>().data());
      if (!queued.ok()) return queued;
      return kernel_->symbolic(context, ArgumentsThere(), {0, rows()}, row_nnz);
    });
    if (!milliseconds.ok()) return milliseconds.status();
    AddKernelTime(*milliseconds);
    const auto copy = [&](const Array& from, void* to) {
      return gpu_->CopyOut(gpu.stream, to, from.buffer.data(), from.bytes());
    };
    absl::Status status = copy(counts, bounds_.buffer.mutable_data());
    if (status.ok()) status = copy(products, &products_);
    exact_ = status.ok();
    return status;
  }

  /// Two blocks on the GPU, of the size of the largest that there is; smaller ones if that is too
  /// much.
  absl::Status AllocateBlocks() {
    const auto exact = std::as_const(bounds_).As<int64_t>();
    absl::Status status;
    for (int64_t entries = kDeviceBlockEntries; entries >= kLeastDeviceBlockEntries; entries /= 4) {
      int64_t largest = 0;
      RowRange block;
      for (int64_t row = 0; row < rows(); row = block.end) {
        block = NextRowBlock(exact, row, entries);
        largest = std::max(largest, std::accumulate(exact.begin() + block.begin,
                                                    exact.begin() + block.end, int64_t{0}));
      }
      status = absl::OkStatus();
      for (Entries& scratch : there_.blocks) {
        scratch = Entries();
        absl::StatusOr<Array> columns =
            AllocateArray(device_memory(), "column_indices", ElementType::kI32, largest);
        if (columns.ok()) scratch.columns = *std::move(columns);
        absl::StatusOr<Array> values =
            AllocateArray(device_memory(), "values", problem_.type, largest);
        if (values.ok()) scratch.values = *std::move(values);
        status.Update(columns.status());
        status.Update(values.status());
      }
      there_.block_entries = entries;
      if (!absl::IsResourceExhausted(status)) return status;
    }
    return status;
  }

  SpgemmArguments ArgumentsThere() const {
    SpgemmArguments arguments = {ViewCsr(*there_.left), there_.left_values->buffer.data(),
                                 ViewCsr(*there_.right), there_.right_values->buffer.data()};
    if (there_.mask != nullptr) arguments.mask = ViewCsr(*there_.mask);
    return arguments;
  }

  Context DeviceContext(DeviceLane& gpu) {
    return {.threads = 1,
            .workspace = {there_.workspace.mutable_data(), there_.workspace.size()},
            .stop = token().flag(),
            .stream = gpu.stream.handle(),
            .prepared = prepared_.get()};
  }

  void AddKernelTime(double milliseconds) {
    const auto nanoseconds = static_cast<uint64_t>(milliseconds * 1e6);
    end_.timings.kernel_ns += nanoseconds;
    scheduler().AddBusy(device(), nanoseconds);
  }

  /// Queues the next rows, hands the ones before on meanwhile, and waits for both. Bytes that the
  /// sink received.
  absl::StatusOr<int64_t> ComputeBlockOnDevice(DeviceLane& gpu) {
    const RowRange leaving = there_.computed;
    const Entries& from = there_.blocks[there_.turn];
    RowRange range = {leaving.end, leaving.end};
    absl::Status status;
    if (leaving.end < rows()) {
      there_.turn = 1 - there_.turn;
      range = NextRowBlock(std::as_const(bounds_).As<int64_t>(), leaving.end, there_.block_entries);
      status = QueueBlock(gpu, range);
    }
    int64_t bytes = 0;
    if (status.ok() && leaving.begin < leaving.end) {
      absl::StatusOr<ResultBlock> block = BringBlock(gpu, leaving, from);
      status = block.status();
      if (block.ok()) bytes = HandOn(*std::move(block));
    }
    // Also after an error: what is queued uses memory that is about to go.
    const absl::Status done = gpu_->Settle(gpu.stream);
    status.Update(done);
    if (status.ok() && range.begin < range.end) {
      const absl::StatusOr<float> milliseconds = gpu.end.MillisecondsSince(gpu.begin);
      status = milliseconds.status();
      if (milliseconds.ok()) AddKernelTime(*milliseconds);
    }
    if (!status.ok()) return token().stopped() ? status : gpu_->Checked(status);
    there_.computed = range;
    return bytes;
  }

  absl::Status QueueBlock(DeviceLane& gpu, RowRange range) {
    const auto count = static_cast<size_t>(range.end - range.begin);
    const auto row_begin = block_row_begin_.MutableAs<int64_t>().first(count + 1);
    PlaceRowBlock(std::as_const(bounds_).As<int64_t>(), range, row_begin);
    Array& begins = there_.row_begin;
    absl::Status status = gpu_->CopyIn(gpu.stream, begins.buffer.mutable_data(), row_begin.data(),
                                       row_begin.size_bytes());
    if (status.ok()) status = gpu.begin.Record(gpu.stream);
    if (!status.ok()) return status;
    Entries& to = there_.blocks[there_.turn];
    status = kernel_->numeric(
        DeviceContext(gpu), problem_, ArgumentsThere(), range,
        begins.MutableAs<int64_t>().first(count + 1), to.columns.MutableAs<int32_t>().data(),
        to.values.buffer.mutable_data(), there_.row_nnz.MutableAs<int64_t>().first(count));
    if (!status.ok()) return status;
    return gpu.end.Record(gpu.stream);
  }

  /// Rows that are computed, in host memory.
  absl::StatusOr<ResultBlock> BringBlock(DeviceLane& gpu, RowRange range, const Entries& from) {
    const auto begin = Clock::now();
    absl::StatusOr<ResultBlock> block = NewBlock(
        range, std::as_const(bounds_).As<int64_t>().subspan(range.begin, range.end - range.begin));
    if (!block.ok()) return block;
    absl::Status status = gpu_->CopyOut(gpu.second, block->column_indices.buffer.mutable_data(),
                                        from.columns.buffer.data(), block->column_indices.bytes());
    if (status.ok()) {
      status = gpu_->CopyOut(gpu.second, block->values.buffer.mutable_data(),
                             from.values.buffer.data(), block->values.bytes());
    }
    end_.timings.from_device_ns += NanosecondsSince(begin);
    if (!status.ok()) return status;
    return block;
  }

  /// What is kept of each row, and of each row of a block.
  absl::Status AllocateRows() {
    const int64_t block_rows = std::min(rows(), kMaxBlockRows);
    // One that has room for some of them alone is not to wait for what is its own.
    const int64_t together = (exact_ ? 0 : rows()) + 2 * block_rows + 1;
    const absl::Status room =
        impl_->budget.Count(static_cast<size_t>(together) * sizeof(int64_t), MemoryUse::kRequests)
            .status();
    if (!room.ok()) return room;
    const auto allocate = [&](std::string_view name, int64_t length, Array& array) {
      absl::StatusOr<Array> allocated =
          AllocateArray(host_memory(), name, ElementType::kI64, length);
      if (allocated.ok()) array = *std::move(allocated);
      return allocated.status();
    };
    absl::Status status;
    if (!exact_) status = allocate("row bounds", rows(), bounds_);
    if (status.ok()) status = allocate("row begins", block_rows + 1, block_row_begin_);
    if (status.ok()) status = allocate("row counts", block_rows, block_row_nnz_);
    return status;
  }

  absl::Status Prepare(Lane& lane) {
    // To find it out a kernel may look at every row, and lanes are alike.
    if (!workspace_bytes_.has_value()) {
      workspace_bytes_ = kernel_->workspace(problem_, Arguments(), lane.threads);
    }
    return Grow(lane.workspace, *workspace_bytes_, host_memory());
  }

  /// Counts the time at once: of a call that fails or is cancelled, too.
  template <typename Work>
  std::invoke_result_t<Work> Timed(const Work& work) {
    const auto begin = Clock::now();
    std::invoke_result_t<Work> result = work();
    const uint64_t nanoseconds = NanosecondsSince(begin);
    end_.timings.kernel_ns += nanoseconds;
    scheduler().AddBusy(device(), nanoseconds);
    return result;
  }

  /// Memory for a block of `entries`, kept from block to block.
  absl::Status EnsureScratch(int64_t entries) {
    if (scratch_columns_.length >= entries) return absl::OkStatus();
    MemorySource& memory = host_memory();
    scratch_columns_ = scratch_values_ = Array();
    absl::StatusOr<Array> columns =
        AllocateArray(memory, "column_indices", ElementType::kI32, entries);
    if (!columns.ok()) return columns.status();
    absl::StatusOr<Array> values = AllocateArray(memory, "values", problem_.type, entries);
    if (!values.ok()) return values.status();
    scratch_columns_ = *std::move(columns);
    scratch_values_ = *std::move(values);
    return absl::OkStatus();
  }

  /// Computes the next rows and hands them on. Bytes that the sink received.
  absl::StatusOr<int64_t> ComputeBlock(Lane& lane) {
    const auto bounds = std::as_const(bounds_).As<int64_t>();
    const RowRange range = NextRowBlock(bounds, next_row_, RowBlockEntries(lane.threads));
    const auto row_begin = block_row_begin_.MutableAs<int64_t>().first(range.end - range.begin + 1);
    const auto row_nnz = block_row_nnz_.MutableAs<int64_t>().first(range.end - range.begin);
    const int64_t room = PlaceRowBlock(bounds, range, row_begin);
    // Another call may have taken the lane's workspace in between.
    if (absl::Status status = Prepare(lane); !status.ok()) return status;
    const auto compute = [&](Array& columns, Array& values) {
      return Timed([&] {
        return kernel_->numeric(KernelContext(lane), problem_, Arguments(), range, row_begin,
                                columns.MutableAs<int32_t>().data(), values.buffer.mutable_data(),
                                row_nnz);
      });
    };
    absl::StatusOr<ResultBlock> block;
    absl::Status computed;
    if (exact_) {
      block = NewBlock(range, bounds.subspan(range.begin, range.end - range.begin));
      if (block.ok()) computed = compute(block->column_indices, block->values);
    } else {
      if (absl::Status status = EnsureScratch(room); !status.ok()) return status;
      computed = compute(scratch_columns_, scratch_values_);
      std::ranges::copy(row_nnz, bounds_.MutableAs<int64_t>().begin() + range.begin);
      if (computed.ok()) block = TakeBlock(range, row_begin, row_nnz, lane.threads);
    }
    if (!computed.ok()) return computed;
    if (!block.ok()) return block.status();
    return HandOn(*std::move(block));
  }

  /// Bytes that the sink received.
  int64_t HandOn(ResultBlock block) {
    next_row_ = block.rows.end;
    nnz_ += block.column_indices.length;
    if (!spec_.keep_as.empty()) {
      blocks_.push_back(std::move(block));
      return 0;
    }
    const auto bytes = static_cast<int64_t>(block.row_offsets.bytes() +
                                            block.column_indices.bytes() + block.values.bytes());
    sink().OnBlock(std::move(block));
    return bytes;
  }

  /// Memory of its own for a block, of its exact size; without its entries.
  absl::StatusOr<ResultBlock> NewBlock(RowRange range, std::span<const int64_t> row_nnz) {
    MemorySource& memory = host_memory();
    ResultBlock block;
    block.rows = range;
    block.nnz_begin = nnz_;
    absl::StatusOr<Array> offsets =
        AllocateArray(memory, "row_offsets", ElementType::kI64, range.end - range.begin);
    if (!offsets.ok()) return offsets.status();
    block.row_offsets = *std::move(offsets);
    const auto ends = block.row_offsets.MutableAs<int64_t>();
    int64_t nnz = 0;
    for (size_t i = 0; i < row_nnz.size(); ++i) {
      nnz += row_nnz[i];
      ends[i] = nnz_ + nnz;
    }
    absl::StatusOr<Array> columns = AllocateArray(memory, "column_indices", ElementType::kI32, nnz);
    if (!columns.ok()) return columns.status();
    absl::StatusOr<Array> values = AllocateArray(memory, "values", problem_.type, nnz);
    if (!values.ok()) return values.status();
    block.column_indices = *std::move(columns);
    block.values = *std::move(values);
    return block;
  }

  /// The block out of the scratch.
  absl::StatusOr<ResultBlock> TakeBlock(RowRange range, std::span<const int64_t> row_begin,
                                        std::span<const int64_t> row_nnz, int threads) {
    absl::StatusOr<ResultBlock> block = NewBlock(range, row_nnz);
    if (!block.ok()) return block;
    const RowBlock scratch{row_begin, row_nnz, std::as_const(scratch_columns_).As<int32_t>().data(),
                           scratch_values_.buffer.data(), problem_.type};
    Timed([&] {
      return CompactRowBlock(scratch, threads, block->column_indices.MutableAs<int32_t>().data(),
                             block->values.buffer.mutable_data());
    });
    return block;
  }

  /// Whether a result of so many nonzeros could ever be kept: putting its blocks together takes
  /// their memory twice.
  absl::Status CanBeKept(int64_t nnz, std::string_view how_sure) const {
    if (spec_.keep_as.empty()) return absl::OkStatus();
    const auto entry = static_cast<int64_t>(sizeof(int32_t) + SizeOf(problem_.type));
    const int64_t limit = impl_->budget.limit();
    if (nnz <= limit / (2 * entry)) return absl::OkStatus();
    return absl::ResourceExhaustedError(fmt::format(
        "'{}' would have {}{} nonzeros of {} bytes each, twice while it is put together, "
        "and the server has {} bytes (--host-memory): receive it as it comes instead",
        spec_.keep_as, how_sure, nnz, entry, limit));
  }

  /// Puts the blocks together and leaves the storing to the thread that may block.
  absl::Status Keep() {
    MemorySource& memory = impl_->budget.Source(MemoryUse::kMatrices);
    absl::StatusOr<Array> offsets =
        AllocateArray(memory, "row_offsets", ElementType::kI64, rows() + 1);
    if (!offsets.ok()) return offsets.status();
    absl::StatusOr<Array> columns =
        AllocateArray(memory, "column_indices", ElementType::kI32, nnz_);
    if (!columns.ok()) return columns.status();
    absl::StatusOr<Array> values = AllocateArray(memory, "values", problem_.type, nnz_);
    if (!values.ok()) return values.status();
    offsets->MutableAs<int64_t>()[0] = 0;
    for (ResultBlock& block : blocks_) {
      const auto append = [](Array& to, int64_t position, const Array& from) {
        if (from.length == 0) return;
        std::memcpy(to.buffer.mutable_data() + position * SizeOf(to.type), from.buffer.data(),
                    from.bytes());
      };
      append(*offsets, block.rows.begin + 1, block.row_offsets);
      append(*columns, block.nnz_begin, block.column_indices);
      append(*values, block.nnz_begin, block.values);
      block = ResultBlock();
    }
    UploadHeader header;
    header.tenant = spec_.tenant;
    header.name = spec_.keep_as;
    header.rows = rows();
    header.cols = right_csr_->cols;
    header.nnz = nnz_;
    header.type = problem_.type;
    header.replace = spec_.replace;
    scheduler().RunBlocking([self = std::static_pointer_cast<SpgemmCall>(shared_from_this()),
                             header, offsets = *std::move(offsets), columns = *std::move(columns),
                             values = *std::move(values)]() {
      self->Finish(self->impl_->catalog.Insert(header, offsets, columns, values).status());
    });
    return absl::OkStatus();
  }

  /// Tells the observer of a `share` of the whole product.
  void Ran(double share) {
    ran_ = true;
    impl_->Ran(device(), problem_.operation, kernel_->name, end_.timings.kernel_ns,
               2.0 * static_cast<double>(products_) * share, FloorBytes() * share);
  }

  /// Of S's nonzeros, those in the rows that are computed: about the share of the products, which
  /// whoever cancels has at once.
  double ShareOfNonzeros() const {
    const auto row_offsets = ViewCsr(*left_csr_).row_offsets;
    const int64_t all = row_offsets[left_rows_];
    return all == 0 ? 0 : static_cast<double>(row_offsets[next_row_]) / static_cast<double>(all);
  }

  /// Both matrices and the mask read once, C written once.
  double FloorBytes() const {
    const double mask =
        mask_csr_ == nullptr ? 0 : static_cast<double>(mask_csr_->nnz) * sizeof(int32_t);
    return CompulsoryBytes(problem_.type, ViewCsr(*left_csr_), ViewCsr(*right_csr_), nnz_) + mask;
  }

  const std::shared_ptr<Executor::Impl> impl_;
  Device* const gpu_;
  const SpgemmSpec spec_;
  MatrixLease left_, right_;
  MatrixLease mask_;  ///< null: none
  Problem problem_;

  OnDevice there_;

  bool begun_ = false;
  bool ran_ = false;  ///< the observer was told
  const SpgemmKernel* kernel_ = nullptr;
  std::shared_ptr<void> prepared_;  ///< by the kernel, where it runs
  std::shared_ptr<const Layout> left_csr_, right_csr_, mask_csr_;
  Array left_values_, right_values_;
  int64_t left_rows_ = 0;
  Array bounds_;        ///< of each row's entries; of rows that are computed, how many there are
  bool exact_ = false;  ///< bounds_ are the sizes of all rows
  bool found_sizes_ = false;  ///< ... and came from an earlier request
  int64_t products_ = 0;
  int64_t next_row_ = 0;
  int64_t nnz_ = 0;
  std::optional<size_t> workspace_bytes_;  ///< of the kernel on the CPU
  Array block_row_begin_, block_row_nnz_;  ///< of the block that is being computed
  Array scratch_columns_, scratch_values_;
  std::vector<ResultBlock> blocks_;  ///< what is to be kept
};

/// Of a matrix as the product sees it.
struct Shape {
  int64_t rows, cols;
  std::string sentence;  ///< "'web' transposed is 20 x 30"
};

Shape ShapeOf(const Matrix& matrix, bool transpose) {
  Shape shape = {matrix.pattern()->rows(), matrix.pattern()->cols(), ""};
  if (transpose) std::swap(shape.rows, shape.cols);
  shape.sentence = fmt::format("'{}'{} is {} x {}", matrix.name(), transpose ? " transposed" : "",
                               shape.rows, shape.cols);
  return shape;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Call>> BeginSpgemm(std::shared_ptr<Executor::Impl> impl,
                                                  SpgemmSpec spec,
                                                  std::shared_ptr<ResultSink> sink) {
  absl::StatusOr<MatrixLease> left = impl->catalog.Find(spec.tenant, spec.left);
  if (!left.ok()) return left.status();
  absl::StatusOr<MatrixLease> right = impl->catalog.Find(spec.tenant, spec.right);
  if (!right.ok()) return right.status();
  const Shape s = ShapeOf(**left, spec.transpose_left);
  const Shape t = ShapeOf(**right, spec.transpose_right);
  if (s.cols != t.rows) {
    return absl::InvalidArgumentError(
        fmt::format("{} and {}: the columns of the left must be the rows of the right", s.sentence,
                    t.sentence));
  }
  MatrixLease mask;
  if (!spec.mask.empty()) {
    absl::StatusOr<MatrixLease> found = impl->catalog.Find(spec.tenant, spec.mask);
    if (!found.ok()) return found.status();
    mask = *std::move(found);
    const Shape m = ShapeOf(*mask, /*transpose=*/false);
    if (m.rows != s.rows || m.cols != t.cols) {
      return absl::InvalidArgumentError(
          fmt::format("the mask {}, but the result is {} x {}", m.sentence, s.rows, t.cols));
    }
  }
  if ((*left)->type() != (*right)->type()) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is {} and '{}' is {}: both must be of one type", spec.left,
                    Name((*left)->type()), spec.right, Name((*right)->type())));
  }
  if (IsHalf((*left)->type())) {
    return absl::UnimplementedError(
        fmt::format("'{}' is {}: the sparse-sparse product is computed in f32 and f64 alone",
                    spec.left, Name((*left)->type())));
  }
  if (!spec.keep_as.empty()) {
    if (absl::Status status = ValidateName("matrix", spec.keep_as); !status.ok()) return status;
    if (!spec.replace && impl->catalog.Find(spec.tenant, spec.keep_as).ok()) {
      return NameIsTaken(spec.keep_as);
    }
  }
  const uint64_t timeout_ns = spec.timeout_ns;
  absl::StatusOr<Device*> gpu = impl->Place(*(*left)->pattern(), /*held=*/{});
  if (!gpu.ok()) return gpu.status();
  if (!GpusServe(ProblemOf(spec, (*left)->type()))) gpu = nullptr;
  auto call = std::make_shared<SpgemmCall>(std::move(impl), *gpu, std::move(spec), std::move(sink),
                                           *std::move(left), *std::move(right), std::move(mask));
  if (absl::Status status = call->Start(timeout_ns); !status.ok()) return status;
  return call;
}

}  // namespace sparsed::engine
