// Buffers.Get, Catalog.Download, Cluster.Fetch and Cluster.FetchRows: arrays (perhaps from the
// disk, on a worker), then their chunks.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <vector>

#include "engine/engine.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/admit.h"
#include "server/rpc/array_chunks.h"
#include "server/rpc/client_wait.h"
#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/reactors.h"
#include "server/rpc/routes.h"
#include "server/rpc/worker_pool.h"
#include "server/security/access.h"
#include "server/telemetry/telemetry.h"
#include "sparsed/v1/cluster.pb.h"

namespace sparsed::server {
namespace {

struct Reply {
  struct Indexed {
    uint32_t index = 0;
    Array array;
  };
  grpc::ByteBuffer header;
  std::vector<Indexed> arrays;  ///< in the order in which they go
};

struct GetBuffer {
  static constexpr Op kOp = Op::kGetBuffer;
  using Request = v1::GetBufferRequest;
  using Lease = engine::HeldDenseLease;

  static absl::StatusOr<Lease> Find(const ServiceContext& service, const Caller& caller,
                                    const Request& request) {
    absl::Status here = RoutedBuffer(service, caller.tenant, request.name());
    if (!here.ok()) return here;
    return service.engine.dense().Find(caller.tenant, request.name());
  }

  static absl::StatusOr<Reply> Load(const ServiceContext& service, const Lease& held,
                                    const std::string& /*tenant*/, engine::Store::Stop stop) {
    absl::StatusOr<Array> elements = held->elements->Get(stop);
    if (!elements.ok()) return elements.status();
    v1::GetBufferReply reply;
    *reply.mutable_info() = ToBufferInfo(*held, service.engine.dense().now());
    return Reply{wire::Encode(reply), {{0, *std::move(elements)}}};
  }
};

struct Download {
  static constexpr Op kOp = Op::kDownload;
  using Request = v1::DownloadRequest;
  using Lease = engine::MatrixLease;

  static absl::StatusOr<Lease> Find(const ServiceContext& service, const Caller& caller,
                                    const Request& request) {
    return FindMatrix(service, caller.tenant, request.name());
  }

  static absl::StatusOr<Reply> Load(const ServiceContext& service, const Lease& matrix,
                                    const std::string& tenant, engine::Store::Stop stop) {
    v1::DownloadReply reply;
    auto arrays = Csr(service, *matrix, tenant, stop, *reply.mutable_header());
    if (!arrays.ok()) return arrays.status();
    return Reply{wire::Encode(reply), *std::move(arrays)};
  }

  /// The arrays, with what the header says of them.
  static absl::StatusOr<std::vector<Reply::Indexed>> Csr(const ServiceContext& service,
                                                         const engine::Matrix& matrix,
                                                         std::string_view tenant,
                                                         engine::Store::Stop stop,
                                                         v1::DownloadHeader& header) {
    const auto csr = matrix.pattern()->Csr(stop);
    if (!csr.ok()) return csr.status();
    const absl::StatusOr<Array> values = matrix.Values(stop);
    if (!values.ok()) return values.status();
    *header.mutable_matrix() = ToMatrixInfo(matrix, tenant, service.engine.executor());
    std::vector<Reply::Indexed> arrays;
    const auto add = [&](std::string_view name, const Array& array) {
      AddArrayHeader(name, array.type, array.length, *header.mutable_arrays());
      arrays.push_back({static_cast<uint32_t>(arrays.size()), array});
    };
    for (const char* name : {"row_offsets", "column_indices"}) add(name, *(*csr)->Find(name));
    add("values", *values);
    return arrays;
  }
};

/// OK if this is a node, and the caller is one.
absl::Status CheckNode(const ServiceContext& service, const Caller& caller) {
  if (service.cluster == nullptr) {
    return absl::FailedPreconditionError("this server is by itself, and no node (--etcd)");
  }
  return service.access.RequireNode(caller);
}

/// A copy for another node: what it needs to have the matrix as this one has it.
struct Fetch {
  static constexpr Op kOp = Op::kFetch;
  using Request = v1::FetchRequest;
  struct Wanted {
    engine::MatrixLease matrix;
    bool values_only = false;
  };
  using Lease = std::shared_ptr<const Wanted>;

  static absl::StatusOr<Lease> Find(const ServiceContext& service, const Caller& caller,
                                    const Request& request) {
    if (absl::Status node = CheckNode(service, caller); !node.ok()) return node;
    // Copying is no use of it.
    engine::MatrixLease matrix = service.engine.catalog().Look(request.tenant(), request.name());
    if (matrix == nullptr) return engine::NoMatrix(request.name());
    return std::make_shared<const Wanted>(Wanted{std::move(matrix), request.values_only()});
  }

