// Attention along the nonzeros, and its gradients, as steps of chains that run on what is attached.
#include <iterator>
#include <utility>

#include "client/attached/attached_chain.h"

namespace sparsed {
inline namespace client {

// One goes for the other.
static_assert(static_cast<int>(Chain::Scores::kDot) ==
              static_cast<int>(ChainProgram::Scores::kDot));
static_assert(static_cast<int>(Chain::Scores::kSum) ==
              static_cast<int>(ChainProgram::Scores::kSum));
static_assert(static_cast<int>(Chain::Scores::kGatv2) ==
              static_cast<int>(ChainProgram::Scores::kGatv2));

std::optional<AttachedChain::Step> AttachedChain::Attend(Kind kind,
                                                         const Chain::AttentionStep& attention,
                                                         size_t value) {
  const Chain::AttentionOptions& options = attention.options;
  const int64_t heads = options.heads;
  const size_t left = Use(attention.left, value), right = Use(attention.right, value);
  const size_t values = Use(attention.values, value);
  const size_t bias = options.bias ? Use(*options.bias, value) : kNone;
  const size_t att = options.att ? Use(*options.att, value) : kNone;
  const bool gatv2 = options.scores == Chain::Scores::kGatv2;
  if (options.scores > Chain::Scores::kGatv2 || attention.matrix != name_ || left == kNone ||
      right == kNone || values == kNone || (options.bias && bias == kNone) ||
      gatv2 != options.att.has_value() || (gatv2 && att == kNone) || heads < 1 ||
      heads > kMostHeads) {
    return std::nullopt;
  }
  const bool sums = options.scores == Chain::Scores::kSum;
  const Product* const s = FindRows(/*transposed=*/false);
  const int64_t k = facts_[left].cols;
  if (s == nullptr || !Is(left, s->rows, sums ? heads : k) || !Is(right, s->cols, k) ||
      k % heads != 0 || facts_[values].rows != s->cols || facts_[values].cols % heads != 0 ||
      (bias != kNone && !Is(bias, s->nnz, 1) && !Is(bias, s->nnz, heads)) ||
      (gatv2 && !Is(att, 1, k))) {
    return std::nullopt;
  }
  const bool forward = kind == Kind::kAttention;
  Step step = StepOf(kind, *s,
                     s->plan + (attachment_.gpu() ? " / cuda" : " / cpu") +
                         (forward ? ".csr.attention" : ".csr.attention_gradient"));
  step.a = InUpload(left);
  step.b = InUpload(right);
  step.scale = options.scale;
  step.attention.scores = static_cast<ChainProgram::Scores>(options.scores);
  step.attention.heads = heads;
  step.attention.slope = options.slope;
  step.attention.values = InUpload(values);
  if (bias != kNone) step.attention.bias = InCsr(bias);
  if (gatv2) step.attention.att = InUpload(att);
  return step;
}

bool AttachedChain::Lower(const Chain::AttentionStep& attention, size_t value) {
  std::optional<Step> step = Attend(Kind::kAttention, attention, value);
  if (!step) return false;
  const int64_t rows = matrix_->rows, width = facts_[step->attention.values].cols;
  step->to = value;
  step->which = value + 1;
  Add(*std::move(step));
  return Make(value, {.rows = rows, .cols = width}) &&
         Make(value + 1, {.rows = rows, .cols = attention.options.heads, .type = SumType()});
}

bool AttachedChain::Lower(const Chain::AttentionGradientStep& backward, size_t value) {
  const Chain::AttentionWanted& wanted = backward.wanted;
  const size_t result = Use(backward.made.value, value);
  const size_t log_sums = Use(backward.made.log_sums, value);
  const size_t gradient = Use(backward.gradient, value);
  if (result == kNone || log_sums == kNone || gradient == kNone ||
      !(wanted.left || wanted.right || wanted.values || wanted.bias || wanted.att) ||
      (wanted.bias && !backward.of.options.bias) || (wanted.att && !backward.of.options.att)) {
    return false;
  }
  std::optional<Step> step = Attend(Kind::kAttentionGradient, backward.of, value);
  const Product* const columns = step ? FindRows(/*transposed=*/true) : nullptr;
  if (columns == nullptr) return false;
  ChainProgram::Attention& of = step->attention;
  const int64_t rows = columns->rows, width = facts_[of.values].cols;
  if (!Is(result, rows, width) || !Is(gradient, rows, width) || !Is(log_sums, rows, of.heads)) {
    return false;
  }
  step->columns = columns->csr;
  of.result = InUpload(result);
  of.log_sums = log_sums;
  of.gradient = InUpload(gradient);
  const auto shape = [&](size_t like) {
    return Facts{.rows = facts_[like].rows, .cols = facts_[like].cols};
  };
  const std::pair<bool, size_t> made[] = {{wanted.left, step->a},
                                          {wanted.right, step->b},
                                          {wanted.values, of.values},
                                          {wanted.bias, of.bias},
                                          {wanted.att, of.att}};
  size_t next = value;
  for (size_t i = 0; i < std::size(made); ++i) {
    if (!made[i].first) continue;
    Facts facts = shape(made[i].second);
    facts.csr = i == 3 && columns->order != nullptr;
    of.gradients[i] = next;
    if (!Make(next++, facts)) return false;
  }
  Add(*std::move(step));
  return true;
}

}  // namespace client
}  // namespace sparsed
