#include "engine/execution/row_phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "engine/execution/chain_call.h"

namespace sparsed::engine {
namespace {

/// No matrix has such a name.
constexpr const char* kFetchedColumns = " (fetched)";

int64_t BytesOfRows(const DenseShape& shape, int64_t rows) {
  return rows * shape.cols * static_cast<int64_t>(SizeOf(shape.type));
}

bool SameSizes(const DenseShape& one, const DenseShape& other) {
  return one.rows == other.rows && one.cols == other.cols && one.type == other.type;
}

}  // namespace

struct RowPhases::Derived {
  Mutex mutex;
  absl::StatusOr<std::shared_ptr<RowDistribution>> rows ABSL_GUARDED_BY(mutex) =
      absl::InternalError("the matrix's rows were not divided");
};

/// Divides a matrix's rows, where the disk is read, and computes nothing.
class RowPhases::Derive final : public Job {
 public:
  struct Work {
    std::shared_ptr<Executor::Impl> impl;
    MatrixLease matrix;
    Problem problem;
    std::shared_ptr<const ActivePlan> plan;
    std::vector<int64_t> bounds;
    std::shared_ptr<RowDistribution> known;  ///< without plans yet; null: it is to be made
    std::shared_ptr<Derived> to;

    absl::StatusOr<std::shared_ptr<RowDistribution>> Find(const std::atomic<bool>* stop) const;
  };

  Derive(Work work, std::string tenant, std::shared_ptr<ResultSink> sink)
      : Job(work.impl->scheduler, std::move(tenant), std::move(sink), DeviceId{}),
        work_(std::move(work)) {}
  absl::StatusOr<ClaimedBytes> Claim(uint32_t /*array*/, uint64_t /*offset*/,
                                     uint64_t /*size*/) override {
    return absl::InvalidArgumentError("it has no operands");
  }
  bool complete() const override { return true; }

 private:
  Next Run(WorkerSlot& /*slot*/, absl::Status* end) override {
    const MutexLock lock(work_.to->mutex);
    *end = work_.to->rows.status();
    return Next::kEnded;
  }
  void Drop() override {}
  Loader ToLoad() const override {
    return [work = work_](const std::atomic<bool>* stop) -> Held {
      absl::StatusOr<std::shared_ptr<RowDistribution>> rows = work.Find(stop);
      const MutexLock lock(work.to->mutex);
      work.to->rows = std::move(rows);
      return {};
    };
  }

