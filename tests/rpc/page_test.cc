// The status page: its files, and the bounded answers that it asks for.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "server/page/matrix_table.h"
#include "server/page/pattern_picture.h"
#include "server/page/query.h"
#include "server/page/snapshot.h"
#include "server/page/table.h"
#include "server/telemetry/fair_share.h"
#include "server/telemetry/in_flight.h"
#include "server/telemetry/latencies.h"
#include "server/telemetry/live_requests.h"
#include "tests/rpc/test_server.h"
#include "tests/rpc/test_tokens.h"

namespace sparsed::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

json Ask(const TestServer& server, const std::string& path, const std::string& code = "200",
         const std::string& headers = "") {
  std::string head;
  const std::string body = server.Page("/api/" + path + " HTTP/1.0" + headers + "\r\nx: ", &head);
  EXPECT_EQ(head.substr(9, 3), code) << path << "\n" << head << "\n" << body;
  return json::parse(body, nullptr, /*allow_exceptions=*/false);
}

std::vector<std::string> NamesOf(const json& answer) {
  std::vector<std::string> names;
  for (const json& row : answer["rows"]) names.push_back(row["name"]);
  return names;
}

TEST(Page, FilesMayLoadNothingFromElsewhere) {
  TestServer server(WithPages);
  for (const auto& [path, type] : std::map<std::string, std::string>{
           {"/", "text/html"},
           {"/style.css", "text/css"},
           {"/page.js", "text/javascript"},
           {"/icon.svg", "image/svg+xml"},
           {"/runbooks", "text/html"},
           {"/runbooks.js", "text/javascript"},
       }) {
    std::string head;
    const std::string text = server.Page(path, &head);
    EXPECT_THAT(head, HasSubstr("Content-Type: " + type));
    EXPECT_THAT(head, HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'self'"));
    EXPECT_THAT(head, Not(HasSubstr("unsafe")));
    EXPECT_FALSE(text.empty()) << path;
    // Of addresses there is the name of SVG, which nobody loads.
    const std::string without = absl::StrReplaceAll(text, {{"http://www.w3.org/2000/svg", ""}});
    EXPECT_THAT(without, Not(HasSubstr("://"))) << path;
  }
  EXPECT_THAT(server.Page("/runbooks.md"), HasSubstr("\n## SparsedDown\n"));
  const std::string html = server.Page("/") + server.Page("/runbooks");
  const std::string script = server.Page("/page.js") + server.Page("/runbooks.js");
  EXPECT_THAT(html, Not(HasSubstr(" style=")));
  EXPECT_THAT(html, Not(HasSubstr("onclick")));
  for (const char* dangerous :
       {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("}) {
    EXPECT_THAT(script, Not(HasSubstr(dangerous)));
  }
}

TEST(Page, OnlyOrdersOfRowsAreShownBesideTheUploads) {
  for (const char* orders : {"lsh_cluster", "breadth_first > aspt", "plain_sort"}) {
    EXPECT_TRUE(server::Reorders(orders)) << orders;
  }
  for (const char* none : {"csr", "dcsr", "aspt", "transpose", "lsh_cluster > nothing", ""}) {
    EXPECT_FALSE(server::Reorders(none)) << none;
  }
}

TEST(Page, StatusSaysWhatTheServerIs) {
  TestServer server(WithPages);
  MakeGood(server);
  ExpectGood(server);
  const json status = Ask(server, "status");
  EXPECT_EQ(status["version"], SPARSED_VERSION);
  EXPECT_EQ(status["ready"], true);
  EXPECT_EQ(status["all"], true);
  EXPECT_EQ(status["totals"]["matrices"], 1);
  EXPECT_EQ(status["devices"][0]["name"], "cpu");
  const json& memory = status["devices"][0]["memory"];
  EXPECT_GT(memory["uses"]["matrices"], 0);
  int64_t sum = 0;
  for (const auto& [use, bytes] : memory["uses"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(memory["used"], sum) << "what is kept or set aside is not in use";
  EXPECT_GE(memory["peak"], memory["used"]);
  EXPECT_EQ(memory["limit"], server.engine().budget().limit());
  EXPECT_EQ(status["live"]["operations"], json({"spmm", "sddmm", "spgemm", "chain", "other"}));
  const json& points = status["live"]["points"];
  ASSERT_EQ(points.size(), static_cast<size_t>(server::LiveRequests::kPoints));
  int products = 0, uploads = 0;
  double slowest = 0;
  for (const json& point : points) {
    products += point[0].get<int>();
    uploads += point[4].get<int>();
    slowest = std::max(slowest, point[8].get<double>());
  }
  EXPECT_EQ(products, 1);
  EXPECT_EQ(uploads, 1);
  EXPECT_GT(slowest, 0);
}

TEST(Page, MatricesAreSearchedSortedAndCutByTheServer) {
  TestServer server(WithPages);
  for (const char* name : {"web", "road", "Webster", "small"}) {
    const int64_t rows = std::string_view(name) == "small" ? 10 : 60;
    MustUpload(server, name, Uniform(rows, 50, 5, 3));
  }
  EXPECT_THAT(NamesOf(Ask(server, "matrices")), ElementsAre("Webster", "road", "small", "web"));
  EXPECT_THAT(NamesOf(Ask(server, "matrices?sort=nnz&limit=1")), ElementsAre("small"));
  EXPECT_THAT(NamesOf(Ask(server, "matrices?sort=name&order=desc&offset=1&limit=2")),
              ElementsAre("small", "road"));
  const json found = Ask(server, "matrices?search=wEb");
  EXPECT_THAT(NamesOf(found), ElementsAre("Webster", "web"));
  EXPECT_EQ(found["total"], 2);
  EXPECT_EQ(found["all"], 4);
  EXPECT_EQ(Ask(server, "matrices?offset=1000")["rows"].size(), 0u);
}

TEST(Page, WrongParametersAreToldInASentence) {
  TestServer server(WithPages);
  for (const auto& [query, sentence] : std::map<std::string, std::string>{
           {"matrices?limit=0", "limit must be a whole number from 1 to 100"},
           {"matrices?limit=101", "limit must be"},
           {"matrices?limit=ten", "limit must be"},
           {"matrices?limit=99999999999999999999", "limit must be"},
           {"matrices?offset=-1", "offset must be a whole number from 0"},
           {"matrices?sort=colour", "sort must be one of: name, tenant, bytes"},
           {"matrices?order=up", "order must be one of: asc, desc"},
           {"matrices?colour=red", "no such parameter; there are: offset, limit"},
           {"matrices?limit=1&limit=2", "limit is given twice"},
           {"matrices?search=%zz", "hexadecimal"},
           {"matrices?search=%4", "hexadecimal"},
           {"matrices?search=" + std::string(600, 'x'), "at most 512"},
           {"matrix", "name is missing"},
           {"status?limit=1", "no such parameter"},
           {"tenants?sort=bytes", "sort must be one of"},
           {"buffers?limit=-3", "limit must be"},
           {"candidates?name=x&limit=1e3", "limit must be"},
           {"preparations?sort=name", "no such parameter"},
       }) {
    const json answer = Ask(server, query, "400");
    EXPECT_THAT(answer["error"].get<std::string>(), HasSubstr(sentence)) << query;
  }
  EXPECT_THAT(Ask(server, "matrix?name=none", "404")["error"].get<std::string>(),
              HasSubstr("no such matrix"));
  std::string head;
  server.Page("/api/", &head);
  EXPECT_THAT(head, HasSubstr("404"));
}

TEST(Page, AnswersDoNotGrowWithWhatThereIs) {
  TestServer server(WithPages);
  const Pattern pattern = Uniform(4, 4, 2, 3);
  constexpr int kMatrices = 300;
  for (int i = 0; i < kMatrices; ++i) {
    MustUpload(server, "matrix-with-a-name-that-is-long-" + std::to_string(i), pattern);
  }
  EXPECT_EQ(Ask(server, "matrices?limit=100")["rows"].size(), 100u);
  EXPECT_EQ(Ask(server, "matrices")["total"], kMatrices);
  for (const char* path : {"status", "matrices?limit=100", "preparations?limit=100", "requests",
                           "tenants", "buffers"}) {
    EXPECT_LT(Ask(server, path).dump().size(), 100u << 10) << path;
  }
}

TEST(Page, AMatrixHasItsPageAndItsPicture) {
  TestServer server([](server::Config& config) {
    WithPages(config);
    config.preparation_workers = 1;
  });
  MakeGood(server);
  ExpectGood(server);
  ASSERT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  const json matrix = Ask(server, "matrix?name=good");
  EXPECT_EQ(matrix["rows"], 60);
  EXPECT_EQ(matrix["nnz"], 5 * 60);
  EXPECT_EQ(matrix["state"], "READY");
  ASSERT_FALSE(matrix["plans"].empty());
  for (const json& plan : matrix["plans"]) {
    EXPECT_EQ(plan["gain"].is_null(), plan["plan_ms"] == plan["baseline_ms"]) << plan;
  }
  EXPECT_GT(matrix["features"]["density"], 0);
  const json candidates = Ask(server, "candidates?name=good&limit=2");
  EXPECT_GT(candidates["total"], 2);
  ASSERT_EQ(candidates["rows"].size(), 2u);
  EXPECT_GT(candidates["rows"][0]["median_ms"], 0);
  const json row = Ask(server, "matrices")["rows"][0];
  EXPECT_EQ(row["gain"], matrix["gain"]);
  EXPECT_GT(row["rate"], 0);
  EXPECT_GT(row["p50"], 0);

  const json picture = Ask(server, "picture?name=good");
  EXPECT_EQ(picture["width"], 50);
  EXPECT_EQ(picture["height"], 60);
  EXPECT_EQ(picture["shades"].get<std::string>().size(), 50u * 60 / 3 * 4);
  Ask(server, "picture?name=good&pipeline=nothing", "404");
}

TEST(Page, ThePlanShownIsTheOneInUse) {
  TestServer server([](server::Config& config) {
    WithPages(config);
    config.preparation_workers = 1;
  });
  MustUpload(server, "m", Uniform(60, 50, 5, 3));
  v1::PrepareRequest prepare;
  prepare.set_name("m");
  for (const int64_t k : {1, 512}) {
    v1::ProblemClass& expected = *prepare.add_expected();
    expected.set_operation(v1::ProblemClass::SPMM);
    expected.set_k(k);
  }
  grpc::ClientContext preparing;
  v1::PrepareReply prepared;
  ASSERT_TRUE(server.catalog().Prepare(&preparing, prepare, &prepared).ok());
  ASSERT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  const auto plan_shown = [&] { return Ask(server, "matrix?name=m"); };
  json matrix = plan_shown();
  EXPECT_EQ(matrix["in_use"], false);
  EXPECT_THAT(matrix["signature"].get<std::string>(), HasSubstr("K=512 ")) << "takes CSR longest";
  const std::vector<float> b(50, 1.f);
  for (int i = 0; i < 3; ++i) Spmm(server.compute(), "m", 50, 1, b);
  // The table is as it was a moment ago.
  EXPECT_TRUE(Eventually([&] {
    matrix = plan_shown();
    return matrix["in_use"] == true;
  }));
  EXPECT_THAT(matrix["signature"].get<std::string>(), HasSubstr("spmm K=1 f32 "));
  int in_use = 0;
  for (const json& plan : matrix["plans"]) {
    in_use += plan["in_use"] == true;
    EXPECT_GT(plan["since"].get<double>(), 1.6e9) << plan;
    EXPECT_EQ(plan["rate"] > 0, plan["in_use"] == true) << plan;
    EXPECT_EQ(plan["roof"], "cache") << "a small one: memory's roofline is not its" << plan;
    EXPECT_TRUE(plan["roofline"].is_null()) << plan;
  }
  EXPECT_EQ(in_use, 1);
  // The same over the wire.
  v1::MatrixInfo info;
  grpc::ClientContext context;
  v1::GetMatrixRequest get;
  get.set_name("m");
  ASSERT_TRUE(server.catalog().Get(&context, get, &info).ok());
  for (const v1::PlanInfo& plan : info.plans()) {
    EXPECT_EQ(plan.in_use(), plan.problem_class().k() == 1) << plan.ShortDebugString();
    EXPECT_GT(plan.since_unix_ns(), info.created_unix_ns());
  }
  // Requests go on as they are when other values take the matrix's place.
  const Pattern pattern = Uniform(60, 50, 5, 3);
  v1::UploadHeader header = HeaderOf("m", pattern);
  header.set_replace(true);
  ASSERT_TRUE(Upload(server.catalog(), header, pattern, FloatValues(pattern.nnz(), 7)).ok());
  matrix = plan_shown();
  EXPECT_EQ(matrix["in_use"], true);
  EXPECT_THAT(matrix["signature"].get<std::string>(), HasSubstr("spmm K=1 f32 "));
}

/// Where the time of a matrix's products goes, for whoever asks why it is slow.
TEST(Page, OfAMatrixSaysWhereTheTimeGoes) {
  TestServer server(WithPages);
  MakeGood(server);
  EXPECT_TRUE(Ask(server, "matrix?name=good")["time"].is_null());
  ExpectGood(server);
  json time;
  ASSERT_TRUE(Eventually([&] {  // its record ends after its answer
    time = Ask(server, "matrix?name=good")["time"];
    return !time.is_null();
  }));
  EXPECT_EQ(time["reference"], "good");
  ASSERT_EQ(time["transports"].size(), 1u);
  const json& of = time["transports"][0];
  EXPECT_EQ(of["products"], 1);
  EXPECT_GT(of["seconds"], 0);
  EXPECT_TRUE(of["phases"].contains("kernel")) << time;
  EXPECT_EQ(of["transport"], "stream");
  EXPECT_THAT(of["finding"].get<std::string>(), HasSubstr(" is "));
}

TEST(Page, PlainCsrHasNoSpeedUpOverItself) {
  engine::Plan plan;
  EXPECT_EQ(server::GainOf(plan), 0) << "not timed";
  plan.baseline_ms = plan.plan_ms = 4;
  EXPECT_EQ(server::GainOf(plan), 0);
  plan.plan_ms = 2;
  EXPECT_EQ(server::GainOf(plan), 2);
}

TEST(Page, ToLookAtAMatrixIsNoUseOfIt) {
  TestServer server(WithPages);
  MakeGood(server);
  const auto used = server.engine().catalog().All().front()->keep().used;
  const auto before = used->load();
  Ask(server, "matrix?name=good");
  Ask(server, "matrices");
  Ask(server, "picture?name=good");
  EXPECT_EQ(used->load(), before);
}

TEST(Page, RequestsSayWhatWasAskedAndStatusCallsAreNotAmongThem) {
  TestServer server(WithPages);
  MakeGood(server);
  ExpectGood(server);
  Spmm(server.compute(), "<img src=x onerror=alert(1)>", 1, 1, {1.f});
  grpc::ClientContext one, two;
  v1::Stats stats;
  v1::MatrixInfo info;
  ASSERT_TRUE(server.admin().GetStats(&one, v1::GetStatsRequest(), &stats).ok());
  v1::GetMatrixRequest get;
  get.set_name("good");
  ASSERT_TRUE(server.catalog().Get(&two, get, &info).ok());

  const json requests = Ask(server, "requests");
  ASSERT_EQ(requests["recent"].size(), 3u) << requests.dump(1);
  const json& wrong = requests["recent"][0];
  EXPECT_EQ(wrong["matrix"], "<img src=x onerror=alert(1)>");  // JSON; the page makes it a text
  EXPECT_EQ(wrong["code"], "INVALID_ARGUMENT");
  const json& product = requests["recent"][1];
  EXPECT_EQ(product["op"], "spmm");
  EXPECT_EQ(product["k"], 3);
  EXPECT_EQ(product["code"], "OK");
  EXPECT_THAT(product["plan"].get<std::string>(), HasSubstr("csr / "));
  EXPECT_GT(product["phases"]["kernel"], 0);
  EXPECT_EQ(product["queue"], (json{{"trials", 0.0}, {"others", 0.0}})) << "nobody else was there";
  EXPECT_EQ(requests["recent"][2]["op"], "upload");
  // What was refused is none of them, unless that took its time.
  const bool slow = wrong["seconds"] >= 1e-3;
  EXPECT_EQ(requests["slowest"].size(), slow ? 3u : 2u);
  EXPECT_GE(requests["slowest"][0]["seconds"], requests["slowest"][1]["seconds"]);
}

TEST(Page, RequestsInFlightSayWhatTheyAre) {
  TestServer server(WithPages);
  MakeGood(server);
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  stream->Write(SpmmStartOf(1, "good", 50, 3));  // and not its operand
  ASSERT_TRUE(Eventually([&] { return !Ask(server, "requests")["in_flight"].empty(); }));
  const json request = Ask(server, "requests")["in_flight"][0];
  EXPECT_EQ(request["matrix"], "good");
  EXPECT_EQ(request["k"], 3);
  EXPECT_EQ(request["activity"], "receiving");
  context.TryCancel();
}

TEST(Page, OnlyThisMachinesOwnNamesAreAnswered) {
  TestServer server(WithPages);
  const auto code = [&](const std::string& host) {
    std::string head;
    server.Page("/api/status HTTP/1.0\r\nHost: " + host + "\r\nx: ", &head);
    return head.substr(9, 3);
  };
  EXPECT_EQ(code("localhost:7471"), "200");
  EXPECT_EQ(code("127.0.0.1:7471"), "200");
  EXPECT_EQ(code("[::1]:7471"), "200");
  EXPECT_EQ(code("rebound.example.org:7471"), "403");
  EXPECT_EQ(code("127.0.0.1.example.org"), "403");
}

class PageOfTenants : public testing::Test {
 protected:
  PageOfTenants() {
    std::string path = testing::TempDir() + "page_tokens_XXXXXX";
    close(mkstemp(path.data()));
    path_ = path;
    std::ofstream(path_) << "tokens:\n"
                         << TokenLine("alice", "tenant: alice") << TokenLine("bob", "tenant: bob")
                         << TokenLine("reader", "tenant: bob, role: read-only")
                         << TokenLine("boss", "tenant: ops, role: operator");
    server_ = std::make_unique<TestServer>([this](server::Config& config) {
      WithPages(config);
      config.access_file = path_;
    });
    for (const char* tenant : {"alice", "bob"}) {
      const Pattern pattern = Uniform(20, 20, 2, 3);
      grpc::ClientContext context;
      Show(context, tenant);
      auto stream = server_->catalog().Upload(&context);
      v1::UploadRequest request;
      *request.mutable_header() = HeaderOf(std::string("of-") + tenant, pattern);
      stream->Write(request);
      WriteArray<v1::UploadRequest>(*stream, 0, 0, BytesOf(pattern.row_offsets));
      WriteArray<v1::UploadRequest>(*stream, 0, 1, BytesOf(pattern.column_indices));
      WriteArray<v1::UploadRequest>(*stream, 0, 2, BytesOf(FloatValues(pattern.nnz(), 1)));
      stream->WritesDone();
      v1::UploadReply reply;
      while (stream->Read(&reply)) {
      }
      EXPECT_TRUE(stream->Finish().ok());
    }
  }
  ~PageOfTenants() override {
    server_.reset();
    std::filesystem::remove(path_);
  }
  json As(const std::string& token, const std::string& path, const std::string& code = "200") {
    return Ask(*server_, path, code, "\r\nauthorization: Bearer " + token);
  }

  std::string path_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(PageOfTenants, FilesAreOpenAndNothingElseIs) {
  std::string head;
  EXPECT_THAT(server_->Page("/", &head), Not(HasSubstr("alice")));
  EXPECT_THAT(head, HasSubstr("200"));
  for (const char* path : {"status", "matrices", "matrix?name=of-alice", "candidates?name=of-alice",
                           "picture?name=of-alice", "preparations", "buffers", "requests",
                           "tenants", "configuration"}) {
    Ask(*server_, path, "401");
    As("wrong", path, "401");
  }
}

TEST_F(PageOfTenants, AnOperatorSeesEverything) {
  EXPECT_THAT(NamesOf(As("boss", "matrices?sort=tenant")), ElementsAre("of-alice", "of-bob"));
  As("boss", "matrix?tenant=alice&name=of-alice");
  EXPECT_THAT(As("boss", "configuration")["yaml"].get<std::string>(), HasSubstr("access_file"));
  const json units = As("boss", "configuration")["units"];
  EXPECT_EQ(units["host_memory"], "bytes");
  EXPECT_EQ(units["buffer_time_to_live"], "seconds");
  EXPECT_EQ(units["slow_request"], "seconds");
  EXPECT_EQ(units["ring_spin"], "microseconds");
  EXPECT_FALSE(units.contains("max_queued"));
  EXPECT_FALSE(units.contains("listen"));
  EXPECT_EQ(As("boss", "requests")["recent"].size(), 2u);
  EXPECT_GE(As("boss", "tenants")["total"], 2);
}

TEST_F(PageOfTenants, ATenantSeesWhatIsItsOwnAlone) {
  for (const char* token : {"bob", "reader"}) {
    for (const char* path : {"status", "matrices", "preparations", "buffers", "requests", "tenants",
                             "matrix?name=of-bob", "candidates?name=of-bob"}) {
      const std::string answer = As(token, path).dump();
      EXPECT_THAT(answer, Not(HasSubstr("alice"))) << path;
      EXPECT_THAT(answer, Not(HasSubstr("ops"))) << path;
      EXPECT_THAT(answer, Not(HasSubstr(path_))) << path;
    }
    EXPECT_THAT(NamesOf(As(token, "matrices")), ElementsAre("of-bob"));
    EXPECT_EQ(As(token, "matrices")["total"], 1);
    EXPECT_EQ(As(token, "requests")["recent"].size(), 1u);
    const json status = As(token, "status");
    EXPECT_EQ(status["all"], false);
    EXPECT_EQ(status["totals"]["matrices"], 1);
    EXPECT_FALSE(status["devices"][0].contains("memory"));
    for (const char* path : {"matrix", "candidates", "picture"}) {
      const std::string others =
          As(token, std::string(path) + "?tenant=alice&name=of-alice", "404").dump();
      EXPECT_EQ(others, As(token, std::string(path) + "?tenant=alice&name=none", "404").dump());
    }
    As(token, "configuration", "403");
  }
}

TEST_F(PageOfTenants, AMatrixThatIsSharedOpensWithoutOthersUseOfIt) {
  engine::Catalog& catalog = server_->engine().catalog();
  const auto path = [](const char* page) {
    return std::string(page) + "?tenant=alice&name=of-alice";
  };
  {
    grpc::ClientContext context;
    Show(context, "alice");
    auto stream = server_->compute().Spmm(&context);
    stream->Write(SpmmStartOf(1, "of-alice", 20, 4));
    WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(FloatValues(20 * 4, 2)));
    std::map<uint64_t, Answer> answers;
    ReadUntilEnds(*stream, 1, &answers);
    stream->WritesDone();
    ASSERT_EQ(answers[1].code(), 0) << answers[1].message();
  }
  ASSERT_TRUE(Eventually([&] { return As("alice", path("matrix"))["rate"] > 0; }));
  EXPECT_FALSE(As("alice", path("matrix"))["time"].is_null());
  As("bob", path("matrix"), "404");
  ASSERT_TRUE(catalog.Share("alice", "of-alice", {"bob", engine::Right::kRead}).ok());
  for (const char* token : {"bob", "reader"}) {
    const json matrix = As(token, path("matrix"));
    EXPECT_EQ(matrix["rows"], 20);
    EXPECT_EQ(matrix["rate"], 0);
    EXPECT_TRUE(matrix["p50"].is_null());
    EXPECT_TRUE(matrix["time"].is_null());
    EXPECT_EQ(matrix["in_use"], false);
    for (const json& plan : matrix["plans"]) {
      EXPECT_TRUE(plan["rate"].is_null());
      EXPECT_TRUE(plan["since"].is_null());
      EXPECT_EQ(plan["in_use"], false);
    }
    As(token, path("candidates"));
    As(token, path("picture"));
    EXPECT_THAT(NamesOf(As(token, "matrices")), ElementsAre("of-bob"));
    As(token, "matrix?tenant=alice&name=none", "404");
  }
  EXPECT_GT(As("boss", path("matrix"))["rate"], 0);
  ASSERT_TRUE(catalog.Unshare("alice", "of-alice", "bob").ok());
  As("bob", path("matrix"), "404");
}

TEST(Latencies, QuantilesAreNear) {
  server::Latencies<uint32_t> latencies;
  EXPECT_EQ(latencies.Quantile(0.5), 0);
  for (int i = 1; i <= 1000; ++i) latencies.Add(i * 1e-4);
  EXPECT_NEAR(latencies.Quantile(0.5), 0.05, 0.05 / 4);
  EXPECT_NEAR(latencies.Quantile(0.99), 0.099, 0.099 / 4);
  latencies.Add(1e9);
  latencies.Add(-1);
  EXPECT_LT(latencies.Quantile(1), 1000);
}

TEST(Latencies, NoQuantileIsAboveTheSlowest) {
  // Just above the end of a bucket, where its other end is a quarter away.
  for (const double seconds : {3e-6, 10.1e-6, 0.0102, 3.0, 60.0}) {
    server::Latencies<float> latencies;
    for (int i = 0; i < 3; ++i) latencies.Add(seconds);
    for (const double share : {0.5, 0.99, 1.0}) EXPECT_LE(latencies.Quantile(share), seconds);
    server::Latencies<float> both;
    both.Add(seconds / 2);
    both.Add(latencies);
    EXPECT_LE(both.Quantile(1), seconds);
    EXPECT_GT(both.Quantile(1), seconds / 2);
    latencies.Scale(0.5);
    EXPECT_LE(latencies.Quantile(0.99), seconds);
  }
}

server::StageRecord RecordOf(const std::string& tenant, const std::string& matrix, double seconds,
                             absl::Status status = absl::OkStatus()) {
  server::StageRecord record;
  record.tenant = tenant;
  record.subject = matrix;
  record.total_ns = static_cast<uint64_t>(seconds * 1e9);
  record.status = std::move(status);
  return record;
}

TEST(LiveRequests, RatesFadeAndPointsPass) {
  using std::chrono::milliseconds;
  server::LiveRequests live;
  auto now = server::LiveRequests::Clock::now();
  for (int i = 0; i < 3000; ++i) live.End(RecordOf("t", "web", 0.01), now += milliseconds(100));
  const server::MatrixUse use = live.UseOf("t", "web", "t", now);
  EXPECT_NEAR(use.per_second, 10, 0.5);
  EXPECT_NEAR(use.p50, 0.01, 0.01 / 4);
  EXPECT_NEAR(live.UseOf("t", "web", "t", now + std::chrono::seconds(30)).per_second, 5, 0.5);
  EXPECT_EQ(live.UseOf("t", "web", "t", now + std::chrono::minutes(10)).p50, 0);
  EXPECT_EQ(live.UseOf("other", "web", "other", now).per_second, 0);
  live.End(RecordOf("t", "rare", 0.01), now);
  EXPECT_GT(live.UseOf("t", "rare", "t", now).p50, 0);
  const server::MatrixUse resting = live.UseOf("t", "rare", "t", now + std::chrono::minutes(2));
  EXPECT_GT(resting.per_second, 0);
  EXPECT_EQ(resting.p50, 0) << "shown as nothing, sorted as nothing";
  EXPECT_EQ(resting.p99, 0);
  const auto points = live.Points("t", now);
  EXPECT_EQ(points[points.size() - 2].requests[0], 20u);
  EXPECT_EQ(live.Points("other", now)[100].requests[0], 0u);
  const auto later = live.Points("", now + std::chrono::minutes(10));
  for (const server::LivePoint& point : later) EXPECT_EQ(point.requests[0], 0u);
}

TEST(LiveRequests, LastProductsSayWhereTheTimeGoes) {
  server::LiveRequests live;
  const auto end = [&live](double seconds, int64_t k, int times) {
    for (int i = 0; i < times; ++i) {
      server::StageRecord record = RecordOf("t", "web", seconds);
      record.k = k;
      live.End(record);
    }
  };
  EXPECT_EQ(live.UseOf("t", "web", "t").products.size(), 0u);
  end(0.5, 64, 20);
  server::MatrixUse use = live.UseOf("t", "web", "t");
  EXPECT_EQ(use.products.size(), server::LiveRequests::kLast);
  EXPECT_EQ(use.k, 64);
  ASSERT_EQ(use.transports.size(), 1u);
  EXPECT_NEAR(use.transports[0].time.seconds / use.transports[0].time.requests, 0.5, 1e-6);
  // What was mended shows at once, also beside one that met a cold cache.
  end(0.01, 32, 7);
  end(3, 32, 1);
  use = live.UseOf("t", "web", "t", server::LiveRequests::Clock::now() + std::chrono::hours(1));
  EXPECT_EQ(use.k, 32);
  EXPECT_NEAR(use.transports[0].time.seconds / use.transports[0].time.requests, 0.01, 1e-6);
  end(0.01, 0, 8);
  EXPECT_EQ(live.UseOf("t", "web", "t").k, 0) << "SpGEMM has no width";
}

TEST(LiveRequests, TimesOfTransportsAreToldApart) {
  server::LiveRequests live;
  const auto end = [&live](double seconds, bool held, int times) {
    for (int i = 0; i < times; ++i) {
      server::StageRecord record = RecordOf("t", "web", seconds);
      record.stream_bytes_in = held ? 0 : 100;
      record.held_bytes_in = held ? 100 : 0;
      live.End(record);
    }
  };
  end(0.5, /*held=*/false, 5);
  end(0.01, /*held=*/true, 3);
  server::MatrixUse use = live.UseOf("t", "web", "t");
  ASSERT_EQ(use.transports.size(), 2u);
  EXPECT_EQ(TransportOf(use.transports[0].time), "stream");
  EXPECT_EQ(use.transports[0].products, 5u);
  EXPECT_NEAR(use.transports[0].time.seconds / use.transports[0].time.requests, 0.5, 1e-6);
  EXPECT_EQ(TransportOf(use.transports[1].time), "held");
  EXPECT_EQ(use.transports[1].products, 3u);
  EXPECT_NEAR(use.transports[1].time.seconds / use.transports[1].time.requests, 0.01, 1e-6);
  end(0.01, /*held=*/true, 1);
  use = live.UseOf("t", "web", "t");
  ASSERT_EQ(use.transports.size(), 2u);
  EXPECT_EQ(TransportOf(use.transports[0].time), "held") << "of as many the latest";
}

TEST(LiveRequests, KernelsOfOneProblemAndPlanAreToldApart) {
  server::LiveRequests live;
  const auto end = [&live](double kernel_ms, int64_t k, const std::string& plan, bool transposed,
                           int64_t batch = 1) {
    server::StageRecord record = RecordOf("t", "web", 1);
    record.k = k;
    record.batch = batch;
    record.plan = plan;
    record.transposed = transposed;
    record[server::Phase::kKernel] = static_cast<uint64_t>(1e6 * kernel_ms);
    live.End(record);
  };
  for (const double ms : {2.0, 90.0, 3.0}) end(ms, 32, "csr / a", false);
  end(50, 64, "csr / a", false);
  end(60, 32, "csr / b", false);
  end(70, 32, "csr / a", true);
  end(80, 32, "csr / a", false, 8);
  end(80, 16, "csr / a", false, 2);
  const server::MatrixUse use = live.UseOf("t", "web", "t");
  EXPECT_NEAR(use.SpmmKernelSeconds(32, "csr / a"), 3e-3, 1e-9) << "the median";
  EXPECT_NEAR(use.SpmmKernelSeconds(64, "csr / a"), 50e-3, 1e-9);
  EXPECT_NEAR(use.SpmmKernelSeconds(32, "csr / b"), 60e-3, 1e-9);
  EXPECT_EQ(use.SpmmKernelSeconds(128, "csr / a"), 0);
  EXPECT_EQ(use.SpmmKernelSeconds(16, "csr / a"), 0) << "the kernel's time was of two";
}

TEST(LiveRequests, WhatAProductIsKeptAsReplacesWhatWasThere) {
  server::LiveRequests live;
  live.End(RecordOf("t", "square", 1));
  server::StageRecord product = RecordOf("t", "web", 1);
  product.op = server::Op::kSpgemm;
  product.keeps = "square";
  live.End(product);
  EXPECT_TRUE(live.UseOf("t", "square", "t").products.empty());
  EXPECT_EQ(live.UseOf("t", "web", "t").products.size(), 1u);
}

TEST(LiveRequests, EachTenantsUseOfASharedMatrixIsItsOwn) {
  server::LiveRequests live;
  const auto now = server::LiveRequests::Clock::now();
  const auto end = [&](const std::string& tenant, const std::string& matrix, int64_t k) {
    server::StageRecord record = RecordOf(tenant, matrix, 0.01);
    record.k = k;
    live.End(record, now);
  };
  end("bob", "alice~web", 64);
  EXPECT_EQ(live.UseOf("alice", "web", "alice", now).per_second, 0);
  EXPECT_EQ(live.UseOf("bob", "web", "bob", now).per_second, 0) << "bob has no such matrix";
  const double once = live.UseOf("alice", "web", "bob", now).per_second;
  EXPECT_GT(once, 0);
  for (int i = 0; i < 2; ++i) end("alice", "web", 8);
  EXPECT_EQ(live.UseOf("alice", "web", "bob", now).k, 64);
  EXPECT_EQ(live.UseOf("alice", "web", "bob", now).products.size(), 1u);
  EXPECT_EQ(live.UseOf("alice", "web", "alice", now).k, 8);
  EXPECT_EQ(live.UseOf("alice", "web", "alice", now).products.size(), 2u);
  EXPECT_TRUE(live.UseOf("alice", "web", "carol", now).products.empty());
  const server::MatrixUse all = live.UseOf("alice", "web", "", now);
  EXPECT_NEAR(all.per_second, 3 * once, 1e-9);
  EXPECT_NEAR(all.p50, 0.01, 0.01 / 4);
  EXPECT_TRUE(all.products.empty()) << "whose they are would not be told";
  // Another matrix has the name.
  server::StageRecord deleted = RecordOf("alice", "web", 0.01);
  deleted.op = server::Op::kDelete;
  live.End(deleted, now);
  EXPECT_TRUE(live.UseOf("alice", "web", "bob", now).products.empty());
}

TEST(LiveRequests, OfManyWhoShareAMatrixTheLastAreKnownAndItsOwner) {
  server::LiveRequests live;
  auto now = server::LiveRequests::Clock::now();
  const auto end = [&](const std::string& tenant, const std::string& matrix) {
    live.End(RecordOf(tenant, matrix, 0.01), now += std::chrono::milliseconds(1));
  };
  end("alice", "web");
  constexpr int kSharers = static_cast<int>(server::LiveRequests::kSharers);
  for (int i = 0; i < kSharers; ++i) end(fmt::format("t{}", i), "alice~web");
  end("t0", "alice~web");
  end("new", "alice~web");
  const auto products = [&](const std::string& tenant) {
    return live.UseOf("alice", "web", tenant, now).products.size();
  };
  EXPECT_EQ(products("alice"), 1u);
  EXPECT_EQ(products("t0"), 2u);
  EXPECT_EQ(products("t1"), 0u) << "did not use it for longest";
  EXPECT_EQ(products("t2"), 1u);
  EXPECT_EQ(products("new"), 1u);
}

TEST(LiveRequests, UseEndsWithTheMatrix) {
  using server::Op;
  for (const Op op : {Op::kDelete, Op::kRename, Op::kUpload}) {
    server::LiveRequests live;
    live.End(RecordOf("alice", "web", 0.01));
    live.End(RecordOf("alice", "road", 0.01));
    server::StageRecord ended = RecordOf("alice", "web", 0.01, absl::InternalError("no"));
    ended.op = op;
    live.End(ended);
    EXPECT_GT(live.UseOf("alice", "web", "alice").products.size(), 0u)
        << Name(op) << " that failed";
    ended.status = absl::OkStatus();
    live.End(ended);
    live.End(ended);
    EXPECT_EQ(live.UseOf("alice", "web", "alice").products.size(), 0u) << Name(op);
    EXPECT_GT(live.UseOf("alice", "road", "alice").products.size(), 0u);
    live.End(RecordOf("alice", "web", 0.01));
    EXPECT_EQ(live.UseOf("alice", "web", "alice").products.size(), 1u);
  }
}

TEST(SlowRequests, WhatIsRefusedAtOnceIsNotSlow) {
  EXPECT_TRUE(WasRefusedAtOnce(RecordOf("t", "web", 0.9e-3, absl::NotFoundError("none"))));
  EXPECT_TRUE(WasRefusedAtOnce(RecordOf("t", "web", 0, absl::ResourceExhaustedError("full"))));
  EXPECT_FALSE(WasRefusedAtOnce(RecordOf("t", "web", 1.1e-3, absl::NotFoundError("none"))));
  EXPECT_FALSE(WasRefusedAtOnce(RecordOf("t", "web", 0, absl::InternalError("broken"))));
  EXPECT_FALSE(WasRefusedAtOnce(RecordOf("t", "web", 0, absl::DeadlineExceededError("late"))));
  EXPECT_FALSE(WasRefusedAtOnce(RecordOf("t", "web", 0)));
}

TEST(LiveRequests, NobodyFillsItOrHidesOthers) {
  server::LiveRequests live;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = std::to_string(i);
    live.End(RecordOf("greedy", name, 10 + i, absl::NotFoundError("none")));
    EXPECT_EQ(live.UseOf("greedy", name, "greedy").per_second, 0);
  }
  live.End(RecordOf("modest", "web", 0.001));
  EXPECT_EQ(live.Recent().size(), server::LiveRequests::kRecent);
}

TEST(LiveRequests, AFloodPushesNobodysRequestsOut) {
  server::LiveRequests live;
  live.End(RecordOf("modest", "web", 0.001));
  for (int i = 0; i < 1000; ++i) live.End(RecordOf("greedy", std::to_string(i % 7), 0.01));
  EXPECT_EQ(live.Recent("modest").size(), 1u);
  const auto recent = live.Recent();
  EXPECT_EQ(recent.size(), server::LiveRequests::kRecent);
  EXPECT_EQ(std::ranges::count(recent, "modest", [](const auto& r) { return r.record.tenant; }), 1);
}

TEST(LiveRequests, TenantsThatAreGoneLeaveTheirPlace) {
  server::LiveRequests live;
  auto now = server::LiveRequests::Clock::now();
  constexpr int kTenants = static_cast<int>(server::LiveRequests::kTenants);
  for (int i = 0; i < 2 * kTenants; ++i) {
    live.End(RecordOf(fmt::format("t{}", i), "web", 0.01), now += std::chrono::milliseconds(1));
  }
  const auto requests = [&](int tenant) {
    return live.Points(fmt::format("t{}", tenant), now).back().requests[0];
  };
  EXPECT_EQ(requests(2 * kTenants - 1), 1u) << "the last one to come";
  EXPECT_EQ(requests(kTenants), 1u);
  EXPECT_EQ(requests(kTenants - 1), 0u);
}

TEST(LiveRequests, WhoHasMostMatricesLosesTheirUseFirst) {
  server::LiveRequests live;
  auto now = server::LiveRequests::Clock::now();
  live.End(RecordOf("modest", "web", 0.01), now);
  constexpr int kUses = static_cast<int>(server::LiveRequests::kUses);
  for (int i = 0; i < kUses + 10; ++i) {
    live.End(RecordOf("greedy", std::to_string(i), 0.01), now);
  }
  const auto rate = [&](const char* tenant, int matrix) {
    return live.UseOf(tenant, std::to_string(matrix), tenant, now).per_second;
  };
  EXPECT_GT(live.UseOf("modest", "web", "modest", now).per_second, 0);
  EXPECT_EQ(rate("greedy", 0), 0) << "not used for longest";
  EXPECT_GT(rate("greedy", kUses + 9), 0);
  live.End(RecordOf("modest", "road", 0.01), now);
  EXPECT_GT(live.UseOf("modest", "road", "modest", now).per_second, 0)
      << "a full table takes new ones";
}

TEST(FairShare, EverybodyHasAnEqualPartAndTheRestIsForTheFirst) {
  const auto share = [](std::vector<std::vector<int>> lists, size_t most) {
    return server::FairShare(std::move(lists), most, std::less<>());
  };
  EXPECT_THAT(share({{1, 2, 3, 4, 5}, {10}, {}}, 4), ElementsAre(1, 2, 3, 10));
  EXPECT_THAT(share({{1, 2}, {3}}, 9), ElementsAre(1, 2, 3));
  EXPECT_THAT(share({{5}, {3}, {4}}, 2), ElementsAre(3, 4)) << "more lists than places";
  EXPECT_THAT(share({}, 2), ElementsAre());
}

TEST(InFlight, OneTenantsOldRequestsHideNobodys) {
  server::InFlight in_flight;
  const auto begun = server::StageRecord::Clock::now();
  for (int i = 0; i < 100; ++i) {
    server::StageRecord record = RecordOf("greedy", "web", 0);
    record.begun = begun - std::chrono::seconds(100 - i);
    in_flight.Add(1, record);
  }
  server::StageRecord record = RecordOf("modest", "web", 0);
  record.begun = begun;
  in_flight.Add(1, record);
  EXPECT_EQ(in_flight.count, 101);
  ASSERT_EQ(in_flight.requests["greedy"].size(), server::InFlight::kOldest);
  EXPECT_EQ(in_flight.requests["greedy"].front().begun, begun - std::chrono::seconds(100));
  EXPECT_EQ(in_flight.requests["modest"].size(), 1u);
}

TEST(Table, WhatIsNotKnownComesLastInEitherOrder) {
  const std::vector<double> all = {0, 3, 1, 0, 2};
  const auto cut = [&](bool descending) {
    server::PageOf page;
    page.descending = descending;
    std::vector<double> rows;
    for (const double* row :
         server::CutPage(
             all, page, [](double) { return true; },
             [](double row) { return server::SortKey{.number = row, .known = row > 0}; })
             .rows) {
      rows.push_back(*row);
    }
    return rows;
  };
  EXPECT_THAT(cut(false), ElementsAre(1, 2, 3, 0, 0));
  EXPECT_THAT(cut(true), ElementsAre(3, 2, 1, 0, 0));
}

TEST(Snapshot, IsMadeAtMostForAHundredthOfAThreadsTime) {
  int made = 0;
  server::Snapshot<int> snapshot([&] {
    // A fifth of a second of work, so that it stays for twenty.
    const std::clock_t begin = std::clock();
    while (std::clock() - begin < CLOCKS_PER_SEC / 5) {
    }
    return ++made;
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(*snapshot.Get(), 1);
}

TEST(PatternPicture, ShowsRowsInTheirOrder) {
  // Three rows: two with the first column, one, between them, with the last.
  const std::vector<int64_t> offsets = {0, 1, 2, 3};
  const std::vector<int32_t> columns = {0, 2, 0}, order = {0, 2, 1};
  const CsrView csr{3, 3, offsets, columns, {}};
  EXPECT_THAT(server::PictureOf(csr, {}).shades, ElementsAre(255, 0, 0, 0, 0, 255, 255, 0, 0));
  EXPECT_THAT(server::PictureOf(csr, order).shades, ElementsAre(255, 0, 0, 255, 0, 0, 0, 0, 255));
  EXPECT_THAT(server::PictureOf(csr, order, order).shades,
              ElementsAre(255, 0, 0, 255, 0, 0, 0, 255, 0));
  // Neighbours on a ring whose numbers were mixed are beside the diagonal in their order.
  std::vector<int64_t> ring_offsets = {0};
  std::vector<int32_t> ring_columns, ring_order(2048), ring_next(2048);
  for (int32_t i = 0; i < 2048; ++i) ring_order[static_cast<size_t>(i)] = i * 1001 % 2048;
  for (size_t i = 0; i < 2048; ++i) {
    ring_next[static_cast<size_t>(ring_order[i])] = ring_order[(i + 1) % 2048];
  }
  for (const int32_t next : ring_next) {
    ring_columns.push_back(next);
    ring_offsets.push_back(static_cast<int64_t>(ring_columns.size()));
  }
  const CsrView ring{2048, 2048, ring_offsets, ring_columns, {}};
  const auto picture = server::PictureOf(ring, ring_order, ring_order);
  for (size_t y = 0; y < 256; ++y) {
    EXPECT_GT(picture.shades[y * 256 + y], 0) << y;
    EXPECT_EQ(
        std::ranges::count(picture.shades.begin() + static_cast<std::ptrdiff_t>(y * 256),
                           picture.shades.begin() + static_cast<std::ptrdiff_t>(y * 256 + 256), 0),
        254)
        << y;
  }
  const auto large = server::PictureOf(Uniform(5000, 700, 3, 1).view(), {});
  EXPECT_EQ(large.width, server::PatternPicture::kSide);
  EXPECT_EQ(large.height, server::PatternPicture::kSide);
  EXPECT_FALSE(large.sampled);
  const auto none = server::PictureOf(CsrView{0, 0, std::vector<int64_t>{0}, {}, {}}, {});
  EXPECT_EQ(none.shades, std::vector<uint8_t>{0});
}

}  // namespace
}  // namespace sparsed::test
