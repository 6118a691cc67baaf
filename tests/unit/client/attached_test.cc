// Callers that run products themselves, beside the server's program.
#include "sparsed/attached.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/descriptor.h"
#include "sparsed/client.h"
#include "tests/unit/client/client_testing.h"
#include "tests/unit/client/server_process.h"
#include "tests/unit/client/shared_products.h"

namespace sparsed::test {
namespace {

AttachedMatrix Attach(const Client& client, const std::string& name, int threads = 2) {
  auto attached = AttachedMatrix::Attach(client, name, {.threads = threads});
  if (!attached.ok()) {
    ADD_FAILURE() << attached.status();
    std::abort();
  }
  return *std::move(attached);
}

/// S * B of an attached matrix; `version`, if not null, gets that of the values.
std::vector<float> Product(const AttachedMatrix& attached, const CsrMatrix& s,
                           const std::vector<float>& b, int64_t k, uint64_t* version = nullptr) {
  std::vector<float> c(static_cast<size_t>(s.rows * k), kPoison);
  const auto done =
      attached.Spmm(DenseView(b.data(), s.cols, k), MutableDenseView(c.data(), s.rows, k));
  EXPECT_TRUE(done.ok()) << done.status();
  if (done.ok() && version != nullptr) *version = done->version;
  return c;
}

TEST(Attached, ProductsOfAllKinds) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  int64_t runs = 0, calls = 0;
  std::vector<AttachedMatrix> attached;
  CheckProducts(client, [&](const Matrix& matrix) {
    attached.push_back(Attach(client, matrix.name()));
    const AttachedMatrix& last = attached.back();
    return Products{
        [&calls, last](const Operand& b, const Destination& c, const SpmmOptions& options) {
          ++calls;
          return last.Spmm(b, c, options);
        },
        [&calls, last](const Operand& a, const Operand& b, const Destination& values,
                       const SddmmOptions& options) {
          ++calls;
          return last.Sddmm(a, b, values, options);
        }};
  });
  for (const AttachedMatrix& one : attached) runs += one.runs();
  EXPECT_EQ(runs, calls);
}

TEST(Attached, CallsSayWhichWayTheyTook) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server), by_ring = Connect(server, {.ring = true});
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  const Matrix matrix = Upload(client, "m", s);
  const std::vector<float> dense = RandomDense(30 * 8, 3);
  std::vector<float> result(40 * 8);
  const DenseView b(dense.data(), 30, 8);
  const MutableDenseView c(result.data(), 40, 8);
  const auto held_b = client.PutDense("b", b);
  const auto held_c = client.PutZeros("c", ValueType::kF32, 40, 8);
  const auto shared_b = client.AllocateShared(30, 8), shared_c = client.AllocateShared(40, 8);
  ASSERT_TRUE(held_b.ok() && held_c.ok() && shared_b.ok() && shared_c.ok());
  const auto way = [](const absl::StatusOr<ComputeResult>& done) -> std::string {
    return done.ok() ? Name(done->transport) : done.status().ToString();
  };
  EXPECT_EQ(way(matrix.Spmm(b, c)), "stream");
  EXPECT_EQ(way(matrix.Spmm(*held_b, *held_c)), "held");
  EXPECT_EQ(way(matrix.Spmm(shared_b->ConstView(), shared_c->View())), "shared_host");
  EXPECT_EQ(way(matrix.Spmm(*held_b, shared_c->View())), "shared_host");
  EXPECT_EQ(way(matrix.Spmm(shared_b->ConstView(), c)), "stream");
  EXPECT_EQ(way(by_ring.MatrixNamed("m").Spmm(*held_b, *held_c)), "ring");
  EXPECT_EQ(way(by_ring.MatrixNamed("m").Spmm(b, *held_c)), "stream");
  const AttachedMatrix attached = Attach(client, "m");
  EXPECT_EQ(way(attached.Spmm(b, c)), "attached");
  EXPECT_EQ(way(attached.Spmm(*held_b, *held_c)), "held");
}