  static absl::StatusOr<Reply> Load(const ServiceContext& service, const Lease& wanted,
                                    const std::string& /*tenant*/, engine::Store::Stop stop) {
    const engine::Matrix& matrix = *wanted->matrix;
    v1::DownloadReply reply;
    v1::DownloadHeader& header = *reply.mutable_header();
    auto arrays = Download::Csr(service, matrix, matrix.tenant(), stop, header);
    if (!arrays.ok()) return arrays.status();
    // Plans and measurements each node makes itself.
    header.mutable_matrix()->clear_measurements();
    header.mutable_matrix()->clear_decisions();
    if (matrix.caller_order() != nullptr) {
      const absl::StatusOr<Array> order = matrix.caller_order()->Get(stop);
      if (!order.ok()) return order.status();
      AddArrayHeader("caller_order", order->type, order->length, *header.mutable_arrays());
      header.set_caller_order(true);
      arrays->insert(arrays->begin(), {3, *order});
    } else if (wanted->values_only) {
      arrays->erase(arrays->begin(), arrays->begin() + 2);
    }
    return Reply{wire::Encode(reply), *std::move(arrays)};
  }
};

/// Rows of a part of a buffer, for another node's product.
struct FetchRows {
  static constexpr Op kOp = Op::kFetchRows;
  using Request = v1::FetchRowsRequest;
  struct Wanted {
    engine::HeldDenseLease held;
    std::vector<uint32_t> rows;
  };
  using Lease = std::shared_ptr<const Wanted>;

  /// Not the node's: tenants take turns here, too.
  static const std::string& TenantOf(const Request& request) { return request.tenant(); }
  /// It says many rows; who is not a node was refused before it is read.
  static absl::Status Parse(const grpc::ByteBuffer& bytes, Request& request) {
    return wire::Parse(bytes, request);
  }

  static absl::StatusOr<Lease> Find(const ServiceContext& service, const Caller& caller,
                                    const Request& request) {
    if (absl::Status node = CheckNode(service, caller); !node.ok()) return node;
    absl::StatusOr<engine::HeldDenseLease> held =
        service.engine.dense().Find(request.tenant(), request.name());
    if (!held.ok()) return held.status();
    if ((*held)->version != request.version()) {
      return absl::AbortedError(
          fmt::format("\"{}\" has version {} there, and {} where it is used: its parts are of "
                      "different products, put it again",
                      request.name(), (*held)->version, request.version()));
    }
    for (const uint32_t row : request.rows()) {
      if (row < (*held)->shape.rows) continue;
      return absl::InvalidArgumentError(fmt::format("\"{}\" has {} rows, and row {} is wanted",
                                                    request.name(), (*held)->shape.rows, row));
    }
    return std::make_shared<const Wanted>(
        Wanted{*std::move(held), {request.rows().begin(), request.rows().end()}});
  }

  static absl::StatusOr<Reply> Load(const ServiceContext& service, const Lease& wanted,
                                    const std::string& /*tenant*/, engine::Store::Stop stop) {
    const engine::HeldDense& held = *wanted->held;
    const absl::StatusOr<Array> elements = held.elements->Get(stop);
    if (!elements.ok()) return elements.status();
    const engine::DenseShape shape{.rows = static_cast<int64_t>(wanted->rows.size()),
                                   .cols = held.shape.cols,
                                   .leading_dimension = held.shape.cols,
                                   .type = held.shape.type};
    engine::Budget& budget = service.engine.budget();
    absl::StatusOr<Array> rows =
        AllocateArray(budget.Source(engine::MemoryUse::kRequests, &budget.OwnerOf(held.tenant)),
                      "rows", shape.type, shape.elements());
    if (!rows.ok()) return rows.status();
    const size_t width = static_cast<size_t>(shape.cols) * SizeOf(shape.type);
    const size_t stride = static_cast<size_t>(std::max(held.shape.leading_dimension, shape.cols)) *
                          SizeOf(shape.type);
    const std::byte* const from = elements->buffer.data();
    std::byte* to = rows->buffer.mutable_data();
    for (const uint32_t row : wanted->rows) {
      std::memcpy(to, from + row * stride, width);
      to += width;
    }
    service.cluster->CountRowsSent(static_cast<int64_t>(rows->bytes()));
    v1::FetchRowsReply reply;
    ToProto(shape, *reply.mutable_header()->mutable_shape());
    return Reply{wire::Encode(reply), {{0, *std::move(rows)}}};
  }
};

/// `Method`: one of the above.
template <typename Method>
class SendReactor final : public BytesWriteReactor, public LiveStream {
 public:
  SendReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
              const grpc::ByteBuffer& request, const Caller& caller)
      : LiveStream(caller),
        service_(service),
        context_(*context),
        record_(service.telemetry.Begin(Method::kOp, caller, "")) {
    absl::Status status = absl::UnavailableError("the server is shutting down");
    if (service_.live_streams.Add(this)) status = Open(request, caller);
    if (!status.ok()) Conclude(std::move(status));
  }

