// Several operations as one request.
#include "sparsed/chain.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/c/arguments.h"
#include "client/c/calls.h"
#include "client/c/errors.h"
#include "client/c/handles.h"
#include "client/c/results.h"
#include "client/c/steps.h"

using sparsed::Chain;
using sparsed::Matrix;
using sparsed::c::Arguments;

struct sparsed_chain {
  std::shared_ptr<sparsed::c::LocalClient> client;
  Chain chain;
  std::vector<Chain::Value> values{};  ///< by sparsed_value
  /// Of the operands and results so far.
  Arguments places{};
  /// Its matrices: none yet, one, or null: several.
  std::optional<std::shared_ptr<sparsed::c::LocalMatrix>> matrix{};

  sparsed_value Add(Chain::Value value) {
    values.push_back(value);
    return static_cast<sparsed_value>(values.size() - 1);
  }
};

namespace sparsed::c {
namespace {

/// Reads the arguments of a step.
class Step {
 public:
  Step(sparsed_chain* chain, Arguments& in) : chain_(chain), in_(in) { in.Need(chain, "chain"); }
  Step(sparsed_chain* chain, sparsed_matrix* matrix, Arguments& in) : Step(chain, in) {
    if (!in.Need(matrix, "matrix") || !in.ok()) return;
    if (matrix->local->client() != chain->client) {
      in.Refuse(fmt::format("{} is a matrix of another client than the chain's",
                            matrix->matrix().name()));
    }
    matrix_ = matrix->local;
  }

  const Matrix& matrix() const { return matrix_->matrix(); }

  std::optional<Chain::Value> MaybeValue(sparsed_value value, const char* what) {
    if (!in_.ok() || value == SPARSED_NO_VALUE) return std::nullopt;
    if (value < 0 || static_cast<size_t>(value) >= chain_->values.size()) {
      in_.Refuse(fmt::format("{} is the value {}; this chain has {} so far", what, value,
                             chain_->values.size()));
      return std::nullopt;
    }
    return chain_->values[static_cast<size_t>(value)];
  }
  std::optional<Chain::Value> Value(sparsed_value value, const char* what) {
    std::optional<Chain::Value> found = MaybeValue(value, what);
    if (!found) in_.Refuse(fmt::format("{} is no value", what));
    return found;
  }

  /// Keeps what was made.
  sparsed_value Add(Chain::Value value) {
    if (matrix_ != nullptr) {
      std::optional<std::shared_ptr<LocalMatrix>>& only = chain_->matrix;
      if (!only) {
        only = matrix_;
      } else if (*only != matrix_) {
        only->reset();
      }
    }
    return chain_->Add(value);
  }

