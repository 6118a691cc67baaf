// Products on GPU memory that the server shares with its callers, queued in the callers' streams.
// Over the stand-in, too, whose streams do everything at once.
#include "tests/gpu/gpu.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"

// The client's types have names of the kernels': they come after them.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "sparsed/chain.h"
#include "sparsed/gpu_memory.h"
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

GpuMemory MemoryOf(const Client& client) {
  auto memory = GpuMemory::Open(client, 0);
  if (!memory.ok()) {
    ADD_FAILURE() << memory.status();
    std::abort();
  }
  return *std::move(memory);
}

int64_t SharedOnGpu(TestServer& server) {
  return server.engine().gpus().front()->budget().used(engine::MemoryUse::kShared);
}

template <typename View>
size_t ExtentOf(const View& view) {
  const size_t size = view.type == ValueType::kF64 ? 8 : view.type == ValueType::kF32 ? 4 : 2;
  const int64_t stride = view.leading_dimension == 0 ? view.cols : view.leading_dimension;
  return view.rows == 0 ? 0 : static_cast<size_t>((view.rows - 1) * stride + view.cols) * size;
}

/// A matrix of the host's, with its gaps, in GPU memory: the server's, or this process's own, so
/// many bytes behind where it begins.
template <typename View>
class OnGpu {
 public:
  OnGpu(const View& host, const GpuMemory* memory, size_t offset)
      : host_(host), memory_(memory), bytes_(ExtentOf(host)) {
    if (memory_ != nullptr) {
      auto data = memory_->AllocateBytes(bytes_ + offset + 1, Queue());
      EXPECT_TRUE(data.ok()) << data.status();
      begin_ = static_cast<std::byte*>(*data);
    } else {
      own_ = Gpu::Get()->Allocate(bytes_ + offset + 1);
      begin_ = own_.mutable_data();
    }
    at_ = begin_ + offset;
    Must(Gpu::Get()->stream().Copy(at_, host.data, bytes_));
    Must(Gpu::Get()->stream().Synchronize());
  }
  ~OnGpu() {
    if (memory_ == nullptr) return;
    EXPECT_TRUE(memory_->FreeBytes(begin_, Queue()).ok());
  }
  View view() const {
    View there = host_;
    there.data = at_;
    return there;
  }
  void Back(void* to) { Gpu::Get()->Download(to, at_, bytes_); }

 private:
  const View host_;
  const GpuMemory* const memory_;
  const size_t bytes_;
  Buffer own_;
  std::byte *begin_ = nullptr, *at_ = nullptr;
};

struct Counts {
  int64_t queued = 0, waited = 0, copied = 0;
  void Add(const absl::StatusOr<QueuedResult>& result, const Operand& b) {
    if (!result.ok()) return;
    (result->queued ? queued : waited) += 1;
    // One column with gaps is always copied.
    const auto& view = std::get<DenseView>(b);
    if (view.cols > 1 || view.leading_dimension <= 1) copied += result->copied_bytes;
  }
};

/// What runs in a stream, as if its operands were in host memory. `memory`: where they are; null:
/// in this process's own.
Products OverHost(const QueuedMatrix& matrix, const GpuMemory* memory, size_t offset,
                  Counts* counts) {
  return {[=](const Operand& b, const Destination& c,
              const SpmmOptions& options) -> absl::StatusOr<ComputeResult> {
            OnGpu from(std::get<DenseView>(b), memory, offset);
            const auto to = std::get<MutableDenseView>(c);
            OnGpu result(to, memory, offset);
            SpmmOptions there = options;
            std::optional<OnGpu<DenseView>> values;
            if (options.values) {
              values.emplace(std::get<DenseView>(*options.values), memory, offset);
              there.values = values->view();
            }
            auto done = matrix.Spmm(Queue(), from.view(), result.view(), there);
            counts->Add(done, b);
            result.Back(to.data);
            return done;
          },
          [=](const Operand& a, const Operand& b, const Destination& values,
              const SddmmOptions& options) -> absl::StatusOr<ComputeResult> {
            OnGpu left(std::get<DenseView>(a), memory, offset);
            OnGpu right(std::get<DenseView>(b), memory, offset);
            const auto to = std::get<MutableDenseView>(values);
            OnGpu result(to, memory, offset);
            auto done = matrix.Sddmm(Queue(), left.view(), right.view(), result.view(), options);
            counts->Add(done, a);
            result.Back(to.data);
            return done;
          }};
}

TEST(GpuMemoryTest, ProductsOfAllKindsAreQueued) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  const GpuMemory memory = MemoryOf(client);
  Counts counts;
  CheckProducts(client, [&](const Matrix& matrix) {
    return OverHost(QueuedMatrix(memory, matrix), &memory, 0, &counts);
  });
  EXPECT_GT(counts.queued, 50);
  EXPECT_EQ(counts.waited, 0);
  EXPECT_EQ(counts.copied, 0);
}

