/* Products, each against a plain computation in double. */
#include <math.h>

#include "tests/unit/c/check.h"

enum { kHeads = 2 };

void TestProducts(sparsed_client* client, const Sparse* s) {
  static float b[kCols * kK], a[kRows * kK], c[kRows * kK], old[kRows * kK], values[kMost];
  static float wide[kRows * (kK + 5)];
  static double expected[kRows * kK];
  sparsed_matrix* const matrix = Upload(client, "products", s);
  const sparsed_dense from = Dense(b, kCols, kK), rows = Dense(a, kRows, kK);
  const sparsed_dense before = Dense(old, kRows, kK), own = Dense(values, s->nnz, 1);
  sparsed_dense to = Dense(c, kRows, kK);
  sparsed_spmm_options spmm = SPARSED_SPMM_OPTIONS_INIT;
  sparsed_sddmm_options sddmm = SPARSED_SDDMM_OPTIONS_INIT;
  sparsed_result result;
  static float out[kMost];
  const sparsed_dense nonzeros = Dense(out, s->nnz, 1);
  int64_t i, p;
  int k;
  Fill(b, kCols * kK, 11);
  Fill(a, kRows * kK, 12);
  Fill(old, kRows * kK, 13);
  Fill(values, s->nnz, 14);
  /* Plain. */
  Multiply(s, s->values, 0, b, expected);
  CHECK_OK(sparsed_spmm(matrix, &from, &to, NULL, NULL, &result, NULL));
  CHECK(Near(c, expected, kRows * kK));
  CHECK(result.version > 0 && result.batch == 1 && strstr(result.plan, " / ") != NULL);
  CHECK(result.total_ns > 0);
  /* alpha and beta, with an old value of its own and in place. */
  spmm.alpha = 2;
  spmm.beta = -1;
  spmm.accumulate = &before;
  for (i = 0; i < kRows * kK; ++i) expected[i] = 2 * expected[i] - old[i];
  CHECK_OK(sparsed_spmm(matrix, &from, &to, &spmm, NULL, NULL, NULL));
  CHECK(Near(c, expected, kRows * kK));
  memcpy(c, old, sizeof(c));
  spmm.accumulate = NULL;
  CHECK_OK(sparsed_spmm(matrix, &from, &to, &spmm, NULL, NULL, NULL));
  CHECK(Near(c, expected, kRows * kK));
  /* Other values, and a leading dimension: what lies between stays. */
  spmm.alpha = 1;
  spmm.beta = 0;
  spmm.values = &own;
  spmm.allow_tf32 = 1;
  Multiply(s, values, 0, b, expected);
  to.data = wide;
  to.leading_dimension = kK + 5;
  wide[kK] = 77;
  CHECK_OK(sparsed_spmm(matrix, &from, &to, &spmm, NULL, NULL, NULL));
  for (i = 0; i < kRows; ++i) memcpy(c + i * kK, wide + i * (kK + 5), kK * sizeof(float));
  CHECK(Near(c, expected, kRows * kK) && wide[kK] == 77);
  /* Transposed. */
  spmm.transpose = 1;
  Multiply(s, values, 1, a, expected);
  to = Dense(c, kCols, kK);
  CHECK_OK(sparsed_spmm(matrix, &rows, &to, &spmm, NULL, NULL, NULL));
  CHECK(Near(c, expected, kCols * kK));
  /* SDDMM: scaled by S's values, by others, by none. */
  for (i = 0; i < kRows; ++i) {
    for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) {
      expected[p] = 0;
      for (k = 0; k < kK; ++k) {
        expected[p] += (double)a[i * kK + k] * b[(int64_t)s->column_indices[p] * kK + k];
      }
    }
  }
  sddmm.unscaled = 1;
  CHECK_OK(sparsed_sddmm(matrix, &rows, &from, &nonzeros, &sddmm, NULL, &result, NULL));
  CHECK(Near(out, expected, s->nnz));
  sddmm.values = &own;
  CHECK_ENDS(sparsed_sddmm(matrix, &rows, &from, &nonzeros, &sddmm, NULL, NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "");
  sddmm.unscaled = 0;
  for (p = 0; p < s->nnz; ++p) expected[p] *= values[p];
  CHECK_OK(sparsed_sddmm(matrix, &rows, &from, &nonzeros, &sddmm, NULL, NULL, NULL));
  CHECK(Near(out, expected, s->nnz));
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}

