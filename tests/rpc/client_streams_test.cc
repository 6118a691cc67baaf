// The client library with several streams, against the whole server.
#include <gtest/gtest.h>

#include <string>

#include "tests/rpc/test_server.h"
#include "tests/unit/client/stream_products.h"

namespace sparsed::test {
namespace {

double Carried(TestServer& server, const std::string& direction) {
  const std::string page = server.Page("/metrics");
  const std::string name = "sparsed_carried_bytes_total{direction=\"" + direction + "\"} ";
  const size_t at = page.find(name);
  return at == std::string::npos ? -1 : std::stod(page.substr(at + name.size()));
}

TEST(ClientStreams, ComputeTheSameAsOne) {
  TestServer server(WithPages);
  CheckStreams(server.address(), [&](const std::string& to) { return Carried(server, to); });
}

TEST(ClientStreams, OfManyCallsAtOnce) {
  TestServer server(WithPages);
  CheckStreamsAtOnce(server.address(), [&](const std::string& to) { return Carried(server, to); });
  EXPECT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 0; }));
}

}  // namespace
}  // namespace sparsed::test
