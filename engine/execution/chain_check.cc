// What a chain is checked for before it begins, and what is known of its values from then on.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "engine/execution/chain_call.h"

namespace sparsed::engine {

absl::Status ChainCall::OfStep(size_t i, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status named(status.code(), fmt::format("step {}: {}", i, std::string(status.message())));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  return named;
}

std::vector<size_t> ChainCall::UsesOf(const ChainStep& step) {
  std::vector<size_t> uses;
  const auto also = [&](const std::optional<size_t>& value) {
    if (value) uses.push_back(*value);
  };
  if (const auto* spmm = std::get_if<SpmmStep>(&step)) {
    uses.push_back(spmm->b);
    if (spmm->beta != 0) also(spmm->accumulate);
    also(spmm->values);
  } else if (const auto* sddmm = std::get_if<SddmmStep>(&step)) {
    uses = {sddmm->a, sddmm->b};
    also(sddmm->values);
  } else if (const auto* softmax = std::get_if<SoftmaxStep>(&step)) {
    uses.push_back(softmax->value);
    also(softmax->gradient);
  } else if (const auto* reduce = std::get_if<ReduceStep>(&step)) {
    uses.push_back(reduce->b);
    also(reduce->values);
  } else if (const auto* scale = std::get_if<ScaleStep>(&step)) {
    also(scale->value);
    also(scale->rows);
    also(scale->cols);
  } else if (const auto* total = std::get_if<TotalStep>(&step)) {
    also(total->value);
  } else if (const auto* attention = std::get_if<AttentionStep>(&step)) {
    uses = {attention->scores.left, attention->scores.right, attention->values};
    also(attention->scores.bias);
    also(attention->scores.att);
  } else if (const auto* backward = std::get_if<AttentionGradientStep>(&step)) {
    uses = {backward->scores.left, backward->scores.right, backward->values,
            backward->result,      backward->log_sums,     backward->gradient};
    also(backward->scores.bias);
    also(backward->scores.att);
  } else if (const auto* place = std::get_if<PlaceStep>(&step)) {
    uses = place->values;
  } else if (const auto* fetch = std::get_if<FetchStep>(&step)) {
    uses.push_back(fetch->value);
  } else {
    for (const SumStep::Term& term : std::get<SumStep>(step).terms) uses.push_back(term.value);
  }
  return uses;
}

absl::Status ChainCall::Check() {
  const auto limit = [](std::string_view what, size_t count, size_t least, size_t most) {
    if (count >= least && count <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("a chain has {} to {} {}, not {}", least, most, what, count));
  };
  absl::Status status = limit("operands", spec_.operands.size(), 1, ChainSpec::kMostOperands);
  if (status.ok()) status = limit("steps", spec_.steps.size(), 1, ChainSpec::kMostSteps);
  if (status.ok()) status = limit("results", spec_.results.size(), 1, ChainSpec::kMostResults);
  if (!status.ok()) return status;
  for (size_t i = 0; i < spec_.operands.size(); ++i) {
    status = operands_.Add(fmt::to_string(i), spec_.operands[i], tenant());
    if (!status.ok()) return status;
    DenseShape shape = operands_.back().shape;
    shape.leading_dimension = shape.cols;
    AddValue(shape);
  }
  for (size_t i = 0; i < spec_.steps.size(); ++i) {
    Step& step = steps_.emplace_back();
    step.value = values_.size();
    status = std::visit([&](const auto& spec) { return CheckStep(spec, step); }, spec_.steps[i]);
    for (size_t made = step.value; made < values_.size() && status.ok(); ++made) {
      status = ValidateSizes("its value", values_[made].shape);
      values_[made].made = values_[made].last_use = i;
    }
    if (!status.ok()) return OfStep(i, status);
    for (const size_t value : UsesOf(spec_.steps[i])) values_[value].last_use = i;
  }
  for (const Step& step : steps_) {
    if (step.matrix == nullptr) continue;
    end_.version = step.matrix->version();
    break;
  }
  return absl::OkStatus();
}

absl::StatusOr<MatrixLease> ChainCall::FindMatrix(const std::string& name) {
  const auto found = matrices_.find(name);
  if (found != matrices_.end()) return found->second;
  const auto given = spec_.part.matrices.find(name);
  absl::StatusOr<MatrixLease> matrix =
      given != spec_.part.matrices.end() ? given->second : impl_->catalog.Find(tenant(), name);
  if (matrix.ok()) matrices_.emplace(name, *matrix);
  return matrix;
}

absl::StatusOr<ChainCall::Value*> ChainCall::Use(std::string_view what, size_t value) {
  if (value < values_.size() && !IsFloat(values_[value].shape.type)) {
    return absl::InvalidArgumentError(fmt::format(
        "{} is value {}, a reduction's arguments, which are for results alone", what, value));
  }
  if (value < values_.size()) return &values_[value];
  return absl::InvalidArgumentError(fmt::format(
      "{} is value {}, but before it there are values 0 to {}", what, value, values_.size() - 1));
}

absl::Status ChainCall::UseAs(std::string_view what, size_t value, ElementType type, int64_t rows,
                              int64_t cols, std::string_view any) {
  const absl::StatusOr<Value*> used = Use(what, value);
  if (!used.ok()) return used.status();
  const DenseShape& shape = (*used)->shape;
  if (shape.rows == rows && (cols < 0 || shape.cols == cols) && shape.type == type) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "{}, value {}, is {} x {} {}, expected {} x {} {}", what, value, shape.rows, shape.cols,
      Name(shape.type), rows, cols < 0 ? std::string(any) : fmt::to_string(cols), Name(type)));
}