TEST(Attached, SddmmSpeaksTheOrderOfTheUpload) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  // Rows backwards, and one entry twice where duplicates are summed.
  const std::vector<int64_t> offsets = {0, 3, 3, 6};
  const std::vector<int32_t> columns = {4, 2, 0, 3, 1, 3};
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const CsrView view{.rows = 3,
                     .cols = 5,
                     .row_offsets = std::span<const int64_t>(offsets),
                     .column_indices = columns,
                     .values = std::span<const float>(values)};
  ASSERT_TRUE(client.Upload("summed", view, {.sum_duplicates = true}).ok());
  const std::vector<float> a = {1, 2, 3}, b = {1, 10, 100, 1000, 10000};
  std::vector<float> o(5, kPoison);
  const AttachedMatrix summed = Attach(client, "summed");
  const auto sddmm = [&](const AttachedMatrix& matrix, const MutableDenseView& to,
                         bool unscaled = false) {
    const auto done = matrix.Sddmm(DenseView(a.data(), 3, 1), DenseView(b.data(), 5, 1), to,
                                   {.unscaled = unscaled});
    EXPECT_TRUE(done.ok()) << done.status();
  };
  sddmm(summed, MutableDenseView(o.data(), 5, 1));
  EXPECT_EQ(o, (std::vector<float>{3, 200, 10000, 150, 30000})) << "canonical, 4 + 6 at column 3";

  std::vector<int32_t> unique = columns;
  unique[5] = 0;
  CsrView sorted = view;
  sorted.column_indices = unique;
  ASSERT_TRUE(client.Upload("sorted", sorted, {.sort = true}).ok());
  const AttachedMatrix unsorted = Attach(client, "sorted");
  o.assign(6, kPoison);
  sddmm(unsorted, MutableDenseView(o.data(), 6, 1));
  EXPECT_EQ(o, (std::vector<float>{10000, 200, 3, 12000, 150, 18}));
  sddmm(unsorted, MutableDenseView(o.data(), 6, 1), /*unscaled=*/true);
  EXPECT_EQ(o, (std::vector<float>{10000, 100, 1, 3000, 30, 3}));
  // With gaps, which stay.
  o.assign(18, 7);
  sddmm(unsorted, MutableDenseView(o.data(), 6, 1, 3));
  for (size_t i = 0; i < 18; ++i) {
    if (i % 3 == 0) continue;
    EXPECT_EQ(o[i], 7) << i;
  }
  EXPECT_EQ(o[3], 200);
  EXPECT_EQ(o[15], 18);
  EXPECT_EQ(summed.runs(), 1);
  EXPECT_EQ(unsorted.runs(), 3);
}

TEST(Attached, AnotherOldValueOfCIsAdded) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  const CsrMatrix s = RandomMatrix(20, 30, 1);
  Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m");
  const std::vector<float> b = RandomDense(30 * 4, 2), old = RandomDense(20 * 4, 3);
  std::vector<float> c(20 * 4, kPoison), expected = Multiply(s, false, b, 4);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = 2 * expected[i] + 3 * old[i];
  ASSERT_TRUE(attached
                  .Spmm(DenseView(b.data(), 30, 4), MutableDenseView(c.data(), 20, 4),
                        {.alpha = 2, .beta = 3, .accumulate = DenseView(old.data(), 20, 4)})
                  .ok());
  EXPECT_EQ(c, expected);
  EXPECT_EQ(attached.runs(), 1);
}

