// Products run on the server.
#include <fmt/format.h>

#include "client/c/local.h"

namespace sparsed::c {
namespace {

absl::Status NoKernels(std::string_view what) {
  return absl::UnimplementedError(fmt::format(
      "{} takes a library that brings the kernels along: use libsparsed_attached.so", what));
}

absl::Status OnGpu() { return NoKernels("a product with operands on a GPU"); }

}  // namespace

bool HasKernels() { return false; }

class LocalClient::Gpus {};

LocalClient::LocalClient(Client client, const LocalOptions& options)
    : client_(std::move(client)), options_(options) {}
LocalClient::~LocalClient() = default;

absl::StatusOr<void*> LocalClient::AllocateOnGpu(const Place&, size_t) {
  return NoKernels("memory of a GPU");
}
absl::Status LocalClient::FreeOnGpu(const Place&, void*) { return NoKernels("memory of a GPU"); }

absl::StatusOr<ComputeResult> LocalClient::Run(const Place& place, const Chain& chain,
                                               const CallOptions& options) {
  if (place.gpu >= 0) return OnGpu();
  return client_.Run(chain, options);
}

class LocalMatrix::Attachments {};

LocalMatrix::LocalMatrix(std::shared_ptr<LocalClient> client, const std::string& name)
    : client_(std::move(client)), matrix_(client_->client().MatrixNamed(name)) {}
LocalMatrix::~LocalMatrix() = default;

absl::Status LocalMatrix::Attach(int) { return NoKernels("attaching to a matrix"); }

absl::StatusOr<ComputeResult> LocalMatrix::Spmm(const Place& place, const Operand& b,
                                                const Destination& c, const SpmmOptions& spmm,
                                                const CallOptions& options) {
  if (place.gpu >= 0) return OnGpu();
  return matrix_.Spmm(b, c, spmm, options);
}

absl::StatusOr<ComputeResult> LocalMatrix::Sddmm(const Place& place, const Operand& a,
                                                 const Operand& b, const Destination& values,
                                                 const SddmmOptions& sddmm,
                                                 const CallOptions& options) {
  if (place.gpu >= 0) return OnGpu();
  return matrix_.Sddmm(a, b, values, sddmm, options);
}

absl::StatusOr<ComputeResult> LocalMatrix::Run(const Place& place, const Chain& chain,
                                               const CallOptions& options) {
  return client_->Run(place, chain, options);
}

}  // namespace sparsed::c
