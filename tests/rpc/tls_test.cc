// TLS and mutual TLS: real connections, certificates that are wrong, and others that come while the
// server runs.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "server/listener/self_probe.h"
#include "server/security/sha256.h"
#include "tests/rpc/test_certificates.h"
#include "tests/rpc/test_client.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using testing::HasSubstr;

constexpr const char* kServerNames = "IP:127.0.0.1,DNS:localhost";

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    std::string folder = testing::TempDir() + "sparsed_tls_XXXXXX";
    folder_ = mkdtemp(folder.data());
    WriteServer(ca_, {.common_name = "server", .names = kServerNames});
    WriteFile(Path("ca.pem"), ca_.certificate(), 0644);
    const std::string digest = server::Sha256("a-token-for-tests");
    WriteFile(Path("access.yaml"),
              fmt::format("tokens:\n  - {{name: t, sha256: {}, tenant: tokens}}\n"
                          "certificates:\n"
                          "  - {{uri: \"spiffe://test/{{tenant}}/client\"}}\n"
                          "  - {{common_name: admin, tenant: ops, role: operator}}\n",
                          absl::BytesToHexString({digest.data(), digest.size()})));
  }
  ~TlsTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void WriteServer(const CertificateAuthority& ca, const CertificateFacts& facts) {
    const IssuedCertificate made = ca.Issue(facts);
    WriteFile(Path("server.key"), made.key);
    WriteFile(Path("server.pem"), made.certificate, 0644);
  }
  void Start(const std::function<void(server::Config&)>& adjust = {}) {
    server_ = std::make_unique<TestServer>([&](server::Config& config) {
      WithPages(config);
      config.listen = {"127.0.0.1:0"};
      config.access_file = Path("access.yaml");
      config.tls_certificate = Path("server.pem");
      config.tls_key = Path("server.key");
      config.tls_client_ca = Path("ca.pem");
      if (adjust) adjust(config);
    });
  }

  /// With a certificate of its own, unless that is empty.
  absl::StatusOr<WhoAmI> Connect(const IssuedCertificate& own, const std::string& token = "",
                                 const std::string& ca = "ca.pem") const {
    Shown shown = {.ca = Path(ca), .token = token};
    if (!own.certificate.empty()) {
      WriteFile(Path("client.pem"), own.certificate, 0644);
      WriteFile(Path("client.key"), own.key);
      shown.certificate = Path("client.pem");
      shown.key = Path("client.key");
    }
    return ConnectClient(server_->address(), shown);
  }
  static std::string TenantOf(const absl::StatusOr<WhoAmI>& client) {
    if (!client.ok()) return std::string(client.status().message());
    const absl::StatusOr<std::string> answer = (*client)();
    return answer.ok() ? *answer : std::string(answer.status().message());
  }

  const CertificateAuthority ca_{"the authority"};
  std::string folder_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(TlsTest, ACertificateOrATokenSaysWhoCalls) {
  Start();
  EXPECT_EQ(TenantOf(Connect({}, "a-token-for-tests")), "tokens user");
  EXPECT_EQ(
      TenantOf(Connect(ca_.Issue({.common_name = "x", .names = "URI:spiffe://test/red/client"}))),
      "red user");
  EXPECT_EQ(TenantOf(Connect(ca_.Issue({.common_name = "admin"}))), "ops operator");
  EXPECT_THAT(TenantOf(Connect(ca_.Issue({.common_name = "stranger"}))),
              HasSubstr("certificate of \"stranger\""));
  EXPECT_THAT(TenantOf(Connect({})), HasSubstr("nothing says who calls"));
  EXPECT_THAT(TenantOf(Connect({}, "another-token")), HasSubstr("none that this server knows"));
}