  void OnWriteDone(bool ok) override {
    if (absl::Status status = delivery_.End(ok); !status.ok()) return Conclude(std::move(status));
    while (!arrays_.empty() && arrays_.front().done()) arrays_.pop_front();
    if (arrays_.empty()) {
      record_[Phase::kSend] = NanosecondsSince(first_write_);
      return Conclude(absl::OkStatus());
    }
    size_t bytes = 0;
    out_ = arrays_.front().Next(&bytes);
    record_.stream_bytes_out += bytes;
    bytes_left_ -= static_cast<int64_t>(bytes);
    Write();
  }

  void OnCancel() override { stop_ = true; }
  void OnRefused(const absl::Status& why) override { CancelCall(context_, why); }
  void OnTick(const Patience& patience) override { delivery_.Tick(patience, context_); }
  void Count(InFlightTable& table) override {
    const Activity activity = loaded_ ? Activity::kSending : Activity::kWorking;
    table[{Method::kOp, activity}].Add(delivery_.bytes_left(), begun_);
  }
  void OnDone() override {
    service_.live_streams.Remove(this);
    delete this;
  }

 private:
  absl::Status Open(const grpc::ByteBuffer& bytes, const Caller& caller) {
    typename Method::Request request;
    absl::Status parsed;
    if constexpr (requires { Method::Parse(bytes, request); }) {
      parsed = Method::Parse(bytes, request);
    } else {
      parsed = wire::ParseRequest(bytes, request);
    }
    if (!parsed.ok()) return parsed;
    record_.subject = request.name();
    auto lease = Method::Find(service_, caller, request);
    if (!lease.ok()) return lease.status();
    lease_ = *std::move(lease);
    std::string for_whom = record_.tenant;
    if constexpr (requires { Method::TenantOf(request); }) for_whom = Method::TenantOf(request);
    return service_.workers.Run(for_whom, [this] {
      if (absl::Status status = Load(); !status.ok()) Conclude(std::move(status));
    });
  }

  /// On a worker; starts the writing.
  absl::Status Load() {
    absl::StatusOr<Reply> reply = Method::Load(service_, lease_, record_.tenant, &stop_);
    if (!reply.ok()) return reply.status();
    lease_.reset();
    for (Reply::Indexed& indexed : reply->arrays) {
      bytes_left_ += static_cast<int64_t>(indexed.array.bytes());
      arrays_.emplace_back(0, indexed.index, 0, std::move(indexed.array));
    }
    out_ = std::move(reply->header);
    first_write_ = StageRecord::Clock::now();
    loaded_ = true;
    Write();
    return absl::OkStatus();
  }

  void Write() {
    delivery_.Begin(bytes_left_, [this] { StartWrite(&out_); });
  }

  /// The terminal transition; `this` may be gone afterwards.
  void Conclude(absl::Status status) {
    arrays_.clear();
    lease_.reset();
    record_.status = status;
    service_.telemetry.End(std::move(record_));
    EndCount();
    Finish(ToGrpc(status));
  }

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  StageRecord record_;
  const StageRecord::Clock::time_point begun_ = record_.begun;
  StageRecord::Clock::time_point first_write_;
  typename Method::Lease lease_;
  std::deque<ArrayChunks> arrays_;
  int64_t bytes_left_ = 0;  ///< of them
  grpc::ByteBuffer out_;
  Delivery delivery_;
  std::atomic<bool> loaded_ = false;
  std::atomic<bool> stop_ = false;  ///< nobody waits for what is read from the disk
};

template <typename Method>
BytesWriteReactor* Start(const ServiceContext& service, grpc::CallbackServerContext* context,
                         const grpc::ByteBuffer& request) {
  return ForCaller<BytesWriteReactor>(Method::kOp, service, *context, [&](const Caller& caller) {
    return new SendReactor<Method>(service, context, request, caller);
  });
}

}  // namespace

BytesWriteReactor* StartGetBuffer(const ServiceContext& service,
                                  grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer& request) {
  return Start<GetBuffer>(service, context, request);
}

BytesWriteReactor* StartFetch(const ServiceContext& service, grpc::CallbackServerContext* context,
                              const grpc::ByteBuffer& request) {
  return Start<Fetch>(service, context, request);
}

BytesWriteReactor* StartFetchRows(const ServiceContext& service,
                                  grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer& request) {
  return Start<FetchRows>(service, context, request);
}

BytesWriteReactor* StartDownload(const ServiceContext& service,
                                 grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer& request) {
  return Start<Download>(service, context, request);
}

}  // namespace sparsed::server
