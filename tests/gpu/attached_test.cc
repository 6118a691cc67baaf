// Products that callers queue in their own streams, on layouts of the server's that they map. Over
// the stand-in, too, whose streams do everything at once.
#include "tests/gpu/gpu.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"

// The client's types have names of the kernels': they come after them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "sparsed/attached.h"
#include "tests/unit/client/chain_products.h"
#include "tests/unit/client/client_matrices.h"
#include "tests/unit/client/eventually.h"
#include "tests/unit/client/shared_products.h"

namespace sparsed::test {
namespace {

#define SKIP_WITHOUT_GPU() \
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot()

void OnGpuWithLocal(server::Config& config) {
  config.devices = {"cuda:0"};
  WithLocal(config);
}

GpuStream Queue() { return {Gpu::Get()->stream().handle()}; }

Client ClientOf(const TestServer& server) {
  auto client = Client::Connect(server.address());
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

AttachedMatrix AttachOnGpu(const Client& client, const std::string& name) {
  auto attached = AttachedMatrix::Attach(client, name, {.gpu = 0});
  if (!attached.ok()) {
    ADD_FAILURE() << attached.status();
    std::abort();
  }
  return *std::move(attached);
}

size_t BytesOf(ValueType type) {
  return type == ValueType::kF64 ? 8 : type == ValueType::kF32 ? 4 : 2;
}

/// A matrix of the host's in the GPU's memory, with its gaps, `offset` bytes behind where memory
/// begins.
template <typename View>
class OnGpu {
 public:
  explicit OnGpu(const View& host, size_t offset = 0) : host_(host), offset_(offset) {
    const int64_t stride = host.leading_dimension == 0 ? host.cols : host.leading_dimension;
    bytes_ = host.rows == 0
                 ? 0
                 : static_cast<size_t>((host.rows - 1) * stride + host.cols) * BytesOf(host.type);
    memory_ = Gpu::Get()->Allocate(bytes_ + offset + 1);
    Must(Gpu::Get()->stream().Copy(data(), host.data, bytes_));
    Must(Gpu::Get()->stream().Synchronize());
  }
  View view() {
    View there = host_;
    there.data = data();
    return there;
  }
  void Back(void* to) { Gpu::Get()->Download(to, data(), bytes_); }

 private:
  std::byte* data() { return memory_.mutable_data() + offset_; }

  const View host_;
  const size_t offset_;
  size_t bytes_ = 0;
  Buffer memory_;
};

/// What runs in a stream, as if its operands were in host memory.
Products OverHost(const AttachedMatrix& attached) {
  return {[attached](const Operand& b, const Destination& c, const SpmmOptions& options) {
            OnGpu from(std::get<DenseView>(b));
            const auto to = std::get<MutableDenseView>(c);
            OnGpu result(to);
            SpmmOptions there = options;
            std::optional<OnGpu<DenseView>> values;
            if (options.values) {
              values.emplace(std::get<DenseView>(*options.values));
              there.values = values->view();
            }
            auto done = attached.Spmm(Queue(), from.view(), result.view(), there);
            result.Back(to.data);
            return done;
          },
          [attached](const Operand& a, const Operand& b, const Destination& values,
                     const SddmmOptions& options) {
            OnGpu left(std::get<DenseView>(a)), right(std::get<DenseView>(b));
            const auto to = std::get<MutableDenseView>(values);
            OnGpu result(to);
            auto done = attached.Sddmm(Queue(), left.view(), right.view(), result.view(), options);
            result.Back(to.data);
            return done;
          }};
}

/// S * B in the stream, with operands that begin `offset` bytes behind where memory does.
std::vector<float> ProductOf(const AttachedMatrix& attached, const CsrMatrix& s,
                             const std::vector<float>& b, int64_t k, size_t offset = 0,
                             uint64_t* version = nullptr) {
  std::vector<float> c(static_cast<size_t>(s.rows * k), kPoison);
  OnGpu from(DenseView(b.data(), s.cols, k), offset);
  OnGpu to(MutableDenseView(c.data(), s.rows, k), offset);
  const auto done = attached.Spmm(Queue(), from.view(), to.view());
  EXPECT_TRUE(done.ok()) << done.status();
  if (done.ok() && version != nullptr) *version = done->version;
  to.Back(c.data());
  return c;
}

int64_t SharedOnGpu(TestServer& server) {
  return server.engine().gpus().front()->budget().used(engine::MemoryUse::kShared);
}

TEST(GpuAttached, ProductsOfAllKinds) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  std::vector<AttachedMatrix> attached;
  int64_t runs = 0;
  CheckProducts(client, [&](const Matrix& matrix) {
    attached.push_back(AttachOnGpu(client, matrix.name()));
    return OverHost(attached.back());
  });
  for (const AttachedMatrix& one : attached) runs += one.runs();
  // Of three types: of three widths 16 products each and an SDDMM, and one with its own values.
  EXPECT_EQ(runs, 3 * (3 * 9 + 1));
}

/// Chains in the stream, on operands in the GPU's memory.
class InStream final : public ChainRunner {
 public:
  using ChainRunner::ChainRunner;
  absl::StatusOr<ComputeResult> Run(const std::vector<Matrix>& of, const Chain& chain) override {
    const std::string& name = of[0].name();
    if (!attached_.contains(name)) attached_.emplace(name, AttachOnGpu(client(), name));
    auto done = attached_.at(name).Run(Queue(), chain);
    if (done.ok()) {
      EXPECT_EQ(done->transport, Transport::kAttached);
    }
    ++runs;
    return done;
  }
  bool here() const override { return true; }
  std::unique_ptr<DeviceBytes> Allocate(size_t bytes) override {
    class Bytes final : public DeviceBytes {
     public:
      explicit Bytes(size_t bytes) : bytes_(bytes), memory_(Gpu::Get()->Allocate(bytes + 1)) {}
      void* data() override { return memory_.mutable_data(); }
      void Write(const void* from) override {
        if (bytes_ > 0) Must(Gpu::Get()->stream().Copy(data(), from, bytes_));
        Must(Gpu::Get()->stream().Synchronize());
      }
      void Read(void* to) override {
        if (bytes_ > 0) Gpu::Get()->Download(to, data(), bytes_);
      }

     private:
      const size_t bytes_;
      Buffer memory_;
    };
    return std::make_unique<Bytes>(bytes);
  }

