// SpMM, SDDMM, and what is a chain of one step: reductions, several heads, softmax, scale, total.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "client/c/arguments.h"
#include "client/c/calls.h"
#include "client/c/errors.h"
#include "client/c/handles.h"
#include "client/c/results.h"
#include "client/c/steps.h"
#include "client/src/convert.h"
#include "sparsed/chain.h"

namespace sparsed::c {
namespace {

/// What a chain's steps may take that a plain product does not: values held by the server, which
/// may have any number of columns, or of several heads.
bool OfHeads(const sparsed_dense* values) {
  return values != nullptr && (values->held != nullptr || values->cols > 1);
}

// ---- SpMM

struct Spmm {
  sparsed_spmm_options given;
  Operand b;
  std::optional<Operand> accumulate, values;
  Destination c;
  std::optional<Destination> which;
};

/// What `c` holds, without gaps. A chain's result may not lie where an operand does.
std::shared_ptr<std::byte[]> CopyOf(const MutableDenseView& c) {
  const size_t row = static_cast<size_t>(c.cols) * SizeOf(c.type);
  const int64_t stride = c.leading_dimension == 0 ? c.cols : c.leading_dimension;
  std::shared_ptr<std::byte[]> copy(new std::byte[static_cast<size_t>(c.rows) * row]);
  for (int64_t i = 0; i < c.rows; ++i) {
    std::memcpy(
        copy.get() + static_cast<size_t>(i) * row,
        static_cast<const std::byte*>(c.data) + static_cast<size_t>(i * stride) * SizeOf(c.type),
        row);
  }
  return copy;
}

/// Whether the sum adds to what host memory holds where it goes.
bool AddsInPlace(const Place& place, const Spmm& spmm) {
  const auto* const c = std::get_if<MutableDenseView>(&spmm.c);
  if (place.gpu >= 0 || c == nullptr || spmm.given.beta == 0) return false;
  if (!spmm.accumulate) return true;
  const auto* const old = std::get_if<DenseView>(&*spmm.accumulate);
  return old != nullptr && old->data == c->data;
}

absl::Status RunHeads(LocalMatrix& local, const Place& place, const Spmm& spmm, SpmmOptions how,
                      const CallOptions& options, sparsed_result* result, sparsed_call** call) {
  std::shared_ptr<std::byte[]> before;
  if (AddsInPlace(place, spmm)) {
    const auto& c = std::get<MutableDenseView>(spmm.c);
    before = CopyOf(c);
    how.accumulate = DenseView(before.get(), c.type, c.rows, c.cols);
  }
  return RunChain(local, place, ChainOf(local.matrix(), spmm.b, spmm.c, how), options, result, call,
                  before);
}

void AddReduction(Chain& chain, const Matrix& matrix, const Spmm& spmm) {
  Chain::ReduceOptions options;
  options.transpose = spmm.given.transpose != 0;
  options.values = Input(chain, spmm.values);
  options.unscaled = spmm.given.unscaled != 0;
  const Chain::Value b = chain.Input(spmm.b);
  const bool greatest = spmm.given.reduce == SPARSED_MAX;
  if (spmm.which) {
    const Chain::Best best =
        greatest ? chain.MaxAndWhich(matrix, b, options) : chain.MinAndWhich(matrix, b, options);
    chain.Output(best.value, spmm.c);
    chain.Output(best.which, *spmm.which);
  } else if (spmm.given.reduce == SPARSED_MEAN) {
    chain.Output(chain.Mean(matrix, b, options), spmm.c);
  } else {
    chain.Output(greatest ? chain.Max(matrix, b, options) : chain.Min(matrix, b, options), spmm.c);
  }
}

absl::Status Run(LocalMatrix& local, const Place& place, const Spmm& spmm,
                 const CallOptions& options, sparsed_result* result, sparsed_call** call) {
  if (spmm.given.reduce != SPARSED_SUM) {
    Chain chain;
    AddReduction(chain, local.matrix(), spmm);
    return RunChain(local, place, chain, options, result, call);
  }
  const SpmmOptions how = {.transpose = spmm.given.transpose != 0,
                           .alpha = spmm.given.alpha,
                           .beta = spmm.given.beta,
                           .accumulate = spmm.accumulate,
                           .allow_tf32 = spmm.given.allow_tf32 != 0,
                           .values = spmm.values};
  if (OfHeads(spmm.given.values)) {
    return RunHeads(local, place, spmm, how, options, result, call);
  }
  if (call == nullptr) return Deliver(local.Spmm(place, spmm.b, spmm.c, how, options), result);
  return FinishOrHandOut(local.matrix().SpmmAsync(spmm.b, spmm.c, how, options), call,
                         [result](const ComputeResult& done) {
                           Set(done, result);
                           return absl::OkStatus();
                         });
}

// ---- SDDMM

struct Sddmm {
  sparsed_sddmm_options given;
  Operand a, b;
  std::optional<Operand> values;
  Destination out;
};

absl::Status Run(LocalMatrix& local, const Place& place, const Sddmm& sddmm,
                 const CallOptions& options, sparsed_result* result, sparsed_call** call) {
  const SddmmOptions how = {.unscaled = sddmm.given.unscaled != 0, .values = sddmm.values};
  if (sddmm.given.heads > 1 || OfHeads(sddmm.given.values)) {
    const int64_t heads = std::max<int64_t>(sddmm.given.heads, 1);
    return RunChain(local, place, ChainOf(local.matrix(), sddmm.a, sddmm.b, sddmm.out, how, heads),
                    options, result, call);
  }
  if (call == nullptr) {
    return Deliver(local.Sddmm(place, sddmm.a, sddmm.b, sddmm.out, how, options), result);
  }
  return FinishOrHandOut(local.matrix().SddmmAsync(sddmm.a, sddmm.b, sddmm.out, how, options), call,
                         [result](const ComputeResult& done) {
                           Set(done, result);
                           return absl::OkStatus();
                         });
}

// ---- One step

struct NamedOperand {
  const sparsed_dense* dense;
  const char* name;
  bool optional = false;
};

/// An operand without rows. A chain takes its type from its operands, of which it has one at least.
absl::Status AddNothing(const Matrix& matrix, const Destination& result, const CallOptions& options,
                        Chain& chain) {
  const auto* const view = std::get_if<MutableDenseView>(&result);
  ValueType type = ValueType::kF32;
  if (view != nullptr) {
    type = view->type;
  } else {
    const absl::StatusOr<MatrixInfo> info = matrix.Info(options);
    if (!info.ok()) return info.status();
    type = info->type;
  }
  chain.Input(DenseView(nullptr, type, 0, 1));
  return absl::OkStatus();
}

/// Runs what `add` (Chain::Value(Chain&, const Matrix&, operands' values)) makes of the operands,
/// of which there are N.
template <size_t N, typename Add>
sparsed_error* RunStep(sparsed_matrix* matrix, const NamedOperand (&operands)[N],
                       const sparsed_dense* y, const char* y_name,
                       const sparsed_call_options* options, sparsed_result* result,
                       sparsed_call** call, const Add& add) {
  return Guarded([&]() -> absl::Status {
    Arguments in;
    if (!in.Need(matrix, "matrix")) return in.status();
    const Client& client = matrix->client();
    Chain chain;
    std::optional<Chain::Value> values[N];
    for (size_t i = 0; i < N; ++i) {
      const auto& [dense, name, optional] = operands[i];
      if (dense == nullptr && optional) continue;
      values[i] = chain.Input(in.In(dense, name, client));
    }
    const Destination to = in.Out(y, y_name, client);
    const CallOptions call_options = in.Call(options);
    const Place place = in.Place(options, call);
    if (!in.ok()) return in.status();
    if (std::ranges::none_of(values, [](const auto& value) { return value.has_value(); })) {
      if (absl::Status s = AddNothing(matrix->matrix(), to, call_options, chain); !s.ok()) return s;
    }
    chain.Output(add(chain, matrix->matrix(), values), to);
    return RunChain(*matrix->local, place, chain, call_options, result, call);
  });
}

}  // namespace
}  // namespace sparsed::c

