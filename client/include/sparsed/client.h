// The C++ client of sparsed.
//
//   auto client = sparsed::Client::Connect("127.0.0.1:7470");
//   auto graph = client->Upload("cora", csr);
//   auto result = graph->Spmm(sparsed::DenseView(b, n, k), sparsed::MutableDenseView(c, m, k));
//
// An operation exists twice: `X(...)` blocks; `XAsync(...)` returns a Call at once. (Only
// DenseMatrix::Info and Matrix::SpgemmCollect, which are made of others, just block.) All classes
// here are cheap handles and may be used from many threads. When the server is UNAVAILABLE, or says
// that its memory or a queue is full for the moment (RetryDelay), calls are tried again, a few
// times and within their deadline, if that does no harm: reads and products (not one that
// overwrites its own operand or is kept as a matrix) always; uploads, puts and new values while the
// server cannot have everything yet. Nothing else is done twice. Errors have google.rpc codes and a
// sentence that says what was wrong.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsed/call.h"
#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

class Chain;
class Connection;
class SharedBlock;

/// Of a RESOURCE_EXHAUSTED that waiting mends: how long to wait before the call is made again.
/// None: it fails again until somebody deletes something, or the server's limits change.
std::optional<std::chrono::milliseconds> RetryDelay(const absl::Status& status);

/// By which the server's log knows the call that failed; none where it never reached a server, or
/// an older one.
std::optional<std::string> RequestId(const absl::Status& status);

/// PEM files for TLS. It is used over TCP if `ca` or `certificate` is given.
struct TlsOptions {
  /// Authorities that may vouch for the server's certificate; "system": the machine's.
  std::string ca{};
  std::string certificate{};  ///< of the client, in the place of a token
  std::string key{};          ///< its private key; refused if others can read it
  std::string server_name{};  ///< that the server's certificate is for; empty: the address' host
};

