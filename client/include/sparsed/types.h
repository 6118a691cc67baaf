// What goes in and out of calls: sparse and dense arrays, descriptions, timings.
//
// Symbols: `S` is sparse, M x N with nnz nonzeros; dense matrices are row-major with a leading
// dimension (elements between the beginnings of two rows); K is their width.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "sparsed/half.h"

namespace sparsed {
inline namespace client {

/// Type of a matrix's values and of the dense matrices that it meets. Products of the 16-bit types
/// are summed in f32 and rounded once.
enum class ValueType : uint8_t {
  kF32,
  kF64,
  kF16,
  kBF16,
  kI64,  ///< of results that say which nonzeros they are of (Chain::Best), and of nothing else
};

/// "f32", "f64", "f16", "bf16", "i64".
const char* Name(ValueType type);

/// Values in the caller's memory. The alternatives are in the order of ValueType, without i64.
using ConstValues = std::variant<std::span<const float>, std::span<const double>,
                                 std::span<const Float16>, std::span<const BFloat16>>;
ValueType TypeOf(const ConstValues& values);
int64_t Length(const ConstValues& values);

/// Values of their own. The alternatives are in the order of ValueType, without i64.
using Values = std::variant<std::vector<float>, std::vector<double>, std::vector<Float16>,
                            std::vector<BFloat16>>;
/// `length` zeros of the type; of i64, which values never are, of f32.
Values ZeroValues(ValueType type, size_t length = 0);

/// A row-major dense matrix in the caller's memory, which the call does not change.
struct DenseView {
  DenseView(const float* data, int64_t rows, int64_t cols, int64_t leading_dimension = 0)
      : DenseView(data, ValueType::kF32, rows, cols, leading_dimension) {}
  DenseView(const double* data, int64_t rows, int64_t cols, int64_t leading_dimension = 0)
      : DenseView(data, ValueType::kF64, rows, cols, leading_dimension) {}
  DenseView(const Float16* data, int64_t rows, int64_t cols, int64_t leading_dimension = 0)
      : DenseView(data, ValueType::kF16, rows, cols, leading_dimension) {}
  DenseView(const BFloat16* data, int64_t rows, int64_t cols, int64_t leading_dimension = 0)
      : DenseView(data, ValueType::kBF16, rows, cols, leading_dimension) {}
  /// A leading dimension of 0 means `cols`.
  DenseView(const void* data, ValueType type, int64_t rows, int64_t cols,
            int64_t leading_dimension = 0)
      : data(data), type(type), rows(rows), cols(cols), leading_dimension(leading_dimension) {}

  const void* data;
  ValueType type;
  int64_t rows;
  int64_t cols;
  int64_t leading_dimension;
};

/// A row-major dense matrix in the caller's memory that receives a result. What lies between `cols`
/// and the leading dimension is left alone.
struct MutableDenseView {
  MutableDenseView(float* data, int64_t rows, int64_t cols, int64_t leading_dimension = 0)
      : MutableDenseView(data, ValueType::kF32, rows, cols, leading_dimension) {}
  MutableDenseView(double* data, int64_t rows, int64_t cols, int64_t leading_dimension = 0)
      : MutableDenseView(data, ValueType::kF64, rows, cols, leading_dimension) {}
  MutableDenseView(Float16* data, int64_t rows, int64_t cols, int64_t leading_dimension = 0)
      : MutableDenseView(data, ValueType::kF16, rows, cols, leading_dimension) {}
  MutableDenseView(BFloat16* data, int64_t rows, int64_t cols, int64_t leading_dimension = 0)
      : MutableDenseView(data, ValueType::kBF16, rows, cols, leading_dimension) {}
  MutableDenseView(int64_t* data, int64_t rows, int64_t cols, int64_t leading_dimension = 0)
      : MutableDenseView(data, ValueType::kI64, rows, cols, leading_dimension) {}
  /// One column: the values of an SDDMM.
  explicit MutableDenseView(std::span<float> column)
      : MutableDenseView(column.data(), static_cast<int64_t>(column.size()), 1) {}
  explicit MutableDenseView(std::span<double> column)
      : MutableDenseView(column.data(), static_cast<int64_t>(column.size()), 1) {}
  explicit MutableDenseView(std::span<Float16> column)
      : MutableDenseView(column.data(), static_cast<int64_t>(column.size()), 1) {}
  explicit MutableDenseView(std::span<BFloat16> column)
      : MutableDenseView(column.data(), static_cast<int64_t>(column.size()), 1) {}
  /// A leading dimension of 0 means `cols`.
  MutableDenseView(void* data, ValueType type, int64_t rows, int64_t cols,
                   int64_t leading_dimension = 0)
      : data(data), type(type), rows(rows), cols(cols), leading_dimension(leading_dimension) {}

  void* data;
  ValueType type;
  int64_t rows;
  int64_t cols;
  int64_t leading_dimension;
};

/// A sparse matrix in the caller's memory, compressed by rows.
struct CsrView {
  int64_t rows = 0;  ///< M
  int64_t cols = 0;  ///< N
  /// rows + 1 elements, from 0 to nnz, never decreasing.
  std::variant<std::span<const int32_t>, std::span<const int64_t>> row_offsets;
  /// nnz elements in [0, cols).
  std::span<const int32_t> column_indices;
  /// nnz elements; ignored with UploadOptions::values_are_ones, except for their type.
  ConstValues values;
};

/// A sparse matrix of its own, in canonical CSR: ascending columns in each row, no duplicates.
struct CsrMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<int64_t> row_offsets;
  std::vector<int32_t> column_indices;
  Values values;

  int64_t nnz() const { return static_cast<int64_t>(column_indices.size()); }
  ValueType type() const { return static_cast<ValueType>(values.index()); }
  CsrView View() const;
};

/// Rows of a sparse result, in canonical CSR. The spans live as long as the callback that gets
/// them.
struct RowBlock {
  int64_t result_rows = 0;
  int64_t result_cols = 0;
  int64_t result_nnz = -1;  ///< -1 if not known yet