absl::Status ChainCall::UseAsNonzeros(std::string_view what, size_t value, ElementType type,
                                      int64_t nnz, int64_t heads) {
  absl::Status status = UseAs(what, value, type, nnz, heads, "H");
  if (status.ok() && values_[value].shape.cols > kMostHeads) {
    return absl::InvalidArgumentError(fmt::format("{}, value {}, is of {} heads, at most {} may be",
                                                  what, value, values_[value].shape.cols,
                                                  kMostHeads));
  }
  if (!status.ok() || value >= operands_.size() || values_[value].shape.cols > 1) return status;
  const int64_t leading_dimension = operands_[value].shape.leading_dimension;
  if (leading_dimension == 1) return status;
  return absl::InvalidArgumentError(
      fmt::format("{}, value {}, has leading dimension {}, expected 1: one value after the other",
                  what, value, leading_dimension));
}

absl::Status ChainCall::CheckStep(const SpmmStep& spmm, Step& step) {
  absl::StatusOr<MatrixLease> matrix = FindMatrix(spmm.matrix);
  if (!matrix.ok()) return matrix.status();
  step.matrix = *std::move(matrix);
  step.product = true;
  const Pattern& pattern = *step.matrix->pattern();
  const ElementType type = step.matrix->type();
  step.problem = {.operation = Operation::kSpmm,
                  .transposed = spmm.transpose,
                  .type = type,
                  .allow_tf32 = spmm.allow_tf32 && type == ElementType::kF32};
  const int64_t in_rows = spmm.transpose ? pattern.rows() : pattern.cols();
  const int64_t out_rows = spmm.transpose ? pattern.cols() : pattern.rows();
  absl::Status status = UseAs("B", spmm.b, type, in_rows, -1);
  if (!status.ok()) return status;
  const int64_t k = step.width = step.problem.k = values_[spmm.b].shape.cols;
  if (spmm.beta != 0) {
    if (!spmm.accumulate) {
      return absl::InvalidArgumentError(
          fmt::format("beta is {}, but there is no value to accumulate to", spmm.beta));
    }
    status = UseAs("C", *spmm.accumulate, type, out_rows, k);
  }
  if (status.ok() && spmm.values) {
    status = UseAsNonzeros("S's values", *spmm.values, type, pattern.nnz(), kAnyHeads);
    if (status.ok()) step.heads = values_[*spmm.values].shape.cols;
    step.on_transpose = spmm.transpose;
  }
  if (status.ok()) status = CheckHeads("B", k, step.heads);
  AddValue({out_rows, k, k, type});
  return status;
}

