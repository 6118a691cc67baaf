/* Matrices on the server: what goes there, what is known of them, what comes back. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/c/check.h"

/* Whether a call gave JSON that has `part`. Frees both. */
static int Says(sparsed_error* error, char** json, const char* part) {
  const int does = error == NULL && *json != NULL && strstr(*json, part) != NULL;
  if (!does) {
    fprintf(stderr, "%s: %s\n", sparsed_error_message(error), *json == NULL ? "nothing" : *json);
  }
  sparsed_error_free(error);
  sparsed_text_free(*json);
  *json = NULL;
  return does;
}

static void TestDownload(sparsed_matrix* matrix, const Sparse* s, const float* values) {
  sparsed_csr* csr = NULL;
  sparsed_csr_view view;
  CHECK_OK(sparsed_download(matrix, NULL, &csr, NULL));
  sparsed_csr_get(csr, &view);
  CHECK(view.rows == kRows && view.cols == kCols && view.nnz == s->nnz);
  CHECK(view.offset_bytes == 8 && view.type == SPARSED_F32);
  CHECK(memcmp(view.row_offsets, s->row_offsets, sizeof(s->row_offsets)) == 0);
  CHECK(memcmp(view.column_indices, s->column_indices, (size_t)s->nnz * 4) == 0);
  CHECK(memcmp(view.values, values, (size_t)s->nnz * 4) == 0);
  sparsed_csr_free(csr);
}

static void TestValues(sparsed_matrix* matrix, const Sparse* s) {
  static float values[kMost];
  sparsed_update_options update = SPARSED_UPDATE_OPTIONS_INIT;
  uint64_t version = 0, again = 0;
  Fill(values, s->nnz, 5);
  CHECK_OK(sparsed_update_values(matrix, values, s->nnz, SPARSED_F32, NULL, NULL, &version, NULL));
  CHECK(version > 1);
  TestDownload(matrix, s, values);
  update.if_version = version - 1;
  CHECK_ENDS(
      sparsed_update_values(matrix, values, s->nnz, SPARSED_F32, &update, NULL, &again, NULL),
      SPARSED_ABORTED, "");
  CHECK(again == 0);
  CHECK_ENDS(sparsed_update_values(matrix, values, 1, SPARSED_F32, NULL, NULL, NULL, NULL),
             SPARSED_INVALID_ARGUMENT, "");
  CHECK_OK(sparsed_update_values(matrix, s->values, s->nnz, SPARSED_F32, NULL, NULL, NULL, NULL));
}

typedef struct Steps {
  int count;
  char last[32];
} Steps;
static void OnPreparation(void* context, const char* state, const char* stage, int64_t done,
                          int64_t total, const char* message) {
  Steps* const steps = context;
  ++steps->count;
  snprintf(steps->last, sizeof(steps->last), "%s", state);
  CHECK(stage != NULL && message != NULL && done >= 0 && total >= 0);
}

static void TestPreparation(sparsed_matrix* matrix) {
  sparsed_prepare_options prepare = SPARSED_PREPARE_OPTIONS_INIT;
  const sparsed_problem problem = {SPARSED_SPMM, 1, kK, 0, 0};
  Steps steps = {0, ""};
  char* json = NULL;
  prepare.expected = &problem;
  prepare.expected_count = 1;
  CHECK_OK(sparsed_prepare(matrix, &prepare, NULL));
  CHECK_OK(sparsed_wait_ready(matrix, OnPreparation, &steps, NULL, NULL));
  CHECK(steps.count > 0 && strcmp(steps.last, "ready") == 0);
  CHECK_OK(sparsed_wait_ready(matrix, NULL, NULL, NULL, NULL));
  CHECK(Says(sparsed_matrix_info(matrix, NULL, &json), &json, "\"transposed\":true"));
  prepare.kernel = "no.such.kernel";
  CHECK_ENDS(sparsed_prepare(matrix, &prepare, NULL), SPARSED_INVALID_ARGUMENT, "no.such.kernel");
}

