#include "engine/execution/row_distribution.h"

#include <algorithm>
#include <numeric>

#include "kernels/bound_run.h"
#include "kernels/formats/csr.h"
#include "kernels/formats/dcsr.h"
#include "kernels/formats/row_bounds.h"
#include "kernels/formats/row_split.h"
#include "kernels/pipeline.h"

namespace sparsed::engine {
namespace {

/// What the whole matrix's layout may have taken for the parts to be given theirs: the first
/// product of a distribution waits for them.
constexpr double kMostBuildSeconds = 2;
/// Versions of matrices of the pattern whose parts are remembered.
constexpr size_t kMostMatrices = 64;
constexpr std::string_view kFetchedKernel = "cuda.dcsr.rows";
/// What was to build layouts of parts may have been dropped, or had no memory.
constexpr std::chrono::minutes kAskAgainAfter{5};

/// They say the same of what runs.
bool AreAlike(const ActivePlan* one, const ActivePlan* other) {
  if (one == nullptr || other == nullptr) return one == other;
  return one->plan.pipeline == other->plan.pipeline && one->plan.kernel == other->plan.kernel &&
         one->layout == other->layout;
}

std::shared_ptr<Pattern> PatternOf(Layout csr) {
  const int64_t rows = csr.rows, cols = csr.cols, nnz = csr.nnz;
  auto layout = std::make_shared<LazyLayout>(std::make_shared<const Layout>(std::move(csr)));
  // It has no hash: it is no caller's, and nothing is stored of it.
  return std::make_shared<Pattern>("", rows, cols, nnz, std::move(layout), /*payer=*/nullptr);
}

/// The values of `source`'s nonzeros, out of the matrix's.
std::shared_ptr<LazyArray> ValuesOf(const MatrixLease& matrix, const Array& source,
                                    Budget& budget) {
  Layout order;
  order.nnz = order.value_slots = source.length;
  order.arrays = {source};
  order.arrays[0].name = kValueSource;
  MemorySource& memory = budget.Source(MemoryUse::kMatrices, matrix->payer());
  const auto copy = [of = std::weak_ptr<const Matrix>(matrix), order,
                     &memory](LazyArray::Stop stop) -> absl::StatusOr<Array> {
    const MatrixLease matrix = of.lock();
    if (matrix == nullptr) return absl::AbortedError("the matrix is gone");
    const absl::StatusOr<Array> values = matrix->Values(stop);
    if (!values.ok()) return values.status();
    absl::StatusOr<Array> copied =
        AllocateArray(memory, "values", matrix->type(), order.value_slots);
    if (!copied.ok() || copied->length == 0) return copied;
    PlaceValues(order, matrix->type(), values->buffer.data(), copied->buffer.mutable_data(),
                /*threads=*/1);
    return copied;
  };
  return std::make_shared<LazyArray>(LazyArray::DiskCopy{
      copy, [] { return true; }, budget.evictions(), matrix->payer(), /*is_read=*/false});
}

/// Where each of `source`'s nonzeros is behind `first`.
std::shared_ptr<LazyArray> OrderOf(const Array& source, int64_t first, Budget& budget) {
  MemorySource& memory = budget.Source(MemoryUse::kLayouts);
  const auto make = [source, first, &memory](LazyArray::Stop) -> absl::StatusOr<Array> {
    absl::StatusOr<Array> order = AllocateArray(memory, "order", ElementType::kI64, source.length);
    if (!order.ok()) return order;
    const std::span<int64_t> to = order->MutableAs<int64_t>();
    const auto fill = [&](auto from) {
      std::ranges::transform(from, to.begin(),
                             [first](auto of) { return static_cast<int64_t>(of) - first; });
    };
    if (source.type == ElementType::kI64) {
      fill(source.As<int64_t>());
    } else {
      fill(source.As<int32_t>());
    }
    return order;
  };
  return std::make_shared<LazyArray>(LazyArray::DiskCopy{make, [] { return true; },
                                                         budget.evictions(), /*payer=*/nullptr,
                                                         /*is_read=*/false});
}

MatrixLease PartOf(const MatrixLease& matrix, const std::shared_ptr<Pattern>& pattern,
                   const Array& source, Budget& budget) {
  MatrixKeep keep;
  keep.payer = matrix->payer();
  return std::make_shared<const Matrix>(
      matrix->tenant(), matrix->name(), pattern, matrix->type(), matrix->version(),
      matrix->created_unix_ns(), /*durable=*/false, ValuesOf(matrix, source, budget),
      /*caller_order=*/nullptr, std::move(keep), budget.evictions());
}

/// Which rows of each block are fetched.
absl::StatusOr<std::vector<RowDistribution::Fetched>> ByBlock(const Array& fetched_rows,
                                                              std::span<const int64_t> bounds,
                                                              MemorySource& memory) {
  const std::span<const int64_t> rows = fetched_rows.As<int64_t>();
  std::vector<RowDistribution::Fetched> from;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const auto begin = std::ranges::lower_bound(rows, bounds[i]);
    const auto end = std::ranges::lower_bound(rows, bounds[i + 1]);
    absl::StatusOr<Array> of =
        AllocateArray(memory, "fetched_rows", ElementType::kI64, end - begin);
    if (!of.ok()) return of.status();
    std::transform(begin, end, of->MutableAs<int64_t>().begin(),
                   [&](int64_t row) { return row - bounds[i]; });
    from.push_back({std::make_shared<LazyArray>(*std::move(of)), end - begin});
  }
  return from;
}

}  // namespace

