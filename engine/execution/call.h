// Calls: one compute request from its start to its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/catalog/dense_catalog.h"
#include "engine/catalog/matrix.h"
#include "engine/requester.h"
#include "kernels/array.h"
#include "kernels/attention.h"
#include "kernels/device_id.h"
#include "kernels/problem.h"
#include "kernels/row_products.h"

namespace sparsed::engine {

class BlockResults;
class DeviceQueue;
class PartExchange;

/// A call's part of a request that is distributed over GPUs: what was found for all of them, and
/// where this one goes.
struct PartSpec {
  std::map<std::string, MatrixLease> matrices = {};  ///< by name; others are looked up
  std::optional<DeviceId> device = {};               ///< none: the call finds one itself
  /// Of parts that run at the same time and read what the others compute: see FetchStep.
  std::shared_ptr<PartExchange> exchange = nullptr;
  size_t index = 0;  ///< this one's
};

/// Rows of blocks that lie on several GPUs, one after the other.
struct FetchedRows {
  struct Part {
    DenseBlock block;
    DeviceId device;                  ///< that has it
    std::shared_ptr<LazyArray> rows;  ///< i64, of the block's; null: all
    int64_t count = 0;
  };
  DenseShape shape;  ///< of all of them
  std::vector<Part> parts;
};

/// A dense operand as the request names it.
struct OperandSpec {
  std::optional<DenseShape> shape = {};  ///< a held one's must agree; the others need one
  std::string held = {};                 ///< name of a buffer; empty: it comes from elsewhere
  uint32_t stream_array = 0;             ///< array index of its chunks
  /// If not empty, it is there, from its first element on; the end may lie behind the operand's.
  /// Memory that the caller may change at any time, which harms nobody but its result.
  Buffer shared = {};
  DeviceId shared_on = {};  ///< where that is
  /// What was found of a buffer, a part of it or all, in the place of its name.
  std::optional<DenseBlock> block = {};
  std::shared_ptr<const FetchedRows> fetched = nullptr;  ///< likewise
  /// A buffer itself, in the place of its name: one that no catalog has.
  HeldDenseLease found = nullptr;
};

/// Where a dense result goes: into the stream, if nothing is set.
struct ResultSpec {
  std::string held = {};  ///< name of the buffer that receives it
  uint64_t version = 0;   ///< that this gets then; 0: one above what it has
  Buffer shared = {};     ///< the caller's memory, as OperandSpec's
  /// Of what `shared` is to receive; must agree with the result.
  std::optional<DenseShape> shape = {};
  DeviceId shared_on = {};                         ///< where `shared` is
  std::shared_ptr<BlockResults> blocks = nullptr;  ///< that receive it
  size_t block = 0;                                ///< the one of them
};

/// A request's place in a queue. It then ends, without having begun, as soon as nothing but the
/// GPU's end can be in its way; all that it reads and writes is shared memory of the queue's GPU.
struct QueueSpec {
  std::shared_ptr<DeviceQueue> queue;  ///< null: it is in none
  uint32_t number = 0;                 ///< as DeviceQueue::Request's
};

struct SpmmSpec {
  std::string tenant, matrix;
  bool transpose = false;
  double alpha = 1, beta = 0;
  OperandSpec b;
  std::optional<OperandSpec> accumulate;  ///< needed if beta is not 0
  ResultSpec result;
  int64_t result_leading_dimension = 0;  ///< of a streamed C; 0: K
  /// S's for this request alone, in the place of the matrix's: nnz x 1, one after the other, in the
  /// order that the matrix's values were sent in.
  std::optional<OperandSpec> values = {};
  bool allow_tf32 = false;  ///< as in Problem
  uint64_t timeout_ns = 0;  ///< 0: none
  QueueSpec queue = {};
  int priority = 0;  ///< among its tenant's, below FairEntry::kPriorities; the highest goes first
  PartSpec part = {};
};

struct SddmmSpec {
  std::string tenant, matrix;
  bool unscaled = false;
  OperandSpec a, b;
  ResultSpec result;                       ///< if not streamed, nnz x 1
  std::optional<OperandSpec> values = {};  ///< as SpmmSpec's; INVALID_ARGUMENT where unscaled
  uint64_t timeout_ns = 0;
  QueueSpec queue = {};
  int priority = 0;  ///< as SpmmSpec's
  PartSpec part = {};
};

/// C<M> = op(S) * op(T) in a semiring.
struct SpgemmSpec {
  std::string tenant, left, right;
  std::string keep_as = {};  ///< empty: streamed
  bool replace = false;
  bool count_first = false;
  bool transpose_left = false;
  bool transpose_right = false;
  Semiring semiring = Semiring::kSumProduct;
  std::string mask = {};     ///< a matrix whose positions alone are computed; empty: none
  Requester requester = {};  ///< of what is kept, for who is told of it
  uint64_t timeout_ns = 0;
  int priority = 0;  ///< as SpmmSpec's
};

/// One operation of a chain; makes one value, if it does not say more. Values are numbered: first
/// the chain's operands, then what its steps make, in their order. Each step uses values before its
/// own.
struct SpmmStep {
  std::string matrix;
  bool transpose = false;
  double alpha = 1, beta = 0;
  size_t b = 0;
  std::optional<size_t> accumulate = {};  ///< needed if beta is not 0
  /// S's, as SpmmSpec's; the value of an SDDMM is such a one. Of H heads nnz x H (see
  /// kernels/row_products.h).
  std::optional<size_t> values = {};
  bool allow_tf32 = false;
};
struct SddmmStep {
  std::string matrix;
  bool unscaled = false;
  size_t a = 0, b = 0;
  std::optional<size_t> values = {};  ///< nnz x 1, or nnz x heads
  int64_t heads = 1;
};
/// Of values of one shape, at most kMostTerms of them.
struct SumStep {
  struct Term {
    size_t value = 0;
    double factor = 1;
  };
  std::vector<Term> terms;
};
/// Values of the nonzeros of several matrices, one after the other, each in its place: element
/// orders[i][j] of what it makes is element j of value i. Of a request's own parts.
struct PlaceStep {
  std::vector<size_t> values;
  std::vector<std::shared_ptr<LazyArray>> orders;  ///< i64, of each value
};
/// Rows of a value of which each part of a request computes its own: shows the others this part's,
/// and makes the rows that it needs of theirs, one part's after the other's; nothing, if it needs
/// none. All parts have as many of these steps, of the same values.
struct FetchStep {
  struct From {
    std::shared_ptr<LazyArray> rows;  ///< i64, of that part's
    int64_t count = 0;                ///< 0: none
  };
  size_t value = 0;        ///< this part's own rows
  std::vector<From> from;  ///< by part
  int64_t rows = 0;        ///< in all
};
/// A mean, greatest or least (see kernels/row_products.h).
struct ReduceStep {
  std::string matrix;
  bool transpose = false;
  Reduction reduction = Reduction::kMean;  ///< no sum
  size_t b = 0;
  std::optional<size_t> values = {};  ///< S's, nnz x 1
  bool unscaled = false;              ///< INVALID_ARGUMENT with `values`
  /// Makes a second value: which nonzero each greatest or least is of, in the order of the upload;
  /// i64, for results alone.
  bool arguments = false;
};
/// rows[i] * value * cols[j] for each nonzero (see kernels/nonzero_passes.h).
struct ScaleStep {
  std::string matrix;
  std::optional<size_t> value = {};  ///< nnz x H; none: the matrix's own values
  std::optional<size_t> rows = {};   ///< M x 1 or M x H
  std::optional<size_t> cols = {};   ///< N x 1 or N x H
};
/// What the values of each row, or column, add up to.
struct TotalStep {
  std::string matrix;
  bool transpose = false;
  std::optional<size_t> value = {};  ///< nnz x H; none: the matrix's own values
};
/// Softmax of factor * value over the nonzeros of each row of a matrix, nnz x H; with `gradient`,
/// of that softmax's result instead, its backward. See kernels/row_softmax.h.
struct SoftmaxStep {
  std::string matrix;
  double scale = 1;
  size_t value = 0;
  std::optional<size_t> gradient = {};
};
/// Scores of nonzeros (see EdgeScores in kernels/attention.h).
struct AttentionScores {
  EdgeScores::Kind kind = EdgeScores::Kind::kDot;
  int64_t heads = 1;
  double scale = 1, slope = 0.2;
  size_t left = 0, right = 0;
  std::optional<size_t> bias = {};  ///< nnz x H, or nnz x 1
  std::optional<size_t> att = {};   ///< kGatv2: 1 x K
};
/// Makes a second value: log_sums, which is of f32 in a chain of 16-bit types.
struct AttentionStep {
  std::string matrix;
  AttentionScores scores = {};
  size_t values = 0;
};
/// Makes the gradients that are wanted, in this order.
struct AttentionGradientStep {
  std::string matrix;
  AttentionScores scores = {};
  size_t values = 0;
  size_t result = 0, log_sums = 0;  ///< what the AttentionStep made
  size_t gradient = 0;              ///< of its result
  bool of_left = false, of_right = false, of_values = false, of_bias = false, of_att = false;
};
using ChainStep =
    std::variant<SpmmStep, SddmmStep, SumStep, SoftmaxStep, ReduceStep, ScaleStep, TotalStep,
                 AttentionStep, AttentionGradientStep, PlaceStep, FetchStep>;

/// Operations one after the other, whose intermediate values stay where they are computed.
struct ChainSpec {
  static constexpr size_t kMostOperands = 64, kMostSteps = 1024, kMostResults = 16;