 private:
  sparsed_chain* const chain_;
  Arguments& in_;
  std::shared_ptr<LocalMatrix> matrix_;
};

void AddReduction(Step& step, Chain& chain, Chain::Value b, int32_t reduce,
                  const Chain::ReduceOptions& options, sparsed_value* value, sparsed_value* which) {
  const bool greatest = reduce == SPARSED_MAX;
  if (which != nullptr) {
    const Chain::Best best = greatest ? chain.MaxAndWhich(step.matrix(), b, options)
                                      : chain.MinAndWhich(step.matrix(), b, options);
    *value = step.Add(best.value);
    *which = step.Add(best.which);
  } else if (reduce == SPARSED_MEAN) {
    *value = step.Add(chain.Mean(step.matrix(), b, options));
  } else {
    *value = step.Add(greatest ? chain.Max(step.matrix(), b, options)
                               : chain.Min(step.matrix(), b, options));
  }
}

/// Numbers of what a step of attention is given.
struct AttentionValues {
  sparsed_value left, right, values, bias;
  sparsed_value att = SPARSED_NO_VALUE;
};

/// None if something is wrong with it.
std::optional<AttentionInputs> ReadAttention(Step& step, const Arguments& in,
                                             const AttentionValues& from,
                                             Chain::AttentionOptions options) {
  const auto rows = step.Value(from.left, "left"), cols = step.Value(from.right, "right");
  const auto of = step.Value(from.values, "values");
  options.bias = step.MaybeValue(from.bias, "bias");
  options.att = options.scores == Chain::Scores::kGatv2 ? step.Value(from.att, "att")
                                                        : step.MaybeValue(from.att, "att");
  if (!in.ok()) return std::nullopt;
  return AttentionInputs{*rows, *cols, *of, options};
}

/// `options`: makes those of the step, without bias and att.
template <typename Options>
sparsed_error* AddAttention(sparsed_chain* chain, sparsed_matrix* matrix,
                            const AttentionValues& values, const Options& options,
                            sparsed_value* value, sparsed_value* log_sums) {
  return Guarded([&]() -> absl::Status {
    Arguments in;
    Step step(chain, matrix, in);
    in.Need(value, "value");
    const auto from = ReadAttention(step, in, values, options(in));
    if (!from) return in.status();
    const Chain::Attended made =
        chain->chain.Attention(step.matrix(), from->left, from->right, from->values, from->options);
    *value = step.Add(made.value);
    const sparsed_value sums = step.Add(made.log_sums);
    if (log_sums != nullptr) *log_sums = sums;
    return absl::OkStatus();
  });
}

/// What a step of its gradients reads besides, and where the numbers of what it makes go.
struct AttentionGradientValues {
  sparsed_value out, log_sums, gradient;
  sparsed_value *d_left, *d_right, *d_values, *d_bias;
  sparsed_value* d_att = nullptr;
};

template <typename Options>
sparsed_error* AddAttentionGradient(sparsed_chain* chain, sparsed_matrix* matrix,
                                    const AttentionValues& values, const Options& options,
                                    const AttentionGradientValues& of) {
  return Guarded([&]() -> absl::Status {
    Arguments in;
    Step step(chain, matrix, in);
    const auto from = ReadAttention(step, in, values, options(in));
    const auto made = step.Value(of.out, "out"), sums = step.Value(of.log_sums, "log_sums");
    const auto dy = step.Value(of.gradient, "gradient");
    const Chain::AttentionWanted wanted = {.left = of.d_left != nullptr,
                                           .right = of.d_right != nullptr,
                                           .values = of.d_values != nullptr,
                                           .bias = of.d_bias != nullptr,
                                           .att = of.d_att != nullptr};
    if (!wanted.left && !wanted.right && !wanted.values && !wanted.bias && !wanted.att) {
      in.Refuse("no gradient is wanted: all pointers to gradients are null");
    }
    if (!in.ok()) return in.status();
    const Chain::AttentionGradients gradients =
        chain->chain.AttentionGradient(step.matrix(), from->left, from->right, from->values,
                                       from->options, {*made, *sums}, *dy, wanted);
    if (gradients.left) *of.d_left = step.Add(*gradients.left);
    if (gradients.right) *of.d_right = step.Add(*gradients.right);
    if (gradients.values) *of.d_values = step.Add(*gradients.values);
    if (gradients.bias) *of.d_bias = step.Add(*gradients.bias);
    if (gradients.att) *of.d_att = step.Add(*gradients.att);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace sparsed::c

using sparsed::c::Step;

extern "C" {

sparsed_error* sparsed_chain_new(sparsed_client* client, sparsed_chain** chain) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(client, "client");
    in.Need(chain, "chain");
    if (!in.ok()) return in.status();
    *chain = new sparsed_chain{.client = client->local, .chain = Chain()};
    return absl::OkStatus();
  });
}

void sparsed_chain_free(sparsed_chain* chain) { delete chain; }

sparsed_error* sparsed_chain_input(sparsed_chain* chain, const sparsed_dense* operand,
                                   sparsed_value* value) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(chain, "chain");
    in.Need(value, "value");
    if (!in.ok()) return in.status();
    in = chain->places;
    const sparsed::Operand input = in.In(operand, "operand", chain->client->client());
    if (!in.ok()) return in.status();
    chain->places = in;
    *value = chain->Add(chain->chain.Input(input));
    return absl::OkStatus();
  });
}

