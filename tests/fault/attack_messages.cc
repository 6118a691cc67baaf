// Messages that are begun and never finished.
#include <vector>

#include "tests/fault/raw_http2.h"
#include "tests/fault/wire_attack.h"

namespace sparsed::test {
namespace {

constexpr int kConnections = 700;
constexpr uint32_t kMessageBytes = 3 << 20;
constexpr auto kTime = std::chrono::seconds(20);

struct Attacker {
  std::unique_ptr<RawHttp2> connection;
  std::string_view left;
};

/// 700 connections with 3 MiB of one message each, all but its last byte.
void Round(const std::string& address) {
  std::string message(1, '\0');
  for (const int shift : {24, 16, 8, 0}) message += static_cast<char>(kMessageBytes >> shift);
  message += std::string(kMessageBytes - 1, '\0');
  std::vector<Attacker> crowd(kConnections);
  for (Attacker& attacker : crowd) {
    attacker = {std::make_unique<RawHttp2>(address), message};
    attacker.connection->Send(
        Http2Frame(kHeadersFrame, kEndHeadersFlag, 1, CallHeaders("/sparsed.v1.Catalog/Upload")));
  }
  const auto until = std::chrono::steady_clock::now() + kTime;
  bool busy = true;
  while (busy && std::chrono::steady_clock::now() < until) {
    busy = false;
    for (Attacker& attacker : crowd) {
      attacker.connection->SendData(&attacker.left);
      busy = busy || (attacker.connection->open() && !attacker.left.empty());
    }
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  return WireAttack(options, bounds, Round);
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "700 messages of 3 MiB that lack their last byte, against --host-memory=512MiB in a control\n"
      "group of 2 GiB. Needs root, for the control group.",
      0, sparsed::test::Attack);
}
