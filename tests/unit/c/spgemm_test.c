/* S * S^T, against a plain computation: whole, kept, masked, and in blocks. */
#include "tests/unit/c/check.h"

/* Counts the pairs of nonzeros that meet in each element; sums them up. */
static void Square(const Sparse* s, double* sums, int* pairs) {
  static float dense[kRows * kCols];
  static int there[kRows * kCols];
  int64_t i, j, k, p;
  memset(dense, 0, sizeof(dense));
  memset(there, 0, sizeof(there));
  for (i = 0; i < kRows; ++i) {
    for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) {
      dense[i * kCols + s->column_indices[p]] = s->values[p];
      there[i * kCols + s->column_indices[p]] = 1;
    }
  }
  for (i = 0; i < kRows; ++i) {
    for (j = 0; j < kRows; ++j) {
      sums[i * kRows + j] = 0;
      pairs[i * kRows + j] = 0;
      for (k = 0; k < kCols; ++k) {
        sums[i * kRows + j] += (double)dense[i * kCols + k] * dense[j * kCols + k];
        pairs[i * kRows + j] += there[i * kCols + k] && there[j * kCols + k];
      }
    }
  }
}

/* Whether rows [begin, begin + rows) are those of the product. */
static int Agrees(const sparsed_csr_view* view, int64_t begin, const double* sums,
                  const int* pairs) {
  const int64_t* const offsets = view->row_offsets;
  const float* const values = view->values;
  int64_t i, p, j;
  for (i = 0; i < view->rows; ++i) {
    p = offsets[i] - offsets[0];
    for (j = 0; j < kRows; ++j) {
      const int64_t at = (begin + i) * kRows + j;
      if (pairs[at] == 0) continue;
      if (p == offsets[i + 1] - offsets[0] || view->column_indices[p] != j) return 0;
      if (values[p] != (float)sums[at]) return 0;
      ++p;
    }
    if (p != offsets[i + 1] - offsets[0]) return 0;
  }
  return 1;
}

typedef struct Blocks {
  const double* sums;
  const int* pairs;
  int64_t rows;
  int stop;
} Blocks;

static int32_t OnBlock(void* context, int64_t row_begin, const sparsed_csr_view* block) {
  Blocks* const blocks = context;
  CHECK(row_begin == blocks->rows && block->cols == kRows && block->offset_bytes == 8);
  CHECK(Agrees(block, row_begin, blocks->sums, blocks->pairs));
  blocks->rows += block->rows;
  return blocks->stop;
}

