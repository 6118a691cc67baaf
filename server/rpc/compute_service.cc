#include "server/rpc/reactors.h"
#include "sparsed/v1/compute.grpc.pb.h"

namespace sparsed::server {
namespace {

using Service = v1::Compute::WithRawCallbackMethod_Spmm<v1::Compute::WithRawCallbackMethod_Sddmm<
    v1::Compute::WithRawCallbackMethod_Spgemm<v1::Compute::WithRawCallbackMethod_Chain<
        v1::Compute::WithRawCallbackMethod_Carry<v1::Compute::Service>>>>>;

class ComputeService final : public Service {
 public:
  explicit ComputeService(const ServiceContext& service) : service_(service) {}

  BytesBidiReactor* Spmm(grpc::CallbackServerContext* context) override {
    return StartCompute(Op::kSpmm, service_, context);
  }
  BytesBidiReactor* Sddmm(grpc::CallbackServerContext* context) override {
    return StartCompute(Op::kSddmm, service_, context);
  }
  BytesBidiReactor* Spgemm(grpc::CallbackServerContext* context) override {
    return StartCompute(Op::kSpgemm, service_, context);
  }
  BytesBidiReactor* Chain(grpc::CallbackServerContext* context) override {
    return StartCompute(Op::kChain, service_, context);
  }
  BytesBidiReactor* Carry(grpc::CallbackServerContext* context) override {
    return StartCarry(service_, context);
  }

 private:
  const ServiceContext& service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeComputeService(const ServiceContext& context) {
  return std::make_unique<ComputeService>(context);
}

}  // namespace sparsed::server