  const Work work_;
};

absl::StatusOr<std::shared_ptr<RowDistribution>> RowPhases::Derive::Work::Find(
    const std::atomic<bool>* stop) const {
  const std::shared_ptr<Pattern>& pattern = matrix->pattern();
  absl::StatusOr<std::shared_ptr<RowDistribution>> rows =
      FindOrBuildRows(*impl->derived, pattern, problem, plan, bounds, /*with_layouts=*/false,
                      impl->budget, stop, known);
  const auto now = std::chrono::steady_clock::now();
  if (!rows.ok() || !(*rows)->AsksForLayouts(problem, plan, *pattern, now)) return rows;
  // Layouts are built beside requests, where there is somebody for that.
  if (impl->on_new_rows && impl->on_new_rows(matrix, problem, bounds)) return rows;
  return FindOrBuildRows(*impl->derived, pattern, problem, plan, bounds, /*with_layouts=*/true,
                         impl->budget, stop, *rows);
}

absl::StatusOr<std::unique_ptr<RowPhases>> RowPhases::Begin(
    const std::shared_ptr<Executor::Impl>& impl, const ChainSpec& spec,
    const std::vector<HeldDenseLease>& held) {
  std::unique_ptr<RowPhases> phases(new RowPhases(impl, spec));
  absl::StatusOr<bool> in_rows = phases->AddOperands(held);
  for (size_t i = 0; i < spec.steps.size() && in_rows.ok() && *in_rows; ++i) {
    in_rows = phases->AddStep(i);
  }
  if (in_rows.ok() && *in_rows) in_rows = phases->AddResults();
  if (!in_rows.ok()) return in_rows.status();
  if (!*in_rows) return std::unique_ptr<RowPhases>();
  return phases;
}

absl::StatusOr<bool> RowPhases::AddOperands(const std::vector<HeldDenseLease>& held) {
  const size_t count = impl_->gpus.size();
  for (const HeldDenseLease& operand : held) {
    if (operand == nullptr) return false;
    values_.push_back({operand->shape, operand, {}, {}, 0});
    values_.back().shape.leading_dimension = operand->shape.cols;
    if (operand->distribution() == Distribution::kRows && operand->blocks.size() == count) {
      values_.back().bounds = RowBoundsOf(operand->blocks);
    }
  }
  // Others are cut as those that lie in rows, if there is one of as many.
  for (Value& value : values_) {
    if (!value.bounds.empty()) continue;
    const auto like = std::ranges::find_if(values_, [&](const Value& other) {
      return other.held->distribution() == Distribution::kRows && !other.bounds.empty() &&
             other.shape.rows == value.shape.rows;
    });
    if (like == values_.end() && value.shape.rows < static_cast<int64_t>(count)) return false;
    value.bounds = like != values_.end()
                       ? like->bounds
                       : EvenBounds(value.shape.rows, static_cast<int64_t>(count));
  }
  return true;
}

absl::StatusOr<bool> RowPhases::AddStep(size_t i) {
  const ChainStep& step = spec_.steps[i];
  absl::StatusOr<bool> added = false;
  if (const auto* const spmm = std::get_if<SpmmStep>(&step)) added = AddStep(*spmm);
  if (const auto* const sddmm = std::get_if<SddmmStep>(&step)) {
    // Nothing else computes with what lies by nonzeros.
    if (i + 1 == spec_.steps.size()) added = AddStep(*sddmm);
  }
  if (const auto* const sum = std::get_if<SumStep>(&step)) added = AddStep(*sum);
  if (!added.ok() || !*added) return added;
  const auto use = [&](size_t value) { values_[value].last_use = i; };
  if (const auto* const spmm = std::get_if<SpmmStep>(&step)) {
    use(spmm->b);
    if (spmm->beta != 0) use(*spmm->accumulate);
  } else if (const auto* const sddmm = std::get_if<SddmmStep>(&step)) {
    use(sddmm->a);
    use(sddmm->b);
  } else {
    for (const SumStep::Term& term : std::get<SumStep>(step).terms) use(term.value);
  }
  values_.back().last_use = i;
  return true;
}

absl::StatusOr<MatrixLease> RowPhases::FindMatrix(const std::string& name) {
  if (const auto known = matrices_.find(name); known != matrices_.end()) return known->second;
  if (const auto given = spec_.part.matrices.find(name); given != spec_.part.matrices.end()) {
    return matrices_.emplace(name, given->second).first->second;
  }
  absl::StatusOr<MatrixLease> found = impl_->catalog.Find(spec_.tenant, name);
  if (found.ok()) matrices_.emplace(name, *found);
  return found;
}

absl::StatusOr<bool> RowPhases::AddStep(const SddmmStep& sddmm) {
  if (sddmm.values || sddmm.heads != 1 || std::max(sddmm.a, sddmm.b) >= values_.size()) {
    return false;
  }
  const absl::StatusOr<MatrixLease> found = FindMatrix(sddmm.matrix);
  if (!found.ok()) return found.status();
  const Pattern& pattern = *(*found)->pattern();
  const ElementType type = (*found)->type();
  const auto count = static_cast<int64_t>(impl_->gpus.size());
  const Value &a = values_[sddmm.a], &b = values_[sddmm.b];
  const bool fit = a.shape.rows == pattern.rows() && b.shape.rows == pattern.cols() &&
                   a.shape.cols == b.shape.cols && a.shape.type == type && b.shape.type == type;
  if (!fit || a.shape.rows < count || b.bounds.empty()) return false;
  // Operands can be cut in any way.
  const bool as_rows = pattern.rows() == pattern.cols() && a.bounds == b.bounds;
  if (a.held == nullptr && !as_rows) return false;
  Value made{{pattern.nnz(), 1, 1, type}, nullptr, {}, {}, 0};
  made.nonzeros = *found;
  values_.push_back(std::move(made));
  return true;
}

absl::StatusOr<bool> RowPhases::AddStep(const SpmmStep& spmm) {
  if (spmm.values || spmm.b >= values_.size()) return false;
  const absl::StatusOr<MatrixLease> found = FindMatrix(spmm.matrix);
  if (!found.ok()) return found.status();
  const Matrix& matrix = **found;
  const Pattern& pattern = *matrix.pattern();
  const int64_t in = spmm.transpose ? pattern.rows() : pattern.cols();
  const int64_t out = spmm.transpose ? pattern.cols() : pattern.rows();
  const Value& b = values_[spmm.b];
  const auto count = static_cast<int64_t>(impl_->gpus.size());
  if (b.shape.rows != in || b.shape.type != matrix.type() || out < count) return false;
  Value made{{out, b.shape.cols, b.shape.cols, matrix.type()}, nullptr, {}, {}, 0};
  if (in == out) made.bounds = b.bounds;
  if (spmm.beta != 0) {
    if (!spmm.accumulate || *spmm.accumulate >= values_.size()) return false;
    const Value& old = values_[*spmm.accumulate];
    if (!SameSizes(old.shape, made.shape)) return false;
    // Operands can be cut in any way.
    if (old.held == nullptr && (old.bounds.empty() || old.bounds != made.bounds)) return false;
  }
  values_.push_back(std::move(made));
  return true;
}

bool RowPhases::AddStep(const SumStep& sum) {
  if (sum.terms.empty() || sum.terms.size() > kMostTerms) return false;
  const Value* like = nullptr;  // a value that a step made
  for (const SumStep::Term& term : sum.terms) {
    if (term.value >= values_.size()) return false;
    const Value& value = values_[term.value];
    if (!SameSizes(value.shape, values_[sum.terms[0].value].shape)) return false;
    if (value.held != nullptr) continue;
    if (value.bounds.empty() || (like != nullptr && value.bounds != like->bounds)) return false;
    like = &value;
  }
  if (like == nullptr) like = &values_[sum.terms[0].value];
  values_.push_back({like->shape, nullptr, like->bounds, {}, 0});
  return true;
}

absl::StatusOr<bool> RowPhases::AddResults() {
  if (spec_.results.empty()) return false;
  for (size_t i = 0; i < spec_.results.size(); ++i) {
    const ChainSpec::Result& result = spec_.results[i];
    if (result.value < spec_.operands.size() || result.value >= values_.size()) return false;
    Value& value = values_[result.value];
    if (value.result || (result.shape && !SameSizes(*result.shape, value.shape))) return false;
    value.result = i;
    value.last_use = spec_.steps.size();
    writes_.emplace_back();
    if (result.place.shared.size() > 0) return false;
    if (value.nonzeros != nullptr) {
      if (spec_.results.size() > 1) return false;
      // Before anything is computed; it is taken when all is.
      const absl::Status taken =
          DenseResult::Find(*impl_, spec_.tenant, result.place, value.shape).status();
      if (!taken.ok()) return taken;
      continue;
    }
    if (result.place.held.empty()) {
      if (spec_.results.size() > 1) return false;
      continue;
    }
    absl::StatusOr<DenseWrite> write = impl_->dense.BeginWrite(spec_.tenant, result.place.held);
    if (!write.ok()) return write.status();
    if (!SameSizes(write->base()->shape, value.shape)) return false;
    writes_.back() = *std::move(write);
  }
  return true;
}

std::optional<RowPhases::Product> RowPhases::ProductOf(const ChainStep& step) const {
  Product product;
  product.problem.device = DeviceKind::kCuda;
  if (const auto* const spmm = std::get_if<SpmmStep>(&step)) {
    product.matrix = matrices_.at(spmm->matrix);
    product.b = spmm->b;
    product.problem.operation = Operation::kSpmm;
    product.problem.transposed = spmm->transpose;
    product.problem.allow_tf32 = spmm->allow_tf32 && product.matrix->type() == ElementType::kF32;
  } else if (const auto* const sddmm = std::get_if<SddmmStep>(&step)) {
    product.matrix = matrices_.at(sddmm->matrix);
    product.b = sddmm->b;
    product.problem.operation = Operation::kSddmm;
  } else {
    return std::nullopt;
  }
  product.problem.type = product.matrix->type();
  product.problem.k = values_[product.b].shape.cols;
  return product;
}

std::shared_ptr<const ActivePlan> RowPhases::PlanOf(const Product& product) const {
  const MatrixLease& matrix = product.matrix;
  const PlanTable::Found found = matrix->pattern()->plans().Find(SignatureOf(product.problem));
  if (IsTrial(spec_.tenant)) return found.plan;
  if (found.due() && impl_->on_unknown_signature)
    impl_->on_unknown_signature(matrix, product.problem);
  if (found.plan != nullptr) matrix->CountUse(found.plan->plan);
  return found.plan;
}

bool RowPhases::HasPlans(const Product& product, const std::shared_ptr<const ActivePlan>& plan,
                         RowDistribution& rows) const {
  if (!rows.HasPlans(product.problem, plan)) return false;
  const Pattern& pattern = *product.matrix->pattern();
  const auto now = std::chrono::steady_clock::now();
  const bool asks = impl_->on_new_rows && !IsTrial(spec_.tenant) &&
                    rows.AsksForLayouts(product.problem, plan, pattern, now);
  if (asks) impl_->on_new_rows(product.matrix, product.problem, rows.operand_bounds());
  return true;
}

absl::StatusOr<size_t> RowPhases::Next(const std::vector<StepEnd>& took) {
  if (together_ != nullptr) {
    EndTogether(took);
    return size_t{0};
  }
  if (runs_) {
    // Of the step before.
    runs_ = false;
    StepEnd& step = steps_.emplace_back();
    for (const StepEnd& product : took) {
      if (step.plan.empty()) step.plan = product.plan;
      step.nanoseconds += product.nanoseconds;
    }
    values_[made()].blocks = out_->blocks();
    out_.reset();
    in_.clear();
    part_matrices_.clear();
    for (Value& value : values_) {
      if (value.last_use == step_) value.blocks.clear();
    }
    ++step_;
  }
  if (step_ == spec_.steps.size()) return size_t{0};
  if (step_ == 0 && !apart_ && BeginTogether()) return impl_->gpus.size();
  if (const std::optional<Product> product = ProductOf(spec_.steps[step_])) {
    const std::vector<int64_t>& bounds = values_[product->b].bounds;
    if (derived_ != nullptr) {
      const MutexLock lock(derived_->mutex);
      if (!derived_->rows.ok()) return derived_->rows.status();
      rows_ = *derived_->rows;
    } else {
      const std::shared_ptr<const ActivePlan> plan = PlanOf(*product);
      const std::shared_ptr<Pattern>& pattern = product->matrix->pattern();
      const bool transposed = product->problem.transposed;
      // The last product's may have been too large to be kept, or was evicted since.
      const std::pair<const Pattern*, bool> of(pattern.get(), transposed);
      const bool same = rows_ != nullptr && rows_of_ == of && rows_->operand_bounds() == bounds;
      rows_of_ = of;
      if (!same) rows_ = impl_->derived->FindRows(pattern, transposed, bounds);
      if (rows_ == nullptr || !HasPlans(*product, plan, *rows_)) {
        derived_ = std::make_shared<Derived>();
        return size_t{1};
      }
    }
    derived_.reset();
    part_matrices_ = rows_->MatricesOf(product->matrix, impl_->budget);
  }
  if (absl::Status s = Prepare(); !s.ok()) return s;
  runs_ = true;
  return impl_->gpus.size();
}

absl::Status RowPhases::Prepare() {
  Value& value = values_[made()];
  if (const auto* const spmm = std::get_if<SpmmStep>(&spec_.steps[step_])) {
    value.bounds = rows_->result_bounds();
    in_.push_back(BlocksOf(spmm->b, rows_->operand_bounds()));
    if (spmm->beta != 0) in_.push_back(BlocksOf(*spmm->accumulate, value.bounds));
    exchanged_bytes_ += BytesOfRows(values_[spmm->b].shape, rows_->fetched_rows());
  } else if (const auto* const sddmm = std::get_if<SddmmStep>(&spec_.steps[step_])) {
    value.bounds = {0};
    for (const RowDistribution::Part& part : rows_->parts()) {
      value.bounds.push_back(value.bounds.back() + part.nnz);
    }
    in_.push_back(BlocksOf(sddmm->b, rows_->operand_bounds()));
    in_.push_back(BlocksOf(sddmm->a, rows_->result_bounds()));
    exchanged_bytes_ += BytesOfRows(values_[sddmm->b].shape, rows_->fetched_rows());
  } else {
    for (const SumStep::Term& term : std::get<SumStep>(spec_.steps[step_]).terms) {
      in_.push_back(BlocksOf(term.value, value.bounds));
    }
  }
  std::vector<DenseBlock> blocks = BlocksOfRows(value.shape, value.bounds);
  if (!value.result || !writes_[*value.result]) {
    out_ = std::make_shared<BlockResults>(std::move(blocks));
    return absl::OkStatus();
  }
  out_ = std::make_shared<BlockResults>(*std::exchange(writes_[*value.result], std::nullopt),
                                        std::move(blocks));
  published_.push_back(out_);
  return absl::OkStatus();
}

std::vector<DenseBlock> RowPhases::BlocksOf(size_t value, const std::vector<int64_t>& bounds) {
  Value& of = values_[value];
  if (of.held == nullptr) return of.blocks;
  const bool lies_so =
      of.held->distribution() == Distribution::kRows && RowBoundsOf(of.held->blocks) == bounds;
  std::vector<DenseBlock> blocks = RowBlocksOf(of.held, bounds, impl_->budget);
  if (lies_so) return blocks;
  // An earlier request may have cut them.
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool there = impl_->gpus[i].device().residency().PresenceOf(blocks[i].elements) !=
                       Residency::Presence::kNothing;
    if (!there && blocks[i].elements->on_disk()) {
      cut_bytes_ += BytesOfRows(of.shape, blocks[i].shape.rows);
    }
  }
  return blocks;
}

