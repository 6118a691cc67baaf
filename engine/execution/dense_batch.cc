// SpMM calls that run as one: their operands side by side make one wide operand, and each has the
// columns of the result that are its own.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/execution/dense_call.h"
#include "engine/execution/dense_product.h"

namespace sparsed::engine {
namespace {

/// Columns of a batch: wider kernels hardly do more for each of them.
constexpr int64_t kMostColumns = 256;
/// Of its operands and results together, which are there twice meanwhile. To copy larger ones takes
/// longer than what joining them saves.
constexpr int64_t kMostBytes = int64_t{64} << 20;

}  // namespace

Joint DenseCall::JoinsAs() const {
  if (problem_.operation != Operation::kSpmm || own_values_ || queue_.queue != nullptr) return {};
  const int64_t rows = operands_[0].shape.rows + result_.shape().rows;
  if (operands_[0].shape.rows == 0 || result_.shape().rows == 0 || problem_.k < 1) return {};
  const int64_t fit = kMostBytes / (rows * static_cast<int64_t>(SizeOf(problem_.type)));
  int64_t most = std::min(kMostColumns, fit);
  if (device().kind == DeviceKind::kCpu) {
    // Joined they are not cut: others are not to wait for much more than a piece.
    const auto nnz = static_cast<double>(std::max<int64_t>(matrix_->pattern()->nnz(), 1));
    const double soon = 2 * LongWork() / nnz;
    if (soon < static_cast<double>(most)) most = static_cast<int64_t>(soon);
  } else if (SecondsAlone(problem_.k) <= kShortOnGpuSeconds) {
    // Short ones together are short, too: others are behind them in the slot for such. Nobody waits
    // for the end of long ones, and those gain most.
    while (most >= 2 * problem_.k && SecondsAlone(most) > kShortOnGpuSeconds) most /= 2;
  }
  // It is to leave room for another of its kind.
  if (2 * problem_.k > most) return {};
  // A version of the values has an address of its own for as long as somebody uses it.
  return {fmt::format("{} {} {} {:a} {:a} {}", fmt::ptr(matrix_.get()), problem_.transposed,
                      problem_.allow_tf32, alpha_, beta_, most),
          problem_.k, most};
}

/// One product of several calls. Whatever fails leaves them to run by themselves, nothing having
/// been sent.
class DenseCall::Joined {
 public:
  /// `first` is of them, and outlives this.
  Joined(DenseCall& first, WorkerSlot& slot)
      : first_(first), slot_(slot), problem_(first.problem_) {}

  /// Where the operands of those that are still wanted are, for a kernel. False: of fewer than two.
  bool Take(std::span<Job* const> batch);
  /// False: it failed, or nobody wants it.
  bool Multiply(const std::atomic<bool>* stop);
  /// Each its result, but where it was stopped meanwhile or there is no room for that.
  void HandBack(const Ended& ended);

 private:
  struct Part {
    size_t job;  ///< of the batch
    DenseCall* call;
    int64_t column;  ///< its first
    PlacedDense b;
    PlacedDense old;  ///< if beta is not 0
    PlacedDense result = {};

    PlacedDense Of(const PlacedDense& wide) const {
      return ColumnsOf(wide, column, call->problem_.k);
    }
  };

  absl::StatusOr<PlacedDense> NewWide(std::string_view name, int64_t rows) {
    return backend_.NewDense(name, {rows, problem_.k, problem_.k, problem_.type},
                             backend_.MemoryFor(MemoryUse::kRequests, first_.owner_), slot_);
  }
  absl::StatusOr<Resolved> FindPlan();
  absl::StatusOr<PlacedDense> GatherB();
  absl::Status GatherC();
  /// False: it is left to itself.
  bool MakeResult(Part& part);

  DenseCall& first_;
  WorkerSlot& slot_;
  Backend& backend_ = *slot_.backend;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  Problem problem_;  ///< of all of them
  std::vector<Part> parts_;
  std::string plan_;
  PlacedDense c_;
  uint64_t to_device_ns_ = 0, kernel_ns_ = 0;
  std::chrono::steady_clock::time_point computed_;
};

bool DenseCall::Joined::Take(std::span<Job* const> batch) {
  problem_.k = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    auto* const call = static_cast<DenseCall*>(batch[i]);  // their keys are equal
    if (call->token().stopped()) continue;
    absl::StatusOr<PlacedDense> b = call->operands_[0].On(backend_, slot_, call->token());
    if (!b.ok()) continue;
    absl::StatusOr<PlacedDense> old = PlacedDense();
    if (call->beta_ != 0) old = call->operands_[1].On(backend_, slot_, call->token());
    if (!old.ok()) continue;
    parts_.push_back({i, call, problem_.k, *std::move(b), *std::move(old)});
    problem_.k += call->problem_.k;
  }
  return parts_.size() > 1;
}

