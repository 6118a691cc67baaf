// Who calls, and what he may: tokens, users of Unix sockets, roles, the HTTP port, and what is
// refused at the start.
#include "server/security/access.h"

#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "tests/rpc/test_certificates.h"
#include "tests/rpc/test_server.h"
#include "tests/rpc/test_tokens.h"

namespace sparsed::test {
namespace {

using server::Role;
using testing::HasSubstr;

/// An access file with a token of each role, which are called as the roles are.
std::string AllRoles() {
  return "tokens:\n" + TokenLine("read-only", "tenant: t, role: read-only") +
         TokenLine("user", "tenant: t") + TokenLine("operator", "tenant: ops, role: operator");
}

class AccessTest : public testing::Test {
 protected:
  AccessTest() {
    std::string folder = testing::TempDir() + "sparsed_access_XXXXXX";
    folder_ = mkdtemp(folder.data());
    path_ = folder_ + "/access.yaml";
  }
  ~AccessTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& text, int mode = 0600) { WriteFile(path_, text, mode); }
  /// At loopback, where nobody is known by his user.
  std::unique_ptr<TestServer> Start(const std::function<void(server::Config&)>& adjust = {}) {
    return std::make_unique<TestServer>([&](server::Config& config) {
      config.listen = {"127.0.0.1:0"};
      config.access_file = path_;
      if (adjust) adjust(config);
    });
  }

  std::string folder_, path_;
};

grpc::Status Info(TestServer& server, const std::string& token, v1::ServerInfo* info = nullptr) {
  grpc::ClientContext context;
  Show(context, token);
  v1::ServerInfo reply;
  const grpc::Status status =
      server.admin().GetServerInfo(&context, v1::GetServerInfoRequest(), &reply);
  if (info != nullptr) *info = reply;
  return status;
}

/// Ends as the method does when it gets an empty request and nothing more.
grpc::Status CallEmpty(grpc::Channel& channel, const std::string& method,
                       const std::string& token) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  Show(context, token);
  const grpc::internal::RpcMethod rpc(method.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING);
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          &channel, rpc, &context));
  const grpc::Slice nothing;
  stream->Write(grpc::ByteBuffer(&nothing, 1));
  stream->WritesDone();
  grpc::ByteBuffer reply;
  while (stream->Read(&reply)) {
    // It goes on for as long as somebody reads.
    if (method.ends_with("/WatchRequests")) context.TryCancel();
  }
  return stream->Finish();
}

/// Who adds an RPC says here who may call it.
const std::map<std::string, Role> kLeast = {{"Catalog/Upload", Role::kUser},
                                            {"Catalog/UpdateValues", Role::kUser},
                                            {"Catalog/Prepare", Role::kUser},
                                            {"Catalog/Rename", Role::kUser},
                                            {"Catalog/Copy", Role::kUser},
                                            {"Catalog/Delete", Role::kUser},
                                            {"Catalog/Share", Role::kUser},
                                            {"Buffers/Put", Role::kUser},
                                            {"Buffers/Delete", Role::kUser},
                                            {"Buffers/Renew", Role::kUser},
                                            {"Catalog/Get", Role::kReadOnly},
                                            {"Catalog/List", Role::kReadOnly},
                                            {"Catalog/Download", Role::kReadOnly},
                                            {"Catalog/Watch", Role::kReadOnly},
                                            {"Catalog/ListMeasurements", Role::kReadOnly},
                                            {"Catalog/Explain", Role::kReadOnly},
                                            {"Catalog/MakeSharded", Role::kUser},
                                            {"Buffers/Get", Role::kReadOnly},
                                            {"Buffers/List", Role::kReadOnly},
                                            {"Compute/Spmm", Role::kReadOnly},
                                            {"Compute/Sddmm", Role::kReadOnly},
                                            {"Compute/Spgemm", Role::kReadOnly},
                                            {"Compute/Chain", Role::kReadOnly},
                                            {"Compute/Carry", Role::kReadOnly},
                                            {"Admin/GetServerInfo", Role::kReadOnly},
                                            {"Admin/ListTenants", Role::kReadOnly},
                                            {"Admin/ListSlow", Role::kReadOnly},
                                            {"Admin/WatchRequests", Role::kReadOnly},
                                            {"Admin/SaveSnapshot", Role::kOperator},
                                            {"Admin/ListModels", Role::kOperator},
                                            {"Admin/PutModel", Role::kOperator},
                                            {"Admin/ActivateModel", Role::kOperator},
                                            {"Admin/RollbackModel", Role::kOperator},
                                            {"Admin/RemoveModel", Role::kOperator},
                                            {"Admin/Calibrate", Role::kOperator},
                                            {"Admin/GetStats", Role::kOperator}};

