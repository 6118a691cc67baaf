#include "sparsed/attached.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <variant>

#include "base/mutex.h"
#include "client/attached/attachment.h"
#include "client/src/connection.h"
#include "client/src/convert.h"

namespace sparsed {
inline namespace client {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two looks at whether the server is there.
constexpr std::chrono::seconds kLook{1};

Clock::time_point DeadlineOf(const CallOptions& options) {
  const Clock::time_point now = Clock::now();
  if (!options.timeout || *options.timeout > Clock::time_point::max() - now) {
    return Clock::time_point::max();
  }
  return now + *options.timeout;
}

/// That OpenMP would use: the cores that the process may run on.
int DefaultThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

template <typename View>
int64_t LeadingDimension(const View& view) {
  return view.leading_dimension == 0 ? view.cols : view.leading_dimension;
}

template <typename View>
DenseMemory MemoryOf(const View& view) {
  return {const_cast<void*>(static_cast<const void*>(view.data)), view.rows, view.cols,
          LeadingDimension(view)};
}

template <typename View>
bool Fits(const View& view, int64_t rows, int64_t cols, v1::ElementType type) {
  return view.rows == rows && view.cols == cols && ToProto(view.type) == type &&
         LeadingDimension(view) >= cols &&
         (view.data != nullptr || view.rows == 0 || view.cols == 0);
}

template <typename View>
std::pair<const std::byte*, const std::byte*> Extent(const View& view) {
  const auto* const begin = static_cast<const std::byte*>(view.data);
  const int64_t elements =
      view.rows == 0 ? 0 : (view.rows - 1) * LeadingDimension(view) + view.cols;
  return {begin, begin + elements * static_cast<int64_t>(SizeOf(view.type))};
}

template <typename A, typename B>
bool Overlap(const A& a, const B& b) {
  const auto [a_begin, a_end] = Extent(a);
  const auto [b_begin, b_end] = Extent(b);
  return a_begin < b_end && b_begin < a_end;
}

template <typename A, typename B>
bool Same(const A& a, const B& b) {
  return a.data == b.data && LeadingDimension(a) == LeadingDimension(b);
}

template <typename View>
uint64_t Bytes(const View& view) {
  return static_cast<uint64_t>(view.rows * view.cols) * SizeOf(view.type);
}

/// A copy in host memory of a matrix of a GPU's, without gaps.
class HostCopy {
 public:
  HostCopy(int gpu, GpuStream stream) : gpu_(gpu), stream_(stream) {}

  absl::Status Take(const DenseView& there) {
    if (absl::Status s = Resize(there); !s.ok()) return s;
    const size_t row = RowBytes();
    return CopyBetween(bytes_.get(), row, there.data, Pitch(there), row, Rows(), gpu_,
                       stream_.handle);
  }
  /// Its elements are not set.
  template <typename View>
  absl::Status Resize(const View& there) {
    rows_ = there.rows;
    cols_ = there.cols;
    type_ = there.type;
    size_t bytes = 0;
    if (__builtin_mul_overflow(std::max<int64_t>(rows_, 0), std::max<int64_t>(cols_, 0), &bytes) ||
        __builtin_mul_overflow(bytes, SizeOf(type_), &bytes)) {
      return TooLarge();
    }
    bytes_.reset(new (std::nothrow) std::byte[bytes]);
    return bytes_ == nullptr ? TooLarge() : absl::OkStatus();
  }
  absl::Status Put(const MutableDenseView& there) const {
    const size_t row = RowBytes();
    return CopyBetween(there.data, Pitch(there), bytes_.get(), row, row, Rows(), gpu_,
                       stream_.handle);
  }
  DenseView view() const { return {bytes_.get(), type_, rows_, cols_}; }
  MutableDenseView mutable_view() { return {bytes_.get(), type_, rows_, cols_}; }

 private:
  template <typename View>
  static size_t Pitch(const View& view) {
    return static_cast<size_t>(LeadingDimension(view)) * SizeOf(view.type);
  }
  absl::Status TooLarge() const {
    return absl::ResourceExhaustedError(fmt::format(
        "the product runs on the server, and for a matrix of {} x {} there is no host memory",
        rows_, cols_));
  }
  size_t Rows() const { return static_cast<size_t>(std::max<int64_t>(rows_, 0)); }
  size_t RowBytes() const {
    return static_cast<size_t>(std::max<int64_t>(cols_, 0)) * SizeOf(type_);
  }

  const int gpu_;
  const GpuStream stream_;
  int64_t rows_ = 0, cols_ = 0;
  ValueType type_{};
  std::unique_ptr<std::byte[]> bytes_;
};

/// None: `operand` is there, but no view. Null: it is not there.
std::optional<const DenseView*> ViewOf(const std::optional<Operand>& operand) {
  if (!operand) return nullptr;
  const auto* const view = std::get_if<DenseView>(&*operand);
  if (view == nullptr) return std::nullopt;
  return view;
}

/// S's values, one column without gaps.
bool FitsValues(const DenseView* view, const Attachment::Product& product) {
  return view == nullptr ||
         (Fits(*view, product.nnz, 1, product.type) && LeadingDimension(*view) == 1);
}

absl::Status NotOnGpu() {
  return absl::FailedPreconditionError(
      "the matrix is not attached on a GPU (AttachOptions::gpu), so nothing runs in a stream");
}

absl::Status NotAView() {
  return absl::InvalidArgumentError(
      "what runs in a stream takes operands in the GPU's memory, none that the server holds");
}

}  // namespace

/// Keeps an attachment, and takes another one when the server has started anew.
class AttachedMatrix::State {
 public:
  State(std::shared_ptr<Connection> connection, Matrix matrix, int threads, std::optional<int> gpu)
      : connection_(std::move(connection)),
        matrix_(std::move(matrix)),
        threads_(threads),
        gpu_(gpu) {}