  int64_t ran() const {
    int64_t all = 0;
    for (const auto& [name, attached] : attached_) all += attached.runs();
    return all;
  }
  int64_t runs = 0;

 private:
  std::map<std::string, AttachedMatrix> attached_;
};

TEST(GpuAttached, ChainsOfAllKinds) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  InStream runner(ClientOf(server));
  CheckChains(runner);
  EXPECT_GT(runner.runs, 100);
  EXPECT_EQ(runner.ran(), runner.runs);
}

TEST(GpuAttached, ChainsThatCannotRunHereRunOnTheServer) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  const CsrMatrix s = RandomMatrix(30, 30, 1), other = RandomMatrix(30, 30, 2);
  const Matrix matrix = Upload(client, "m", s), second = Upload(client, "other", other);
  const AttachedMatrix attached = AttachOnGpu(client, "m");
  const std::vector<float> b = RandomDense(30 * 4, 3), once = Multiply(s, false, b, 4);
  std::vector<float> c(30 * 4, kPoison);
  OnGpu from(DenseView(b.data(), 30, 4));
  OnGpu to(MutableDenseView(c.data(), 30, 4));
  const auto run = [&](const Chain& chain) {
    const auto done = attached.Run(Queue(), chain);
    EXPECT_TRUE(done.ok()) << done.status();
    if (done.ok()) {
      EXPECT_EQ(done->transport, Transport::kStream);
    }
    to.Back(c.data());
  };
  {
    Chain both;
    both.Output(both.Spmm(second, both.Spmm(matrix, both.Input(from.view()))), to.view());
    run(both);
    EXPECT_EQ(c, Multiply(other, false, once, 4));
  }
  {
    const auto held = client.PutDense("b", DenseView(b.data(), 30, 4));
    ASSERT_TRUE(held.ok());
    Chain of_held;
    of_held.Output(of_held.Spmm(matrix, of_held.Input(*held)), to.view());
    run(of_held);
    EXPECT_EQ(c, once);
  }
  {
    // The result over the operand.
    OnGpu both(DenseView(b.data(), 30, 4));
    auto* const data = static_cast<float*>(const_cast<void*>(both.view().data));
    Chain over;
    over.Output(over.Spmm(matrix, over.Input(both.view())), MutableDenseView(data, 30, 4));
    run(over);
    both.Back(c.data());
    EXPECT_EQ(c, once);
  }
  {
    Chain twice;
    const auto y = twice.Spmm(matrix, twice.Input(from.view()));
    twice.Output(y, to.view());
    twice.Output(y, to.view());
    const absl::Status refused = attached.Run(Queue(), twice).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
  {
    OnGpu narrow(DenseView(b.data(), 29, 4));
    Chain wrong, there;
    wrong.Output(wrong.Spmm(matrix, wrong.Input(narrow.view())), to.view());
    there.Output(there.Spmm(matrix, there.Input(DenseView(b.data(), 29, 4))),
                 MutableDenseView(c.data(), 30, 4));
    const absl::Status refused = attached.Run(Queue(), wrong).status();
    const absl::Status same = client.Run(there).status();
    EXPECT_EQ(refused.code(), same.code());
    EXPECT_EQ(refused.message(), same.message());
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
  EXPECT_EQ(attached.runs(), 0);
  // Operands in host memory are the server's to compute with, too.
  Chain on_host;
  on_host.Output(on_host.Spmm(matrix, on_host.Input(DenseView(b.data(), 30, 4))),
                 MutableDenseView(c.data(), 30, 4));
  ASSERT_TRUE(attached.Run(on_host).ok());
  EXPECT_EQ(c, once);
  EXPECT_EQ(attached.runs(), 0);
}

TEST(GpuAttached, ChainsOfManyStreamsWhileValuesChange) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  CsrMatrix s = RandomMatrix(400, 400, 1);
  auto& values = std::get<std::vector<float>>(s.values);
  std::ranges::fill(values, 1.0F);
  const Matrix matrix = Upload(client, "m", s);
  const AttachedMatrix attached = AttachOnGpu(client, "m");
  const std::vector<float> b(400 * 16, 1);
  const std::vector<float> expected = Multiply(s, true, Multiply(s, false, b, 16), 16);
  const Buffer from = Gpu::Get()->Upload(b.data(), b.size() * sizeof(float));
  const DenseView operand(reinterpret_cast<const float*>(from.data()), 400, 16);
  std::atomic<bool> ended = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create();
      ASSERT_TRUE(stream.ok()) << stream.status();
      Buffer to = Gpu::Get()->Allocate(b.size() * sizeof(float));
      const MutableDenseView result(reinterpret_cast<float*>(to.mutable_data()), 400, 16);
      std::vector<float> c(b.size());
      // In turns, chains of other sizes and of steps without a plan.
      Chain there_and_back, attention;
      const auto x = there_and_back.Input(operand);
      there_and_back.Output(
          there_and_back.Spmm(matrix, there_and_back.Spmm(matrix, x), {.transpose = true}), result);
      const auto y = attention.Input(operand);
      const auto weights =
          attention.Softmax(matrix, attention.Sddmm(matrix, y, y, {.unscaled = true, .heads = 4}));
      attention.Output(attention.Spmm(matrix, y, {.values = weights}), result);
      while (!ended) {
        // Of ones, whatever the weights; 0 of rows without nonzeros.
        ASSERT_TRUE(attached.Run(GpuStream{stream->handle()}, attention).ok());
        const auto done = attached.Run(GpuStream{stream->handle()}, there_and_back);
        ASSERT_TRUE(done.ok()) << done.status();
        Must(stream->Copy(c.data(), to.data(), c.size() * sizeof(float)));
        Must(stream->Synchronize());
        const auto square = static_cast<float>(done->version * done->version);
        for (size_t at = 0; at < c.size(); ++at) ASSERT_EQ(c[at], expected[at] * square) << at;
      }
    });
  }
  for (int version = 2; version <= 12; ++version) {
    const std::vector<float> fresh(values.size(), static_cast<float>(version));
    EXPECT_TRUE(matrix.UpdateValues(std::span<const float>(fresh)).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ended = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(attached.runs(), 0);
}

TEST(GpuAttached, OfOldValuesThatChainsUsedNothingIsLeft) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  CsrMatrix s = RandomMatrix(500, 500, 1);
  const Matrix matrix = Upload(client, "m", s);
  const std::vector<float> b = RandomDense(500 * 8, 3);
  std::vector<float> c(500 * 8);
  OnGpu from(DenseView(b.data(), 500, 8));
  OnGpu to(MutableDenseView(c.data(), 500, 8));
  {
    const AttachedMatrix attached = AttachOnGpu(client, "m");
    Chain chain;
    // Of no plan, which might change meanwhile.
    chain.Output(chain.Max(matrix, chain.Mean(matrix, chain.Input(from.view()))), to.view());
    const auto run = [&] {
      const auto done = attached.Run(Queue(), chain);
      ASSERT_TRUE(done.ok()) << done.status();
    };
    run();
    const int64_t shared = SharedOnGpu(server);
    EXPECT_GT(shared, 0);
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(matrix.UpdateValues(std::span<const float>(F32(s))).ok());
      run();
    }
    run();
    Must(Gpu::Get()->stream().Synchronize());
    EXPECT_TRUE(Eventually([&] {
      run();
      return SharedOnGpu(server) == shared;
    })) << SharedOnGpu(server);
  }
  EXPECT_TRUE(Eventually([&] { return SharedOnGpu(server) == 0; }));
}