absl::Status ChainCall::CheckStep(const SddmmStep& sddmm, Step& step) {
  absl::StatusOr<MatrixLease> matrix = FindMatrix(sddmm.matrix);
  if (!matrix.ok()) return matrix.status();
  step.matrix = *std::move(matrix);
  step.product = true;
  const Pattern& pattern = *step.matrix->pattern();
  const ElementType type = step.matrix->type();
  step.problem = {.operation = Operation::kSddmm, .type = type};
  absl::Status status = UseAs("A", sddmm.a, type, pattern.rows(), -1);
  if (!status.ok()) return status;
  step.width = step.problem.k = values_[sddmm.a].shape.cols;
  status = UseAs("B", sddmm.b, type, pattern.cols(), step.problem.k);
  step.heads = sddmm.heads;
  if (status.ok()) status = CheckHeads("A", step.problem.k, step.heads);
  if (status.ok() && sddmm.values) {
    if (sddmm.unscaled) {
      return absl::InvalidArgumentError("S has values, but the product is unscaled");
    }
    status = UseAsNonzeros("S's values", *sddmm.values, type, pattern.nnz(), kAnyHeads);
    const int64_t of_values = status.ok() ? values_[*sddmm.values].shape.cols : 1;
    if (of_values != 1 && of_values != step.heads) {
      return absl::InvalidArgumentError(
          fmt::format("S's values are of {} heads, the product of {}", of_values, step.heads));
    }
  }
  AddNonzeros(step.matrix, step.heads);
  return status;
}

absl::Status ChainCall::CheckStep(const SumStep& sum, Step& /*step*/) {
  if (sum.terms.empty() || sum.terms.size() > kMostTerms) {
    return absl::InvalidArgumentError(
        fmt::format("a sum has 1 to {} terms, not {}", kMostTerms, sum.terms.size()));
  }
  const absl::StatusOr<Value*> first = Use("a term", sum.terms[0].value);
  if (!first.ok()) return first.status();
  const DenseShape shape = (*first)->shape;
  MatrixLease order = (*first)->order;
  for (const SumStep::Term& term : sum.terms) {
    absl::Status status = UseAs("a term", term.value, shape.type, shape.rows, shape.cols);
    if (!status.ok()) return status;
    if (values_[term.value].order != order) order = nullptr;
  }
  AddValue(shape, std::move(order));
  return absl::OkStatus();
}

absl::Status ChainCall::CheckStep(const PlaceStep& place, Step& /*step*/) {
  DenseShape shape;
  for (const size_t value : place.values) {
    const absl::StatusOr<Value*> placed = Use("what is placed", value);
    if (!placed.ok()) return placed.status();
    const int64_t rows = shape.rows + (*placed)->shape.rows;
    shape = (*placed)->shape;
    shape.rows = rows;
  }
  if (place.values.empty() || place.orders.size() != place.values.size() || shape.cols != 1) {
    return absl::InvalidArgumentError("each value that is placed has one column and an order");
  }
  AddValue(shape);
  return absl::OkStatus();
}

absl::Status ChainCall::CheckStep(const FetchStep& fetch, Step& /*step*/) {
  const absl::StatusOr<Value*> own = Use("what is fetched", fetch.value);
  if (!own.ok()) return own.status();
  if (spec_.part.exchange == nullptr) {
    return absl::InvalidArgumentError("it is fetched by parts of a request alone");
  }
  DenseShape shape = (*own)->shape;
  shape.rows = fetch.rows;
  if (fetch.rows > 0) AddValue(shape);
  return absl::OkStatus();
}