absl::StatusOr<std::shared_ptr<RowDistribution>> RowDistribution::Build(
    const Layout& of, std::vector<int64_t> operand_bounds, Budget& budget,
    const std::atomic<bool>* stop) {
  BuildContext context;
  context.memory = &budget.Source(MemoryUse::kLayouts);
  context.stop = stop;
  const CsrView csr = ViewCsr(of);
  std::shared_ptr<RowDistribution> built(new RowDistribution());
  const auto count = static_cast<int64_t>(operand_bounds.size()) - 1;
  built->result_bounds_ = csr.rows == csr.cols ? operand_bounds : RowBoundsByNonzeros(csr, count);
  for (int64_t i = 0; i < count; ++i) {
    absl::StatusOr<RowSplit> split =
        SplitRows(csr, {built->result_bounds_[i], built->result_bounds_[i + 1]},
                  {operand_bounds[i], operand_bounds[i + 1]}, of.Find(kValueSource), context);
    if (!split.ok()) return split.status();
    absl::StatusOr<std::vector<Fetched>> from =
        ByBlock(split->fetched_rows, operand_bounds, *context.memory);
    if (!from.ok()) return from.status();
    Part part;
    part.own = PatternOf(std::move(split->own));
    part.fetched_rows = split->fetched_rows.length;
    if (part.fetched_rows > 0) part.fetched = PatternOf(std::move(split->fetched));
    part.from = *std::move(from);
    part.own_source = std::move(split->own_source);
    part.fetched_source = std::move(split->fetched_source);
    part.first_nonzero = csr.row_offsets[built->result_bounds_[i]];
    part.nnz = csr.row_offsets[built->result_bounds_[i + 1]] - part.first_nonzero;
    part.own_order = OrderOf(part.own_source, part.first_nonzero, budget);
    if (part.fetched_rows > 0) {
      part.fetched_order = OrderOf(part.fetched_source, part.first_nonzero, budget);
    }
    built->parts_.push_back(std::move(part));
  }
  built->operand_bounds_ = std::move(operand_bounds);
  return built;
}

int64_t RowDistribution::fetched_rows() const {
  return std::accumulate(parts_.begin(), parts_.end(), int64_t{0},
                         [](int64_t sum, const Part& part) { return sum + part.fetched_rows; });
}

int64_t RowDistribution::bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) {
    bytes += CountedBytes(part.own_source) + CountedBytes(part.fetched_source);
    bytes += part.fetched_rows * static_cast<int64_t>(sizeof(int64_t));
    for (const auto& pattern : {part.own, part.fetched}) {
      if (pattern == nullptr) continue;
      bytes += pattern->resident_bytes();
      for (const Pattern::BuiltEntry& entry : pattern->Layouts()) {
        const absl::StatusOr<std::shared_ptr<const Layout>> layout = entry.layout->Get();
        if (layout.ok()) bytes += CountedBytes(**layout);
      }
    }
  }
  return bytes;
}

std::vector<RowDistribution::Matrices> RowDistribution::MatricesOf(const MatrixLease& matrix,
                                                                   Budget& budget) {
  std::vector<std::vector<Matrices>> gone;  // let go of without the lock
  const MutexLock lock(mutex_);
  for (auto known = matrices_.begin(); known != matrices_.end();) {
    if (known->first.lock() == matrix) return known->second;
    if (!known->first.expired()) {
      ++known;
      continue;
    }
    gone.push_back(std::move(known->second));
    known = matrices_.erase(known);
  }
  if (matrices_.size() >= kMostMatrices) {
    gone.push_back(std::move(matrices_.front().second));
    matrices_.erase(matrices_.begin());
  }
  std::vector<Matrices> made;
  for (const Part& part : parts_) {
    made.push_back({PartOf(matrix, part.own, part.own_source, budget),
                    part.fetched == nullptr
                        ? nullptr
                        : PartOf(matrix, part.fetched, part.fetched_source, budget)});
  }
  matrices_.emplace_back(matrix, made);
  return made;
}

bool RowDistribution::HasPlans(const Problem& problem,
                               const std::shared_ptr<const ActivePlan>& whole) const {
  const MutexLock lock(mutex_);
  const auto known = planned_.find(SignatureOf(problem));
  return known != planned_.end() && AreAlike(known->second.whole.get(), whole.get());
}

bool RowDistribution::AsksForLayouts(const Problem& problem,
                                     const std::shared_ptr<const ActivePlan>& whole,
                                     const Pattern& of, std::chrono::steady_clock::time_point now) {
  const MutexLock lock(mutex_);
  const auto known = planned_.find(SignatureOf(problem));
  if (known == planned_.end() || known->second.with_layouts) return false;
  std::optional<std::chrono::steady_clock::time_point>& asked = known->second.asked;
  if ((asked && now - *asked < kAskAgainAfter) || !WouldBuild(problem, whole, of)) return false;
  asked = now;
  return true;
}