/* Column h of `values`, nnz x kHeads. */
static void Head(const Sparse* s, const float* values, int h, float* to) {
  int64_t p;
  for (p = 0; p < s->nnz; ++p) to[p] = values[p * kHeads + h];
}

void TestHeads(sparsed_client* client, const Sparse* s) {
  static float a[kRows * kK], b[kCols * kK], c[kRows * kK], one[kMost];
  static float values[kMost * kHeads], out[kMost * kHeads];
  static double each[kHeads][kRows * kK], expected[kMost * kHeads];
  sparsed_matrix* const matrix = Upload(client, "heads", s);
  const sparsed_dense left = Dense(a, kRows, kK), right = Dense(b, kCols, kK);
  const sparsed_dense to = Dense(c, kRows, kK), own = Dense(values, s->nnz, kHeads);
  const sparsed_dense nonzeros = Dense(out, s->nnz, kHeads), held = Held("heads.values");
  sparsed_spmm_options spmm = SPARSED_SPMM_OPTIONS_INIT;
  sparsed_sddmm_options sddmm = SPARSED_SDDMM_OPTIONS_INIT;
  int64_t i, p;
  int h, k;
  Fill(a, kRows * kK, 20);
  Fill(b, kCols * kK, 21);
  Fill(values, s->nnz * kHeads, 22);
  for (h = 0; h < kHeads; ++h) {
    Head(s, values, h, one);
    Multiply(s, one, 0, b, each[h]);
  }
  for (i = 0; i < kRows * kK; ++i) expected[i] = each[i % kK / (kK / kHeads)][i];
  spmm.values = &own;
  CHECK_OK(sparsed_spmm(matrix, &right, &to, &spmm, NULL, NULL, NULL));
  CHECK(Near(c, expected, kRows * kK));
  CHECK_OK(sparsed_dense_put(client, "heads.values", &own, NULL, NULL, NULL));
  memset(c, 0, sizeof(c));
  spmm.values = &held;
  CHECK_OK(sparsed_spmm(matrix, &right, &to, &spmm, NULL, NULL, NULL));
  CHECK(Near(c, expected, kRows * kK));
  /* What c holds, twice. */
  spmm.values = &own;
  spmm.beta = 2;
  for (i = 0; i < kRows * kK; ++i) expected[i] *= 3;
  CHECK_OK(sparsed_spmm(matrix, &right, &to, &spmm, NULL, NULL, NULL));
  CHECK(Near(c, expected, kRows * kK));
  /* SDDMM of several heads. */
  for (i = 0; i < kRows; ++i) {
    for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) {
      for (h = 0; h < kHeads; ++h) {
        double* const sum = &expected[p * kHeads + h];
        *sum = 0;
        for (k = h * kK / kHeads; k < (h + 1) * kK / kHeads; ++k) {
          *sum += (double)a[i * kK + k] * b[(int64_t)s->column_indices[p] * kK + k];
        }
        *sum *= values[p * kHeads + h];
      }
    }
  }
  sddmm.heads = kHeads;
  sddmm.values = &own;
  CHECK_OK(sparsed_sddmm(matrix, &left, &right, &nonzeros, &sddmm, NULL, NULL, NULL));
  CHECK(Near(out, expected, s->nnz * kHeads));
  sddmm.heads = -1;
  CHECK_ENDS(sparsed_sddmm(matrix, &left, &right, &nonzeros, &sddmm, NULL, NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "heads");
  CHECK_OK(sparsed_dense_delete(client, "heads.values", NULL));
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}

/* By definition; `which` may be null. */
static void Reduce(const Sparse* s, const float* values, int reduce, const float* b, double* c,
                   int64_t* which) {
  int64_t i, p;
  int k;
  for (i = 0; i < kRows * kK; ++i) {
    const int64_t row = i / kK, begin = s->row_offsets[row], end = s->row_offsets[row + 1];
    k = (int)(i % kK);
    c[i] = 0;
    which[i] = -1;
    for (p = begin; p < end; ++p) {
      const double x =
          (values == NULL ? 1 : (double)values[p]) * b[(int64_t)s->column_indices[p] * kK + k];
      if (reduce == SPARSED_MEAN) {
        c[i] += x / (double)(end - begin);
      } else if (which[i] < 0 || (reduce == SPARSED_MAX ? x > c[i] : x < c[i])) {
        c[i] = x;
        which[i] = p;
      }
    }
  }
}