absl::StatusOr<Resolved> DenseCall::Joined::FindPlan() {
  Executor::Impl& impl = *first_.impl_;
  PlanTable::Found found = first_.matrix_->pattern()->plans().Find(SignatureOf(problem_));
  // A worker slot does not read the disk: what the first of them was going to run by is in memory.
  if (LoaderOf(impl, first_.device(), first_.matrix_, found) != nullptr) found = first_.plan_;
  return Resolve(impl, first_.device(), first_.matrix_, problem_, found, IsTrial(first_.tenant()));
}

absl::StatusOr<PlacedDense> DenseCall::Joined::GatherB() {
  absl::StatusOr<PlacedDense> b = NewWide("B", first_.operands_[0].shape.rows);
  if (!b.ok()) return b;
  std::vector<DenseCopy> copies;
  for (const Part& part : parts_) copies.push_back({part.b, part.Of(*b)});
  if (absl::Status s = backend_.CopyDense(copies, slot_); !s.ok()) return s;
  return b;
}

absl::Status DenseCall::Joined::GatherC() {
  absl::StatusOr<PlacedDense> c = NewWide("dense", first_.result_.shape().rows);
  if (!c.ok()) return c.status();
  c_ = *std::move(c);
  if (first_.beta_ == 0) return absl::OkStatus();
  std::vector<DenseCopy> copies;
  for (const Part& part : parts_) copies.push_back({part.old, part.Of(c_)});
  return backend_.CopyDense(copies, slot_);
}

bool DenseCall::Joined::Multiply(const std::atomic<bool>* stop) {
  absl::StatusOr<Resolved> plan = FindPlan();
  if (!plan.ok()) return false;
  const absl::StatusOr<PlacedSparse> s = first_.PlaceMatrix(*plan, slot_);
  if (!s.ok()) return false;
  const absl::StatusOr<PlacedDense> b = GatherB();
  if (!b.ok() || !GatherC().ok()) return false;
  const BoundRun run = BindProduct(*plan, *s, *b, nullptr, c_, first_.alpha_, first_.beta_);
  to_device_ns_ = NanosecondsSince(begin_);
  double milliseconds = 0;
  const absl::Status ran = backend_.Run(
      slot_, run, {slot_.workspace, backend_.memory(MemoryUse::kRequests), stop}, &milliseconds);
  kernel_ns_ = static_cast<uint64_t>(milliseconds * 1e6);
  first_.AddBusy(kernel_ns_);
  if (!ran.ok()) return false;
  computed_ = std::chrono::steady_clock::now();
  plan_ = plan->text;
  for (Part& part : parts_) {
    part.b = part.old = {};
    part.call->operands_.Settled();
  }
  first_.Observe(problem_, run.kernel(), kernel_ns_);
  first_.impl_->observer.OnBatch(Name(backend_.id()), std::ssize(parts_));
  return true;
}

bool DenseCall::Joined::MakeResult(Part& part) {
  if (part.call->token().stopped()) return false;
  absl::StatusOr<PlacedDense> result = part.call->EmptyResult(slot_);
  if (!result.ok()) return false;
  part.result = *std::move(result);
  return !part.call->result_.kept() || backend_.ClearPadding(part.result, slot_).ok();
}

void DenseCall::Joined::HandBack(const Ended& ended) {
  std::vector<Part*> wanted;
  std::vector<DenseCopy> copies;
  for (Part& part : parts_) {
    if (!MakeResult(part)) continue;
    wanted.push_back(&part);
    copies.push_back({part.Of(c_), part.result});
  }
  if (!backend_.CopyDense(copies, slot_).ok()) return;
  copies.clear();
  c_ = {};
  for (Part* const part : wanted) {
    DenseCall& call = *part->call;
    call.SendBegin(plan_);
    absl::Status sent = call.Send(std::move(part->result), backend_, slot_);
    CallTimings& timings = call.end_.timings;
    timings.kernel_ns += kernel_ns_;
    if (backend_.id().kind != DeviceKind::kCpu) {
      timings.to_device_ns = to_device_ns_;
      timings.from_device_ns = NanosecondsSince(computed_);
    }
    call.end_.batch = std::ssize(parts_);
    ended(part->job, CheckedOn(backend_, call.token(), std::move(sent)));
  }
}

void DenseCall::RunTogether(WorkerSlot& slot, std::span<Job* const> batch,
                            const std::atomic<bool>* stop, const Ended& ended) {
  Joined joined(*this, slot);
  if (joined.Take(batch) && joined.Multiply(stop)) joined.HandBack(ended);
}

}  // namespace sparsed::engine
