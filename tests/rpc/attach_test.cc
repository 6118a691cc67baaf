// What the server exports to callers that run products themselves, and what it does not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "engine/catalog/plan.h"
#include "kernels/bound_run.h"
#include "kernels/formats/csr.h"
#include "kernels/kernels_id.h"
#include "kernels/pipeline.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

/// The whole memory file of the last reply, as floats or doubles or indices.
class Mapped {
 public:
  explicit Mapped(int file) {
    struct stat facts = {};
    EXPECT_EQ(fstat(file, &facts), 0);
    size_ = static_cast<size_t>(facts.st_size);
    at_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    EXPECT_NE(at_, MAP_FAILED);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() { munmap(at_, size_); }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(at_);
  }

 private:
  void* at_ = nullptr;
  size_t size_ = 0;
};

/// Nothing of the file can be changed through the descriptor.
void ExpectReadOnly(int file) {
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), MAP_FAILED);
  EXPECT_LT(write(file, "x", 1), 0);
  EXPECT_NE(ftruncate(file, 1), 0);
  EXPECT_NE(ftruncate(file, 1 << 20), 0);
  EXPECT_NE(fcntl(file, F_ADD_SEALS, 0), 0);
}

TEST(Attach, WhatIsWrongIsRefused) {
  TestServer server(WithLocal);
  MustUpload(server, "s", Uniform(20, 30, 3, 1));
  const size_t files = OpenFiles();
  {
    const File page(4096), small(2048), unsealed(4096, 0);
    Peer peer(server);
    peer.Receive();
    EXPECT_EQ(peer.Attach("s", "other kernels", {page.fd()}).status().code(), kPrecondition);
    EXPECT_EQ(peer.Attach("nothing", KernelsId(), {page.fd()}).status().code(), kNotFound);
    EXPECT_EQ(peer.Attach("s", KernelsId(), {}).status().code(), kInvalid);
    EXPECT_EQ(peer.Attach("s", KernelsId(), {small.fd()}).status().code(), kInvalid);
    EXPECT_EQ(peer.Attach("s", KernelsId(), {unsealed.fd()}).status().code(), kInvalid);
    EXPECT_EQ(peer.Export(4).status().code(), kPrecondition) << "not attached";
    EXPECT_EQ(peer.Get(1).status().code(), kPrecondition);
    EXPECT_EQ(peer.Release(1).status().code(), kPrecondition);
    EXPECT_EQ(server.engine().executor().attachments(), 0);
    const v1::LocalReply attached = peer.Attach("s", KernelsId(), {page.fd()});
    EXPECT_EQ(attached.status().code(), kOk) << attached.status().message();
    EXPECT_EQ(server.engine().executor().attachments(), 1);
    EXPECT_EQ(peer.Attach("s", KernelsId(), {page.fd()}).status().code(), kPrecondition);
    EXPECT_EQ(peer.Export(-1).status().code(), kInvalid);
    EXPECT_EQ(peer.Export(4, v1::ProblemClass::SPGEMM).status().code(), kInvalid);
    EXPECT_EQ(peer.Export(4, v1::ProblemClass::SDDMM, true).status().code(), kInvalid);
    EXPECT_EQ(peer.Export(4, v1::ProblemClass::OPERATION_UNSPECIFIED).status().code(), kInvalid);
    EXPECT_EQ(peer.Get(1 << 20).status().code(), kNotFound);
    EXPECT_EQ(peer.Release(7).status().code(), kNotFound);
    const v1::LocalReply run = peer.Export(4);
    ASSERT_EQ(run.status().code(), kOk) << run.status().message();
    EXPECT_EQ(run.exported().matrix().rows(), 20);
    EXPECT_EQ(run.exported().matrix().cols(), 30);
    EXPECT_EQ(run.exported().matrix().nnz(), 60);
    EXPECT_EQ(peer.file(), -1);
    // What one was given is not another's.
    Peer other(server);
    other.Receive();
    ASSERT_EQ(other.Attach("s", KernelsId(), {page.fd()}).status().code(), kOk);
    EXPECT_EQ(other.Get(run.exported().values().id()).status().code(), kNotFound);
    EXPECT_EQ(other.Release(run.exported().run()).status().code(), kNotFound);
    EXPECT_EQ(peer.Release(run.exported().run()).status().code(), kOk);
    EXPECT_EQ(peer.Release(run.exported().run()).status().code(), kNotFound);
    EXPECT_EQ(peer.Get(run.exported().values().id()).status().code(), kNotFound);
    for (int i = 0; i < 1024; ++i) ASSERT_EQ(peer.Export(4).status().code(), kOk) << i;
    EXPECT_EQ(peer.Export(4).status().code(), kExhausted);
  }
  EXPECT_TRUE(Eventually([&] {
    return server.engine().budget().used(engine::MemoryUse::kShared) == 0 &&
           server.engine().executor().attachments() == 0 && OpenFiles() == files;
  }));
}