absl::StatusOr<std::shared_ptr<LazyLayout>> RowDistribution::LayoutOf(
    Pattern& pattern, const std::string& pipeline, Budget& budget, const std::atomic<bool>* stop) {
  if (std::shared_ptr<LazyLayout> known = pattern.FindLayout(pipeline)) return known;
  const absl::StatusOr<std::shared_ptr<const Layout>> csr = pattern.Csr(stop);
  if (!csr.ok()) return csr.status();
  BuildContext context;
  context.memory = &budget.Source(MemoryUse::kLayouts);
  context.stop = stop;
  absl::StatusOr<Layout> built;
  if (pipeline == kDcsr) {
    built = BuildDcsr(ViewCsr(**csr), /*with_source=*/false, context);
    if (built.ok()) built->pipeline = kDcsr;
  } else {
    absl::StatusOr<Pipeline> steps = ParsePipeline(pipeline);
    if (!steps.ok()) return steps.status();
    absl::StatusOr<BuiltLayout> of_pipeline = BuildLayout(*steps, ViewCsr(**csr), context);
    if (!of_pipeline.ok()) return of_pipeline.status();
    if (of_pipeline->skipped) return nullptr;
    built = std::move(of_pipeline->layout);
  }
  if (!built.ok()) return built.status();
  pattern.AddLayout(std::make_shared<const Layout>(*std::move(built)), /*build_seconds=*/0);
  return pattern.FindLayout(pipeline);
}

bool RowDistribution::WouldBuild(const Problem& problem,
                                 const std::shared_ptr<const ActivePlan>& whole,
                                 const Pattern& of) {
  if (whole == nullptr || whole->layout == nullptr || problem.transposed) return false;
  const auto built = of.Layouts();
  return std::ranges::any_of(built, [&](const Pattern::BuiltEntry& entry) {
    return entry.description->pipeline == whole->plan.pipeline &&
           entry.build_seconds <= kMostBuildSeconds;
  });
}

absl::Status RowDistribution::AddPlans(const Problem& problem,
                                       const std::shared_ptr<const ActivePlan>& whole,
                                       const Pattern& of, bool with_layouts, Budget& budget,
                                       const std::atomic<bool>* stop) {
  {
    const MutexLock lock(mutex_);
    const auto known = planned_.find(SignatureOf(problem));
    const bool is_planned =
        known != planned_.end() && AreAlike(known->second.whole.get(), whole.get());
    if (is_planned && (known->second.with_layouts || !with_layouts)) return absl::OkStatus();
  }
  Plan plan;
  plan.signature = SignatureOf(problem);
  plan.signature.transposed = false;
  plan.reason = "as of the whole matrix";
  const bool would_build = WouldBuild(problem, whole, of);
  bool lacks = false;  // a layout that may be there another time
  if (whole != nullptr && !problem.transposed) {
    plan.kernel = whole->plan.kernel;
    if (whole->layout != nullptr) plan.pipeline = whole->plan.pipeline;
  }
  const auto add = [&](Pattern& pattern, Plan own, bool builds) -> absl::Status {
    absl::StatusOr<std::shared_ptr<LazyLayout>> layout = pattern.FindLayout(own.pipeline);
    if (*layout == nullptr && builds) layout = LayoutOf(pattern, own.pipeline, budget, stop);
    if (absl::IsCancelled(layout.status())) return layout.status();
    lacks |= !layout.ok();
    if (!layout.ok()) layout = nullptr;
    if (*layout == nullptr && own.pipeline != kCsr) {
      own.pipeline = kCsr;
      own.kernel.clear();  // the first that serves
    }
    pattern.plans().Replace(
        std::make_shared<const ActivePlan>(ActivePlan{std::move(own), *std::move(layout)}));
    return absl::OkStatus();
  };
  for (const Part& part : parts_) {
    lacks |= would_build && !with_layouts && part.own->FindLayout(plan.pipeline) == nullptr;
    if (absl::Status s = add(*part.own, plan, with_layouts && would_build); !s.ok()) return s;
    if (part.fetched == nullptr) continue;
    Plan of_fetched = plan;
    const bool multiplies = problem.operation == Operation::kSpmm;
    if (multiplies) {
      of_fetched.pipeline = kDcsr;
      of_fetched.kernel = kFetchedKernel;
      of_fetched.reason = "most of its rows are empty";
    }
    if (absl::Status s = add(*part.fetched, of_fetched, multiplies); !s.ok()) return s;
  }
  const MutexLock lock(mutex_);
  Planned& planned = planned_[SignatureOf(problem)];
  if (!AreAlike(planned.whole.get(), whole.get())) planned.asked.reset();
  planned.whole = whole;
  planned.with_layouts = !lacks;
  return absl::OkStatus();
}

}  // namespace sparsed::engine