TEST_F(AccessTest, EveryMethodKnowsItsCallers) {
  Write(AllRoles());
  const auto server = Start();
  size_t methods = 0;
  for (const char* name : {"Catalog", "Compute", "Buffers", "Admin"}) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
        std::string("sparsed.v1.") + name);
    ASSERT_NE(service, nullptr);
    for (int i = 0; i < service->method_count(); ++i, ++methods) {
      const std::string method = std::string(name) + "/" + service->method(i)->name();
      SCOPED_TRACE(method);
      const auto least = kLeast.find(method);
      ASSERT_NE(least, kLeast.end()) << "who may call it?";
      const auto call = [&](const std::string& token) {
        return CallEmpty(*server->channel(), "/sparsed.v1." + method, token).error_code();
      };
      EXPECT_EQ(call(""), grpc::StatusCode::UNAUTHENTICATED);
      EXPECT_EQ(call("wrong"), grpc::StatusCode::UNAUTHENTICATED);
      for (const Role role : {Role::kReadOnly, Role::kUser, Role::kOperator}) {
        SCOPED_TRACE(server::Name(role));
        const grpc::StatusCode code = call(std::string(server::Name(role)));
        EXPECT_NE(code, grpc::StatusCode::UNAUTHENTICATED);
        EXPECT_NE(code, grpc::StatusCode::DEADLINE_EXCEEDED);
        EXPECT_EQ(code == grpc::StatusCode::PERMISSION_DENIED, role < least->second) << code;
      }
    }
  }
  EXPECT_EQ(methods, kLeast.size());
}

TEST_F(AccessTest, HealthAndReflectionAreOpen) {
  Write(AllRoles());
  const auto server = Start();
  EXPECT_TRUE(CallEmpty(*server->channel(), "/grpc.health.v1.Health/Check", "").ok());
  EXPECT_TRUE(CallEmpty(*server->channel(),
                        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "")
                  .ok());
}