absl::Status ChainCall::CheckStep(const SoftmaxStep& softmax, Step& step) {
  absl::StatusOr<MatrixLease> matrix = FindMatrix(softmax.matrix);
  if (!matrix.ok()) return matrix.status();
  step.matrix = *std::move(matrix);
  const int64_t nnz = step.matrix->pattern()->nnz();
  const ElementType type = step.matrix->type();
  absl::Status status = UseAsNonzeros("its value", softmax.value, type, nnz, kAnyHeads);
  if (!status.ok()) return status;
  const int64_t heads = values_[softmax.value].shape.cols;
  if (softmax.gradient) {
    status = UseAsNonzeros("the gradient", *softmax.gradient, type, nnz, heads);
  }
  AddNonzeros(step.matrix, heads);
  return status;
}

absl::Status ChainCall::CheckStep(const ReduceStep& reduce, Step& step) {
  absl::StatusOr<MatrixLease> matrix = FindMatrix(reduce.matrix);
  if (!matrix.ok()) return matrix.status();
  step.matrix = *std::move(matrix);
  const Pattern& pattern = *step.matrix->pattern();
  const ElementType type = step.matrix->type();
  step.on_transpose = reduce.transpose;
  const int64_t in_rows = reduce.transpose ? pattern.rows() : pattern.cols();
  const int64_t out_rows = reduce.transpose ? pattern.cols() : pattern.rows();
  if (reduce.arguments && reduce.reduction == Reduction::kMean) {
    return absl::InvalidArgumentError("a mean has no arguments, only a greatest or least has");
  }
  absl::Status status = UseAs("B", reduce.b, type, in_rows, -1);
  if (status.ok() && reduce.values) {
    if (reduce.unscaled) {
      return absl::InvalidArgumentError("S has values, but the reduction is unscaled");
    }
    status = UseAsNonzeros("S's values", *reduce.values, type, pattern.nnz(), 1);
  }
  if (!status.ok()) return status;
  const int64_t k = step.width = values_[reduce.b].shape.cols;
  // Others need plain CSR: which nonzeros a greatest is of is by their order, kernels for one
  // column or for the transpose only add up.
  step.product = step.reduces = !reduce.arguments && !reduce.transpose && k > 1;
  step.problem = {.operation = Operation::kSpmm, .type = type, .k = k};
  AddValue({out_rows, k, k, type});
  if (reduce.arguments) AddValue({out_rows, k, k, ElementType::kI64});
  return status;
}

absl::Status ChainCall::CheckStep(const ScaleStep& scale, Step& step) {
  absl::StatusOr<MatrixLease> matrix = FindMatrix(scale.matrix);
  if (!matrix.ok()) return matrix.status();
  step.matrix = *std::move(matrix);
  const Pattern& pattern = *step.matrix->pattern();
  const ElementType type = step.matrix->type();
  int64_t heads = 1;
  if (scale.value) {
    absl::Status status = UseAsNonzeros("its value", *scale.value, type, pattern.nnz(), kAnyHeads);
    if (!status.ok()) return status;
    heads = values_[*scale.value].shape.cols;
  }
  const auto check = [&](std::string_view what, const std::optional<size_t>& value, int64_t rows) {
    if (!value) return absl::OkStatus();
    const bool of_each = value < values_.size() && values_[*value].shape.cols == heads;
    return UseAs(what, *value, type, rows, of_each ? heads : 1);
  };
  absl::Status status = check("what rows are scaled by", scale.rows, pattern.rows());
  if (status.ok()) status = check("what columns are scaled by", scale.cols, pattern.cols());
  AddNonzeros(step.matrix, heads);
  return status;
}

absl::Status ChainCall::CheckStep(const TotalStep& total, Step& step) {
  absl::StatusOr<MatrixLease> matrix = FindMatrix(total.matrix);
  if (!matrix.ok()) return matrix.status();
  step.matrix = *std::move(matrix);
  const Pattern& pattern = *step.matrix->pattern();
  const ElementType type = step.matrix->type();
  int64_t heads = 1;
  if (total.value) {
    absl::Status status = UseAsNonzeros("its value", *total.value, type, pattern.nnz(), kAnyHeads);
    if (!status.ok()) return status;
    heads = values_[*total.value].shape.cols;
  }
  step.on_transpose = total.transpose;
  AddValue({total.transpose ? pattern.cols() : pattern.rows(), heads, heads, type});
  return absl::OkStatus();
}