  ~State() {
    {
      const MutexLock lock(mutex_);
      closing_ = true;
      if (opening_ != nullptr) opening_->End();
      changed_.NotifyAll();
    }
    if (keeper_.joinable()) keeper_.join();
  }

  absl::Status Open() {
    const absl::StatusOr<LocalAddress> address = connection_->FindLocalAddress();
    if (!address.ok()) return address.status();
    absl::StatusOr<std::shared_ptr<Attachment>> opened = Attach(*address);
    if (!opened.ok()) return opened.status();
    const MutexLock lock(mutex_);
    attachment_ = *std::move(opened);
    keeper_ = std::thread([this] { Keep(); });
    return absl::OkStatus();
  }

  /// Null: the server computes.
  std::shared_ptr<Attachment> attachment() {
    const MutexLock lock(mutex_);
    return attachment_;
  }
  absl::Status status() {
    std::shared_ptr<Attachment> present;
    const MutexLock lock(mutex_);
    present = attachment_;
    return present == nullptr || !status_.ok() ? status_ : present->status();
  }
  const Matrix& matrix() const { return matrix_; }
  const std::optional<int>& gpu() const { return gpu_; }
  ExportedProduct::Where Where(GpuStream stream = {}) const { return {threads_, stream.handle}; }
  int64_t runs() const { return runs_; }

  // None: they cannot run here, or what is wrong with them the server says.
  std::optional<absl::StatusOr<ComputeResult>> Spmm(const DenseView& b, const MutableDenseView& c,
                                                    const SpmmOptions& spmm,
                                                    const ExportedProduct::Where& where,
                                                    const CallOptions& options = {});
  std::optional<absl::StatusOr<ComputeResult>> Sddmm(const DenseView& a, const DenseView& b,
                                                     const MutableDenseView& values,
                                                     const SddmmOptions& sddmm,
                                                     const ExportedProduct::Where& where,
                                                     const CallOptions& options = {});

