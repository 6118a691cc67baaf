#include "sparsed/attached.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
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

void CopyRows(const DenseView& from, const MutableDenseView& to) {
  const size_t element = SizeOf(from.type);
  for (int64_t row = 0; row < from.rows; ++row) {
    std::memcpy(static_cast<std::byte*>(to.data) +
                    static_cast<size_t>(row * LeadingDimension(to)) * element,
                static_cast<const std::byte*>(from.data) +
                    static_cast<size_t>(row * LeadingDimension(from)) * element,
                static_cast<size_t>(from.cols) * element);
  }
}

template <typename View>
uint64_t Bytes(const View& view) {
  return static_cast<uint64_t>(view.rows * view.cols) * SizeOf(view.type);
}

ComputeResult ResultOf(const Attachment::Product& product, std::chrono::nanoseconds kernel) {
  ComputeResult result;
  result.plan = product.plan;
  result.version = product.version;
  result.timings.kernel = kernel;
  result.timings.total = kernel;
  return result;
}

}  // namespace

/// Keeps an attachment, and takes another one when the server has started anew.
class AttachedMatrix::State {
 public:
  State(std::shared_ptr<Connection> connection, Matrix matrix, int threads)
      : connection_(std::move(connection)), matrix_(std::move(matrix)), threads_(threads) {}

  ~State() {
    {
      const MutexLock lock(mutex_);
      closing_ = true;
      changed_.NotifyAll();
    }
    if (keeper_.joinable()) keeper_.join();
  }

  absl::Status Open() {
    absl::StatusOr<std::shared_ptr<Attachment>> opened = Attach();
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
    const MutexLock lock(mutex_);
    return status_;
  }
  const Matrix& matrix() const { return matrix_; }
  int threads() const { return threads_; }
  int64_t runs() const { return runs_; }

  /// Of one run: times it, and counts it.
  template <typename Run>
  absl::StatusOr<ComputeResult> Timed(const Attachment::Product& product,
                                      UsagePage::Counters& counters, uint64_t bytes_in,
                                      uint64_t bytes_out, const Run& run) {
    const Clock::time_point begin = Clock::now();
    const absl::Status status = run();
    const std::chrono::nanoseconds kernel = Clock::now() - begin;
    if (!status.ok()) return status;
    counters.calls.fetch_add(1, std::memory_order_relaxed);
    counters.nanoseconds.fetch_add(static_cast<uint64_t>(kernel.count()),
                                   std::memory_order_relaxed);
    counters.bytes_in.fetch_add(bytes_in, std::memory_order_relaxed);
    counters.bytes_out.fetch_add(bytes_out, std::memory_order_relaxed);
    runs_.fetch_add(1, std::memory_order_relaxed);
    return ResultOf(product, kernel);
  }

 private:
  absl::StatusOr<std::shared_ptr<Attachment>> Attach() {
    absl::StatusOr<LocalAddress> address = connection_->FindLocalAddress();
    if (!address.ok()) return address.status();
    if (address->path.empty()) {
      return absl::FailedPreconditionError(
          "the server has no local socket (its --local-listen), so nobody can attach to it");
    }
    return Attachment::Open(*address, matrix_.name());
  }

  void Keep() {
    MutexLock lock(mutex_);
    while (!closing_) {
      changed_.WaitUntil(mutex_, Clock::now() + kLook);
      if (closing_) return;
      const std::shared_ptr<Attachment> present = attachment_;
      lock.Unlock();
      if (present != nullptr && present->Alive()) {
        lock.Lock();
        continue;
      }
      absl::StatusOr<std::shared_ptr<Attachment>> again = Attach();
      lock.Lock();
      // While nobody answers, what there is serves.
      if (!again.ok() && absl::IsUnavailable(again.status())) continue;
      status_ = again.status();
      attachment_ = again.ok() ? *std::move(again) : nullptr;
    }
  }

  const std::shared_ptr<Connection> connection_;
  const Matrix matrix_;
  const int threads_;
  std::atomic<int64_t> runs_ = 0;
  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
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
  auto state = std::make_shared<State>(client.connection_, client.MatrixNamed(name),
                                       attach.threads == 0 ? DefaultThreads() : attach.threads);
  if (absl::Status s = state->Open(); !s.ok()) return s;
  return AttachedMatrix(std::move(state));
}