void TestReductions(sparsed_client* client, const Sparse* s) {
  static float b[kCols * kK], c[kRows * kK];
  static double expected[kRows * kK];
  static int64_t which[kRows * kK], expected_which[kRows * kK];
  sparsed_matrix* const matrix = Upload(client, "reductions", s);
  const sparsed_dense from = Dense(b, kCols, kK), to = Dense(c, kRows, kK);
  sparsed_dense positions = Dense(which, kRows, kK);
  sparsed_spmm_options spmm = SPARSED_SPMM_OPTIONS_INIT;
  Fill(b, kCols * kK, 31);
  positions.type = SPARSED_I64;
  for (spmm.reduce = SPARSED_MEAN; spmm.reduce <= SPARSED_MIN; ++spmm.reduce) {
    Reduce(s, s->values, spmm.reduce, b, expected, expected_which);
    CHECK_OK(sparsed_spmm(matrix, &from, &to, &spmm, NULL, NULL, NULL));
    CHECK(Near(c, expected, kRows * kK));
  }
  spmm.reduce = SPARSED_MAX;
  spmm.unscaled = 1;
  spmm.which = &positions;
  Reduce(s, NULL, SPARSED_MAX, b, expected, expected_which);
  CHECK_OK(sparsed_spmm(matrix, &from, &to, &spmm, NULL, NULL, NULL));
  CHECK(Near(c, expected, kRows * kK));
  CHECK(memcmp(which, expected_which, sizeof(which)) == 0);
  CHECK(which[7 * kK] == -1);
  positions.type = SPARSED_F32;
  CHECK_ENDS(sparsed_spmm(matrix, &from, &to, &spmm, NULL, NULL, NULL), SPARSED_INVALID_ARGUMENT,
             "which has the type 0");
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}

static void Softmax(const Sparse* s, const float* x, double scale, double* y) {
  int64_t i, p;
  for (i = 0; i < kRows; ++i) {
    double sum = 0;
    for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) sum += exp(scale * x[p]);
    for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) y[p] = exp(scale * x[p]) / sum;
  }
}

void TestNonzeros(sparsed_client* client, const Sparse* s) {
  static float x[kMost], y[kMost], dy[kMost], dx[kMost], rows[kRows], cols[kCols], sums[kRows];
  static double expected[kMost];
  sparsed_matrix* const matrix = Upload(client, "nonzeros", s);
  const sparsed_dense in = Dense(x, s->nnz, 1), out = Dense(y, s->nnz, 1);
  const sparsed_dense gradient = Dense(dy, s->nnz, 1), back = Dense(dx, s->nnz, 1);
  const sparsed_dense left = Dense(rows, kRows, 1), right = Dense(cols, kCols, 1);
  const sparsed_dense by_row = Dense(sums, kRows, 1), by_col = Dense(sums, kCols, 1);
  int64_t i, p;
  Fill(x, s->nnz, 41);
  Fill(dy, s->nnz, 42);
  Fill(rows, kRows, 43);
  Fill(cols, kCols, 44);
  Softmax(s, x, 0.5, expected);
  CHECK_OK(sparsed_softmax(matrix, &in, &out, 0.5, NULL, NULL, NULL));
  CHECK(Near(y, expected, s->nnz));
  for (i = 0; i < kRows; ++i) {
    double sum = 0;
    for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) sum += (double)y[p] * dy[p];
    for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) {
      expected[p] = 0.5 * y[p] * (dy[p] - sum);
    }
  }
  CHECK_OK(sparsed_softmax_gradient(matrix, &out, &gradient, &back, 0.5, NULL, NULL, NULL));
  CHECK(Near(dx, expected, s->nnz));
  for (i = 0; i < kRows; ++i) {
    for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) {
      expected[p] = (double)rows[i] * s->values[p] * cols[s->column_indices[p]];
    }
  }
  CHECK_OK(sparsed_scale(matrix, NULL, &left, &right, &out, NULL, NULL, NULL));
  CHECK(Near(y, expected, s->nnz));
  for (i = 0; i < kRows; ++i) {
    expected[i] = 0;
    for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) expected[i] += x[p];
  }
  CHECK_OK(sparsed_total(matrix, &in, 0, &by_row, NULL, NULL, NULL));
  CHECK(Near(sums, expected, kRows));
  for (i = 0; i < kCols; ++i) expected[i] = 0;
  for (p = 0; p < s->nnz; ++p) expected[s->column_indices[p]] += s->values[p];
  CHECK_OK(sparsed_total(matrix, NULL, 1, &by_col, NULL, NULL, NULL));
  CHECK(Near(sums, expected, kCols));
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}
