#include "client/attached/attached_chain.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "client/attached/views.h"
#include "client/src/convert.h"

namespace sparsed {
inline namespace client {
namespace {

// As the server has them.
constexpr size_t kMostOperands = 64, kMostSteps = 1024, kMostResults = 16, kMostTerms = 64;
/// While values change all the time, the server may have the word.
constexpr int kAttempts = 8;

template <typename View>
bool IsWhole(const View& view) {
  int64_t bytes = 0;
  return view.rows >= 0 && view.cols >= 1 && LeadingDimension(view) >= view.cols &&
         (view.data != nullptr || view.rows == 0) &&
         !__builtin_mul_overflow(view.rows, LeadingDimension(view), &bytes) &&
         !__builtin_mul_overflow(bytes, static_cast<int64_t>(SizeOf(view.type)), &bytes);
}

const char* NameOf(ChainProgram::Reduction reduction) {
  switch (reduction) {
    case ChainProgram::Reduction::kMean:
      return "mean";
    case ChainProgram::Reduction::kMax:
      return "max";
    case ChainProgram::Reduction::kMin:
      break;
  }
  return "min";
}

}  // namespace

absl::StatusOr<bool> AttachedChain::Build() {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    program_ = {};
    facts_.clear();
    outputs_.clear();
    operands_.clear();
    products_.clear();
    plans_.clear();
    matrix_ = nullptr;
    bytes_in_ = bytes_out_ = 0;
    changed_ = false;
    if (Lower()) return true;
    if (!late_.ok()) return late_;
    if (!changed_) break;
  }
  return false;
}

bool AttachedChain::Lower() {
  const size_t values = chain_.values_.size();
  program_.values.reserve(values + 8);
  program_.values.resize(values);
  facts_.reserve(values + 8);
  facts_.resize(values);
  program_.steps.reserve(values);
  if (!TakeOutputs()) return false;
  for (size_t i = 0; i < values; ++i) {
    const bool fits =
        std::visit([&](const auto& source) { return Lower(source, i); }, chain_.values_[i]);
    if (!fits) return false;
  }
  if (operands_.empty() || operands_.size() > kMostOperands || plans_.empty() ||
      plans_.size() > kMostSteps) {
    return false;
  }
  // One of sums alone is of no matrix.
  if (matrix_ == nullptr && FindRows(/*transposed=*/false) == nullptr) return false;
  program_.type = matrix_->type;
  return CheckTypes() && WriteOutputs() && program_.LayOut();
}

bool AttachedChain::TakeOutputs() {
  const size_t count = chain_.outputs_.size();
  if (count == 0 || count > kMostResults) return false;
  first_output_.assign(chain_.values_.size(), kNone);
  written_.assign(count, false);
  for (size_t i = 0; i < count; ++i) {
    const auto& [value, destination] = chain_.outputs_[i];
    const auto* const view = std::get_if<MutableDenseView>(&destination);
    if (view == nullptr || !IsWhole(*view) || value.chain_ != chain_.id_ ||
        value.number_ >= chain_.values_.size()) {
      return false;
    }
    for (const MutableDenseView* other : outputs_) {
      if (Overlap(*other, *view)) return false;
    }
    outputs_.push_back(view);
    bytes_out_ += Bytes(*view);
    if (first_output_[value.number_] == kNone) first_output_[value.number_] = i;
  }
  return true;
}

bool AttachedChain::Lower(size_t operand, size_t value) {
  const auto* const view = std::get_if<DenseView>(&chain_.operands_[operand]);
  if (view == nullptr || !IsWhole(*view)) return false;
  for (const MutableDenseView* output : outputs_) {
    if (Overlap(*view, *output)) return false;
  }
  operands_.push_back(view);
  bytes_in_ += Bytes(*view);
  facts_[value] = {.rows = view->rows, .cols = view->cols, .type = ToProto(view->type)};
  program_.values[value] = {.memory = MemoryOf(*view), .element = SizeOf(view->type)};
  return true;
}

bool AttachedChain::Lower(const Chain::SpmmStep& spmm, size_t value) {
  const Chain::SpmmOptions& options = spmm.options;
  const size_t b = Use(spmm.b, value);
  if (spmm.matrix != name_ || b == kNone) return false;
  const int64_t k = facts_[b].cols;
  const size_t own = options.values ? Use(*options.values, value) : kNone;
  if (options.values && own == kNone) return false;
  const int64_t heads = own == kNone ? 1 : facts_[own].cols;
  if (heads > kMostHeads || k % heads != 0) return false;
  const Product* const s =
      heads == 1 ? Find(v1::ProblemClass::SPMM, options.transpose, k, options.allow_tf32)
                 : FindRows(options.transpose);
  if (s == nullptr || (own != kNone && !IsOfNonzeros(own, *s)) ||
      facts_[b].rows != (options.transpose ? s->rows : s->cols)) {
    return false;
  }
  const Facts made = {.rows = options.transpose ? s->cols : s->rows, .cols = k};
  Step step =
      heads == 1
          ? StepOf(Kind::kSpmm, *s, s->plan)
          : StepOf(Kind::kHeadSpmm, *s,
                   s->plan + (attachment_.gpu() ? " / cuda" : " / cpu") + ".csr.head_products");
  step.b = InUpload(b);
  if (own != kNone) step.values = heads == 1 ? WithoutGaps(InCsr(own)) : InCsr(own);
  step.alpha = options.alpha;
  step.beta = options.beta;
  if (options.accumulate && options.accumulate->chain_ != chain_.id_) return false;
  if (options.beta != 0) {
    const size_t old = options.accumulate ? Use(*options.accumulate, value) : kNone;
    if (old == kNone || !Is(old, made.rows, k)) return false;
    step.old = InUpload(old);
  }
  step.to = value;
  Add(std::move(step));
  return Make(value, made);
}

bool AttachedChain::Lower(const Chain::SddmmStep& sddmm, size_t value) {
  const Chain::SddmmOptions& options = sddmm.options;
  const size_t a = Use(sddmm.a, value), b = Use(sddmm.b, value);
  const size_t own = options.values ? Use(*options.values, value) : kNone;
  if (sddmm.matrix != name_ || a == kNone || b == kNone ||
      (options.values && (own == kNone || options.unscaled))) {
    return false;
  }
  const int64_t k = facts_[a].cols, heads = options.heads;
  if (heads < 1 || k % heads != 0) return false;
  const Product* const s =
      heads == 1 ? Find(v1::ProblemClass::SDDMM, false, k) : FindRows(/*transposed=*/false);
  if (s == nullptr || !Is(a, s->rows, k) || !Is(b, s->cols, k)) return false;
  if (own != kNone &&
      (!IsOfNonzeros(own, *s) || (facts_[own].cols != 1 && facts_[own].cols != heads))) {
    return false;
  }
  Step step = heads == 1
                  ? StepOf(Kind::kSddmm, *s, s->plan)
                  : StepOf(Kind::kHeadSddmm, *s,
                           s->plan + (attachment_.gpu() ? " / cuda" : " / cpu") + ".csr.head_dots");
  step.a = InUpload(a);
  step.b = InUpload(b);
  step.unscaled = options.unscaled;
  if (own != kNone) step.values = heads == 1 ? WithoutGaps(InCsr(own)) : InCsr(own);
  step.to = value;
  Add(std::move(step));
  return Make(value, {.rows = s->nnz, .cols = heads, .csr = s->order != nullptr});
}

bool AttachedChain::Lower(const Chain::SoftmaxStep& softmax, size_t value) {
  const size_t x = Use(softmax.value, value);
  const size_t gradient = softmax.gradient ? Use(*softmax.gradient, value) : kNone;
  if (softmax.matrix != name_ || x == kNone || (softmax.gradient && gradient == kNone)) {
    return false;
  }
  const Product* const s = FindRows(/*transposed=*/false);
  if (s == nullptr || !IsOfNonzeros(x, *s)) return false;
  const int64_t heads = facts_[x].cols;
  if (gradient != kNone && !Is(gradient, s->nnz, heads)) return false;
  Step step = gradient == kNone ? StepOf(Kind::kSoftmax, *s, "softmax")
                                : StepOf(Kind::kSoftmaxGradient, *s, "softmax gradient");
  step.scale = softmax.scale;
  step.a = InCsr(x);
  if (gradient != kNone) step.b = InCsr(gradient);
  step.to = value;
  Add(std::move(step));
  return Make(value, {.rows = s->nnz, .cols = heads, .csr = s->order != nullptr});
}

bool AttachedChain::Lower(const Chain::ReduceStep& reduce, size_t value) {
  const Chain::ReduceOptions& options = reduce.options;
  const size_t b = Use(reduce.b, value);
  const size_t own = options.values ? Use(*options.values, value) : kNone;
  const bool mean = reduce.reduction == Chain::Reduction::kMean;
  if (reduce.matrix != name_ || b == kNone || (reduce.arguments && mean) ||
      (options.values && (own == kNone || options.unscaled))) {
    return false;
  }
  const Product* const s = FindRows(options.transpose);
  if (s == nullptr || facts_[b].rows != (options.transpose ? s->rows : s->cols) ||
      (own != kNone && !Is(own, s->nnz, 1))) {
    return false;
  }
  const auto reduction = static_cast<ChainProgram::Reduction>(reduce.reduction);
  Step step = StepOf(Kind::kReduce, *s, NameOf(reduction));
  step.reduction = reduction;
  step.unscaled = options.unscaled;
  step.b = InUpload(b);
  if (own != kNone) step.values = InCsr(own);
  step.to = value;
  const Facts made = {.rows = options.transpose ? s->cols : s->rows, .cols = facts_[b].cols};
  if (!Make(value, made)) return false;
  if (reduce.arguments) {
    Facts which = made;
    which.type = v1::ELEMENT_TYPE_I64;
    // Those that are no result are of no use.
    if (first_output_[value + 1] != kNone) step.which = value + 1;
    facts_[value + 1] = which;
    if (step.which != kNone && !Make(value + 1, which)) return false;
  }
  Add(std::move(step));
  return true;
}

bool AttachedChain::Lower(const Chain::ScaleStep& scale, size_t value) {
  const Chain::ScaleOptions& options = scale.options;
  const size_t own = options.values ? Use(*options.values, value) : kNone;
  if (scale.matrix != name_ || (options.values && own == kNone)) return false;
  const Product* const s = FindRows(/*transposed=*/false);
  if (s == nullptr || (own != kNone && !IsOfNonzeros(own, *s))) return false;
  const int64_t heads = own == kNone ? 1 : facts_[own].cols;
  Step step = StepOf(Kind::kScale, *s, "scale");
  const auto factors = [&](const std::optional<Chain::Value>& of, int64_t rows, size_t& to) {
    if (!of) return true;
    const size_t by = Use(*of, value);
    if (by == kNone || (!Is(by, rows, heads) && !Is(by, rows, 1))) return false;
    to = InUpload(by);
    return true;
  };
  if (!factors(options.rows, s->rows, step.by_rows) ||
      !factors(options.cols, s->cols, step.by_cols)) {
    return false;
  }
  if (own != kNone) step.values = InCsr(own);
  step.to = value;
  Add(std::move(step));
  return Make(value, {.rows = s->nnz, .cols = heads, .csr = s->order != nullptr});
}

bool AttachedChain::Lower(const Chain::TotalStep& total, size_t value) {
  const Chain::TotalOptions& options = total.options;
  const size_t own = options.values ? Use(*options.values, value) : kNone;
  if (total.matrix != name_ || (options.values && own == kNone)) return false;
  const Product* const s = FindRows(options.transpose);
  if (s == nullptr || (own != kNone && !IsOfNonzeros(own, *s))) return false;
  Step step = StepOf(Kind::kTotal, *s, "total");
  if (own != kNone) step.values = InCsr(own);
  step.to = value;
  Add(std::move(step));
  return Make(value, {.rows = options.transpose ? s->cols : s->rows,
                      .cols = own == kNone ? 1 : facts_[own].cols});
}

bool AttachedChain::Lower(const Chain::SumStep& sum, size_t value) {
  if (sum.empty() || sum.size() > kMostTerms) return false;
  bool csr = true;
  for (const Chain::Term& term : sum) {
    const size_t used = Use(term.value, value), first = Use(sum[0].value, value);
    if (used == kNone || !Is(used, facts_[first].rows, facts_[first].cols)) return false;
    csr = csr && facts_[used].csr;
  }
  Step step;
  step.kind = Kind::kSum;
  step.of = plans_.size();
  plans_.emplace_back("sum");
  step.first_term = program_.terms.size();
  step.terms = sum.size();
  for (const Chain::Term& term : sum) {
    const size_t used = term.value.number_;
    program_.terms.push_back({csr ? used : InUpload(used), term.factor});
  }
  step.to = value;
  Add(std::move(step));
  const Facts& first = facts_[sum[0].value.number_];
  return Make(value, {.rows = first.rows, .cols = first.cols, .csr = csr, .type = first.type});
}

v1::ElementType AttachedChain::SumType() const {
  return matrix_->type == v1::ELEMENT_TYPE_F64 ? v1::ELEMENT_TYPE_F64 : v1::ELEMENT_TYPE_F32;
}

bool AttachedChain::CheckTypes() const {
  bool right = true;
  for (const Step& step : program_.steps) {
    program_.ForEachUse(step, [&](size_t value) {
      const bool sums = value == step.attention.log_sums;
      right = right && facts_[value].type == (sums ? SumType() : matrix_->type);
    });
  }
  return right;
}

bool AttachedChain::FitsOutput(const MutableDenseView& view, const Facts& facts) const {
  return view.rows == facts.rows && view.cols == facts.cols && ToProto(view.type) == facts.type;
}

bool AttachedChain::WriteOutputs() {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const size_t value = chain_.outputs_[i].first.number_;
    if (!FitsOutput(*outputs_[i], facts_[value])) return false;
    if (written_[i]) continue;
    Step step;
    step.kind = facts_[value].csr ? Kind::kToUpload : Kind::kCopy;
    step.of = plans_.size() - 1;
    step.a = value;
    step.to = program_.values.size();
    facts_.push_back({.rows = facts_[value].rows, .cols = facts_[value].cols});
    program_.values.push_back(
        {.memory = MemoryOf(*outputs_[i]), .element = SizeOf(outputs_[i]->type)});
    Add(std::move(step));
  }
  return true;
}

