// The C interface with operands on a GPU: which way products take, and that each is right. Over the
// stand-in, too.
#include "sparsed/c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

#define SKIP_WITHOUT_GPU() \
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot()

/// Ends the test with what an error says.
void ExpectOk(sparsed_error* error) {
  EXPECT_EQ(error, nullptr) << sparsed_error_message(error);
  sparsed_error_free(error);
}

/// A dense matrix in this process's memory of the GPU.
class OnGpu {
 public:
  OnGpu(const std::vector<float>& host, int64_t rows, int64_t cols)
      : rows_(rows), cols_(cols), memory_(Gpu::Get()->Allocate(host.size() * sizeof(float) + 1)) {
    Must(Gpu::Get()->stream().Copy(memory_.mutable_data(), host.data(), Bytes()));
    Must(Gpu::Get()->stream().Synchronize());
  }
  sparsed_dense Dense() {
    return {memory_.mutable_data(), rows_, cols_, 0, SPARSED_F32, 0, nullptr};
  }
  std::vector<float> Back() {
    std::vector<float> host(static_cast<size_t>(rows_ * cols_));
    Gpu::Get()->Download(host.data(), memory_.mutable_data(), Bytes());
    return host;
  }

 private:
  size_t Bytes() const { return static_cast<size_t>(rows_ * cols_) * sizeof(float); }

  int64_t rows_, cols_;
  Buffer memory_;
};

/// A server and a client, with a matrix
///   1 0 2
///   0 3 0
class CInterface : public testing::Test {
 protected:
  void Start(bool local, int32_t attach) {
    server_ = std::make_unique<TestServer>([local](server::Config& config) {
      config.devices = {"cuda:0"};
      if (local) WithLocal(config);
    });
    sparsed_client_options options = SPARSED_CLIENT_OPTIONS_INIT;
    options.attach = attach;
    ExpectOk(sparsed_connect(server_->address().c_str(), &options, &client_));
    const int32_t row_offsets[] = {0, 2, 3}, column_indices[] = {0, 2, 1};
    const float values[] = {1, 2, 3};
    const sparsed_csr_view csr = {2, 3, 3, row_offsets, 4, SPARSED_F32, column_indices, values};
    ExpectOk(sparsed_upload(client_, "m", &csr, nullptr, nullptr, &matrix_, nullptr));
    call_.stream = Gpu::Get()->stream().handle();
  }
  ~CInterface() override {
    sparsed_matrix_free(matrix_);
    sparsed_client_free(client_);
  }

  /// Of an SpMM that is right.
  int32_t Spmm() {
    OnGpu b({1, 10, 2, 20, 3, 30}, 3, 2), c({0, 0, 0, 0}, 2, 2);
    const sparsed_dense from = b.Dense(), to = c.Dense();
    sparsed_result result = {};
    ExpectOk(sparsed_spmm(matrix_, &from, &to, nullptr, &call_, &result, nullptr));
    EXPECT_EQ(c.Back(), (std::vector<float>{7, 70, 6, 60}));
    return result.transport;
  }
  int32_t SpmmInPlace() {
    OnGpu b({1, 10, 2, 20, 3, 30}, 3, 2), c({1, 2, 3, 4}, 2, 2), values({1, 1, 1}, 3, 1);
    const sparsed_dense from = b.Dense(), to = c.Dense(), own = values.Dense();
    sparsed_spmm_options spmm = SPARSED_SPMM_OPTIONS_INIT;
    spmm.alpha = 2;
    spmm.beta = -1;
    spmm.values = &own;
    sparsed_result result = {};
    ExpectOk(sparsed_spmm(matrix_, &from, &to, &spmm, &call_, &result, nullptr));
    EXPECT_EQ(c.Back(), (std::vector<float>{7, 78, 1, 36}));
    return result.transport;
  }
  int32_t Sddmm() {
    OnGpu a({1, 2, 3, 4}, 2, 2), b({1, 10, 2, 20, 3, 30}, 3, 2), out({0, 0, 0}, 3, 1);
    const sparsed_dense left = a.Dense(), right = b.Dense(), to = out.Dense();
    sparsed_result result = {};
    ExpectOk(sparsed_sddmm(matrix_, &left, &right, &to, nullptr, &call_, &result, nullptr));
    EXPECT_EQ(out.Back(), (std::vector<float>{21, 126, 258}));
    return result.transport;
  }
  /// Of one that is a chain: values of two heads.
  int32_t Heads() {
    OnGpu b({1, 10, 2, 20, 3, 30}, 3, 2), c({0, 0, 0, 0}, 2, 2), values({1, 0, 2, 1, 3, 1}, 3, 2);
    const sparsed_dense from = b.Dense(), to = c.Dense(), own = values.Dense();
    sparsed_spmm_options spmm = SPARSED_SPMM_OPTIONS_INIT;
    spmm.values = &own;
    sparsed_result result = {};
    ExpectOk(sparsed_spmm(matrix_, &from, &to, &spmm, &call_, &result, nullptr));
    EXPECT_EQ(c.Back(), (std::vector<float>{7, 30, 6, 20}));
    return result.transport;
  }
  int32_t Total() {
    OnGpu y({0, 0}, 2, 1);
    const sparsed_dense to = y.Dense();
    sparsed_result result = {};
    ExpectOk(sparsed_total(matrix_, nullptr, 0, &to, &call_, &result, nullptr));
    EXPECT_EQ(y.Back(), (std::vector<float>{3, 3}));
    return result.transport;
  }

