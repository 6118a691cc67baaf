// Attention along the nonzeros, and its gradients.
#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <utility>

#include "client/c/arguments.h"
#include "client/c/errors.h"
#include "client/c/handles.h"
#include "client/c/steps.h"
#include "sparsed/chain.h"

namespace sparsed::c {
namespace {

/// What attention and its gradients are given alike.
struct Attention {
  Operand left, right, values;
  bool values_are_right;
  std::optional<Operand> bias, att;
  const sparsed_dense* d_att;
  Chain::AttentionOptions options;  ///< without the bias and att
};

/// Whether two that are right are one, which need not be sent and gathered twice.
bool AreSame(const sparsed_dense* a, const sparsed_dense* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr || a->held != nullptr || b->held != nullptr) return false;
  const auto leading = [](const sparsed_dense& dense) {
    return dense.leading_dimension == 0 ? dense.cols : dense.leading_dimension;
  };
  return a->data == b->data && a->rows == b->rows && a->cols == b->cols && a->type == b->type &&
         a->device == b->device && leading(*a) == leading(*b);
}

Attention Read(Arguments& in, const Client& client, const sparsed_dense* left,
               const sparsed_dense* right, const sparsed_dense* values,
               const sparsed_attention_options* attention) {
  const sparsed_attention_options given =
      in.Options(attention, sparsed_attention_options SPARSED_ATTENTION_OPTIONS_INIT, "attention");
  return {.left = in.In(left, "left", client),
          .right = in.In(right, "right", client),
          .values = in.In(values, "values", client),
          .values_are_right = AreSame(right, values),
          .bias = in.MaybeIn(given.bias, "bias", client),
          .att = in.MaybeIn(given.att, "att", client),
          .d_att = given.d_att,
          .options = AttentionOptionsOf(in, given.scores, given.heads, given.scale, given.slope)};
}

/// Its operands in the chain.
AttentionInputs Add(Chain& chain, const Attention& attention) {
  const Chain::Value left = chain.Input(attention.left), right = chain.Input(attention.right);
  const Chain::Value values = attention.values_are_right ? right : chain.Input(attention.values);
  AttentionInputs inputs = {left, right, values, attention.options};
  inputs.options.bias = Input(chain, attention.bias);
  inputs.options.att = Input(chain, attention.att);
  return inputs;
}

struct Wanted {
  const sparsed_dense* dense;
  const char* name;
  std::optional<Destination> to = std::nullopt;
};

}  // namespace

Chain::AttentionOptions AttentionOptionsOf(Arguments& in, int32_t scores, int64_t heads,
                                           double scale, double slope) {
  if (scores < SPARSED_DOT || scores > SPARSED_GATV2) {
    in.Refuse(
        fmt::format("scores is {}; there are dot products (1), sums (2) and GATv2 (3)", scores));
  }
  in.NotNegative(heads, "heads");
  return {.scores = static_cast<Chain::Scores>(scores),
          .heads = heads == 0 ? 1 : heads,
          .scale = scale,
          .slope = slope};
}

}  // namespace sparsed::c

using sparsed::Chain;
using sparsed::c::Arguments;

extern "C" {

sparsed_error* sparsed_attention(sparsed_matrix* matrix, const sparsed_dense* left,
                                 const sparsed_dense* right, const sparsed_dense* values,
                                 const sparsed_dense* out, const sparsed_dense* log_sums,
                                 const sparsed_attention_options* attention,
                                 const sparsed_call_options* options, sparsed_result* result,
                                 sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    if (!in.Need(matrix, "matrix")) return in.status();
    const sparsed::Client& client = matrix->client();
    const sparsed::c::Attention read = sparsed::c::Read(in, client, left, right, values, attention);
    const sparsed::Destination to = in.Out(out, "out", client);
    std::optional<sparsed::Destination> sums;
    if (log_sums != nullptr) sums = in.Out(log_sums, "log_sums", client);
    const sparsed::CallOptions call_options = in.Call(options);
    const sparsed::c::Place place = in.Place(options, call);
    if (!in.ok()) return in.status();
    Chain chain;
    const sparsed::c::AttentionInputs from = sparsed::c::Add(chain, read);
    const Chain::Attended made =
        chain.Attention(matrix->matrix(), from.left, from.right, from.values, from.options);
    chain.Output(made.value, to);
    if (sums) chain.Output(made.log_sums, *sums);
    return sparsed::c::RunChain(*matrix->local, place, chain, call_options, result, call);
  });
}

sparsed_error* sparsed_attention_gradient(
    sparsed_matrix* matrix, const sparsed_dense* left, const sparsed_dense* right,
    const sparsed_dense* values, const sparsed_dense* out, const sparsed_dense* log_sums,
    const sparsed_dense* gradient, const sparsed_dense* d_left, const sparsed_dense* d_right,
    const sparsed_dense* d_values, const sparsed_dense* d_bias,
    const sparsed_attention_options* attention, const sparsed_call_options* options,
    sparsed_result* result, sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    if (!in.Need(matrix, "matrix")) return in.status();
    const sparsed::Client& client = matrix->client();
    const sparsed::c::Attention read = sparsed::c::Read(in, client, left, right, values, attention);
    const sparsed::Operand result_of = in.In(out, "out", client);
    const sparsed::Operand sums = in.In(log_sums, "log_sums", client);
    const sparsed::Operand dy = in.In(gradient, "gradient", client);
    sparsed::c::Wanted wanted[] = {{d_left, "d_left"},
                                   {d_right, "d_right"},
                                   {d_values, "d_values"},
                                   {d_bias, "d_bias"},
                                   {read.d_att, "d_att"}};
    for (auto& [dense, name, to] : wanted) {
      if (dense != nullptr) to = in.Out(dense, name, client);
    }
    const sparsed::CallOptions call_options = in.Call(options);
    const sparsed::c::Place place = in.Place(options, call);
    if (!in.ok()) return in.status();
    Chain chain;
    const sparsed::c::AttentionInputs from = sparsed::c::Add(chain, read);
    const Chain::Attended made = {chain.Input(result_of), chain.Input(sums)};
    const Chain::AttentionGradients gradients = chain.AttentionGradient(
        matrix->matrix(), from.left, from.right, from.values, from.options, made, chain.Input(dy),
        {.left = d_left != nullptr,
         .right = d_right != nullptr,
         .values = d_values != nullptr,
         .bias = d_bias != nullptr,
         .att = read.d_att != nullptr});
    const std::optional<Chain::Value> values_made[] = {
        gradients.left, gradients.right, gradients.values, gradients.bias, gradients.att};
    for (size_t i = 0; i < std::size(wanted); ++i) {
      if (wanted[i].to) chain.Output(*values_made[i], *wanted[i].to);
    }
    return sparsed::c::RunChain(*matrix->local, place, chain, call_options, result, call);
  });
}

}  // extern "C"
