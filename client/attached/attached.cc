#include "sparsed/attached.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "client/attached/attached_state.h"
#include "client/attached/attachment.h"
#include "client/attached/views.h"
#include "client/src/time_left.h"

namespace sparsed {
inline namespace client {
namespace {

/// That OpenMP would use: the cores that the process may run on.
int DefaultThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

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

absl::Status NotAView() {
  return absl::InvalidArgumentError(
      "what runs in a stream takes operands in the GPU's memory, none that the server holds");
}

}  // namespace

absl::StatusOr<AttachedMatrix> AttachedMatrix::Attach(const Client& client, const std::string& name,
                                                      const AttachOptions& attach) {
  if (attach.threads < 0 || attach.threads > AttachOptions::kMostThreads) {
    return absl::InvalidArgumentError(fmt::format(
        "{} threads cannot compute: at most {} can, and 0 means as many as there are cores",
        attach.threads, AttachOptions::kMostThreads));
  }
  auto state =
      std::make_shared<State>(client.connection_, client.MatrixNamed(name),
                              attach.threads == 0 ? DefaultThreads() : attach.threads, attach.gpu);
  const TimeLeft time({.timeout = attach.timeout});
  if (absl::Status s = state->Open(time.deadline()); !s.ok()) return s;
  return AttachedMatrix(std::move(state));
}

const std::string& AttachedMatrix::name() const { return state_->matrix().name(); }
const Matrix& AttachedMatrix::matrix() const { return state_->matrix(); }
absl::Status AttachedMatrix::status() const { return state_->status(); }
int64_t AttachedMatrix::runs() const { return state_->runs(); }

std::optional<absl::StatusOr<ComputeResult>> AttachedMatrix::State::Spmm(
    const DenseView& b, const MutableDenseView& c, const SpmmOptions& spmm,
    const ExportedProduct::Where& where, Clock::time_point deadline) {
  const std::shared_ptr<Attachment> attachment = this->attachment();
  const std::optional<const DenseView*> old = ViewOf(spmm.accumulate), own = ViewOf(spmm.values);
  if (attachment == nullptr || !old || !own) return std::nullopt;
  v1::ProblemClass problem;
  problem.set_operation(v1::ProblemClass::SPMM);
  problem.set_transposed(spmm.transpose);
  problem.set_k(b.cols);
  problem.set_allow_tf32(spmm.allow_tf32);
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
  return Count(product.plan, product.version, attachment->usage().spmm(), Bytes(b), Bytes(c),
               product.runs->Spmm(MemoryOf(b), MemoryOf(c), before ? &*before : nullptr,
                                  values ? &*values : nullptr, spmm.alpha, spmm.beta, where));
}

std::optional<absl::StatusOr<ComputeResult>> AttachedMatrix::State::Sddmm(
    const DenseView& a, const DenseView& b, const MutableDenseView& values,
    const SddmmOptions& sddmm, const ExportedProduct::Where& where, Clock::time_point deadline) {
  const std::shared_ptr<Attachment> attachment = this->attachment();
  const std::optional<const DenseView*> own = ViewOf(sddmm.values);
  if (attachment == nullptr || !own) return std::nullopt;
  v1::ProblemClass problem;
  problem.set_operation(v1::ProblemClass::SDDMM);
  problem.set_k(a.cols);
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
  return Count(product.plan, product.version, attachment->usage().sddmm(), Bytes(a) + Bytes(b),
               Bytes(values),
               product.runs->Sddmm(MemoryOf(a), MemoryOf(b), MemoryOf(values),
                                   *own == nullptr ? nullptr : &scale, sddmm.unscaled, where));
}

absl::StatusOr<ComputeResult> AttachedMatrix::Spmm(const Operand& b, const Destination& c,
                                                   const SpmmOptions& spmm,
                                                   const CallOptions& options) const {
  const TimeLeft time(options);
  const auto* const from = std::get_if<DenseView>(&b);
  const auto* const to = std::get_if<MutableDenseView>(&c);
  if (from != nullptr && to != nullptr && !state_->gpu()) {
    auto here = state_->Spmm(*from, *to, spmm, state_->Where(), time.deadline());
    if (here) return *std::move(here);
  }
  return state_->matrix().Spmm(b, c, spmm, time.rest());
}

absl::StatusOr<ComputeResult> AttachedMatrix::Sddmm(const Operand& a, const Operand& b,
                                                    const Destination& values,
                                                    const SddmmOptions& sddmm,
                                                    const CallOptions& options) const {
  const TimeLeft time(options);
  const auto* const left = std::get_if<DenseView>(&a);
  const auto* const right = std::get_if<DenseView>(&b);
  const auto* const to = std::get_if<MutableDenseView>(&values);
  if (left != nullptr && right != nullptr && to != nullptr && !state_->gpu()) {
    auto here = state_->Sddmm(*left, *right, *to, sddmm, state_->Where(), time.deadline());
    if (here) return *std::move(here);
  }
  return state_->matrix().Sddmm(a, b, values, sddmm, time.rest());
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
