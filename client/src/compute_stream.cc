#include "client/src/compute_stream.h"

#include <chrono>

#include "client/src/compute_session.h"
#include "client/src/connection.h"
#include "client/src/dense_call.h"

namespace sparsed {
inline namespace client {

ComputeStream::~ComputeStream() {
  for (const std::shared_ptr<ComputeSession>& session : sessions_) {
    session->Break();
    session->WaitUntilClosed();
  }
}

void ComputeStream::Submit(const std::shared_ptr<DenseCall>& call) {
  std::shared_ptr<ComputeSession> session = Last();
  while (!session || !session->Add(call)) {
    const MutexLock lock(mutex_);
    if (sessions_.empty() || sessions_.back() == session) {
      std::erase_if(sessions_, [](const auto& broken) { return broken->closed(); });
      const auto next = std::make_shared<ComputeSession>(
          connection_, static_cast<size_t>(connection_.max_requests_per_stream()),
          connection_.carriers());
      sessions_.push_back(next);
      const std::shared_ptr<Stream> stream =
          Stream::Create(connection_.stub(), method_, std::chrono::system_clock::time_point::max(),
                         connection_.chunk_bytes(), next, connection_.Token());
      next->Use(stream);
      stream->Start();
    }
    session = sessions_.back();
  }
}

std::shared_ptr<ComputeSession> ComputeStream::Last() {
  const MutexLock lock(mutex_);
  return sessions_.empty() ? nullptr : sessions_.back();
}

}  // namespace client
}  // namespace sparsed