  std::unique_ptr<TestServer> server_;
  sparsed_client* client_ = nullptr;
  sparsed_matrix* matrix_ = nullptr;
  sparsed_call_options call_ = SPARSED_CALL_OPTIONS_INIT;
};

TEST_F(CInterface, ProductsRunHereWhereTheyCan) {
  SKIP_WITHOUT_GPU();
  Start(/*local=*/true, SPARSED_ATTACH_AUTO);
  EXPECT_EQ(Spmm(), SPARSED_TRANSPORT_ATTACHED);
  EXPECT_EQ(SpmmInPlace(), SPARSED_TRANSPORT_ATTACHED);
  EXPECT_EQ(Sddmm(), SPARSED_TRANSPORT_ATTACHED);
  EXPECT_EQ(Heads(), SPARSED_TRANSPORT_ATTACHED);
  EXPECT_EQ(Total(), SPARSED_TRANSPORT_ATTACHED);
}

TEST_F(CInterface, AServerWithAGpuTakesHostOperands) {
  SKIP_WITHOUT_GPU();
  Start(/*local=*/true, SPARSED_ATTACH_AUTO);
  float b[] = {1, 10, 2, 20, 3, 30}, c[4] = {};
  const sparsed_dense from = {b, 3, 2, 0, SPARSED_F32, SPARSED_HOST, nullptr};
  const sparsed_dense to = {c, 2, 2, 0, SPARSED_F32, SPARSED_HOST, nullptr};
  sparsed_result result = {};
  ExpectOk(sparsed_spmm(matrix_, &from, &to, nullptr, nullptr, &result, nullptr));
  EXPECT_EQ(result.transport, SPARSED_TRANSPORT_STREAM);
  EXPECT_EQ(c[3], 60);
}

TEST_F(CInterface, ElseTheyAreQueuedThere) {
  SKIP_WITHOUT_GPU();
  Start(/*local=*/true, SPARSED_ATTACH_NEVER);
  EXPECT_EQ(Spmm(), SPARSED_TRANSPORT_SHARED_DEVICE);
  EXPECT_EQ(SpmmInPlace(), SPARSED_TRANSPORT_SHARED_DEVICE);
  EXPECT_EQ(Sddmm(), SPARSED_TRANSPORT_SHARED_DEVICE);
  EXPECT_EQ(Heads(), SPARSED_TRANSPORT_STREAM);
  ExpectOk(sparsed_attach(matrix_, 0));
  EXPECT_EQ(Spmm(), SPARSED_TRANSPORT_ATTACHED);
  EXPECT_EQ(Heads(), SPARSED_TRANSPORT_ATTACHED);
}

TEST_F(CInterface, ElseTheyGoOverTheHost) {
  SKIP_WITHOUT_GPU();
  Start(/*local=*/false, SPARSED_ATTACH_AUTO);
  EXPECT_EQ(Spmm(), SPARSED_TRANSPORT_STREAM);
  EXPECT_EQ(SpmmInPlace(), SPARSED_TRANSPORT_STREAM);
  EXPECT_EQ(Sddmm(), SPARSED_TRANSPORT_STREAM);
  EXPECT_EQ(Heads(), SPARSED_TRANSPORT_STREAM);
  EXPECT_EQ(Total(), SPARSED_TRANSPORT_STREAM);
  sparsed_error* const error = sparsed_attach(matrix_, 0);
  EXPECT_EQ(sparsed_error_code(error), SPARSED_FAILED_PRECONDITION);
  sparsed_error_free(error);
}

TEST_F(CInterface, GivesMemoryOfTheServersToAnAllocator) {
  SKIP_WITHOUT_GPU();
  Start(/*local=*/true, SPARSED_ATTACH_AUTO);
  void* data = nullptr;
  ExpectOk(sparsed_gpu_allocate(client_, 0, 1024, call_.stream, &data));
  EXPECT_NE(data, nullptr);
  ExpectOk(sparsed_gpu_free(client_, 0, data, call_.stream));
  sparsed_error* const error = sparsed_gpu_free(client_, 0, &data, call_.stream);
  EXPECT_EQ(sparsed_error_code(error), SPARSED_INVALID_ARGUMENT);
  sparsed_error_free(error);

  EXPECT_EQ(sparsed_gpu_pool_malloc(1024, 0, call_.stream), nullptr);
  ExpectOk(sparsed_gpu_pool_set(client_));
  data = sparsed_gpu_pool_malloc(1024, 0, call_.stream);
  EXPECT_NE(data, nullptr);
  EXPECT_EQ(sparsed_gpu_pool_malloc(0, 0, call_.stream), nullptr);
  ExpectOk(sparsed_gpu_pool_set(nullptr));
  EXPECT_EQ(sparsed_gpu_pool_malloc(1024, 0, call_.stream), nullptr);
  // Its client keeps it until then.
  sparsed_gpu_pool_free(data, 1024, 0, call_.stream);
}

}  // namespace
}  // namespace sparsed::test