TEST(Attach, WhatIsExportedCanOnlyBeRead) {
  TestServer server(WithLocal);
  const Pattern pattern = Uniform(20, 30, 3, 1);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  const File page(4096);
  Peer peer(server);
  peer.Receive();
  ASSERT_EQ(peer.Attach("s", KernelsId(), {page.fd()}).status().code(), kOk);
  ASSERT_GE(peer.file(), 0);
  ExpectReadOnly(peer.file());
  const v1::ExportedRun run = peer.Export(4).exported();
  EXPECT_EQ(run.version(), 1u);
  EXPECT_EQ(run.layout().kind(), "csr");
  ASSERT_EQ(peer.Get(run.arrays().id()).status().code(), kOk);
  ExpectReadOnly(peer.file());
  const Mapped arrays(peer.file());
  EXPECT_EQ(run.layout().arrays(0).name(), "row_offsets");
  EXPECT_TRUE(
      std::equal(pattern.row_offsets.begin(), pattern.row_offsets.end(), arrays.as<int64_t>()));
  const size_t columns_at = (21 * sizeof(int64_t) + 255) / 256 * 256;
  EXPECT_TRUE(std::equal(pattern.column_indices.begin(), pattern.column_indices.end(),
                         arrays.as<int32_t>() + columns_at / sizeof(int32_t)));
  ASSERT_EQ(peer.Get(run.values().id()).status().code(), kOk);
  ExpectReadOnly(peer.file());
  const Mapped exported(peer.file());
  EXPECT_TRUE(std::equal(values.begin(), values.end(), exported.as<float>()));
  // It stays when the server has let go of it.
  MustUpdate(server, "s", FloatValues(pattern.nnz(), 9));
  ASSERT_EQ(peer.Release(run.run()).status().code(), kOk);
  EXPECT_TRUE(std::equal(values.begin(), values.end(), exported.as<float>()));
}

TEST(Attach, PlainRowsAreExportedOnce) {
  TestServer server(WithLocal);
  const Pattern pattern = Uniform(20, 30, 3, 1);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  const File page(4096);
  Peer one(server), other(server);
  for (Peer* peer : {&one, &other}) {
    peer->Receive();
    ASSERT_EQ(peer->Attach("s", KernelsId(), {page.fd()}).status().code(), kOk);
  }
  const auto rows_of = [](Peer& peer, bool transposed) {
    v1::LocalRequest request;
    request.mutable_export_()->set_plain_rows(true);
    request.mutable_export_()->mutable_problem()->set_transposed(transposed);
    const v1::LocalReply reply = peer.Ask(request);
    EXPECT_EQ(reply.status().code(), kOk) << reply.status().message();
    return reply.exported();
  };
  const v1::ExportedRun rows = rows_of(one, false), transposed = rows_of(one, true);
  EXPECT_EQ(rows.plan(), "csr");
  EXPECT_EQ(rows.layout().kind(), "csr");
  EXPECT_EQ(transposed.plan(), "transpose");
  EXPECT_EQ(transposed.layout().kind(), "csr");
  EXPECT_TRUE(transposed.layout().transposed());
  EXPECT_EQ(transposed.layout().rows(), 30);
  EXPECT_EQ(transposed.matrix().rows(), 20);
  EXPECT_EQ(rows.kernel() + transposed.kernel(), "");
  // The same as for a product on plain CSR, and for others.
  EXPECT_EQ(one.Export(4).exported().arrays().id(), rows.arrays().id());
  EXPECT_EQ(rows_of(other, false).arrays().id(), rows.arrays().id());
  EXPECT_EQ(rows_of(other, false).values().id(), rows.values().id());
  EXPECT_EQ(rows_of(other, true).arrays().id(), transposed.arrays().id());
  EXPECT_EQ(rows_of(other, true).values().id(), transposed.values().id());
  // By its columns, ascending rows in each.
  std::vector<float> expected;
  for (int32_t column = 0; column < 30; ++column) {
    for (int64_t i = 0; i < pattern.nnz(); ++i) {
      if (pattern.column_indices[i] == column) expected.push_back(values[i]);
    }
  }
  ASSERT_EQ(one.Get(transposed.values().id()).status().code(), kOk);
  ExpectReadOnly(one.file());
  const Mapped exported(one.file());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), exported.as<float>()));
  // New values, the same arrays.
  MustUpdate(server, "s", FloatValues(pattern.nnz(), 9));
  EXPECT_EQ(rows_of(one, true).arrays().id(), transposed.arrays().id());
  EXPECT_NE(rows_of(one, true).values().id(), transposed.values().id());
}

