// What clients are told, through the wire: nothing of where the server keeps its files, and nothing
// that breaks a terminal.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/rpc/raw_stream.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

namespace fs = std::filesystem;

void DamageBlobs(const fs::path& folder) {
  int damaged = 0;
  for (const auto& entry : fs::directory_iterator(folder / "blobs")) {
    std::fstream blob(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    blob.seekg(-9, std::ios::end);
    const auto byte = static_cast<char>(blob.get() ^ 0x5a);
    blob.seekp(-9, std::ios::end);
    blob.put(byte);
    ++damaged;
  }
  ASSERT_GT(damaged, 0);
}

TEST(Sentences, DamageIsToldWithoutTheServersFolders) {
  const std::string folder = testing::TempDir() + "sparsed_rpc_sentences";
  fs::remove_all(folder);
  const auto durable = [&](server::Config& config) { config.data_dir = folder; };
  {
    TestServer server(durable);
    MakeGood(server);
  }
  DamageBlobs(folder);
  TestServer server([&](server::Config& config) {
    durable(config);
    WithPages(config);
  });
  // It has 50 columns.
  const Answer answer = Spmm(server.compute(), "good", 50, 1, std::vector<float>(50, 1));
  EXPECT_EQ(answer.code(), grpc::DATA_LOSS) << answer.message();
  EXPECT_EQ(answer.message().find(folder), std::string::npos) << answer.message();
  EXPECT_EQ(answer.message().find(testing::TempDir()), std::string::npos) << answer.message();
  EXPECT_NE(answer.message().find("blobs/"), std::string::npos) << answer.message();
  // Whoever runs the server sees where.
  EXPECT_NE(server.Page("/api/requests").find(folder + "/blobs/"), std::string::npos);
  fs::remove_all(folder);
}

TEST(Sentences, NamesThatNobodyCanHaveAreRefusedAsSuch) {
  TestServer server;
  for (const std::string& name : {std::string("a\nb"), std::string("\x1b[31m"),
                                  std::string("a\0", 2), std::string("gr\xc3\xb6sse")}) {
    const Answer answer = Spmm(server.compute(), name, 1, 1, {1.f});
    EXPECT_EQ(answer.code(), grpc::INVALID_ARGUMENT) << answer.message();
    EXPECT_NE(answer.message().find("matrix name has byte 0x"), std::string::npos)
        << answer.message();
    grpc::ClientContext context;
    v1::DeleteBufferRequest request;
    request.set_name(name);
    v1::DeleteBufferReply reply;
    const grpc::Status status = server.buffers().Delete(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
  }
  // In a lookup of a name that somebody could have, it is named.
  EXPECT_EQ(Spmm(server.compute(), "nobody", 1, 1, {1.f}).code(), grpc::NOT_FOUND);
}

/// A message whose field 1, a name, is no UTF-8, as no library would send it.
std::string WithName(const std::string& name) {
  return std::string("\x0a") + static_cast<char>(name.size()) + name;
}

TEST(Sentences, NamesThatAreNoTextAreRefusedInASentence) {
  TestServer server;
  for (const char* method : {"Catalog/Get", "Catalog/List", "Catalog/Watch", "Catalog/Download",
                             "Buffers/Get", "Buffers/Delete"}) {
    RawStream call(server.channel(), std::string("/sparsed.v1.") + method);
    ASSERT_TRUE(call.Write(WithName("a\xff\xfe")));
    call.WritesDone();
    std::string reply;
    EXPECT_FALSE(call.Read(&reply)) << method;
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << method << status.error_message();
    EXPECT_NE(status.error_message().find("the bytes are not"), std::string::npos)
        << method << status.error_message();
  }
  for (const char* method : {"Catalog/Upload", "Catalog/UpdateValues", "Buffers/Put"}) {
    RawStream call(server.channel(), std::string("/sparsed.v1.") + method);
    const std::string header = WithName("a\xff\xfe");
    ASSERT_TRUE(call.Write(WithName(header)));  // a header is field 1, too
    std::string reply;
    EXPECT_FALSE(call.Read(&reply)) << method;
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << method << status.error_message();
    EXPECT_NE(status.error_message(), "") << method;
  }
}

}  // namespace
}  // namespace sparsed::test
