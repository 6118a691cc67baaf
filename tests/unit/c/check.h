/* What the tests of the C interface share: checks, a server, and matrices. */
#ifndef SPARSED_TESTS_UNIT_C_CHECK_H_
#define SPARSED_TESTS_UNIT_C_CHECK_H_

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "sparsed/c.h"

extern int failures;

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      ++failures;                                                             \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                         \
  } while (0)

/* Frees the error that a call ended with. Its code is to be `code`, and its sentence to have
 * `part`. */
#define CHECK_ENDS(call, code, part) CheckEnds(call, code, part, #call, __FILE__, __LINE__)
#define CHECK_OK(call) CHECK_ENDS(call, SPARSED_OK, "")
int CheckEnds(sparsed_error* error, int32_t code, const char* part, const char* call,
              const char* file, int line);

/* A server of its own on this machine. */
typedef struct Server {
  int pid;
  char folder[64];
  char address[128];
} Server;
void Start(Server* server, const char* program, int local);
void Kill(Server* server);
/* A client of it, once it answers. */
sparsed_client* Connect(const Server* server, const sparsed_client_options* options);

enum { kRows = 60, kCols = 50, kMost = 600, kK = 8 };
/* S, in CSR with sorted rows, of f32; small whole numbers, so that sums are exact. Row 7 is empty.
 */
typedef struct Sparse {
  int64_t nnz;
  int64_t row_offsets[kRows + 1];
  int32_t column_indices[kMost];
  float values[kMost];
} Sparse;
void Make(Sparse* s);
sparsed_csr_view View(const Sparse* s);
/* Whole numbers from -3 to 3 that are the same for the same seed. */
void Fill(float* to, int64_t count, uint32_t seed);
/* c[rows, kK] = op(S of these values) * b, in double. */
void Multiply(const Sparse* s, const float* values, int transpose, const float* b, double* c);
int Near(const float* got, const double* expected, int64_t count);

sparsed_dense Dense(void* data, int64_t rows, int64_t cols);
sparsed_dense Held(const char* name);
sparsed_matrix* Upload(sparsed_client* client, const char* name, const Sparse* s);

/* The tests, by subject. */
void TestArguments(sparsed_client* client, sparsed_matrix* matrix);
void TestOptions(sparsed_client* client, sparsed_matrix* matrix);
void TestCatalog(sparsed_client* client, const Sparse* s);
void TestFiles(sparsed_client* client);
void TestHeld(sparsed_client* client, const Sparse* s);
void TestProducts(sparsed_client* client, const Sparse* s);
void TestHeads(sparsed_client* client, const Sparse* s);
void TestReductions(sparsed_client* client, const Sparse* s);
void TestNonzeros(sparsed_client* client, const Sparse* s);
void TestAttention(sparsed_client* client, const Sparse* s);
void TestSpgemm(sparsed_client* client, const Sparse* s);
void TestChains(sparsed_client* client, const Sparse* s);
void TestCalls(sparsed_client* client, const Sparse* s);
void TestTransports(const Server* server, const Sparse* s);
void TestThreads(sparsed_client* client, const Sparse* s);
void TestGpu(sparsed_client* client, sparsed_matrix* matrix);
void TestGone(const char* program, const Sparse* s);

#endif /* SPARSED_TESTS_UNIT_C_CHECK_H_ */
