/* The C interface against the real server, compiled by a C compiler. Usage:
 * c_test SERVER_PROGRAM HAS_KERNELS */
#include <stdlib.h>

#include "tests/unit/c/check.h"

static void TestVersions(int has_kernels) {
  CHECK(sparsed_c_version() == SPARSED_C_VERSION);
  CHECK(strcmp(sparsed_version(), SPARSED_EXPECTED_VERSION) == 0);
  CHECK(sparsed_has_kernels() == has_kernels);
}

int main(int argc, char** argv) {
  static Sparse s;
  Server server;
  sparsed_client* client;
  sparsed_matrix* matrix;
  if (argc != 3) {
    fprintf(stderr, "usage: c_test SERVER_PROGRAM HAS_KERNELS\n");
    return 2;
  }
  Make(&s);
  TestVersions(atoi(argv[2]));
  Start(&server, argv[1], 1);
  client = Connect(&server, NULL);
  matrix = Upload(client, "s", &s);
  TestArguments(client, matrix);
  TestOptions(client, matrix);
  TestCatalog(client, &s);
  TestFiles(client);
  TestHeld(client, &s);
  TestProducts(client, &s);
  TestHeads(client, &s);
  TestReductions(client, &s);
  TestNonzeros(client, &s);
  TestAttention(client, &s);
  TestSpgemm(client, &s);
  TestChains(client, &s);
  TestCalls(client, &s);
  TestTransports(&server, &s);
  TestThreads(client, &s);
  TestGpu(client, matrix);
  /* In whichever order: a matrix keeps its client. */
  sparsed_client_free(client);
  CHECK(strcmp(sparsed_matrix_name(matrix), "s") == 0);
  CHECK_OK(sparsed_matrix_delete(matrix, NULL));
  sparsed_matrix_free(matrix);
  Kill(&server);
  TestGone(argv[1], &s);
  if (failures > 0) fprintf(stderr, "%d checks failed\n", failures);
  return failures > 0 ? 1 : 0;
}
