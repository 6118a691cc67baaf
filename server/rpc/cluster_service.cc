#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "server/cluster/cluster.h"
#include "server/rpc/reactors.h"
#include "server/rpc/routes.h"
#include "server/rpc/unary.h"
#include "server/security/access.h"
#include "sparsed/v1/cluster.grpc.pb.h"

namespace sparsed::server {
namespace {

/// In which a node that has just joined is known to all others, amply.
constexpr std::chrono::seconds kJoinPatience(1);

using Service = v1::Cluster::WithRawCallbackMethod_ListNodes<
    v1::Cluster::WithRawCallbackMethod_DrainNode<v1::Cluster::WithRawCallbackMethod_ForgetNode<
        v1::Cluster::WithRawCallbackMethod_CopyHere<v1::Cluster::WithRawCallbackMethod_Fetch<
            v1::Cluster::WithRawCallbackMethod_FetchRows<v1::Cluster::Service>>>>>>;

class ClusterService final : public Service {
 public:
  explicit ClusterService(const ServiceContext& service) : service_(service) {}

  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* bytes,
                                      grpc::ByteBuffer* response) override {
    return Answer<v1::ListNodesRequest, v1::ListNodesReply>(
        Op::kListNodes, service_, context, bytes, response,
        [this](const auto&, const Caller&, v1::ListNodesReply& reply) {
          if (absl::Status status = InCluster(); !status.ok()) return status;
          reply.set_problem(service_.cluster->Problem());
          for (const Cluster::Node& node : service_.cluster->Nodes()) {
            v1::ClusterNode& message = *reply.add_nodes();
            message.set_name(node.record.name);
            message.set_address(node.record.address);
            for (const std::string& device : node.record.devices) message.add_devices(device);
            message.set_memory_bytes(node.record.memory_bytes);
            message.set_free_memory_bytes(node.record.free_memory_bytes);
            message.set_matrices(node.matrices);
            message.set_copies(node.copies);
            message.set_alive(node.alive);
            message.set_draining(node.draining);
            message.set_asked(node.record.name == service_.cluster->self().name);
          }
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* DrainNode(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* bytes,
                                      grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::DrainNodeRequest, v1::DrainNodeReply>(
        Op::kDrainNode, service_, context, bytes, response,
        [this](const v1::DrainNodeRequest& request, const Caller&, v1::DrainNodeReply& reply) {
          if (absl::Status status = InCluster(); !status.ok()) return status;
          const absl::StatusOr<int64_t> matrices =
              service_.cluster->Drain(request.node(), request.undo());
          if (matrices.ok()) reply.set_matrices(*matrices);
          return matrices.status();
        });
  }

  grpc::ServerUnaryReactor* ForgetNode(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* bytes,
                                       grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::ForgetNodeRequest, v1::ForgetNodeReply>(
        Op::kForgetNode, service_, context, bytes, response,
        [this](const v1::ForgetNodeRequest& request, const Caller&, v1::ForgetNodeReply& reply) {
          if (absl::Status status = InCluster(); !status.ok()) return status;
          const auto forgotten = service_.cluster->Forget(request.node(), request.lose_matrices());
          if (!forgotten.ok()) return forgotten.status();
          reply.set_records(forgotten->records);
          reply.set_lost(forgotten->lost);
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* CopyHere(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* bytes,
                                     grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::CopyHereRequest, v1::CopyHereReply>(
        Op::kCopyHere, service_, context, bytes, response,
        [this](const v1::CopyHereRequest& request, const Caller& caller, v1::CopyHereReply& reply) {
          if (absl::Status status = InCluster(); !status.ok()) return status;
          if (absl::Status node = service_.access.RequireNode(caller); !node.ok()) return node;
          if (absl::Status from = CheckSource(request.from()); !from.ok()) return from;
          absl::StatusOr<v1::CopyHereReply> copied = service_.cluster->CopyHere(request);
          if (copied.ok()) reply = *std::move(copied);
          return copied.status();
        });
  }

  BytesWriteReactor* Fetch(grpc::CallbackServerContext* context,
                           const grpc::ByteBuffer* request) override {
    return StartFetch(service_, context, *request);
  }

  BytesWriteReactor* FetchRows(grpc::CallbackServerContext* context,
                               const grpc::ByteBuffer* request) override {
    return StartFetchRows(service_, context, *request);
  }

 private:
  absl::Status InCluster() const {
    if (service_.cluster != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError("this server is by itself, and no node (--etcd)");
  }

  /// FAILED_PRECONDITION unless another node has that address: no other is called, nor told the
  /// cluster's secret, whoever asks for it. May wait for kJoinPatience.
  absl::Status CheckSource(const std::string& from) const {
    const auto known = [&] {
      const std::vector<std::string> addresses = service_.cluster->Addresses();
      return std::ranges::find(addresses, from) != addresses.end();
    };
    if (from == service_.cluster->self().address) {
      return absl::FailedPreconditionError("a node does not copy from itself");
    }
    const auto until = std::chrono::steady_clock::now() + kJoinPatience;
    while (!known()) {
      if (std::chrono::steady_clock::now() > until) {
        return absl::FailedPreconditionError(
            fmt::format("no node of the cluster has the address '{}'", absl::CHexEscape(from)));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return absl::OkStatus();
  }

  const ServiceContext& service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(const ServiceContext& context) {
  return std::make_unique<ClusterService>(context);
}

}  // namespace sparsed::server