/// Of SpMM with K = 4 in f32: the pattern transposed, by a kernel that can. Null: there is none.
std::shared_ptr<const engine::ActivePlan> TransposedPlan(engine::Pattern& pattern) {
  const auto csr = pattern.Csr();
  if (!csr.ok()) return nullptr;
  BuildContext build;
  build.memory = &HeapMemory();
  auto built = BuildLayout(*ParsePipeline("transpose"), ViewCsr(**csr), build);
  if (!built.ok()) return nullptr;
  const auto layout = std::make_shared<const Layout>(std::move(built->layout));
  const Problem problem = {.type = ElementType::kF32, .k = 4};
  engine::Plan plan;
  plan.signature = SignatureOf(problem);
  plan.pipeline = layout->pipeline;
  for (const LayoutKernel& kernel : LayoutKernels(Operation::kSpmm)) {
    if (kernel.Serves(problem, *layout)) plan.kernel = kernel.name();
  }
  if (plan.kernel.empty()) return nullptr;
  return std::make_shared<const engine::ActivePlan>(
      engine::ActivePlan{plan, std::make_shared<engine::LazyLayout>(layout)});
}

TEST(Attach, ChangesAreTold) {
  TestServer server(WithLocal);
  const Pattern pattern = Uniform(20, 30, 3, 1);
  MustUpload(server, "s", pattern);
  MustUpload(server, "other", Uniform(20, 30, 3, 2));
  const File page(4096);
  Peer peer(server);
  peer.Receive();
  ASSERT_EQ(peer.Attach("s", KernelsId(), {page.fd()}).status().code(), kOk);
  // The server writes it while it is mapped here.
  struct Page {
    explicit Page(int file)
        : at(static_cast<const uint64_t*>(mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0))) {}
    ~Page() { munmap(const_cast<uint64_t*>(at), 4096); }
    uint64_t now() const { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    const uint64_t* at;
  } const sequence(peer.file());
  v1::ExportedRun run = peer.Export(4).exported();
  EXPECT_EQ(run.sequence(), sequence.now());
  MustUpdate(server, "other", FloatValues(60, 9));
  EXPECT_EQ(run.sequence(), sequence.now()) << "another's values";
  MustUpdate(server, "s", FloatValues(pattern.nnz(), 9));
  EXPECT_LT(run.sequence(), sequence.now());
  run = peer.Export(4).exported();
  EXPECT_EQ(run.version(), 2u);
  EXPECT_EQ(run.sequence(), sequence.now());
  // A plan of any signature.
  auto matrix = server.engine().catalog().Find("default", "s");
  ASSERT_TRUE(matrix.ok());
  const std::shared_ptr<const engine::ActivePlan> active = TransposedPlan(*(*matrix)->pattern());
  ASSERT_NE(active, nullptr);
  (*matrix)->pattern()->plans().Replace(active);
  EXPECT_LT(run.sequence(), sequence.now());
  run = peer.Export(4).exported();
  EXPECT_EQ(run.kernel(), active->plan.kernel);
  EXPECT_EQ(run.plan(), active->plan.ToString());
  EXPECT_TRUE(run.layout().transposed());
  EXPECT_EQ(run.sequence(), sequence.now());
  // A matrix with another pattern, whose plans count from then on.
  v1::UploadHeader header = HeaderOf("s", Uniform(25, 30, 2, 5));
  header.set_replace(true);
  const Pattern replaced = Uniform(25, 30, 2, 5);
  ASSERT_TRUE(Upload(server.catalog(), header, replaced, FloatValues(replaced.nnz(), 1)).ok());
  EXPECT_LT(run.sequence(), sequence.now());
  run = peer.Export(4).exported();
  EXPECT_EQ(run.matrix().rows(), 25);
  matrix = server.engine().catalog().Find("default", "s");
  ASSERT_TRUE(matrix.ok());
  const std::shared_ptr<const engine::ActivePlan> other = TransposedPlan(*(*matrix)->pattern());
  ASSERT_NE(other, nullptr);
  (*matrix)->pattern()->plans().Replace(other);
  EXPECT_LT(run.sequence(), sequence.now());
  run = peer.Export(4).exported();
  grpc::ClientContext context;
  v1::DeleteMatrixRequest request;
  request.set_name("s");
  v1::DeleteMatrixReply reply;
  ASSERT_TRUE(server.catalog().Delete(&context, request, &reply).ok());
  EXPECT_LT(run.sequence(), sequence.now());
  EXPECT_EQ(peer.Export(4).status().code(), kNotFound);
}