TEST(Attached, NewValuesAndAnotherMatrixOfTheNameAreSeen) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  CsrMatrix s = RandomMatrix(40, 30, 1);
  const Matrix matrix = Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m");
  const std::vector<float> b = RandomDense(30 * 8, 3);
  uint64_t version = 0;
  EXPECT_EQ(Product(attached, s, b, 8, &version), Multiply(s, false, b, 8));
  for (int round = 1; round <= 20; ++round) {
    for (float& value : std::get<std::vector<float>>(s.values)) value += 1;
    const auto updated = matrix.UpdateValues(std::span<const float>(F32(s)));
    ASSERT_TRUE(updated.ok()) << updated.status();
    EXPECT_EQ(Product(attached, s, b, 8, &version), Multiply(s, false, b, 8)) << round;
    EXPECT_EQ(version, *updated);
  }
  const CsrMatrix other = RandomMatrix(25, 30, 9);
  Upload(client, "m", other, {.replace = true});
  EXPECT_EQ(Product(attached, other, b, 8), Multiply(other, false, b, 8));
  EXPECT_EQ(attached.runs(), 22);
  ASSERT_TRUE(matrix.Delete().ok());
  std::vector<float> c(25 * 8, kPoison);
  EXPECT_EQ(
      attached.Spmm(DenseView(b.data(), 30, 8), MutableDenseView(c.data(), 25, 8)).status().code(),
      absl::StatusCode::kNotFound);
  Upload(client, "m", s);
  EXPECT_EQ(Product(attached, s, b, 8), Multiply(s, false, b, 8)) << "it is there again";
  EXPECT_EQ(attached.runs(), 23);
}

TEST(Attached, WhatCannotRunHereRunsOnTheServer) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  const CsrMatrix s = RandomMatrix(30, 30, 1);
  Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m");
  std::vector<float> b = RandomDense(30 * 4, 3), c(30 * 4, kPoison);
  const std::vector<float> expected = Multiply(s, false, b, 4);
  const auto held = client.PutDense("b", DenseView(b.data(), 30, 4));
  ASSERT_TRUE(held.ok());
  const MutableDenseView to(c.data(), 30, 4);
  ASSERT_TRUE(attached.Spmm(*held, to).ok());
  EXPECT_EQ(c, expected);
  const auto result = client.PutZeros("c", ValueType::kF32, 30, 4);
  ASSERT_TRUE(attached.Spmm(DenseView(b.data(), 30, 4), *result).ok());
  ASSERT_TRUE(result->Read(to).ok());
  EXPECT_EQ(c, expected);
  const auto ones = client.PutDense(
      "ones", DenseView(std::vector<float>(static_cast<size_t>(s.nnz()), 1).data(), s.nnz(), 1));
  ASSERT_TRUE(ones.ok());
  ASSERT_TRUE(attached.Spmm(DenseView(b.data(), 30, 4), to, {.values = *ones}).ok());
  // The result over the operand.
  ASSERT_TRUE(attached.Spmm(DenseView(b.data(), 30, 4), MutableDenseView(b.data(), 30, 4)).ok());
  EXPECT_EQ(b, expected);
  EXPECT_EQ(attached.runs(), 0);
  // What is wrong gets the server's sentence.
  const auto wrong = attached.Spmm(DenseView(b.data(), 29, 4), to);
  const auto there = attached.matrix().Spmm(DenseView(b.data(), 29, 4), to);
  EXPECT_EQ(wrong.status().code(), there.status().code());
  EXPECT_EQ(wrong.status().message(), there.status().message());
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<double> wide(30 * 4, 1);
  EXPECT_EQ(attached.Spmm(DenseView(wide.data(), 30, 4), to).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(attached.runs(), 0);
}

