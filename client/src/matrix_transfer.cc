// Matrices there and back: Upload, UpdateValues, Download.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <optional>
#include <utility>

#include "client/src/arrays.h"
#include "client/src/catalog_calls.h"
#include "client/src/convert.h"
#include "client/src/exchange.h"
#include "sparsed/v1/catalog.pb.h"

namespace sparsed {
inline namespace client {
namespace {

class UploadCall final : public Exchange {
 public:
  UploadCall(Connection& connection, const CallOptions& options, v1::UploadHeader header,
             std::vector<OutgoingArray> arrays, const UploadOptions& upload, Matrix handle,
             std::shared_ptr<CallState<Matrix>> state)
      : Exchange(connection, "/sparsed.v1.Catalog/Upload", options, Repeat::kUntilSent),
        arrays_(std::move(arrays)),
        progress_(upload.progress),
        handle_(std::move(handle)),
        state_(std::move(state)) {
    *request_.mutable_header() = std::move(header);
    for (const OutgoingArray& array : arrays_) total_ += array.bytes.size();
  }

 private:
  void Open(Stream& stream) override {
    sent_ = 0;
    uploaded_ = false;
    ++attempt_;
    if (request_.header().pattern_hash().empty()) {
      stream.Send(wire::Encode(request_), 0, Lend(/*pattern=*/true));
      stream.CloseSending();
    } else {
      stream.Send(wire::Encode(request_));
    }
  }

  std::vector<OutgoingArray> Lend(bool pattern) {
    std::vector<OutgoingArray> lent;
    for (const OutgoingArray& array : arrays_) {
      if (!pattern && array.array < 2) continue;
      lent.push_back(array.ForAttempt(attempt_, Lease()));
    }
    return lent;
  }

  std::vector<SharedMemory::Place> SharedPlaces() const override { return PlacesOf(arrays_); }

  absl::StatusOr<Next> OnReply(Stream& stream, const grpc::ByteBuffer& bytes) override {
    v1::UploadReply reply;
    if (absl::Status status = ParseReply(bytes, reply); !status.ok()) return status;
    if (reply.has_pattern()) {
      stream.SendArrays(0, Lend(!reply.pattern().known()));
      stream.CloseSending();
    }
    uploaded_ = uploaded_ || reply.has_matrix();
    return Next::kRead;
  }

  void OnSent(size_t bytes) override {
    sent_ += bytes;
    if (!progress_ || reported_.exchange(true)) return;
    state_->Post([call = shared_from_this(), this] {
      reported_ = false;
      progress_(static_cast<int64_t>(sent_), static_cast<int64_t>(total_));
    });
  }

  absl::Status Complete() override {
    return uploaded_ ? absl::OkStatus()
                     : absl::InternalError("the server did not say what became of the upload");
  }

  void Deliver(absl::Status status) override {
    if (status.ok()) {
      state_->Complete(handle_);
    } else {
      state_->Complete(std::move(status));
    }
  }

  v1::UploadRequest request_;
  const std::vector<OutgoingArray> arrays_;  // without leases
  const std::function<void(int64_t, int64_t)> progress_;
  const Matrix handle_;
  const std::shared_ptr<CallState<Matrix>> state_;
  size_t total_ = 0;
  std::atomic<size_t> sent_ = 0;
  std::atomic<bool> reported_ = false;  // an event is under way
  bool uploaded_ = false;
  int attempt_ = -1;
};

class UpdateValuesCall final : public Exchange {
 public:
  UpdateValuesCall(Connection& connection, const CallOptions& options,
                   v1::UpdateValuesHeader header, OutgoingArray values,
                   std::shared_ptr<CallState<uint64_t>> state)
      : Exchange(connection, "/sparsed.v1.Catalog/UpdateValues", options, Repeat::kUntilSent),
        values_(std::move(values)),
        state_(std::move(state)) {
    *request_.mutable_header() = std::move(header);
  }

 private:
  void Open(Stream& stream) override {
    version_.reset();
    stream.Send(wire::Encode(request_), 0, {values_.ForAttempt(++attempt_, Lease())});
    stream.CloseSending();
  }

  std::vector<SharedMemory::Place> SharedPlaces() const override { return PlacesOf({&values_, 1}); }

  absl::StatusOr<Next> OnReply(Stream&, const grpc::ByteBuffer& bytes) override {
    v1::UpdateValuesReply reply;
    if (absl::Status status = ParseReply(bytes, reply); !status.ok()) return status;
    version_ = reply.version();
    return Next::kRead;
  }

  absl::Status Complete() override {
    return version_ ? absl::OkStatus() : absl::InternalError("the server sent no reply");
  }

  void Deliver(absl::Status status) override {
    if (status.ok()) {
      state_->Complete(*version_);
    } else {
      state_->Complete(std::move(status));
    }
  }

  v1::UpdateValuesRequest request_;
  const OutgoingArray values_;  // without a lease
  int attempt_ = -1;
  const std::shared_ptr<CallState<uint64_t>> state_;
  std::optional<uint64_t> version_;
};

class DownloadCall final : public Exchange {
 public:
  DownloadCall(Connection& connection, const CallOptions& options, const std::string& name,
               std::shared_ptr<CallState<CsrMatrix>> state)
      : Exchange(connection, "/sparsed.v1.Catalog/Download", options, Repeat::kSafe),
        state_(std::move(state)) {
    request_.set_name(name);
  }

 private:
  void Open(Stream& stream) override {
    arrays_.clear();
    matrix_ = {};
    stream.Send(wire::Encode(request_));
    stream.CloseSending();
  }

  absl::StatusOr<Next> OnReply(Stream&, const grpc::ByteBuffer& bytes) override {
    auto frame = DecodeReply<v1::DownloadReply>(bytes);
    if (!frame.ok()) return frame.status();
    absl::Status status;
    if (const auto* chunk = std::get_if<wire::ChunkView>(&*frame)) {
      status = chunk->array < arrays_.size()
                   ? arrays_[chunk->array].Add(*chunk)
                   : absl::InternalError("the server sent a chunk of an array it never announced");
    } else if (const auto& reply = std::get<v1::DownloadReply>(*frame); reply.has_header()) {
      status = Prepare(reply.header());
    }
    if (!status.ok()) return status;
    return Next::kRead;
  }

  absl::Status Prepare(const v1::DownloadHeader& header) {
    const v1::MatrixInfo& info = header.matrix();
    const auto is = [&header](int i, v1::ElementType type, int64_t length) {
      return header.arrays(i).type() == type && header.arrays(i).length() == length;
    };
    if (!arrays_.empty() || !Plausible(info.rows(), info.cols(), info.nnz()) ||
        header.arrays_size() != 3 || !is(0, v1::ELEMENT_TYPE_I64, info.rows() + 1) ||
        !is(1, v1::ELEMENT_TYPE_I32, info.nnz()) ||
        !is(2, ToProto(FromProto(info.type())), info.nnz())) {
      return absl::InternalError("the server announced a matrix that makes no sense");
    }
    matrix_.rows = info.rows();
    matrix_.cols = info.cols();
    matrix_.values = ZeroValues(FromProto(info.type()));
    arrays_.emplace_back(matrix_.row_offsets, info.rows() + 1);
    arrays_.emplace_back(matrix_.column_indices, info.nnz());
    std::visit([&](auto& values) { arrays_.emplace_back(values, info.nnz()); }, matrix_.values);
    return absl::OkStatus();
  }

  absl::Status Complete() override {
    if (arrays_.size() != 3 || !arrays_[0].complete() || !arrays_[1].complete() ||
        !arrays_[2].complete()) {
      return absl::InternalError("the server did not send the whole matrix");
    }
    return CheckCsr(matrix_.row_offsets, 0, matrix_.column_indices, matrix_.cols);
  }

  void Deliver(absl::Status status) override {
    if (status.ok()) {
      state_->Complete(std::move(matrix_));
    } else {
      state_->Complete(std::move(status));
    }
  }

  v1::DownloadRequest request_;
  const std::shared_ptr<CallState<CsrMatrix>> state_;
  CsrMatrix matrix_;
  std::vector<IncomingArray> arrays_;
};

}  // namespace

Call<Matrix> Upload(const std::shared_ptr<Connection>& connection, const std::string& name,
                    const Matrix& handle, const CsrView& matrix, const UploadOptions& upload,
                    const CallOptions& options) {
  const auto nnz = static_cast<int64_t>(matrix.column_indices.size());
  const auto offsets = std::visit(
      [](const auto& span) { return static_cast<int64_t>(span.size()); }, matrix.row_offsets);
  if (offsets - 1 != matrix.rows) {
    return Refused<Matrix>(absl::InvalidArgumentError(fmt::format(
        "row_offsets has {} elements, {} rows need one more than rows", offsets, matrix.rows)));
  }
  if (!upload.values_are_ones && Length(matrix.values) != nnz) {
    return Refused<Matrix>(absl::InvalidArgumentError(
        fmt::format("values has {} elements, column_indices {}", Length(matrix.values), nnz)));
  }
  v1::UploadHeader header;
  header.set_name(name);
  header.set_rows(matrix.rows);
  header.set_cols(matrix.cols);
  header.set_nnz(nnz);
  header.set_type(ToProto(TypeOf(matrix.values)));
  header.set_row_offsets_type(matrix.row_offsets.index() == 0 ? v1::ELEMENT_TYPE_I32
                                                              : v1::ELEMENT_TYPE_I64);
  header.set_replace(upload.replace);
  header.set_replicas(upload.replicas);
  header.set_time_to_live_ns(upload.time_to_live.count());
  header.set_sort(upload.sort);
  header.set_sum_duplicates(upload.sum_duplicates);
  header.set_pattern_hash(upload.pattern_hash);
  for (const ProblemSignature& signature : upload.expected) {
    *header.add_expected() = ToProto(signature);
  }
  header.set_values_are_ones(upload.values_are_ones);

  std::vector<OutgoingArray> arrays = {
      connection->Outgoing(
          0, std::visit([](const auto& span) { return BytesOf(span); }, matrix.row_offsets)),
      connection->Outgoing(1, BytesOf(matrix.column_indices))};
  if (!upload.values_are_ones) arrays.push_back(connection->Outgoing(2, BytesOf(matrix.values)));
  auto state = std::make_shared<CallState<Matrix>>();
  auto call = std::make_shared<UploadCall>(*connection, options, std::move(header),
                                           std::move(arrays), upload, handle, state);
  return Launch<Matrix>(connection, call, std::move(state));
}

Call<uint64_t> UpdateValues(const std::shared_ptr<Connection>& connection, const std::string& name,
                            const ConstValues& values, const UpdateOptions& update,
                            const CallOptions& options) {
  v1::UpdateValuesHeader header;
  header.set_name(name);
  header.set_type(ToProto(TypeOf(values)));
  header.set_durable(update.durable);
  header.set_if_version(update.if_version);
  auto state = std::make_shared<CallState<uint64_t>>();
  auto call = std::make_shared<UpdateValuesCall>(*connection, options, std::move(header),
                                                 connection->Outgoing(0, BytesOf(values)), state);
  return Launch<uint64_t>(connection, call, std::move(state));
}

Call<CsrMatrix> Download(const std::shared_ptr<Connection>& connection, const std::string& name,
                         const CallOptions& options, InShards<CsrMatrix> in_shards) {
  auto state = std::make_shared<CallState<CsrMatrix>>();
  auto call = std::make_shared<DownloadCall>(*connection, options, name, state);
  return Launch<CsrMatrix>(connection, call, std::move(state), std::move(in_shards));
}

}  // namespace client
}  // namespace sparsed
