// What a connection shows the server of who calls.
#pragma once

#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/private_file.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

/// Of one client; thread-safe.
class Credentials {
 public:
  /// What `options` say, and where they say nothing the environment (see ClientOptions). Errors:
  /// FAILED_PRECONDITION with the path for a file that cannot be read, PERMISSION_DENIED for one
  /// that holds secrets and can be read by others; INVALID_ARGUMENT for what does not go together,
  /// or a token that would travel in plain text to `address`.
  static absl::StatusOr<std::shared_ptr<Credentials>> Open(const std::string& address,
                                                           const ClientOptions& options);

  const std::shared_ptr<grpc::ChannelCredentials>& channel() const { return channel_; }
  /// The channel is TLS.
  bool encrypted() const { return encrypted_; }
  /// That its certificate must be for; empty: the address'.
  const std::string& server_name() const { return server_name_; }
  /// For the next call; empty: none. Reads the token's file again if it has changed; one that
  /// cannot be read any more leaves the token that was in it.
  std::string Token();

 private:
  std::shared_ptr<grpc::ChannelCredentials> channel_;
  bool encrypted_ = false;
  std::string server_name_;
  std::string file_;
  Mutex mutex_;
  FileStamp stamp_ ABSL_GUARDED_BY(mutex_);
  std::string token_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace client
}  // namespace sparsed
