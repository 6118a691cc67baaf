// Memory that a client shares with the server's program.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "sparsed/client.h"
#include "tests/unit/client/client_testing.h"
#include "tests/unit/client/server_process.h"
#include "tests/unit/client/shared_products.h"

namespace sparsed::test {
namespace {

/// S * B in shared memory is right.
void ExpectProduct(const Client& client, const CsrMatrix& s, const SharedMatrix& b,
                   const SharedMatrix& c) {
  const int64_t k = b.cols();
  const std::vector<float> dense = RandomDense(s.cols * k, 3);
  std::copy(dense.begin(), dense.end(), static_cast<float*>(b.data()));
  const auto done = client.MatrixNamed("m").Spmm(b.ConstView(), c.View());
  ASSERT_TRUE(done.ok()) << done.status();
  const auto* const got = static_cast<const float*>(c.data());
  EXPECT_EQ(std::vector<float>(got, got + s.rows * k), Multiply(s, false, dense, k));
}

TEST(SharedMemory, ProductsOfAllKinds) {
  Folder folder;
  ServerProcess server({folder.local()});
  Connect(server);
  CheckSharedProducts(server.address());
}

TEST(SharedMemory, TheDataDirectoryHasASocketUnlessItIsOff) {
  Folder folder;
  {
    ServerProcess server({"--data-dir=" + folder.path()});
    const Client client = Connect(server);
    EXPECT_EQ(client.GetServerInfo()->local_socket, folder.path() + "/local.sock");
    CheckSharedProducts(server.address());
    server.End(SIGTERM);
    EXPECT_FALSE(std::filesystem::exists(folder.path() + "/local.sock"));
  }
  ServerProcess server({"--data-dir=" + folder.path(), "--local-listen=off"});
  EXPECT_EQ(Connect(server).GetServerInfo()->local_socket, "");
}

TEST(SharedMemory, WhereNothingIsSharedItIsMemoryLikeAnyOther) {
  ServerProcess server;
  const Client client = Connect(server);
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(client, "m", s);
  const auto b = client.AllocateShared(30, 8), c = client.AllocateShared(40, 8);
  ASSERT_TRUE(b.ok() && c.ok());
  ExpectProduct(client, s, *b, *c);
  EXPECT_EQ(SharedBytes(client), 0);
}

TEST(SharedMemory, SizesThatMakeNoSense) {
  ServerProcess server;
  const Client client = Connect(server);
  EXPECT_EQ(client.AllocateShared(-1, 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.AllocateShared(4, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.AllocateShared(int64_t{1} << 40, int64_t{1} << 40).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.AllocateShared(int64_t{1} << 30, int64_t{1} << 29).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(client.AllocateShared(0, 4).ok());
}

TEST(SharedMemory, AnotherRunOfTheServerIsGivenItAnew) {
  Folder folder;
  auto server = std::make_unique<ServerProcess>(
      std::vector<std::string>{folder.local(), "--data-dir=" + folder.path()},
      "unix:" + folder.path() + "/socket");
  const Client client = Connect(*server);
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(client, "m", s);
  const auto b = client.AllocateShared(30, 8), c = client.AllocateShared(40, 8);
  ASSERT_TRUE(b.ok() && c.ok());
  ExpectProduct(client, s, *b, *c);
  server->End(SIGKILL);
  // The sockets' files are still there: nobody is behind them.
  server = std::make_unique<ServerProcess>(
      std::vector<std::string>{folder.local(), "--data-dir=" + folder.path()},
      "unix:" + folder.path() + "/socket");
  Connect(*server);
  ExpectProduct(client, s, *b, *c);
  EXPECT_GT(SharedBytes(client), 0);
}

TEST(SharedMemory, OfAClientThatDiedNothingIsLeft) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(client, "m", s);
  EXPECT_EQ(SharedBytes(client), 0);
  std::array<int, 2> said{};
  ASSERT_EQ(pipe(said.data()), 0);
  // A program of its own: gRPC does not go through fork.
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const pid_t child = fork();
  if (child == 0) {
    dup2(said[1], STDERR_FILENO);
    setenv("SPARSED_TEST_SHARE_WITH", server.address().c_str(), 1);
    execl(self.c_str(), self.c_str(), "--gtest_filter=SharedMemory.DISABLED_Shares",
          "--gtest_also_run_disabled_tests", nullptr);
    _exit(1);
  }
  char ready = 0;
  ASSERT_EQ(read(said[0], &ready, 1), 1);
  EXPECT_GE(SharedBytes(client), 30 * (4 << 16));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(Eventually([&] { return SharedBytes(client) == 0; }));
  close(said[0]);
  close(said[1]);
}

/// The child of the test above: shares memory and waits for its end.
TEST(SharedMemory, DISABLED_Shares) {
  const auto client = Client::Connect(std::getenv("SPARSED_TEST_SHARE_WITH"));
  ASSERT_TRUE(client.ok()) << client.status();
  const auto b = client->AllocateShared(30, 1 << 16);
  std::vector<float> c(size_t{40} << 16);
  ASSERT_TRUE(
      client->MatrixNamed("m").Spmm(b->ConstView(), MutableDenseView(c.data(), 40, 1 << 16)).ok());
  ASSERT_EQ(write(STDERR_FILENO, "!", 1), 1);
  pause();
}

TEST(SharedMemory, MoreThanTheServerHasGoesByTheStream) {
  Folder folder;
  ServerProcess server({folder.local(), "--host-memory=64MiB"});
  const Client client = Connect(server);
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(client, "m", s);
  const auto large = client.AllocateShared(1 << 20, 32);  // 128 MiB
  ASSERT_TRUE(large.ok());
  const auto c = client.AllocateShared(40, 8);
  auto* const data = static_cast<float*>(large->data());
  const std::vector<float> dense = RandomDense(30 * 8, 3);
  std::copy(dense.begin(), dense.end(), data);
  const auto done = client.MatrixNamed("m").Spmm(DenseView(data, 30, 8), c->View());
  ASSERT_TRUE(done.ok()) << done.status();
  const auto* const got = static_cast<const float*>(c->data());
  EXPECT_EQ(std::vector<float>(got, got + 40 * 8), Multiply(s, false, dense, 8));
  EXPECT_LT(SharedBytes(client), 1 << 20);
}

TEST(SharedMemory, UploadsValuesAndPutsTakeItToo) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server, {.max_chunk_bytes = 4096});
  const CsrMatrix s = RandomMatrix(400, 300, 1);
  const auto copy = [&client](const auto& elements) {
    const size_t bytes = elements.size() * sizeof(elements[0]);
    auto shared = client.AllocateSharedBytes(bytes + 8);
    EXPECT_TRUE(shared.ok()) << shared.status();
    // Not where the block begins, as arrays in one block do not.
    void* const at = static_cast<char*>(shared->data()) + 8;
    std::memcpy(at, elements.data(), bytes);
    return std::pair(*std::move(shared), at);
  };
  const auto offsets = copy(s.row_offsets);
  const auto columns = copy(s.column_indices);
  const auto values = copy(F32(s));
  const auto span = [](const auto& of, auto type, size_t count) {
    return std::span<const decltype(type)>(static_cast<decltype(type)*>(of.second), count);
  };
  const size_t nnz = s.column_indices.size();
  const CsrView view{.rows = s.rows,
                     .cols = s.cols,
                     .row_offsets = span(offsets, int64_t{}, s.row_offsets.size()),
                     .column_indices = span(columns, int32_t{}, nnz),
                     .values = span(values, float{}, nnz)};
  const auto matrix = client.Upload("m", view);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_GT(SharedBytes(client), static_cast<int64_t>(nnz * 8));
  auto got = matrix->Download();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->row_offsets, s.row_offsets);
  EXPECT_EQ(got->column_indices, s.column_indices);
  EXPECT_EQ(got->values, s.values);
  // What they do afterwards with that memory is nobody's business.
  static_cast<int32_t*>(columns.second)[0] = -1;
  auto* const own = static_cast<float*>(values.second);
  for (size_t i = 0; i < nnz; ++i) own[i] = static_cast<float>(i % 5);
  ASSERT_TRUE(matrix->UpdateValues(span(values, float{}, nnz)).ok());
  got = matrix->Download();
  EXPECT_EQ(got->column_indices, s.column_indices);
  EXPECT_EQ(std::get<std::vector<float>>(got->values), std::vector<float>(own, own + nnz));
  EXPECT_EQ(client.Upload("bad", view).status().code(), absl::StatusCode::kInvalidArgument);
  const auto dense = client.AllocateShared(50, 40);
  auto* const elements = static_cast<float*>(dense->data());
  for (int i = 0; i < 2000; ++i) elements[i] = static_cast<float>(i);
  const auto held = client.PutDense("d", dense->ConstView());
  ASSERT_TRUE(held.ok()) << held.status();
  std::vector<float> back(2000);
  ASSERT_TRUE(held->Read(MutableDenseView(back.data(), 50, 40)).ok());
  EXPECT_EQ(back, std::vector<float>(elements, elements + 2000));
}

TEST(SharedMemory, CancelledCallsEndBeforeTheirMemoryIsTheCallersAgain) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  Upload(client, "m", RandomMatrix(2000, 2000, 1));
  const auto idle = [&] { return client.GetStats()->in_flight.empty(); };
  constexpr size_t kElements = 2000 * 512;
  for (int round = 0; round < 5; ++round) {
    const auto b = client.AllocateShared(2000, 512), c = client.AllocateShared(2000, 512);
    ASSERT_TRUE(b.ok() && c.ok());
    auto* const result = static_cast<float*>(c->data());
    // Zeros would be no trace of the server's.
    std::fill_n(static_cast<float*>(b->data()), kElements, 1.0F);
    std::fill_n(result, kElements, 5.0F);
    Call<ComputeResult> call = client.MatrixNamed("m").SpmmAsync(b->ConstView(), c->View());
    // In the midst of it: the first rows are there.
    EXPECT_TRUE(
        Eventually([&] { return call.Done() || *static_cast<volatile float*>(result) != 5.0F; }));
    call.Cancel();
    const auto ended = call.Wait();
    EXPECT_TRUE(ended.ok() || absl::IsCancelled(ended.status())) << ended.status();
    std::fill_n(result, kElements, 5.0F);
    EXPECT_TRUE(Eventually(idle));
    EXPECT_EQ(std::count(result, result + kElements, 5.0F), static_cast<int64_t>(kElements));
  }
  EXPECT_TRUE(Eventually([&] { return SharedBytes(client) == 0; }));
}

}  // namespace
}  // namespace sparsed::test
