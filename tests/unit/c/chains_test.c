/* Chains: attention of two heads and a propagation, against a plain computation. */
#include <math.h>

#include "tests/unit/c/check.h"

/* y = 0.5 x + 0.25 S (S x) over S * S^T would need square matrices: S^T (S x) is N x K, as x is. */
static void TestPropagation(sparsed_client* client, sparsed_matrix* matrix, const Sparse* s) {
  static float x[kCols * kK], y[kCols * kK];
  static double once[kRows * kK], expected[kCols * kK];
  static float once_f32[kRows * kK];
  const sparsed_dense in = Dense(x, kCols, kK), out = Dense(y, kCols, kK);
  sparsed_chain* chain = NULL;
  sparsed_value input, first, second, sum, terms[2];
  const double factors[2] = {0.5, 0.25};
  sparsed_result result;
  sparsed_call* call = NULL;
  int64_t i;
  int run;
  CHECK_OK(sparsed_chain_new(client, &chain));
  CHECK_OK(sparsed_chain_input(chain, &in, &input));
  CHECK_OK(sparsed_chain_spmm(chain, matrix, input, 0, SPARSED_SUM, 1, 0, SPARSED_NO_VALUE,
                              SPARSED_NO_VALUE, 0, 0, &first, NULL));
  CHECK_OK(sparsed_chain_spmm(chain, matrix, first, 1, SPARSED_SUM, 1, 0, SPARSED_NO_VALUE,
                              SPARSED_NO_VALUE, 0, 0, &second, NULL));
  terms[0] = input;
  terms[1] = second;
  CHECK_OK(sparsed_chain_sum(chain, terms, factors, 2, &sum));
  CHECK_OK(sparsed_chain_output(chain, sum, &out));
  for (run = 0; run < 3; ++run) {
    Fill(x, kCols * kK, (uint32_t)run);
    Multiply(s, s->values, 0, x, once);
    for (i = 0; i < kRows * kK; ++i) once_f32[i] = (float)once[i];
    Multiply(s, s->values, 1, once_f32, expected);
    for (i = 0; i < kCols * kK; ++i) expected[i] = 0.5 * x[i] + 0.25 * expected[i];
    memset(y, 0, sizeof(y));
    if (run < 2) {
      CHECK_OK(sparsed_chain_run(chain, NULL, &result, NULL));
      CHECK((result.transport == SPARSED_TRANSPORT_ATTACHED) == sparsed_has_kernels());
    } else {
      CHECK_OK(sparsed_chain_run(chain, NULL, &result, &call));
      CHECK_OK(sparsed_call_finish(call));
      CHECK(result.transport == SPARSED_TRANSPORT_STREAM);
    }
    CHECK(Near(y, expected, kCols * kK));
    CHECK(strncmp(result.plan, "chain of 3", 10) == 0);
  }
  sparsed_chain_free(chain);
}