absl::Status ChainCall::CheckHeads(std::string_view what, int64_t k, int64_t heads) {
  if (heads >= 1 && k % heads == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} has {} columns, which {} heads do not divide", what, k, heads));
}

void ChainCall::AddValue(const DenseShape& shape, MatrixLease order) {
  values_.push_back({.shape = shape, .order = std::move(order)});
}

void ChainCall::AddNonzeros(const MatrixLease& matrix, int64_t heads) {
  AddValue({matrix->pattern()->nnz(), heads, heads, matrix->type()}, OrderOf(matrix));
}

absl::Status ChainCall::SetResults() {
  std::vector<bool> used(values_.size());
  for (size_t i = spec_.operands.size(); i < values_.size(); ++i) {
    used[i] = values_[i].last_use > values_[i].made;
  }
  for (size_t i = 0; i < spec_.results.size(); ++i) {
    const ChainSpec::Result& wanted = spec_.results[i];
    absl::Status status;
    if (wanted.value >= values_.size()) {
      status = absl::InvalidArgumentError(fmt::format(
          "it is value {}, but there are values 0 to {}", wanted.value, values_.size() - 1));
    } else {
      DenseShape shape = values_[wanted.value].shape;
      if (wanted.shape && (wanted.shape->rows != shape.rows || wanted.shape->cols != shape.cols ||
                           wanted.shape->type != shape.type)) {
        return absl::InvalidArgumentError(fmt::format(
            "result {}: it is {} x {} {}, its destination {} x {} {}", i, shape.rows, shape.cols,
            Name(shape.type), wanted.shape->rows, wanted.shape->cols, Name(wanted.shape->type)));
      }
      if (wanted.leading_dimension != 0) shape.leading_dimension = wanted.leading_dimension;
      absl::StatusOr<DenseResult> result = DenseResult::Find(*impl_, tenant(), wanted.place, shape);
      status = result.status();
      for (size_t j = 0; j < operands_.size() && status.ok(); ++j) {
        bool in_place = false;
        status = result->CheckApart(operands_[j], /*is_old=*/false, &in_place);
      }
      for (size_t j = 0; j < results_.size() && status.ok(); ++j) {
        status = result->CheckApart(results_[j]);
      }
      if (status.ok()) results_.push_back(*std::move(result));
    }
    if (!status.ok()) {
      return absl::Status(status.code(),
                          fmt::format("result {}: {}", i, std::string(status.message())));
    }
    Value& value = values_[wanted.value];
    value.last_use = steps_.size();
    // Nonzeros in another order, or with gaps, are put in theirs when all is computed; so is what
    // later steps read, where the caller could change it.
    const bool as_computed =
        value.order == nullptr && !(results_.back().shared() && used[wanted.value]) &&
        (value.shape.cols > 1 || results_.back().shape().leading_dimension == 1);
    if (wanted.value >= spec_.operands.size() && !value.result && as_computed) value.result = i;
  }
  AccumulateInPlace();
  return absl::OkStatus();
}

void ChainCall::AccumulateInPlace() {
  for (size_t i = steps_.size(); i-- > 0;) {
    const auto* const spmm = std::get_if<SpmmStep>(&spec_.steps[i]);
    if (spmm == nullptr || spmm->beta == 0) continue;
    const Value& made = values_[steps_[i].value];
    if (!made.result || !results_[*made.result].kept()) continue;
    const size_t old = *spmm->accumulate;
    if (IsLastUse(*spmm, i) && !values_[old].result) values_[old].result = made.result;
  }
}

bool ChainCall::IsLastUse(const SpmmStep& spmm, size_t i) const {
  const size_t old = *spmm.accumulate;
  return old >= spec_.operands.size() && values_[old].last_use == i &&
         values_[old].order == nullptr && old != spmm.b && old != spmm.values;
}

}  // namespace sparsed::engine
