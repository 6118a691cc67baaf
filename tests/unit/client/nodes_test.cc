// Clients of a cluster, and what a server may say of where to go on.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "sparsed/client.h"
#include "sparsed/v1/catalog.pb.h"
#include "sparsed/v1/types.pb.h"
#include "tests/unit/client/scripted_server.h"

namespace sparsed::test {
namespace {

using std::chrono::milliseconds;

constexpr char kGet[] = "/sparsed.v1.Catalog/Get";
constexpr char kServerInfo[] = "/sparsed.v1.Admin/GetServerInfo";

/// FAILED_PRECONDITION, and where to go instead.
Answer RedirectTo(const std::vector<std::string>& addresses) {
  v1::Redirect redirect;
  redirect.set_matrix("m");
  for (const std::string& address : addresses) redirect.add_addresses(address);
  v1::Status status;
  status.set_code(grpc::StatusCode::FAILED_PRECONDITION);
  status.set_message("elsewhere");
  google::protobuf::Any& detail = *status.add_details();
  detail.set_type_url("type.googleapis.com/sparsed.v1.Redirect");
  detail.set_value(redirect.SerializeAsString());
  return {.end = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "elsewhere",
                              status.SerializeAsString())};
}

Answer InfoWith(const std::vector<std::string>& node_addresses) {
  v1::ServerInfo info;
  info.set_max_chunk_bytes(1 << 20);
  info.set_max_requests_per_stream(4);
  for (const std::string& address : node_addresses) info.add_node_addresses(address);
  return {.replies = {wire::Encode(info)}};
}

Answer AMatrix() { return {.replies = {wire::Encode(v1::MatrixInfo())}}; }

Client MustConnect(const ScriptedServer& server) {
  auto client =
      Client::Connect(server.address(), {.max_attempts = 2, .initial_backoff = milliseconds(1)});
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

TEST(Nodes, ARedirectIsFollowed) {
  ScriptedServer node({{kGet, AMatrix()}}, ScriptedServer::Place::kPort);
  ScriptedServer home({{kGet, RedirectTo({node.address()})}});
  const Client client = MustConnect(home);
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = client.MatrixNamed("m").Info().status();
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(home.calls(kGet), 1);
  EXPECT_EQ(node.calls(kGet), 3);
}

TEST(Nodes, ARedirectToWhatIsNoHostAndPortIsRefused) {
  // It would serve whoever came.
  ScriptedServer socket({{kGet, AMatrix()}});
  ScriptedServer port({{kGet, AMatrix()}}, ScriptedServer::Place::kPort);
  for (const std::string& address :
       std::vector<std::string>{socket.address(),
                                "unix:80",
                                "UNIX:80",
                                "unix-abstract:80",
                                "dns:///" + port.address(),
                                "dns:80",
                                "ipv4:" + port.address(),
                                "ipv4:" + port.address() + "," + port.address(),
                                port.address() + "," + port.address(),
                                "http://" + port.address(),
                                "",
                                "localhost",
                                ":80",
                                "localhost:0",
                                "localhost:65536",
                                "localhost:-1",
                                "localhost:80x",
                                "[]:80",
                                "[::1:80",
                                "[::1]]:80",
                                "::1:80",
                                "a b:80",
                                std::string("a\0b:80", 6),
                                std::string(1000, 'x')}) {
    SCOPED_TRACE(address);
    ScriptedServer home({{kGet, RedirectTo({address})}});
    const absl::Status status = MustConnect(home).MatrixNamed("m").Info().status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("which is not HOST:PORT"));
    EXPECT_LT(status.message().size(), 1000u);
  }
  EXPECT_EQ(socket.calls(kServerInfo) + port.calls(kServerInfo), 0);
}

TEST(Nodes, OfTheAddressesThatAServerTellsThoseOfHostsAreAsked) {
  ScriptedServer socket({{kGet, AMatrix()}});
  ScriptedServer node({{kGet, AMatrix()}}, ScriptedServer::Place::kPort);
  const Answer away{.end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now")};
  ScriptedServer other({{kGet, away}}, ScriptedServer::Place::kPort);
  ScriptedServer home({{kServerInfo, InfoWith({socket.address(), "dns:///" + node.address(),
                                               other.address(), node.address()})},
                       {kGet, away}});
  const absl::Status status = MustConnect(home).MatrixNamed("m").Info().status();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(socket.calls(kServerInfo), 0);
  EXPECT_EQ(node.calls(kGet), 1);
}

TEST(Nodes, AHundredCallsThatAreRedirectedMakeOneConnection) {
  ScriptedServer node({{kGet, AMatrix()}}, ScriptedServer::Place::kPort);
  ScriptedServer home({{kGet, RedirectTo({node.address()})}});
  const Client client = MustConnect(home);
  constexpr int kCalls = 100;
  std::vector<Call<MatrixInfo>> calls;
  for (int i = 0; i < kCalls; ++i) calls.push_back(client.MatrixNamed("m").InfoAsync());
  for (Call<MatrixInfo>& call : calls) {
    const absl::Status status = call.Wait().status();
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(node.calls(kGet), kCalls);
  EXPECT_EQ(node.calls(kServerInfo), 1);
}

TEST(Nodes, OneThatIsSilentDoesNotTakeAllTheTimeThatThereIsForOthers) {
  // Takes connections, and says nothing.
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(name);
  ASSERT_EQ(bind(silent, reinterpret_cast<const sockaddr*>(&name), size), 0);
  ASSERT_EQ(listen(silent, 16), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&name), &size), 0);
  const std::string nowhere = "127.0.0.1:" + std::to_string(ntohs(name.sin_port));
  ScriptedServer node({{kGet, AMatrix()}}, ScriptedServer::Place::kPort);
  ScriptedServer home({{kServerInfo, InfoWith({nowhere, node.address()})},
                       {kGet, {.end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now")}}});
  const absl::Status status = MustConnect(home).MatrixNamed("m").Info().status();
  close(silent);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(node.calls(kGet), 1);
}

}  // namespace
}  // namespace sparsed::test