TEST(GpuAttached, OperandsBeginAnywhere) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  const CsrMatrix s = RandomMatrix(300, 200, 1);
  Upload(client, "m", s);
  const AttachedMatrix attached = AttachOnGpu(client, "m");
  for (const int64_t k : {1, 4, 32, 100}) {
    const std::vector<float> b = RandomDense(200 * k, 3);
    for (const size_t offset : {4, 8, 16}) {
      EXPECT_EQ(ProductOf(attached, s, b, k, offset), Multiply(s, false, b, k)) << k << offset;
    }
  }
}

TEST(GpuAttached, AnotherOldValueAndTheUploadsOrder) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  // Rows backwards.
  const std::vector<int64_t> offsets = {0, 3, 3, 5};
  const std::vector<int32_t> columns = {2, 1, 0, 3, 1};
  const std::vector<float> values = {1, 2, 3, 4, 5};
  ASSERT_TRUE(client
                  .Upload("m",
                          {.rows = 3,
                           .cols = 4,
                           .row_offsets = std::span<const int64_t>(offsets),
                           .column_indices = columns,
                           .values = std::span<const float>(values)},
                          {.sort = true})
                  .ok());
  const AttachedMatrix attached = AttachOnGpu(client, "m");
  const std::vector<float> b = {1, 2, 3, 4}, old = {100, 200, 300}, own = {10, 20, 30, 40, 50};
  std::vector<float> c(3, kPoison), products(5, kPoison);
  OnGpu from(DenseView(b.data(), 4, 1)), before(DenseView(old.data(), 3, 1)),
      scale(DenseView(own.data(), 5, 1));
  OnGpu to(MutableDenseView(c.data(), 3, 1)), at(MutableDenseView(products.data(), 5, 1));
  ASSERT_TRUE(
      attached.Spmm(Queue(), from.view(), to.view(), {.beta = 0.5, .accumulate = before.view()})
          .ok());
  to.Back(c.data());
  EXPECT_EQ(c, (std::vector<float>{3 + 4 + 3 + 50, 100, 16 + 10 + 150}));
  // Values in the upload's order, which is not the layouts'.
  ASSERT_TRUE(attached.Spmm(Queue(), from.view(), to.view(), {.values = scale.view()}).ok());
  to.Back(c.data());
  EXPECT_EQ(c, (std::vector<float>{30 + 40 + 30, 0, 160 + 100}));
  ASSERT_TRUE(
      attached.Sddmm(Queue(), before.view(), from.view(), at.view(), {.values = scale.view()})
          .ok());
  at.Back(products.data());
  EXPECT_EQ(products, (std::vector<float>{3000, 4000, 3000, 48000, 30000}));
  EXPECT_EQ(attached.runs(), 3);
}

