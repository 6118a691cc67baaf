#include "client/src/compute_stream.h"

#include <chrono>

#include "client/src/compute_session.h"
#include "client/src/connection.h"
#include "client/src/dense_call.h"

namespace sparsed {
inline namespace client {

ComputeStream::~ComputeStream() {
  if (!session_) return;
  session_->Break();
  session_->WaitUntilClosed();
}

void ComputeStream::Submit(const std::shared_ptr<DenseCall>& call) {
  std::shared_ptr<ComputeSession> session;
  {
    const MutexLock lock(mutex_);
    session = session_;
  }
  while (!session || !session->Add(call)) {
    const MutexLock lock(mutex_);
    if (session_ == session) {
      session_ = std::make_shared<ComputeSession>(connection_.max_requests_per_stream());
      const std::shared_ptr<Stream> stream =
          Stream::Create(connection_.stub(), method_, std::chrono::system_clock::time_point::max(),
                         connection_.chunk_bytes(), session_);
      session_->Use(stream);
      stream->Start();
    }
    session = session_;
  }
}

}  // namespace client
}  // namespace sparsed