  int64_t row_begin = 0;
  int64_t rows = 0;  ///< >= 1
  /// rows + 1 elements, counted from the beginning of the whole result.
  std::span<const int64_t> row_offsets;
  /// row_offsets.back() - row_offsets.front() elements.
  std::span<const int32_t> column_indices;
  ConstValues values;
};

enum class Operation : uint8_t { kSpmm = 1, kSddmm = 2, kSpgemm = 3 };
/// "spmm", "sddmm", "spgemm".
const char* Name(Operation operation);

/// What SpGEMM multiplies by and sums with. The result has an entry where there are products,
/// whatever their values: zeros that are stored count as any other entry.
enum class Semiring : uint8_t {
  kSumProduct = 1,  ///< the sum of the products
  kBoolean = 2,     ///< every entry is true, and so is every one of the result, as 1
  kMinPlus = 3,     ///< the least sum of a pair; NaN only where all sums are
  kPlusPair = 4,    ///< how many pairs there are; in f32 exact up to 2^24
};
/// "sum-product", "boolean", "min-plus", "plus-pair".
const char* Name(Semiring semiring);

/// A problem signature: what to prepare (tune) a matrix for.
struct ProblemSignature {
  Operation operation = Operation::kSpmm;
  bool transposed = false;  ///< SpMM with S^T
  int64_t k = 0;            ///< K, columns of the dense operand; 0 for SpGEMM
  bool allow_tf32 = false;  ///< SpMM with SpmmOptions::allow_tf32
};

/// Where a matrix's preparation stands. A matrix can be used in all of these states.
enum class MatrixState : uint8_t { kUnknown, kQueued, kPreparing, kReady, kFailed };
/// "queued", "preparing", "ready", "failed", "unknown".
const char* Name(MatrixState state);

struct LayoutInfo {
  std::string kind;
  std::string pipeline;  ///< the transform pipeline that made it
  int64_t bytes = 0;     ///< values included
  double build_seconds = 0;
};

/// Trials of one problem signature while the machine did other work: plain CSR, which is timed
/// beside each candidate, took so many milliseconds in one and so many in another.
struct BusyTrials {
  double least_baseline_ms = 0, most_baseline_ms = 0;
};

struct PlanInfo {
  ProblemSignature signature;
  std::string pipeline;  ///< the transform pipeline of its layout
  std::string kernel;
  std::string device;
  double baseline_ms = 0;  ///< the baseline, plain CSR; 0 if not tried
  double plan_ms = 0;      ///< what this plan took; 0 if not tried
  std::string reason;
  std::chrono::system_clock::time_point since{};  ///< when requests began to use it; 0: not known
  double requests_per_second = 0;                 ///< that it served in the last minutes
  bool in_use = false;  ///< of the matrix's plans, it serves most requests of late, or the last one
  std::optional<BusyTrials> busy_trials{};  ///< they differ by more than the plan gains
  std::string right_pattern_hash{};         ///< of a sparse product
  bool transpose_left = false, transpose_right = false;
  /// Of a sparse product: what both factors are read from, "csr * csr", "csr * dia".
  std::string factors{};
};

struct Measurement {
  ProblemSignature signature;
  std::string pipeline;
  std::string kernel;
  std::string device;
  double median_ms = 0;
  double gflops = 0;
  int32_t runs = 0;
  int64_t k = 0;  ///< K that was timed: the signature's, or less for want of memory
  /// Share of the memory roofline: `roofline_ms` over the median, 0 if it is not known; which
  /// `roof` may say is not the one.
  double roofline_share = 0;
  double roofline_ms = 0;     ///< of the bytes that must be moved, at the rate of the memory
  double baseline_ms = 0;     ///< the baseline: plain CSR, turn by turn with this; 0 if not known
  double preparation_ms = 0;  ///< what building the layout took
  ValueType type = ValueType::kF32;
  std::string model;  ///< of the processor or the card that it was timed on; empty if not known
  std::string roof;   ///< "memory", "cache", or empty: what bounds it
  /// Stopped early, being hopelessly slow: the median is that of one or two runs.
  bool censored = false;
  std::string right_pattern_hash{};  ///< of a sparse product
  bool transpose_left = false, transpose_right = false;
  std::string factors{};  ///< as PlanInfo's
};

/// What became of a transform pipeline for a problem signature.
struct Decision {
  ProblemSignature signature;
  /// Empty: it is about the signature. Of a sparse product, what its factors are read from and the
  /// kernel: "csr * csr / cpu.csr.hash", "csr * dia / cpu.dia.diagonals".
  std::string pipeline;
  bool tried = false;
  std::string reason;                ///< why, or why not
  std::string right_pattern_hash{};  ///< of a sparse product
  bool transpose_left = false, transpose_right = false;
  std::string factors{};  ///< of a sparse product: the pipeline without the other pattern's hash
};

/// What other tenants may do with a matrix.
struct MatrixShare {
  std::string with;    ///< a tenant, or "*": all of them
  bool write = false;  ///< also replace its values and have it prepared; else read and compute
};

/// Rows of a matrix, as a matrix of their own on nodes of a cluster.
struct ShardInfo {
  std::string matrix;       ///< their name: rows x cols
  std::string columns;      ///< the name of a matrix that says which columns of the whole it has
  std::string row_numbers;  ///< of one that says which rows they are; empty: consecutive ones
  int64_t first_row = 0;    ///< of consecutive ones
  int64_t rows = 0;
  int64_t cols = 0;  ///< columns of the whole that their nonzeros name, and perhaps others
  int64_t nnz = 0;
  std::vector<std::string> nodes;  ///< that have them, the owner first
};

struct MatrixInfo {
  std::string name;  ///< of another tenant's "TENANT~NAME"
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t nnz = 0;
  ValueType type = ValueType::kF32;
  std::string pattern_hash;  ///< as the server computed it
  uint64_t version = 0;      ///< of the values, from 1
  MatrixState state = MatrixState::kUnknown;
  std::string detail;  ///< what plans and decisions do not say: what failed; usually empty
  std::vector<LayoutInfo> layouts;
  std::vector<PlanInfo> plans;
  std::vector<Measurement> measurements;
  double preparation_seconds = 0;
  std::chrono::system_clock::time_point created;
  bool durable = false;   ///< whether this version would survive a restart
  int64_t csr_bytes = 0;  ///< of the canonical CSR, values included
  std::vector<Decision> decisions;
  std::string owner;  ///< the tenant that it belongs to
  /// After which it is deleted unless something uses it; 0: it stays.
  std::chrono::nanoseconds time_to_live{0};
  std::chrono::nanoseconds idle{0};  ///< for which nothing used it, if it has a time to live
  std::vector<MatrixShare> shares;   ///< whom its owner shares it with; told to the owner alone
  std::vector<std::string> nodes;    ///< of a cluster, that have it, its owner first
  int copies_missing = 0;  ///< in a cluster: nodes fewer than `replicas` that have it and are there
  std::vector<ShardInfo> shards;  ///< of a matrix in shards (UploadOptions::shards); else empty
  std::vector<std::string> nodes_gone;  ///< those of `nodes` that are not there
  int replicas = 0;  ///< in a cluster: nodes that are to have it; 0: a server by itself
};

/// A number that a pattern is judged by.
struct Feature {
  std::string name;
  std::string source;   ///< the paper and table that define it
  std::string meaning;  ///< with its unit
  double value = 0;
};

/// Neighbouring nonzeros of a row whose columns are so far apart.
struct DistanceBin {
  int64_t least = 0;
  int64_t most = 0;
  int64_t count = 0;
};

/// What the preparation found out about a pattern.
struct MatrixFeatures {
  static constexpr int kDensityMapSide = 128;