  struct Result {
    size_t value = 0;
    ResultSpec place;
    int64_t leading_dimension = 0;  ///< of a streamed one; 0: its columns
    /// Rows, columns and type that it must have, if set.
    std::optional<DenseShape> shape = {};
  };
  std::string tenant;
  std::vector<OperandSpec> operands;
  std::vector<ChainStep> steps;
  std::vector<Result> results;
  uint64_t timeout_ns = 0;
  int priority = 0;  ///< as SpmmSpec's
  PartSpec part = {};
};

struct ArrayFacts {
  std::string name;
  ElementType type;
  int64_t length;  ///< -1: not known yet
};

struct CallBegin {
  std::string plan;  ///< "<pipeline> / <kernel>"
  int64_t nnz = 0;   ///< SpGEMM: exact, or -1
  int64_t rows = 0;  ///< of the result
  int64_t cols = 0;
  std::vector<ArrayFacts>
      arrays;  ///< what OnArray or OnBlock will bring; empty if the result stays here
};

/// Rows of a streamed sparse result.
struct ResultBlock {
  RowRange rows;
  int64_t nnz_begin = 0;  ///< nonzeros before it
  Array row_offsets;      ///< i64, one element a row: where the row ends in the whole result
  Array column_indices;   ///< i32
  Array values;
};

/// Nanoseconds from Submit on. The server adds receive_ns and send_ns. They add up to the call's
/// time without the pauses for its reader, but where copies and kernels overlap: then to more.
struct CallTimings {
  uint64_t queue_ns = 0;  ///< waiting for a worker slot, each time anew
  /// Of that, for trials of autotuning, and for other tenants' calls: by what the worker slots did
  /// meanwhile. The rest is behind its tenant's own calls, or a wait for processors.
  uint64_t queue_trials_ns = 0, queue_others_ns = 0;
  uint64_t setup_ns = 0;  ///< what is left: the disk, memory, libraries, attempts that failed
  uint64_t to_device_ns = 0;
  uint64_t kernel_ns = 0;
  uint64_t from_device_ns = 0;
};
void Add(const CallTimings& more, CallTimings& to);

/// What a step of a chain did.
struct StepEnd {
  std::string plan;  ///< "<pipeline> / <kernel>", or what it was: "sum", "softmax", "mean"
  uint64_t nanoseconds = 0;
};

struct CallEnd {
  absl::Status status;
  CallTimings timings;
  std::vector<StepEnd> steps = {};  ///< of a chain that ended well
  int64_t nnz = 0;                  ///< of an SpGEMM result
  uint64_t version = 0;             ///< of S's values
  int64_t batch = 1;                ///< calls that ran as one with it, itself counted
};

/// Where a call's results go. Called from one thread at a time, in the order OnBegin, then OnArray
/// or OnBlocks, then OnEnd exactly once (alone, if the call ends early). Implementations do not
/// block and do not call back into the call from here, but for Release and Fail. Kept alive by the
/// call until OnEnd returned.
class ResultSink {
 public:
  virtual ~ResultSink() = default;
  virtual void OnBegin(CallBegin begin) = 0;
  /// Part of a dense result (its index among CallBegin::arrays) from byte `offset` on: one after
  /// the other, in order, the whole in the end.
  virtual void OnArray(uint32_t index, uint64_t offset, Array part) = 0;
  /// The call pauses while more than its credit of block bytes is unreleased (Call::Release).
  virtual void OnBlock(ResultBlock block) = 0;
  virtual void OnEnd(CallEnd end) = 0;
};

/// Where some bytes of an operand are to be written. They have come once it is committed; what is
/// let go of before never comes. Used by one thread at a time; the call outlives it. Move-only.
class ClaimedBytes {
 public:
  using OnWritten = absl::AnyInvocable<absl::Status()>;