TEST_F(TlsTest, LargeOperandsTravelOverSeveralConnections) {
  Start();
  const auto carried = [&](const std::string& direction) {
    return server_->Sample("sparsed_carried_bytes_total{direction=\"" + direction + "\"}");
  };
  ASSERT_EQ(carried("in"), 0);
  const absl::Status done =
      MultiplyUntil(server_->address(), {.ca = Path("ca.pem"), .token = "a-token-for-tests"},
                    [&] { return carried("in") > 0 && carried("out") > 0; });
  EXPECT_TRUE(done.ok()) << done;
  EXPECT_GT(carried("in"), 0);
  EXPECT_GT(carried("out"), 0);
}

TEST_F(TlsTest, WrongCertificatesDoNotConnect) {
  Start();
  const CertificateAuthority other("another authority");
  EXPECT_TRUE(absl::IsUnavailable(Connect(other.Issue({.common_name = "admin"})).status()));
  EXPECT_TRUE(absl::IsUnavailable(
      Connect(ca_.Issue({.common_name = "admin", .lifetime = -std::chrono::hours(1)})).status()));
  WriteFile(Path("other.pem"), other.certificate(), 0644);
  const auto wrong = Connect({}, "a-token-for-tests", "other.pem");
  EXPECT_TRUE(absl::IsUnavailable(wrong.status()));
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("certificate verify failed"));
  const auto plain = ConnectClient(server_->address(), {});
  EXPECT_THAT(std::string(plain.status().message()), HasSubstr("TLS"));
}

TEST_F(TlsTest, TheServersNameCounts) {
  WriteServer(ca_, {.common_name = "server", .names = "DNS:sparsed.example"});
  Start();
  EXPECT_FALSE(Connect({}, "a-token-for-tests").ok());
  EXPECT_TRUE(ConnectClient(server_->address(), {.ca = Path("ca.pem"),
                                                 .server_name = "sparsed.example",
                                                 .token = "a-token-for-tests"})
                  .ok());
}

TEST_F(TlsTest, NewCertificatesServeNewConnectionsAndOldOnesGoOn) {
  Start();
  const absl::StatusOr<WhoAmI> before = Connect({}, "a-token-for-tests");
  ASSERT_TRUE(before.ok()) << before.status();
  const CertificateAuthority next("the next authority");
  WriteServer(next, {.common_name = "server", .names = kServerNames});
  WriteFile(Path("next.pem"), next.certificate(), 0644);
  EXPECT_TRUE(Eventually([&] { return Connect({}, "a-token-for-tests", "next.pem").ok(); }));
  EXPECT_EQ(TenantOf(before), "tokens user");
  EXPECT_FALSE(Connect({}, "a-token-for-tests").ok());
}

TEST_F(TlsTest, FilesThatDoNotFitLeaveTheOnesBeforeInUse) {
  Start();
  WriteFile(Path("server.key"), ca_.Issue({.common_name = "server"}).key);
  const auto failed = [&] {
    return server_->Page("/metrics")
               .find("sparsed_reloads_total{file=\"certificate\",result=\"failed\"} 1") !=
           std::string::npos;
  };
  EXPECT_TRUE(Eventually(failed));
  EXPECT_EQ(TenantOf(Connect({}, "a-token-for-tests")), "tokens user");
  EXPECT_THAT(server_->Page("/metrics"),
              HasSubstr("sparsed_certificate_expiry_timestamp_seconds{certificate=\"server\"}"));
}

TEST_F(TlsTest, TheServerReachesItself) {
  Start();
  EXPECT_TRUE(server::AskHealth(server_->address(), std::chrono::seconds(10), {}, true).ok());
}

