/* The C interface of sparsed's client, for programs in any language.
 *
 *   sparsed_client* client = NULL;
 *   sparsed_error* error = sparsed_connect("unix:/run/sparsed/sparsed.sock", NULL, &client);
 *   sparsed_matrix* graph = NULL;
 *   if (error == NULL) error = sparsed_upload(client, "cora", &csr, NULL, NULL, &graph, NULL);
 *   sparsed_dense b = {x, n, k, k, SPARSED_F32, SPARSED_HOST, NULL};
 *   sparsed_dense c = {y, m, k, k, SPARSED_F32, SPARSED_HOST, NULL};
 *   if (error == NULL) error = sparsed_spmm(graph, &b, &c, NULL, NULL, NULL, NULL);
 *   if (error != NULL) fprintf(stderr, "%s\n", sparsed_error_message(error));
 *
 * Two shared libraries have it: libsparsed_client.so, and libsparsed_attached.so, which brings the
 * kernels along and multiplies in this process where it can. In the first, what needs kernels
 * (operands on a GPU, sparsed_attach, sparsed_gpu_...) is UNIMPLEMENTED.
 *
 * Errors. A function that can fail returns NULL, or an error that the caller frees; what it was to
 * give back is then unchanged. No function ends the process or throws for anything that it was
 * given, but for pointers that are none.
 *
 * Handles are thread-safe, and freed by their _free, which takes NULL. A matrix keeps its client
 * alive. In a child after fork() none of them may be used or freed.
 *
 * Options. Structs of options begin with their size, so that they can grow: set them up with their
 * _INIT. A null pointer stands for the defaults.
 *
 * Calls. Functions with a last parameter `call` block if it is NULL. Else they return at once, and
 * *call is what is under way: see sparsed_call. Memory that was given to it, results included,
 * stays in place until it is finished or dropped.
 *
 * Symbols: S is sparse, M x N with nnz nonzeros; dense matrices are row-major; K is their width.
 */
#ifndef SPARSED_C_H_
#define SPARSED_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPARSED_API __attribute__((visibility("default")))

/* Of this interface: it only grows. */
#define SPARSED_C_VERSION 1
SPARSED_API int32_t sparsed_c_version(void);
/* Of the library: "0.1.0". */
SPARSED_API const char* sparsed_version(void);
/* 1: it brings kernels along (libsparsed_attached.so). */
SPARSED_API int32_t sparsed_has_kernels(void);

/* ---- Errors ---------------------------------------------------------------------------------- */

/* As google.rpc.Code. */
enum {
  SPARSED_OK = 0,
  SPARSED_CANCELLED = 1,
  SPARSED_UNKNOWN = 2,
  SPARSED_INVALID_ARGUMENT = 3,
  SPARSED_DEADLINE_EXCEEDED = 4,
  SPARSED_NOT_FOUND = 5,
  SPARSED_ALREADY_EXISTS = 6,
  SPARSED_PERMISSION_DENIED = 7,
  SPARSED_RESOURCE_EXHAUSTED = 8,
  SPARSED_FAILED_PRECONDITION = 9,
  SPARSED_ABORTED = 10,
  SPARSED_OUT_OF_RANGE = 11,
  SPARSED_UNIMPLEMENTED = 12,
  SPARSED_INTERNAL = 13,
  SPARSED_UNAVAILABLE = 14,
  SPARSED_DATA_LOSS = 15,
  SPARSED_UNAUTHENTICATED = 16
};

typedef struct sparsed_error sparsed_error;
/* SPARSED_OK of NULL. */
SPARSED_API int32_t sparsed_error_code(const sparsed_error* error);
/* A sentence in UTF-8, valid as long as the error; "" of NULL. */
SPARSED_API const char* sparsed_error_message(const sparsed_error* error);
/* Of a RESOURCE_EXHAUSTED that waiting mends: milliseconds to wait; else -1. */
SPARSED_API int64_t sparsed_error_retry_ms(const sparsed_error* error);
/* What the server's log knows the request by, valid as long as the error; "" if none reached it. */
SPARSED_API const char* sparsed_error_request_id(const sparsed_error* error);
SPARSED_API void sparsed_error_free(sparsed_error* error);

/* Text that a function gave back: UTF-8, often JSON as sparsectl --json prints it. */
SPARSED_API void sparsed_text_free(char* text);

/* ---- Connections ----------------------------------------------------------------------------- */

typedef struct sparsed_client sparsed_client;

enum { SPARSED_ATTACH_AUTO = 0, SPARSED_ATTACH_NEVER = 1 };