using sparsed::Chain;
using sparsed::Matrix;
using sparsed::c::Arguments;

extern "C" {

sparsed_error* sparsed_spmm(sparsed_matrix* matrix, const sparsed_dense* b, const sparsed_dense* c,
                            const sparsed_spmm_options* spmm, const sparsed_call_options* options,
                            sparsed_result* result, sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    if (!in.Need(matrix, "matrix")) return in.status();
    const sparsed::Client& client = matrix->client();
    const sparsed_spmm_options given =
        in.Options(spmm, sparsed_spmm_options SPARSED_SPMM_OPTIONS_INIT, "spmm");
    in.CheckReduction({.reduce = given.reduce,
                       .plain = given.alpha == 1 && given.beta == 0 && given.accumulate == nullptr,
                       .unscaled = given.unscaled != 0,
                       .which = given.which != nullptr});
    sparsed::c::Spmm request = {.given = given,
                                .b = in.In(b, "b", client),
                                .accumulate = in.MaybeIn(given.accumulate, "accumulate", client),
                                .values = in.MaybeIn(given.values, "values", client),
                                .c = in.Out(c, "c", client),
                                .which = {}};
    if (given.which != nullptr) request.which = in.Out(given.which, "which", client, true);
    const sparsed::CallOptions call_options = in.Call(options);
    const sparsed::c::Place place = in.Place(options, call);
    if (!in.ok()) return in.status();
    return sparsed::c::Run(*matrix->local, place, request, call_options, result, call);
  });
}