/* softmax(S .* (q k^T)) v, and what a softmax's backward, scale, total and a greatest give. */
static void TestSteps(sparsed_client* client, sparsed_matrix* matrix, const Sparse* s) {
  static float q[kRows * kK], k[kCols * kK], c[kRows * kK], most[kRows * kK], sums[kRows];
  static float weights[kMost], gradient[kMost], scaled[kMost];
  static int64_t which[kRows * kK];
  static double expected[kRows * kK], once[kRows];
  const sparsed_dense left = Dense(q, kRows, kK), right = Dense(k, kCols, kK);
  const sparsed_dense c_out = Dense(c, kRows, kK), most_out = Dense(most, kRows, kK);
  const sparsed_dense weights_out = Dense(weights, s->nnz, 1), sums_out = Dense(sums, kRows, 1);
  const sparsed_dense gradient_out = Dense(gradient, s->nnz, 1);
  const sparsed_dense scaled_out = Dense(scaled, s->nnz, 1);
  sparsed_dense which_out = Dense(which, kRows, kK);
  sparsed_chain* chain = NULL;
  sparsed_value a, b, dots, p, product, back, scale, total, best, best_of;
  int64_t i;
  which_out.type = SPARSED_I64;
  Fill(q, kRows * kK, 71);
  Fill(k, kCols * kK, 72);
  CHECK_OK(sparsed_chain_new(client, &chain));
  CHECK_OK(sparsed_chain_input(chain, &left, &a));
  CHECK_OK(sparsed_chain_input(chain, &right, &b));
  CHECK_OK(sparsed_chain_sddmm(chain, matrix, a, b, 1, SPARSED_NO_VALUE, 0, &dots));
  CHECK_OK(sparsed_chain_softmax(chain, matrix, dots, SPARSED_NO_VALUE, 0.125, &p));
  CHECK_OK(sparsed_chain_spmm(chain, matrix, b, 0, SPARSED_SUM, 1, 0, SPARSED_NO_VALUE, p, 0, 0,
                              &product, NULL));
  CHECK_OK(sparsed_chain_softmax(chain, matrix, p, dots, 0.125, &back));
  CHECK_OK(sparsed_chain_scale(chain, matrix, p, SPARSED_NO_VALUE, SPARSED_NO_VALUE, &scale));
  CHECK_OK(sparsed_chain_total(chain, matrix, p, 0, &total));
  CHECK_OK(sparsed_chain_spmm(chain, matrix, b, 0, SPARSED_MAX, 1, 0, SPARSED_NO_VALUE,
                              SPARSED_NO_VALUE, 1, 0, &best, &best_of));
  CHECK_OK(sparsed_chain_output(chain, product, &c_out));
  CHECK_OK(sparsed_chain_output(chain, p, &weights_out));
  CHECK_OK(sparsed_chain_output(chain, back, &gradient_out));
  CHECK_OK(sparsed_chain_output(chain, scale, &scaled_out));
  CHECK_OK(sparsed_chain_output(chain, total, &sums_out));
  CHECK_OK(sparsed_chain_output(chain, best, &most_out));
  CHECK_OK(sparsed_chain_output(chain, best_of, &which_out));
  CHECK_OK(sparsed_chain_run(chain, NULL, NULL, NULL));
  Multiply(s, weights, 0, k, expected);
  CHECK(Near(c, expected, kRows * kK));
  for (i = 0; i < s->nnz; ++i) expected[i] = weights[i];
  CHECK(Near(scaled, expected, s->nnz));
  /* A row's weights add up to one, and their gradient to nothing. */
  for (i = 0; i < kRows; ++i) {
    double sum = 0;
    int64_t j;
    for (j = s->row_offsets[i]; j < s->row_offsets[i + 1]; ++j) sum += gradient[j];
    CHECK(fabs(sum) < 1e-5);
    once[i] = i == 7 ? 0 : 1;
  }
  CHECK(Near(sums, once, kRows));
  for (i = 0; i < kRows * kK; ++i) {
    CHECK(which[i] < 0 || most[i] == k[(int64_t)s->column_indices[which[i]] * kK + i % kK]);
  }
  sparsed_chain_free(chain);
}

