/* Attention along the nonzeros and its gradients, plain and in chains, against plain sums. */
#include <math.h>

#include "tests/unit/c/check.h"

enum { kHeads = 2, kPart = kK / kHeads };
static const double kScale = 0.25, kSlope = 0.5;

/* What one attention is given, and what it has to make. */
typedef struct Attention {
  const Sparse* s;
  int scores, width; /* columns of left and right */
  float left[kRows * kK], right[kCols * kK], values[kCols * kK], bias[kMost * kHeads];
  float gradient[kRows * kK], att[kK];
  double out[kRows * kK], log_sums[kRows * kHeads];
  double d_left[kRows * kK], d_right[kCols * kK], d_values[kCols * kK], d_bias[kMost * kHeads];
  double d_att[kK];
} Attention;

/* What LeakyReLU multiplies by. */
static double Leaky(double x) { return x > 0 ? 1 : kSlope; }

static double Raw(const Attention* a, int64_t i, int64_t j, int h) {
  const int part = a->width / kHeads;
  double sum = 0;
  int k;
  if (a->scores == SPARSED_ADD) return a->left[i * a->width + h] + a->right[j * a->width + h];
  for (k = h * part; k < (h + 1) * part; ++k) {
    const double left = a->left[i * a->width + k], right = a->right[j * a->width + k];
    sum +=
        a->scores == SPARSED_DOT ? left * right : a->att[k] * Leaky(left + right) * (left + right);
  }
  return sum;
}

static double Factor(const Attention* a, double raw) {
  if (a->scores == SPARSED_DOT) return kScale;
  return a->scores == SPARSED_GATV2 ? 1 : Leaky(raw);
}

static double Score(const Attention* a, int64_t p, int64_t i, int h) {
  const double raw = Raw(a, i, a->s->column_indices[p], h);
  return Factor(a, raw) * raw + a->bias[p * kHeads + h];
}

static void ExpectForward(Attention* a) {
  const Sparse* s = a->s;
  int64_t i, p;
  int h, k;
  memset(a->out, 0, sizeof(a->out));
  for (i = 0; i < kRows; ++i) {
    for (h = 0; h < kHeads; ++h) {
      double sum = 0;
      for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) sum += exp(Score(a, p, i, h));
      a->log_sums[i * kHeads + h] = log(sum);
      for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) {
        for (k = h * kPart; k < (h + 1) * kPart; ++k) {
          a->out[i * kK + k] +=
              exp(Score(a, p, i, h)) / sum * a->values[(int64_t)s->column_indices[p] * kK + k];
        }
      }
    }
  }
}

static void AddGradient(Attention* a, int64_t p, int64_t i, int64_t j, int h) {
  const double weight = exp(Score(a, p, i, h) - a->log_sums[i * kHeads + h]);
  const int part = a->width / kHeads;
  double d_score = 0, d_raw;
  int k;
  for (k = h * kPart; k < (h + 1) * kPart; ++k) {
    const double dy = a->gradient[i * kK + k];
    a->d_values[j * kK + k] += weight * dy;
    d_score += weight * dy * (a->values[j * kK + k] - a->out[i * kK + k]);
  }
  a->d_bias[p * kHeads + h] = d_score;
  d_raw = d_score * Factor(a, Raw(a, i, j, h));
  for (k = h * part; k < (h + 1) * part; ++k) {
    const double left = a->left[i * a->width + k], right = a->right[j * a->width + k];
    const int dot = a->scores == SPARSED_DOT, gatv2 = a->scores == SPARSED_GATV2;
    const double of_sum = gatv2 ? a->att[k] * Leaky(left + right) : 1;
    a->d_left[i * a->width + k] += d_raw * (dot ? right : of_sum);
    a->d_right[j * a->width + k] += d_raw * (dot ? left : of_sum);
    if (gatv2) a->d_att[k] += d_raw * Leaky(left + right) * (left + right);
  }
}

static void Expect(Attention* a) {
  int64_t i, p;
  int h;
  ExpectForward(a);
  memset(a->d_left, 0, sizeof(a->d_left));
  memset(a->d_right, 0, sizeof(a->d_right));
  memset(a->d_values, 0, sizeof(a->d_values));
  memset(a->d_att, 0, sizeof(a->d_att));
  for (i = 0; i < kRows; ++i) {
    for (p = a->s->row_offsets[i]; p < a->s->row_offsets[i + 1]; ++p) {
      for (h = 0; h < kHeads; ++h) AddGradient(a, p, i, a->s->column_indices[p], h);
    }
  }
}

/* Near() is for whole numbers. */
static int Close(const float* got, const double* expected, int64_t count) {
  int64_t i;
  for (i = 0; i < count; ++i) {
    if (isinf(expected[i]) && got[i] == expected[i]) continue;
    if (!(fabs(got[i] - expected[i]) <= 1e-4 * (1 + fabs(expected[i])))) return 0;
  }
  return 1;
}

