// Catalog: every call's happy path, and its errors that are not about chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "engine/memory/processor.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

grpc::Status Get(TestServer& server, const std::string& name, v1::MatrixInfo* info) {
  grpc::ClientContext context;
  v1::GetMatrixRequest request;
  request.set_name(name);
  return server.catalog().Get(&context, request, info);
}

grpc::Status Delete(TestServer& server, const std::string& name) {
  grpc::ClientContext context;
  v1::DeleteMatrixRequest request;
  request.set_name(name);
  v1::DeleteMatrixReply reply;
  return server.catalog().Delete(&context, request, &reply);
}

TEST(Catalog, UploadGetListDelete) {
  TestServer server;
  const Pattern pattern = Uniform(40, 30, 4, 1);
  v1::MatrixInfo uploaded;
  const std::vector<float> values = FloatValues(pattern.nnz(), 1);
  ASSERT_TRUE(Upload(server.catalog(), HeaderOf("a", pattern), pattern, values, &uploaded).ok());
  EXPECT_EQ(uploaded.name(), "a");
  EXPECT_EQ(uploaded.rows(), 40);
  EXPECT_EQ(uploaded.cols(), 30);
  EXPECT_EQ(uploaded.nnz(), 160);
  EXPECT_EQ(uploaded.version(), 1u);
  EXPECT_FALSE(uploaded.pattern_hash().empty());
  EXPECT_EQ(uploaded.csr_bytes(), 41 * 8 + 160 * 8);
  EXPECT_FALSE(uploaded.durable());

  const grpc::Status again = Upload(server.catalog(), HeaderOf("a", pattern), pattern, values);
  EXPECT_EQ(again.error_code(), grpc::ALREADY_EXISTS) << again.error_message();
  v1::UploadHeader replacing = HeaderOf("a", pattern);
  replacing.set_replace(true);
  EXPECT_TRUE(Upload(server.catalog(), replacing, pattern, values).ok());
  MustUpload(server, "ab", Band(5, 1));

  v1::MatrixInfo info;
  ASSERT_TRUE(Get(server, "a", &info).ok());
  EXPECT_EQ(info.pattern_hash(), uploaded.pattern_hash());
  grpc::ClientContext context;
  v1::ListMatricesReply list;
  ASSERT_TRUE(server.catalog().List(&context, v1::ListMatricesRequest(), &list).ok());
  ASSERT_EQ(list.matrices_size(), 2);
  EXPECT_EQ(list.matrices(0).name(), "a");
  EXPECT_EQ(list.matrices(1).name(), "ab");

  EXPECT_TRUE(Delete(server, "a").ok());
  EXPECT_EQ(Delete(server, "a").error_code(), grpc::NOT_FOUND);
  const grpc::Status gone = Get(server, "a", &info);
  EXPECT_EQ(gone.error_code(), grpc::NOT_FOUND);
  EXPECT_NE(gone.error_message().find("'a'"), std::string::npos) << gone.error_message();
  EXPECT_TRUE(Delete(server, "ab").ok());
  EXPECT_TRUE(server.ComesBackTo(0));
}

TEST(Catalog, ListsInPages) {
  TestServer server;
  for (const char* name : {"a", "x1", "x2", "x3", "x4", "x5", "y"}) {
    MustUpload(server, name, Band(5, 1));
  }
  v1::ListMatricesRequest request;
  request.set_prefix("x");
  request.set_page_size(2);
  std::vector<std::string> names;
  for (const int expected : {2, 2, 1}) {
    grpc::ClientContext context;
    v1::ListMatricesReply list;
    ASSERT_TRUE(server.catalog().List(&context, request, &list).ok());
    EXPECT_EQ(list.matrices_size(), expected);
    for (const auto& matrix : list.matrices()) {
      names.push_back(matrix.name());
      EXPECT_EQ(matrix.detail(), "") << "Get has it";
    }
    EXPECT_EQ(list.next_page_token().empty(), expected == 1);
    request.set_page_token(list.next_page_token());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"x1", "x2", "x3", "x4", "x5"}));
  v1::MatrixInfo info;
  ASSERT_TRUE(Get(server, "x1", &info).ok());
  EXPECT_NE(info.detail(), "");
}

int64_t Threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return std::distance(begin(threads), end(threads));
}

TEST(Catalog, UploadsShareTheThreads) {
  TestServer server([](server::Config& config) { config.threads = 64; });
  const int64_t before = Threads();
  // Large enough to be worth a team, and many enough to meet every worker.
  for (int i = 0; i < 12; ++i) {
    MustUpload(server, std::to_string(i), Uniform(4096, 4096, 10, i));
  }
  EXPECT_LT(Threads() - before, 128) << "each worker has a team of all";
}

