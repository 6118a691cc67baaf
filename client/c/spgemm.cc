// Sparse by sparse.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "client/c/arguments.h"
#include "client/c/calls.h"
#include "client/c/csr.h"
#include "client/c/errors.h"
#include "client/c/handles.h"
#include "client/c/results.h"
#include "client/src/row_blocks.h"

namespace sparsed::c {
namespace {

SpgemmOptions OptionsOf(const sparsed_spgemm_options& given, Arguments& in) {
  SpgemmOptions spgemm;
  spgemm.transpose_left = given.transpose_left != 0;
  spgemm.transpose_right = given.transpose_right != 0;
  if (given.mask != nullptr) spgemm.mask = given.mask;
  if (given.semiring < 0 || given.semiring > SPARSED_PLUS_PAIR) {
    in.Refuse(fmt::format("semiring is {}; there are 1 to 4, and 0 for sums of products",
                          given.semiring));
  } else if (given.semiring != 0) {
    spgemm.semiring = static_cast<Semiring>(given.semiring);
  }
  return spgemm;
}

/// Both, and of one client.
void CheckFactors(sparsed_matrix* left, sparsed_matrix* right, Arguments& in) {
  if (!in.Need(left, "left") || !in.Need(right, "right")) return;
  if (left->local->client() != right->local->client()) {
    in.Refuse("left and right are of different clients");
  }
}

absl::Status Collect(const Matrix& left, const Matrix& right, const SpgemmOptions& spgemm,
                     const CallOptions& options, sparsed_result* result, sparsed_csr** csr,
                     sparsed_call** call) {
  const auto collected = std::make_shared<CsrMatrix>();
  collected->row_offsets.push_back(0);
  return FinishOrHandOut(
      left.SpgemmAsync(
          right, [collected](const RowBlock& block) { return Append(block, *collected); }, spgemm,
          options),
      call, [collected, result, csr](const SpgemmResult& done) {
        collected->rows = done.rows;
        collected->cols = done.cols;
        *csr = new sparsed_csr{std::move(*collected)};
        Set(done, result);
        return absl::OkStatus();
      });
}

absl::Status Give(const RowBlock& block, sparsed_row_block on_block, void* context) {
  sparsed_csr_view view = {};
  view.rows = block.rows;
  view.cols = block.result_cols;
  view.nnz = static_cast<int64_t>(block.column_indices.size());
  view.row_offsets = block.row_offsets.data();
  view.offset_bytes = sizeof(int64_t);
  view.type = static_cast<int32_t>(TypeOf(block.values));
  view.column_indices = block.column_indices.data();
  view.values = DataOf(block.values);
  if (on_block(context, block.row_begin, &view) == 0) return absl::OkStatus();
  return absl::CancelledError("the callback that got the rows ended the product");
}

}  // namespace
}  // namespace sparsed::c

using sparsed::c::Arguments;

extern "C" {

sparsed_error* sparsed_spgemm(sparsed_matrix* left, sparsed_matrix* right,
                              const sparsed_spgemm_options* spgemm,
                              const sparsed_call_options* options, sparsed_result* result,
                              sparsed_csr** csr, sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    sparsed::c::CheckFactors(left, right, in);
    const sparsed_spgemm_options given =
        in.Options(spgemm, sparsed_spgemm_options SPARSED_SPGEMM_OPTIONS_INIT, "spgemm");
    const sparsed::SpgemmOptions how = sparsed::c::OptionsOf(given, in);
    if (given.keep_as == nullptr) in.Need(csr, "csr");
    const sparsed::CallOptions call_options = in.Call(options);
    if (!in.ok()) return in.status();
    if (given.keep_as == nullptr) {
      return sparsed::c::Collect(left->matrix(), right->matrix(), how, call_options, result, csr,
                                 call);
    }
    const sparsed::SpgemmKeepOptions keep = {.replace = given.replace != 0, .spgemm = how};
    return sparsed::c::FinishOrHandOut(
        left->matrix().SpgemmKeepAsync(right->matrix(), given.keep_as, keep, call_options), call,
        [result](const sparsed::SpgemmResult& done) {
          sparsed::c::Set(done, result);
          return absl::OkStatus();
        });
  });
}

sparsed_error* sparsed_spgemm_blocks(sparsed_matrix* left, sparsed_matrix* right,
                                     const sparsed_spgemm_options* spgemm,
                                     sparsed_row_block on_block, void* context,
                                     const sparsed_call_options* options, sparsed_result* result,
                                     sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    sparsed::c::CheckFactors(left, right, in);
    const sparsed_spgemm_options given =
        in.Options(spgemm, sparsed_spgemm_options SPARSED_SPGEMM_OPTIONS_INIT, "spgemm");
    const sparsed::SpgemmOptions how = sparsed::c::OptionsOf(given, in);
    if (given.keep_as != nullptr) {
      in.Refuse("a product that is kept on the server (keep_as) comes in no blocks");
    }
    if (on_block == nullptr) in.Refuse("on_block is a null pointer");
    const sparsed::CallOptions call_options = in.Call(options);
    if (!in.ok()) return in.status();
    return sparsed::c::FinishOrHandOut(left->matrix().SpgemmAsync(
                                           right->matrix(),
                                           [on_block, context](const sparsed::RowBlock& block) {
                                             return sparsed::c::Give(block, on_block, context);
                                           },
                                           how, call_options),
                                       call, [result](const sparsed::SpgemmResult& done) {
                                         sparsed::c::Set(done, result);
                                         return absl::OkStatus();
                                       });
  });
}

}  // extern "C"