static float out[kRows * kK], log_sums[kRows * kHeads];
static float d_left[kRows * kK], d_right[kCols * kK], d_values[kCols * kK], d_bias[kMost * kHeads];
static float d_att[kK];

static void CheckMade(const Attention* a, int biased) {
  CHECK(Close(out, a->out, kRows * kK));
  CHECK(Close(log_sums, a->log_sums, kRows * kHeads));
  CHECK(Close(d_left, a->d_left, kRows * a->width));
  CHECK(Close(d_right, a->d_right, kCols * a->width));
  CHECK(Close(d_values, a->d_values, kCols * kK));
  if (biased) CHECK(Close(d_bias, a->d_bias, a->s->nnz * kHeads));
  if (a->scores == SPARSED_GATV2) CHECK(Close(d_att, a->d_att, kK));
  memset(d_att, 0, sizeof(d_att));
  memset(out, 0, sizeof(out));
  memset(log_sums, 0, sizeof(log_sums));
  memset(d_left, 0, sizeof(d_left));
  memset(d_right, 0, sizeof(d_right));
  memset(d_values, 0, sizeof(d_values));
  memset(d_bias, 0, sizeof(d_bias));
}

static void CheckOne(sparsed_client* client, sparsed_matrix* matrix, Attention* a, int biased) {
  const sparsed_dense left = Dense(a->left, kRows, a->width);
  const sparsed_dense right = Dense(a->right, kCols, a->width);
  const sparsed_dense values = Dense(a->values, kCols, kK), dy = Dense(a->gradient, kRows, kK);
  const sparsed_dense bias = Dense(a->bias, a->s->nnz, kHeads);
  const sparsed_dense y = Dense(out, kRows, kK), sums = Dense(log_sums, kRows, kHeads);
  const sparsed_dense to_left = Dense(d_left, kRows, a->width);
  const sparsed_dense to_right = Dense(d_right, kCols, a->width);
  const sparsed_dense to_values = Dense(d_values, kCols, kK);
  const sparsed_dense to_bias = Dense(d_bias, a->s->nnz, kHeads);
  const sparsed_dense att = Dense(a->att, 1, kK), to_att = Dense(d_att, 1, kK);
  const int gatv2 = a->scores == SPARSED_GATV2;
  sparsed_attention_options options = SPARSED_ATTENTION_OPTIONS_INIT;
  sparsed_result result;
  sparsed_call* call = NULL;
  sparsed_chain* chain = NULL;
  sparsed_value in[6], made, of_sums, d[5];
  options.scores = a->scores;
  options.heads = kHeads;
  options.scale = kScale;
  options.slope = kSlope;
  if (biased) options.bias = &bias;
  if (gatv2) options.att = &att;
  if (gatv2) options.d_att = &to_att;
  CHECK_OK(
      sparsed_attention(matrix, &left, &right, &values, &y, &sums, &options, NULL, &result, NULL));
  CHECK(strstr(result.plan, "csr.attention") != NULL);
  CHECK((result.transport == SPARSED_TRANSPORT_ATTACHED) == sparsed_has_kernels());
  CHECK_OK(sparsed_attention_gradient(matrix, &left, &right, &values, &y, &sums, &dy, &to_left,
                                      &to_right, &to_values, biased ? &to_bias : NULL, &options,
                                      NULL, &result, NULL));
  CHECK(strstr(result.plan, "csr.attention_gradient") != NULL);
  CheckMade(a, biased);
  /* On the server, of some; the result alone. */
  CHECK_OK(
      sparsed_attention(matrix, &left, &right, &values, &y, NULL, &options, NULL, NULL, &call));
  CHECK_OK(sparsed_call_finish(call));
  CHECK(Close(out, a->out, kRows * kK));
  /* As a chain. */
  CHECK_OK(sparsed_chain_new(client, &chain));
  CHECK_OK(sparsed_chain_input(chain, &left, &in[0]));
  CHECK_OK(sparsed_chain_input(chain, &right, &in[1]));
  CHECK_OK(sparsed_chain_input(chain, &values, &in[2]));
  CHECK_OK(sparsed_chain_input(chain, &dy, &in[3]));
  in[4] = SPARSED_NO_VALUE;
  if (biased) CHECK_OK(sparsed_chain_input(chain, &bias, &in[4]));
  if (gatv2) {
    CHECK_OK(sparsed_chain_input(chain, &att, &in[5]));
    CHECK_OK(sparsed_chain_gatv2(chain, matrix, in[0], in[1], in[5], in[2], in[4], kHeads, kSlope,
                                 &made, &of_sums));
    CHECK_OK(sparsed_chain_gatv2_gradient(chain, matrix, in[0], in[1], in[5], in[2], in[4], kHeads,
                                          kSlope, made, of_sums, in[3], &d[0], &d[1], &d[4], &d[2],
                                          biased ? &d[3] : NULL));
  } else {
    CHECK_OK(sparsed_chain_attention(chain, matrix, in[0], in[1], in[2], in[4], a->scores, kHeads,
                                     kScale, kSlope, &made, &of_sums));
    CHECK_OK(sparsed_chain_attention_gradient(chain, matrix, in[0], in[1], in[2], in[4], a->scores,
                                              kHeads, kScale, kSlope, made, of_sums, in[3], &d[0],
                                              &d[1], &d[2], biased ? &d[3] : NULL));
  }
  CHECK_OK(sparsed_chain_output(chain, made, &y));
  CHECK_OK(sparsed_chain_output(chain, of_sums, &sums));
  CHECK_OK(sparsed_chain_output(chain, d[0], &to_left));
  CHECK_OK(sparsed_chain_output(chain, d[1], &to_right));
  CHECK_OK(sparsed_chain_output(chain, d[2], &to_values));
  if (biased) CHECK_OK(sparsed_chain_output(chain, d[3], &to_bias));
  if (gatv2) CHECK_OK(sparsed_chain_output(chain, d[4], &to_att));
  CHECK_OK(sparsed_chain_run(chain, NULL, &result, NULL));
  CheckMade(a, biased);
  sparsed_chain_free(chain);
}