sparsed_error* sparsed_sddmm(sparsed_matrix* matrix, const sparsed_dense* a, const sparsed_dense* b,
                             const sparsed_dense* out, const sparsed_sddmm_options* sddmm,
                             const sparsed_call_options* options, sparsed_result* result,
                             sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    if (!in.Need(matrix, "matrix")) return in.status();
    const sparsed::Client& client = matrix->client();
    const sparsed_sddmm_options given =
        in.Options(sddmm, sparsed_sddmm_options SPARSED_SDDMM_OPTIONS_INIT, "sddmm");
    in.NotNegative(given.heads, "heads");
    const sparsed::c::Sddmm request = {.given = given,
                                       .a = in.In(a, "a", client),
                                       .b = in.In(b, "b", client),
                                       .values = in.MaybeIn(given.values, "values", client),
                                       .out = in.Out(out, "out", client)};
    const sparsed::CallOptions call_options = in.Call(options);
    const sparsed::c::Place place = in.Place(options, call);
    if (!in.ok()) return in.status();
    return sparsed::c::Run(*matrix->local, place, request, call_options, result, call);
  });
}

sparsed_error* sparsed_softmax(sparsed_matrix* matrix, const sparsed_dense* x,
                               const sparsed_dense* y, double scale,
                               const sparsed_call_options* options, sparsed_result* result,
                               sparsed_call** call) {
  return sparsed::c::RunStep(
      matrix, {{x, "x"}}, y, "y", options, result, call,
      [&](Chain& chain, const Matrix& s, const std::optional<Chain::Value>* values) {
        return chain.Softmax(s, *values[0], scale);
      });
}

sparsed_error* sparsed_softmax_gradient(sparsed_matrix* matrix, const sparsed_dense* y,
                                        const sparsed_dense* dy, const sparsed_dense* dx,
                                        double scale, const sparsed_call_options* options,
                                        sparsed_result* result, sparsed_call** call) {
  return sparsed::c::RunStep(
      matrix, {{y, "y"}, {dy, "dy"}}, dx, "dx", options, result, call,
      [&](Chain& chain, const Matrix& s, const std::optional<Chain::Value>* values) {
        return chain.SoftmaxGradient(s, *values[0], *values[1], scale);
      });
}

sparsed_error* sparsed_scale(sparsed_matrix* matrix, const sparsed_dense* values,
                             const sparsed_dense* rows, const sparsed_dense* cols,
                             const sparsed_dense* y, const sparsed_call_options* options,
                             sparsed_result* result, sparsed_call** call) {
  return sparsed::c::RunStep(
      matrix, {{values, "values", true}, {rows, "rows", true}, {cols, "cols", true}}, y, "y",
      options, result, call,
      [&](Chain& chain, const Matrix& s, const std::optional<Chain::Value>* in) {
        return chain.Scale(s, {.values = in[0], .rows = in[1], .cols = in[2]});
      });
}

sparsed_error* sparsed_total(sparsed_matrix* matrix, const sparsed_dense* values, int32_t transpose,
                             const sparsed_dense* y, const sparsed_call_options* options,
                             sparsed_result* result, sparsed_call** call) {
  return sparsed::c::RunStep(
      matrix, {{values, "values", true}}, y, "y", options, result, call,
      [&](Chain& chain, const Matrix& s, const std::optional<Chain::Value>* in) {
        return chain.Total(s, {.transpose = transpose != 0, .values = in[0]});
      });
}

sparsed_error* sparsed_attach(sparsed_matrix* matrix, int32_t device) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(matrix, "matrix");
    if (device < SPARSED_HOST) {
      in.Refuse(fmt::format("there is no device {}; there are SPARSED_HOST (-1) and GPUs from 0 on",
                            device));
    }
    if (!in.ok()) return in.status();
    return matrix->local->Attach(device);
  });
}

}  // extern "C"
