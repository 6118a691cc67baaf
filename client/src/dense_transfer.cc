#include "client/src/dense_transfer.h"

#include <fmt/format.h>

#include <utility>

#include "base/coverage.h"
#include "client/src/arrays.h"
#include "client/src/convert.h"
#include "client/src/exchange.h"
#include "sparsed/v1/buffers.pb.h"

namespace sparsed {
inline namespace client {
namespace {

class PutCall final : public Exchange {
 public:
  PutCall(Connection& connection, const CallOptions& options, v1::PutBufferHeader header,
          OutgoingArray elements, DenseMatrix handle, std::shared_ptr<CallState<DenseMatrix>> state)
      : Exchange(connection, "/sparsed.v1.Buffers/Put", options, Repeat::kUntilSent),
        elements_(std::move(elements)),
        handle_(std::move(handle)),
        state_(std::move(state)) {
    *request_.mutable_header() = std::move(header);
  }

 private:
  void Open(Stream& stream) override {
    stored_ = false;
    std::vector<OutgoingArray> arrays;
    if (!request_.header().zeros()) {
      arrays.push_back(elements_.ForAttempt(++attempt_, Lease()));
    }
    stream.Send(wire::Encode(request_), 0, std::move(arrays));
    stream.CloseSending();
  }

  std::vector<SharedMemory::Place> SharedPlaces() const override {
    return PlacesOf({&elements_, 1});
  }

  absl::StatusOr<Next> OnReply(Stream&, const grpc::ByteBuffer& bytes) override {
    v1::BufferInfo reply;
    if (absl::Status status = ParseReply(bytes, reply); !status.ok()) return status;
    stored_ = true;
    return Next::kRead;
  }

  absl::Status Complete() override {
    return stored_ ? absl::OkStatus() : absl::InternalError("the server sent no reply");
  }

  void Deliver(absl::Status status) override {
    if (status.ok()) {
      state_->Complete(handle_);
    } else {
      state_->Complete(std::move(status));
    }
  }

  v1::PutBufferRequest request_;
  const OutgoingArray elements_;  // without a lease
  int attempt_ = -1;
  const DenseMatrix handle_;
  const std::shared_ptr<CallState<DenseMatrix>> state_;
  bool stored_ = false;
};

/// Chunks speak the buffer's leading dimension, which may differ from the caller's.
class ReadCall final : public Exchange {
 public:
  ReadCall(Connection& connection, const CallOptions& options, const std::string& name,
           const MutableDenseView& into, std::shared_ptr<CallState<DenseInfo>> state)
      : Exchange(connection, "/sparsed.v1.Buffers/Get", options, Repeat::kSafe),
        into_(into),
        state_(std::move(state)) {
    request_.set_name(name);
  }

 private:
  void Open(Stream& stream) override {
    received_.reset();
    stream.Send(wire::Encode(request_));
    stream.CloseSending();
  }

  absl::StatusOr<Next> OnReply(Stream&, const grpc::ByteBuffer& bytes) override {
    auto frame = DecodeReply<v1::GetBufferReply>(bytes);
    if (!frame.ok()) return frame.status();
    absl::Status status;
    if (const auto* chunk = std::get_if<wire::ChunkView>(&*frame)) {
      status = Copy(*chunk);
    } else if (const auto& reply = std::get<v1::GetBufferReply>(*frame); reply.has_info()) {
      status = Prepare(reply.info());
    }
    if (!status.ok()) return status;
    return Next::kRead;
  }

  absl::Status Prepare(const v1::BufferInfo& announced) {
    DenseInfo info = FromProto(announced);
    if (info.rows != into_.rows || info.cols != into_.cols || info.type != into_.type) {
      return absl::InvalidArgumentError(
          fmt::format("{} is {} x {} {}, the destination {} x {} {}", request_.name(), info.rows,
                      info.cols, Name(info.type), into_.rows, into_.cols, Name(into_.type)));
    }
    // What the matrix would take with the server's leading dimension, checked like the caller's.
    const auto wire =
        BytesOf(DenseView(into_.data, info.type, info.rows, info.cols, info.leading_dimension),
                "the server's matrix");
    if (!wire.ok() || received_ || announced.shape().type() != ToProto(info.type)) {
      return absl::InternalError("the server announced a matrix that makes no sense");
    }
    const size_t element = SizeOf(info.type);
    row_bytes_ = static_cast<size_t>(info.cols) * element;
    wire_stride_ = static_cast<size_t>(info.leading_dimension) * element;
    own_stride_ =
        static_cast<size_t>(into_.leading_dimension == 0 ? into_.cols : into_.leading_dimension) *
        element;
    received_.emplace(info.rows == 0 ? 0 : (info.rows - 1) * wire_stride_ + row_bytes_);
    info_ = std::move(info);
    return absl::OkStatus();
  }

  absl::Status Copy(const wire::ChunkView& chunk) {
    if (chunk.array != 0 || !received_ || !received_->Add(chunk.offset, chunk.size)) {
      return absl::InternalError(
          fmt::format("the server sent {} bytes at {} of array {}, outside of it or twice",
                      chunk.size, chunk.offset, chunk.array));
    }
    size_t offset = chunk.offset;
    for (const grpc::Slice& slice : chunk.data) {
      CopyRows(offset, reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
      offset += slice.size();
    }
    return absl::OkStatus();
  }

  void CopyRows(size_t offset, const std::byte* in, size_t size) {
    auto* out = static_cast<std::byte*>(into_.data);
    while (size > 0) {
      const size_t row = offset / wire_stride_;
      const size_t in_row = offset % wire_stride_;
      const size_t n = std::min(size, wire_stride_ - in_row);
      if (in_row < row_bytes_) {
        std::memcpy(out + row * own_stride_ + in_row, in, std::min(n, row_bytes_ - in_row));
      }
      offset += n;
      in += n;
      size -= n;
    }
  }

  absl::Status Complete() override {
    return received_ && received_->complete()
               ? absl::OkStatus()
               : absl::InternalError("the server did not send the whole matrix");
  }

  void Deliver(absl::Status status) override {
    if (status.ok()) {
      state_->Complete(std::move(info_));
    } else {
      state_->Complete(std::move(status));
    }
  }

  v1::GetBufferRequest request_;
  const MutableDenseView into_;
  const std::shared_ptr<CallState<DenseInfo>> state_;
  DenseInfo info_;
  std::optional<Coverage> received_;
  size_t row_bytes_ = 0;
  size_t wire_stride_ = 0;
  size_t own_stride_ = 0;
};

}  // namespace

Call<DenseMatrix> PutDense(const std::shared_ptr<Connection>& connection, const DenseMatrix& handle,
                           const DenseView& matrix, bool zeros, const PutOptions& put,
                           const CallOptions& options, uint64_t version) {
  StridedBytes bytes;
  if (!zeros) {
    const auto given = BytesOf(matrix, "the matrix");
    if (!given.ok()) return Refused<DenseMatrix>(given.status());
    bytes = *given;
  }
  v1::PutBufferHeader header;
  header.set_name(handle.name());
  header.mutable_shape()->set_rows(matrix.rows);
  header.mutable_shape()->set_cols(matrix.cols);
  header.mutable_shape()->set_type(ToProto(matrix.type));
  header.set_zeros(zeros);
  header.set_durable(put.durable);
  header.set_owner(put.owner);
  if (put.distribution == Distribution::kColumns) {
    header.set_distribution(v1::DISTRIBUTION_COLUMNS);
  } else if (put.distribution == Distribution::kRows) {
    header.set_distribution(v1::DISTRIBUTION_ROWS);
  } else if (put.distribution == Distribution::kAuto) {
    header.set_distribution(v1::DISTRIBUTION_AUTO);
  }
  header.set_rows_of(put.rows_of);
  header.set_version(version);
  if (put.time_to_live.has_value()) {
    // 0 would be the server's default.
    if (put.time_to_live->count() == 0) {
      return Refused<DenseMatrix>(absl::InvalidArgumentError(
          "a time to live is more than 0; leave it out for the server's"));
    }
    header.set_time_to_live_ns(put.time_to_live->count());
  }
  auto state = std::make_shared<CallState<DenseMatrix>>();
  auto call = std::make_shared<PutCall>(*connection, options, std::move(header),
                                        connection->Outgoing(0, bytes), handle, state);
  return Launch<DenseMatrix>(connection, call, std::move(state));
}

Call<DenseInfo> ReadDense(const std::shared_ptr<Connection>& connection, const std::string& name,
                          const MutableDenseView& into, const CallOptions& options) {
  if (const auto bytes = BytesOf(into, "the destination"); !bytes.ok()) {
    return Refused<DenseInfo>(bytes.status());
  }
  auto state = std::make_shared<CallState<DenseInfo>>();
  auto call = std::make_shared<ReadCall>(*connection, options, name, into, state);
  return Launch<DenseInfo>(connection, call, std::move(state));
}

Call<std::vector<DenseInfo>> ListDense(const std::shared_ptr<Connection>& connection,
                                       const std::string& prefix, bool all,
                                       const CallOptions& options) {
  v1::ListBuffersRequest request;
  request.set_prefix(prefix);
  request.set_all(all);
  return LaunchList<v1::ListBuffersRequest, v1::ListBuffersReply, DenseInfo>(
      connection, "/sparsed.v1.Buffers/List", options, std::move(request),
      [](const v1::ListBuffersReply& reply) {
        std::vector<DenseInfo> matrices;
        for (const v1::BufferInfo& info : reply.buffers()) matrices.push_back(FromProto(info));
        return matrices;
      });
}

Call<DenseInfo> RenewDense(const std::shared_ptr<Connection>& connection, const std::string& name,
                           const CallOptions& options) {
  v1::RenewBufferRequest request;
  request.set_name(name);
  return LaunchUnary<v1::BufferInfo, DenseInfo>(
      connection, "/sparsed.v1.Buffers/Renew", options, true, request,
      [](const v1::BufferInfo& info) { return FromProto(info); });
}

Call<void> DeleteDense(const std::shared_ptr<Connection>& connection, const std::string& name,
                       const CallOptions& options) {
  v1::DeleteBufferRequest request;
  request.set_name(name);
  return LaunchUnary<v1::DeleteBufferReply, void>(connection, "/sparsed.v1.Buffers/Delete", options,
                                                  false, request, nullptr);
}

}  // namespace client
}  // namespace sparsed