static void TestTexts(sparsed_client* client, sparsed_matrix* matrix) {
  char* json = NULL;
  CHECK(Says(sparsed_server_info(client, NULL, &json), &json, "\"name\":\"cpu\""));
  CHECK(Says(sparsed_server_stats(client, NULL, &json), &json, "\"memory_bytes\""));
  CHECK(Says(sparsed_matrix_list(client, "cat", NULL, &json), &json, "[{\"name\":\"catalog\""));
  CHECK(Says(sparsed_matrix_list(client, "none of these", NULL, &json), &json, "[]"));
  CHECK(Says(sparsed_matrix_list(client, NULL, NULL, &json), &json, "\"name\":\"s\""));
  CHECK(Says(sparsed_all_matrices(client, NULL, NULL, &json), &json, "\"name\":\"default~s\""));
  CHECK(Says(sparsed_all_matrices(client, "none~of these", NULL, &json), &json, "[]"));
  CHECK(Says(sparsed_matrix_info(matrix, NULL, &json), &json, "\"state\":\"ready\""));
  CHECK(Says(sparsed_matrix_features(matrix, NULL, &json), &json, "\"density_map\""));
  CHECK(Says(sparsed_matrix_explain(matrix, 0, NULL, NULL, &json), &json, "\"k\":128"));
  CHECK(Says(sparsed_matrix_explain(matrix, 16, "cpu", NULL, &json), &json, "\"k\":16"));
  CHECK(Says(sparsed_measurements(client, matrix, NULL, &json), &json, "\"pattern_hash\""));
  CHECK(Says(sparsed_measurements(client, NULL, NULL, &json), &json, "\"measurements\""));
  CHECK(Says(sparsed_all_measurements(client, NULL, &json), &json, "\"density_map\""));
}

static void OnProgress(void* context, int64_t done, int64_t total) {
  int64_t* const last = context;
  CHECK(done >= *last && total >= done);
  *last = done;
}

static void TestUpload(sparsed_client* client, const Sparse* s) {
  sparsed_csr_view view = View(s);
  sparsed_upload_options upload = SPARSED_UPLOAD_OPTIONS_INIT;
  sparsed_matrix *matrix = NULL, *other = NULL;
  int32_t offsets[kRows + 1];
  int64_t sent = 0, i;
  float one = 0;
  sparsed_csr* csr = NULL;
  CHECK_ENDS(sparsed_upload(client, "catalog", &view, NULL, NULL, &matrix, NULL),
             SPARSED_ALREADY_EXISTS, "catalog");
  CHECK(matrix == NULL);
  /* Ones, with offsets of 4 bytes, and progress. */
  for (i = 0; i <= kRows; ++i) offsets[i] = (int32_t)s->row_offsets[i];
  view.row_offsets = offsets;
  view.offset_bytes = 4;
  view.values = NULL;
  upload.replace = 1;
  /* This server is no node of a cluster. */
  upload.shards = 2;
  CHECK_ENDS(sparsed_upload(client, "ones", &view, &upload, NULL, &matrix, NULL),
             SPARSED_FAILED_PRECONDITION, "--etcd");
  upload.shards = kRows + 1;
  CHECK_ENDS(sparsed_upload(client, "ones", &view, &upload, NULL, &matrix, NULL),
             SPARSED_INVALID_ARGUMENT, "needs one");
  upload.shards = 0;
  upload.progress = OnProgress;
  upload.progress_context = &sent;
  CHECK_OK(sparsed_upload(client, "ones", &view, &upload, NULL, &matrix, NULL));
  CHECK(sent > 0);
  CHECK_OK(sparsed_download(matrix, NULL, &csr, NULL));
  sparsed_csr_get(csr, &view);
  memcpy(&one, (const float*)view.values + view.nnz - 1, sizeof(one));
  CHECK(one == 1);
  sparsed_csr_free(csr);
  CHECK_OK(sparsed_matrix_named(client, "ones", &other));
  CHECK(strcmp(sparsed_matrix_name(other), "ones") == 0);
  CHECK_OK(sparsed_matrix_delete(other, NULL));
  CHECK_ENDS(sparsed_matrix_delete(matrix, NULL), SPARSED_NOT_FOUND, "ones");
  sparsed_matrix_free(matrix);
  sparsed_matrix_free(other);
}

void TestCatalog(sparsed_client* client, const Sparse* s) {
  sparsed_matrix* const matrix = Upload(client, "catalog", s);
  TestDownload(matrix, s, s->values);
  TestUpload(client, s);
  TestPreparation(matrix);
  TestTexts(client, matrix);
  TestValues(matrix, s);
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}