sparsed_error* sparsed_chain_spmm(sparsed_chain* chain, sparsed_matrix* matrix, sparsed_value b,
                                  int32_t transpose, int32_t reduce, double alpha, double beta,
                                  sparsed_value accumulate, sparsed_value values, int32_t unscaled,
                                  int32_t allow_tf32, sparsed_value* value, sparsed_value* which) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    Step step(chain, matrix, in);
    in.Need(value, "value");
    const auto from = step.Value(b, "b");
    const auto before = step.MaybeValue(accumulate, "accumulate");
    const auto own = step.MaybeValue(values, "values");
    in.CheckReduction({.reduce = reduce,
                       .plain = alpha == 1 && beta == 0 && !before,
                       .unscaled = unscaled != 0,
                       .which = which != nullptr});
    if (!in.ok()) return in.status();
    if (reduce != SPARSED_SUM) {
      sparsed::c::AddReduction(
          step, chain->chain, *from, reduce,
          {.transpose = transpose != 0, .values = own, .unscaled = unscaled != 0}, value, which);
      return absl::OkStatus();
    }
    *value = step.Add(chain->chain.Spmm(step.matrix(), *from,
                                        {.transpose = transpose != 0,
                                         .alpha = alpha,
                                         .beta = beta,
                                         .accumulate = before,
                                         .values = own,
                                         .allow_tf32 = allow_tf32 != 0}));
    return absl::OkStatus();
  });
}

sparsed_error* sparsed_chain_sddmm(sparsed_chain* chain, sparsed_matrix* matrix, sparsed_value a,
                                   sparsed_value b, int32_t unscaled, sparsed_value values,
                                   int64_t heads, sparsed_value* value) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    Step step(chain, matrix, in);
    in.Need(value, "value");
    const auto left = step.Value(a, "a"), right = step.Value(b, "b");
    const auto own = step.MaybeValue(values, "values");
    in.NotNegative(heads, "heads");
    if (!in.ok()) return in.status();
    *value = step.Add(chain->chain.Sddmm(
        step.matrix(), *left, *right,
        {.unscaled = unscaled != 0, .values = own, .heads = heads == 0 ? 1 : heads}));
    return absl::OkStatus();
  });
}

sparsed_error* sparsed_chain_softmax(sparsed_chain* chain, sparsed_matrix* matrix, sparsed_value x,
                                     sparsed_value gradient, double scale, sparsed_value* value) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    Step step(chain, matrix, in);
    in.Need(value, "value");
    const auto from = step.Value(x, "x");
    const auto backward = step.MaybeValue(gradient, "gradient");
    if (!in.ok()) return in.status();
    *value =
        step.Add(backward ? chain->chain.SoftmaxGradient(step.matrix(), *from, *backward, scale)
                          : chain->chain.Softmax(step.matrix(), *from, scale));
    return absl::OkStatus();
  });
}

sparsed_error* sparsed_chain_scale(sparsed_chain* chain, sparsed_matrix* matrix,
                                   sparsed_value values, sparsed_value rows, sparsed_value cols,
                                   sparsed_value* value) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    Step step(chain, matrix, in);
    in.Need(value, "value");
    const Chain::ScaleOptions scale = {.values = step.MaybeValue(values, "values"),
                                       .rows = step.MaybeValue(rows, "rows"),
                                       .cols = step.MaybeValue(cols, "cols")};
    if (!in.ok()) return in.status();
    *value = step.Add(chain->chain.Scale(step.matrix(), scale));
    return absl::OkStatus();
  });
}

sparsed_error* sparsed_chain_total(sparsed_chain* chain, sparsed_matrix* matrix,
                                   sparsed_value values, int32_t transpose, sparsed_value* value) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    Step step(chain, matrix, in);
    in.Need(value, "value");
    const Chain::TotalOptions total = {.transpose = transpose != 0,
                                       .values = step.MaybeValue(values, "values")};
    if (!in.ok()) return in.status();
    *value = step.Add(chain->chain.Total(step.matrix(), total));
    return absl::OkStatus();
  });
}

sparsed_error* sparsed_chain_attention(sparsed_chain* chain, sparsed_matrix* matrix,
                                       sparsed_value left, sparsed_value right,
                                       sparsed_value values, sparsed_value bias, int32_t scores,
                                       int64_t heads, double scale, double slope,
                                       sparsed_value* value, sparsed_value* log_sums) {
  const auto options = [&](Arguments& in) {
    return sparsed::c::AttentionOptionsOf(in, scores, heads, scale, slope);
  };
  return sparsed::c::AddAttention(chain, matrix, {left, right, values, bias}, options, value,
                                  log_sums);
}

