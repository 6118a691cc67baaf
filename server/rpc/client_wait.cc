#include "server/rpc/client_wait.h"

#include <grpc/grpc.h>

#include "server/rpc/convert.h"

namespace sparsed::server {

void CancelCall(grpc::CallbackServerContext& context, const absl::Status& status) {
  const grpc::Status wire = ToGrpc(status);
  grpc_call_cancel_with_status(context.c_call(), static_cast<grpc_status_code>(wire.error_code()),
                               wire.error_message().c_str(), nullptr);
}

bool Reception::Take() {
  const MutexLock lock(mutex_);
  awaiting_ = false;
  return !given_up_;
}

bool Reception::GivesUp(const Patience& patience) {
  const MutexLock lock(mutex_);
  if (!awaiting_ || given_up_) return false;
  // What has brought nothing loses nothing by coming again, to the next server.
  given_up_ = (patience.draining && bytes_ == 0) || patience.IsOver(last_byte_, patience.receive);
  return given_up_;
}

uint64_t Reception::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_;
}

absl::Status Delivery::End(bool ok) {
  const MutexLock lock(mutex_);
  writing_ = false;
  if (ok) return absl::OkStatus();
  return given_up_.ok() ? absl::CancelledError("the reader is gone") : given_up_;
}

void Delivery::Tick(const Patience& patience, grpc::CallbackServerContext& context) {
  const MutexLock lock(mutex_);
  if (!writing_ || !given_up_.ok() || !patience.IsOver(since_, patience.send)) return;
  given_up_ = patience.NothingTaken("the reader took nothing");
  CancelCall(context, given_up_);
}

int64_t Delivery::bytes_left() const {
  const MutexLock lock(mutex_);
  return bytes_left_;
}

}  // namespace sparsed::server