TEST(Attached, AttachingIsRefusedWhereItIsNotPossible) {
  Folder folder;
  ServerProcess server({folder.local()}), alone;
  const Client client = Connect(server);
  EXPECT_EQ(AttachedMatrix::Attach(client, "m").status().code(), absl::StatusCode::kNotFound);
  const CsrMatrix s = RandomMatrix(10, 10, 1);
  Upload(client, "m", s);
  EXPECT_EQ(AttachedMatrix::Attach(client, "m", {.threads = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(AttachedMatrix::Attach(client, "m").ok());
  const Client other = Connect(alone);
  Upload(other, "m", s);
  const absl::Status refused = AttachedMatrix::Attach(other, "m").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("--local-listen"), std::string::npos) << refused;
  server.End(SIGKILL);
  EXPECT_EQ(AttachedMatrix::Attach(client, "m").status().code(), absl::StatusCode::kUnavailable);
}

TEST(Attached, AServerThatDiesTakesNothingAway) {
  Folder folder;
  const std::vector<std::string> flags = {folder.local(), "--data-dir=" + folder.path()};
  const std::string address = "unix:" + folder.path() + "/socket";
  auto server = std::make_unique<ServerProcess>(flags, address);
  CsrMatrix s = RandomMatrix(40, 30, 1);
  const Client client =
      Connect(*server, {.connect_timeout = std::chrono::milliseconds(500), .max_attempts = 1});
  Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m");
  const std::vector<float> b = RandomDense(30 * 8, 3);
  EXPECT_EQ(Product(attached, s, b, 8), Multiply(s, false, b, 8));
  server->End(SIGKILL);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Product(attached, s, b, 8), Multiply(s, false, b, 8));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  EXPECT_EQ(attached.runs(), 6);
  EXPECT_TRUE(attached.status().ok()) << attached.status();
  // It comes back, and what changes there is seen.
  server = std::make_unique<ServerProcess>(flags, address);
  const Client anew = Connect(*server);
  for (float& value : std::get<std::vector<float>>(s.values)) value = 2 * value + 1;
  ASSERT_TRUE(anew.MatrixNamed("m").UpdateValues(std::span<const float>(F32(s))).ok());
  EXPECT_TRUE(Eventually([&] { return Product(attached, s, b, 8) == Multiply(s, false, b, 8); }));
  const int64_t before = attached.runs();
  EXPECT_EQ(Product(attached, s, b, 8), Multiply(s, false, b, 8));
  EXPECT_EQ(attached.runs(), before + 1) << "attached again, not asked";
  // One that knows nothing of it: what is old does not serve on.
  server->End(SIGKILL);
  server = std::make_unique<ServerProcess>(std::vector<std::string>{folder.local()}, address);
  Connect(*server);
  EXPECT_TRUE(Eventually([&] { return absl::IsNotFound(attached.status()); })) << attached.status();
  std::vector<float> c(40 * 8);
  EXPECT_EQ(
      attached.Spmm(DenseView(b.data(), 30, 8), MutableDenseView(c.data(), 40, 8)).status().code(),
      absl::StatusCode::kNotFound);
}

TEST(Attached, WhatWasReplacedBeforeTheServerDiedDoesNotServeOn) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client =
      Connect(server, {.connect_timeout = std::chrono::milliseconds(500), .max_attempts = 1});
  CsrMatrix s = RandomMatrix(40, 30, 1);
  const Matrix matrix = Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m");
  const std::vector<float> b = RandomDense(30 * 8, 3);
  EXPECT_EQ(Product(attached, s, b, 8), Multiply(s, false, b, 8));
  for (float& value : std::get<std::vector<float>>(s.values)) value = 2 * value + 1;
  ASSERT_TRUE(matrix.UpdateValues(std::span<const float>(F32(s))).ok());
  server.End(SIGKILL);
  std::vector<float> c(40 * 8);
  const auto late = attached.Spmm(DenseView(b.data(), 30, 8), MutableDenseView(c.data(), 40, 8));
  EXPECT_TRUE(absl::IsUnavailable(late.status())) << late.status();
}

