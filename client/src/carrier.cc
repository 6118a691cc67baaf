#include "client/src/carrier.h"

#include "client/src/compute_session.h"

namespace sparsed {
inline namespace client {

Stream::Handler::Next Carrier::OnMessage(const grpc::ByteBuffer& bytes) {
  session_->OnCarried(*this, bytes);
  return Next::kRead;
}

void Carrier::OnClosed(const absl::Status& status) { session_->OnCarrierClosed(*this, status); }

}  // namespace client
}  // namespace sparsed
