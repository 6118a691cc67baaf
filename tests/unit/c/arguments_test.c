/* What is wrong is said with a code and a sentence, and changes nothing. */
#include <stddef.h>

#include "tests/unit/c/check.h"

#define CHECK_REFUSED(call, part) CHECK_ENDS(call, SPARSED_INVALID_ARGUMENT, part)

static void TestNothing(sparsed_client* client, sparsed_matrix* matrix) {
  char* json = NULL;
  sparsed_csr* csr = NULL;
  sparsed_memory* memory = NULL;
  sparsed_chain* chain = NULL;
  sparsed_matrix* made = NULL;
  float one = 0;
  const sparsed_dense dense = Dense(&one, 1, 1);
  void* data = NULL;
  CHECK_REFUSED(sparsed_connect(NULL, NULL, &client), "address is a null pointer");
  CHECK_REFUSED(sparsed_connect("unix:/nowhere", NULL, NULL), "client is a null pointer");
  CHECK_REFUSED(sparsed_server_info(NULL, NULL, &json), "client is a null pointer");
  CHECK_REFUSED(sparsed_server_info(client, NULL, NULL), "json is a null pointer");
  CHECK_REFUSED(sparsed_server_stats(NULL, NULL, &json), "client");
  CHECK_REFUSED(sparsed_call_finish(NULL), "call is a null pointer");
  CHECK_REFUSED(sparsed_dense_put(client, NULL, &dense, NULL, NULL, NULL), "name");
  CHECK_REFUSED(sparsed_dense_put(client, "x", NULL, NULL, NULL, NULL), "dense");
  CHECK_REFUSED(sparsed_dense_read(client, "x", NULL, NULL, NULL), "into");
  CHECK_REFUSED(sparsed_dense_renew(client, NULL, NULL), "name");
  CHECK_REFUSED(sparsed_dense_delete(NULL, "x", NULL), "client");
  CHECK_REFUSED(sparsed_dense_read_of(NULL, "m", "x", &dense, NULL, NULL), "client");
  CHECK_REFUSED(sparsed_dense_renew_of(client, "m", NULL, NULL), "name");
  CHECK_REFUSED(sparsed_dense_delete_of(client, "m", NULL, NULL), "name");
  CHECK_REFUSED(sparsed_dense_info_of(client, "m", NULL, NULL, &json), "name");
  CHECK_REFUSED(sparsed_dense_info_of(client, "m", "x", NULL, NULL), "json");
  CHECK_REFUSED(sparsed_dense_list(client, "", NULL, NULL), "json");
  CHECK_REFUSED(sparsed_memory_allocate(client, 1, NULL), "memory");
  CHECK_REFUSED(sparsed_memory_allocate(client, 0, &memory), "no bytes");
  CHECK_REFUSED(sparsed_gpu_allocate(client, 0, 1, NULL, NULL), "data");
  CHECK_REFUSED(sparsed_gpu_allocate(client, -1, 1, NULL, &data), "gpu");
  CHECK_REFUSED(sparsed_gpu_free(NULL, 0, &one, NULL), "client");
  CHECK_REFUSED(sparsed_csr_read(NULL, NULL, &csr, NULL), "path");
  CHECK_REFUSED(sparsed_csr_read("x", NULL, NULL, NULL), "csr");
  CHECK_REFUSED(sparsed_csr_read_matrix_market(NULL, SPARSED_F32, &csr), "path");
  CHECK_REFUSED(sparsed_upload(client, "x", NULL, NULL, NULL, &made, NULL), "csr");
  CHECK_REFUSED(sparsed_matrix_named(client, NULL, &made), "name");
  CHECK_REFUSED(sparsed_matrix_named(client, "x", NULL), "matrix");
  CHECK_REFUSED(sparsed_matrix_list(NULL, "", NULL, &json), "client");
  CHECK_REFUSED(sparsed_all_matrices(NULL, "", NULL, &json), "client");
  CHECK_REFUSED(sparsed_matrix_info(NULL, NULL, &json), "matrix");
  CHECK_REFUSED(sparsed_matrix_features(matrix, NULL, NULL), "json");
  CHECK_REFUSED(sparsed_matrix_explain(matrix, -1, NULL, NULL, &json), "k is -1");
  CHECK_REFUSED(sparsed_measurements(NULL, matrix, NULL, &json), "client");
  CHECK_REFUSED(sparsed_all_measurements(NULL, NULL, &json), "client");
  CHECK_REFUSED(sparsed_prepare(NULL, NULL, NULL), "matrix");
  CHECK_REFUSED(sparsed_wait_ready(NULL, NULL, NULL, NULL, NULL), "matrix");
  CHECK_REFUSED(sparsed_update_values(matrix, NULL, 1, SPARSED_F32, NULL, NULL, NULL, NULL),
                "values");
  CHECK_REFUSED(sparsed_download(matrix, NULL, NULL, NULL), "csr");
  CHECK_REFUSED(sparsed_matrix_delete(NULL, NULL), "matrix");
  CHECK_REFUSED(sparsed_spmm(NULL, &dense, &dense, NULL, NULL, NULL, NULL), "matrix");
  CHECK_REFUSED(sparsed_spmm(matrix, NULL, &dense, NULL, NULL, NULL, NULL), "b is a null pointer");
  CHECK_REFUSED(sparsed_sddmm(matrix, &dense, &dense, NULL, NULL, NULL, NULL, NULL), "out");
  CHECK_REFUSED(sparsed_softmax(matrix, NULL, &dense, 1, NULL, NULL, NULL), "x");
  CHECK_REFUSED(sparsed_softmax_gradient(matrix, &dense, NULL, &dense, 1, NULL, NULL, NULL), "dy");
  CHECK_REFUSED(sparsed_scale(matrix, NULL, NULL, NULL, NULL, NULL, NULL, NULL), "y");
  CHECK_REFUSED(sparsed_total(NULL, NULL, 0, &dense, NULL, NULL, NULL), "matrix");
  CHECK_REFUSED(sparsed_spgemm(matrix, NULL, NULL, NULL, NULL, &csr, NULL), "right");
  CHECK_REFUSED(sparsed_spgemm(matrix, matrix, NULL, NULL, NULL, NULL, NULL), "csr");
  CHECK_REFUSED(sparsed_spgemm_blocks(matrix, matrix, NULL, NULL, NULL, NULL, NULL, NULL),
                "on_block");
  CHECK_REFUSED(sparsed_attach(NULL, SPARSED_HOST), "matrix");
  CHECK_REFUSED(sparsed_attach(matrix, -2), "no device -2");
  CHECK_REFUSED(sparsed_chain_new(NULL, &chain), "client");
  CHECK_REFUSED(sparsed_chain_run(NULL, NULL, NULL, NULL), "chain");
  CHECK(json == NULL && csr == NULL && memory == NULL && chain == NULL && made == NULL);
}