TEST(Attached, AServerThatAnswersButRefusesIsAsked) {
  Folder folder;
  const std::vector<std::string> flags = {folder.local(), "--data-dir=" + folder.path()};
  const std::string address = "unix:" + folder.path() + "/socket";
  auto server = std::make_unique<ServerProcess>(flags, address);
  CsrMatrix s = RandomMatrix(40, 30, 1);
  const Client client =
      Connect(*server, {.connect_timeout = std::chrono::milliseconds(500), .max_attempts = 1});
  Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m");
  const std::vector<float> b = RandomDense(30 * 8, 3);
  EXPECT_EQ(Product(attached, s, b, 8), Multiply(s, false, b, 8));
  server->End(SIGKILL);
  // Others take all connections of the server that comes back.
  std::atomic<bool> ended = false;
  std::thread others([&] {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    const std::string path = folder.path() + "/local";
    std::memcpy(name.sun_path, path.data(), path.size());
    std::vector<Descriptor> taken;
    while (!ended) {
      Descriptor one(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      if (taken.size() < 300 &&
          connect(one.fd(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) {
        taken.push_back(std::move(one));
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  });
  server = std::make_unique<ServerProcess>(flags, address);
  const Client anew = Connect(*server);
  for (float& value : std::get<std::vector<float>>(s.values)) value = 2 * value + 1;
  ASSERT_TRUE(anew.MatrixNamed("m").UpdateValues(std::span<const float>(F32(s))).ok());
  EXPECT_TRUE(Eventually([&] { return Product(attached, s, b, 8) == Multiply(s, false, b, 8); }));
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kResourceExhausted) << attached.status();
  ended = true;
  others.join();
  EXPECT_TRUE(Eventually([&] { return attached.status().ok(); })) << attached.status();
}

TEST(Attached, AServerThatSaysNothingIsNotWaitedForBeyondTheTimeout) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m");
  const std::vector<float> b = RandomDense(30 * 8, 3);
  server.Pause();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      std::vector<float> c(40 * 8);
      const auto late = attached.Spmm(DenseView(b.data(), 30, 8), MutableDenseView(c.data(), 40, 8),
                                      {}, {.timeout = std::chrono::milliseconds(300)});
      EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded) << late.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kDeadlineExceeded);
  server.Resume();
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(Product(attached, s, b, 8), Multiply(s, false, b, 8));
    return attached.runs() > 0;
  }));
  EXPECT_TRUE(attached.status().ok()) << attached.status();
  EXPECT_TRUE(Eventually([&] { return SharedBytes(client) > 0; }));
}

TEST(Attached, TheTimeoutBoundsAttachingAndAllThatFollows) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server, {.max_attempts = 1});
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m");
  const std::vector<float> b = RandomDense(30 * 8, 3);
  std::vector<float> c(40 * 8);
  ASSERT_EQ(Product(attached, s, b, 8), Multiply(s, false, b, 8));
  // What is mapped goes on, once trials are over: another plan is asked for.
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(Product(attached, s, b, 8), Multiply(s, false, b, 8));
    const int64_t runs = attached.runs();
    server.Pause();
    const auto done = attached.Spmm(DenseView(b.data(), 30, 8), MutableDenseView(c.data(), 40, 8),
                                    {}, {.timeout = std::chrono::seconds(2)});
    if (done.ok() && attached.runs() == runs + 1) return true;
    server.Resume();
    return false;
  }));
  // What is not ends in time, also when it would go on as a request.
  for (int round = 0; round < 2; ++round) {
    const auto late = attached.Spmm(DenseView(b.data(), 30, 4), MutableDenseView(c.data(), 40, 4),
                                    {}, {.timeout = std::chrono::milliseconds(200)});
    EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded) << late.status();
  }
  const auto refused =
      AttachedMatrix::Attach(client, "m", {.timeout = std::chrono::milliseconds(200)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused.status()) || absl::IsUnavailable(refused.status()))
      << refused.status();
  server.Resume();
}