ChainSpec RowPhases::NewPart(size_t i) const {
  ChainSpec part;
  part.tenant = spec_.tenant;
  part.priority = spec_.priority;
  part.timeout_ns = time_.nanoseconds();
  part.part.device = impl_->gpus[i].id();
  part.results.resize(1);
  part.results[0].place = {.blocks = out_, .block = i};
  return part;
}

ChainSpec RowPhases::PartOf(const SpmmStep& spmm, size_t i) {
  ChainSpec part = NewPart(i);
  const RowDistribution::Part& rows = rows_->parts()[i];
  SpmmStep own = spmm;
  own.transpose = false;
  own.b = 0;
  part.part.matrices = {{spmm.matrix, part_matrices_[i].own}};
  part.operands.push_back({.block = in_[0][i]});
  if (spmm.beta != 0) {
    own.accumulate = part.operands.size();
    part.operands.push_back({.block = in_[1][i]});
  }
  std::optional<SpmmStep> of_fetched;
  if (rows.fetched != nullptr) {
    of_fetched = own;
    of_fetched->matrix += kFetchedColumns;
    part.part.matrices.emplace(of_fetched->matrix, part_matrices_[i].fetched);
    of_fetched->b = part.operands.size();
    part.operands.push_back(FetchedFor(i, in_[0]));
    of_fetched->beta = 1;
    of_fetched->accumulate = part.operands.size();
  }
  part.results[0].value = part.operands.size() + (of_fetched ? 1 : 0);
  part.steps.emplace_back(own);
  if (of_fetched) part.steps.emplace_back(*of_fetched);
  return part;
}