const std::string& AttachedMatrix::name() const { return state_->matrix().name(); }
const Matrix& AttachedMatrix::matrix() const { return state_->matrix(); }
absl::Status AttachedMatrix::status() const { return state_->status(); }
int64_t AttachedMatrix::runs() const { return state_->runs(); }

absl::StatusOr<ComputeResult> AttachedMatrix::Spmm(const Operand& b, const Destination& c,
                                                   const SpmmOptions& spmm,
                                                   const CallOptions& options) const {
  const auto elsewhere = [&] { return state_->matrix().Spmm(b, c, spmm, options); };
  const std::shared_ptr<Attachment> attachment = state_->attachment();
  const auto* const from = std::get_if<DenseView>(&b);
  const auto* const to = std::get_if<MutableDenseView>(&c);
  const auto* const old = spmm.accumulate ? std::get_if<DenseView>(&*spmm.accumulate) : nullptr;
  if (attachment == nullptr || from == nullptr || to == nullptr || spmm.values ||
      (spmm.accumulate && old == nullptr)) {
    return elsewhere();
  }
  v1::ProblemClass problem;
  problem.set_operation(v1::ProblemClass::SPMM);
  problem.set_transposed(spmm.transpose);
  problem.set_k(from->cols);
  problem.set_allow_tf32(spmm.allow_tf32);
  const absl::StatusOr<std::shared_ptr<const Attachment::Product>> found =
      attachment->Find(problem);
  // What is wrong the server says.
  if (!found.ok()) return elsewhere();
  const Attachment::Product& product = **found;
  const int64_t rows = spmm.transpose ? product.cols : product.rows;
  const bool adds = spmm.beta != 0;
  const bool in_place = old == nullptr || Same(*old, *to);
  if (!Fits(*from, spmm.transpose ? product.rows : product.cols, from->cols, product.type) ||
      !Fits(*to, rows, from->cols, product.type) || Overlap(*from, *to) ||
      (old != nullptr &&
       (!Fits(*old, rows, from->cols, product.type) || (!in_place && Overlap(*old, *to))))) {
    return elsewhere();
  }
  return state_->Timed(product, attachment->usage().spmm(), Bytes(*from), Bytes(*to), [&] {
    if (adds && !in_place) CopyRows(*old, *to);
    return product.runs->Spmm(MemoryOf(*from), MemoryOf(*to), spmm.alpha, spmm.beta,
                              state_->threads());
  });
}

absl::StatusOr<ComputeResult> AttachedMatrix::Sddmm(const Operand& a, const Operand& b,
                                                    const Destination& values,
                                                    const SddmmOptions& sddmm,
                                                    const CallOptions& options) const {
  const auto elsewhere = [&] { return state_->matrix().Sddmm(a, b, values, sddmm, options); };
  const std::shared_ptr<Attachment> attachment = state_->attachment();
  const auto* const left = std::get_if<DenseView>(&a);
  const auto* const right = std::get_if<DenseView>(&b);
  const auto* const to = std::get_if<MutableDenseView>(&values);
  if (attachment == nullptr || left == nullptr || right == nullptr || to == nullptr ||
      sddmm.values) {
    return elsewhere();
  }
  v1::ProblemClass problem;
  problem.set_operation(v1::ProblemClass::SDDMM);
  problem.set_k(left->cols);
  const absl::StatusOr<std::shared_ptr<const Attachment::Product>> found =
      attachment->Find(problem);
  if (!found.ok()) return elsewhere();
  const Attachment::Product& product = **found;
  if (!Fits(*left, product.rows, left->cols, product.type) ||
      !Fits(*right, product.cols, left->cols, product.type) ||
      !Fits(*to, product.nnz, 1, product.type) || Overlap(*left, *to) || Overlap(*right, *to)) {
    return elsewhere();
  }
  return state_->Timed(
      product, attachment->usage().sddmm(), Bytes(*left) + Bytes(*right), Bytes(*to), [&] {
        return product.runs->Sddmm(MemoryOf(*left), MemoryOf(*right), MemoryOf(*to), sddmm.unscaled,
                                   state_->threads());
      });
}

}  // namespace client
}  // namespace sparsed
