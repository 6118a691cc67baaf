#include <memory>
#include <utility>

#include "server/rpc/admit.h"
#include "server/rpc/client_wait.h"
#include "server/rpc/compute_stream.h"
#include "server/rpc/connection_share.h"
#include "server/rpc/convert.h"
#include "server/rpc/reactors.h"

namespace sparsed::server {
namespace {

/// A stream of Compute.Spmm, Sddmm, Spgemm or Chain over gRPC.
class ComputeReactor final : public BytesBidiReactor, public ComputeTransport {
 public:
  ComputeReactor(Op op, const ServiceContext& service, grpc::CallbackServerContext* context,
                 const Caller& caller)
      : op_(op),
        context_(*context),
        stream_(
            std::make_shared<ComputeStream>(service, caller, service.shares.Of(*context), *this)) {
    stream_->Begin();
  }

 private:
  // gRPC's calls.

  void OnReadDone(bool ok) override {
    if (!ok) return stream_->OnReadsDone();
    grpc::ByteBuffer message;
    message.Swap(&in_);
    stream_->OnMessage(op_, std::move(message));
  }
  void OnWriteDone(bool ok) override { stream_->OnWritten(ok); }
  void OnCancel() override { stream_->OnCancel(); }
  void OnDone() override {
    stream_->OnDone();
    delete this;
  }

  // The stream's.

  void Read() override { StartRead(&in_); }
  bool Write(const grpc::ByteBuffer* message, bool more) override {
    grpc::WriteOptions options;
    if (more) options.set_buffer_hint();
    StartWrite(message, options);
    return false;
  }
  void Finish(const absl::Status& status) override { BytesBidiReactor::Finish(ToGrpc(status)); }
  void Cancel(const absl::Status& status) override { CancelCall(context_, status); }
  bool IsCancelled() const override { return context_.IsCancelled(); }
  bool is_ring() const override { return false; }
  bool idle() const override { return false; }  // others' messages come on it, too

  const Op op_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer in_;
  const std::shared_ptr<ComputeStream> stream_;
};

}  // namespace

BytesBidiReactor* StartCompute(Op op, const ServiceContext& service,
                               grpc::CallbackServerContext* context) {
  return ForCaller<BytesBidiReactor>(op, service, *context, [&](const Caller& caller) {
    return new ComputeReactor(op, service, context, caller);
  });
}

}  // namespace sparsed::server
