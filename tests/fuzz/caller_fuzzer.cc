// Whatever somebody shows of himself: he is somebody whom the access file names, or is told why
// not.
#include <sys/stat.h>

#include <fstream>
#include <memory>

#include "server/log/log.h"
#include "server/security/access.h"
#include "tests/fuzz/check.h"

namespace sparsed::server {
namespace {

using fuzz::Check;

std::unique_ptr<Access> OpenAccess() {
  std::string path = "/tmp/sparsed_fuzz_access_XXXXXX";
  const int file = mkstemp(path.data());
  constexpr std::string_view kText =
      // The token is "token".
      "tokens:\n"
      "  - {name: t, sha256: 3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0,"
      " tenant: tokens}\n"
      "certificates:\n"
      "  - {uri: 'spiffe://a/{tenant}/b'}\n"
      "  - {common_name: 'x{tenant}'}\n"
      "peers:\n"
      "  - {group: 7, tenant: group}\n"
      "  - {user: 'u{tenant}'}\n";
  Check(write(file, kText.data(), kText.size()) == static_cast<ssize_t>(kText.size()));
  close(file);
  auto access = Access::Open(path);
  Check(access.ok());
  return *std::move(access);
}

}  // namespace
}  // namespace sparsed::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparsed::server;  // NOLINT(google-build-using-namespace)
  using sparsed::fuzz::Check;
  static const std::unique_ptr<Access> access = [] {
    StartLog(LogLevel::kError, LogFormat::kText);
    return OpenAccess();
  }();
  sparsed::fuzz::Input input(data, size);
  const auto what = input.Number<uint8_t>();
  const std::string_view header = input.Word();
  Evidence evidence;
  evidence.private_way = (what & 1) != 0;
  if ((what & 2) != 0) evidence.token = TokenIn(header);
  if ((what & 4) != 0) evidence.uris = {std::string(input.Word()), std::string(input.Word())};
  if ((what & 8) != 0) evidence.common_name = input.Word();
  if ((what & 16) != 0) {
    auto process = std::make_shared<PeerProcess>();
    process->groups = {input.Number<uint8_t>()};
    process->user = input.Word();
    evidence.process = process;
  }
  const auto caller = access->Identify(evidence);
  if (!caller.ok()) {
    Check(absl::IsUnauthenticated(caller.status()) && !caller.status().message().empty());
    return 0;
  }
  Check(evidence.private_way || !evidence.token);
  // A token that came with the call is right, whatever else there is.
  if (evidence.token) Check(*evidence.token == "token" && caller->tenant == "tokens");
  Check(!caller->tenant.empty() && caller->tenant.size() <= 64);
  Check(access->Check(*caller).ok());
  return 0;
}
