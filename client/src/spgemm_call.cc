// SpGEMM on a stream of its own: its result may be larger than memory and its reader slow.
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "client/src/arrays.h"
#include "client/src/compute_calls.h"
#include "client/src/convert.h"
#include "client/src/exchange.h"
#include "sparsed/v1/compute.pb.h"

namespace sparsed {
inline namespace client {
namespace {

constexpr uint64_t kRequestId = 1;
/// Row blocks that wait for the callback while the next one arrives.
constexpr int kMaxQueuedBlocks = 2;

/// A row block while its chunks arrive.
class IncomingBlock {
 public:
  /// Null if there is no memory for what was announced. Memory is touched only as bytes come.
  static std::shared_ptr<IncomingBlock> Announced(const v1::RowBlock& block, ValueType type) {
    std::shared_ptr<IncomingBlock> incoming(new (std::nothrow) IncomingBlock);
    const auto rows = static_cast<size_t>(block.rows());
    const auto nnz = static_cast<size_t>(block.nnz());
    if (!incoming || !incoming->Allocate(rows, nnz, SizeOf(type))) return nullptr;
    incoming->row_begin_ = block.row_begin();
    incoming->rows_ = block.rows();
    incoming->nnz_ = block.nnz();
    incoming->type_ = type;
    incoming->offsets()[0] = block.nnz_begin();
    const auto nnz_begin = static_cast<uint64_t>(block.nnz_begin());
    incoming->arrays_.emplace_back(std::span(incoming->offsets_.get() + 8, rows * 8),
                                   (static_cast<uint64_t>(block.row_begin()) + 1) * 8);
    incoming->arrays_.emplace_back(std::span(incoming->columns_.get(), nnz * 4), nnz_begin * 4);
    incoming->arrays_.emplace_back(std::span(incoming->values_.get(), nnz * SizeOf(type)),
                                   nnz_begin * SizeOf(type));
    return incoming;
  }

  absl::Status Add(const wire::ChunkView& chunk) {
    if (chunk.array >= arrays_.size()) {
      return absl::InternalError(fmt::format("the server sent a chunk of array {}", chunk.array));
    }
    return arrays_[chunk.array].Add(chunk);
  }

  bool complete() const {
    return arrays_[0].complete() && arrays_[1].complete() && arrays_[2].complete();
  }

  RowBlock View() const {
    RowBlock view;
    view.row_begin = row_begin_;
    view.rows = rows_;
    view.row_offsets = {offsets(), static_cast<size_t>(rows_) + 1};
    view.column_indices = {reinterpret_cast<const int32_t*>(columns_.get()),
                           static_cast<size_t>(nnz_)};
    if (type_ == ValueType::kF32) {
      view.values =
          std::span(reinterpret_cast<const float*>(values_.get()), static_cast<size_t>(nnz_));
    } else {
      view.values =
          std::span(reinterpret_cast<const double*>(values_.get()), static_cast<size_t>(nnz_));
    }
    return view;
  }

 private:
  IncomingBlock() = default;

  bool Allocate(size_t rows, size_t nnz, size_t value_bytes) {
    offsets_.reset(new (std::nothrow) std::byte[(rows + 1) * 8]);
    columns_.reset(new (std::nothrow) std::byte[nnz * 4]);
    values_.reset(new (std::nothrow) std::byte[nnz * value_bytes]);
    return offsets_ && columns_ && values_;
  }

  int64_t* offsets() const { return reinterpret_cast<int64_t*>(offsets_.get()); }

  int64_t row_begin_ = 0;
  int64_t rows_ = 0;
  int64_t nnz_ = 0;
  ValueType type_ = ValueType::kF32;
  std::unique_ptr<std::byte[]> offsets_;  // rows + 1; the first is not sent
  std::unique_ptr<std::byte[]> columns_;
  std::unique_ptr<std::byte[]> values_;
  std::vector<IncomingArray> arrays_;
};

class SpgemmCall final : public Exchange {
 public:
  SpgemmCall(Connection& connection, const CallOptions& options, v1::SpgemmStart start,
             RowBlockCallback on_block, std::shared_ptr<CallState<SpgemmResult>> state)
      : Exchange(connection, "/sparsed.v1.Compute/Spgemm", options,
                 start.keep_as().empty() ? Repeat::kSafe : Repeat::kNever),
        on_block_(std::move(on_block)),
        state_(std::move(state)) {
    *request_.mutable_start() = std::move(start);
    request_.mutable_start()->set_request_id(kRequestId);
  }

 private:
  void Open(Stream& stream) override {
    block_.reset();
    next_row_ = next_nonzero_ = 0;
    end_.reset();
    stream.Send(wire::Encode(request_));
    stream.CloseSending();
  }

  absl::StatusOr<Next> OnReply(Stream& stream, const grpc::ByteBuffer& bytes) override {
    auto frame = DecodeReply<v1::ComputeReply>(bytes);
    if (!frame.ok()) return frame.status();
    absl::Status status;
    if (const auto* chunk = std::get_if<wire::ChunkView>(&*frame)) {
      status = block_ ? block_->Add(*chunk)
                      : absl::InternalError("the server sent a chunk outside of a row block");
    } else {
      const auto& reply = std::get<v1::ComputeReply>(*frame);
      if (reply.has_begin()) status = OnBegin(reply.begin());
      if (reply.has_block()) status = OnBlock(reply.block());
      if (reply.has_end()) end_ = reply.end();
    }
    if (status.ok() && block_ && block_->complete()) status = HandOut(stream);
    if (!status.ok()) return status;
    return queued_ < kMaxQueuedBlocks ? Next::kRead : Next::kPause;
  }

  absl::Status OnBegin(const v1::Begin& begin) {
    result_.plan = begin.plan();
    result_.rows = begin.rows();
    result_.cols = begin.cols();
    result_.nnz = begin.nnz();
    if (begin.arrays_size() == 3) type_ = FromProto(begin.arrays(2).type());
    return absl::OkStatus();
  }

  absl::Status OnBlock(const v1::RowBlock& block) {
    if (block_ || block.row_begin() != next_row_ || block.rows() < 1 ||
        block.rows() > result_.rows - next_row_ || block.nnz_begin() != next_nonzero_ ||
        block.nnz() < 0 || block.nnz() / block.rows() > result_.cols) {
      return absl::InternalError("the server announced a row block that makes no sense");
    }
    block_ = IncomingBlock::Announced(block, type_);
    if (!block_) {
      return absl::ResourceExhaustedError(fmt::format(
          "no memory for a row block of {} rows and {} nonzeros", block.rows(), block.nnz()));
    }
    next_row_ += block.rows();
    next_nonzero_ += block.nnz();
    return absl::OkStatus();
  }

  absl::Status HandOut(Stream& stream) {
    const std::shared_ptr<IncomingBlock> block = std::move(block_);
    block_.reset();
    RowBlock view = block->View();
    view.result_rows = result_.rows;
    view.result_cols = result_.cols;
    view.result_nnz = result_.nnz;
    const absl::Status status =
        CheckCsr(view.row_offsets, view.row_offsets.front(), view.column_indices, result_.cols);
    if (!status.ok() || !on_block_) return status;
    MustNotRepeat();
    ++queued_;
    state_->Post(
        [call = shared_from_this(), this, stream = stream.shared_from_this(), block, view] {
          const absl::Status answer = Answered().ok() ? on_block_(view) : absl::OkStatus();
          --queued_;
          if (answer.ok()) {
            stream->Resume();
          } else {
            SetAnswer(answer);
            Cancel(answer);
          }
        });
    return absl::OkStatus();
  }

  absl::Status Complete() override {
    if (absl::Status answer = Answered(); !answer.ok()) return answer;
    if (!end_) return absl::InternalError("the server did not say how the product ended");
    if (absl::Status status = FromProto(end_->status()); !status.ok()) return status;
    if (block_ || (request_.start().keep_as().empty() &&
                   (next_row_ != result_.rows || next_nonzero_ != end_->nnz()))) {
      return absl::InternalError("the server did not send the whole product");
    }
    result_.nnz = end_->nnz();
    result_.version = end_->version();
    result_.timings = FromProto(end_->timings());
    return absl::OkStatus();
  }

  void Deliver(absl::Status status) override {
    if (status.ok()) {
      state_->Complete(std::move(result_));
    } else {
      state_->Complete(std::move(status));
    }
  }

  absl::Status Answered() const {
    const std::lock_guard lock(answer_mutex_);
    return answer_;
  }
  void SetAnswer(const absl::Status& answer) {
    const std::lock_guard lock(answer_mutex_);
    answer_ = answer;
  }

  v1::SpgemmRequest request_;
  const RowBlockCallback on_block_;
  const std::shared_ptr<CallState<SpgemmResult>> state_;

  std::atomic<int> queued_ = 0;
  mutable std::mutex answer_mutex_;
  absl::Status answer_;  // of the callback; the first error

  // Of the attempt; touched by the reading side only.
  SpgemmResult result_;
  ValueType type_ = ValueType::kF32;
  std::shared_ptr<IncomingBlock> block_;
  int64_t next_row_ = 0;
  int64_t next_nonzero_ = 0;
  std::optional<v1::End> end_;
};

Call<SpgemmResult> LaunchSpgemm(const std::shared_ptr<Connection>& connection,
                                v1::SpgemmStart start, RowBlockCallback on_block,
                                const CallOptions& options) {
  auto state = std::make_shared<CallState<SpgemmResult>>();
  auto call = std::make_shared<SpgemmCall>(*connection, options, std::move(start),
                                           std::move(on_block), state);
  return Launch<SpgemmResult>(connection, call, std::move(state));
}

}  // namespace

Call<SpgemmResult> Spgemm(const std::shared_ptr<Connection>& connection, const std::string& left,
                          const std::string& right, RowBlockCallback on_block,
                          const SpgemmOptions& spgemm, const CallOptions& options) {
  v1::SpgemmStart start;
  start.set_left(left);
  start.set_right(right);
  start.set_count_first(spgemm.count_first);
  return LaunchSpgemm(connection, std::move(start), std::move(on_block), options);
}

Call<SpgemmResult> SpgemmKeep(const std::shared_ptr<Connection>& connection,
                              const std::string& left, const std::string& right,
                              const std::string& name, const SpgemmKeepOptions& keep,
                              const CallOptions& options) {
  v1::SpgemmStart start;
  start.set_left(left);
  start.set_right(right);
  start.set_keep_as(name);
  start.set_replace(keep.replace);
  return LaunchSpgemm(connection, std::move(start), nullptr, options);
}

}  // namespace client
}  // namespace sparsed