TEST(GpuMemoryTest, WhatIsElsewhereIsCopiedOnTheGpu) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  const GpuMemory memory = MemoryOf(client);
  Counts own, beside;
  CheckProducts(client, [&](const Matrix& matrix) {
    return OverHost(QueuedMatrix(memory, matrix), nullptr, 0, &own);
  });
  EXPECT_GT(own.queued, 50);
  EXPECT_EQ(own.waited, 0);
  EXPECT_GT(own.copied, 0);
  // At no multiple of 64 bytes.
  CheckProducts(client, [&](const Matrix& matrix) {
    return OverHost(QueuedMatrix(memory, matrix), &memory, 8, &beside);
  });
  EXPECT_EQ(beside.queued, own.queued);
  EXPECT_GT(beside.copied, 0);
}

/// A square matrix, and a dense one in GPU memory.
struct Powers {
  static constexpr int64_t kN = 300, kWidth = 8;

  explicit Powers(const Client& client) : memory(MemoryOf(client)), s(RandomMatrix(kN, kN, 5)) {
    // So that powers of it stay exact.
    for (float& value : std::get<std::vector<float>>(s.values)) value = value > 0 ? 1 : 0;
    Upload(client, "s", s);
    for (std::optional<GpuMatrix>* const matrix : {&x, &y}) {
      auto made = memory.Allocate(kN, kWidth);
      EXPECT_TRUE(made.ok()) << made.status();
      matrix->emplace(*std::move(made));
    }
    start = RandomDense(kN * kWidth, 9);
    Put();
  }
  void Put() {
    Must(Gpu::Get()->stream().Copy(x->data(), start.data(), start.size() * sizeof(float)));
    Must(Gpu::Get()->stream().Synchronize());
  }
  std::vector<float> Get(const GpuMatrix& from) const {
    std::vector<float> there(start.size());
    Gpu::Get()->Download(there.data(), from.data(), there.size() * sizeof(float));
    return there;
  }
  /// S^times * x, reduced after each step as the test does.
  std::vector<float> Expected(int times) const {
    std::vector<float> now = start;
    for (int i = 0; i < times; ++i) {
      std::vector<float> next(now.size(), 0);
      for (int64_t row = 0; row < kN; ++row) {
        for (int64_t e = s.row_offsets[row]; e < s.row_offsets[row + 1]; ++e) {
          for (int64_t k = 0; k < kWidth; ++k) {
            next[row * kWidth + k] += F32(s)[e] * now[s.column_indices[e] * kWidth + k];
          }
        }
      }
      now = std::move(next);
    }
    return now;
  }

  const GpuMemory memory;
  CsrMatrix s;
  std::optional<GpuMatrix> x, y;
  std::vector<float> start;
};

TEST(GpuMemoryTest, ProductsOfAStreamRunInItsOrder) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  Powers powers(client);
  const QueuedMatrix matrix(powers.memory, client.MatrixNamed("s"));
  for (int round = 0; round < 60; ++round) {
    powers.Put();
    // Three of them, none of which is waited for: x -> y -> x -> y.
    for (int i = 0; i < 3; ++i) {
      const GpuMatrix &from = i % 2 == 0 ? *powers.x : *powers.y,
                      &to = i % 2 == 0 ? *powers.y : *powers.x;
      const auto done = matrix.Spmm(Queue(), from.ConstView(), to.View());
      ASSERT_TRUE(done.ok()) << done.status();
      ASSERT_TRUE(done->queued);
      EXPECT_EQ(done->transport, Transport::kSharedDevice);
    }
    ASSERT_EQ(powers.Get(*powers.y), powers.Expected(3)) << "round " << round;
  }
}