static void TestFreeNothing(void) {
  sparsed_csr_view view;
  sparsed_error_free(NULL);
  sparsed_text_free(NULL);
  sparsed_client_free(NULL);
  sparsed_call_free(NULL);
  sparsed_call_cancel(NULL);
  CHECK(sparsed_call_wait(NULL, 0) == 1);
  sparsed_memory_free(NULL);
  sparsed_csr_free(NULL);
  sparsed_matrix_free(NULL);
  sparsed_chain_free(NULL);
  sparsed_gpu_pool_free(NULL, 0, 0, NULL);
  CHECK(sparsed_memory_data(NULL) == NULL);
  CHECK(strcmp(sparsed_matrix_name(NULL), "") == 0);
  CHECK(sparsed_error_code(NULL) == SPARSED_OK);
  CHECK(strcmp(sparsed_error_message(NULL), "") == 0);
  CHECK(sparsed_error_retry_ms(NULL) == -1);
  CHECK(strcmp(sparsed_error_request_id(NULL), "") == 0);
  CHECK(strcmp(sparsed_transport_name(-1), "unknown") == 0);
  CHECK(strcmp(sparsed_transport_name(SPARSED_TRANSPORT_RING), "ring") == 0);
  sparsed_csr_get(NULL, &view);
  CHECK(view.rows == 0 && view.nnz == 0);
}