const AttachedChain::Product* AttachedChain::Find(v1::ProblemClass::Operation operation,
                                                  bool transposed, int64_t k, bool allow_tf32) {
  v1::ProblemClass problem;
  problem.set_operation(operation);
  problem.set_transposed(transposed);
  problem.set_k(k);
  problem.set_allow_tf32(allow_tf32);
  absl::StatusOr<std::shared_ptr<const Product>> found = attachment_.Find(problem, deadline_);
  if (!found.ok()) {
    if (LocalSocket::Clock::now() >= deadline_) late_ = found.status();
    return nullptr;
  }
  const Product& product = **found;
  // Of one matrix and one version is what was right at the same time. The number follows a change,
  // and until it does two answers may be of different versions. Of a server that is gone what there
  // is may be of different times.
  if (matrix_ != nullptr && (product.version != matrix_->version || product.nnz != matrix_->nnz ||
                             (product.sequence != matrix_->sequence && attachment_.Alive()))) {
    changed_ = true;
    return nullptr;
  }
  products_.push_back(*std::move(found));
  if (matrix_ != nullptr) return &product;
  matrix_ = &product;
  program_.order = product.order;
  program_.nnz = product.nnz;
  program_.order_owner = product.csr;
  if (product.csr == nullptr) program_.order_owner = product.runs;
  return &product;
}