TEST(GpuMemoryTest, PlainRequestsAndChainsUseItWhereItIs) {
  SKIP_WITHOUT_GPU();
  TestServer server([](server::Config& config) {
    OnGpuWithLocal(config);
    WithPages(config);
  });
  const Client client = ClientOf(server);
  Powers powers(client);
  const Matrix matrix = client.MatrixNamed("s");
  const auto done = matrix.Spmm(powers.x->ConstView(), powers.y->View());
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(powers.Get(*powers.y), powers.Expected(1));
  EXPECT_NE(server.Page("/metrics")
                .find("sparsed_transfer_bytes_total{direction=\"in\",path=\"shared_device\"} 9600"),
            std::string::npos);
  // From the host and back.
  std::vector<float> host(powers.start.size(), kPoison);
  const MutableDenseView on_host(host.data(), Powers::kN, Powers::kWidth);
  ASSERT_TRUE(matrix.Spmm(powers.y->ConstView(), on_host).ok());
  EXPECT_EQ(host, powers.Expected(2));
  ASSERT_TRUE(
      matrix.Spmm(DenseView(host.data(), Powers::kN, Powers::kWidth), powers.y->View()).ok());
  EXPECT_EQ(powers.Get(*powers.y), powers.Expected(3));

  Chain chain;
  auto value = chain.Input(powers.x->ConstView());
  for (int i = 0; i < 3; ++i) value = chain.Spmm(matrix, value);
  std::vector<float> poison(host.size(), kPoison);
  Must(Gpu::Get()->stream().Copy(powers.y->data(), poison.data(), poison.size() * sizeof(float)));
  Must(Gpu::Get()->stream().Synchronize());
  chain.Output(value, powers.y->View());
  const auto chained = client.Run(chain);
  ASSERT_TRUE(chained.ok()) << chained.status();
  EXPECT_EQ(powers.Get(*powers.y), powers.Expected(3));

  // What cannot be used where it is, is no business of the host's.
  const auto* const middle = static_cast<const float*>(powers.x->data()) + 3;
  EXPECT_EQ(matrix.Spmm(DenseView(middle, Powers::kN, Powers::kWidth), on_host).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const auto tall = matrix.Spmm(
      DenseView(powers.x->data(), ValueType::kF32, int64_t{1} << 20, Powers::kWidth, 0), on_host);
  EXPECT_EQ(tall.status().code(), absl::StatusCode::kFailedPrecondition) << tall.status();
  const CsrMatrix small = RandomMatrix(20, 20, 1);
  const std::span<const float> values(static_cast<const float*>(powers.x->data()),
                                      static_cast<size_t>(small.nnz()));
  EXPECT_EQ(Upload(client, "small", small).UpdateValues(values).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GpuMemoryTest, BadSizesAndStreamsAreRefused) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  Powers powers(client);
  const QueuedMatrix matrix(powers.memory, client.MatrixNamed("s"));
  const auto b = powers.x->ConstView();
  const auto c = powers.y->View();
  EXPECT_EQ(GpuMemory::Open(client, 99).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(powers.memory.Allocate(-1, 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(powers.memory.Allocate(int64_t{1} << 60, 1 << 20).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(powers.memory.Allocate(int64_t{1} << 40, 64).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(matrix.Spmm(Queue(), DenseView(b.data, b.type, Powers::kN - 1, Powers::kWidth, 0), c)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(matrix.Spmm(Queue(), b, powers.x->View()).status().code(),
            absl::StatusCode::kInvalidArgument)
      << "the result would overwrite B";
  EXPECT_EQ(QueuedMatrix(powers.memory, client.MatrixNamed("nothing"))
                .Spmm(Queue(), b, c)
                .status()
                .code(),
            absl::StatusCode::kNotFound);
  SpmmOptions held;
  held.beta = 1;
  held.accumulate = client.DenseNamed("held");
  EXPECT_EQ(matrix.Spmm(Queue(), b, c, held).status().code(), absl::StatusCode::kInvalidArgument);
  // After all that, it works.
  ASSERT_TRUE(matrix.Spmm(Queue(), b, c).ok());
  EXPECT_EQ(powers.Get(*powers.y), powers.Expected(1));
}

TEST(GpuMemoryTest, BytesOfAnAllocatorAreUsedAgainAndGivenBack) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpuWithLocal);
  const Client client = ClientOf(server);
  {
    const GpuMemory memory = MemoryOf(client);
    EXPECT_FALSE(memory.AllocateBytes(0).ok());
    const auto first = memory.AllocateBytes(1000, Queue());
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(memory.FreeBytes(static_cast<std::byte*>(*first) + 64, Queue()).code(),
              absl::StatusCode::kInvalidArgument);
    const int64_t one = SharedOnGpu(server);
    EXPECT_GT(one, 0);
    ASSERT_TRUE(memory.FreeBytes(*first, Queue()).ok());
    EXPECT_EQ(memory.FreeBytes(*first, Queue()).code(), absl::StatusCode::kInvalidArgument);
    const auto again = memory.AllocateBytes(2000, Queue());
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(*again, *first) << "kept for the same stream";
    EXPECT_EQ(SharedOnGpu(server), one);
    ASSERT_TRUE(memory.FreeBytes(*again, Queue()).ok());
    memory.Trim();
    EXPECT_TRUE(Eventually([&] { return SharedOnGpu(server) == 0; }));
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&memory, i] {
        for (int j = 0; j < 20; ++j) {
          const auto bytes = memory.AllocateBytes(100 + 3'000'000 * (i % 2), Queue());
          ASSERT_TRUE(bytes.ok()) << bytes.status();
          ASSERT_TRUE(memory.FreeBytes(*bytes, Queue()).ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    // What is not given back goes with the handle.
    ASSERT_TRUE(memory.AllocateBytes(1000, Queue()).ok());
  }
  EXPECT_TRUE(Eventually([&] { return SharedOnGpu(server) == 0; }));
}

TEST(GpuMemoryTest, WithoutTheServerProductsEndWithAnError) {
  SKIP_WITHOUT_GPU();
  std::optional<TestServer> server(OnGpuWithLocal);
  const Client client = ClientOf(*server);
  Powers powers(client);
  const QueuedMatrix matrix(powers.memory, client.MatrixNamed("s"));
  ASSERT_TRUE(matrix.Spmm(Queue(), powers.x->ConstView(), powers.y->View()).ok());
  EXPECT_EQ(powers.Get(*powers.y), powers.Expected(1));
  server.reset();
  const auto done = matrix.Spmm(Queue(), powers.x->ConstView(), powers.y->View());
  EXPECT_FALSE(done.ok());
  // What it had given is there.
  EXPECT_EQ(powers.Get(*powers.y), powers.Expected(1));
}

}  // namespace
}  // namespace sparsed::test