 private:
  /// Counts one run, if it was one.
  absl::StatusOr<ComputeResult> Count(const Attachment::Product& product,
                                      UsagePage::Counters& counters, uint64_t bytes_in,
                                      uint64_t bytes_out,
                                      const ExportedProduct::Accounted& accounted) {
    if (!accounted.ok()) return accounted.status();
    ComputeResult result;
    result.plan = product.plan;
    result.version = product.version;
    result.transport = Transport::kAttached;
    const std::optional<std::chrono::nanoseconds>& took = *accounted;
    if (!took) return result;
    counters.calls.fetch_add(1, std::memory_order_relaxed);
    counters.nanoseconds.fetch_add(static_cast<uint64_t>(took->count()), std::memory_order_relaxed);
    counters.bytes_in.fetch_add(bytes_in, std::memory_order_relaxed);
    counters.bytes_out.fetch_add(bytes_out, std::memory_order_relaxed);
    runs_.fetch_add(1, std::memory_order_relaxed);
    if (!gpu_) result.timings.kernel = result.timings.total = *took;
    return result;
  }

  absl::StatusOr<std::shared_ptr<Attachment>> Attach(const LocalAddress& address) {
    if (address.path.empty()) {
      return absl::FailedPreconditionError(
          "the server has no local socket (its --local-listen), so nobody can attach to it");
    }
    absl::StatusOr<std::shared_ptr<LocalSocket>> socket = LocalSocket::Connect(address);
    if (!socket.ok()) return socket.status();
    {
      const MutexLock lock(mutex_);
      if (closing_) return absl::CancelledError("nobody is attached any more");
      opening_ = *socket;
    }
    absl::StatusOr<std::shared_ptr<Attachment>> opened =
        Attachment::Open(*socket, matrix_.name(), gpu_);
    const MutexLock lock(mutex_);
    opening_ = nullptr;
    return opened;
  }

  void Keep() {
    MutexLock lock(mutex_);
    while (!closing_) {
      changed_.WaitUntil(mutex_, Clock::now() + kLook);
      if (closing_) return;
      if (attachment_ != nullptr && attachment_->Alive()) continue;
      lock.Unlock();
      const absl::StatusOr<LocalAddress> address = connection_->FindLocalAddress();
      absl::StatusOr<std::shared_ptr<Attachment>> again =
          address.ok() ? Attach(*address) : address.status();
      lock.Lock();
      // While nobody answers, what there is serves. Who answers may have other values.
      if (absl::IsUnavailable(address.status())) continue;
      status_ = again.status();
      std::shared_ptr<Attachment> other = again.ok() ? *std::move(again) : nullptr;
      attachment_.swap(other);
      lock.Unlock();
      other = nullptr;  // which may unmap gigabytes
      lock.Lock();
    }
  }