TEST_F(AccessTest, ATokenSaysTenantAndRole) {
  Write(AllRoles());
  const auto server = Start();
  v1::ServerInfo info;
  ASSERT_TRUE(Info(*server, "user", &info).ok());
  EXPECT_EQ(info.tenant(), "t");
  EXPECT_EQ(info.role(), "user");
  const grpc::Status wrong = Info(*server, "user ");  // a space is part of it
  EXPECT_EQ(wrong.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(wrong.error_message(), HasSubstr("none that this server knows"));
  EXPECT_THAT(Info(*server, "").error_message(), HasSubstr("nothing says who calls"));
  grpc::ClientContext context;  // two of them
  Show(context, "user");
  Show(context, "operator");
  v1::ServerInfo reply;
  EXPECT_EQ(server->admin().GetServerInfo(&context, {}, &reply).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(AccessTest, WithoutAnAccessFileTokensAreRefused) {
  TestServer server;
  EXPECT_TRUE(Info(server, "").ok());
  EXPECT_THAT(Info(server, "any").error_message(), HasSubstr("--access-file"));
}

TEST_F(AccessTest, OfTwoTenantsNeitherFindsTheOthersMatrix) {
  Write("tokens:\n" + TokenLine("one", "tenant: one") + TokenLine("two", "tenant: two"));
  const auto server = Start();
  const auto put = [&](const std::string& token) {
    grpc::ClientContext context;
    Show(context, token);
    v1::BufferInfo info;
    auto writer = server->buffers().Put(&context, &info);
    v1::PutBufferRequest request;
    request.mutable_header()->set_name("mine");
    request.mutable_header()->mutable_shape()->set_rows(1);
    request.mutable_header()->mutable_shape()->set_cols(1);
    request.mutable_header()->mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
    writer->Write(request);
    WriteArray<v1::PutBufferRequest>(*writer, 0, 0, std::string(4, '\0'));
    writer->WritesDone();
    return writer->Finish();
  };
  ASSERT_TRUE(put("one").ok());
  grpc::ClientContext context;
  Show(context, "two");
  v1::ListBuffersReply reply;
  ASSERT_TRUE(server->buffers().List(&context, {}, &reply).ok());
  EXPECT_EQ(reply.buffers_size(), 0);
}

TEST_F(AccessTest, AUserOfAUnixSocketIsWhoTheFileSays) {
  Write(fmt::format("peers:\n  - {{user: \"{}\", tenant: mine, role: operator}}\n", geteuid()) +
        "tokens:\n" + TokenLine("user", "tenant: t"));
  const auto unix_socket = [&](server::Config& config) {
    config.listen = {"unix:" + folder_ + "/socket"};
    config.socket_mode = 0600;
    config.socket_group = getegid();
  };
  auto server = Start(unix_socket);
  struct stat facts = {};
  ASSERT_EQ(stat((folder_ + "/socket").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  v1::ServerInfo info;
  ASSERT_TRUE(Info(*server, "", &info).ok());
  EXPECT_EQ(info.tenant(), "mine");
  EXPECT_EQ(info.role(), "operator");
  ASSERT_TRUE(Info(*server, "user", &info).ok());  // a token counts before the user
  EXPECT_EQ(info.tenant(), "t");
  server.reset();

  Write("peers:\n  - {user: nobody-of-this-name, tenant: other}\n");
  server = Start(unix_socket);
  const grpc::Status stranger = Info(*server, "");
  EXPECT_EQ(stranger.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(stranger.error_message(), HasSubstr("no rule of the server's access file"));
  server.reset();

  Write(fmt::format("peers:\n  - {{group: \"{}\", tenant: group}}\n", getegid()));
  server = Start(unix_socket);
  ASSERT_TRUE(Info(*server, "", &info).ok());
  EXPECT_EQ(info.tenant(), "group");
}

TEST_F(AccessTest, WhoReadsKeepsNothing) {
  Write(AllRoles());
  const auto server = Start();
  grpc::ClientContext context;
  Show(context, "read-only");
  auto stream = server->compute().Spgemm(&context);
  v1::SpgemmRequest request;
  request.mutable_start()->set_request_id(1);
  request.mutable_start()->set_left("a");
  request.mutable_start()->set_right("b");
  request.mutable_start()->set_keep_as("c");
  stream->Write(request);
  request.mutable_start()->set_request_id(2);
  request.mutable_start()->clear_keep_as();
  stream->Write(request);
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 2, &answers));
  EXPECT_EQ(answers[1].code(), static_cast<int>(grpc::StatusCode::PERMISSION_DENIED));
  EXPECT_THAT(answers[1].message(), HasSubstr("role read-only"));
  EXPECT_EQ(answers[2].code(), static_cast<int>(grpc::StatusCode::NOT_FOUND));
}

/// A stream of a caller who is somebody else, or nobody, from some moment on.
void ExpectStreamEnds(TestServer& server, const std::string& token,
                      const std::function<void()>& change, const std::string& sentence) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  Show(context, token);
  auto stream = server.compute().Spmm(&context);
  ASSERT_TRUE(stream->Write(SpmmStartOf(1, "none", 1, 1)));  // it is accepted
  v1::ComputeReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  change();
  EXPECT_FALSE(stream->Read(&reply));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr(sentence));
  EXPECT_EQ(Info(server, token).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(AccessTest, ARevokedTokenEndsItsStreams) {
  Write(AllRoles());
  const auto server = Start();
  ExpectStreamEnds(
      *server, "user", [&] { Write("tokens:\n" + TokenLine("operator", "tenant: ops")); },
      "knows the token user no more");
  EXPECT_TRUE(Info(*server, "operator").ok());
}

TEST_F(AccessTest, AnExpiredTokenEndsItsStreams) {
  const std::string soon =
      absl::FormatTime(absl::RFC3339_sec, absl::Now() + absl::Seconds(3), absl::UTCTimeZone());
  Write("tokens:\n" + TokenLine("short", fmt::format("tenant: t, expires: \"{}\"", soon)) +
        TokenLine("past", "tenant: t, expires: 2020-01-01"));
  const auto server = Start();
  EXPECT_THAT(Info(*server, "past").error_message(), HasSubstr("expired at 2020-01-01"));
  ExpectStreamEnds(
      *server, "short", [] {}, "expired at");
}

TEST_F(AccessTest, AWrongFileLeavesTheOneBeforeInForce) {
  Write(AllRoles());
  const auto server = Start(WithPages);
  Write("tokens: what?");
  EXPECT_TRUE(Eventually([&] {
    return server->Page("/metrics")
               .find(
                   "sparsed_reloads_total{file=\"access\",result=\"failed\"} "
                   "1") != std::string::npos;
  }));
  EXPECT_TRUE(Info(*server, "user").ok());
  Write(AllRoles() + TokenLine("new", "tenant: t"));
  EXPECT_TRUE(Eventually([&] { return Info(*server, "new").ok(); }));
}

TEST_F(AccessTest, PagesThatNameMatricesTakeAToken) {
  Write(AllRoles());
  const auto server = Start([](server::Config& config) {
    WithPages(config);
    config.metrics_token = true;
  });
  const auto code = [&](const std::string& page, const std::string& token) {
    std::string head;
    const std::string header = token.empty() ? "" : "\r\nauthorization: bearer " + token;
    server->Page(page + " HTTP/1.0" + header + "\r\nx: ", &head);
    return head.substr(9, 3);
  };
  EXPECT_EQ(code("/healthz", ""), "200");
  EXPECT_EQ(code("/readyz", ""), "200");
  EXPECT_EQ(code("/metrics", ""), "401");
  EXPECT_EQ(code("/metrics", "read-only"), "200");
  EXPECT_EQ(code("/", ""), "200");  // which names nothing
  EXPECT_EQ(code("/api/configuration", ""), "401");
  EXPECT_EQ(code("/api/configuration", "wrong"), "401");
  EXPECT_EQ(code("/api/configuration", "user"), "403");
  EXPECT_EQ(code("/api/configuration", "operator"), "200");
}

TEST_F(AccessTest, ATokenInPlainTextFromElsewhereCountsForNothing) {
  Write(AllRoles());
  auto access = server::Access::Open(path_);
  ASSERT_TRUE(access.ok()) << access.status();
  const auto caller = (*access)->Identify({.token = "user", .private_way = false});
  EXPECT_TRUE(absl::IsUnauthenticated(caller.status()));
  EXPECT_THAT(std::string(caller.status().message()), HasSubstr("plain text"));
  EXPECT_TRUE((*access)->Identify({.token = "user", .private_way = true}).ok());
  EXPECT_EQ((*access)->counts().denied[static_cast<size_t>(server::Denial::kUnencrypted)], 1);
}

/// Why a server does not start.
std::string WhyNot(const std::function<void(server::Config&)>& adjust) {
  server::Config config;
  config.devices = {"cpu"};
  config.metrics_listen.clear();
  config.host_memory_bytes = int64_t{64} << 20;
  config.listen = {"127.0.0.1:0"};
  adjust(config);
  const auto server = server::Server::Start(config);
  return server.ok() ? "it starts" : std::string(server.status().message());
}

TEST_F(AccessTest, WhatIsWrongIsSaidAtTheStart) {
  const auto with_file = [&](const std::string& text, int mode = 0600) {
    Write(text, mode);
    return WhyNot([&](server::Config& config) { config.access_file = path_; });
  };
  EXPECT_THAT(with_file("tokens:\n", 0644), HasSubstr("others can read or change it"));
  EXPECT_THAT(with_file("tokens: [}"), HasSubstr(path_ + ":1:10: this is not YAML: "));
  EXPECT_THAT(with_file("token: []"),
              HasSubstr(path_ + ":1:1: unknown key 'token'; there are tokens, "));
  EXPECT_THAT(with_file("tokens:\n  - {name: a, tenant: t}"),
              HasSubstr(path_ + ":2:5: sha256 is missing"));
  EXPECT_THAT(with_file("tokens:\n  - {name: a, sha256: secret, tenant: t}"),
              HasSubstr("sparsectl token hash"));
  EXPECT_THAT(with_file("tokens:\n" + TokenLine("a", "tenant: a/b")),
              HasSubstr("no tenant's name"));
  EXPECT_THAT(with_file("tokens:\n" + TokenLine("a", "tenant: t, role: root")),
              HasSubstr("none of read-only, user and operator"));
  EXPECT_THAT(with_file("tokens:\n" + TokenLine("a", "tenant: t, expires: soon")),
              HasSubstr("'soon' is no time"));
  EXPECT_THAT(with_file("peers:\n  - {group: no-such-group, tenant: t}"), HasSubstr("no group"));
  EXPECT_THAT(with_file("peers:\n  - {user: \"{tenant}\", tenant: t}"), HasSubstr("already"));
  EXPECT_THAT(with_file("certificates:\n  - {tenant: t}"), HasSubstr("uri or common_name"));
  EXPECT_THAT(with_file("tokens:\n  - {name: a, tenant: t}\n  - {name: b, sha256: x, tenant: t}\n"
                        "peers:\n  - {group: no-such-group, tenant: t}\ntenants:\n  a/b: {}"),
              testing::AllOf(HasSubstr("2:5: sha256 is missing; 3:23: sha256 is not 64"),
                             HasSubstr("; 5:13: this machine has no group 'no-such-group'; "),
                             HasSubstr("; 7:3: 'a/b' is no tenant's name")))
      << "all entries at once";
  EXPECT_THAT(with_file("tenants: [a]"), HasSubstr(":1:10: tenants is no map"));
  EXPECT_THAT(with_file("tenants:\n  a/b: {}"), HasSubstr(":2:3: 'a/b' is no tenant's name"));
  EXPECT_THAT(with_file("tenants:\n  a: {}\n  a: {}"), HasSubstr(":3:3: tenant 'a' again"));
  EXPECT_THAT(with_file("tenants:\n  a: {wait: 1}"), HasSubstr("there are weight, quotas"));
  EXPECT_THAT(with_file("tenants:\n  a: {weight: none}"), HasSubstr("from 0.001 to 1000"));
  EXPECT_THAT(with_file("tenants:\n  a: {weight: 0}"), HasSubstr("weight is '0'"));
  EXPECT_THAT(with_file("tenants:\n  a:\n    quotas: {ram: 1}"),
              HasSubstr(":3:14: unknown quota 'ram'; there are disk_bytes, host_bytes"));
  EXPECT_THAT(with_file("tenants:\n  a: {quotas: {host_bytes: 8 potatoes}}"),
              HasSubstr("host_bytes is '8 potatoes', expected a number of bytes such as 8GiB"));
  EXPECT_THAT(with_file("tenants:\n  a: {quotas: {matrices: 8GiB}}"),
              HasSubstr("expected a whole number of 0 or more, or none"));
  EXPECT_THAT(with_file("tenants:\n  a: {quotas: {matrices: -1}}"), HasSubstr("'-1'"));
  EXPECT_THAT(with_file("tenants:\n  a: {quotas: {disk_bytes: 99999999999TiB}}"),
              HasSubstr("disk_bytes is"));
  EXPECT_THAT(with_file("tenants:\n  a: {quotas: {matrices: {soft: 3, hard: 2}}}"),
              HasSubstr("a soft limit of 3 above its hard limit of 2"));
  EXPECT_THAT(WhyNot([&](auto& config) { config.access_file = folder_ + "/none"; }),
              HasSubstr("No such file"));
}

TEST_F(AccessTest, OtherMachinesAreServedByAServerThatKnowsThemAlone) {
  Write(AllRoles());
  const auto anywhere = [](server::Config& config) { config.listen = {"0.0.0.0:0"}; };
  EXPECT_THAT(WhyNot(anywhere), HasSubstr("--insecure"));
  EXPECT_THAT(WhyNot([&](auto& config) {
                anywhere(config);
                config.access_file = path_;
                config.insecure = true;
              }),
              HasSubstr("tokens do not travel in plain text"));
  EXPECT_EQ(WhyNot([&](auto& config) {
              anywhere(config);
              config.insecure = true;
            }),
            "it starts");
}

}  // namespace
}  // namespace sparsed::test
