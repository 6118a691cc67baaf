/* Calls under way, the ways that operands take, threads, and a server that goes. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "tests/unit/c/check.h"

static void OnProgress(void* context, int64_t done, int64_t total) {
  int* const calls = context;
  CHECK(done <= total);
  ++*calls;
}

static void OnPreparation(void* context, const char* state, const char* stage, int64_t done,
                          int64_t total, const char* message) {
  OnProgress(context, done, total);
  (void)state;
  (void)stage;
  (void)message;
}

static void TestProgress(sparsed_client* client, const Sparse* s) {
  const sparsed_csr_view view = View(s);
  sparsed_upload_options upload = SPARSED_UPLOAD_OPTIONS_INIT;
  sparsed_matrix* matrix = NULL;
  sparsed_csr* csr = NULL;
  sparsed_call* call = NULL;
  uint64_t version = 0;
  int calls = 0;
  upload.progress = OnProgress;
  upload.progress_context = &calls;
  CHECK_OK(sparsed_upload(client, "calls", &view, &upload, NULL, &matrix, &call));
  CHECK(call != NULL && matrix == NULL);
  while (!sparsed_call_wait(call, 1000 * 1000)) {
  }
  CHECK(sparsed_call_wait(call, 0) == 1 && calls > 0 && matrix == NULL);
  CHECK_OK(sparsed_call_finish(call));
  CHECK(matrix != NULL);
  /* Others that bring something. */
  CHECK_OK(sparsed_download(matrix, NULL, &csr, &call));
  CHECK(csr == NULL);
  CHECK_OK(sparsed_call_finish(call));
  CHECK(csr != NULL);
  sparsed_csr_free(csr);
  CHECK_OK(
      sparsed_update_values(matrix, s->values, s->nnz, SPARSED_F32, NULL, NULL, &version, &call));
  CHECK_OK(sparsed_call_finish(call));
  CHECK(version > 0);
  calls = 0;
  CHECK_OK(sparsed_wait_ready(matrix, OnPreparation, &calls, NULL, &call));
  CHECK_OK(sparsed_call_finish(call));
  CHECK(calls > 0);
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}

void TestCalls(sparsed_client* client, const Sparse* s) {
  static float b[kCols * kK], c[kRows * kK];
  static double expected[kRows * kK];
  sparsed_matrix* const matrix = Upload(client, "async", s);
  const sparsed_dense from = Dense(b, kCols, kK), to = Dense(c, kRows, kK);
  sparsed_result result;
  sparsed_call* calls[8];
  sparsed_error* error;
  int i;
  TestProgress(client, s);
  Fill(b, kCols * kK, 51);
  Multiply(s, s->values, 0, b, expected);
  memset(&result, 0, sizeof(result));
  CHECK_OK(sparsed_spmm(matrix, &from, &to, NULL, NULL, &result, &calls[0]));
  CHECK(sparsed_call_wait(calls[0], -1) == 1);
  CHECK(result.total_ns == 0);
  CHECK_OK(sparsed_call_finish(calls[0]));
  CHECK(result.total_ns > 0 && result.transport == SPARSED_TRANSPORT_STREAM);
  CHECK(Near(c, expected, kRows * kK));
  /* Cancelled ones end one way or the other, and dropped ones leave nothing behind. */
  for (i = 0; i < 8; ++i) CHECK_OK(sparsed_spmm(matrix, &from, &to, NULL, NULL, NULL, &calls[i]));
  for (i = 0; i < 4; ++i) {
    sparsed_call_cancel(calls[i]);
    error = sparsed_call_finish(calls[i]);
    CHECK(error == NULL || sparsed_error_code(error) == SPARSED_CANCELLED);
    sparsed_error_free(error);
  }
  for (i = 4; i < 8; ++i) sparsed_call_free(calls[i]);
  /* What is wrong is said at the end, or at once. */
  CHECK_OK(sparsed_spmm(matrix, &to, &to, NULL, NULL, NULL, &calls[0]));
  CHECK_ENDS(sparsed_call_finish(calls[0]), SPARSED_INVALID_ARGUMENT, "");
  calls[0] = NULL;
  CHECK_ENDS(sparsed_spmm(matrix, NULL, &to, NULL, NULL, NULL, &calls[0]), SPARSED_INVALID_ARGUMENT,
             "b");
  CHECK(calls[0] == NULL);
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}

/* Which way a blocking product takes. */
static int32_t TransportOf(sparsed_matrix* matrix, const sparsed_dense* b, const sparsed_dense* c) {
  sparsed_result result;
  result.transport = -1;
  CHECK_OK(sparsed_spmm(matrix, b, c, NULL, NULL, &result, NULL));
  return result.transport;
}