TEST(Catalog, AKnownPatternIsNotSentTwice) {
  TestServer server;
  const Pattern pattern = Uniform(40, 30, 4, 1);
  const std::vector<float> values = FloatValues(pattern.nnz(), 1);
  v1::MatrixInfo first;
  ASSERT_TRUE(Upload(server.catalog(), HeaderOf("a", pattern), pattern, values, &first).ok());
  for (const bool known : {true, false}) {
    grpc::ClientContext context;
    auto stream = server.catalog().Upload(&context);
    v1::UploadRequest request;
    *request.mutable_header() = HeaderOf(known ? "b" : "c", pattern);
    request.mutable_header()->set_pattern_hash(known ? first.pattern_hash() : "0123");
    stream->Write(request);
    v1::UploadReply reply;
    ASSERT_TRUE(stream->Read(&reply));
    ASSERT_TRUE(reply.has_pattern());
    EXPECT_EQ(reply.pattern().known(), known);
    WriteArray<v1::UploadRequest>(*stream, 0, 2, BytesOf(values));
    stream->WritesDone();
    EXPECT_EQ(stream->Read(&reply), known);
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), known ? grpc::OK : grpc::NOT_FOUND) << status.error_message();
  }
}

TEST(Catalog, ADirectoryThatIsLargerThanMemoryIsServed) {
  const std::string folder = testing::TempDir() + "sparsed_rpc_larger_than_memory";
  std::filesystem::remove_all(folder);
  const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f", "g", "h"};  // of 3.4 MB
  constexpr int64_t kLimit = 16 << 20;
  const std::vector<float> b(1000, 0.5F);
  std::vector<std::string> expected;
  for (const bool restarted : {false, true}) {
    TestServer server([&](server::Config& config) {
      config.data_dir = folder;
      config.host_memory_bytes = kLimit;
      WithPages(config);
    });
    for (size_t i = 0; i < names.size() && !restarted; ++i) {
      const std::string& name = names[i];
      MustUpload(server, name, Uniform(20000, 1000, 20, i + 1));
      const Answer answer = Spmm(server.compute(), name, 1000, 1, b);
      ASSERT_EQ(answer.code(), grpc::OK) << answer.message();
      expected.push_back(answer.arrays.at(0));
    }
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < names.size(); ++i) {
        const Answer answer = Spmm(server.compute(), names[i], 1000, 1, b);
        ASSERT_EQ(answer.code(), grpc::OK) << answer.message();
        EXPECT_EQ(answer.arrays.at(0), expected[i]) << i;
      }
    }
    EXPECT_LE(server.engine().budget().peak(), kLimit);
    const std::string page = server.Page("/metrics");
    for (const char* zero : {"sparsed_evictions_total{device=\"cpu\"} 0",
                             "sparsed_disk_read_bytes_total{read=\"again\"} 0"}) {
      EXPECT_EQ(page.find(zero), std::string::npos) << zero;
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(Catalog, DownloadBringsBackWhatWasUploaded) {
  TestServer server;
  const Pattern pattern = Uniform(400, 300, 9, 1);
  const std::vector<float> values = MustUpload(server, "a", pattern);
  grpc::ClientContext context;
  v1::DownloadRequest request;
  request.set_name("a");
  auto reader = server.catalog().Download(&context, request);
  v1::DownloadReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  ASSERT_TRUE(reply.has_header());
  EXPECT_EQ(reply.header().matrix().name(), "a");
  ASSERT_EQ(reply.header().arrays_size(), 3);
  EXPECT_EQ(reply.header().arrays(0).name(), "row_offsets");
  EXPECT_EQ(reply.header().arrays(0).type(), v1::ELEMENT_TYPE_I64);
  EXPECT_EQ(reply.header().arrays(2).length(), pattern.nnz());
  std::string arrays[3];
  while (reader->Read(&reply)) {
    ASSERT_TRUE(reply.has_chunk());
    ASSERT_LT(reply.chunk().array(), 3u);
    std::string& array = arrays[reply.chunk().array()];
    EXPECT_EQ(reply.chunk().offset(), array.size());
    array += reply.chunk().data();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(arrays[0], BytesOf(pattern.row_offsets));
  EXPECT_EQ(arrays[1], BytesOf(pattern.column_indices));
  EXPECT_EQ(arrays[2], BytesOf(values));

  grpc::ClientContext unknown;
  request.set_name("nothing");
  reader = server.catalog().Download(&unknown, request);
  EXPECT_FALSE(reader->Read(&reply));
  EXPECT_EQ(reader->Finish().error_code(), grpc::NOT_FOUND);
}

grpc::Status Update(TestServer& server, const std::vector<float>& values, uint64_t if_version,
                    v1::UpdateValuesReply* reply) {
  grpc::ClientContext context;
  auto writer = server.catalog().UpdateValues(&context, reply);
  v1::UpdateValuesRequest request;
  request.mutable_header()->set_name("a");
  request.mutable_header()->set_type(v1::ELEMENT_TYPE_F32);
  request.mutable_header()->set_if_version(if_version);
  writer->Write(request);
  WriteArray<v1::UpdateValuesRequest>(*writer, 0, 0, BytesOf(values));
  writer->WritesDone();
  return writer->Finish();
}

TEST(Catalog, UpdateValuesMakesANewVersion) {
  TestServer server;
  Pattern pattern = Band(30, 0);
  MustUpload(server, "a", pattern);
  v1::UpdateValuesReply reply;
  ASSERT_TRUE(Update(server, std::vector<float>(30, 3.f), 0, &reply).ok());
  EXPECT_EQ(reply.version(), 2u);
  const Answer answer = Spmm(server.compute(), "a", 30, 1, std::vector<float>(30, 2.f));
  EXPECT_EQ(answer.Values<float>(0), std::vector<float>(30, 6.f));
  EXPECT_EQ(answer.ends.at(0).version(), 2u);

  {
    grpc::ClientContext context;
    auto writer = server.catalog().UpdateValues(&context, &reply);
    v1::UpdateValuesRequest request;
    request.mutable_header()->set_name("a");
    request.mutable_header()->set_type(v1::ELEMENT_TYPE_F32);
    request.mutable_header()->set_durable(true);
    writer->Write(request);
    writer->WritesDone();
    EXPECT_EQ(writer->Finish().error_code(), grpc::FAILED_PRECONDITION) << "nothing is, in memory";
  }
  EXPECT_EQ(Update(server, std::vector<float>(30), 1, &reply).error_code(), grpc::ABORTED);
  EXPECT_EQ(Update(server, std::vector<float>(29), 0, &reply).error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(Update(server, std::vector<float>(31), 0, &reply).error_code(), grpc::INVALID_ARGUMENT);
}

TEST(Catalog, AMatrixTellsOfThePlansOfItsOwnType) {
  TestServer server([](server::Config& config) { config.preparation_workers = 1; });
  const Pattern pattern = Uniform(40, 30, 4, 1);
  const std::vector<float> values = FloatValues(pattern.nnz(), 1);
  v1::UploadHeader header = HeaderOf("single", pattern);
  header.add_expected()->set_operation(v1::ProblemClass::SPMM);
  header.mutable_expected(0)->set_k(8);
  ASSERT_TRUE(Upload(server.catalog(), header, pattern, values).ok());
  header.set_name("half");
  header.set_type(v1::ELEMENT_TYPE_F16);
  header.mutable_expected(0)->set_k(100);
  const std::vector<Float16> halves(values.begin(), values.end());
  ASSERT_TRUE(UploadBytes(server.catalog(), header, pattern, BytesOf(halves), 1 << 20).ok());
  ASSERT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  for (const auto& [name, k] : {std::pair("single", 8), std::pair("half", 128)}) {
    v1::MatrixInfo info;
    ASSERT_TRUE(Get(server, name, &info).ok());
    ASSERT_EQ(info.plans_size(), 1) << name;
    EXPECT_EQ(info.plans(0).problem_class().k(), k);
    for (const v1::Measurement& m : info.measurements()) EXPECT_EQ(m.problem_class().k(), k);
  }
}

/// What ListMeasurements sends.
grpc::Status ListMeasurements(TestServer& server, const v1::ListMeasurementsRequest& request,
                              std::vector<v1::PatternMeasurements>* patterns) {
  grpc::ClientContext context;
  auto reader = server.catalog().ListMeasurements(&context, request);
  v1::PatternMeasurements pattern;
  while (reader->Read(&pattern)) patterns->push_back(pattern);
  return reader->Finish();
}

/// Of one matrix, or with an empty name of all.
grpc::Status ListMeasurements(TestServer& server, const std::string& name,
                              std::vector<v1::PatternMeasurements>* patterns) {
  v1::ListMeasurementsRequest request;
  request.set_name(name);
  return ListMeasurements(server, request, patterns);
}

TEST(Catalog, EverythingThatWasMeasuredIsListed) {
  TestServer server([](server::Config& config) { config.preparation_workers = 1; });
  std::vector<v1::PatternMeasurements> all, one;
  EXPECT_TRUE(ListMeasurements(server, "", &all).ok());
  EXPECT_TRUE(all.empty());
  EXPECT_EQ(ListMeasurements(server, "nobody", &one).error_code(), grpc::NOT_FOUND);
  MustUpload(server, "a", Uniform(400, 300, 40, 1));
  MustUpload(server, "again", Uniform(400, 300, 40, 1));
  MustUpload(server, "b", Uniform(200, 300, 60, 2));
  ASSERT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  ASSERT_TRUE(ListMeasurements(server, "", &all).ok());
  EXPECT_EQ(all.size(), 2u) << "one a pattern";
  ASSERT_TRUE(ListMeasurements(server, "a", &one).ok());
  ASSERT_EQ(one.size(), 1u);
  v1::MatrixInfo info;
  ASSERT_TRUE(Get(server, "a", &info).ok());
  EXPECT_EQ(one[0].pattern_hash(), info.pattern_hash());
  EXPECT_EQ(one[0].features().values_size(), 47);
  EXPECT_EQ(one[0].features().density_map_size(), 0);
  ASSERT_EQ(one[0].measurements_size(), info.measurements_size());
  for (const v1::Measurement& m : one[0].measurements()) {
    EXPECT_EQ(m.type(), v1::ELEMENT_TYPE_F32);
    EXPECT_GT(m.floor_ms(), 0);
    EXPECT_GT(m.baseline_ms(), 0);
    EXPECT_EQ(m.model(), server.engine().executor().model(DeviceKind::kCpu));
    EXPECT_NEAR(m.floor_share(), m.floor_ms() / m.median_ms(), 1e-12);
    EXPECT_EQ(m.roof(), "cache") << "it is small";
  }
}

TEST(Catalog, OperatorsSeeWhatWasMeasuredOnPatternsThatAreGone) {
  const std::string folder = testing::TempDir() + "sparsed_rpc_past_measurements";
  std::filesystem::remove_all(folder);
  TestServer server([&](server::Config& config) {
    config.preparation_workers = 1;
    config.data_dir = folder;
    WithPages(config);
  });
  MustUpload(server, "stays", Uniform(400, 300, 40, 1));
  MustUpload(server, "goes", Uniform(200, 300, 60, 2));
  ASSERT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  v1::MatrixInfo stays, goes;
  ASSERT_TRUE(Get(server, "stays", &stays).ok());
  ASSERT_TRUE(Get(server, "goes", &goes).ok());
  ASSERT_TRUE(server.engine().catalog().Delete("default", "goes").ok());
  v1::ListMeasurementsRequest of_all;
  of_all.set_all(true);
  of_all.set_density_maps(true);
  std::vector<v1::PatternMeasurements> all;
  ASSERT_TRUE(ListMeasurements(server, of_all, &all).ok());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].pattern_hash(), stays.pattern_hash());
  EXPECT_FALSE(all[0].past());
  EXPECT_EQ(all[1].pattern_hash(), goes.pattern_hash());
  EXPECT_TRUE(all[1].past());
  for (const v1::PatternMeasurements& pattern : all) {
    EXPECT_EQ(pattern.features().values_size(), 47);
    ASSERT_EQ(pattern.features().density_map_size(), 128 * 128);
    int64_t nonzeros = 0;
    for (const int32_t count : pattern.features().density_map()) nonzeros += count;
    EXPECT_EQ(nonzeros, pattern.past() ? 200 * 60 : 400 * 40);
  }
  ASSERT_EQ(all[1].measurements_size(), goes.measurements_size());
  EXPECT_EQ(all[1].measurements(0).median_ms(), goes.measurements(0).median_ms());
  EXPECT_EQ(all[1].measurements(0).gflops(), goes.measurements(0).gflops());
  all.clear();
  ASSERT_TRUE(ListMeasurements(server, "", &all).ok());
  EXPECT_EQ(all.size(), 1u);
  MustUpload(server, "back", Uniform(200, 300, 60, 2));
  all.clear();
  of_all.set_density_maps(false);
  ASSERT_TRUE(ListMeasurements(server, of_all, &all).ok());
  ASSERT_EQ(all.size(), 2u) << "it is there again";
  EXPECT_FALSE(all[0].past() || all[1].past());
  of_all.set_name("stays");
  EXPECT_EQ(ListMeasurements(server, of_all, &all).error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_NE(server.Page("/metrics").find("sparsed_past_measurements_bytes "), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(Catalog, ManyMeasurementsComeInSeveralMessages) {
  TestServer server;
  MustUpload(server, "a", Uniform(40, 30, 4, 1));
  engine::Measurement measured;
  measured.kernel = "cpu.csr";
  measured.median_ms = 1;
  const auto matrix = server.engine().catalog().Find("default", "a");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  for (int k = 1; k <= 2500; ++k) {
    measured.k = k;
    (*matrix)->pattern()->trials().Add(measured);
  }
  std::vector<v1::PatternMeasurements> messages;
  ASSERT_TRUE(ListMeasurements(server, "", &messages).ok());
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0].pattern_hash(), messages[2].pattern_hash());
  EXPECT_EQ(messages[1].measurements(0).k(), 1001);
  EXPECT_EQ(messages[2].measurements_size(), 500);
}

TEST(Catalog, DecisionsSayWhatBecameOfEveryPipeline) {
  TestServer server([](server::Config& config) { config.preparation_workers = 1; });
  MustUpload(server, "tiny", Uniform(40, 30, 4, 1));
  ASSERT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  v1::MatrixInfo info;
  ASSERT_TRUE(Get(server, "tiny", &info).ok());
  EXPECT_EQ(info.detail(), "") << "it is about what failed";
  ASSERT_GT(info.decisions_size(), 3);
  for (const v1::Decision& decision : info.decisions()) {
    EXPECT_FALSE(decision.tried()) << decision.recipe();
    EXPECT_NE(decision.reason().find("nonzeros, fewer than"), std::string::npos);
    EXPECT_EQ(decision.problem_class().operation(), v1::ProblemClass::SPMM);
  }
}

TEST(Catalog, WatchTellsThePreparationToItsEnd) {
  TestServer server([](server::Config& config) { config.preparation_workers = 1; });
  const Pattern pattern = ShuffledClusters(40, 30, 2000, 60, 20, 2, 5);
  MustUpload(server, "a", pattern);
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_name("a");
  auto reader = server.catalog().Watch(&context, request);
  v1::WatchReply reply;
  std::vector<v1::MatrixState> states;
  while (reader->Read(&reply)) states.push_back(reply.state());
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_FALSE(states.empty());
  EXPECT_EQ(states.back(), v1::MATRIX_STATE_READY) << reply.message();
  for (size_t i = 1; i < states.size(); ++i) EXPECT_GE(states[i], states[i - 1]);

  v1::MatrixInfo info;
  ASSERT_TRUE(Get(server, "a", &info).ok());
  EXPECT_EQ(info.state(), v1::MATRIX_STATE_READY);
  EXPECT_GT(info.plans_size(), 0);
  EXPECT_GT(info.measurements_size(), 0);
}

grpc::Status Prepare(TestServer& server, const v1::PrepareRequest& request) {
  grpc::ClientContext context;
  v1::PrepareReply reply;
  return server.catalog().Prepare(&context, request, &reply);
}

TEST(Catalog, PrepareAddsSignaturesAndTimesAgain) {
  TestServer server([](server::Config& config) {
    WithPages(config);
    config.preparation_workers = 1;
  });
  const auto prepared = [&] {
    EXPECT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
    v1::MatrixInfo info;
    EXPECT_TRUE(Get(server, "a", &info).ok());
    EXPECT_EQ(info.state(), v1::MATRIX_STATE_READY) << info.detail();
    return info;
  };
  MustUpload(server, "a", Uniform(200, 200, 4, 1));
  const v1::MatrixInfo before = prepared();
  ASSERT_EQ(before.plans_size(), 1);
  ASSERT_EQ(before.measurements_size(), 1);

  v1::PrepareRequest request;
  request.set_name("a");
  for (const int k : {100, 128}) {
    v1::ProblemClass& expected = *request.add_expected();
    expected.set_operation(v1::ProblemClass::SDDMM);
    expected.set_k(k);
  }
  ASSERT_TRUE(Prepare(server, request).ok());
  const v1::MatrixInfo more = prepared();
  EXPECT_EQ(more.plans_size(), 2) << "a signature is a signature, named twice or not";
  ASSERT_EQ(more.measurements_size(), 2);
  EXPECT_EQ(more.measurements(0).median_ms(), before.measurements(0).median_ms());

  // Of a kernel that there is not.
  engine::Measurement stale;
  const auto matrix = server.engine().catalog().Find("default", "a");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  stale.signature = (*matrix)->pattern()->trials().measurements()[0].signature;
  stale.kernel = "cpu.imaginary";
  (*matrix)->pattern()->trials().Add(stale);
  EXPECT_EQ(prepared().measurements_size(), 3);
  request.clear_expected();
  request.set_again(true);
  ASSERT_TRUE(Prepare(server, request).ok());
  const v1::MatrixInfo again = prepared();
  EXPECT_EQ(again.plans_size(), 2);
  ASSERT_EQ(again.measurements_size(), 2);
  for (const v1::Measurement& m : again.measurements()) EXPECT_NE(m.kernel(), "cpu.imaginary");
  EXPECT_NE(
      server.Page("/metrics")
          .find(R"(sparsed_requests_total{code="OK",kind="work",op="prepare",tenant="default"} 2)"),
      std::string::npos);
}

TEST(Catalog, PrepareRefusesWhatItCannotDo) {
  TestServer server([](server::Config& config) { config.preparation_workers = 1; });
  MustUpload(server, "a", Uniform(20, 20, 4, 1));
  const auto refuse = [&](const std::string& name, v1::ProblemClass::Operation operation, int64_t k,
                          grpc::StatusCode code, const std::string& sentence) {
    v1::PrepareRequest request;
    request.set_name(name);
    request.add_expected()->set_operation(operation);
    request.mutable_expected(0)->set_k(k);
    const grpc::Status status = Prepare(server, request);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_NE(status.error_message().find(sentence), std::string::npos) << status.error_message();
  };
  refuse("nobody", v1::ProblemClass::SPMM, 8, grpc::NOT_FOUND, "nobody");
  refuse("a", v1::ProblemClass::SPMM, 0, grpc::INVALID_ARGUMENT, "expected.k = 0 is not a width");
  refuse("a", v1::ProblemClass::OPERATION_UNSPECIFIED, 8, grpc::INVALID_ARGUMENT,
         "neither SPMM, SDDMM nor SPGEMM");
  const Pattern pattern = Uniform(20, 20, 4, 1);
  v1::UploadHeader header = HeaderOf("half", pattern);
  header.set_type(v1::ELEMENT_TYPE_F16);
  const std::vector<Float16> halves(static_cast<size_t>(pattern.nnz()));
  ASSERT_TRUE(UploadBytes(server.catalog(), header, pattern, BytesOf(halves), 1 << 20).ok());
  refuse("half", v1::ProblemClass::SPGEMM, 0, grpc::INVALID_ARGUMENT, "f32 and f64 matrices");

  TestServer idle;
  MustUpload(idle, "a", pattern);
  v1::PrepareRequest request;
  request.set_name("a");
  const grpc::Status status = Prepare(idle, request);
  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("--preparation-workers=0"), std::string::npos);
}

TEST(Catalog, PrepareTriesAPipelineAndAKernelThatAreAskedFor) {
  TestServer server([](server::Config& config) { config.preparation_workers = 1; });
  MustUpload(server, "a", Uniform(200, 200, 4, 1));
  v1::PrepareRequest request;
  request.set_name("a");
  request.set_recipe("aspt");
  request.set_kernel("cpu.aspt.panel");
  ASSERT_TRUE(Prepare(server, request).ok());
  EXPECT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  v1::MatrixInfo info;
  ASSERT_TRUE(Get(server, "a", &info).ok());
  EXPECT_TRUE(std::any_of(info.measurements().begin(), info.measurements().end(),
                          [](const v1::Measurement& m) { return m.kernel() == "cpu.aspt.panel"; }));
  EXPECT_TRUE(std::any_of(info.decisions().begin(), info.decisions().end(), [](const auto& d) {
    return d.recipe() == "aspt(panel=64,min_dense=2)" && d.tried();
  }));
  const auto refused = [&](const char* pipeline, const char* kernel, const std::string& sentence) {
    request.set_recipe(pipeline);
    request.set_kernel(kernel);
    const grpc::Status status = Prepare(server, request);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find(sentence), std::string::npos) << status.error_message();
  };
  refused("apst", "", "unknown step 'apst'; known: csr, ");
  refused("", "cpu.fast", "'cpu.fast' is none; spmm K=128 f32 cpu from csr is computed by: cpu.");
  refused("aspt", "cpu.csr.slab", "is computed by: cpu.aspt.panel");
  refused("coo_panels", "", "there are kernels for: csr, transpose, ");
}

