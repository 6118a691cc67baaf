#include "tests/rpc/test_client.h"

#include "sparsed/client.h"

namespace sparsed::test {

absl::StatusOr<WhoAmI> ConnectClient(const std::string& address, const Shown& shown) {
  ClientOptions options;
  options.max_attempts = 1;
  options.tls = {shown.ca, shown.certificate, shown.key, shown.server_name};
  options.token = shown.token;
  options.token_file = shown.token_file;
  absl::StatusOr<Client> client = Client::Connect(address, options);
  if (!client.ok()) return client.status();
  return [client = *std::move(client)]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<ServerInfo> info = client.GetServerInfo();
    if (!info.ok()) return info.status();
    return info->tenant + " " + info->role;
  };
}

}  // namespace sparsed::test