static void TestSharedMemory(sparsed_client* client, sparsed_matrix* matrix, const Sparse* s,
                             int32_t expected_transport) {
  static double expected[kRows * kK];
  static float values[kMost * 2];
  sparsed_memory* memory = NULL;
  sparsed_dense b, c, own;
  sparsed_spmm_options spmm = SPARSED_SPMM_OPTIONS_INIT;
  float* data;
  int64_t i;
  CHECK_OK(sparsed_memory_allocate(client, (kCols + kRows) * kK * sizeof(float), &memory));
  data = sparsed_memory_data(memory);
  CHECK(data != NULL && data[0] == 0);
  b = Dense(data, kCols, kK);
  c = Dense(data + kCols * kK, kRows, kK);
  Fill(data, kCols * kK, 61);
  Multiply(s, s->values, 0, data, expected);
  CHECK(TransportOf(matrix, &b, &c) == expected_transport);
  CHECK(Near(c.data, expected, kRows * kK));
  /* Of several heads, with what c holds there: c and the old value are one memory. */
  for (i = 0; i < 2 * s->nnz; ++i) values[i] = s->values[i / 2];
  own = Dense(values, s->nnz, 2);
  spmm.values = &own;
  spmm.beta = 1;
  for (i = 0; i < kRows * kK; ++i) expected[i] *= 2;
  CHECK_OK(sparsed_spmm(matrix, &b, &c, &spmm, NULL, NULL, NULL));
  CHECK(Near(c.data, expected, kRows * kK));
  sparsed_memory_free(memory);
}

void TestTransports(const Server* server, const Sparse* s) {
  static float b[kCols * kK], c[kRows * kK];
  const sparsed_dense from = Dense(b, kCols, kK), to = Dense(c, kRows, kK);
  sparsed_client_options options = SPARSED_CLIENT_OPTIONS_INIT;
  sparsed_client* client = Connect(server, NULL);
  sparsed_matrix* matrix = Upload(client, "transports", s);
  sparsed_matrix* none = NULL;
  const int here = sparsed_has_kernels();
  const int32_t fastest = here ? SPARSED_TRANSPORT_ATTACHED : SPARSED_TRANSPORT_STREAM;
  sparsed_call* call = NULL;
  sparsed_result result;
  CHECK(TransportOf(matrix, &from, &to) == fastest);
  CHECK(TransportOf(matrix, &from, &to) == fastest);
  TestSharedMemory(client, matrix, s,
                   here ? SPARSED_TRANSPORT_ATTACHED : SPARSED_TRANSPORT_SHARED_HOST);
  CHECK_OK(sparsed_spmm(matrix, &from, &to, NULL, NULL, &result, &call));
  CHECK_OK(sparsed_call_finish(call));
  CHECK(result.transport == SPARSED_TRANSPORT_STREAM);
  sparsed_matrix_free(matrix);
  sparsed_client_free(client);
  /* Never, unless it is asked for; and a ring. */
  options.attach = SPARSED_ATTACH_NEVER;
  options.ring = 1;
  options.ring_spin_us = 20;
  options.streams = 2;
  options.threads = 1;
  client = Connect(server, &options);
  CHECK_OK(sparsed_matrix_named(client, "transports", &matrix));
  CHECK(TransportOf(matrix, &from, &to) == SPARSED_TRANSPORT_STREAM);
  TestSharedMemory(client, matrix, s, SPARSED_TRANSPORT_RING);
  if (here) {
    CHECK_OK(sparsed_attach(matrix, SPARSED_HOST));
    CHECK_OK(sparsed_attach(matrix, SPARSED_HOST));
    CHECK(TransportOf(matrix, &from, &to) == SPARSED_TRANSPORT_ATTACHED);
    CHECK_OK(sparsed_matrix_named(client, "no.such.matrix", &none));
    CHECK_ENDS(sparsed_attach(none, SPARSED_HOST), SPARSED_NOT_FOUND, "no.such.matrix");
    sparsed_matrix_free(none);
  } else {
    CHECK_ENDS(sparsed_attach(matrix, SPARSED_HOST), SPARSED_UNIMPLEMENTED,
               "libsparsed_attached.so");
  }
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  CHECK_ENDS(sparsed_spmm(matrix, &from, &to, NULL, NULL, NULL, NULL), SPARSED_NOT_FOUND,
             "transports");
  sparsed_matrix_free(matrix);
  sparsed_client_free(client);
}

typedef struct Job {
  sparsed_client* client;
  const Sparse* s;
  int wrong;
} Job;

