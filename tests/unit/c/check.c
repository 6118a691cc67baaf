#define _POSIX_C_SOURCE 200809L
#include "tests/unit/c/check.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int failures = 0;

int CheckEnds(sparsed_error* error, int32_t code, const char* part, const char* call,
              const char* file, int line) {
  const int as_expected =
      sparsed_error_code(error) == code && strstr(sparsed_error_message(error), part) != NULL;
  if (!as_expected) {
    ++failures;
    fprintf(stderr, "%s:%d: %s\n  ended with %d, \"%s\"\n  expected %d, \"%s\"\n", file, line, call,
            (int)sparsed_error_code(error), sparsed_error_message(error), (int)code, part);
  }
  sparsed_error_free(error);
  return as_expected;
}

void Start(Server* server, const char* program, int local) {
  char listen[160], local_listen[160];
  char* arguments[] = {(char*)program,
                       (char*)"--in-memory",
                       (char*)"--metrics-listen=off",
                       (char*)"--log-level=error",
                       listen,
                       local_listen,
                       NULL};
  pid_t pid = 0;
  strcpy(server->folder, "/tmp/sparsed_c_XXXXXX");
  if (mkdtemp(server->folder) == NULL) abort();
  snprintf(server->address, sizeof(server->address), "unix:%s/wire", server->folder);
  snprintf(listen, sizeof(listen), "--listen=%s", server->address);
  if (local) {
    snprintf(local_listen, sizeof(local_listen), "--local-listen=unix:%s/local", server->folder);
  } else {
    strcpy(local_listen, "--local-listen=off");
  }
  pid = fork();
  if (pid == 0) {
    /* Not left behind by a test that crashes. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(program, arguments);
    _exit(127);
  }
  if (pid < 0) abort();
  server->pid = (int)pid;
}

void Kill(Server* server) {
  char path[160];
  kill(server->pid, SIGKILL);
  waitpid(server->pid, NULL, 0);
  snprintf(path, sizeof(path), "%s/wire", server->folder);
  unlink(path);
  snprintf(path, sizeof(path), "%s/local", server->folder);
  unlink(path);
  rmdir(server->folder);
}

sparsed_client* Connect(const Server* server, const sparsed_client_options* options) {
  sparsed_client* client = NULL;
  const struct timespec pause = {0, 50 * 1000 * 1000};
  int i;
  for (i = 0; i < 200 && client == NULL; ++i) {
    sparsed_error_free(sparsed_connect(server->address, options, &client));
    if (client == NULL) nanosleep(&pause, NULL);
  }
  if (client == NULL) abort();
  return client;
}

void Make(Sparse* s) {
  uint32_t state = 1;
  int64_t i;
  int32_t j;
  s->nnz = 0;
  for (i = 0; i < kRows; ++i) {
    s->row_offsets[i] = s->nnz;
    for (j = 0; j < kCols && i != 7; ++j) {
      state = state * 1664525u + 1013904223u;
      if ((state >> 24) % 8 != 0 || s->nnz == kMost) continue;
      s->column_indices[s->nnz] = j;
      s->values[s->nnz] = (float)((state >> 16) % 5) - 2;
      ++s->nnz;
    }
  }
  s->row_offsets[kRows] = s->nnz;
}

sparsed_csr_view View(const Sparse* s) {
  const sparsed_csr_view view = {
      kRows, kCols, s->nnz, s->row_offsets, 8, SPARSED_F32, s->column_indices, s->values};
  return view;
}

void Fill(float* to, int64_t count, uint32_t seed) {
  int64_t i;
  for (i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    to[i] = (float)((seed >> 16) % 7) - 3;
  }
}

void Multiply(const Sparse* s, const float* values, int transpose, const float* b, double* c) {
  int64_t i, p;
  int k;
  for (i = 0; i < (transpose ? kCols : kRows) * kK; ++i) c[i] = 0;
  for (i = 0; i < kRows; ++i) {
    for (p = s->row_offsets[i]; p < s->row_offsets[i + 1]; ++p) {
      const int64_t j = s->column_indices[p];
      const int64_t to = transpose ? j : i, from = transpose ? i : j;
      for (k = 0; k < kK; ++k) c[to * kK + k] += (double)values[p] * b[from * kK + k];
    }
  }
}

int Near(const float* got, const double* expected, int64_t count) {
  int64_t i;
  for (i = 0; i < count; ++i) {
    if (fabs(got[i] - expected[i]) > 1e-5 * (1 + fabs(expected[i]))) {
      fprintf(stderr, "element %ld is %g, not %g\n", (long)i, got[i], expected[i]);
      return 0;
    }
  }
  return 1;
}

sparsed_dense Dense(void* data, int64_t rows, int64_t cols) {
  sparsed_dense dense = {NULL, 0, 0, 0, SPARSED_F32, SPARSED_HOST, NULL};
  dense.data = data;
  dense.rows = rows;
  dense.cols = cols;
  return dense;
}

sparsed_dense Held(const char* name) {
  sparsed_dense dense = {NULL, 0, 0, 0, SPARSED_F32, SPARSED_HOST, NULL};
  dense.held = name;
  return dense;
}

sparsed_matrix* Upload(sparsed_client* client, const char* name, const Sparse* s) {
  const sparsed_csr_view view = View(s);
  sparsed_upload_options upload = SPARSED_UPLOAD_OPTIONS_INIT;
  sparsed_matrix* matrix = NULL;
  upload.replace = 1;
  CHECK_OK(sparsed_upload(client, name, &view, &upload, NULL, &matrix, NULL));
  if (matrix == NULL) abort();
  return matrix;
}
