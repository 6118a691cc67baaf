// Any access file is read, or refused with the line and what is wrong there; what was read answers
// for anybody.
#include <yaml-cpp/yaml.h>

#include <memory>

#include "server/security/access_file.h"
#include "tests/fuzz/check.h"

using sparsed::fuzz::Check;
using sparsed::server::AccessFile;
using sparsed::server::Identity;

/// The last line says who asks, the others are the file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t end = text.rfind('\n');
  const std::string who = end == std::string::npos ? "" : text.substr(end + 1);
  const auto file = AccessFile::Parse(text.substr(0, end));
  if (!file.ok()) {
    Check(absl::IsInvalidArgument(file.status()) && !file.status().message().empty());
    return 0;
  }
  auto process = std::make_shared<sparsed::server::PeerProcess>();
  process->user = who;
  process->groups = {static_cast<uint32_t>(size), 0};
  for (const auto kind :
       {Identity::Kind::kToken, Identity::Kind::kCertificate, Identity::Kind::kProcess}) {
    Identity identity;
    identity.kind = kind;
    identity.digest = who;
    identity.digest.resize(32);
    identity.uris = {who, "spiffe://example.org/tenant/" + who};
    identity.common_name = who;
    identity.process = process;
    const auto grant = file->Find(identity);
    // A tenant's name is a label of metrics and part of paths that people read.
    if (grant) Check(!grant->tenant.empty() && grant->tenant.size() <= 64);
  }
  return 0;
}