AttachedChain::Step AttachedChain::StepOf(Kind kind, const Product& product, std::string plan) {
  Step step;
  step.kind = kind;
  step.of = plans_.size();
  step.product = product.runs;
  step.rows = product.csr;
  plans_.push_back(std::move(plan));
  return step;
}

size_t AttachedChain::Use(Chain::Value value, size_t user) const {
  // One of a copy that went on by itself may have no number here.
  if (value.chain_ != chain_.id_ || value.number_ >= user) return kNone;
  return facts_[value.number_].type == v1::ELEMENT_TYPE_I64 ? kNone : value.number_;
}

bool AttachedChain::IsOfNonzeros(size_t value, const Product& product) const {
  return facts_[value].rows == product.nnz && facts_[value].cols <= kMostHeads;
}

size_t AttachedChain::InCsr(size_t value) {
  if (program_.order == nullptr || facts_[value].csr) return value;
  if (facts_[value].to_csr == kNone) {
    facts_[value].to_csr = AddCopy(Kind::kToCsr, value, /*csr=*/true);
  }
  return facts_[value].to_csr;
}

size_t AttachedChain::InUpload(size_t value) {
  if (!facts_[value].csr) return value;
  if (facts_[value].to_upload == kNone) {
    facts_[value].to_upload = AddCopy(Kind::kToUpload, value, /*csr=*/false);
  }
  return facts_[value].to_upload;
}

