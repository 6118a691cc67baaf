// The client library with several streams, against the whole server.
#include <gtest/gtest.h>

#include <string>

#include "tests/rpc/test_server.h"
#include "tests/unit/client/stream_products.h"

namespace sparsed::test {
namespace {

CarriedBytes CarriedBy(const TestServer& server) {
  return [&server](const std::string& direction) {
    return server.Sample("sparsed_carried_bytes_total{direction=\"" + direction + "\"}");
  };
}

TEST(ClientStreams, ComputeTheSameAsOne) {
  TestServer server(WithPages);
  CheckStreams(server.address(), CarriedBy(server));
}

TEST(ClientStreams, OfManyCallsAtOnce) {
  TestServer server(WithPages);
  CheckStreamsAtOnce(server.address(), CarriedBy(server));
  EXPECT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 0; }));
}

}  // namespace
}  // namespace sparsed::test