TEST(Catalog, PrepareExploresWhatTheRulesLeaveOut) {
  TestServer server([](server::Config& config) { config.preparation_workers = 1; });
  MustUpload(server, "a", Uniform(200, 200, 4, 1));
  ASSERT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  v1::MatrixInfo before, after;
  ASSERT_TRUE(Get(server, "a", &before).ok());
  v1::PrepareRequest request;
  request.set_name("a");
  request.set_explore(true);
  ASSERT_TRUE(Prepare(server, request).ok());
  ASSERT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  ASSERT_TRUE(Get(server, "a", &after).ok());
  EXPECT_GT(after.measurements_size(), before.measurements_size() + 3);
  request.set_kernel("cpu.csr.slab");
  const grpc::Status refused = Prepare(server, request);
  EXPECT_EQ(refused.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), testing::HasSubstr("explore: "));
}

TEST(Catalog, SaysWhichPipelinesAProductWasTriedWith) {
  TestServer server([](server::Config& config) { config.preparation_workers = 1; });
  MustUpload(server, "a", Uniform(200, 200, 4, 1));
  v1::PrepareRequest request;
  request.set_name("a");
  v1::ProblemClass& c = *request.add_expected();
  c.set_operation(v1::ProblemClass::SPGEMM);
  request.set_kernel("cpu.coo.column_parts");
  for (const char* pipeline : {"column_parts(parts=2)", "column_parts(parts=3)"}) {
    request.set_recipe(pipeline);
    ASSERT_TRUE(Prepare(server, request).ok());
  }
  EXPECT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  v1::MatrixInfo info;
  ASSERT_TRUE(Get(server, "a", &info).ok());
  std::set<std::string> measured, decided;
  for (const v1::Measurement& m : info.measurements()) {
    if (m.kernel() == "cpu.coo.column_parts") measured.insert(m.recipe());
  }
  for (const v1::Decision& d : info.decisions()) {
    if (d.tried()) decided.insert(d.recipe());
  }
  for (const std::string pipeline :
       {"csr * column_parts(parts=2)", "csr * column_parts(parts=3)"}) {
    EXPECT_TRUE(measured.contains(pipeline)) << pipeline;
    EXPECT_TRUE(decided.contains(pipeline + " / cpu.coo.column_parts")) << pipeline;
  }
}