size_t AttachedChain::WithoutGaps(size_t value) {
  if (program_.values[value].memory.leading_dimension == facts_[value].cols) return value;
  if (facts_[value].packed == kNone) {
    facts_[value].packed = AddCopy(Kind::kCopy, value, facts_[value].csr);
  }
  return facts_[value].packed;
}

size_t AttachedChain::AddCopy(Kind kind, size_t value, bool csr) {
  const Facts& from = facts_[value];
  Step step;
  step.kind = kind;
  step.of = plans_.size() - 1;
  step.a = value;
  step.to = AddTemporary({.rows = from.rows, .cols = from.cols, .csr = csr, .type = from.type});
  const size_t made = step.to;
  Add(std::move(step));
  return made;
}

size_t AttachedChain::AddTemporary(const Facts& facts) {
  ChainProgram::Value value;
  value.memory = {nullptr, facts.rows, facts.cols, facts.cols};
  value.element = SizeOf(FromProto(facts.type));
  value.temporary = true;
  program_.values.push_back(value);
  facts_.push_back(facts);
  return program_.values.size() - 1;
}

bool AttachedChain::Make(size_t value, Facts facts) {
  if (facts.type == v1::ELEMENT_TYPE_UNSPECIFIED) facts.type = matrix_->type;
  facts_[value] = facts;
  ChainProgram::Value& made = program_.values[value];
  const size_t output = first_output_[value];
  if (output != kNone && !facts.csr) {
    const MutableDenseView& view = *outputs_[output];
    if (view.rows != facts.rows || view.cols != facts.cols) return false;
    made.memory = MemoryOf(view);
    made.element = SizeOf(view.type);
    written_[output] = true;
    return true;
  }
  if (operands_.empty()) return false;  // no type: the server says that there has to be one
  made.memory = {nullptr, facts.rows, facts.cols, facts.cols};
  made.element = SizeOf(FromProto(facts.type));
  made.temporary = true;
  return true;
}

}  // namespace client
}  // namespace sparsed