  std::vector<Feature> values;         ///< those of one source follow each other
  std::vector<DistanceBin> distances;  ///< ascending
  /// Nonzeros in each tile of a kDensityMapSide x kDensityMapSide grid over the matrix, row-major.
  std::vector<int32_t> density_map;

  /// They are not computed yet.
  bool empty() const { return values.empty(); }
};

/// Everything that was measured on a pattern, with values of any type.
struct PatternMeasurements {
  std::string pattern_hash;
  MatrixFeatures features;  ///< empty if they are not computed
  std::vector<Measurement> measurements;
  bool past = false;  ///< no matrix has the pattern any more
};

/// Bytes that a product moves between memory and the last level cache, by model.
struct Movement {
  double flops = 0;            ///< two a product
  double footprint_bytes = 0;  ///< lower bound: every operand and the result once
  /// Upper bound on the best schedule: consecutive rows in parts whose footprint fits the cache.
  double partition_bytes = 0;
  double moved_bytes = 0;  ///< by a row-wise kernel
  /// Of footprint_bytes and moved_bytes: the operand that rows are gathered from.
  double operand_footprint_bytes = 0, operand_moved_bytes = 0;
  double result_nnz = 0;   ///< nonzeros of the result (SpGEMM)
  double largest_row = 0;  ///< the part in [0, 1] of all products that one row has
  bool estimate = false;   ///< rows were sampled
};

/// How a buffer lies on the GPUs of a server that has several.
enum class Distribution : uint8_t {
  kWhole,    ///< on the one that computed it; copied to others that use it
  kColumns,  ///< each has as many of its columns, and computes with them
  kRows,     ///< each has rows of it, and computes the same rows of products
  kAuto,     ///< as the server finds best for products with a matrix: PutOptions alone
};

/// "whole", "columns", "rows" or "auto".
const char* Name(Distribution distribution);

/// How operand and result of a product, which the server holds, could lie on its GPUs.
struct ExplainedDistribution {
  Distribution distribution = Distribution::kWhole;
  int gpus = 1;
  double exchanged_bytes = 0;  ///< from GPU to GPU, for each product
  double estimated_ms = 0;     ///< of a product, by bytes and rates
  double measured_ms = 0;      ///< of a request that was tried; 0: none was
  bool chosen = false;         ///< a buffer put with Distribution::kAuto would lie so
};

/// What limits a product, and what another order of rows could gain.
struct ExplainedOperation {
  Operation operation = Operation::kSpmm;
  int64_t k = 0;       ///< width of the operand, 1 is SpMV; 0: SpGEMM of the matrix with itself
  Movement stored;     ///< rows as they are stored
  Movement reordered;  ///< rows in Explanation::reordered_by's order
  /// "nothing", "cache", "arithmetic", "imbalance", "cache_misses" or "bandwidth".
  std::string limit;
  double greatest_gain = 1;  ///< times less time if everything was moved once: no order gains more
  double known_gain = 1;     ///< likewise, with the best schedule known
  double imbalance = 1;      ///< the longest row over a worker's fair share, at least 1
  double measured_ms = 0;    ///< of the plan that serves just this problem, in its trials; 0: none
  std::string measured;      ///< kernel and transform pipeline of the plan that serves it
  /// Of measured_ms, as Measurement::roofline_share and roof; 0 and empty under an assumed cache.
  double roofline_share = 0;
  std::string roof;
  /// K of the signature that the plan is of, which may be a neighbouring one; 0: SpGEMM, or none.
  int64_t plan_k = 0;
  int64_t trial_k = 0;  ///< K that the plan's trial multiplied with, ...
  double trial_ms = 0;  ///< ... and what it took; 0: it was not timed
  /// Of SpMM on a server with several GPUs: whole, then in columns and in rows over all of them.
  std::vector<ExplainedDistribution> distributions{};
  /// To spread an operand that lies on one of them, and to bring the result together there.
  double spread_ms = 0;
  /// Where limit is "cache", what holds it back instead: "cache_bandwidth", "arithmetic",
  /// "overhead" (starting threads, reads that wait for each other), "uncertain" (it was faster than
  /// the rates allow: they are not known well enough); empty: not known.
  std::string cache_limit{};
  /// Then what moves between the last level cache and those before it.
  Movement inner{}, inner_reordered{};
  std::string order{};  ///< the serving plan's steps that order rows; empty: as they are stored
  /// Rows in that order, and what moves then before the last level cache; limits and gains are of
  /// these.
  Movement served{}, inner_served{};
  double baseline_ms = 0;  ///< plain CSR's default kernel beside measured_ms; 0: not known
  /// The fastest trial with rows in Explanation::reordered_by's order; 0: there was none.
  double reordered_ms = 0;
  /// Of the kernel in the last products of just this problem, the median; 0: there was none.
  double recent_kernel_ms = 0;
  std::optional<BusyTrials> busy_trials{};  ///< as PlanInfo's, of what measured_ms is of
};

/// Where a request's time went, on the server. Phases that did not happen are 0.
struct Timings {
  std::chrono::nanoseconds queue{};
  std::chrono::nanoseconds receive{};
  std::chrono::nanoseconds to_device{};
  std::chrono::nanoseconds kernel{};
  std::chrono::nanoseconds from_device{};
  std::chrono::nanoseconds send{};
  std::chrono::nanoseconds total{};
  std::chrono::nanoseconds setup{};  ///< disk, memory, libraries, attempts that failed
  /// Of `queue`, for trials of autotuning, and for other tenants' requests.
  std::chrono::nanoseconds queue_trials{}, queue_others{};
};

/// Of those of the last products with a matrix that came by one transport.
struct TransportTimes {
  std::string transport;  ///< how their bytes came and went, as SlowRequest's
  double requests = 0;    ///< how many
  Timings mean;           ///< of those in the middle by their duration, half of them
  std::string finding;    ///< what most of it is, and what helps if anything does: sentences
};

/// Where the time of the last products with a matrix went, eight of them at most.
struct RequestTimes {
  double requests = 0;    ///< how many; 0: there was none
  Timings mean;           ///< of the first of `transports`, as there
  std::string transport;  ///< likewise
  std::string finding;    ///< likewise
  double transposed = 0;  ///< of them, with the transposed matrix: Explanation is not of these
  /// That of most of them first; times of one transport are no times of another.
  std::vector<TransportTimes> transports{};
};

struct Explanation {
  std::string device;
  int64_t cache_bytes = 0;      ///< of the last level cache
  int64_t line_bytes = 0;       ///< that it fetches at once
  int workers = 1;              ///< who computes rows at the same time: threads, or warp schedulers
  double bytes_per_second = 0;  ///< that the device copies
  double flops_per_second = 0;  ///< that it computes
  std::vector<ExplainedOperation> operations;
  std::string reordered_by;  ///< a pipeline step
  /// Others computed whenever the rates were measured: the device may be faster than they say.
  bool measured_while_busy = false;
  std::optional<std::chrono::system_clock::time_point> calibrated{};  ///< none: a short measurement
  int64_t inner_cache_bytes = 0;      ///< of one of the caches before the last level; 0: not known
  double cache_bytes_per_second = 0;  ///< that it reads from its last level cache; 0: not known
  RequestTimes requests{};            ///< the caller's tenant's; an operator's: the owner's
  std::optional<ValueType> type{};    ///< of the matrix's values; none: an older server's answer
};

/// One step of a preparation.
struct Progress {
  MatrixState state = MatrixState::kUnknown;
  std::string stage;  ///< empty between stages
  int64_t done = 0;
  int64_t total = 0;  ///< 0 if unknown
  std::string message;
};

/// A buffer: a dense matrix that the server keeps under a name.
struct DenseInfo {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t leading_dimension = 0;
  ValueType type = ValueType::kF32;
  int64_t bytes = 0;
  bool durable = false;
  uint64_t version = 0;
  std::string tenant{};  ///< that it belongs to, and counts for
  std::string owner{};   ///< as PutOptions said
  /// For how long it stays though nothing uses it; none: until it is deleted.
  std::optional<std::chrono::nanoseconds> time_to_live{};
  /// Since its last use or, where it was not used since, since it came back after a restart.
  std::chrono::nanoseconds idle{0};
  Distribution distribution = Distribution::kWhole;
  int parts = 0;  ///< GPUs that it is distributed over; 0: it is whole
  /// Of the matrix in shards that it is for, whose nodes have its rows; 0: it is on one node.
  int shards = 0;
};

/// What a step of a chain did.
struct StepResult {
  std::string plan;  ///< "<pipeline> / <kernel>", or what it was: "sum", "softmax", "max"
  std::chrono::nanoseconds duration{};  ///< from the step before it to its end on the device
};

/// How operands and results, and the request, travel between caller and server.
enum class Transport : uint8_t {
  kStream,        ///< over the connection
  kRing,          ///< the request through a ring, the arrays in shared memory or in buffers
  kSharedHost,    ///< in host memory that both map
  kSharedDevice,  ///< in GPU memory that both map
  kHeld,          ///< in buffers of the server's
  kAttached,      ///< not at all: the caller's own process computed
};
/// "stream", "ring", "shared_host", "shared_device", "held", "attached".
const char* Name(Transport transport);

/// How an SpMM, an SDDMM or a chain was done.
struct ComputeResult {
  std::string plan;      ///< "<pipeline> / <kernel>"; "chain of 3: " and that of its first step
  uint64_t version = 0;  ///< of the values that were used, or that the call's own took the place of
  Timings timings;
  std::vector<StepResult> steps{};  ///< of a chain
  /// Calls, anybody's of this tenant, that the server ran as one with it, itself counted.
  int64_t batch = 1;
  /// The slowest way that an operand or a result took, in the order above; kRing of a request that
  /// went through the ring.
  Transport transport = Transport::kStream;
  std::string request_id{};  ///< by which the server's log knows it; empty: an older server
};

/// How an SpGEMM was done.
struct SpgemmResult {
  std::string plan;
  uint64_t version = 0;  ///< of the left matrix's values
  Timings timings;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t nnz = 0;
  std::string request_id{};  ///< as ComputeResult's
};

struct DeviceInfo {
  std::string name;
  std::string description;
  int32_t threads = 0;
  std::string unavailable;  ///< why it does not serve; empty if it does
  /// What decisions take for its rates and times, in bytes, operations and seconds:
  /// "read_bytes_per_second", "launch_seconds", ...
  std::map<std::string, double> constants{};
  /// When they were measured; none: they are built in.
  std::optional<std::chrono::system_clock::time_point> calibrated{};
};

struct ServerInfo {
  std::string version;
  std::vector<DeviceInfo> devices;
  int64_t max_chunk_bytes = 0;
  int64_t host_memory_limit_bytes = 0;
  bool durable = false;
  std::chrono::system_clock::time_point started;
  int32_t max_requests_per_stream = 0;
  std::string metrics_address;
  /// Where processes of its machine share memory with it; empty: nowhere.
  std::string local_socket;
  std::string server_id;  ///< of this run of the server
  std::string tenant;     ///< who calls
  std::string role;       ///< ... and what he may: "read-only", "user" or "operator"
  std::string node;       ///< its name in a cluster; empty: it is by itself
  std::vector<std::string> node_addresses;  ///< of the cluster's nodes
};

/// A node of a cluster, as another knows it.
struct ClusterNode {
  std::string name;
  std::string address;  ///< where clients reach it
  std::vector<std::string> devices;
  int64_t memory_bytes = 0;  ///< of its host, that it may use
  int64_t free_memory_bytes = 0;
  int64_t matrices = 0;   ///< that it owns
  int64_t copies = 0;     ///< of others' matrices
  bool alive = false;     ///< its lease holds
  bool draining = false;  ///< it gives its matrices to others
  bool asked = false;     ///< the one that tells this
};

struct ClusterInfo {
  std::vector<ClusterNode> nodes;  ///< by name
  std::string problem;             ///< with the directory; empty: none
};

/// What became of forgetting a node.
struct ForgottenNode {
  int64_t records = 0;  ///< matrices and remains of matrices that knew of it
  int64_t lost = 0;     ///< of these, matrices that it alone had
};

struct RequestCount {
  std::string operation;
  std::string code;
  int64_t count = 0;
  bool status_call = false;  ///< it only asks what the server knows
};

/// Streamed requests that are not at their end.
struct RequestsInFlight {
  std::string operation;
  std::string activity;  ///< "receiving", "working" or "sending": what they wait for
  int64_t count = 0;
  int64_t bytes = 0;  ///< that arrived, or that have yet to leave
  double oldest_seconds = 0;
  bool status_call = false;  ///< as RequestCount's
};

/// What a tenant has of something that is limited.
struct QuotaInfo {
  std::string quota;  ///< "disk_bytes", "matrices", ... as the server's access file has them
  int64_t used = 0;
  std::optional<int64_t> soft_limit;  ///< past it the operator is warned
  std::optional<int64_t> hard_limit;  ///< past it is refused
  int64_t refused = 0;                ///< times, since the server's start
  int64_t warned = 0;                 ///< times that its use went past the soft limit
};

struct TenantInfo {
  std::string name;
  double weight = 1;  ///< of its share of the devices' time
  std::vector<QuotaInfo> quotas;
};

/// A model that the server has, which chooses what a preparation tries.
struct ModelInfo {
  std::string name;
  std::string device;        ///< "cpu" or "cuda"; empty: its manifest does not say
  std::string device_model;  ///< what it was measured on
  std::string created;       ///< as its manifest has it: "2026-11-26T10:00:00Z"
  int64_t patterns = 0;      ///< that it was trained on
  bool own = false;          ///< in the server's data directory; else installed with the server
  bool used = false;         ///< it chooses for its kind of device
  bool watched = false;      ///< what it would choose is judged and counted
  /// Of the best speed, its first choice had in cross-validation: the geometric mean; 0: not said.
  double held_out_share = 0;
  std::string problem;   ///< why it cannot be used; empty: it can
  std::string manifest;  ///< JSON; only of GetModel
};

/// A file of a model's directory.
struct ModelFile {
  std::string name;  ///< "manifest.json", and those that it names
  std::string contents;
};

/// What a device does, and for whom.
struct DeviceUse {
  std::string name;
  double busy_seconds = 0;                       ///< of its worker slots in kernels
  int64_t waiting = 0;                           ///< requests, for a worker slot
  int64_t memory_bytes = 0;                      ///< in use
  int64_t memory_limit_bytes = 0;                ///< that may be
  std::map<std::string, double> tenant_seconds;  ///< of busy_seconds
  int64_t memory_peak_bytes = 0;                 ///< the most in use since the start
  int64_t memory_kept_bytes = 0;      ///< free, kept for the next request for some seconds
  int64_t memory_reserved_bytes = 0;  ///< of --host-memory: set aside for messages on their way in
};

struct SlowOptions {
  bool all = false;  ///< of all tenants: for operators
  int limit = 20;    ///< 1 to 100
  /// Of this alone; empty: of all but explain and those that only ask what the server knows.
  std::string operation{};
  std::string tenant{};   ///< with `all`: of this one alone; empty: of each
  std::string subject{};  ///< about the matrix or buffer of this name alone; empty: of any
};

/// A request that took long.
struct SlowRequest {
  std::string request_id;  ///< what its caller and the server's log know it by
  std::chrono::system_clock::time_point ended;
  std::string tenant;
  std::string caller;     ///< "token training-1", "user alice", ...
  std::string operation;  ///< "spmm", "upload", ...
  std::string subject;    ///< the matrix or dense matrix that it was about
  std::string code;       ///< how it ended, by name: "OK", ...
  std::string message;    ///< of an error
  Timings timings;
  std::string plan;        ///< of a product
  int64_t k = 0;           ///< columns of the dense operand; 0: it has none
  std::string parameters;  ///< "transpose beta=1", "right=T", "7 steps", ...
  std::string transport;   ///< "stream", "ring", ...; empty: no array moved
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  std::string trace_id;  ///< if it was in a trace
};

/// What there is of slow requests.
struct SlowList {
  std::vector<SlowRequest> requests;  ///< the slowest first
  /// Quotas at which the tenant's requests were refused since the start, those refused most first:
  /// a client that waits at one and asks again spends time that no request has.
  std::vector<QuotaInfo> refused_at;
  int64_t of_others = 0;  ///< for an operator who did not ask for all: requests of other tenants
};

struct Stats {
  std::vector<RequestCount> requests;
  int64_t matrices = 0;
  int64_t patterns = 0;
  int64_t dense_matrices = 0;
  std::map<std::string, int64_t> memory_bytes;
  int64_t requests_in_flight = 0;
  int64_t preparations_pending = 0;
  double uptime_seconds = 0;
  double device_busy_seconds = 0;
  std::vector<RequestsInFlight> in_flight;
  std::vector<DeviceUse> devices;
};

}  // namespace client
}  // namespace sparsed