TEST(Attached, OneCopyServesAllAndGoesWithTheLast) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  const CsrMatrix s = RandomMatrix(500, 400, 1);
  Upload(client, "m", s);
  const std::vector<float> b = RandomDense(400 * 8, 3);
  const std::vector<float> expected = Multiply(s, false, b, 8);
  EXPECT_EQ(SharedBytes(client), 0);
  {
    const AttachedMatrix one = Attach(client, "m");
    EXPECT_EQ(Product(one, s, b, 8), expected);
    const int64_t bytes = SharedBytes(client);
    // Offsets (i64), columns (i32) and values (f32), to whole pages.
    EXPECT_GE(bytes, 501 * 8 + s.nnz() * 8);
    EXPECT_LE(bytes, 501 * 8 + s.nnz() * 8 + 3 * 4096);
    const Client others = Connect(server);
    const AttachedMatrix two = Attach(others, "m"), three = Attach(others, "m");
    EXPECT_EQ(Product(two, s, b, 8), expected);
    EXPECT_EQ(Product(three, s, b, 8), expected);
    EXPECT_EQ(SharedBytes(client), bytes);
    // Other values, the same pattern.
    ASSERT_TRUE(client.MatrixNamed("m").UpdateValues(std::span<const float>(F32(s))).ok());
    for (const AttachedMatrix* each : {&one, &two, &three}) {
      EXPECT_EQ(Product(*each, s, b, 8), expected);
    }
    EXPECT_TRUE(Eventually([&] { return SharedBytes(client) == bytes; }))
        << "of the old ones nothing is left: " << SharedBytes(client);
  }
  EXPECT_TRUE(Eventually([&] { return SharedBytes(client) == 0; }));
}

TEST(Attached, ManyThreadsWhileValuesChange) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  CsrMatrix s = RandomMatrix(60, 50, 1);
  auto& values = std::get<std::vector<float>>(s.values);
  std::ranges::fill(values, 1.0F);
  const Matrix matrix = Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m", /*threads=*/1);
  const std::vector<float> b(50 * 4, 1), ones = Multiply(s, false, b, 4);
  // Version v has v in the place of each value.
  std::atomic<bool> done = false;
  std::atomic<uint64_t> last = 1;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!done) {
        const uint64_t at_least = last;
        uint64_t version = 0;
        const std::vector<float> c = Product(attached, s, b, 4, &version);
        EXPECT_GE(version, at_least);
        for (size_t i = 0; i < c.size(); ++i) {
          ASSERT_EQ(c[i], ones[i] * static_cast<float>(version)) << i;
        }
      }
    });
  }
  for (int round = 2; round <= 100; ++round) {
    const std::vector<float> fresh(values.size(), static_cast<float>(round));
    const auto version = matrix.UpdateValues(std::span<const float>(fresh));
    ASSERT_TRUE(version.ok()) << version.status();
    ASSERT_EQ(*version, static_cast<uint64_t>(round));
    last = *version;
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(attached.runs(), 0);
}

TEST(Attached, OfACallerThatDiedNothingIsLeft) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(client, "m", s);
  std::array<int, 2> said{};
  ASSERT_EQ(pipe(said.data()), 0);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const pid_t child = fork();
  if (child == 0) {
    dup2(said[1], STDERR_FILENO);
    setenv("SPARSED_TEST_ATTACH_TO", server.address().c_str(), 1);
    execl(self.c_str(), self.c_str(), "--gtest_filter=Attached.DISABLED_Attaches",
          "--gtest_also_run_disabled_tests", nullptr);
    _exit(1);
  }
  char ready = 0;
  ASSERT_EQ(read(said[0], &ready, 1), 1);
  EXPECT_GT(SharedBytes(client), 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(Eventually([&] { return SharedBytes(client) == 0; }));
  close(said[0]);
  close(said[1]);
}

/// The child of the test above: attaches and waits for its end.
TEST(Attached, DISABLED_Attaches) {
  const auto client = Client::Connect(std::getenv("SPARSED_TEST_ATTACH_TO"));
  ASSERT_TRUE(client.ok()) << client.status();
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  const AttachedMatrix attached = Attach(*client, "m");
  const std::vector<float> b = RandomDense(30 * 8, 3);
  ASSERT_EQ(Product(attached, s, b, 8), Multiply(s, false, b, 8));
  ASSERT_EQ(write(STDERR_FILENO, "!", 1), 1);
  pause();
}

}  // namespace
}  // namespace sparsed::test