OperandSpec RowPhases::FetchedFor(size_t i, const std::vector<DenseBlock>& of) const {
  const RowDistribution::Part& rows = rows_->parts()[i];
  auto fetched = std::make_shared<FetchedRows>();
  fetched->shape = of[i].shape;
  fetched->shape.rows = rows.fetched_rows;
  for (size_t from = 0; from < rows.from.size(); ++from) {
    if (rows.from[from].count == 0) continue;
    fetched->parts.push_back(
        {of[from], impl_->gpus[from].id(), rows.from[from].rows, rows.from[from].count});
  }
  return {.fetched = std::move(fetched)};
}

ChainSpec RowPhases::PartOf(const SddmmStep& sddmm, size_t i) {
  ChainSpec part = NewPart(i);
  const RowDistribution::Part& rows = rows_->parts()[i];
  SddmmStep own = sddmm;
  own.b = 0;
  own.a = 1;
  part.part.matrices = {{sddmm.matrix, part_matrices_[i].own}};
  part.operands.push_back({.block = in_[0][i]});
  part.operands.push_back({.block = in_[1][i]});
  if (rows.fetched == nullptr) {
    part.steps.emplace_back(own);
    part.results[0].value = 2;
    return part;
  }
  SddmmStep of_fetched = own;
  of_fetched.matrix += kFetchedColumns;
  of_fetched.b = 2;
  part.part.matrices.emplace(of_fetched.matrix, part_matrices_[i].fetched);
  part.operands.push_back(FetchedFor(i, in_[0]));
  part.steps.emplace_back(own);
  part.steps.emplace_back(of_fetched);
  part.steps.emplace_back(PlaceStep{{3, 4}, {rows.own_order, rows.fetched_order}});
  part.results[0].value = 5;
  return part;
}