static void TestBlocks(sparsed_matrix* s, const sparsed_spgemm_options* spgemm, const double* sums,
                       const int* pairs) {
  Blocks blocks = {NULL, NULL, 0, 0};
  sparsed_spgemm_options keep = *spgemm;
  sparsed_result result;
  sparsed_call* call = NULL;
  blocks.sums = sums;
  blocks.pairs = pairs;
  CHECK_OK(sparsed_spgemm_blocks(s, s, spgemm, OnBlock, &blocks, NULL, &result, NULL));
  CHECK(blocks.rows == kRows && strlen(result.plan) > 0);
  /* The same as a call that is waited for. */
  blocks.rows = 0;
  CHECK_OK(sparsed_spgemm_blocks(s, s, spgemm, OnBlock, &blocks, NULL, &result, &call));
  CHECK(sparsed_call_wait(call, -1) == 1);
  CHECK_OK(sparsed_call_finish(call));
  CHECK(blocks.rows == kRows);
  blocks.rows = 0;
  blocks.stop = 1;
  CHECK_ENDS(sparsed_spgemm_blocks(s, s, spgemm, OnBlock, &blocks, NULL, NULL, NULL),
             SPARSED_CANCELLED, "callback");
  keep.keep_as = "kept";
  CHECK_ENDS(sparsed_spgemm_blocks(s, s, &keep, OnBlock, &blocks, NULL, NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "keep_as");
}

static void TestKept(sparsed_client* client, sparsed_matrix* s,
                     const sparsed_spgemm_options* spgemm, const double* sums, const int* pairs) {
  sparsed_spgemm_options keep = *spgemm;
  sparsed_matrix* kept = NULL;
  sparsed_csr* csr = NULL;
  sparsed_csr_view view;
  keep.keep_as = "kept";
  CHECK_OK(sparsed_spgemm(s, s, &keep, NULL, NULL, NULL, NULL));
  CHECK_ENDS(sparsed_spgemm(s, s, &keep, NULL, NULL, NULL, NULL), SPARSED_ALREADY_EXISTS, "kept");
  keep.replace = 1;
  CHECK_OK(sparsed_spgemm(s, s, &keep, NULL, NULL, NULL, NULL));
  CHECK_OK(sparsed_matrix_named(client, "kept", &kept));
  CHECK_OK(sparsed_download(kept, NULL, &csr, NULL));
  sparsed_csr_get(csr, &view);
  CHECK(Agrees(&view, 0, sums, pairs));
  sparsed_csr_free(csr);
  /* As a mask of a product. */
  keep = *spgemm;
  keep.mask = "kept";
  csr = NULL;
  CHECK_OK(sparsed_spgemm(s, s, &keep, NULL, NULL, &csr, NULL));
  sparsed_csr_get(csr, &view);
  CHECK(Agrees(&view, 0, sums, pairs));
  sparsed_csr_free(csr);
  CHECK_OK(sparsed_matrix_delete(kept, NULL));
  sparsed_matrix_free(kept);
}

void TestSpgemm(sparsed_client* client, const Sparse* s) {
  static double sums[kRows * kRows];
  static int pairs[kRows * kRows];
  sparsed_matrix* const matrix = Upload(client, "spgemm", s);
  sparsed_spgemm_options spgemm = SPARSED_SPGEMM_OPTIONS_INIT;
  sparsed_csr* csr = NULL;
  sparsed_csr_view view;
  sparsed_result result;
  sparsed_call* call = NULL;
  int i;
  Square(s, sums, pairs);
  spgemm.transpose_right = 1;
  CHECK_OK(sparsed_spgemm(matrix, matrix, &spgemm, NULL, &result, &csr, NULL));
  sparsed_csr_get(csr, &view);
  CHECK(view.rows == kRows && view.cols == kRows && Agrees(&view, 0, sums, pairs));
  CHECK(result.version > 0 && strlen(result.plan) > 0);
  sparsed_csr_free(csr);
  csr = NULL;
  CHECK_OK(sparsed_spgemm(matrix, matrix, &spgemm, NULL, NULL, &csr, &call));
  CHECK(csr == NULL);
  CHECK_OK(sparsed_call_finish(call));
  sparsed_csr_get(csr, &view);
  CHECK(Agrees(&view, 0, sums, pairs));
  sparsed_csr_free(csr);
  csr = NULL;
  TestBlocks(matrix, &spgemm, sums, pairs);
  TestKept(client, matrix, &spgemm, sums, pairs);
  spgemm.semiring = SPARSED_PLUS_PAIR;
  for (i = 0; i < kRows * kRows; ++i) sums[i] = pairs[i];
  CHECK_OK(sparsed_spgemm(matrix, matrix, &spgemm, NULL, NULL, &csr, NULL));
  sparsed_csr_get(csr, &view);
  CHECK(Agrees(&view, 0, sums, pairs));
  sparsed_csr_free(csr);
  csr = NULL;
  spgemm.semiring = 5;
  CHECK_ENDS(sparsed_spgemm(matrix, matrix, &spgemm, NULL, NULL, &csr, NULL),
             SPARSED_INVALID_ARGUMENT, "semiring is 5");
  spgemm.semiring = 0;
  spgemm.transpose_right = 0;
  CHECK_ENDS(sparsed_spgemm(matrix, matrix, &spgemm, NULL, NULL, &csr, NULL),
             SPARSED_INVALID_ARGUMENT, "");
  CHECK(csr == NULL);
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}