static void TestDense(sparsed_matrix* matrix) {
  static float b[(kCols + 1) * kK * 2],
      c[kRows * kK]; /* room for what is read before it is refused */
  const sparsed_dense good = Dense(c, kRows, kK);
  sparsed_dense bad = Dense(b, -1, kK);
  CHECK_REFUSED(sparsed_spmm(matrix, &bad, &good, NULL, NULL, NULL, NULL), "b is -1 x 8");
  bad = Dense(b, kCols, kK);
  bad.leading_dimension = kK - 1;
  CHECK_REFUSED(sparsed_spmm(matrix, &bad, &good, NULL, NULL, NULL, NULL), "leading dimension 7");
  bad = Dense(b, INT64_C(1) << 40, INT64_C(1) << 40);
  CHECK_REFUSED(sparsed_spmm(matrix, &bad, &good, NULL, NULL, NULL, NULL),
                "larger than any memory");
  bad = Dense(NULL, kCols, kK);
  CHECK_REFUSED(sparsed_spmm(matrix, &bad, &good, NULL, NULL, NULL, NULL), "has no data");
  bad = Dense(b, kCols, kK);
  bad.type = 9;
  CHECK_REFUSED(sparsed_spmm(matrix, &bad, &good, NULL, NULL, NULL, NULL), "type 9");
  bad.type = SPARSED_I64;
  CHECK_REFUSED(sparsed_spmm(matrix, &bad, &good, NULL, NULL, NULL, NULL), "type 4");
  bad = Dense(b, kCols, kK);
  bad.device = -2;
  CHECK_REFUSED(sparsed_spmm(matrix, &bad, &good, NULL, NULL, NULL, NULL), "device -2");
  bad.device = 0;
  CHECK_REFUSED(sparsed_spmm(matrix, &bad, &good, NULL, NULL, NULL, NULL), "b is on GPU 0, and c");
  bad = Dense(b, kCols + 1, kK);
  CHECK_REFUSED(sparsed_spmm(matrix, &bad, &good, NULL, NULL, NULL, NULL), "");
  bad = Dense(b, kCols, kK);
  bad.type = SPARSED_F64;
  CHECK_REFUSED(sparsed_spmm(matrix, &bad, &good, NULL, NULL, NULL, NULL), "");
}

static void TestCsr(sparsed_client* client) {
  const int32_t offsets[] = {0, 1, 2}, columns[] = {0, 5};
  const float values[] = {1, 2};
  sparsed_csr_view view = {2, 3, 2, NULL, 4, SPARSED_F32, NULL, NULL};
  sparsed_matrix* matrix = NULL;
  view.row_offsets = offsets;
  view.column_indices = columns;
  view.values = values;
  CHECK_REFUSED(sparsed_upload(client, "bad", &view, NULL, NULL, &matrix, NULL), "");
  view.nnz = -1;
  CHECK_REFUSED(sparsed_upload(client, "bad", &view, NULL, NULL, &matrix, NULL), "nonzeros");
  view.nnz = 2;
  view.rows = INT64_MAX;
  CHECK_REFUSED(sparsed_upload(client, "bad", &view, NULL, NULL, &matrix, NULL), "rows");
  view.rows = 2;
  view.offset_bytes = 2;
  CHECK_REFUSED(sparsed_upload(client, "bad", &view, NULL, NULL, &matrix, NULL), "offset_bytes");
  view.offset_bytes = 4;
  view.type = SPARSED_I64;
  CHECK_REFUSED(sparsed_upload(client, "bad", &view, NULL, NULL, &matrix, NULL), "type 4");
  view.type = SPARSED_F32;
  view.row_offsets = NULL;
  CHECK_REFUSED(sparsed_upload(client, "bad", &view, NULL, NULL, &matrix, NULL), "row_offsets");
  CHECK_REFUSED(sparsed_upload(client, "no such name!", &view, NULL, NULL, &matrix, NULL), "");
  CHECK(matrix == NULL);
}

void TestArguments(sparsed_client* client, sparsed_matrix* matrix) {
  sparsed_client* none = NULL;
  TestNothing(client, matrix);
  TestFreeNothing();
  TestDense(matrix);
  TestCsr(client);
  CHECK_ENDS(sparsed_connect("unix:/nowhere/at/all", NULL, &none), SPARSED_UNAVAILABLE,
             "/nowhere/at/all");
  CHECK(none == NULL);
}

/* Larger than what this library knows. */
typedef struct Later {
  sparsed_spmm_options known;
  int64_t more;
} Later;

