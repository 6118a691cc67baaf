// SpGEMM on a stream of its own: its result may be larger than memory and its reader slow.
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

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
  IncomingBlock(const v1::RowBlock& block, ValueType type)
      : row_begin_(block.row_begin()),
        rows_(block.rows()),
        row_offsets_{block.nnz_begin()},
        values_(ZeroValues(type)) {
    arrays_.emplace_back(row_offsets_, block.rows(), block.row_begin() + 1);
    arrays_.emplace_back(column_indices_, block.nnz(), block.nnz_begin());
    std::visit([&](auto& v) { arrays_.emplace_back(v, block.nnz(), block.nnz_begin()); }, values_);
  }
  IncomingBlock(const IncomingBlock&) = delete;
  IncomingBlock& operator=(const IncomingBlock&) = delete;

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
    view.row_offsets = row_offsets_;
    view.column_indices = column_indices_;
    std::visit([&view](const auto& v) { view.values = std::span(v); }, values_);
    return view;
  }

 private:
  const int64_t row_begin_;
  const int64_t rows_;
  std::vector<int64_t> row_offsets_;  // the first is not sent
  std::vector<int32_t> column_indices_;
  Values values_;
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
    request_.mutable_start()->set_priority(connection.PriorityOf(options));
  }

 private:
  void Open(Stream& stream) override {
    block_.reset();
    result_ = {};
    begun_ = false;
    next_row_ = next_nonzero_ = 0;
    end_.reset();
    stream.Send(wire::Encode(request_));
    stream.CloseSending();
  }

  absl::StatusOr<Next> OnReply(Stream& stream, const grpc::ByteBuffer& bytes) override {
    auto frame = DecodeReply<v1::ComputeReply>(bytes);
    if (!frame.ok()) return frame.status();
    absl::Status status;
    if (RequestIdOf(*frame).value_or(kRequestId) != kRequestId) {
      status = absl::InternalError("the server answered a request that was never sent");
    } else if (const auto* chunk = std::get_if<wire::ChunkView>(&*frame)) {
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

  bool kept() const { return !request_.start().keep_as().empty(); }

  absl::Status OnBegin(const v1::Begin& begin) {
    const bool arrays =
        kept() ? begin.arrays_size() == 0
               : begin.arrays_size() == 3 && begin.arrays(0).type() == v1::ELEMENT_TYPE_I64 &&
                     begin.arrays(1).type() == v1::ELEMENT_TYPE_I32 &&
                     begin.arrays(2).type() == ToProto(FromProto(begin.arrays(2).type()));
    const int64_t nnz = begin.nnz() == -1 ? 0 : begin.nnz();
    if (begun_ || !arrays || !Plausible(begin.rows(), begin.cols(), nnz)) {
      return absl::InternalError("the server announced a product that makes no sense");
    }
    begun_ = true;
    result_.plan = begin.plan();
    result_.rows = begin.rows();
    result_.cols = begin.cols();
    result_.nnz = begin.nnz();
    if (!kept()) type_ = FromProto(begin.arrays(2).type());
    return absl::OkStatus();
  }

  absl::Status OnBlock(const v1::RowBlock& block) {
    if (block_ || kept() || block.row_begin() != next_row_ || block.rows() < 1 ||
        block.rows() > result_.rows - next_row_ || block.nnz_begin() != next_nonzero_ ||
        !Plausible(block.rows(), result_.cols, block.nnz()) ||
        !Plausible(result_.rows, result_.cols, next_nonzero_ + block.nnz())) {
      return absl::InternalError("the server announced a row block that makes no sense");
    }
    block_ = std::make_shared<IncomingBlock>(block, type_);
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
          const absl::Status answer = state_->Overruled() ? absl::OkStatus() : on_block_(view);
          --queued_;
          if (answer.ok()) {
            stream->Resume();
          } else {
            state_->Overrule(answer);
            Cancel(answer);
          }
        });
    return absl::OkStatus();
  }

  absl::Status Complete() override {
    if (!end_) return absl::InternalError("the server did not say how the product ended");
    const std::string& id = end_->timings().request_id();
    if (absl::Status s = WithRequestId(FromProto(end_->status()), id); !s.ok()) return s;
    result_.request_id = id;
    if (!begun_ || block_ ||
        (!kept() && (next_row_ != result_.rows || next_nonzero_ != end_->nnz()))) {
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

  v1::SpgemmRequest request_;
  const RowBlockCallback on_block_;
  const std::shared_ptr<CallState<SpgemmResult>> state_;

  std::atomic<int> queued_ = 0;

  // Of the attempt; touched by the reading side only.
  SpgemmResult result_;
  bool begun_ = false;
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

v1::Semiring ToProto(Semiring semiring) {
  switch (semiring) {
    case Semiring::kSumProduct:
      return v1::SEMIRING_SUM_PRODUCT;
    case Semiring::kBoolean:
      return v1::SEMIRING_BOOLEAN;
    case Semiring::kMinPlus:
      return v1::SEMIRING_MIN_PLUS;
    case Semiring::kPlusPair:
      return v1::SEMIRING_PLUS_PAIR;
  }
  return v1::SEMIRING_UNSPECIFIED;
}

v1::SpgemmStart StartOf(const std::string& left, const std::string& right,
                        const SpgemmOptions& spgemm) {
  v1::SpgemmStart start;
  start.set_left(left);
  start.set_right(right);
  start.set_count_first(spgemm.count_first);
  start.set_transpose_left(spgemm.transpose_left);
  start.set_transpose_right(spgemm.transpose_right);
  start.set_semiring(ToProto(spgemm.semiring));
  start.set_mask(spgemm.mask);
  return start;
}

}  // namespace

Call<SpgemmResult> Spgemm(const std::shared_ptr<Connection>& connection, const std::string& left,
                          const std::string& right, RowBlockCallback on_block,
                          const SpgemmOptions& spgemm, const CallOptions& options) {
  return LaunchSpgemm(connection, StartOf(left, right, spgemm), std::move(on_block), options);
}

Call<SpgemmResult> SpgemmKeep(const std::shared_ptr<Connection>& connection,
                              const std::string& left, const std::string& right,
                              const std::string& name, const SpgemmKeepOptions& keep,
                              const CallOptions& options) {
  v1::SpgemmStart start = StartOf(left, right, keep.spgemm);
  start.set_keep_as(name);
  start.set_replace(keep.replace);
  return LaunchSpgemm(connection, std::move(start), nullptr, options);
}

}  // namespace client
}  // namespace sparsed