  const std::shared_ptr<Connection> connection_;
  const Matrix matrix_;
  const int threads_;
  const std::optional<int> gpu_;
  std::atomic<int64_t> runs_ = 0;
  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  /// What the keeper waits on, maybe.
  std::shared_ptr<LocalSocket> opening_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Attachment> attachment_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread keeper_;  ///< looks whether the server is there
};

absl::StatusOr<AttachedMatrix> AttachedMatrix::Attach(const Client& client, const std::string& name,
                                                      const AttachOptions& attach) {
  if (attach.threads < 0) {
    return absl::InvalidArgumentError(fmt::format(
        "{} threads cannot compute; 0 means as many as there are cores", attach.threads));
  }
  auto state =
      std::make_shared<State>(client.connection_, client.MatrixNamed(name),
                              attach.threads == 0 ? DefaultThreads() : attach.threads, attach.gpu);
  if (absl::Status s = state->Open(); !s.ok()) return s;
  return AttachedMatrix(std::move(state));
}

const std::string& AttachedMatrix::name() const { return state_->matrix().name(); }
const Matrix& AttachedMatrix::matrix() const { return state_->matrix(); }
absl::Status AttachedMatrix::status() const { return state_->status(); }
int64_t AttachedMatrix::runs() const { return state_->runs(); }

std::optional<absl::StatusOr<ComputeResult>> AttachedMatrix::State::Spmm(
    const DenseView& b, const MutableDenseView& c, const SpmmOptions& spmm,
    const ExportedProduct::Where& where, const CallOptions& options) {
  const std::shared_ptr<Attachment> attachment = this->attachment();
  const std::optional<const DenseView*> old = ViewOf(spmm.accumulate), own = ViewOf(spmm.values);
  if (attachment == nullptr || !old || !own) return std::nullopt;
  v1::ProblemClass problem;
  problem.set_operation(v1::ProblemClass::SPMM);
  problem.set_transposed(spmm.transpose);
  problem.set_k(b.cols);
  problem.set_allow_tf32(spmm.allow_tf32);
  const Clock::time_point deadline = DeadlineOf(options);
  const absl::StatusOr<std::shared_ptr<const Attachment::Product>> found =
      attachment->Find(problem, deadline);
  if (!found.ok()) {
    if (Clock::now() >= deadline) return found.status();
    return std::nullopt;
  }
  const Attachment::Product& product = **found;
  const int64_t rows = spmm.transpose ? product.cols : product.rows;
  const bool in_place = *old == nullptr || Same(**old, c);
  if (!Fits(b, spmm.transpose ? product.rows : product.cols, b.cols, product.type) ||
      !Fits(c, rows, b.cols, product.type) || Overlap(b, c) || !FitsValues(*own, product) ||
      (*own != nullptr && Overlap(**own, c)) ||
      (*old != nullptr &&
       (!Fits(**old, rows, b.cols, product.type) || (!in_place && Overlap(**old, c))))) {
    return std::nullopt;
  }
  std::optional<DenseMemory> before, values;
  if (spmm.beta != 0 && !in_place) before = MemoryOf(**old);
  if (*own != nullptr) values = MemoryOf(**own);
  return Count(product, attachment->usage().spmm(), Bytes(b), Bytes(c),
               product.runs->Spmm(MemoryOf(b), MemoryOf(c), before ? &*before : nullptr,
                                  values ? &*values : nullptr, spmm.alpha, spmm.beta, where));
}

std::optional<absl::StatusOr<ComputeResult>> AttachedMatrix::State::Sddmm(
    const DenseView& a, const DenseView& b, const MutableDenseView& values,
    const SddmmOptions& sddmm, const ExportedProduct::Where& where, const CallOptions& options) {
  const std::shared_ptr<Attachment> attachment = this->attachment();
  const std::optional<const DenseView*> own = ViewOf(sddmm.values);
  if (attachment == nullptr || !own) return std::nullopt;
  v1::ProblemClass problem;
  problem.set_operation(v1::ProblemClass::SDDMM);
  problem.set_k(a.cols);
  const Clock::time_point deadline = DeadlineOf(options);
  const absl::StatusOr<std::shared_ptr<const Attachment::Product>> found =
      attachment->Find(problem, deadline);
  if (!found.ok()) {
    if (Clock::now() >= deadline) return found.status();
    return std::nullopt;
  }
  const Attachment::Product& product = **found;
  if (!Fits(a, product.rows, a.cols, product.type) ||
      !Fits(b, product.cols, a.cols, product.type) || !Fits(values, product.nnz, 1, product.type) ||
      Overlap(a, values) || Overlap(b, values) || !FitsValues(*own, product) ||
      (*own != nullptr && (sddmm.unscaled || Overlap(**own, values)))) {
    return std::nullopt;
  }
  const DenseMemory scale = *own == nullptr ? DenseMemory() : MemoryOf(**own);
  return Count(product, attachment->usage().sddmm(), Bytes(a) + Bytes(b), Bytes(values),
               product.runs->Sddmm(MemoryOf(a), MemoryOf(b), MemoryOf(values),
                                   *own == nullptr ? nullptr : &scale, sddmm.unscaled, where));
}

absl::StatusOr<ComputeResult> AttachedMatrix::Spmm(const Operand& b, const Destination& c,
                                                   const SpmmOptions& spmm,
                                                   const CallOptions& options) const {
  const auto* const from = std::get_if<DenseView>(&b);
  const auto* const to = std::get_if<MutableDenseView>(&c);
  if (from != nullptr && to != nullptr && !state_->gpu()) {
    auto here = state_->Spmm(*from, *to, spmm, state_->Where(), options);
    if (here) return *std::move(here);
  }
  return state_->matrix().Spmm(b, c, spmm, options);
}

absl::StatusOr<ComputeResult> AttachedMatrix::Sddmm(const Operand& a, const Operand& b,
                                                    const Destination& values,
                                                    const SddmmOptions& sddmm,
                                                    const CallOptions& options) const {
  const auto* const left = std::get_if<DenseView>(&a);
  const auto* const right = std::get_if<DenseView>(&b);
  const auto* const to = std::get_if<MutableDenseView>(&values);
  if (left != nullptr && right != nullptr && to != nullptr && !state_->gpu()) {
    auto here = state_->Sddmm(*left, *right, *to, sddmm, state_->Where(), options);
    if (here) return *std::move(here);
  }
  return state_->matrix().Sddmm(a, b, values, sddmm, options);
}

absl::StatusOr<ComputeResult> AttachedMatrix::Spmm(GpuStream stream, const DenseView& b,
                                                   const MutableDenseView& c,
                                                   const SpmmOptions& spmm) const {
  if (!state_->gpu()) return NotOnGpu();
  auto here = state_->Spmm(b, c, spmm, state_->Where(stream));
  if (here) return *std::move(here);
  const std::optional<const DenseView*> old = ViewOf(spmm.accumulate), own = ViewOf(spmm.values);
  if (!old || !own) return NotAView();
  const int gpu = *state_->gpu();
  HostCopy from(gpu, stream), before(gpu, stream), values(gpu, stream), result(gpu, stream);
  SpmmOptions there = spmm;
  absl::Status status = from.Take(b);
  if (status.ok() && spmm.beta != 0) {
    status = before.Take(
        *old != nullptr ? **old : DenseView(c.data, c.type, c.rows, c.cols, c.leading_dimension));
    there.accumulate = before.view();
  }
  if (status.ok() && *own != nullptr) {
    status = values.Take(**own);
    there.values = values.view();
  }
  if (!status.ok()) return status;
  if (status = result.Resize(c); !status.ok()) return status;
  absl::StatusOr<ComputeResult> done =
      state_->matrix().Spmm(from.view(), result.mutable_view(), there);
  if (!done.ok()) return done;
  if (status = result.Put(c); !status.ok()) return status;
  return done;
}

absl::StatusOr<ComputeResult> AttachedMatrix::Sddmm(GpuStream stream, const DenseView& a,
                                                    const DenseView& b,
                                                    const MutableDenseView& values,
                                                    const SddmmOptions& sddmm) const {
  if (!state_->gpu()) return NotOnGpu();
  auto here = state_->Sddmm(a, b, values, sddmm, state_->Where(stream));
  if (here) return *std::move(here);
  const std::optional<const DenseView*> own = ViewOf(sddmm.values);
  if (!own) return NotAView();
  const int gpu = *state_->gpu();
  HostCopy left(gpu, stream), right(gpu, stream), scale(gpu, stream), result(gpu, stream);
  SddmmOptions there = sddmm;
  absl::Status status = left.Take(a);
  if (status.ok()) status = right.Take(b);
  if (status.ok() && *own != nullptr) {
    status = scale.Take(**own);
    there.values = scale.view();
  }
  if (!status.ok()) return status;
  if (status = result.Resize(values); !status.ok()) return status;
  absl::StatusOr<ComputeResult> done =
      state_->matrix().Sddmm(left.view(), right.view(), result.mutable_view(), there);
  if (!done.ok()) return done;
  if (status = result.Put(values); !status.ok()) return status;
  return done;
}

}  // namespace client
}  // namespace sparsed