  ClaimedBytes(std::byte* data, OnWritten on_written)
      : data_(data), on_written_(std::move(on_written)) {}

  /// The caller's until Commit.
  std::byte* data() const { return data_; }
  /// They are written; once.
  absl::Status Commit() { return on_written_(); }

 private:
  std::byte* data_;
  OnWritten on_written_;
};

/// Made by Executor::Begin, which looked everything up and checked every shape; memory for streamed
/// operands is taken as they come. From then on OnEnd comes exactly once: after Submit, or when it
/// is cancelled or its deadline passes, also while operands are still arriving. Whoever began it
/// submits or cancels it. Several threads may feed it, with Claim and what that gives, complete,
/// Missing, announced and counted; Submit comes when none of them is in there any more, and is the
/// last of these. Cancel and Release may come from anywhere, and neither calls the sink before it
/// returns.
class Call {
 public:
  virtual ~Call() = default;
  /// Where operand bytes may be written; INVALID_ARGUMENT for an unknown array, overlaps, overruns.
  virtual absl::StatusOr<ClaimedBytes> Claim(uint32_t array, uint64_t offset, uint64_t size) = 0;
  /// All operand bytes have arrived: it may be submitted.
  virtual bool complete() const = 0;
  /// What has not arrived, for a sentence: "operand B has 12 of 4096 bytes".
  virtual std::string Missing() const { return "all operands are here"; }
  /// Bytes of operands that are to come, and those of host memory that what came takes.
  virtual size_t announced() const { return 0; }
  virtual size_t counted() const { return 0; }
  /// Queues it; once, when complete. If the queue is full it ends with RESOURCE_EXHAUSTED.
  virtual void Submit() = 0;
  /// Likewise, by a thread that has nothing else to do: of a short product for a GPU, of which a
  /// worker slot is free and where nobody waits, the first step, mostly the only one, runs in this
  /// thread. The sink may be called before this returns: hold no lock that it takes.
  virtual void SubmitHere() { Submit(); }
  /// Ends it soon with CANCELLED, in whatever state it is.
  virtual void Cancel() = 0;
  /// Likewise, with `status` (not OK): the feeder found it malformed.
  virtual void Fail(absl::Status status) = 0;
  /// `bytes` of blocks have left.
  virtual void Release(int64_t bytes) = 0;
};

}  // namespace sparsed::engine
