// A block of header fields that never ends.
#include "tests/fault/raw_http2.h"
#include "tests/fault/wire_attack.h"

namespace sparsed::test {
namespace {

constexpr int64_t kBytes = 2048 * kMiB;

/// 2 GiB of one field's value, on as many connections as that takes.
void Round(const std::string& address) {
  const std::string first =
      Http2Frame(kHeadersFrame, 0, 1, CallHeaders("/sparsed.v1.Admin/GetStats") + EndlessField());
  const std::string next = Http2Frame(kContinuationFrame, 0, 1, std::string(16384, 'x'));
  std::string many;
  for (int i = 0; i < 64; ++i) many += next;
  int64_t sent = 0;
  while (sent < kBytes) {
    RawHttp2 connection(address);
    if (!connection.Send(first)) {
      if (!connection.open()) sent += 16384;  // also when it is refused, the round ends
      continue;
    }
    while (sent < kBytes && connection.Send(many)) sent += static_cast<int64_t>(many.size());
    sent += 1 << 18;  // on its way when the server closed it
  }
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  return WireAttack(options, bounds, Round);
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(argc, argv,
                                   "HEADERS with endless CONTINUATION, 2 GiB a round, against "
                                   "--host-memory=512MiB in a control\n"
                                   "group of 2 GiB. Needs root, for the control group.",
                                   0, sparsed::test::Attack);
}