TEST(Catalog, FeaturesAreSentToWhomAsksOnceTheyAreKnown) {
  TestServer server([](server::Config& config) { config.preparation_workers = 1; });
  const Pattern pattern = Band(300, 2);
  MustUpload(server, "a", pattern);
  grpc::ClientContext watching;
  v1::WatchRequest watch;
  watch.set_name("a");
  auto reader = server.catalog().Watch(&watching, watch);
  v1::WatchReply step;
  while (reader->Read(&step)) {
  }
  ASSERT_TRUE(reader->Finish().ok());

  v1::MatrixInfo info;
  ASSERT_TRUE(Get(server, "a", &info).ok());
  EXPECT_FALSE(info.has_features());
  v1::GetMatrixRequest request;
  request.set_name("a");
  request.set_features(true);
  grpc::ClientContext context;
  ASSERT_TRUE(server.catalog().Get(&context, request, &info).ok());
  ASSERT_TRUE(info.has_features());
  EXPECT_LT(info.features().ByteSizeLong(), 100'000u);
  std::map<std::string, double> values;
  for (const v1::Feature& feature : info.features().values()) {
    EXPECT_FALSE(feature.source().empty());
    EXPECT_FALSE(feature.meaning().empty());
    values[feature.name()] = feature.value();
  }
  EXPECT_EQ(values.size(), 47u);
  EXPECT_EQ(values["rows"], 300);
  EXPECT_EQ(values["nnz"], static_cast<double>(pattern.nnz()));
  EXPECT_EQ(values["diagonals"], 5);
  ASSERT_EQ(info.features().distances_size(), 17);
  EXPECT_EQ(info.features().distances(0).count(), pattern.nnz() - 300);
  EXPECT_EQ(info.features().distances(1).least(), 2);
  EXPECT_EQ(info.features().distances(1).most(), 3);
  ASSERT_EQ(info.features().density_map_size(), 128 * 128);
  int64_t nonzeros = 0;
  for (const int32_t count : info.features().density_map()) nonzeros += count;
  EXPECT_EQ(nonzeros, pattern.nnz());
}

TEST(Catalog, RenameAndCopy) {
  TestServer server;
  const Pattern pattern = Uniform(40, 30, 4, 1);
  MustUpload(server, "a", pattern);
  const auto rename = [&](const std::string& name, const std::string& to, v1::MatrixInfo& info) {
    grpc::ClientContext context;
    v1::RenameMatrixRequest request;
    request.set_name(name);
    request.set_new_name(to);
    return server.catalog().Rename(&context, request, &info);
  };
  const auto copy = [&](const std::string& name, const std::string& to, bool replace,
                        v1::MatrixInfo& info) {
    grpc::ClientContext context;
    v1::CopyMatrixRequest request;
    request.set_name(name);
    request.set_new_name(to);
    request.set_replace(replace);
    return server.catalog().Copy(&context, request, &info);
  };
  v1::MatrixInfo before, info;
  ASSERT_TRUE(Get(server, "a", &before).ok());
  // Who watches the old name sees it go.
  grpc::ClientContext watching;
  v1::WatchRequest watch;
  watch.set_name("a");
  watch.set_follow(true);
  auto reader = server.catalog().Watch(&watching, watch);
  v1::WatchReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  ASSERT_TRUE(rename("a", "b", info).ok());
  while (reader->Read(&reply)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(info.name(), "b");
  EXPECT_EQ(info.created_unix_ns(), before.created_unix_ns());
  EXPECT_EQ(info.pattern_hash(), before.pattern_hash());
  EXPECT_EQ(Get(server, "a", &info).error_code(), grpc::NOT_FOUND);

  ASSERT_TRUE(copy("b", "c", false, info).ok());
  EXPECT_EQ(info.name(), "c");
  EXPECT_EQ(info.pattern_hash(), before.pattern_hash());
  EXPECT_EQ(copy("b", "c", false, info).error_code(), grpc::ALREADY_EXISTS);
  EXPECT_TRUE(copy("b", "c", true, info).ok());
  EXPECT_EQ(rename("b", "c", info).error_code(), grpc::ALREADY_EXISTS);
  const grpc::Status missing = rename("a", "d", info);
  EXPECT_EQ(missing.error_code(), grpc::NOT_FOUND);
  EXPECT_NE(missing.error_message().find("'a'"), std::string::npos) << missing.error_message();
  const grpc::Status wrong = copy("b", "x y", false, info);
  EXPECT_EQ(wrong.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_NE(wrong.error_message().find("new name has byte 0x20"), std::string::npos)
      << wrong.error_message();
  EXPECT_TRUE(Delete(server, "b").ok() && Delete(server, "c").ok());
  EXPECT_TRUE(server.ComesBackTo(0));
}

TEST(Catalog, WatchFollowsANameUntilItIsDeleted) {
  TestServer server([](server::Config& config) { config.preparation_workers = 1; });
  MustUpload(server, "a", Uniform(200, 200, 4, 1));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  v1::WatchRequest request;
  request.set_name("a");
  request.set_follow(true);
  auto reader = server.catalog().Watch(&context, request);
  v1::WatchReply reply;
  do {
    ASSERT_TRUE(reader->Read(&reply));
  } while (reply.state() != v1::MATRIX_STATE_READY);
  // The name stands for another pattern now; its preparation is told from the beginning.
  // A small one might be ready before anybody sees that it was not.
  const Pattern other = Uniform(30'000, 30'000, 20, 2);
  v1::UploadHeader header = HeaderOf("a", other);
  header.set_replace(true);
  ASSERT_TRUE(Upload(server.catalog(), header, other, FloatValues(other.nnz(), 1)).ok());
  do {
    ASSERT_TRUE(reader->Read(&reply));
  } while (reply.state() == v1::MATRIX_STATE_READY);
  do {
    ASSERT_TRUE(reader->Read(&reply));
  } while (reply.state() != v1::MATRIX_STATE_READY);
  ASSERT_TRUE(Delete(server, "a").ok());
  while (reader->Read(&reply)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::NOT_FOUND);

  grpc::ClientContext unknown;
  reader = server.catalog().Watch(&unknown, request);
  EXPECT_FALSE(reader->Read(&reply));
  EXPECT_EQ(reader->Finish().error_code(), grpc::NOT_FOUND);
}

TEST(Catalog, CopyAndRenameEndWhenNobodyWaits) {
  std::string folder = testing::TempDir() + "cancel_XXXXXX";
  mkdtemp(folder.data());
  {
    TestServer server([&](server::Config& config) { config.data_dir = folder; });
    const Pattern pattern = Uniform(100'000, 100'000, 80, 1);  // 32 MB of values
    MustUpload(server, "a", pattern);
    /// How many ended, with that code or (empty) any.
    const auto ended = [&](const std::string& op, const std::string& code) {
      grpc::ClientContext context;
      v1::Stats stats;
      EXPECT_TRUE(server.admin().GetStats(&context, v1::GetStatsRequest(), &stats).ok());
      int64_t sum = 0;
      for (const v1::RequestCount& count : stats.requests()) {
        if (count.operation() == op && (code.empty() || count.code() == code)) sum += count.count();
      }
      return sum;
    };
    const auto cancelled = [&](const std::string& op) { return ended(op, "CANCELLED") > 0; };
    v1::MatrixInfo info;
    std::string name = "a";
    // Sooner or later the time is over while values are written.
    for (int i = 0; i < 300 && !cancelled("rename"); ++i) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() +
                           std::chrono::milliseconds(1 + i % 30));
      v1::RenameMatrixRequest request;
      request.set_name(name);
      request.set_new_name(name == "a" ? "b" : "a");
      (void)server.catalog().Rename(&context, request, &info);
      ASSERT_TRUE(Eventually([&] { return ended("rename", "") == i + 1; }));
      const bool a = Get(server, "a", &info).ok(), b = Get(server, "b", &info).ok();
      ASSERT_NE(a, b) << "it has one of its names";
      name.assign(1, a ? 'a' : 'b');
    }
    EXPECT_TRUE(cancelled("rename"));
    for (int i = 0; i < 300 && !cancelled("copy"); ++i) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() +
                           std::chrono::milliseconds(1 + i % 30));
      v1::CopyMatrixRequest request;
      request.set_name(name);
      request.set_new_name("copy");
      request.set_replace(true);
      (void)server.catalog().Copy(&context, request, &info);
      ASSERT_TRUE(Eventually([&] { return ended("copy", "") == i + 1; }));
    }
    EXPECT_TRUE(cancelled("copy"));
  }
  std::filesystem::remove_all(folder);
}

TEST(Catalog, AWatcherThatLeavesIsForgotten) {
  TestServer server(WithPages);
  MustUpload(server, "a", Band(5, 1));
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    v1::WatchRequest request;
    request.set_name("a");
    request.set_follow(true);
    auto reader = server.catalog().Watch(&context, request);
    v1::WatchReply reply;
    ASSERT_TRUE(reader->Read(&reply));
    context.TryCancel();
    EXPECT_FALSE(reader->Read(&reply));
    EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] {
    return server.Page("/metrics")
               .find("sparsed_requests_in_flight{kind=\"status\",op=\"watch\"} 0") !=
           std::string::npos;
  }));
}

}  // namespace
}  // namespace sparsed::test