TEST(Attach, WithoutMemoryItIsRefused) {
  TestServer server(WithLocal);
  MustUpload(server, "s", Uniform(2000, 3000, 30, 1));
  const File page(4096);
  Peer peer(server);
  peer.Receive();
  ASSERT_EQ(peer.Attach("s", KernelsId(), {page.fd()}).status().code(), kOk);
  server.engine().budget().SetRefuse(
      [](size_t /*bytes*/, engine::MemoryUse use) { return use == engine::MemoryUse::kShared; });
  EXPECT_EQ(peer.Export(4).status().code(), kExhausted);
  server.engine().budget().SetRefuse(nullptr);
  EXPECT_EQ(peer.Export(4).status().code(), kOk);
}

TEST(Attach, WhatCallersRanIsCounted) {
  TestServer server([](server::Config& config) {
    WithLocal(config);
    WithPages(config);
  });
  MustUpload(server, "s", Uniform(20, 30, 3, 1));
  const File page(4096);
  auto* const counters =
      static_cast<uint64_t*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page.fd(), 0));
  const auto sample = [&](const std::string& name) {
    const std::string metrics = server.Page("/metrics");
    const size_t at = metrics.find("\n" + name + " ");
    return at == std::string::npos ? -1.0 : std::stod(metrics.substr(at + name.size() + 1));
  };
  const std::string calls =
      R"(sparsed_attached_calls_total{device="cpu",op="spmm",tenant="default"})";
  {
    Peer peer(server);
    peer.Receive();
    ASSERT_EQ(peer.Attach("s", KernelsId(), {page.fd()}).status().code(), kOk);
    EXPECT_EQ(sample("sparsed_attachments"), 1);
    counters[0] = 3;
    counters[1] = 2'000'000'000;
    counters[2] = 1000;
    counters[3] = 500;
    EXPECT_TRUE(Eventually([&] { return sample(calls) == 3; }));
    // Written before the call that it belongs to, and read in between.
    counters[5] = 3'000'000'000;
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    // What goes backwards is no count; what comes last is counted when the caller goes.
    counters[0] = 1;
    counters[4] = 5;
    counters[7] = 7;
    counters[8] = 2;
    counters[9] = 4'000'000'000;
    counters[10] = 11;
    // It goes while it is served.
    v1::LocalRequest last;
    last.mutable_export_()->mutable_problem()->set_operation(v1::ProblemClass::SPMM);
    last.mutable_export_()->mutable_problem()->set_k(4);
    peer.Send(last.SerializeAsString());
  }
  EXPECT_TRUE(Eventually([&] {
    return sample(R"(sparsed_attached_calls_total{device="cpu",op="sddmm",tenant="default"})") == 5;
  }));
  EXPECT_EQ(sample(calls), 3);
  EXPECT_EQ(
      sample(R"(sparsed_attached_kernel_seconds_total{device="cpu",op="spmm",tenant="default"})"),
      2);
  EXPECT_EQ(
      sample(R"(sparsed_attached_kernel_seconds_total{device="cpu",op="sddmm",tenant="default"})"),
      3);
  EXPECT_EQ(sample(R"(sparsed_attached_calls_total{device="cpu",op="chain",tenant="default"})"), 2);
  EXPECT_EQ(
      sample(R"(sparsed_attached_kernel_seconds_total{device="cpu",op="chain",tenant="default"})"),
      4);
  EXPECT_EQ(sample(R"(sparsed_transfer_bytes_total{direction="in",path="attached"})"), 1011);
  EXPECT_EQ(sample(R"(sparsed_transfer_bytes_total{direction="out",path="attached"})"), 507);
  EXPECT_TRUE(Eventually([&] { return sample("sparsed_attachments") == 0; }));
  munmap(counters, 4096);
}

}  // namespace
}  // namespace sparsed::test