/// Who calls is said by a token or a certificate; over a Unix socket the server knows the user.
/// Where neither `token` nor `token_file` is given, SPARSED_TOKEN and SPARSED_TOKEN_FILE count, and
/// in the place of `tls` SPARSED_TLS_CA, SPARSED_TLS_CERTIFICATE, SPARSED_TLS_KEY and
/// SPARSED_TLS_SERVER_NAME.
struct ClientOptions {
  /// How long Connect waits for an answer.
  std::chrono::milliseconds connect_timeout{10'000};
  /// After which a call ends with DEADLINE_EXCEEDED that was given no timeout of its own
  /// (CallOptions). None: it takes as long as it does.
  std::optional<std::chrono::nanoseconds> default_timeout{};
  /// How often a call that is safe to repeat is tried when the server is UNAVAILABLE or full for
  /// the moment; 1: once only.
  int max_attempts = 6;
  /// Pause before the second attempt; doubles for each one after.
  std::chrono::milliseconds initial_backoff{50};
  /// Bytes of one chunk; the server's own limit if that is less.
  int64_t max_chunk_bytes = int64_t{2} << 20;
  /// A server silent for so long is asked for a sign of life, and given up for lost after as long
  /// again: its calls fail, and memory lent to them comes back. (A frozen server at a Unix socket
  /// keeps that memory for as long as it lives.) A server takes offence at less than ten seconds.
  std::chrono::milliseconds keepalive{30'000};
  /// Whether SpMM, SDDMM and chains whose operands and results the server finds by itself (in
  /// shared memory, or held) go to a server on this machine through a ring in memory shared with
  /// it, and their replies come back through it. Where there is none, they go over the connection
  /// as ever. Whoever waits for such a call, or asks whether it is done, reads the ring.
  bool ring = false;
  /// For how long who waits for a product or chain, through a ring or not, looks for its end before
  /// it sleeps: a CPU is busy meanwhile, and the time to wake is saved. 0: it sleeps at once.
  std::chrono::microseconds ring_spin{0};
  /// Connections that the operands and results of a product or chain travel over if one of them has
  /// 4 MiB or more; at most 16. One stream is bound by one core at each end, so more help where
  /// both have cores to spare and the network (or none in between) is faster than that; where the
  /// cores are busy they help nothing. The first such request opens them and goes over one alone.
  /// What cannot be opened is done without, as at a server that knows only one. 0: one, or four
  /// over TLS, which takes a core at each end several times as long as the bytes alone.
  int streams = 0;
  /// Of products and chains, 0 to 7: the highest goes first of those of one's own that wait at the
  /// server. A call may say a higher one.
  uint32_t priority = 0;
  /// "HOST:PORT" of an HTTP proxy that connects to servers for its callers (CONNECT), where these
  /// cannot be reached from here: all connections go through it but those to Unix sockets and to
  /// what no_proxy names, also to nodes that a cluster redirects to, whose names it resolves. TLS
  /// goes through to the server. Empty: the environment's SPARSED_GATEWAY, or straight there.
  std::string gateway{};
  TlsOptions tls{};
  /// Goes over TLS, or to this machine, alone.
  std::string token{};
  /// A file whose first line is the token; refused if others can read it, read again when it
  /// changes.
  std::string token_file{};
  /// Called as each call or request ends that reached the server, with the method
  /// ("/sparsed.v1.Catalog/Upload") and the id by which the server's log knows it. From threads of
  /// gRPC's: it must be quick, and safe to call from several at once.
  std::function<void(const std::string& method, const std::string& request_id)> on_request{};
  /// Called before each pause after which a call is tried again, with the status that the server
  /// ended it with: RESOURCE_EXHAUSTED where a quota, its memory or a queue is full for the moment
  /// (RetryDelay), UNAVAILABLE where it does not answer. From threads of gRPC's, as above;
  /// a call that was cancelled may still be told of, even once its client is gone.
  std::function<void(const absl::Status& why, std::chrono::nanoseconds pause)> on_retry{};
};

struct CallOptions {
  /// After which the call ends with DEADLINE_EXCEEDED.
  std::optional<std::chrono::nanoseconds> timeout{};
  /// As ClientOptions has it; the higher of both counts.
  uint32_t priority = 0;
  /// The trace that the call belongs to, as W3C's Trace Context has it in the headers of these
  /// names: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01". Where it is empty, the
  /// environment's TRACEPARENT and TRACESTATE count. What is malformed is not sent.
  std::string traceparent{};
  std::string tracestate{};
};

struct UploadOptions {
  bool replace = false;          ///< a matrix of this name, if there is one
  bool sort = false;             ///< rows whose columns are not ascending
  bool sum_duplicates = false;   ///< implies sort
  bool values_are_ones = false;  ///< send no values
  /// The hash that MatrixInfo gave for this pattern: a pattern that the server has is not sent
  /// again.
  std::string pattern_hash{};
  /// Problem signatures to prepare for at once; the server's default without any.
  std::vector<ProblemSignature> expected{};
  /// For which nothing needs to use the matrix before the server deletes it, at most 366 days; 0:
  /// it stays.
  std::chrono::nanoseconds time_to_live{0};
  /// Cuts the rows into so many parts with as many nonzeros each, at most 1024, which different
  /// nodes of a cluster keep as matrices of their own, where no node has room for all; 1: it stays
  /// whole. With such a matrix there are SpMM, also transposed, and SDDMM (operands and results in
  /// the caller's memory; each shard gets the rows of B that it names, and no others), Download,
  /// Info, WaitReady, Rename, Share and Delete; the rest is FAILED_PRECONDITION. `pattern_hash` and
  /// `time_to_live` are for matrices that are whole.
  int shards = 1;
  /// On how many nodes of a cluster it is to be, each of its shards if it has some: 1 to 16, as
  /// many as there are where there are fewer; 0: as the matrix that it replaces, or as the nodes'
  /// --replicas says. A server by itself ignores it.
  int replicas = 0;
  /// In the place of equal parts: which shard each row belongs to, from 0, none of them empty. What
  /// METIS's gpmetis writes makes shards of a mesh or a graph name few rows of B outside their own.
  std::span<const int32_t> partition{};
  /// Called now and then with the bytes sent and the bytes in all.
  std::function<void(int64_t sent, int64_t total)> progress{};
};

struct PrepareOptions {
  /// Problem signatures to prepare for; without any, those that the matrix is or is being prepared
  /// for, or else the server's default.
  std::vector<ProblemSignature> expected{};
  /// Tune again: discard what was measured for these signatures and time every candidate anew.
  /// Otherwise signatures that have a plan are left alone.
  bool again = false;
  /// Run this transform pipeline and time its layout beside plain CSR for these signatures,
  /// whatever model or rules say; without any signature, for those it serves. The fastest is the
  /// plan, as usual.
  std::string pipeline{};
  /// Time this kernel alone on what `pipeline` makes; without one on plain CSR. Also one of SpGEMM,
  /// without a pipeline.
  std::string kernel{};
  /// Build and time every candidate that there is, also what model or rules leave out. Slow: for
  /// measurements that a rule or a model can learn from.
  bool explore = false;
};

struct MeasurementsOptions {
  /// Of all tenants' matrices and of patterns that no matrix has any more; operators alone may.
  bool all = false;
  bool density_maps = false;  ///< with the patterns' features
};

struct UpdateOptions {
  bool durable = false;     ///< on disk before the call returns
  uint64_t if_version = 0;  ///< only replace this version, otherwise ABORTED; 0: any
};

struct CopyOptions {
  bool replace = false;  ///< a matrix of the new name, if there is one
};

struct PutOptions {
  bool durable = false;  ///< on disk before the call returns
  /// Who it is for, a job or a person, where buffers are listed. Empty, or of the form of a
  /// name.
  std::string owner{};
  /// For how long the server keeps it though nothing uses it, at most 366 days; each request that
  /// reads or writes it, Read and Renew begin it anew. Without: as the server decides, a day unless
  /// it was told otherwise, and until it is deleted if it is durable.
  std::optional<std::chrono::nanoseconds> time_to_live{};
  /// Over the server's GPUs, if there are several: SpMM, and chains of SpMM, sums and reductions,
  /// then run on all of them, and results that stay there lie as the operand does.
  Distribution distribution = Distribution::kWhole;
  /// Distribution::kRows: of a matrix with as many rows; each GPU gets those with as many of its
  /// nonzeros. Empty: as many rows. Distribution::kAuto: the matrix that it is to be multiplied
  /// with, or whose transpose. Whatever the distribution: of a matrix in shards, the node of each
  /// shard gets the rows that the shard has, or, of an operand with as many rows as the matrix has
  /// columns where these differ, as many as each other; such a buffer is that matrix's alone.
  std::string rows_of{};
};

/// A dense matrix that stays on the server, by name: an operand, or the destination of a result.
class DenseMatrix {
 public:
  const std::string& name() const { return name_; }
  /// The matrix in shards whose nodes have its rows, if it is in shards; empty: none.
  const std::string& matrix() const { return matrix_; }

  absl::StatusOr<DenseInfo> Info(const CallOptions& options = {}) const;

  /// Copies it to `into`, whose shape and type must agree.
  absl::StatusOr<DenseInfo> Read(const MutableDenseView& into,
                                 const CallOptions& options = {}) const;
  Call<DenseInfo> ReadAsync(const MutableDenseView& into, const CallOptions& options = {}) const;

  /// Uses it and does nothing else: its time to live begins anew. For pauses that are longer.
  absl::StatusOr<DenseInfo> Renew(const CallOptions& options = {}) const;
  Call<DenseInfo> RenewAsync(const CallOptions& options = {}) const;

  /// Deletes it on the server.
  absl::Status Delete(const CallOptions& options = {}) const;
  Call<void> DeleteAsync(const CallOptions& options = {}) const;

 private:
  friend class Client;
  friend struct ShardBuffers;
  DenseMatrix(std::shared_ptr<Connection> connection, std::string name, std::string matrix)
      : connection_(std::move(connection)), name_(std::move(name)), matrix_(std::move(matrix)) {}

  std::shared_ptr<Connection> connection_;
  std::string name_, matrix_;
};

/// A dense operand: in the caller's memory, or a buffer of the server's.
using Operand = std::variant<DenseView, DenseMatrix>;
/// Where a dense result goes: to the caller's memory, or into a buffer of the server's.
using Destination = std::variant<MutableDenseView, DenseMatrix>;

/// Memory that a server on this machine maps, too (see SharedMatrix): for arrays of an upload, new
/// values, or what else is sent; the server takes its copy from there. Copies share it.
class SharedBytes {
 public:
  void* data() const { return data_; }  ///< of whole pages; zeros at first
  size_t size() const { return size_; }

 private:
  friend class Client;
  SharedBytes(std::shared_ptr<SharedBlock> block, void* data, size_t size)
      : block_(std::move(block)), data_(data), size_(size) {}

  std::shared_ptr<SharedBlock> block_;
  void* data_;
  size_t size_;
};

/// A dense matrix, row-major and without gaps, in memory that a server on this machine maps, too:
/// operands that calls of its Client read from it, and results that they write into it, are not
/// copied on their way, nor are parts of it that begin at a multiple of 64 bytes. With a server
/// elsewhere, or one that shares no memory (ServerInfo::local_socket), it is memory like any other.
/// Copies share it; a call under way keeps it. After a call that failed, any of its result may have
/// been overwritten.
class SharedMatrix {
 public:
  void* data() const { return bytes_.data(); }  ///< zeros at first
  ValueType type() const { return type_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  /// As calls take it.
  MutableDenseView View() const { return {data(), type_, rows_, cols_}; }
  DenseView ConstView() const { return {data(), type_, rows_, cols_}; }

 private:
  friend class Client;
  SharedMatrix(SharedBytes bytes, ValueType type, int64_t rows, int64_t cols)
      : bytes_(std::move(bytes)), type_(type), rows_(rows), cols_(cols) {}

  SharedBytes bytes_;
  ValueType type_;
  int64_t rows_;
  int64_t cols_;
};

struct ExplainOptions {
  /// Width of SpMM's operand; 0: that of most of the last products, 128 where there were none.
  int64_t k = 0;
  std::string device{};     ///< "cpu" or "cuda:0"; empty: the GPU if the server uses one
  int64_t cache_bytes = 0;  ///< of the last level cache to assume; 0: the device's
};

struct SpmmOptions {
  bool transpose = false;
  double alpha = 1;
  double beta = 0;
  /// Added beta times; without it, what the destination holds.
  std::optional<Operand> accumulate{};
  /// Factors may be rounded to TF32 (10 bits of fraction; sums stay f32) on devices that gain by
  /// it. Ignored elsewhere, and for matrices of other types than f32.
  bool allow_tf32 = false;
  /// S's for this call alone, in the place of the matrix's: nnz x 1 in the order of the upload, as
  /// for UpdateValues; a buffer has no gaps. The result of an SDDMM of this matrix is such a one.
  std::optional<Operand> values{};
};

struct SddmmOptions {
  bool unscaled = false;  ///< do not multiply by S's values
  /// As SpmmOptions::values; it may be the buffer that the result goes to. Refused with
  /// `unscaled`.
  std::optional<Operand> values{};
};
struct SpgemmOptions {
  bool count_first = false;     ///< know the nonzeros before the first block; costs a symbolic pass
  bool transpose_left = false;  ///< multiply S^T
  bool transpose_right = false;  ///< ... by the right matrix's transpose
  Semiring semiring = Semiring::kSumProduct;
  /// Name of a matrix of the result's shape, if not empty: only its positions are computed. Its
  /// values and type do not matter.
  std::string mask = {};
};
struct SpgemmKeepOptions {
  bool replace = false;       ///< a matrix of the new name, if there is one
  SpgemmOptions spgemm = {};  ///< of the product
};

/// Gets the next rows of a result. An error ends the call with it.
using RowBlockCallback = std::function<absl::Status(const RowBlock&)>;
using ProgressCallback = std::function<void(const Progress&)>;

/// Gets requests that ended; `left_out` of them are missing, as this was too slow.
using RequestsCallback =
    std::function<void(const std::vector<SlowRequest>& requests, int64_t left_out)>;

struct SnapshotBytes {
  std::string_view data;
  int64_t expected = 0;  ///< of the whole file, about
};
/// Gets the next bytes of a snapshot. An error ends the call with it.
using SnapshotCallback = std::function<absl::Status(const SnapshotBytes&)>;

/// A matrix on the server, by name.
class Matrix {
 public:
  const std::string& name() const { return name_; }
  /// In a cluster: the address of another node that its calls go to, as one of them was redirected
  /// there. None: they go to the server that the client was made for.
  std::optional<std::string> RedirectedTo() const;

  /// What the server knows of it.
  absl::StatusOr<MatrixInfo> Info(const CallOptions& options = {}) const;
  Call<MatrixInfo> InfoAsync(const CallOptions& options = {}) const;
  /// What the preparation computed of its pattern, before anything else; empty until then.
  absl::StatusOr<MatrixFeatures> Features(const CallOptions& options = {}) const;
  Call<MatrixFeatures> FeaturesAsync(const CallOptions& options = {}) const;

  /// What limits products with it, and what another order of its rows could gain. Seconds, if it is
  /// large.
  absl::StatusOr<Explanation> Explain(const ExplainOptions& explain = {},
                                      const CallOptions& options = {}) const;
  Call<Explanation> ExplainAsync(const ExplainOptions& explain = {},
                                 const CallOptions& options = {}) const;

  /// Has it prepared (tuned) for further problem signatures, or once more. Returns at once:
  /// WaitReady and Watch follow the preparation, and the present plans serve until new ones take
  /// their place.
  absl::Status Prepare(const PrepareOptions& prepare = {}, const CallOptions& options = {}) const;
  Call<void> PrepareAsync(const PrepareOptions& prepare = {},
                          const CallOptions& options = {}) const;

  /// Follows the preparation until it is READY or FAILED (see MatrixInfo::state,
  /// MatrixInfo::detail).
  absl::Status WaitReady(ProgressCallback progress = nullptr,
                         const CallOptions& options = {}) const;
  Call<void> WaitReadyAsync(ProgressCallback progress = nullptr,
                            const CallOptions& options = {}) const;

  /// Follows the preparation until the call is cancelled or the matrix is deleted.
  absl::Status Watch(ProgressCallback progress, const CallOptions& options = {}) const;
  Call<void> WatchAsync(ProgressCallback progress, const CallOptions& options = {}) const;

  /// Replaces the values, nnz of them in the order of the upload. Returns the new version.
  absl::StatusOr<uint64_t> UpdateValues(ConstValues values, const UpdateOptions& update = {},
                                        const CallOptions& options = {}) const;
  Call<uint64_t> UpdateValuesAsync(ConstValues values, const UpdateOptions& update = {},
                                   const CallOptions& options = {}) const;

  /// The whole matrix.
  absl::StatusOr<CsrMatrix> Download(const CallOptions& options = {}) const;
  Call<CsrMatrix> DownloadAsync(const CallOptions& options = {}) const;

  /// Deletes it on the server.
  absl::Status Delete(const CallOptions& options = {}) const;
  Call<void> DeleteAsync(const CallOptions& options = {}) const;

  /// Gives it another name on the server, under which it is returned; this one finds nothing any
  /// more. ALREADY_EXISTS if there is a matrix of that name.
  absl::StatusOr<Matrix> Rename(const std::string& new_name, const CallOptions& options = {}) const;
  Call<MatrixInfo> RenameAsync(const std::string& new_name, const CallOptions& options = {}) const;
  /// Another matrix with the values that it has now; they have the pattern, layouts and plans in
  /// common.
  absl::StatusOr<Matrix> Copy(const std::string& new_name, const CopyOptions& copy = {},
                              const CallOptions& options = {}) const;
  Call<MatrixInfo> CopyAsync(const std::string& new_name, const CopyOptions& copy = {},
                             const CallOptions& options = {}) const;

  /// Lets other tenants use it, who call it "TENANT~NAME": `share.with` is one of them, or "*" for
  /// all. Stays with the name until that is deleted. Returns whom it is shared with now.
  absl::StatusOr<std::vector<MatrixShare>> Share(const MatrixShare& share,
                                                 const CallOptions& options = {}) const;
  Call<std::vector<MatrixShare>> ShareAsync(const MatrixShare& share,
                                            const CallOptions& options = {}) const;
  /// Takes that back; what they began goes on.
  absl::StatusOr<std::vector<MatrixShare>> Unshare(const std::string& with,
                                                   const CallOptions& options = {}) const;
  Call<std::vector<MatrixShare>> UnshareAsync(const std::string& with,
                                              const CallOptions& options = {}) const;

  /// c[M,K] = alpha * S * b[N,K] + beta * accumulate[M,K]; with S^T, M and N swap places.
  absl::StatusOr<ComputeResult> Spmm(const Operand& b, const Destination& c,
                                     const SpmmOptions& spmm = {},
                                     const CallOptions& options = {}) const;
  Call<ComputeResult> SpmmAsync(const Operand& b, const Destination& c,
                                const SpmmOptions& spmm = {},
                                const CallOptions& options = {}) const;

  /// values = S .* (a[M,K] * b[N,K]^T), nnz x 1, in the order of the upload.
  absl::StatusOr<ComputeResult> Sddmm(const Operand& a, const Operand& b, const Destination& values,
                                      const SddmmOptions& sddmm = {},
                                      const CallOptions& options = {}) const;
  Call<ComputeResult> SddmmAsync(const Operand& a, const Operand& b, const Destination& values,
                                 const SddmmOptions& sddmm = {},
                                 const CallOptions& options = {}) const;

  /// op(S) * op(right) (both f32 or f64), handed to `on_block` in ascending row blocks, so that the
  /// result may be larger than memory. The server waits while `on_block` is busy.
  absl::StatusOr<SpgemmResult> Spgemm(const Matrix& right, RowBlockCallback on_block,
                                      const SpgemmOptions& spgemm = {},
                                      const CallOptions& options = {}) const;
  Call<SpgemmResult> SpgemmAsync(const Matrix& right, RowBlockCallback on_block,
                                 const SpgemmOptions& spgemm = {},
                                 const CallOptions& options = {}) const;

  /// op(S) * op(right) in memory. `result`, if given, gets how it was done.
  absl::StatusOr<CsrMatrix> SpgemmCollect(const Matrix& right, SpgemmResult* result = nullptr,
                                          const CallOptions& options = {}) const;
  absl::StatusOr<CsrMatrix> SpgemmCollect(const Matrix& right, const SpgemmOptions& spgemm,
                                          SpgemmResult* result = nullptr,
                                          const CallOptions& options = {}) const;

  /// op(S) * op(right), kept on the server as a matrix of that name (see Client::MatrixNamed).
  absl::StatusOr<SpgemmResult> SpgemmKeep(const Matrix& right, const std::string& name,
                                          const SpgemmKeepOptions& keep = {},
                                          const CallOptions& options = {}) const;
  Call<SpgemmResult> SpgemmKeepAsync(const Matrix& right, const std::string& name,
                                     const SpgemmKeepOptions& keep = {},
                                     const CallOptions& options = {}) const;

 private:
  friend class Client;
  Matrix(std::shared_ptr<Connection> connection, std::string name)
      : connection_(std::move(connection)), name_(std::move(name)) {}

  std::shared_ptr<Connection> connection_;
  std::string name_;
};

/// A connection to a server. Copies share it.
class Client {
 public:
  /// `address` is "host:port" or "unix:/path". UNAVAILABLE if no server answers there.
  static absl::StatusOr<Client> Connect(const std::string& address,
                                        const ClientOptions& options = {});

  /// Stores a matrix. Usable from the moment that the call returns, durable unless the server keeps
  /// everything in memory.
  absl::StatusOr<Matrix> Upload(const std::string& name, const CsrView& matrix,
                                const UploadOptions& upload = {},
                                const CallOptions& options = {}) const;
  Call<Matrix> UploadAsync(const std::string& name, const CsrView& matrix,
                           const UploadOptions& upload = {}, const CallOptions& options = {}) const;

  /// A handle; asks the server nothing.
  Matrix MatrixNamed(std::string name) const { return Matrix(connection_, std::move(name)); }

  /// Memory for a dense matrix that calls of this client need not copy. Every page of it is taken
  /// at once. INVALID_ARGUMENT for sizes that make no sense, RESOURCE_EXHAUSTED without memory.
  absl::StatusOr<SharedMatrix> AllocateShared(int64_t rows, int64_t cols,
                                              ValueType type = ValueType::kF32) const;
  /// The same for any array, `bytes` > 0.
  absl::StatusOr<SharedBytes> AllocateSharedBytes(size_t bytes) const;

  /// Matrices whose names begin with `prefix`, by name. In a cluster other nodes are asked for what
  /// they alone know of theirs, for 3 s at most: of those of a node that does not answer the state
  /// is unknown.
  absl::StatusOr<std::vector<MatrixInfo>> ListMatrices(const std::string& prefix = "",
                                                       const CallOptions& options = {}) const;
  Call<std::vector<MatrixInfo>> ListMatricesAsync(const std::string& prefix = "",
                                                  const CallOptions& options = {}) const;

  /// Those that other tenants share with the caller's; their names begin with the owner's,
  /// "TENANT~NAME".
  absl::StatusOr<std::vector<MatrixInfo>> ListShared(const std::string& prefix = "",
                                                     const CallOptions& options = {}) const;
  Call<std::vector<MatrixInfo>> ListSharedAsync(const std::string& prefix = "",
                                                const CallOptions& options = {}) const;

  /// Those of all tenants, each called "TENANT~NAME", by tenant, then by name: for operators,
  /// PERMISSION_DENIED for others.
  absl::StatusOr<std::vector<MatrixInfo>> ListAll(const std::string& prefix = "",
                                                  const CallOptions& options = {}) const;
  Call<std::vector<MatrixInfo>> ListAllAsync(const std::string& prefix = "",
                                             const CallOptions& options = {}) const;

  /// Everything that was measured on the pattern of a matrix; of all matrices, if `name` is empty.
  absl::StatusOr<std::vector<PatternMeasurements>> ListMeasurements(
      const std::string& name = "", const MeasurementsOptions& which = {},
      const CallOptions& options = {}) const;
  Call<std::vector<PatternMeasurements>> ListMeasurementsAsync(
      const std::string& name = "", const MeasurementsOptions& which = {},
      const CallOptions& options = {}) const;

  /// Stores a dense matrix, replacing one of the same name.
  absl::StatusOr<DenseMatrix> PutDense(const std::string& name, const DenseView& matrix,
                                       const PutOptions& put = {},
                                       const CallOptions& options = {}) const;
  Call<DenseMatrix> PutDenseAsync(const std::string& name, const DenseView& matrix,
                                  const PutOptions& put = {},
                                  const CallOptions& options = {}) const;

  /// Makes a dense matrix of zeros, replacing one of the same name.
  absl::StatusOr<DenseMatrix> PutZeros(const std::string& name, ValueType type, int64_t rows,
                                       int64_t cols, const PutOptions& put = {},
                                       const CallOptions& options = {}) const;
  Call<DenseMatrix> PutZerosAsync(const std::string& name, ValueType type, int64_t rows,
                                  int64_t cols, const PutOptions& put = {},
                                  const CallOptions& options = {}) const;

  /// Runs it as one request (see sparsed/chain.h). One that failed may have written some results.
  absl::StatusOr<ComputeResult> Run(const Chain& chain, const CallOptions& options = {}) const;
  Call<ComputeResult> RunAsync(const Chain& chain, const CallOptions& options = {}) const;

  /// A handle; asks the server nothing. `matrix`: as PutOptions::rows_of said, where that may be
  /// in shards.
  DenseMatrix DenseNamed(std::string name, std::string matrix = "") const {
    return DenseMatrix(connection_, std::move(name), std::move(matrix));
  }

  /// Dense matrices whose names begin with `prefix`, by name.
  absl::StatusOr<std::vector<DenseInfo>> ListDense(const std::string& prefix = "",
                                                   const CallOptions& options = {}) const;
  Call<std::vector<DenseInfo>> ListDenseAsync(const std::string& prefix = "",
                                              const CallOptions& options = {}) const;
  /// Those of all tenants, each called TENANT~NAME, which begins with `prefix`, by tenant and then
  /// by name. PERMISSION_DENIED for those who are no operators.
  absl::StatusOr<std::vector<DenseInfo>> ListAllDense(const std::string& prefix = "",
                                                      const CallOptions& options = {}) const;
  Call<std::vector<DenseInfo>> ListAllDenseAsync(const std::string& prefix = "",
                                                 const CallOptions& options = {}) const;

  /// What the server found and uses.
  absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions& options = {}) const;
  Call<ServerInfo> GetServerInfoAsync(const CallOptions& options = {}) const;
  /// Counters since its start.
  /// The nodes of the cluster; FAILED_PRECONDITION from a server by itself. For operators.
  absl::StatusOr<ClusterInfo> ListNodes(const CallOptions& options = {}) const;
  Call<ClusterInfo> ListNodesAsync(const CallOptions& options = {}) const;
  /// Has a node give its matrices to others, or (`undo`) get some again; how many it owns now.
  /// NOT_FOUND, UNAVAILABLE. For operators.
  absl::StatusOr<int64_t> DrainNode(const std::string& node, bool undo = false,
                                    const CallOptions& options = {}) const;
  Call<int64_t> DrainNodeAsync(const std::string& node, bool undo = false,
                               const CallOptions& options = {}) const;
  /// Takes a node that is gone for good out of all records. FAILED_PRECONDITION while it is there,
  /// or if it alone has matrices, unless these are to be lost; NOT_FOUND. For operators.
  absl::StatusOr<ForgottenNode> ForgetNode(const std::string& node, bool lose_matrices = false,
                                           const CallOptions& options = {}) const;
  Call<ForgottenNode> ForgetNodeAsync(const std::string& node, bool lose_matrices = false,
                                      const CallOptions& options = {}) const;

  absl::StatusOr<Stats> GetStats(const CallOptions& options = {}) const;
  Call<Stats> GetStatsAsync(const CallOptions& options = {}) const;
  /// What the caller's tenant uses, and what it may; of `all` tenants for operators.
  absl::StatusOr<std::vector<TenantInfo>> ListTenants(bool all = false,
                                                      const CallOptions& options = {}) const;
  Call<std::vector<TenantInfo>> ListTenantsAsync(bool all = false,
                                                 const CallOptions& options = {}) const;

  /// The slowest requests of the last hour of the caller's tenant, the slowest first.
  absl::StatusOr<SlowList> ListSlow(const SlowOptions& slow = {},
                                    const CallOptions& options = {}) const;
  Call<SlowList> ListSlowAsync(const SlowOptions& slow = {}, const CallOptions& options = {}) const;

  /// Requests of the caller's tenant as they end, of `all` tenants for operators, until the call is
  /// cancelled. The first callback comes at once, with none.
  absl::Status WatchRequests(bool all, RequestsCallback on_requests,
                             const CallOptions& options = {}) const;
  Call<void> WatchRequestsAsync(bool all, RequestsCallback on_requests,
                                const CallOptions& options = {}) const;

  /// All that the server has on disk, of all tenants, as it is at one moment: the bytes of a file
  /// that `sparsectl snapshot` verifies and restores. For operators. The server waits while
  /// `on_bytes` is busy. They are the whole file only if this returns OK. FAILED_PRECONDITION if
  /// the server keeps nothing on disk, RESOURCE_EXHAUSTED while another snapshot is being taken.
  absl::Status SaveSnapshot(SnapshotCallback on_bytes, const CallOptions& options = {}) const;
  Call<void> SaveSnapshotAsync(SnapshotCallback on_bytes, const CallOptions& options = {}) const;

  /// Has the server measure the rates and times of a device, "cpu" or "cuda" (empty: of GPUs, if
  /// any serves, else of the CPU), which its decisions take from then on. Takes seconds. For
  /// operators. FAILED_PRECONDITION while preparations are under way, or where no such device
  /// serves; ABORTED if others used the device meanwhile; RESOURCE_EXHAUSTED without memory for it.
  absl::StatusOr<DeviceInfo> Calibrate(const std::string& device = "",
                                       const CallOptions& options = {}) const;
  Call<DeviceInfo> CalibrateAsync(const std::string& device = "",
                                  const CallOptions& options = {}) const;
  /// The models that the server has, by name. For operators, as what follows.
  absl::StatusOr<std::vector<ModelInfo>> ListModels(const CallOptions& options = {}) const;
  Call<std::vector<ModelInfo>> ListModelsAsync(const CallOptions& options = {}) const;
  /// One of them, with its manifest. NOT_FOUND.
  absl::StatusOr<ModelInfo> GetModel(const std::string& name,
                                     const CallOptions& options = {}) const;
  Call<ModelInfo> GetModelAsync(const std::string& name, const CallOptions& options = {}) const;
  /// Has the server keep a model, under the `name` that its manifest has; with `replace` in the
  /// place of one that it keeps. INVALID_ARGUMENT if it is damaged or too large,
  /// FAILED_PRECONDITION if it is for other kernels, or the server keeps nothing on disk,
  /// UNIMPLEMENTED if the server has no XGBoost, ALREADY_EXISTS, RESOURCE_EXHAUSTED.
  absl::StatusOr<ModelInfo> PutModel(const std::string& name, std::vector<ModelFile> files,
                                     bool replace = false, const CallOptions& options = {}) const;
  Call<ModelInfo> PutModelAsync(const std::string& name, std::vector<ModelFile> files,
                                bool replace = false, const CallOptions& options = {}) const;
  /// Has a model choose for its kind of device from now on, or, with `watch`, only be watched.
  /// "rules": none chooses; "none": none is watched, for the kind `device`, "cpu" or "cuda"
  /// (empty: the only one that serves). Returns that kind. NOT_FOUND, FAILED_PRECONDITION.
  absl::StatusOr<std::string> ActivateModel(const std::string& name, const std::string& device = "",
                                            bool watch = false,
                                            const CallOptions& options = {}) const;
  Call<std::string> ActivateModelAsync(const std::string& name, const std::string& device = "",
                                       bool watch = false, const CallOptions& options = {}) const;
  /// Has choose what did so before; returns that: a model, or "rules". FAILED_PRECONDITION if
  /// nothing did.
  absl::StatusOr<std::string> RollbackModel(const std::string& device = "",
                                            const CallOptions& options = {}) const;
  Call<std::string> RollbackModelAsync(const std::string& device = "",
                                       const CallOptions& options = {}) const;
  /// NOT_FOUND; FAILED_PRECONDITION if it is installed, used or watched.
  absl::Status RemoveModel(const std::string& name, const CallOptions& options = {}) const;
  Call<void> RemoveModelAsync(const std::string& name, const CallOptions& options = {}) const;

 private:
  friend class AttachedMatrix;
  friend class GpuMemory;
  explicit Client(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  std::shared_ptr<Connection> connection_;
};

}  // namespace client
}  // namespace sparsed