sparsed_error* sparsed_chain_attention_gradient(
    sparsed_chain* chain, sparsed_matrix* matrix, sparsed_value left, sparsed_value right,
    sparsed_value values, sparsed_value bias, int32_t scores, int64_t heads, double scale,
    double slope, sparsed_value out, sparsed_value log_sums, sparsed_value gradient,
    sparsed_value* d_left, sparsed_value* d_right, sparsed_value* d_values, sparsed_value* d_bias) {
  const auto options = [&](Arguments& in) {
    return sparsed::c::AttentionOptionsOf(in, scores, heads, scale, slope);
  };
  return sparsed::c::AddAttentionGradient(
      chain, matrix, {left, right, values, bias}, options,
      {out, log_sums, gradient, d_left, d_right, d_values, d_bias});
}

sparsed_error* sparsed_chain_gatv2(sparsed_chain* chain, sparsed_matrix* matrix, sparsed_value left,
                                   sparsed_value right, sparsed_value att, sparsed_value values,
                                   sparsed_value bias, int64_t heads, double slope,
                                   sparsed_value* value, sparsed_value* log_sums) {
  const auto options = [&](Arguments& in) {
    return sparsed::c::AttentionOptionsOf(in, SPARSED_GATV2, heads, 1, slope);
  };
  return sparsed::c::AddAttention(chain, matrix, {left, right, values, bias, att}, options, value,
                                  log_sums);
}

sparsed_error* sparsed_chain_gatv2_gradient(
    sparsed_chain* chain, sparsed_matrix* matrix, sparsed_value left, sparsed_value right,
    sparsed_value att, sparsed_value values, sparsed_value bias, int64_t heads, double slope,
    sparsed_value out, sparsed_value log_sums, sparsed_value gradient, sparsed_value* d_left,
    sparsed_value* d_right, sparsed_value* d_att, sparsed_value* d_values, sparsed_value* d_bias) {
  const auto options = [&](Arguments& in) {
    return sparsed::c::AttentionOptionsOf(in, SPARSED_GATV2, heads, 1, slope);
  };
  return sparsed::c::AddAttentionGradient(
      chain, matrix, {left, right, values, bias, att}, options,
      {out, log_sums, gradient, d_left, d_right, d_values, d_bias, d_att});
}

sparsed_error* sparsed_chain_sum(sparsed_chain* chain, const sparsed_value* terms,
                                 const double* factors, size_t count, sparsed_value* value) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    constexpr size_t kMostTerms = 64;
    Arguments in;
    Step step(chain, in);
    in.Need(terms, "terms");
    in.Need(factors, "factors");
    in.Need(value, "value");
    if (count == 0 || count > kMostTerms) in.Refuse("a sum has 1 to 64 terms");
    std::vector<Chain::Term> sum;
    for (size_t i = 0; in.ok() && i < count; ++i) {
      const auto term = step.Value(terms[i], "a term");
      if (term) sum.push_back({*term, factors[i]});
    }
    if (!in.ok()) return in.status();
    *value = step.Add(chain->chain.Sum(std::move(sum)));
    return absl::OkStatus();
  });
}

sparsed_error* sparsed_chain_output(sparsed_chain* chain, sparsed_value value,
                                    const sparsed_dense* destination) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    Step step(chain, in);
    const auto from = step.Value(value, "value");
    if (!in.ok()) return in.status();
    in = chain->places;
    const bool which =
        destination != nullptr && destination->held == nullptr && destination->type == SPARSED_I64;
    const sparsed::Destination to =
        in.Out(destination, "destination", chain->client->client(), which);
    if (!in.ok()) return in.status();
    chain->places = in;
    chain->chain.Output(*from, to);
    return absl::OkStatus();
  });
}

sparsed_error* sparsed_chain_run(sparsed_chain* chain, const sparsed_call_options* options,
                                 sparsed_result* result, sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    if (!in.Need(chain, "chain")) return in.status();
    in = chain->places;
    const sparsed::CallOptions call_options = in.Call(options);
    const sparsed::c::Place place = in.Place(options, call);
    if (!in.ok()) return in.status();
    if (call != nullptr) {
      return sparsed::c::FinishOrHandOut(
          chain->client->client().RunAsync(chain->chain, call_options), call,
          [result](const sparsed::ComputeResult& how) {
            sparsed::c::Set(how, result);
            return absl::OkStatus();
          });
    }
    const bool of_one = chain->matrix && *chain->matrix != nullptr;
    return sparsed::c::Deliver(of_one ? (*chain->matrix)->Run(place, chain->chain, call_options)
                                      : chain->client->Run(place, chain->chain, call_options),
                               result);
  });
}

}  // extern "C"