TEST(GpuAttached, NewValuesAndADeletionAreSeen) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  CsrMatrix s = RandomMatrix(200, 200, 1);
  const Matrix matrix = Upload(client, "m", s);
  const AttachedMatrix attached = AttachOnGpu(client, "m");
  const std::vector<float> b = RandomDense(200 * 8, 3);
  EXPECT_EQ(ProductOf(attached, s, b, 8), Multiply(s, false, b, 8));
  for (int i = 0; i < 5; ++i) {
    auto& values = std::get<std::vector<float>>(s.values);
    for (float& value : values) value += 1;
    const auto updated = matrix.UpdateValues(std::span<const float>(values));
    ASSERT_TRUE(updated.ok()) << updated.status();
    uint64_t version = 0;
    EXPECT_EQ(ProductOf(attached, s, b, 8, 0, &version), Multiply(s, false, b, 8)) << i;
    EXPECT_EQ(version, *updated);
  }
  EXPECT_EQ(attached.runs(), 6);
  ASSERT_TRUE(matrix.Delete().ok());
  OnGpu from(DenseView(b.data(), 200, 8));
  std::vector<float> c(200 * 8);
  OnGpu to(MutableDenseView(c.data(), 200, 8));
  EXPECT_EQ(attached.Spmm(Queue(), from.view(), to.view()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(GpuAttached, OneCopyServesAllAndGoesWithTheLast) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  const CsrMatrix s = RandomMatrix(500, 500, 1);
  Upload(client, "m", s);
  const std::vector<float> b = RandomDense(500 * 8, 3), expected = Multiply(s, false, b, 8);
  {
    const AttachedMatrix one = AttachOnGpu(client, "m");
    EXPECT_EQ(ProductOf(one, s, b, 8), expected);
    const int64_t shared = SharedOnGpu(server);
    EXPECT_GT(shared, 0);
    const auto owned = server.engine().gpus().front()->budget().owned();
    EXPECT_EQ(owned.at("default"), shared);
    const AttachedMatrix other = AttachOnGpu(client, "m"), third = AttachOnGpu(client, "m");
    EXPECT_EQ(ProductOf(other, s, b, 8), expected);
    EXPECT_EQ(ProductOf(third, s, b, 8), expected);
    EXPECT_EQ(SharedOnGpu(server), shared);
  }
  EXPECT_TRUE(Eventually([&] { return SharedOnGpu(server) == 0; }));
}

TEST(GpuAttached, WhatCannotRunHereRunsOnTheServer) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  const CsrMatrix s = RandomMatrix(30, 30, 1);
  Upload(client, "m", s);
  const AttachedMatrix attached = AttachOnGpu(client, "m");
  const std::vector<float> b = RandomDense(30 * 4, 3), expected = Multiply(s, false, b, 4);
  std::vector<float> c(30 * 4, kPoison);
  // The result over the operand, and beside another old value.
  OnGpu both(MutableDenseView(c.data(), 30, 4));
  OnGpu from(DenseView(b.data(), 30, 4));
  Must(Gpu::Get()->stream().Copy(both.view().data, from.view().data, 30 * 4 * sizeof(float)));
  const DenseView over(static_cast<const float*>(both.view().data), 30, 4);
  auto done = attached.Spmm(Queue(), over, both.view());
  ASSERT_TRUE(done.ok()) << done.status();
  both.Back(c.data());
  EXPECT_EQ(c, expected);
  Must(Gpu::Get()->stream().Copy(both.view().data, from.view().data, 30 * 4 * sizeof(float)));
  done = attached.Spmm(Queue(), over, both.view(), {.alpha = 2, .beta = -1});
  ASSERT_TRUE(done.ok()) << done.status();
  both.Back(c.data());
  for (size_t i = 0; i < c.size(); ++i) EXPECT_EQ(c[i], 2 * expected[i] - b[i]);
  EXPECT_EQ(attached.runs(), 0);
  // Operands in host memory are the server's to multiply, too.
  ASSERT_TRUE(attached.Spmm(DenseView(b.data(), 30, 4), MutableDenseView(c.data(), 30, 4)).ok());
  EXPECT_EQ(c, expected);
  // What is wrong gets the server's sentence.
  OnGpu narrow(DenseView(b.data(), 29, 4));
  const absl::Status here = attached.Spmm(Queue(), narrow.view(), both.view()).status();
  const absl::Status there =
      attached.matrix()
          .Spmm(DenseView(b.data(), 29, 4), MutableDenseView(c.data(), 30, 4))
          .status();
  EXPECT_EQ(here.code(), there.code());
  EXPECT_EQ(here.message(), there.message());
  EXPECT_EQ(attached.runs(), 0);
}