ChainSpec RowPhases::PartOf(const SumStep& sum, size_t i) {
  ChainSpec part = NewPart(i);
  SumStep own;
  for (const SumStep::Term& term : sum.terms) {
    own.terms.push_back({part.operands.size(), term.factor});
    part.operands.push_back({.block = in_[own.terms.size() - 1][i]});
  }
  part.results[0].value = part.operands.size();
  part.steps.emplace_back(own);
  return part;
}

absl::StatusOr<std::shared_ptr<Call>> RowPhases::BeginPart(size_t i,
                                                           std::shared_ptr<ResultSink> sink) {
  if (together_ != nullptr) return ChainCall::Begin(impl_, PartTogether(i), std::move(sink));
  const ChainStep& step = spec_.steps[step_];
  if (derived_ != nullptr) {
    const Product product = *ProductOf(step);
    auto derive = std::make_shared<Derive>(
        Derive::Work{impl_, product.matrix, product.problem,
                     product.matrix->pattern()->plans().Find(SignatureOf(product.problem)).plan,
                     values_[product.b].bounds, rows_, derived_},
        spec_.tenant, std::move(sink));
    derive->priority = spec_.priority;
    if (absl::Status s = derive->Start(time_.nanoseconds()); !s.ok()) return s;
    return derive;
  }
  ChainSpec part;
  if (const auto* const spmm = std::get_if<SpmmStep>(&step)) part = PartOf(*spmm, i);
  if (const auto* const sddmm = std::get_if<SddmmStep>(&step)) part = PartOf(*sddmm, i);
  if (const auto* const sum = std::get_if<SumStep>(&step)) part = PartOf(*sum, i);
  return ChainCall::Begin(impl_, std::move(part), std::move(sink));
}