static void TestWrong(sparsed_client* client, sparsed_matrix* matrix) {
  static float x[kRows * kK];
  const sparsed_dense left = Dense(x, kRows, kK), right = Dense(x, kCols, kK);
  const sparsed_dense y = Dense(out, kRows, kK);
  sparsed_attention_options options = SPARSED_ATTENTION_OPTIONS_INIT;
  sparsed_chain* chain = NULL;
  sparsed_value value, made = 7;
  CHECK_ENDS(sparsed_attention(NULL, &left, &right, &right, &y, NULL, NULL, NULL, NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "matrix");
  CHECK_ENDS(sparsed_attention(matrix, &left, NULL, &right, &y, NULL, NULL, NULL, NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "right is a null pointer");
  options.scores = 4;
  CHECK_ENDS(sparsed_attention(matrix, &left, &right, &right, &y, NULL, &options, NULL, NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "scores is 4");
  options.scores = SPARSED_GATV2;
  CHECK_ENDS(sparsed_attention(matrix, &left, &right, &right, &y, NULL, &options, NULL, NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "which needs an att");
  options.scores = SPARSED_DOT;
  options.heads = 3;
  CHECK_ENDS(sparsed_attention(matrix, &left, &right, &right, &y, NULL, &options, NULL, NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "which 3 heads do not divide");
  options.heads = -1;
  CHECK_ENDS(sparsed_attention(matrix, &left, &right, &right, &y, NULL, &options, NULL, NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "heads");
  CHECK_ENDS(sparsed_attention_gradient(matrix, &left, &right, &right, &y, NULL, &y, NULL, NULL,
                                        NULL, NULL, NULL, NULL, NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "log_sums is a null pointer");
  CHECK_OK(sparsed_chain_new(client, &chain));
  CHECK_OK(sparsed_chain_input(chain, &left, &value));
  CHECK_ENDS(sparsed_chain_attention(chain, matrix, value, 5, value, SPARSED_NO_VALUE, SPARSED_DOT,
                                     1, 1, 0, &made, NULL),
             SPARSED_INVALID_ARGUMENT, "right is the value 5; this chain has 1 so far");
  CHECK_ENDS(sparsed_chain_attention_gradient(chain, matrix, value, value, value, SPARSED_NO_VALUE,
                                              SPARSED_DOT, 1, 1, 0, value, value, value, NULL, NULL,
                                              NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "no gradient is wanted");
  CHECK_ENDS(sparsed_chain_gatv2(chain, matrix, value, value, SPARSED_NO_VALUE, value,
                                 SPARSED_NO_VALUE, 1, 0, &made, NULL),
             SPARSED_INVALID_ARGUMENT, "att is no value");
  CHECK(made == 7);
  sparsed_chain_free(chain);
}

void TestAttention(sparsed_client* client, const Sparse* s) {
  static Attention a;
  sparsed_matrix* const matrix = Upload(client, "attention", s);
  int biased;
  a.s = s;
  for (a.scores = SPARSED_DOT; a.scores <= SPARSED_GATV2; ++a.scores) {
    for (biased = 0; biased < 2; ++biased) {
      a.width = a.scores == SPARSED_ADD ? kHeads : kK;
      Fill(a.left, kRows * kK, 91);
      Fill(a.right, kCols * kK, 92);
      Fill(a.values, kCols * kK, 93);
      Fill(a.gradient, kRows * kK, 94);
      Fill(a.att, kK, 96);
      memset(a.bias, 0, sizeof(a.bias));
      if (biased) Fill(a.bias, s->nnz * kHeads, 95);
      Expect(&a);
      CheckOne(client, matrix, &a, biased);
    }
  }
  TestWrong(client, matrix);
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}
