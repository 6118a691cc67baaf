#include "client/attached/exported_chain.h"

#include <array>
#include <span>
#include <tuple>
#include <utility>

#include "client/attached/layout_product.h"
#include "kernels/formats/csr.h"

namespace sparsed {
inline namespace client {
namespace {

class LayoutRows final : public ExportedRows {
 public:
  LayoutRows(std::shared_ptr<const Layout> layout, ExportedProduct::Memory memory)
      : memory_(std::move(memory)), layout_(std::move(layout)) {}

  const int64_t* order() const override { return OrderOf(memory_, layout_->nnz).data(); }
  const Layout& layout() const { return *layout_; }
  /// S's own, in the layout's order.
  ConstDense values() const { return {memory_.values->data(), layout_->nnz, 1, 1}; }

 private:
  const ExportedProduct::Memory memory_;
  const std::shared_ptr<const Layout> layout_;
};

/// One run of a program at a site.
class ChainRun {
 public:
  ChainRun(const ChainProgram& program, ElementType type, Site& site)
      : program_(program), type_(type), site_(site) {}

  absl::Status Begin() {
    if (program_.order != nullptr) site_.Keep(program_.order_owner);
    return site_.Grow(site_.temporaries, program_.temporary_bytes);
  }

  absl::Status Do(const ChainProgram::Step& step) {
    using Kind = ChainProgram::Kind;
    if (step.product != nullptr) site_.Keep(step.product);
    if (step.rows != nullptr) site_.Keep(step.rows);
    if (step.columns != nullptr) site_.Keep(step.columns);
    switch (step.kind) {
      case Kind::kSpmm:
        return Spmm(step);
      case Kind::kHeadSpmm:
      case Kind::kReduce:
        return RowProductsOf(step);
      case Kind::kSddmm:
        return Sddmm(step);
      case Kind::kHeadSddmm:
        return HeadDotsOf(step);
      case Kind::kSoftmax:
      case Kind::kSoftmaxGradient:
        return Softmax(step);
      case Kind::kScale:
        return Scale(step);
      case Kind::kTotal:
        return Total(step);
      case Kind::kSum:
        return Sum(step);
      case Kind::kAttention:
        return Attend(step);
      case Kind::kAttentionGradient:
        return AttendGradient(step);
      case Kind::kToCsr:
        return site_.Gather(Order(), type_, In(step.a), Out(step.to));
      case Kind::kToUpload:
        return site_.Scatter(Order(), type_, In(step.a), Out(step.to));
      case Kind::kCopy:
        return Copy(step.a, step.to);
    }
    return absl::InternalError("a chain has a step of no kind");
  }

 private:
  static const LayoutRows& RowsOf(const ChainProgram::Step& step) {
    return static_cast<const LayoutRows&>(*step.rows);
  }
  /// Empty: it is CSR's.
  std::span<const int64_t> Order() const {
    if (program_.order == nullptr) return {};
    return {program_.order, static_cast<size_t>(program_.nnz)};
  }
  DenseMemory At(size_t value) const {
    const ChainProgram::Value& of = program_.values[value];
    DenseMemory memory = of.memory;
    if (of.temporary) memory.data = site_.temporaries.mutable_data() + of.offset;
    return memory;
  }
  /// No data of none.
  ConstDense In(size_t value) const {
    return value == ChainProgram::kNone ? ConstDense() : View(At(value));
  }
  Dense Out(size_t value) const { return MutableView(At(value)); }
  Dense MaybeOut(size_t value) const {
    return value == ChainProgram::kNone ? Dense() : MutableView(At(value));
  }
  absl::Status Copy(size_t from, size_t to) {
    return CopyAt(At(from), At(to), program_.values[to].element, site_);
  }
  /// S's, and whether they are in the layout's order.
  std::pair<ConstDense, bool> ValuesOf(const ChainProgram::Step& step) const {
    if (step.unscaled) return {{}, true};
    if (step.values == ChainProgram::kNone) return {RowsOf(step).values(), true};
    return {In(step.values), false};
  }

  absl::Status Spmm(const ChainProgram::Step& step) {
    const auto& product = static_cast<const LayoutProduct&>(*step.product);
    DenseMemory old, own;
    if (step.old != ChainProgram::kNone) old = At(step.old);
    if (step.values != ChainProgram::kNone) own = At(step.values);
    return product.SpmmAt(site_, At(step.b), At(step.to),
                          step.old == ChainProgram::kNone ? nullptr : &old,
                          step.values == ChainProgram::kNone ? nullptr : &own,
                          LayoutProduct::Order::kCsr, step.alpha, step.beta);
  }

  absl::Status Sddmm(const ChainProgram::Step& step) {
    const auto& product = static_cast<const LayoutProduct&>(*step.product);
    DenseMemory own;
    if (step.values != ChainProgram::kNone) own = At(step.values);
    return product.SddmmAt(site_, At(step.a), At(step.b), At(step.to),
                           step.values == ChainProgram::kNone ? nullptr : &own,
                           LayoutProduct::Order::kCsr, step.unscaled);
  }

  absl::Status RowProductsOf(const ChainProgram::Step& step) {
    if (step.old != ChainProgram::kNone) {
      if (absl::Status copied = Copy(step.old, step.to); !copied.ok()) return copied;
    }
    RowProducts products{RowsOf(step).layout()};
    std::tie(products.values, products.values_by_slot) = ValuesOf(step);
    products.b = In(step.b);
    products.c = Out(step.to);
    products.alpha = step.alpha;
    products.beta = step.beta;
    if (step.kind == ChainProgram::Kind::kReduce) {
      products.reduction = ReductionOf(step.reduction);
    }
    if (step.which != ChainProgram::kNone) {
      products.arguments = Out(step.which);
      products.positions = Order();
    }
    return site_.ComputeRowProducts(products, type_);
  }

  static Reduction ReductionOf(ChainProgram::Reduction reduction) {
    switch (reduction) {
      case ChainProgram::Reduction::kMean:
        return Reduction::kMean;
      case ChainProgram::Reduction::kMax:
        return Reduction::kMax;
      case ChainProgram::Reduction::kMin:
        break;
    }
    return Reduction::kMin;
  }

  absl::Status HeadDotsOf(const ChainProgram::Step& step) {
    HeadDots dots{RowsOf(step).layout()};
    dots.values = ValuesOf(step).first;
    dots.a = In(step.a);
    dots.b = In(step.b);
    dots.out = Out(step.to);
    return site_.ComputeHeadDots(dots, type_);
  }

  absl::Status Softmax(const ChainProgram::Step& step) {
    const std::span<const int64_t> offsets = ViewCsr(RowsOf(step).layout()).row_offsets;
    if (step.kind == ChainProgram::Kind::kSoftmax) {
      return site_.RowSoftmax(offsets, type_, step.scale, In(step.a), Out(step.to));
    }
    return site_.RowSoftmaxGradient(offsets, type_, step.scale, In(step.a), In(step.b),
                                    Out(step.to));
  }

  absl::Status Scale(const ChainProgram::Step& step) {
    NonzeroScaling scaling{RowsOf(step).layout()};
    scaling.x = ValuesOf(step).first;
    scaling.rows = In(step.by_rows);
    scaling.cols = In(step.by_cols);
    scaling.y = Out(step.to);
    return site_.ScaleNonzeros(scaling, type_);
  }

  absl::Status Total(const ChainProgram::Step& step) {
    NonzeroTotals totals{RowsOf(step).layout()};
    std::tie(totals.x, totals.x_by_slot) = ValuesOf(step);
    totals.y = Out(step.to);
    return site_.TotalNonzeros(totals, type_);
  }

  absl::Status Sum(const ChainProgram::Step& step) {
    std::array<WeightedTerm, kMostTerms> terms;
    for (size_t i = 0; i < step.terms; ++i) {
      const ChainProgram::Term& term = program_.terms[step.first_term + i];
      terms[i] = {term.factor, In(term.value)};
    }
    return site_.WeightedSum({terms.data(), step.terms}, type_, Out(step.to));
  }

  EdgeScores ScoresOf(const ChainProgram::Step& step) const {
    EdgeScores scores;
    switch (step.attention.scores) {
      case ChainProgram::Scores::kDot:
        scores.kind = EdgeScores::Kind::kDot;
        break;
      case ChainProgram::Scores::kSum:
        scores.kind = EdgeScores::Kind::kSum;
        break;
      case ChainProgram::Scores::kGatv2:
        scores.kind = EdgeScores::Kind::kGatv2;
        break;
    }
    scores.heads = step.attention.heads;
    scores.scale = step.scale;
    scores.slope = step.attention.slope;
    scores.left = In(step.a);
    scores.right = In(step.b);
    scores.bias = In(step.attention.bias);
    scores.att = In(step.attention.att);
    return scores;
  }

  absl::Status Attend(const ChainProgram::Step& step) {
    EdgeAttention attention{RowsOf(step).layout(), ScoresOf(step)};
    attention.values = In(step.attention.values);
    attention.out = Out(step.to);
    attention.log_sums = MaybeOut(step.which);
    return site_.ComputeEdgeAttention(attention, type_);
  }

  absl::Status AttendGradient(const ChainProgram::Step& step) {
    const ChainProgram::Attention& of = step.attention;
    EdgeAttentionGradient gradient{RowsOf(step).layout(),
                                   static_cast<const LayoutRows&>(*step.columns).layout(),
                                   ScoresOf(step)};
    gradient.values = In(of.values);
    gradient.out = In(of.result);
    gradient.log_sums = In(of.log_sums);
    gradient.gradient = In(of.gradient);
    gradient.left = MaybeOut(of.gradients[0]);
    gradient.right = MaybeOut(of.gradients[1]);
    gradient.values_gradient = MaybeOut(of.gradients[2]);
    gradient.bias = MaybeOut(of.gradients[3]);
    gradient.att = MaybeOut(of.gradients[4]);
    return site_.ComputeEdgeAttentionGradient(gradient, type_);
  }

  const ChainProgram& program_;
  const ElementType type_;
  Site& site_;
};

class SiteChains final : public ExportedChains {
 public:
  SiteChains(std::shared_ptr<Sites> sites, bool on_host)
      : sites_(std::move(sites)), on_host_(on_host) {}

  ExportedProduct::Accounted Run(const ChainProgram& program, const ExportedProduct::Where& where,
                                 std::vector<std::chrono::nanoseconds>& durations) override {
    const std::optional<ElementType> type = KernelType(program.type);
    if (!type || !IsFloat(*type)) return absl::InternalError("a chain is of no type");
    return sites_->At(where, [&](Site& site) {
      ChainRun run(program, *type, site);
      absl::Status status = run.Begin();
      auto begin = std::chrono::steady_clock::now();
      for (const ChainProgram::Step& step : program.steps) {
        if (status.ok()) status = run.Do(step);
        if (!status.ok()) break;
        if (!on_host_) continue;
        const auto end = std::chrono::steady_clock::now();
        durations[step.of] += end - begin;
        begin = end;
      }
      return status;
    });
  }

 private:
  const std::shared_ptr<Sites> sites_;
  const bool on_host_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const ExportedRows>> ExportedRows::Make(
    const v1::ExportedRun& run, std::optional<int> gpu, ExportedProduct::Memory memory) {
  absl::StatusOr<std::shared_ptr<const Layout>> layout = MappedLayout(run, memory);
  if (!layout.ok()) return layout.status();
  const CsrView csr = ViewCsr(**layout);
  if ((*layout)->kind != kCsr || !csr.row_order.empty() ||
      csr.row_offsets.size() != static_cast<size_t>((*layout)->rows) + 1 ||
      csr.nnz() != (*layout)->nnz || (*layout)->value_slots != (*layout)->nnz) {
    return absl::InvalidArgumentError("what the server says of plain rows does not fit together");
  }
  auto* const rows = new LayoutRows(*std::move(layout), std::move(memory));
  if (gpu) return LetGoLater(rows, *gpu);
  return std::shared_ptr<const ExportedRows>(rows);
}

std::shared_ptr<ExportedChains> ExportedChains::Make(std::optional<int> gpu) {
  if (!gpu) return std::make_shared<SiteChains>(MakeHostSites(), /*on_host=*/true);
  std::shared_ptr<ExportedProduct::Clock> clock;
  return LetGoLater(new SiteChains(MakeGpuSites(*gpu, Timing::kRuns, clock), /*on_host=*/false),
                    *gpu);
}

}  // namespace client
}  // namespace sparsed