/* 0 (NULL) of everything is the default. */
typedef struct sparsed_client_options {
  size_t size;
  int64_t connect_timeout_ms; /* 10,000 */
  int32_t max_attempts; /* of a call that is safe to repeat, at a server that is UNAVAILABLE; 6 */
  int64_t initial_backoff_ms; /* before the second one; doubles; 50 */
  int64_t max_chunk_bytes;    /* 2 MiB */
  int64_t keepalive_ms;       /* after which a silent server is asked for a sign of life; 30,000 */
  int32_t ring;         /* 1: small requests through memory shared with a server on this machine */
  int64_t ring_spin_us; /* how long who waits looks for the end before it sleeps; 0 */
  int32_t streams;      /* connections that large operands travel over; 1, or 4 over TLS */
  int32_t attach;       /* whether products run in this process where they can */
  int32_t threads;      /* of products that run here, on the CPU; as many as there are cores */
  int32_t priority;     /* of products and chains, 0 to 7: of one's own that wait at the server the
                           highest goes first */
  /* Who calls; without them the environment says it: SPARSED_TLS_CA, SPARSED_TLS_CERTIFICATE,
   * SPARSED_TLS_KEY, SPARSED_TLS_SERVER_NAME, SPARSED_TOKEN or SPARSED_TOKEN_FILE. */
  const char* tls_ca;          /* PEM file of who may vouch for the server, or "system": use TLS */
  const char* tls_certificate; /* PEM file, in the place of a token */
  const char* tls_key;         /* its key; refused if others can read it */
  const char* tls_server_name; /* that the server's certificate is for; the address' host */
  const char* token;
  const char* token_file; /* whose first line is the token; refused if others can read it */
  const char* gateway; /* "host:port" of an HTTP proxy that connects to servers (CONNECT), also to
                          the nodes of a cluster; SPARSED_GATEWAY, or straight to the server */
} sparsed_client_options;
#define SPARSED_CLIENT_OPTIONS_INIT \
  { sizeof(sparsed_client_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* `address` is "host:port" or "unix:/path". UNAVAILABLE if no server answers there in time. */
SPARSED_API sparsed_error* sparsed_connect(const char* address,
                                           const sparsed_client_options* options,
                                           sparsed_client** client);
/* What is under way goes on, and keeps the connection until it has ended. */
SPARSED_API void sparsed_client_free(sparsed_client* client);

typedef struct sparsed_call_options {
  size_t size;
  int64_t timeout_ns; /* after which the call ends with DEADLINE_EXCEEDED; 0: never. Not of products
                         on a GPU, nor of the time that attaching takes */
  void* stream;       /* cudaStream_t, for operands on a GPU; NULL: CUDA's default stream */
  /* The trace that the call belongs to, as W3C's Trace Context has it in the headers of these
   * names: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01". NULL: that of the
   * environment's TRACEPARENT and TRACESTATE. What is malformed is not sent. */
  const char* traceparent;
  const char* tracestate;
} sparsed_call_options;
#define SPARSED_CALL_OPTIONS_INIT \
  { sizeof(sparsed_call_options), 0, NULL, NULL, NULL }

/* JSON: version, devices, limits, sockets. */
SPARSED_API sparsed_error* sparsed_server_info(sparsed_client* client,
                                               const sparsed_call_options* options, char** json);
/* JSON: counters since the server's start. */
SPARSED_API sparsed_error* sparsed_server_stats(sparsed_client* client,
                                                const sparsed_call_options* options, char** json);

/* ---- Calls under way ------------------------------------------------------------------------- */

typedef struct sparsed_call sparsed_call;
/* Waits no longer than that (-1: until the end; 0: not at all), and runs its callbacks meanwhile,
 * in this thread. 1 if it is done. */
SPARSED_API int32_t sparsed_call_wait(sparsed_call* call, int64_t timeout_ns);
/* Asks it to end early, with CANCELLED; from any thread, before it is finished or freed. It may
 * still end otherwise. */
SPARSED_API void sparsed_call_cancel(sparsed_call* call);
/* Waits for its end, sets what the call was to give back (whose pointers are used here, last), and
 * frees it. */
SPARSED_API sparsed_error* sparsed_call_finish(sparsed_call* call);
/* Cancels it, waits until its memory is free, and frees it. Sets nothing. */
SPARSED_API void sparsed_call_free(sparsed_call* call);

/* ---- Dense matrices -------------------------------------------------------------------------- */

/* Element types. I64: of results that say which nonzeros they are of. */
enum { SPARSED_F32 = 0, SPARSED_F64 = 1, SPARSED_F16 = 2, SPARSED_BF16 = 3, SPARSED_I64 = 4 };

enum { SPARSED_HOST = -1 };

/* A row-major dense matrix: in this process's memory, in that of a GPU, or a buffer of the
 * server's. */
typedef struct sparsed_dense {
  void* data; /* not changed if it is an operand */
  int64_t rows;
  int64_t cols;
  int64_t leading_dimension; /* elements between the beginnings of two rows; 0: cols */
  int32_t type;
  int32_t device;   /* SPARSED_HOST, or the number of a GPU as this process counts them */
  const char* held; /* not NULL: the name of a buffer; the rest is ignored */
} sparsed_dense;

typedef void (*sparsed_progress)(void* context, int64_t done, int64_t total);

typedef struct sparsed_put_options {
  size_t size;
  int32_t durable;   /* 1: on disk before the call returns */
  const char* owner; /* a job or a person; NULL: nobody */
  int64_t
      time_to_live_ns; /* for how long it stays though nothing uses it; 0: as the server decides */
  /* 1: each GPU of a server that has several gets as many of its columns, and computes with them */
  int32_t columns_over_gpus;
  int32_t unused; /* not read: what older programs leave there is anything */
  /* 1: each has rows of it, and computes the same rows of products; not with columns_over_gpus */
  int32_t rows_over_gpus;
  /* of a matrix with as many rows: each gets those with as many of its nonzeros; NULL: as many */
  const char* rows_of;
  /* 1: whole, in columns or in rows, as is best for products with the matrix rows_of; neither of
   * the other two then */
  int32_t best_over_gpus;
} sparsed_put_options;
#define SPARSED_PUT_OPTIONS_INIT \
  { sizeof(sparsed_put_options), 0, NULL, 0, 0, 0, 0, NULL, 0 }

/* Makes a buffer of that name with a copy of `dense`, in the place of one that there is.
 * `dense->data` NULL: zeros. */
SPARSED_API sparsed_error* sparsed_dense_put(sparsed_client* client, const char* name,
                                             const sparsed_dense* dense,
                                             const sparsed_put_options* put,
                                             const sparsed_call_options* options,
                                             sparsed_call** call);
/* Copies a buffer to `into`, in host memory, of the same shape and type. */
SPARSED_API sparsed_error* sparsed_dense_read(sparsed_client* client, const char* name,
                                              const sparsed_dense* into,
                                              const sparsed_call_options* options,
                                              sparsed_call** call);
/* Its time to live begins anew. */
SPARSED_API sparsed_error* sparsed_dense_renew(sparsed_client* client, const char* name,
                                               const sparsed_call_options* options);
SPARSED_API sparsed_error* sparsed_dense_delete(sparsed_client* client, const char* name,
                                                const sparsed_call_options* options);
/* The same of buffers that were put for a matrix in shards (`rows_of`), whose nodes have rows of
 * them each; NULL, or a matrix that is whole: as above. FAILED_PRECONDITION if parts are gone, or
 * of different products. */
SPARSED_API sparsed_error* sparsed_dense_read_of(sparsed_client* client, const char* matrix,
                                                 const char* name, const sparsed_dense* into,
                                                 const sparsed_call_options* options,
                                                 sparsed_call** call);
SPARSED_API sparsed_error* sparsed_dense_renew_of(sparsed_client* client, const char* matrix,
                                                  const char* name,
                                                  const sparsed_call_options* options);
SPARSED_API sparsed_error* sparsed_dense_delete_of(sparsed_client* client, const char* matrix,
                                                   const char* name,
                                                   const sparsed_call_options* options);
/* JSON: shape, type, bytes. */
SPARSED_API sparsed_error* sparsed_dense_info_of(sparsed_client* client, const char* matrix,
                                                 const char* name,
                                                 const sparsed_call_options* options, char** json);
/* JSON, an array by name: those whose names begin with `prefix`. */
SPARSED_API sparsed_error* sparsed_dense_list(sparsed_client* client, const char* prefix,
                                              const sparsed_call_options* options, char** json);

/* ---- Memory that the server shares ------------------------------------------------------------
 */

/* Host memory that a server on this machine maps, too: operands and results in it are not copied on
 * their way. Elsewhere it is memory like any other. */
typedef struct sparsed_memory sparsed_memory;
/* bytes > 0. Zeros at first. */
SPARSED_API sparsed_error* sparsed_memory_allocate(sparsed_client* client, size_t bytes,
                                                   sparsed_memory** memory);
SPARSED_API void* sparsed_memory_data(const sparsed_memory* memory);
/* Calls under way keep what they use. */
SPARSED_API void sparsed_memory_free(sparsed_memory* memory);

/* Memory of a GPU that the server allocated and shares, for a framework's allocator: to be used in
 * `stream` from its present end on. Its contents are anything. */
SPARSED_API sparsed_error* sparsed_gpu_allocate(sparsed_client* client, int32_t gpu, size_t bytes,
                                                void* stream, void** data);
/* Gives it back at the present end of `stream`. */
SPARSED_API sparsed_error* sparsed_gpu_free(sparsed_client* client, int32_t gpu, void* data,
                                            void* stream);
/* Whose memory the two functions below give; NULL: nobody's, from then on. Memory that they gave
 * stays what it is. */
SPARSED_API sparsed_error* sparsed_gpu_pool_set(sparsed_client* client);
/* With the signatures that torch.cuda.memory.CUDAPluggableAllocator wants. NULL if there is none.
 */
SPARSED_API void* sparsed_gpu_pool_malloc(ptrdiff_t bytes, int gpu, void* stream);
SPARSED_API void sparsed_gpu_pool_free(void* data, ptrdiff_t bytes, int gpu, void* stream);

/* ---- Sparse matrices ------------------------------------------------------------------------- */

/* Compressed by rows. */
typedef struct sparsed_csr_view {
  int64_t rows; /* M */
  int64_t cols; /* N */
  int64_t nnz;
  const void* row_offsets;       /* rows + 1 elements, from 0 to nnz, never decreasing */
  int32_t offset_bytes;          /* of each: 4 or 8 */
  int32_t type;                  /* of the values */
  const int32_t* column_indices; /* nnz elements in [0, cols) */
  const void* values;            /* nnz elements; NULL: ones */
} sparsed_csr_view;

/* A sparse matrix of its own, in canonical CSR: ascending columns in each row, no duplicates. */
typedef struct sparsed_csr sparsed_csr;
/* Valid as long as the matrix. Offsets have 8 bytes. */
SPARSED_API void sparsed_csr_get(const sparsed_csr* csr, sparsed_csr_view* view);
SPARSED_API void sparsed_csr_free(sparsed_csr* csr);

typedef struct sparsed_read_options {
  size_t size;
  const char* format;    /* "mtx", "npz", "npy", "edges", "metis"; NULL: as its content says */
  int32_t type;          /* of the values; -1: the file's own, f32 where it has none */
  int32_t one_based;     /* indices of edges and npy count from 1 */
  int32_t undirected;    /* each entry of edges and npy is one of the transpose, too */
  int32_t weight_column; /* of edges, counted from 1; 0: ones; -1: the third if there are three */
  int64_t rows, cols;    /* of edges and npy; -1: square, up to the greatest index */
} sparsed_read_options;
#define SPARSED_READ_OPTIONS_INIT \
  { sizeof(sparsed_read_options), NULL, -1, 0, 0, -1, -1, -1 }

/* Reads a file as sparsectl upload does: Matrix Market files, SciPy's archives, edge lists, NumPy
 * arrays of entries, METIS graphs, plain or compressed by gzip, xz or Zstandard. Duplicates are
 * summed up. `json` may be NULL, or gets what is to be told of the file: its format, compression,
 * counts of duplicates, of NaN and of infinite values, and notes, which are sentences.
 * INVALID_ARGUMENT with the place that is wrong, or with the name of a format that is not read. */
SPARSED_API sparsed_error* sparsed_csr_read(const char* path, const sparsed_read_options* options,
                                            sparsed_csr** csr, char** json);
/* Reads a Matrix Market file, gzipped or not, as sparsectl upload does: symmetric ones are
 * expanded, duplicates summed up, patterns have ones. INVALID_ARGUMENT with the line that is wrong.
 */
SPARSED_API sparsed_error* sparsed_csr_read_matrix_market(const char* path, int32_t type,
                                                          sparsed_csr** csr);

enum { SPARSED_SPMM = 1, SPARSED_SDDMM = 2, SPARSED_SPGEMM = 3 };

/* A problem signature: products to prepare (tune) for. */
typedef struct sparsed_problem {
  int32_t operation;
  int32_t transposed; /* SpMM with S^T */
  int64_t k;          /* K, columns of the dense operand; 0 for SpGEMM */
  int32_t allow_tf32; /* SpMM that may round its factors to TF32 */
  int32_t reserved;
} sparsed_problem;

typedef struct sparsed_upload_options {
  size_t size;
  int32_t replace;        /* a matrix of this name, if there is one */
  int32_t sort;           /* rows whose columns are not ascending */
  int32_t sum_duplicates; /* implies sort */
  const char*
      pattern_hash; /* as sparsed_matrix_info had it: a pattern that is there is not sent; NULL */
  const sparsed_problem* expected; /* to prepare for at once */
  size_t expected_count;           /* 0: the server's default */
  sparsed_progress progress;       /* bytes sent; NULL */
  void* progress_context;
  int32_t shards; /* of a cluster's nodes, which get as many parts of the rows; 0, 1: it is whole */
  int32_t replicas;         /* nodes of a cluster that are to have it, 1 to 16; 0: as these say */
  const int32_t* partition; /* rows elements: each row's shard; NULL: parts of as many nonzeros */
} sparsed_upload_options;
#define SPARSED_UPLOAD_OPTIONS_INIT \
  { sizeof(sparsed_upload_options), 0, 0, 0, NULL, NULL, 0, NULL, NULL, 0, 0, NULL }

/* A matrix on the server, by name. */
typedef struct sparsed_matrix sparsed_matrix;

/* Usable, and durable unless the server keeps everything in memory, from its end on. */
SPARSED_API sparsed_error* sparsed_upload(sparsed_client* client, const char* name,
                                          const sparsed_csr_view* csr,
                                          const sparsed_upload_options* upload,
                                          const sparsed_call_options* options,
                                          sparsed_matrix** matrix, sparsed_call** call);
/* A handle; asks the server nothing. */
SPARSED_API sparsed_error* sparsed_matrix_named(sparsed_client* client, const char* name,
                                                sparsed_matrix** matrix);
SPARSED_API void sparsed_matrix_free(sparsed_matrix* matrix);
/* Valid as long as the matrix. */
SPARSED_API const char* sparsed_matrix_name(const sparsed_matrix* matrix);

/* JSON, an array by name: those whose names begin with `prefix`. */
SPARSED_API sparsed_error* sparsed_matrix_list(sparsed_client* client, const char* prefix,
                                               const sparsed_call_options* options, char** json);
/* Likewise those of all tenants, each called "TENANT~NAME", by tenant, then by name: for operators.
 */
SPARSED_API sparsed_error* sparsed_all_matrices(sparsed_client* client, const char* prefix,
                                                const sparsed_call_options* options, char** json);
/* JSON: sizes, type, version, state, layouts, plans, measurements, decisions. */
SPARSED_API sparsed_error* sparsed_matrix_info(sparsed_matrix* matrix,
                                               const sparsed_call_options* options, char** json);
/* JSON: features, distances, a density map of 128 x 128 counts; {} until they are computed. */
SPARSED_API sparsed_error* sparsed_matrix_features(sparsed_matrix* matrix,
                                                   const sparsed_call_options* options,
                                                   char** json);
/* JSON: what limits products of width k (0: as the last ones) on `device` ("cpu", "cuda:0"; NULL:
 * the one that serves), and what another order of rows could gain; as "text" the same for people.
 * Seconds, if it is large. */
SPARSED_API sparsed_error* sparsed_matrix_explain(sparsed_matrix* matrix, int64_t k,
                                                  const char* device,
                                                  const sparsed_call_options* options, char** json);
/* JSON: everything that was measured on its pattern; of all matrices if `matrix` is NULL. */
SPARSED_API sparsed_error* sparsed_measurements(sparsed_client* client, sparsed_matrix* matrix,
                                                const sparsed_call_options* options, char** json);
/* Likewise, of all tenants' matrices, and what is kept of patterns that no matrix has any more: for
 * operators. With density maps. */
SPARSED_API sparsed_error* sparsed_all_measurements(sparsed_client* client,
                                                    const sparsed_call_options* options,
                                                    char** json);

typedef struct sparsed_prepare_options {
  size_t size;
  const sparsed_problem* expected; /* to prepare for */
  size_t expected_count;           /* 0: what it is prepared for already, or the default */
  int32_t again;                   /* time every candidate anew */
  const char* recipe;              /* build and time just this transform pipeline; NULL */
  const char* kernel;              /* time this kernel alone; NULL */
  int32_t explore;                 /* time every candidate, also those left out by model or rules */
} sparsed_prepare_options;
#define SPARSED_PREPARE_OPTIONS_INIT \
  { sizeof(sparsed_prepare_options), NULL, 0, 0, NULL, NULL, 0 }

/* Returns at once: sparsed_wait_ready follows the preparation. */
SPARSED_API sparsed_error* sparsed_prepare(sparsed_matrix* matrix,
                                           const sparsed_prepare_options* prepare,
                                           const sparsed_call_options* options);
/* `stage` may be "" between stages; total 0 if it is not known. The strings live during the call.
 */
typedef void (*sparsed_preparation_progress)(void* context, const char* state, const char* stage,
                                             int64_t done, int64_t total, const char* message);
/* Follows the preparation until the matrix is ready, or the preparation failed (see its info). */
SPARSED_API sparsed_error* sparsed_wait_ready(sparsed_matrix* matrix,
                                              sparsed_preparation_progress progress, void* context,
                                              const sparsed_call_options* options,
                                              sparsed_call** call);

typedef struct sparsed_update_options {
  size_t size;
  int32_t durable;     /* 1: on disk before the call returns */
  uint64_t if_version; /* only replace this version, otherwise ABORTED; 0: any */
} sparsed_update_options;
#define SPARSED_UPDATE_OPTIONS_INIT \
  { sizeof(sparsed_update_options), 0, 0 }

/* Replaces the values: nnz x 1 of the matrix's type in host memory, without gaps, in the order of
 * the upload. `version` (NULL: not wanted) is the new one. */
SPARSED_API sparsed_error* sparsed_update_values(sparsed_matrix* matrix, const void* values,
                                                 int64_t nnz, int32_t type,
                                                 const sparsed_update_options* update,
                                                 const sparsed_call_options* options,
                                                 uint64_t* version, sparsed_call** call);
SPARSED_API sparsed_error* sparsed_download(sparsed_matrix* matrix,
                                            const sparsed_call_options* options, sparsed_csr** csr,
                                            sparsed_call** call);
SPARSED_API sparsed_error* sparsed_matrix_delete(sparsed_matrix* matrix,
                                                 const sparsed_call_options* options);

/* ---- Products -------------------------------------------------------------------------------- */

/* How operands and results travelled: the slowest way that one of them took. */
enum {
  SPARSED_TRANSPORT_STREAM = 0,        /* over the connection */
  SPARSED_TRANSPORT_RING = 1,          /* the request through memory shared with the server */
  SPARSED_TRANSPORT_SHARED_HOST = 2,   /* in host memory that the server maps */
  SPARSED_TRANSPORT_SHARED_DEVICE = 3, /* in GPU memory that the server maps */
  SPARSED_TRANSPORT_HELD = 4,          /* they stayed on the server */
  SPARSED_TRANSPORT_ATTACHED = 5       /* not at all: it ran in this process */
};
/* "stream", "ring", "shared_host", "shared_device", "held", "attached". */
SPARSED_API const char* sparsed_transport_name(int32_t transport);

/* How a product was done. Times in nanoseconds; 0 of what did not happen, and of what was only
 * queued on a GPU. */
typedef struct sparsed_result {
  uint64_t version; /* of S's values that were used */
  int32_t transport;
  int32_t batch; /* calls that the server ran as one with it, itself counted */
  int64_t queue_ns, receive_ns, to_device_ns, kernel_ns, from_device_ns, send_ns, setup_ns,
      total_ns;
  char plan[256];      /* "<pipeline> / <kernel>", cut off if it is longer */
  char request_id[96]; /* what the server's log knows it by; "" where no request was made */
} sparsed_result;

/* All operands and results of one product are on one device: in host memory or in buffers, or all
 * on one GPU.
 *
 * On a GPU the product is ordered by sparsed_call_options::stream like a kernel: queued, by this
 * process or by the server, where that is possible, and done when the function returns where it is
 * not (libsparsed_attached.so says how: see docs/transports.md). Its errors may come late, as
 * ABORTED. `call` must be NULL then.
 *
 * In host memory the product runs in this process, in the calling thread and a team of it, if it is
 * attached and `call` is NULL; else on the server.
 *
 * `result` (NULL: not wanted) says how it was done. */

enum { SPARSED_SUM = 0, SPARSED_MEAN = 1, SPARSED_MAX = 2, SPARSED_MIN = 3 };

typedef struct sparsed_spmm_options {
  size_t size;
  int32_t transpose; /* S^T in the place of S */
  int32_t reduce;    /* what becomes of the products of a row: their sum, mean, greatest or least */
  double alpha;      /* with other reductions than sums: 1 */
  double beta;       /* ... 0 */
  const sparsed_dense* accumulate; /* added beta times; NULL: what c holds */
  const sparsed_dense* values; /* in the place of S's: nnz x 1 in the order of the upload, or nnz x
                                  H: K is a multiple of H, and column h goes with the columns h K/H
                                  to (h + 1) K/H; of other reductions than sums nnz x 1; NULL */
  int32_t unscaled;            /* ones in the place of S's values; of other reductions than sums */
  int32_t allow_tf32;          /* factors may be rounded to TF32 */
  const sparsed_dense* which;  /* I64, of c's shape: which nonzero, in the order of the upload, a
                                  greatest or least is of, -1 of none; NULL: not wanted */
} sparsed_spmm_options;
#define SPARSED_SPMM_OPTIONS_INIT \
  { sizeof(sparsed_spmm_options), 0, SPARSED_SUM, 1, 0, NULL, NULL, 0, 0, NULL }

/* c[M,K] = alpha * S * b[N,K] + beta * accumulate[M,K]; with S^T, M and N swap places. Mean,
 * greatest and least of a row without nonzeros are 0. */
SPARSED_API sparsed_error* sparsed_spmm(sparsed_matrix* matrix, const sparsed_dense* b,
                                        const sparsed_dense* c, const sparsed_spmm_options* spmm,
                                        const sparsed_call_options* options, sparsed_result* result,
                                        sparsed_call** call);

typedef struct sparsed_sddmm_options {
  size_t size;
  int32_t unscaled;            /* do not multiply by S's values */
  const sparsed_dense* values; /* in the place of S's: nnz x 1, or nnz x heads; NULL */
  int64_t heads;               /* of which each has K / heads columns of a and b; 0: 1 */
} sparsed_sddmm_options;
#define SPARSED_SDDMM_OPTIONS_INIT \
  { sizeof(sparsed_sddmm_options), 0, NULL, 0 }

/* out = S .* (a[M,K] * b[N,K]^T), nnz x heads, in the order of the upload. */
SPARSED_API sparsed_error* sparsed_sddmm(sparsed_matrix* matrix, const sparsed_dense* a,
                                         const sparsed_dense* b, const sparsed_dense* out,
                                         const sparsed_sddmm_options* sddmm,
                                         const sparsed_call_options* options,
                                         sparsed_result* result, sparsed_call** call);

/* y = softmax of scale * x over the nonzeros of each row of S; nnz x H, in the order of the upload.
 */
SPARSED_API sparsed_error* sparsed_softmax(sparsed_matrix* matrix, const sparsed_dense* x,
                                           const sparsed_dense* y, double scale,
                                           const sparsed_call_options* options,
                                           sparsed_result* result, sparsed_call** call);
/* Its backward: the gradient of x, from the softmax y and the gradient dy of that. */
SPARSED_API sparsed_error* sparsed_softmax_gradient(sparsed_matrix* matrix, const sparsed_dense* y,
                                                    const sparsed_dense* dy,
                                                    const sparsed_dense* dx, double scale,
                                                    const sparsed_call_options* options,
                                                    sparsed_result* result, sparsed_call** call);
/* y[p] = rows[i] * values[p] * cols[j] for each nonzero p = (i, j), nnz x H. values: nnz x H, NULL:
 * S's own; rows: M x 1 or M x H, cols: N x 1 or N x H; NULL: ones. */
SPARSED_API sparsed_error* sparsed_scale(sparsed_matrix* matrix, const sparsed_dense* values,
                                         const sparsed_dense* rows, const sparsed_dense* cols,
                                         const sparsed_dense* y,
                                         const sparsed_call_options* options,
                                         sparsed_result* result, sparsed_call** call);
/* What the values (nnz x H, NULL: S's own) of each row of S add up to, M x H; transpose: of each
 * column, N x H. */
SPARSED_API sparsed_error* sparsed_total(sparsed_matrix* matrix, const sparsed_dense* values,
                                         int32_t transpose, const sparsed_dense* y,
                                         const sparsed_call_options* options,
                                         sparsed_result* result, sparsed_call** call);

/* How two rows give the score of a nonzero (i, j), for each of H heads h. */
enum {
  SPARSED_DOT =
      1, /* scale * (the product of part h of row i of left and part h of row j of right) */
  SPARSED_ADD = 2,  /* LeakyReLU(left[i, h] + right[j, h]) */
  SPARSED_GATV2 = 3 /* the sum over part h of att * LeakyReLU(row i of left + row j of right) */
};

typedef struct sparsed_attention_options {
  size_t size;
  int32_t scores;             /* SPARSED_DOT, SPARSED_ADD or SPARSED_GATV2 */
  int32_t reserved;           /* 0 */
  int64_t heads;              /* H; 0: 1 */
  double scale;               /* of dot products */
  double slope;               /* of sums and GATv2: what numbers below 0 are multiplied by */
  const sparsed_dense* bias;  /* added to the scores: nnz x H, or nnz x 1, in the order of the
                                 upload; NULL */
  const sparsed_dense* att;   /* of GATv2, which needs it: 1 x K; NULL */
  const sparsed_dense* d_att; /* where sparsed_attention_gradient puts its gradient; NULL: not
                                 wanted */
} sparsed_attention_options;
#define SPARSED_ATTENTION_OPTIONS_INIT \
  { sizeof(sparsed_attention_options), SPARSED_DOT, 0, 0, 1, 0.2, NULL, NULL, NULL }

/* Attention along the nonzeros of S, in one pass: for row i and head h of out, M x L, the sum over
 * its nonzeros (i, j) of the softmax over the row of their scores, times part h of row j of values,
 * N x L with L a multiple of H; they may be right itself. left is M x K (M x H of sums), right
 * N x K (N x H). 0 of a row without nonzeros. S's own values do not count. log_sums (NULL: not
 * wanted) is M x H: the logarithm of the sum over the row of exp(score), which the gradients need;
 * f64 of f64, else f32.
 */
SPARSED_API sparsed_error* sparsed_attention(sparsed_matrix* matrix, const sparsed_dense* left,
                                             const sparsed_dense* right,
                                             const sparsed_dense* values, const sparsed_dense* out,
                                             const sparsed_dense* log_sums,
                                             const sparsed_attention_options* attention,
                                             const sparsed_call_options* options,
                                             sparsed_result* result, sparsed_call** call);
/* Its gradients, from `gradient`, that of out: what it was given and what it made, then where the
 * gradients of left, right, values and bias go, each of its shape; NULL: not wanted. */
SPARSED_API sparsed_error* sparsed_attention_gradient(
    sparsed_matrix* matrix, const sparsed_dense* left, const sparsed_dense* right,
    const sparsed_dense* values, const sparsed_dense* out, const sparsed_dense* log_sums,
    const sparsed_dense* gradient, const sparsed_dense* d_left, const sparsed_dense* d_right,
    const sparsed_dense* d_values, const sparsed_dense* d_bias,
    const sparsed_attention_options* attention, const sparsed_call_options* options,
    sparsed_result* result, sparsed_call** call);

enum { SPARSED_SUM_PRODUCT = 1, SPARSED_BOOLEAN = 2, SPARSED_MIN_PLUS = 3, SPARSED_PLUS_PAIR = 4 };

typedef struct sparsed_spgemm_options {
  size_t size;
  int32_t transpose_left;
  int32_t transpose_right;
  int32_t semiring;    /* 0: SPARSED_SUM_PRODUCT */
  const char* mask;    /* a matrix of the result's shape: only its positions are computed; NULL */
  const char* keep_as; /* not NULL: the server keeps the result as a matrix of this name */
  int32_t replace;     /* ... in the place of one of that name */
  int32_t reserved;    /* 0 */
} sparsed_spgemm_options;
#define SPARSED_SPGEMM_OPTIONS_INIT \
  { sizeof(sparsed_spgemm_options), 0, 0, 0, NULL, NULL, 0, 0 }

/* op(left) * op(right), both f32 or f64. *csr is the result, unless it is kept on the server (then
 * csr is not used, and may be NULL). */
SPARSED_API sparsed_error* sparsed_spgemm(sparsed_matrix* left, sparsed_matrix* right,
                                          const sparsed_spgemm_options* spgemm,
                                          const sparsed_call_options* options,
                                          sparsed_result* result, sparsed_csr** csr,
                                          sparsed_call** call);
/* Rows [row_begin, row_begin + block->rows) of the result; block->row_offsets count from the
 * beginning of the whole result. The block lives during the call. Not 0: ends the product with
 * CANCELLED. */
typedef int32_t (*sparsed_row_block)(void* context, int64_t row_begin,
                                     const sparsed_csr_view* block);
/* The same in ascending row blocks, so that the result may be larger than memory. */
SPARSED_API sparsed_error* sparsed_spgemm_blocks(sparsed_matrix* left, sparsed_matrix* right,
                                                 const sparsed_spgemm_options* spgemm,
                                                 sparsed_row_block on_block, void* context,
                                                 const sparsed_call_options* options,
                                                 sparsed_result* result, sparsed_call** call);

/* ---- Attached ------------------------------------------------------------------------------- */

/* Attaches to the matrix on a GPU of this process's, or SPARSED_HOST, so that its products run
 * here: what sparsed_client_options::attach does by itself with the first product. Fails with what
 * is in the way; products run on the server then. */
SPARSED_API sparsed_error* sparsed_attach(sparsed_matrix* matrix, int32_t device);

/* ---- Chains ---------------------------------------------------------------------------------- */

/* A program of operations that runs as one request: what one makes and another one takes does not
 * leave the device. To be run as often as one likes; not thread-safe while it is put together. See
 * docs/transports.md, "Chains". */
typedef struct sparsed_chain sparsed_chain;
/* What a step made, or an operand. */
typedef int32_t sparsed_value;
enum { SPARSED_NO_VALUE = -1 };

SPARSED_API sparsed_error* sparsed_chain_new(sparsed_client* client, sparsed_chain** chain);
SPARSED_API void sparsed_chain_free(sparsed_chain* chain);
SPARSED_API sparsed_error* sparsed_chain_input(sparsed_chain* chain, const sparsed_dense* operand,
                                               sparsed_value* value);
/* As sparsed_spmm: `accumulate` and `values` may be SPARSED_NO_VALUE; `which` (NULL: not wanted)
 * gets a second value, of a greatest or least. */
SPARSED_API sparsed_error* sparsed_chain_spmm(sparsed_chain* chain, sparsed_matrix* matrix,
                                              sparsed_value b, int32_t transpose, int32_t reduce,
                                              double alpha, double beta, sparsed_value accumulate,
                                              sparsed_value values, int32_t unscaled,
                                              int32_t allow_tf32, sparsed_value* value,
                                              sparsed_value* which);
SPARSED_API sparsed_error* sparsed_chain_sddmm(sparsed_chain* chain, sparsed_matrix* matrix,
                                               sparsed_value a, sparsed_value b, int32_t unscaled,
                                               sparsed_value values, int64_t heads,
                                               sparsed_value* value);
/* gradient: SPARSED_NO_VALUE, or that of the softmax x, whose backward it is then. */
SPARSED_API sparsed_error* sparsed_chain_softmax(sparsed_chain* chain, sparsed_matrix* matrix,
                                                 sparsed_value x, sparsed_value gradient,
                                                 double scale, sparsed_value* value);
SPARSED_API sparsed_error* sparsed_chain_scale(sparsed_chain* chain, sparsed_matrix* matrix,
                                               sparsed_value values, sparsed_value rows,
                                               sparsed_value cols, sparsed_value* value);
SPARSED_API sparsed_error* sparsed_chain_total(sparsed_chain* chain, sparsed_matrix* matrix,
                                               sparsed_value values, int32_t transpose,
                                               sparsed_value* value);
/* As sparsed_attention: `bias` may be SPARSED_NO_VALUE; log_sums NULL. */
SPARSED_API sparsed_error* sparsed_chain_attention(sparsed_chain* chain, sparsed_matrix* matrix,
                                                   sparsed_value left, sparsed_value right,
                                                   sparsed_value values, sparsed_value bias,
                                                   int32_t scores, int64_t heads, double scale,
                                                   double slope, sparsed_value* value,
                                                   sparsed_value* log_sums);
/* As sparsed_attention_gradient; NULL: that gradient is not wanted. */
SPARSED_API sparsed_error* sparsed_chain_attention_gradient(
    sparsed_chain* chain, sparsed_matrix* matrix, sparsed_value left, sparsed_value right,
    sparsed_value values, sparsed_value bias, int32_t scores, int64_t heads, double scale,
    double slope, sparsed_value out, sparsed_value log_sums, sparsed_value gradient,
    sparsed_value* d_left, sparsed_value* d_right, sparsed_value* d_values, sparsed_value* d_bias);
/* The same two with the scores SPARSED_GATV2. */
SPARSED_API sparsed_error* sparsed_chain_gatv2(sparsed_chain* chain, sparsed_matrix* matrix,
                                               sparsed_value left, sparsed_value right,
                                               sparsed_value att, sparsed_value values,
                                               sparsed_value bias, int64_t heads, double slope,
                                               sparsed_value* value, sparsed_value* log_sums);
SPARSED_API sparsed_error* sparsed_chain_gatv2_gradient(
    sparsed_chain* chain, sparsed_matrix* matrix, sparsed_value left, sparsed_value right,
    sparsed_value att, sparsed_value values, sparsed_value bias, int64_t heads, double slope,
    sparsed_value out, sparsed_value log_sums, sparsed_value gradient, sparsed_value* d_left,
    sparsed_value* d_right, sparsed_value* d_att, sparsed_value* d_values, sparsed_value* d_bias);
/* The sum of 1 to 64 values of one shape, times their factors. */
SPARSED_API sparsed_error* sparsed_chain_sum(sparsed_chain* chain, const sparsed_value* terms,
                                             const double* factors, size_t count,
                                             sparsed_value* value);
/* Where a value goes. */
SPARSED_API sparsed_error* sparsed_chain_output(sparsed_chain* chain, sparsed_value value,
                                                const sparsed_dense* destination);
SPARSED_API sparsed_error* sparsed_chain_run(sparsed_chain* chain,
                                             const sparsed_call_options* options,
                                             sparsed_result* result, sparsed_call** call);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARSED_C_H_ */