static void* Multiplies(void* context) {
  Job* const job = context;
  float b[kCols * kK], c[kRows * kK];
  double expected[kRows * kK];
  const sparsed_dense from = Dense(b, kCols, kK), to = Dense(c, kRows, kK);
  sparsed_matrix* matrix = NULL;
  int i;
  if (sparsed_matrix_named(job->client, "threads", &matrix) != NULL) job->wrong = 1;
  for (i = 0; i < 50 && job->wrong == 0; ++i) {
    Fill(b, kCols * kK, (uint32_t)i);
    Multiply(job->s, job->s->values, 0, b, expected);
    if (sparsed_spmm(matrix, &from, &to, NULL, NULL, NULL, NULL) != NULL ||
        !Near(c, expected, kRows * kK)) {
      job->wrong = 1;
    }
  }
  sparsed_matrix_free(matrix);
  return NULL;
}

void TestThreads(sparsed_client* client, const Sparse* s) {
  enum { kThreads = 4 };
  sparsed_matrix* const matrix = Upload(client, "threads", s);
  pthread_t threads[kThreads];
  Job jobs[kThreads];
  int i;
  for (i = 0; i < kThreads; ++i) {
    jobs[i].client = client;
    jobs[i].s = s;
    jobs[i].wrong = 0;
    if (pthread_create(&threads[i], NULL, Multiplies, &jobs[i]) != 0) abort();
  }
  for (i = 0; i < kThreads; ++i) {
    pthread_join(threads[i], NULL);
    CHECK(jobs[i].wrong == 0);
  }
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
}

/* Without a GPU, or without kernels, what needs one is refused and nothing else happens. */
void TestGpu(sparsed_client* client, sparsed_matrix* matrix) {
  static float b[kCols * kK], c[kRows * kK];
  sparsed_dense from = Dense(b, kCols, kK), to = Dense(c, kRows, kK);
  sparsed_error* error;
  sparsed_call* call = NULL;
  void* data = NULL;
  /* A GPU that no process has. */
  from.device = to.device = 1000;
  CHECK_ENDS(sparsed_spmm(matrix, &from, &to, NULL, NULL, NULL, NULL),
             sparsed_has_kernels() ? SPARSED_INVALID_ARGUMENT : SPARSED_UNIMPLEMENTED, "GPU");
  CHECK_ENDS(sparsed_spmm(matrix, &from, &to, NULL, NULL, NULL, &call), SPARSED_INVALID_ARGUMENT,
             "no call to wait for");
  CHECK(call == NULL);
  error = sparsed_attach(matrix, 1000);
  CHECK(error != NULL);
  sparsed_error_free(error);
  error = sparsed_gpu_allocate(client, 1000, 64, NULL, &data);
  CHECK(error != NULL && data == NULL);
  sparsed_error_free(error);
  CHECK(sparsed_gpu_pool_malloc(64, 0, NULL) == NULL);
  if (sparsed_has_kernels()) {
    CHECK_OK(sparsed_gpu_pool_set(client));
    CHECK(sparsed_gpu_pool_malloc(64, 1000, NULL) == NULL);
    CHECK(sparsed_gpu_pool_malloc(-1, 0, NULL) == NULL);
  } else {
    CHECK_ENDS(sparsed_gpu_pool_set(client), SPARSED_UNIMPLEMENTED, "libsparsed_attached.so");
  }
  CHECK_OK(sparsed_gpu_pool_set(NULL));
  CHECK_OK(sparsed_gpu_free(client, 0, NULL, NULL));
}

/* A server that dies is UNAVAILABLE, soon; without a local socket products run there. */
void TestGone(const char* program, const Sparse* s) {
  static float b[kCols * kK], c[kRows * kK];
  const sparsed_dense from = Dense(b, kCols, kK), to = Dense(c, kRows, kK);
  sparsed_client_options options = SPARSED_CLIENT_OPTIONS_INIT;
  sparsed_client* client;
  sparsed_matrix* matrix;
  sparsed_error* error;
  sparsed_call* call = NULL;
  Server server;
  Start(&server, program, 0);
  options.max_attempts = 1;
  client = Connect(&server, &options);
  matrix = Upload(client, "gone", s);
  CHECK(TransportOf(matrix, &from, &to) == SPARSED_TRANSPORT_STREAM);
  CHECK_OK(sparsed_spmm(matrix, &from, &to, NULL, NULL, NULL, &call));
  Kill(&server);
  sparsed_call_free(call);
  error = sparsed_spmm(matrix, &from, &to, NULL, NULL, NULL, NULL);
  CHECK(sparsed_error_code(error) == SPARSED_UNAVAILABLE);
  sparsed_error_free(error);
  sparsed_matrix_free(matrix);
  sparsed_client_free(client);
}