bool RowPhases::gathers() const {
  const ChainSpec::Result& result = spec_.results[0];
  // Of a trial it stays where it is.
  const bool sent = result.place.held.empty() && !IsTrial(spec_.tenant);
  return sent || values_[result.value].nonzeros != nullptr;
}

ChainSpec RowPhases::Gathered() const {
  ChainSpec chain;
  chain.tenant = spec_.tenant;
  chain.priority = spec_.priority;
  chain.timeout_ns = time_.nanoseconds();
  const Value& value = values_[spec_.results[0].value];
  auto all = std::make_shared<FetchedRows>();
  all->shape = value.shape;
  for (size_t i = 0; i < value.blocks.size(); ++i) {
    all->parts.push_back(
        {value.blocks[i], impl_->gpus[i].id(), nullptr, value.blocks[i].shape.rows});
  }
  chain.operands.push_back({.fetched = std::move(all)});
  const bool in_order = value.nonzeros == nullptr || value.nonzeros->caller_order() == nullptr;
  if (in_order) {
    chain.steps = {SumStep{{{0, 1}}}};
  } else {
    chain.steps = {PlaceStep{{0}, {value.nonzeros->caller_order()}}};
  }
  chain.results = {spec_.results[0]};
  chain.results[0].value = 1;
  return chain;
}

std::string RowPhases::Describe() const {
  std::string text = fmt::format(", {} bytes exchanged", exchanged_bytes_);
  if (at_once_) text += ", all steps at once";
  if (cut_bytes_ > 0) text += fmt::format(", {} bytes cut into rows on the host", cut_bytes_);
  return text;
}

void RowPhases::Release() {
  for (const auto& result : published_) result->Release();
  writes_.clear();
  LeaveTogether();
}

}  // namespace sparsed::engine