TEST(GpuAttached, AttachingIsRefusedWhereItIsNotPossible) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal), elsewhere(WithLocal);
  const CsrMatrix s = RandomMatrix(10, 10, 1);
  const Client client = ClientOf(server), other = ClientOf(elsewhere);
  Upload(client, "m", s);
  Upload(other, "m", s);
  EXPECT_EQ(AttachedMatrix::Attach(client, "m", {.gpu = 99}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(AttachedMatrix::Attach(client, "m", {.gpu = -1}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const absl::Status refused = AttachedMatrix::Attach(other, "m", {.gpu = 0}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("--devices"), std::string::npos) << refused;
  const auto on_cpu = AttachedMatrix::Attach(client, "m");
  ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();
  std::vector<float> c(10);
  OnGpu to(MutableDenseView(c.data(), 10, 1));
  OnGpu from(DenseView(c.data(), 10, 1));
  EXPECT_EQ(on_cpu->Spmm(Queue(), from.view(), to.view()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(GpuAttached, ManyStreamsWhileValuesChange) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  CsrMatrix s = RandomMatrix(400, 400, 1);
  auto& values = std::get<std::vector<float>>(s.values);
  const Matrix matrix = Upload(client, "m", s);
  const AttachedMatrix attached = AttachOnGpu(client, "m");
  const std::vector<float> b = RandomDense(400 * 16, 3);
  // Each product is that of one version, whichever.
  std::vector<std::vector<float>> expected = {{}};
  constexpr uint64_t kVersions = 8;
  const std::vector<float> first = values;
  for (uint64_t version = 1; version <= kVersions; ++version) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = first[i] * static_cast<float>(version);
    expected.push_back(Multiply(s, false, b, 16));
  }
  std::atomic<bool> ended = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create();
      ASSERT_TRUE(stream.ok()) << stream.status();
      const Buffer from = Gpu::Get()->Upload(b.data(), b.size() * sizeof(float));
      Buffer to = Gpu::Get()->Allocate(expected[1].size() * sizeof(float));
      std::vector<float> c(expected[1].size());
      while (!ended) {
        const auto done =
            attached.Spmm(GpuStream{stream->handle()},
                          DenseView(reinterpret_cast<const float*>(from.data()), 400, 16),
                          MutableDenseView(reinterpret_cast<float*>(to.mutable_data()), 400, 16));
        ASSERT_TRUE(done.ok()) << done.status();
        Must(stream->Copy(c.data(), to.data(), c.size() * sizeof(float)));
        Must(stream->Synchronize());
        ASSERT_GE(done->version, 1u);
        ASSERT_LE(done->version, kVersions);
        ASSERT_EQ(c, expected[done->version]);
      }
    });
  }
  for (uint64_t version = 2; version <= kVersions; ++version) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = first[i] * static_cast<float>(version);
    EXPECT_TRUE(matrix.UpdateValues(std::span<const float>(values)).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ended = true;
  for (std::thread& thread : threads) thread.join();
}

/// CUDA's handle of the stream that each thread has for itself (cudaStreamPerThread).
const GpuStream kOwnStream = {reinterpret_cast<void*>(0x2)};

TEST(GpuAttached, EachThreadsOwnStreamIsAnother) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  // Columns backwards, so that values of a call's own are put in order in memory of the stream's.
  constexpr int64_t kRows = 20000, kEach = 8, kWidth = 4;
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> columns;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = kEach; i-- > 0;) columns.push_back(static_cast<int32_t>((row + i) % kRows));
    if (row + kEach > kRows) std::sort(columns.end() - kEach, columns.end(), std::greater());
    offsets.push_back(offsets.back() + kEach);
  }
  const std::vector<float> ones(columns.size(), 1);
  ASSERT_TRUE(client
                  .Upload("m",
                          {.rows = kRows,
                           .cols = kRows,
                           .row_offsets = std::span<const int64_t>(offsets),
                           .column_indices = columns,
                           .values = std::span<const float>(ones)},
                          {.sort = true})
                  .ok());
  const AttachedMatrix attached = AttachOnGpu(client, "m");
  const std::vector<float> b(kRows * kWidth, 1);
  OnGpu from(DenseView(b.data(), kRows, kWidth));
  const DenseView operand = from.view();
  std::vector<std::thread> threads;
  for (int i = 1; i <= 4; ++i) {
    threads.emplace_back([&, i] {
      const std::vector<float> own(columns.size(), static_cast<float>(i));
      std::vector<float> c(kRows * kWidth);
      OnGpu values(DenseView(own.data(), static_cast<int64_t>(own.size()), 1));
      OnGpu to(MutableDenseView(c.data(), kRows, kWidth));
      cuda::Stream stream = cuda::Stream::Of(kOwnStream.handle);
      for (int round = 0; round < 100; ++round) {
        const auto done = attached.Spmm(kOwnStream, operand, to.view(), {.values = values.view()});
        ASSERT_TRUE(done.ok()) << done.status();
        Must(stream.Copy(c.data(), to.view().data, c.size() * sizeof(float)));
        Must(stream.Synchronize());
        ASSERT_EQ(c, std::vector<float>(c.size(), static_cast<float>(i * kEach))) << round;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(attached.runs(), 400);
}

TEST(GpuAttached, WhatCallersRanIsCounted) {
  SKIP_WITHOUT_GPU();
  TestServer server([](server::Config& config) {
    OnGpuWithLocal(config);
    WithPages(config);
  });
  const Client client = ClientOf(server);
  const CsrMatrix s = RandomMatrix(100, 100, 1);
  Upload(client, "m", s);
  const AttachedMatrix attached = AttachOnGpu(client, "m");
  const std::vector<float> b = RandomDense(100 * 8, 3);
  for (int i = 0; i < 5; ++i) ProductOf(attached, s, b, 8);
  std::vector<float> c(100 * 8);
  OnGpu from(DenseView(b.data(), 100, 8));
  OnGpu to(MutableDenseView(c.data(), 100, 8));
  Chain chain;
  chain.Output(chain.Mean(client.MatrixNamed("m"), chain.Input(from.view())), to.view());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(attached.Run(Queue(), chain).ok());
  const auto counted = [&](const std::string& operation, int calls) {
    return server.Page("/metrics")
               .find(R"(sparsed_attached_calls_total{device="cuda:0",op=")" + operation +
                     R"(",tenant="default"} )" + std::to_string(calls)) != std::string::npos;
  };
  EXPECT_TRUE(Eventually([&] { return counted("spmm", 5) && counted("chain", 3); }));
}

}  // namespace
}  // namespace sparsed::test