static void TestWrong(sparsed_client* client, sparsed_matrix* matrix) {
  static float x[kCols * kK];
  const sparsed_dense in = Dense(x, kCols, kK);
  sparsed_dense elsewhere = in;
  sparsed_chain* chain = NULL;
  sparsed_value value = 7, step = 7;
  const double factor = 1;
  CHECK_OK(sparsed_chain_new(client, &chain));
  CHECK_ENDS(sparsed_chain_input(chain, NULL, &value), SPARSED_INVALID_ARGUMENT, "operand");
  CHECK_ENDS(sparsed_chain_output(chain, 0, &in), SPARSED_INVALID_ARGUMENT, "has 0 so far");
  CHECK(value == 7);
  CHECK_OK(sparsed_chain_input(chain, &in, &value));
  elsewhere.device = 0;
  CHECK_ENDS(sparsed_chain_input(chain, &elsewhere, &step), SPARSED_INVALID_ARGUMENT, "one device");
  CHECK_ENDS(sparsed_chain_total(chain, NULL, value, 0, &step), SPARSED_INVALID_ARGUMENT, "matrix");
  CHECK_ENDS(sparsed_chain_total(chain, matrix, 5, 0, &step), SPARSED_INVALID_ARGUMENT,
             "values is the value 5; this chain has 1 so far");
  CHECK_ENDS(sparsed_chain_softmax(chain, matrix, -1, -1, 1, &step), SPARSED_INVALID_ARGUMENT,
             "x is no value");
  CHECK_ENDS(sparsed_chain_sddmm(chain, matrix, value, value, 0, -1, -2, &step),
             SPARSED_INVALID_ARGUMENT, "heads");
  CHECK_ENDS(sparsed_chain_scale(chain, matrix, value, -1, -1, NULL), SPARSED_INVALID_ARGUMENT,
             "value is a null pointer");
  CHECK_ENDS(
      sparsed_chain_spmm(chain, matrix, value, 0, SPARSED_MEAN, 1, 1, -1, -1, 0, 0, &step, NULL),
      SPARSED_INVALID_ARGUMENT, "beta 0");
  CHECK_ENDS(sparsed_chain_sum(chain, &value, &factor, 0, &step), SPARSED_INVALID_ARGUMENT,
             "1 to 64");
  CHECK(step == 7);
  /* What does not fit together, the run says, with the step. */
  CHECK_OK(sparsed_chain_softmax(chain, matrix, value, -1, 1, &step));
  CHECK_OK(sparsed_chain_output(chain, step, &in));
  CHECK_ENDS(sparsed_chain_run(chain, NULL, NULL, NULL), SPARSED_INVALID_ARGUMENT, "0");
  sparsed_chain_free(chain);
}

/* Of two matrices: on the server. */
static void TestTwo(sparsed_client* client, sparsed_matrix* one, const Sparse* s) {
  static float x[kCols * kK], y[kRows * kK];
  static double expected[kRows * kK];
  const sparsed_dense in = Dense(x, kCols, kK), out = Dense(y, kRows, kK);
  sparsed_matrix* const two = Upload(client, "chains.two", s);
  sparsed_chain* chain = NULL;
  sparsed_value input, a, b;
  sparsed_result result;
  int64_t i;
  Fill(x, kCols * kK, 81);
  CHECK_OK(sparsed_chain_new(client, &chain));
  CHECK_OK(sparsed_chain_input(chain, &in, &input));
  CHECK_OK(sparsed_chain_spmm(chain, one, input, 0, SPARSED_SUM, 1, 0, -1, -1, 0, 0, &a, NULL));
  CHECK_OK(sparsed_chain_spmm(chain, two, input, 0, SPARSED_SUM, 2, 1, a, -1, 0, 0, &b, NULL));
  CHECK_OK(sparsed_chain_output(chain, b, &out));
  CHECK_OK(sparsed_chain_run(chain, NULL, &result, NULL));
  CHECK(result.transport == SPARSED_TRANSPORT_STREAM);
  Multiply(s, s->values, 0, x, expected);
  for (i = 0; i < kRows * kK; ++i) expected[i] *= 3;
  CHECK(Near(y, expected, kRows * kK));
  sparsed_chain_free(chain);
  CHECK_OK(sparsed_matrix_delete(two, NULL));
  sparsed_matrix_free(two);
}

void TestChains(sparsed_client* client, const Sparse* s) {
  sparsed_matrix* const matrix = Upload(client, "chains", s);
  TestPropagation(client, matrix, s);
  TestSteps(client, matrix, s);
  TestWrong(client, matrix);
  TestTwo(client, matrix, s);
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}