TEST_F(TlsTest, WhatIsWrongIsSaidAtTheStart) {
  const auto why = [&] {
    server::Config config;
    config.devices = {"cpu"};
    config.metrics_listen.clear();
    config.host_memory_bytes = int64_t{64} << 20;
    config.listen = {"127.0.0.1:0"};
    config.tls_certificate = Path("server.pem");
    config.tls_key = Path("server.key");
    const auto server = server::Server::Start(config);
    return server.ok() ? "it starts" : std::string(server.status().message());
  };
  EXPECT_EQ(why(), "it starts");
  std::filesystem::permissions(Path("server.key"), std::filesystem::perms(0644));
  EXPECT_THAT(why(), HasSubstr("others can read"));
  WriteFile(Path("server.key"), ca_.Issue({.common_name = "server"}).key);
  EXPECT_THAT(why(), HasSubstr("not the key of the certificate"));
  WriteFile(Path("server.key"), "nothing");
  EXPECT_THAT(why(), HasSubstr("no private key"));
  WriteServer(ca_, {.common_name = "server", .lifetime = -std::chrono::hours(1)});
  EXPECT_THAT(why(), HasSubstr("expired at"));
  WriteFile(Path("server.pem"), "nothing");
  EXPECT_THAT(why(), HasSubstr("no certificate"));
}

TEST_F(TlsTest, ClientsKeepSecretsToThemselves) {
  Start();
  WriteFile(Path("token"), "a-token-for-tests\n", 0644);
  Shown shown = {.ca = Path("ca.pem"), .token_file = Path("token")};
  EXPECT_THAT(std::string(ConnectClient(server_->address(), shown).status().message()),
              HasSubstr("others can read"));
  WriteFile(Path("token"), "a-token-for-tests\n");
  EXPECT_TRUE(ConnectClient(server_->address(), shown).ok());
  shown.ca.clear();
  for (const char* address : {"192.0.2.1:7470", "127.example.org:7470"}) {
    EXPECT_THAT(std::string(ConnectClient(address, shown).status().message()),
                HasSubstr("plain text"));
  }
}

TEST_F(TlsTest, ATokenFileThatChangesIsReadAgain) {
  Start();
  WriteFile(Path("token"), "a-token-for-tests\n");
  Shown shown = {.ca = Path("ca.pem"), .token_file = Path("token")};
  const auto client = ConnectClient(server_->address(), shown);
  ASSERT_TRUE(client.ok()) << client.status();
  WriteFile(Path("token"), "one-that-nobody-knows\n");
  EXPECT_TRUE(absl::IsUnauthenticated((*client)().status()));
}

/// What is encrypted is bounded like what is not: a block of header fields that does not end.
TEST_F(TlsTest, FramesAreWatchedBehindTheEncryption) {
  Start();
  const std::string& address = server_->address();
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // OpenSSL writes on when the server has ended the connection.
  signal(SIGPIPE, SIG_IGN);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> settings(SSL_CTX_new(TLS_client_method()),
                                                                   &SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(settings.get()), &SSL_free);
  const unsigned char protocols[] = {2, 'h', '2'};
  SSL_set_alpn_protos(ssl.get(), protocols, sizeof(protocols));
  SSL_set_fd(ssl.get(), fd);
  ASSERT_EQ(SSL_connect(ssl.get()), 1);
  const auto frame = [](char type, uint32_t stream, const std::string& payload) {
    std::string bytes;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(payload.size() >> shift);
    bytes += {type, 0};
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(stream >> shift);
    return bytes + payload;
  };
  std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, "") + frame(1, 1, "\x82");
  const std::string field =
      "\x40\x01"
      "a"
      "\x7f\xa1\x1f" +
      std::string(4096, 'b');
  for (int i = 0; i < 40; ++i) bytes += frame(9, 1, field);
  for (size_t at = 0; at < bytes.size();) {
    const int sent = SSL_write(ssl.get(), bytes.data() + at,
                               static_cast<int>(std::min<size_t>(bytes.size() - at, 16384)));
    if (sent <= 0) break;  // it has ended already
    at += static_cast<size_t>(sent);
  }
  EXPECT_TRUE(Eventually([&] {
    return server_->Page("/metrics")
               .find("sparsed_connections_ended_total{reason=\"headers\"} 1") != std::string::npos;
  }));
  close(fd);
  EXPECT_TRUE(Connect({}, "a-token-for-tests").ok());
}

}  // namespace
}  // namespace sparsed::test