static void Write(const char* path, const char* text) {
  FILE* const file = fopen(path, "w");
  if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) abort();
}

static void TestRead(const char* path) {
  sparsed_read_options read = SPARSED_READ_OPTIONS_INIT;
  sparsed_csr* csr = NULL;
  sparsed_csr_view view;
  char* json = NULL;
  Write(path, "from,to,weight\n1,2,0.5\n1,2,1\n");
  read.one_based = 1;
  read.undirected = 1;
  read.type = SPARSED_F64;
  read.rows = read.cols = 4;
  CHECK(Says(sparsed_csr_read(path, &read, &csr, &json), &json, "2 duplicates were summed"));
  sparsed_csr_get(csr, &view);
  CHECK(view.rows == 4 && view.cols == 4 && view.nnz == 2 && view.type == SPARSED_F64);
  CHECK(((const double*)view.values)[1] == 1.5);
  sparsed_csr_free(csr);
  CHECK_OK(sparsed_csr_read(path, NULL, &csr, NULL));
  sparsed_csr_get(csr, &view);
  CHECK(view.rows == 3 && view.nnz == 1 && view.type == SPARSED_F32);
  sparsed_csr_free(csr);
  csr = NULL;
  read.format = "metis";
  CHECK_ENDS(sparsed_csr_read(path, &read, &csr, NULL), SPARSED_INVALID_ARGUMENT, "METIS graph");
  read.format = "hdf5";
  CHECK_ENDS(sparsed_csr_read(path, &read, &csr, NULL), SPARSED_INVALID_ARGUMENT, "none of mtx");
  read.format = NULL;
  read.rows = -1;
  CHECK_ENDS(sparsed_csr_read(path, &read, &csr, NULL), SPARSED_INVALID_ARGUMENT, "rows is -1");
  read.rows = 4;
  read.weight_column = 2;
  CHECK_ENDS(sparsed_csr_read(path, &read, &csr, NULL), SPARSED_INVALID_ARGUMENT, "weight_column");
  CHECK(csr == NULL);
}

void TestFiles(sparsed_client* client) {
  char path[] = "/tmp/sparsed_c_file_XXXXXX";
  sparsed_csr* csr = NULL;
  sparsed_csr_view view;
  sparsed_matrix* matrix = NULL;
  close(mkstemp(path));
  Write(path, "%%MatrixMarket matrix coordinate real symmetric\n2 2 3\n1 1 1.5\n2 1 2\n2 1 0.5\n");
  CHECK_OK(sparsed_csr_read_matrix_market(path, SPARSED_F64, &csr));
  sparsed_csr_get(csr, &view);
  CHECK(view.rows == 2 && view.nnz == 3 && view.type == SPARSED_F64);
  CHECK(((const double*)view.values)[1] == 2.5);
  CHECK_OK(sparsed_upload(client, "file", &view, NULL, NULL, &matrix, NULL));
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
  sparsed_csr_free(csr);
  csr = NULL;
  Write(path, "%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1.5\n");
  CHECK_ENDS(sparsed_csr_read_matrix_market(path, SPARSED_F32, &csr), SPARSED_INVALID_ARGUMENT,
             ":3");
  CHECK_ENDS(sparsed_csr_read_matrix_market(path, SPARSED_I64, &csr), SPARSED_INVALID_ARGUMENT,
             "type 4");
  TestRead(path);
  unlink(path);
  CHECK_ENDS(sparsed_csr_read_matrix_market(path, SPARSED_F32, &csr), SPARSED_INVALID_ARGUMENT,
             path);
  CHECK(csr == NULL);
}

