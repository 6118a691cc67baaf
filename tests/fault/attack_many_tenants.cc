// A thousand tenants that do nothing: what each costs, and that metrics do not grow with them.
#include <fmt/format.h>
#include <openssl/sha.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "sparsed/client.h"
#include "tests/fault/attack.h"
#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

constexpr int kTenants = 1000;
constexpr double kMiB = 1 << 20;

std::string TokenOf(int tenant) { return fmt::format("token-of-{}", tenant); }

std::string AccessFile() {
  std::string text = "tokens:\n";
  for (int i = 0; i < kTenants; ++i) {
    const std::string token = TokenOf(i);
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest);
    text += fmt::format("  - {{name: n{}, sha256: {:02x}, tenant: t{}, role: user}}\n", i,
                        fmt::join(digest, ""), i);
  }
  return text;
}

/// Each uploads a tiny matrix, multiplies with it and deletes it; its client stays.
absl::Status UseOnce(const std::string& address, int tenant, std::vector<Client>& clients) {
  const auto client = Client::Connect(
      address, {.connect_timeout = std::chrono::seconds(30), .token = TokenOf(tenant)});
  if (!client.ok()) return client.status();
  const std::vector<int64_t> offsets = {0, 1, 2};
  const std::vector<int32_t> columns = {0, 1};
  const std::vector<float> values = {2, 3};
  const CsrView view{.rows = 2,
                     .cols = 2,
                     .row_offsets = std::span<const int64_t>(offsets),
                     .column_indices = columns,
                     .values = std::span<const float>(values)};
  const auto matrix = client->Upload("m", view);
  if (!matrix.ok()) return matrix.status();
  const std::vector<float> b = {5, 7};
  std::vector<float> c(2);
  const auto done = matrix->Spmm(DenseView(b.data(), 2, 1), MutableDenseView(c.data(), 2, 1));
  if (!done.ok()) return done.status();
  if (c != std::vector<float>{10, 21}) return absl::DataLossError("a wrong product");
  clients.push_back(*client);
  return matrix->Delete();
}

/// Tenants that the family with most of them names.
size_t TenantsIn(const std::string& page) {
  std::map<std::string, std::set<std::string>> families;
  std::istringstream lines(page);
  const std::string label = "tenant=\"";
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(label);
    if (at == std::string::npos) continue;
    const size_t begin = at + label.size();
    families[line.substr(0, line.find('{'))].insert(
        line.substr(begin, line.find('"', begin) - begin));
  }
  size_t most = 0;
  for (const auto& [family, tenants] : families) most = std::max(most, tenants.size());
  return most;
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  std::vector<std::string> flags = {"--host-memory=1GiB"};
  flags.insert(flags.end(), options.flags.begin(), options.flags.end());
  auto server = ServerUnderAttack::Start(flags, {.descriptors = 8192, .access_file = AccessFile()});
  if (!server.ok()) return server.status();
  const std::string address = (*server)->address();
  // What the first one costs all have.
  std::vector<Client> clients;
  if (absl::Status first = UseOnce(address, 0, clients); !first.ok()) return first;
  const auto before = static_cast<double>((*server)->resident_bytes());
  for (int i = 1; i < kTenants; ++i) {
    if (absl::Status used = UseOnce(address, i, clients); !used.ok()) return used;
  }
  const auto connected = static_cast<double>((*server)->resident_bytes());
  const auto page = HttpGet((*server)->metrics_address(), "/metrics", 30);
  if (!page.ok()) return page.status();
  clients.clear();
  std::this_thread::sleep_for(std::chrono::seconds(3));  // the server sees that they are gone
  const auto idle = static_cast<double>((*server)->resident_bytes());
  std::cout << fmt::format("metrics: {} bytes\n", page->size());
  bounds.MebibytesAtMost("999 tenants more, each with an open connection",
                         (connected - before) / kMiB, 100);
  bounds.MebibytesAtMost("999 tenants more that are gone", (idle - before) / kMiB, 50);
  bounds.AtMost("tenants that one metric names", static_cast<double>(TenantsIn(*page)), 51, "");
  bounds.True("the server lives", (*server)->Lives());
  bounds.True("it ends in order", (*server)->End(SIGTERM) == 0);
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "A thousand tenants call once each and then do nothing: what they cost in memory, with open\n"
      "connections and without, and how many of them metrics name.",
      0, sparsed::test::Attack);
}
