/* Uploads a small matrix and multiplies with it through the C interface. Usage: consumer ADDRESS
 * WAY, the name of the transport that is expected. */
#include <sparsed/c.h>
#include <stdio.h>
#include <string.h>

static int Fail(sparsed_error* error) {
  fprintf(stderr, "consumer: %s\n", sparsed_error_message(error));
  sparsed_error_free(error);
  return 1;
}

int main(int argc, char** argv) {
  /* 1 0 2
   * 0 3 0 */
  const int32_t row_offsets[3] = {0, 2, 3}, column_indices[3] = {0, 2, 1};
  const float values[3] = {1, 2, 3}, expected[4] = {7, 70, 6, 60};
  float b[6] = {1, 10, 2, 20, 3, 30}, c[4] = {0, 0, 0, 0};
  const sparsed_dense from = {b, 3, 2, 0, SPARSED_F32, SPARSED_HOST, NULL};
  const sparsed_dense to = {c, 2, 2, 0, SPARSED_F32, SPARSED_HOST, NULL};
  const sparsed_csr_view csr = {2, 3, 3, row_offsets, 4, SPARSED_F32, column_indices, values};
  sparsed_upload_options upload = SPARSED_UPLOAD_OPTIONS_INIT;
  sparsed_client* client = NULL;
  sparsed_matrix* matrix = NULL;
  sparsed_result result;
  sparsed_error* error;
  if (argc != 3) return 2;
  upload.replace = 1;
  if ((error = sparsed_connect(argv[1], NULL, &client)) != NULL) return Fail(error);
  error = sparsed_upload(client, "consumer", &csr, &upload, NULL, &matrix, NULL);
  if (error != NULL) return Fail(error);
  error = sparsed_spmm(matrix, &from, &to, NULL, NULL, &result, NULL);
  if (error != NULL) return Fail(error);
  if (memcmp(c, expected, sizeof(c)) != 0 ||
      strcmp(sparsed_transport_name(result.transport), argv[2]) != 0) {
    fprintf(stderr, "consumer: %g %g %g %g, by %s\n", c[0], c[1], c[2], c[3],
            sparsed_transport_name(result.transport));
    return 1;
  }
  if ((error = sparsed_matrix_delete(matrix, NULL)) != NULL) return Fail(error);
  sparsed_matrix_free(matrix);
  sparsed_client_free(client);
  printf("C, sparsed %s, by %s\n", sparsed_version(), argv[2]);
  return 0;
}