void TestHeld(sparsed_client* client, const Sparse* s) {
  static float b[kCols * kK], c[kRows * kK], padded[kRows * (kK + 3)];
  static double expected[kRows * kK];
  sparsed_matrix* const matrix = Upload(client, "held", s);
  sparsed_dense from = Dense(b, kCols, kK), to = Dense(c, kRows, kK), zeros = to, wide = to;
  const sparsed_dense held_b = Held("held.b"), held_c = Held("held.c");
  sparsed_put_options put = SPARSED_PUT_OPTIONS_INIT;
  sparsed_result result;
  char* json = NULL;
  int i;
  Fill(b, kCols * kK, 3);
  Multiply(s, s->values, 0, b, expected);
  put.owner = "a.test";
  put.time_to_live_ns = INT64_C(3600) * 1000 * 1000 * 1000;
  put.columns_over_gpus = 1; /* without several of them it is whole */
  /* A program that was built before there were rows: it has padding there. */
  put.unused = -1;
  put.size = offsetof(sparsed_put_options, rows_over_gpus);
  CHECK_OK(sparsed_dense_put(client, "held.b", &from, &put, NULL, NULL));
  put.size = sizeof put;
  put.rows_over_gpus = 1;
  CHECK_ENDS(sparsed_dense_put(client, "held.b", &from, &put, NULL, NULL), SPARSED_INVALID_ARGUMENT,
             "are both set");
  put.columns_over_gpus = 0;
  put.rows_of = "none";
  CHECK_ENDS(sparsed_dense_put(client, "held.b", &from, &put, NULL, NULL), SPARSED_NOT_FOUND,
             "none");
  put.rows_of = NULL;
  CHECK_OK(sparsed_dense_put(client, "held.b", &from, &put, NULL, NULL));
  put.best_over_gpus = 1;
  CHECK_ENDS(sparsed_dense_put(client, "held.b", &from, &put, NULL, NULL), SPARSED_INVALID_ARGUMENT,
             "best_over_gpus does not go with");
  put.rows_over_gpus = 0;
  CHECK_ENDS(sparsed_dense_put(client, "held.b", &from, &put, NULL, NULL), SPARSED_INVALID_ARGUMENT,
             "names none");
  put.best_over_gpus = 0;
  put.rows_over_gpus = 1;
  zeros.data = NULL;
  CHECK_OK(sparsed_dense_put(client, "held.c", &zeros, NULL, NULL, NULL));
  CHECK_OK(sparsed_dense_read(client, "held.c", &to, NULL, NULL));
  CHECK(c[0] == 0 && c[kRows * kK - 1] == 0);
  CHECK_OK(sparsed_spmm(matrix, &held_b, &held_c, NULL, NULL, &result, NULL));
  CHECK(result.transport == SPARSED_TRANSPORT_HELD);
  wide.data = padded;
  wide.leading_dimension = kK + 3;
  CHECK_OK(sparsed_dense_read(client, "held.c", &wide, NULL, NULL));
  for (i = 0; i < kRows; ++i) memcpy(c + i * kK, padded + i * (kK + 3), kK * sizeof(float));
  CHECK(Near(c, expected, kRows * kK));
  CHECK_OK(sparsed_spmm(matrix, &held_b, &to, NULL, NULL, &result, NULL));
  CHECK(result.transport == SPARSED_TRANSPORT_STREAM && Near(c, expected, kRows * kK));
  CHECK_OK(sparsed_dense_renew(client, "held.b", NULL));
  /* Of a matrix that is in no shards, with or without its name. */
  CHECK_OK(sparsed_dense_read_of(client, "any", "held.c", &to, NULL, NULL));
  CHECK(Near(c, expected, kRows * kK));
  CHECK_OK(sparsed_dense_renew_of(client, "any", "held.b", NULL));
  CHECK(Says(sparsed_dense_info_of(client, "any", "held.b", NULL, &json), &json,
             "\"name\":\"held.b\""));
  CHECK(Says(sparsed_dense_info_of(client, NULL, "held.b", NULL, &json), &json,
             "\"name\":\"held.b\""));
  CHECK_ENDS(sparsed_dense_info_of(client, NULL, "held", NULL, &json), SPARSED_NOT_FOUND, "held");
  CHECK(Says(sparsed_dense_list(client, "held.b", NULL, &json), &json, "\"owner\":\"a.test\""));
  from.device = 0;
  CHECK_ENDS(sparsed_dense_put(client, "held.b", &from, NULL, NULL, NULL), SPARSED_INVALID_ARGUMENT,
             "host memory");
  CHECK_OK(sparsed_dense_delete(client, "held.b", NULL));
  CHECK_OK(sparsed_dense_delete_of(client, "any", "held.c", NULL));
  CHECK_ENDS(sparsed_spmm(matrix, &held_b, &to, NULL, NULL, NULL, NULL), SPARSED_NOT_FOUND,
             "held.b");
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}