void TestOptions(sparsed_client* client, sparsed_matrix* matrix) {
  static float b[kCols * kK], c[kRows * kK];
  const sparsed_dense from = Dense(b, kCols, kK), to = Dense(c, kRows, kK);
  const Later later = {SPARSED_SPMM_OPTIONS_INIT, 0};
  Later known = later;
  sparsed_client_options options = SPARSED_CLIENT_OPTIONS_INIT;
  sparsed_call_options call = SPARSED_CALL_OPTIONS_INIT;
  sparsed_problem problem = {7, 0, 8, 0, 0};
  sparsed_prepare_options prepare = SPARSED_PREPARE_OPTIONS_INIT;
  sparsed_client* none = NULL;
  char* json = NULL;
  known.known.size = sizeof(Later);
  CHECK_OK(sparsed_spmm(matrix, &from, &to, &known.known, NULL, NULL, NULL));
  known.more = 1;
  CHECK_REFUSED(sparsed_spmm(matrix, &from, &to, &known.known, NULL, NULL, NULL),
                "does not know yet");
  known.known.size = 8;
  CHECK_REFUSED(sparsed_spmm(matrix, &from, &to, &known.known, NULL, NULL, NULL), "size of spmm");
  known.known.size = (size_t)1 << 40;
  CHECK_REFUSED(sparsed_spmm(matrix, &from, &to, &known.known, NULL, NULL, NULL), "size of spmm");
  known = later;
  /* As a program that was built with an older header has it: what is behind is not looked at. */
  known.known.size = offsetof(sparsed_spmm_options, unscaled);
  known.known.unscaled = 7;
  known.known.allow_tf32 = 7;
  CHECK_OK(sparsed_spmm(matrix, &from, &to, &known.known, NULL, NULL, NULL));
  known = later;
  known.known.reduce = 4;
  CHECK_REFUSED(sparsed_spmm(matrix, &from, &to, &known.known, NULL, NULL, NULL), "reduce is 4");
  known.known.reduce = SPARSED_MEAN;
  known.known.alpha = 2;
  CHECK_REFUSED(sparsed_spmm(matrix, &from, &to, &known.known, NULL, NULL, NULL), "alpha 1");
  known.known.alpha = 1;
  known.known.which = &to;
  CHECK_REFUSED(sparsed_spmm(matrix, &from, &to, &known.known, NULL, NULL, NULL), "which");
  known = later;
  known.known.unscaled = 1;
  CHECK_REFUSED(sparsed_spmm(matrix, &from, &to, &known.known, NULL, NULL, NULL), "unscaled");
  call.timeout_ns = -1;
  CHECK_REFUSED(sparsed_spmm(matrix, &from, &to, NULL, &call, NULL, NULL), "timeout_ns");
  call.timeout_ns = 1;
  CHECK_ENDS(sparsed_server_info(client, &call, &json), SPARSED_DEADLINE_EXCEEDED, "");
  CHECK(json == NULL);
  call.timeout_ns = 0;
  /* A malformed trace is none. */
  call.traceparent = "00-\n";
  CHECK_OK(sparsed_spmm(matrix, &from, &to, NULL, &call, NULL, NULL));
  /* An older header had no traces. */
  call.size = offsetof(sparsed_call_options, traceparent);
  call.traceparent = (const char*)1;
  CHECK_OK(sparsed_spmm(matrix, &from, &to, NULL, &call, NULL, NULL));
  options.streams = 17;
  CHECK_REFUSED(sparsed_connect("unix:/nowhere", &options, &none), "streams");
  options.streams = 0;
  options.attach = 2;
  CHECK_REFUSED(sparsed_connect("unix:/nowhere", &options, &none), "attach");
  options.attach = 0;
  options.threads = -1;
  CHECK_REFUSED(sparsed_connect("unix:/nowhere", &options, &none), "threads");
  options.threads = 0;
  options.priority = 8;
  CHECK_REFUSED(sparsed_connect("unix:/nowhere", &options, &none), "priority is 8");
  prepare.expected = &problem;
  prepare.expected_count = 1;
  CHECK_REFUSED(sparsed_prepare(matrix, &prepare, NULL), "operation 7");
  prepare.expected = NULL;
  CHECK_REFUSED(sparsed_prepare(matrix, &prepare, NULL), "expected");
}
