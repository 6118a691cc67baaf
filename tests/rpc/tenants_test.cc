// Tenants beside one another: what each may use, what they share, and that nothing else of one
// shows to another.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <sstream>

#include "server/telemetry/request_feed.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/put_zeros.h"
#include "tests/rpc/test_certificates.h"
#include "tests/rpc/test_server.h"
#include "tests/rpc/test_tokens.h"

namespace sparsed::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Code = grpc::StatusCode;

/// Seconds that a status says to wait, if it does.
std::optional<double> RetryDelayOf(const v1::Status& status) {
  for (const google::protobuf::Any& detail : status.details()) {
    v1::RetryInfo retry;
    if (retry.ParseFromString(detail.value())) {
      return static_cast<double>(retry.retry_delay().seconds()) +
             1e-9 * retry.retry_delay().nanos();
    }
  }
  return std::nullopt;
}
std::optional<double> RetryDelayOf(const grpc::Status& status) {
  v1::Status details;
  details.ParseFromString(status.error_details());
  return RetryDelayOf(details);
}

/// A server that knows tenants "one" and "two" by tokens of their names, and an operator "ops".
class TenantsTest : public testing::Test {
 protected:
  TenantsTest() {
    std::string folder = testing::TempDir() + "sparsed_tenants_XXXXXX";
    folder_ = mkdtemp(folder.data());
    path_ = folder_ + "/access.yaml";
  }
  ~TenantsTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Write(const std::string& tenants) {
    WriteFile(path_,
              "tokens:\n" + TokenLine("one", "tenant: one") + TokenLine("two", "tenant: two") +
                  TokenLine("looks", "tenant: one, role: read-only") +
                  TokenLine("ops", "tenant: ops, role: operator") + tenants,
              0600);
  }
  void Start(const std::string& tenants, const std::function<void(server::Config&)>& adjust = {}) {
    Write(tenants);
    server_ = std::make_unique<TestServer>([&](server::Config& config) {
      config.access_file = path_;
      if (adjust) adjust(config);
    });
  }
  TestServer& server() { return *server_; }

  /// An SpMM, on a plan that was prepared for it.
  void PrepareAndMultiply(const std::string& token, const std::string& name) {
    {
      grpc::ClientContext context;
      Show(context, token);
      v1::PrepareRequest request;
      request.set_name(name);
      v1::ProblemClass& expected = *request.add_expected();
      expected.set_operation(v1::ProblemClass::SPMM);
      expected.set_k(4);
      v1::PrepareReply reply;
      ASSERT_TRUE(server().catalog().Prepare(&context, request, &reply).ok());
    }
    ASSERT_TRUE(Eventually([&] { return server().engine().preparation().pending() == 0; }));
    Multiply(token, name, 4);
  }
  void Multiply(const std::string& token, const std::string& name, int64_t k) {
    grpc::ClientContext context;
    Show(context, token);
    auto stream = server().compute().Spmm(&context);
    stream->Write(SpmmStartOf(1, name, pattern_.cols, k));
    WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(FloatValues(pattern_.cols * k, 2)));
    std::map<uint64_t, Answer> answers;
    ReadUntilEnds(*stream, 1, &answers);
    stream->WritesDone();
    ASSERT_EQ(answers[1].code(), 0);
  }

  grpc::Status Put(const std::string& token, const std::string& name, bool replace = false,
                   v1::MatrixInfo* info = nullptr) {
    grpc::ClientContext context;
    Show(context, token);
    auto stream = server().catalog().Upload(&context);
    v1::UploadRequest request;
    *request.mutable_header() = HeaderOf(name, pattern_);
    request.mutable_header()->set_replace(replace);
    request.mutable_header()->set_values_are_ones(true);
    stream->Write(request);
    WriteArray<v1::UploadRequest>(*stream, 0, 0, BytesOf(pattern_.row_offsets));
    WriteArray<v1::UploadRequest>(*stream, 0, 1, BytesOf(pattern_.column_indices));
    stream->WritesDone();
    v1::UploadReply reply;
    while (stream->Read(&reply)) {
      if (info != nullptr && reply.has_matrix()) *info = reply.matrix();
    }
    return stream->Finish();
  }
  grpc::Status Get(const std::string& token, const std::string& name,
                   v1::MatrixInfo* info = nullptr) {
    grpc::ClientContext context;
    Show(context, token);
    v1::GetMatrixRequest request;
    request.set_name(name);
    v1::MatrixInfo reply;
    const grpc::Status status = server().catalog().Get(&context, request, &reply);
    if (info != nullptr) *info = reply;
    return status;
  }
  grpc::Status Share(const std::string& token, const std::string& name, const std::string& with,
                     bool write = false, bool revoke = false) {
    grpc::ClientContext context;
    Show(context, token);
    v1::ShareRequest request;
    request.set_name(name);
    request.mutable_share()->set_with(with);
    request.mutable_share()->set_write(write);
    request.set_revoke(revoke);
    v1::ShareReply reply;
    return server().catalog().Share(&context, request, &reply);
  }
  grpc::Status Tenants(const std::string& token, bool all, v1::ListTenantsReply* reply) {
    grpc::ClientContext context;
    Show(context, token);
    v1::ListTenantsRequest request;
    request.set_all(all);
    return server().admin().ListTenants(&context, request, reply);
  }
  /// Of one of the caller's quotas.
  v1::QuotaInfo QuotaOf(const std::string& token, const std::string& quota) {
    v1::ListTenantsReply reply;
    EXPECT_TRUE(Tenants(token, /*all=*/false, &reply).ok());
    if (reply.tenants_size() == 0) return {};
    for (const v1::QuotaInfo& info : reply.tenants(0).quotas()) {
      if (info.quota() == quota) return info;
    }
    ADD_FAILURE() << "no quota " << quota;
    return {};
  }

  /// What `tenant` has of it now; -1: it is not known. Asked by an operator, who counts as himself.
  int64_t UsedBy(const std::string& tenant, const std::string& quota) {
    v1::ListTenantsReply reply;
    EXPECT_TRUE(Tenants("ops", /*all=*/true, &reply).ok());
    for (const v1::TenantInfo& one : reply.tenants()) {
      if (one.name() != tenant) continue;
      for (const v1::QuotaInfo& info : one.quotas()) {
        if (info.quota() == quota) return info.used();
      }
    }
    return -1;
  }

  const Pattern pattern_ = Uniform(40, 30, 4, 1);
  std::string folder_, path_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(TenantsTest, QuotasHoldAndChangeWhileTheServerRuns) {
  Start("tenants:\n  one: {quotas: {matrices: 1}}\n  \"*\": {quotas: {matrices: {soft: 1}}}\n",
        WithPages);
  ASSERT_TRUE(Put("one", "a").ok());
  const grpc::Status refused = Put("one", "b");
  EXPECT_EQ(refused.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(),
              AllOf(HasSubstr("tenant 'one'"), HasSubstr("quota matrices")));
  EXPECT_FALSE(RetryDelayOf(refused).has_value());
  EXPECT_TRUE(Put("one", "a", /*replace=*/true).ok());
  ASSERT_TRUE(Put("two", "a").ok());
  ASSERT_TRUE(Put("two", "b").ok());

  v1::QuotaInfo quota = QuotaOf("one", "matrices");
  EXPECT_EQ(quota.used(), 1);
  EXPECT_EQ(quota.hard_limit(), 1);
  EXPECT_FALSE(quota.has_soft_limit());
  EXPECT_EQ(quota.refused(), 1);
  quota = QuotaOf("two", "matrices");
  EXPECT_EQ(quota.soft_limit(), 1);
  EXPECT_EQ(quota.warned(), 1);
  const std::string page = server().Page("/metrics");
  EXPECT_THAT(page, HasSubstr("sparsed_quota_used{quota=\"matrices\",tenant=\"two\"} 2"));
  EXPECT_THAT(page,
              HasSubstr("sparsed_quota_limit{kind=\"hard\",quota=\"matrices\",tenant=\"one\"} 1"));
  EXPECT_THAT(page, HasSubstr("sparsed_quota_refusals_total{quota=\"matrices\",tenant=\"one\"} 1"));
  EXPECT_THAT(page, HasSubstr("sparsed_quota_warnings_total{quota=\"matrices\",tenant=\"two\"} 1"));

  Write("tenants:\n  one: {quotas: {matrices: 2}}\n");
  EXPECT_TRUE(Eventually([&] { return Put("one", "b").ok(); }));
  EXPECT_EQ(Put("one", "c").error_code(), Code::RESOURCE_EXHAUSTED);
  Write("tenants:\n  one: {quotas: {matrices: none}}\n");
  EXPECT_TRUE(Eventually([&] { return Put("one", "c").ok(); }));
}

TEST_F(TenantsTest, AnOperatorSeesAllTenantsAndOthersThemselvesAlone) {
  Start("tenants:\n  one: {weight: 2}\n");
  v1::ListTenantsReply reply;
  ASSERT_TRUE(Tenants("looks", false, &reply).ok());
  ASSERT_EQ(reply.tenants_size(), 1);
  EXPECT_EQ(reply.tenants(0).name(), "one");
  EXPECT_EQ(reply.tenants(0).weight(), 2);
  EXPECT_EQ(reply.tenants(0).quotas_size(), engine::kQuotas);
  EXPECT_EQ(Tenants("one", true, &reply).error_code(), Code::PERMISSION_DENIED);
  ASSERT_TRUE(Tenants("ops", true, &reply).ok());
  std::vector<std::string> names;
  for (const v1::TenantInfo& tenant : reply.tenants()) names.push_back(tenant.name());
  EXPECT_THAT(names, testing::ElementsAre("one", "ops"));
}

TEST_F(TenantsTest, WhatWasMeasuredForAllIsForOperators) {
  Start("");
  ASSERT_TRUE(Put("one", "m").ok());
  const auto list = [&](const std::string& token, bool all) {
    grpc::ClientContext context;
    Show(context, token);
    v1::ListMeasurementsRequest request;
    request.set_all(all);
    auto reader = server().catalog().ListMeasurements(&context, request);
    v1::PatternMeasurements pattern;
    int patterns = 0;
    while (reader->Read(&pattern)) ++patterns;
    const grpc::Status status = reader->Finish();
    return status.ok() ? patterns : -static_cast<int>(status.error_code());
  };
  EXPECT_EQ(list("one", false), 1);
  EXPECT_EQ(list("two", false), 0);
  EXPECT_EQ(list("ops", false), 0);
  EXPECT_EQ(list("ops", true), 1);
  EXPECT_EQ(list("one", true), -grpc::PERMISSION_DENIED);
  EXPECT_EQ(list("two", true), -grpc::PERMISSION_DENIED);
}

TEST_F(TenantsTest, SlowRequestsAreTheTenantsOwn) {
  Start("");
  ASSERT_TRUE(Put("one", "secret").ok());
  ASSERT_TRUE(Put("two", "mine").ok());
  const auto slow = [this](const std::string& token, bool all, std::string* told) {
    grpc::ClientContext context;
    Show(context, token);
    v1::ListSlowRequest request;
    request.set_all(all);
    v1::ListSlowReply reply;
    const grpc::Status status = server().admin().ListSlow(&context, request, &reply);
    *told = reply.DebugString();
    return status;
  };
  std::string told;
  ASSERT_TRUE(slow("two", false, &told).ok());
  EXPECT_THAT(told, HasSubstr("mine"));
  EXPECT_THAT(told, testing::Not(HasSubstr("secret")));
  EXPECT_THAT(told, testing::Not(HasSubstr("one")));
  EXPECT_EQ(slow("two", true, &told).error_code(), Code::PERMISSION_DENIED);
  EXPECT_EQ(told, "");
  ASSERT_TRUE(slow("ops", false, &told).ok());
  EXPECT_THAT(told, testing::Not(HasSubstr("secret")));
  ASSERT_TRUE(slow("ops", true, &told).ok());
  EXPECT_THAT(told, AllOf(HasSubstr("mine"), HasSubstr("secret")));
}

TEST_F(TenantsTest, SlowRequestsOfOneTenantOrNameAreAskedFor) {
  Start("");
  ASSERT_TRUE(Put("one", "m").ok());
  ASSERT_TRUE(Put("one", "other").ok());
  ASSERT_TRUE(Put("two", "m").ok());
  struct Asked {
    std::vector<std::string> names;  ///< TENANT~NAME, sorted
    int64_t of_others = 0;
  };
  const auto slow = [this](const std::string& token, bool all, const std::string& tenant,
                           const std::string& subject, Asked* asked) {
    grpc::ClientContext context;
    Show(context, token);
    v1::ListSlowRequest request;
    request.set_all(all);
    request.set_tenant(tenant);
    request.set_subject(subject);
    v1::ListSlowReply reply;
    const grpc::Status status = server().admin().ListSlow(&context, request, &reply);
    *asked = {.names = {}, .of_others = reply.of_others()};
    for (const v1::SlowRequest& one : reply.requests()) {
      asked->names.push_back(one.tenant() + "~" + one.subject());
    }
    std::ranges::sort(asked->names);
    return status;
  };
  Asked asked;
  ASSERT_TRUE(slow("ops", true, "one", "", &asked).ok());
  EXPECT_THAT(asked.names, testing::ElementsAre("one~m", "one~other"));
  ASSERT_TRUE(slow("ops", true, "", "m", &asked).ok());
  EXPECT_THAT(asked.names, testing::ElementsAre("one~m", "two~m"));
  EXPECT_EQ(asked.of_others, 0);
  ASSERT_TRUE(slow("ops", true, "", "two~m", &asked).ok());
  EXPECT_THAT(asked.names, testing::ElementsAre("two~m"));
  ASSERT_TRUE(slow("ops", false, "", "m", &asked).ok());
  EXPECT_THAT(asked.names, testing::IsEmpty());
  EXPECT_EQ(asked.of_others, 2);
  ASSERT_TRUE(slow("one", false, "one", "other", &asked).ok());
  EXPECT_THAT(asked.names, testing::ElementsAre("one~other"));
  EXPECT_EQ(asked.of_others, 0) << "told to operators alone";
  ASSERT_TRUE(slow("one", false, "", "two~m", &asked).ok());
  EXPECT_THAT(asked.names, testing::IsEmpty());
  EXPECT_EQ(slow("one", false, "two", "", &asked).error_code(), Code::INVALID_ARGUMENT);
  EXPECT_EQ(slow("one", true, "two", "", &asked).error_code(), Code::PERMISSION_DENIED);
  // What nothing can be called.
  EXPECT_EQ(slow("ops", true, "x y", "", &asked).error_message(),
            "tenant's name has byte 0x20 at position 1, expected [A-Za-z0-9._:/@+-]");
  EXPECT_EQ(slow("one", false, "", "a b", &asked).error_message(),
            "matrix or buffer name has byte 0x20 at position 1, expected [A-Za-z0-9._:/@+-]");
  for (const char* subject : {"a b", "~m", "one~", "one~m~m", "o ne~m"}) {
    EXPECT_EQ(slow("ops", true, "", subject, &asked).error_code(), Code::INVALID_ARGUMENT)
        << subject;
  }
}

TEST_F(TenantsTest, SlowRequestsComeWithTheQuotasThatRefused) {
  Start("tenants:\n  one: {quotas: {matrices: 1}}\n");
  ASSERT_TRUE(Put("one", "first").ok());
  EXPECT_EQ(Put("one", "second").error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Put("one", "third").error_code(), Code::RESOURCE_EXHAUSTED);
  const auto refused_at = [this](const std::string& token, bool all, const std::string& tenant) {
    grpc::ClientContext context;
    Show(context, token);
    v1::ListSlowRequest request;
    request.set_all(all);
    request.set_tenant(tenant);
    v1::ListSlowReply reply;
    EXPECT_TRUE(server().admin().ListSlow(&context, request, &reply).ok());
    std::map<std::string, int64_t> refused;
    for (const v1::QuotaInfo& quota : reply.refused_at()) refused[quota.quota()] = quota.refused();
    return refused;
  };
  const std::map<std::string, int64_t> expected = {{"matrices", 2}};
  EXPECT_EQ(refused_at("one", false, ""), expected);
  EXPECT_EQ(refused_at("ops", true, "one"), expected);
  EXPECT_THAT(refused_at("two", false, ""), testing::IsEmpty());
  EXPECT_THAT(refused_at("ops", true, "nobody"), testing::IsEmpty());
}

TEST_F(TenantsTest, OperatorsListTheBuffersOfAll) {
  Start("");
  const auto put = [this](const std::string& token, const std::string& name) {
    grpc::ClientContext context;
    Show(context, token);
    ASSERT_TRUE(PutZeros(server().buffers(), context, name).ok());
  };
  for (const char* name : {"a", "b"}) put("one", name);
  put("two", "a");
  /// Names, page by page.
  const auto list = [this](const std::string& token, bool all, const std::string& prefix,
                           int page_size, std::vector<std::string>* names) {
    names->clear();
    v1::ListBuffersRequest request;
    request.set_all(all);
    request.set_prefix(prefix);
    request.set_page_size(page_size);
    do {
      grpc::ClientContext context;
      Show(context, token);
      v1::ListBuffersReply reply;
      const grpc::Status status = server().buffers().List(&context, request, &reply);
      if (!status.ok()) return status.error_code();
      for (const v1::BufferInfo& info : reply.buffers()) names->push_back(info.name());
      request.set_page_token(reply.next_page_token());
    } while (!request.page_token().empty());
    return Code::OK;
  };
  std::vector<std::string> names;
  for (const int page_size : {0, 1, 2}) {
    EXPECT_EQ(list("ops", true, "", page_size, &names), Code::OK);
    EXPECT_THAT(names, testing::ElementsAre("one~a", "one~b", "two~a")) << page_size;
  }
  EXPECT_EQ(list("ops", true, "one~", 1, &names), Code::OK);
  EXPECT_THAT(names, testing::ElementsAre("one~a", "one~b"));
  EXPECT_EQ(list("ops", false, "", 0, &names), Code::OK);
  EXPECT_THAT(names, IsEmpty());
  EXPECT_EQ(list("two", false, "", 0, &names), Code::OK);
  EXPECT_THAT(names, testing::ElementsAre("a"));
  EXPECT_EQ(list("two", true, "", 0, &names), Code::PERMISSION_DENIED);
}

TEST_F(TenantsTest, WhoWatchesRequestsSeesTheTenantsOwn) {
  Start("");
  struct Watch {
    Watch(TestServer& server, const std::string& token, bool all) {
      Show(context, token);
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      v1::WatchRequestsRequest request;
      request.set_all(all);
      reader = server.admin().WatchRequests(&context, request);
      begun = reader->Read(&reply);
    }
    ~Watch() {
      context.TryCancel();
      while (reader->Read(&reply)) {
      }
      reader->Finish().IgnoreError();
    }
    /// Of so many requests from now on.
    std::vector<std::string> Subjects(size_t count) {
      std::vector<std::string> subjects;
      while (subjects.size() < count && reader->Read(&reply)) {
        for (const auto& one : reply.requests())
          subjects.push_back(one.tenant() + " " + one.subject());
      }
      return subjects;
    }
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchRequestsReply>> reader;
    v1::WatchRequestsReply reply;
    bool begun = false;
  };
  {
    grpc::ClientContext context;
    Show(context, "two");
    v1::WatchRequestsRequest request;
    request.set_all(true);
    const auto reader = server().admin().WatchRequests(&context, request);
    v1::WatchRequestsReply reply;
    EXPECT_FALSE(reader->Read(&reply));
    const grpc::Status refused = reader->Finish();
    EXPECT_EQ(refused.error_code(), Code::PERMISSION_DENIED);
    EXPECT_THAT(refused.error_message(), HasSubstr("the requests of all tenants"));
  }
  Watch two(server(), "two", false), all(server(), "ops", true), ops(server(), "ops", false);
  ASSERT_TRUE(two.begun && all.begun && ops.begun);
  ASSERT_TRUE(Put("one", "secret").ok());
  ASSERT_TRUE(Put("two", "mine").ok());
  ASSERT_TRUE(Put("ops", "own").ok());
  EXPECT_THAT(all.Subjects(3), testing::ElementsAre("one secret", "two mine", "ops own"));
  EXPECT_THAT(two.Subjects(1), testing::ElementsAre("two mine"));
  EXPECT_THAT(ops.Subjects(1), testing::ElementsAre("ops own"));
}

TEST_F(TenantsTest, FewMayWatchRequestsAtOnce) {
  Start("");
  const auto watch = [&](grpc::ClientContext& context, const std::string& token) {
    Show(context, token);
    return server().admin().WatchRequests(&context, v1::WatchRequestsRequest());
  };
  v1::WatchRequestsReply reply;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchRequestsReply>>> readers;
  for (size_t i = 0; i < server::RequestFeed::kMostOfTenant; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(watch(*contexts.back(), "one"));
    ASSERT_TRUE(readers.back()->Read(&reply)) << i;
  }
  grpc::ClientContext more, other;
  const auto one_more = watch(more, "one");
  EXPECT_FALSE(one_more->Read(&reply));
  const grpc::Status refused = one_more->Finish();
  EXPECT_EQ(refused.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("8 calls that watch requests"));
  const auto others = watch(other, "two");
  EXPECT_TRUE(others->Read(&reply)) << "another tenant's";
  other.TryCancel();
  EXPECT_EQ(others->Finish().error_code(), Code::CANCELLED);
  for (size_t i = 0; i < readers.size(); ++i) {
    contexts[i]->TryCancel();
    EXPECT_EQ(readers[i]->Finish().error_code(), Code::CANCELLED);
  }
  // The server learns that they are gone.
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    const auto again = watch(context, "one");
    const bool begun = again->Read(&reply);
    context.TryCancel();
    const grpc::Status ended = again->Finish();
    return begun && ended.error_code() == Code::CANCELLED;
  }));
}

TEST_F(TenantsTest, ExplainTellsWhoSharesAMatrixOfHisOwnRequests) {
  Start("");
  ASSERT_TRUE(Put("one", "a").ok());
  ASSERT_TRUE(server().engine().catalog().Share("one", "a", {"two", engine::Right::kRead}).ok());
  v1::ExplainReply reply;
  const auto requests = [&](const std::string& token, const std::string& name) {
    grpc::ClientContext context;
    Show(context, token);
    v1::ExplainRequest request;
    request.set_name(name);
    reply = {};
    const grpc::Status status = server().catalog().Explain(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return static_cast<int>(reply.requests().requests());
  };
  const auto k = [&] { return reply.operations(1).k(); };
  ASSERT_NO_FATAL_FAILURE(Multiply("two", "one~a", 5));
  // A record ends after its answer.
  ASSERT_TRUE(Eventually([&] { return requests("two", "one~a") == 1; }));
  EXPECT_EQ(k(), 5);
  EXPECT_EQ(requests("one", "a"), 0) << "another's requests are not the owner's to see";
  EXPECT_EQ(k(), 128);
  for (int i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(Multiply("one", "a", 3));
  ASSERT_TRUE(Eventually([&] { return requests("one", "a") == 2; }));
  EXPECT_EQ(k(), 3);
  EXPECT_EQ(requests("two", "one~a"), 1);
  EXPECT_EQ(k(), 5);
  EXPECT_EQ(requests("ops", "one~a"), 2) << "the owner's";
  EXPECT_EQ(k(), 3);
}

TEST_F(TenantsTest, OperatorsLookAtAllTenantsMatrices) {
  Start("", [](server::Config& config) { config.preparation_workers = 1; });
  ASSERT_TRUE(Put("one", "a").ok());
  ASSERT_NO_FATAL_FAILURE(PrepareAndMultiply("one", "a"));
  v1::ExplainReply explained;
  const auto explain = [&](const std::string& token, const std::string& name) {
    grpc::ClientContext context;
    Show(context, token);
    v1::ExplainRequest request;
    request.set_name(name);
    return server().catalog().Explain(&context, request, &explained).error_code();
  };
  v1::MatrixInfo info;
  ASSERT_TRUE(Get("ops", "one~a", &info).ok());
  EXPECT_EQ(info.name(), "one~a");
  EXPECT_EQ(explain("ops", "one~a"), Code::OK);
  EXPECT_EQ(explained.requests().requests(), 1) << "where the time of the owner's requests went";
  EXPECT_EQ(Get("ops", "a").error_code(), Code::NOT_FOUND);
  EXPECT_EQ(explain("ops", "one~b"), Code::NOT_FOUND);
  for (const char* other : {"two", "looks"}) {
    const std::string name = std::string(other) == "two" ? "one~a" : "two~a";
    EXPECT_EQ(Get(other, name).error_code(), Code::NOT_FOUND);
    EXPECT_EQ(explain(other, name), Code::NOT_FOUND);
  }
  // To look at, and no more.
  grpc::ClientContext context;
  Show(context, "ops");
  v1::PrepareRequest prepare;
  prepare.set_name("one~a");
  v1::PrepareReply reply;
  EXPECT_EQ(server().catalog().Prepare(&context, prepare, &reply).error_code(), Code::NOT_FOUND);
}

TEST_F(TenantsTest, HowPlansAreUsedIsNotToldWhereOthersUseThem) {
  Start("", [](server::Config& config) {
    config.share_patterns = true;
    config.preparation_workers = 1;
  });
  ASSERT_TRUE(Put("one", "a").ok());
  ASSERT_NO_FATAL_FAILURE(PrepareAndMultiply("one", "a"));
  struct Told {
    bool use = false, since = false;
    bool operator==(const Told&) const = default;
  };
  const auto told = [&](const std::string& token, const std::string& name) {
    v1::MatrixInfo info;
    EXPECT_TRUE(Get(token, name, &info).ok());
    EXPECT_GT(info.plans_size(), 0);
    Told any;
    for (const v1::PlanInfo& plan : info.plans()) {
      any.use = any.use || plan.in_use() || plan.requests_per_second() > 0;
      any.since = any.since || plan.since_unix_ns() != 0;
    }
    return any;
  };
  EXPECT_EQ(told("one", "a"), (Told{true, true}));
  ASSERT_TRUE(Share("one", "a", "two").ok());
  EXPECT_EQ(told("two", "one~a"), (Told{})) << "the owner's requests";
  EXPECT_EQ(told("one", "a"), (Told{true, true}));
  ASSERT_TRUE(Put("two", "b").ok());
  EXPECT_EQ(told("two", "b"), (Told{})) << "what another did with the same pattern";
  EXPECT_EQ(told("one", "a"), (Told{true, false}))
      << "its own requests, but not when plans changed";
}

TEST_F(TenantsTest, RatesOfMatricesThatShareAPatternAreTheirOwn) {
  Start("", [](server::Config& config) { config.preparation_workers = 1; });
  ASSERT_TRUE(Put("one", "a").ok());
  ASSERT_TRUE(Put("one", "b").ok());
  ASSERT_NO_FATAL_FAILURE(PrepareAndMultiply("one", "a"));
  const auto in_use = [&](const std::string& name) {
    v1::MatrixInfo info;
    EXPECT_TRUE(Get("one", name, &info).ok());
    EXPECT_GT(info.plans_size(), 0) << name;
    return std::ranges::count_if(info.plans(), [](const v1::PlanInfo& plan) {
      return plan.in_use() && plan.requests_per_second() > 0;
    });
  };
  EXPECT_EQ(in_use("a"), 1);
  EXPECT_EQ(in_use("b"), 0) << "another matrix with the same pattern";
}

TEST_F(TenantsTest, NothingIsSharedWithWhoCannotBe) {
  Start("tenants:\n  three: {weight: 2}\n");
  ASSERT_TRUE(Put("one", "a").ok());
  const grpc::Status refused = Share("one", "a", "nobody");
  EXPECT_EQ(refused.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("there is no tenant 'nobody'"));
  EXPECT_TRUE(Share("one", "a", "two").ok()) << "a token's";
  EXPECT_TRUE(Share("one", "a", "three").ok()) << "one that has limits";
  EXPECT_TRUE(Share("one", "a", "*").ok());
  EXPECT_EQ(Share("one", "b", "nobody").error_code(), Code::NOT_FOUND);
  // What was shared before a tenant went can be taken back.
  EXPECT_EQ(Share("one", "a", "nobody", false, /*revoke=*/true).error_code(), Code::NOT_FOUND);
}

TEST_F(TenantsTest, RulesThatTakeAnyTenantLetOneShareWithAny) {
  Start("certificates:\n  - {uri: \"spiffe://example.org/tenant/{tenant}\"}\n");
  ASSERT_TRUE(Put("one", "a").ok());
  EXPECT_TRUE(Share("one", "a", "anybody").ok());
}

TEST_F(TenantsTest, ARateOfRequestsSaysWhenToTryAgain) {
  Start("tenants:\n  one: {quotas: {requests_per_second: 1}}\n");
  grpc::Status refused;
  ASSERT_TRUE(Eventually([&] {
    refused = Share("one", "a", "two");
    return refused.error_code() == Code::RESOURCE_EXHAUSTED;
  }));
  EXPECT_THAT(refused.error_message(), HasSubstr("has begun 1 request within a second"));
  EXPECT_THAT(refused.error_message(), HasSubstr("quota requests_per_second"));
  ASSERT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_LE(*RetryDelayOf(refused), 1.01);
  EXPECT_EQ(Share("two", "a", "one").error_code(), Code::NOT_FOUND);
  EXPECT_TRUE(Eventually([&] { return Share("one", "a", "two").error_code() == Code::NOT_FOUND; }));
}

TEST_F(TenantsTest, StatusCallsAreCountedApartFromRequests) {
  Start("tenants:\n  one: {quotas: {requests_per_second: 1}}\n");
  EXPECT_EQ(Get("one", "a").error_code(), Code::NOT_FOUND);
  EXPECT_EQ(Get("one", "a").error_code(), Code::NOT_FOUND);
  EXPECT_TRUE(Put("one", "a").ok()) << "two status calls were no requests";
  grpc::Status refused;
  ASSERT_TRUE(Eventually([&] {
    refused = Get("one", "a");
    return refused.error_code() == Code::RESOURCE_EXHAUSTED;
  }));
  EXPECT_THAT(refused.error_message(),
              HasSubstr("has begun 4 status calls or streams within a second for each"));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
}

TEST_F(TenantsTest, AProductIsOneRequestWhateverIsAskedBefore) {
  Start("tenants:\n  one: {quotas: {requests_per_second: 2}}\n");
  ASSERT_TRUE(Put("one", "a").ok());
  EXPECT_TRUE(Get("one", "a").ok());
  EXPECT_TRUE(Get("one", "a").ok());
  grpc::ClientContext context;
  Show(context, "one");
  auto stream = server().compute().Spmm(&context);
  stream->Write(SpmmStartOf(1, "a", pattern_.cols, 4));
  WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(FloatValues(pattern_.cols * 4, 2)));
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), 0) << answers[1].message();
  stream->WritesDone();
}

TEST_F(TenantsTest, AProductIsOneRequestWhateverItsBytesComeBy) {
  Start("tenants:\n  one: {quotas: {requests_per_second: 2}}\n");
  ASSERT_TRUE(Put("one", "a").ok());
  struct Carrier {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::CarryRequest, v1::CarryReply>> stream;
  };
  std::vector<std::unique_ptr<Carrier>> carriers;
  v1::SpmmRequest start = SpmmStartOf(1, "a", pattern_.cols, 4);
  for (int i = 0; i < 15; ++i) {
    carriers.push_back(std::make_unique<Carrier>());
    Carrier& carrier = *carriers.back();
    Show(carrier.context, "one");
    carrier.stream = server().compute().Carry(&carrier.context);
    v1::CarryReply reply;
    ASSERT_TRUE(carrier.stream->Read(&reply)) << carrier.stream->Finish().error_message();
    start.mutable_start()->add_carriers(reply.carrier());
  }
  EXPECT_TRUE(Get("one", "a").ok());
  grpc::ClientContext context;
  Show(context, "one");
  auto stream = server().compute().Spmm(&context);
  stream->Write(start);
  WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(FloatValues(pattern_.cols * 4, 2)));
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), 0) << answers[1].message();
  stream->WritesDone();
}

TEST_F(TenantsTest, WhatIsRefusedForARateCountsAmongItsTenantsRequests) {
  Start("tenants:\n  one: {quotas: {requests_per_second: 1}}\n", WithPages);
  // At once: a slow machine may take a second for each.
  ASSERT_TRUE(Eventually([&] {
    std::vector<std::future<grpc::Status>> puts;
    for (int i = 0; i < 8; ++i) {
      puts.push_back(std::async(std::launch::async, [&] { return Put("one", "a", true); }));
    }
    int refused = 0;
    for (std::future<grpc::Status>& put : puts) {
      if (put.get().error_code() == Code::RESOURCE_EXHAUSTED) ++refused;
    }
    return refused > 0;
  }));
  const std::string metrics = server().Page("/metrics");
  const std::string of_upload = R"(kind="work",op="upload",tenant="one"} )";
  EXPECT_THAT(metrics,
              HasSubstr(R"(sparsed_requests_total{code="RESOURCE_EXHAUSTED",)" + of_upload));
  EXPECT_THAT(metrics, HasSubstr(R"(sparsed_request_errors_total{cause="capacity",)" + of_upload));
  // Nobody knows whose this is.
  EXPECT_EQ(Put("nobody's", "a").error_code(), Code::UNAUTHENTICATED);
  EXPECT_THAT(server().Page("/metrics"), testing::Not(HasSubstr(R"(code="UNAUTHENTICATED")")));
}

TEST_F(TenantsTest, WhoAsksWhatTenantsUseDoesNotShowAmongTheirRequests) {
  Start("");
  EXPECT_EQ(UsedBy("ops", "requests"), 0);
  EXPECT_EQ(QuotaOf("one", "requests").used(), 0);
}

TEST_F(TenantsTest, ARateForAllHoldsUpNoOperator) {
  Start("tenants:\n  \"*\": {quotas: {requests_per_second: 1}}\n");
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(Get("ops", "a").error_code(), Code::NOT_FOUND) << i;
    ASSERT_EQ(Share("ops", "a", "two").error_code(), Code::NOT_FOUND) << i;
  }
}

TEST_F(TenantsTest, ConnectionsCountAsLongAsTheyAreOpen) {
  Start("tenants:\n  one: {quotas: {connections: 1}}\n");
  const auto call = [&](const std::shared_ptr<grpc::Channel>& channel, const std::string& token) {
    grpc::ClientContext context;
    Show(context, token);
    v1::ServerInfo reply;
    return v1::Admin::NewStub(channel)->GetServerInfo(&context, {}, &reply);
  };
  auto first = server().Connect();
  ASSERT_TRUE(call(first, "one").ok());
  ASSERT_TRUE(call(first, "one").ok()) << "it is the same connection";
  const auto second = server().Connect();
  const grpc::Status refused = call(second, "one");
  EXPECT_EQ(refused.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("quota connections"));
  EXPECT_TRUE(call(second, "two").ok());
  first.reset();
  EXPECT_TRUE(Eventually([&] { return call(second, "one").ok(); }));
}

TEST_F(TenantsTest, ConnectionsOverTcpCount) {
  Start("tenants:\n  one: {quotas: {connections: 1}}\n",
        [](server::Config& config) { config.listen = {"127.0.0.1:0"}; });
  const auto call = [&](const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    Show(context, "one");
    v1::ServerInfo reply;
    return v1::Admin::NewStub(channel)->GetServerInfo(&context, {}, &reply).error_code();
  };
  const auto first = server().Connect(), second = server().Connect();
  EXPECT_EQ(call(first), Code::OK);
  EXPECT_EQ(call(second), Code::RESOURCE_EXHAUSTED);
  EXPECT_EQ(call(first), Code::OK);
}

TEST_F(TenantsTest, StreamsAndRequestsInFlightHaveLimits) {
  Start("tenants:\n  one: {quotas: {streams: 1, requests: 1}}\n");
  ASSERT_TRUE(Put("one", "a").ok());
  grpc::ClientContext context;
  Show(context, "one");
  auto stream = server().compute().Spmm(&context);
  // The first waits for its operand.
  ASSERT_TRUE(stream->Write(SpmmStartOf(1, "a", pattern_.cols, 4)));
  ASSERT_TRUE(stream->Write(SpmmStartOf(2, "a", pattern_.cols, 4)));
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[2].code(), static_cast<int>(Code::RESOURCE_EXHAUSTED));
  EXPECT_THAT(answers[2].message(), HasSubstr("quota requests)"));
  EXPECT_TRUE(RetryDelayOf(answers[2].ends.front().status()).has_value());
  EXPECT_EQ(Get("one", "a").error_code(), Code::RESOURCE_EXHAUSTED) << "it is in flight, too";
  {
    grpc::ClientContext other;
    Show(other, "one");
    auto second = server().compute().Sddmm(&other);
    second->WritesDone();
    v1::ComputeReply reply;
    while (second->Read(&reply)) {
    }
    const grpc::Status refused = second->Finish();
    EXPECT_EQ(refused.error_code(), Code::RESOURCE_EXHAUSTED);
    EXPECT_THAT(refused.error_message(), HasSubstr("quota streams"));
    EXPECT_FALSE(RetryDelayOf(refused).has_value());
  }
  const std::vector<float> b = FloatValues(pattern_.cols * 4, 2);
  ASSERT_TRUE(WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(b)));
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), 0) << answers[1].message();
  stream->WritesDone();
  v1::ComputeReply reply;
  while (stream->Read(&reply)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(
      Eventually([&] { return UsedBy("one", "streams") == 0 && UsedBy("one", "requests") == 0; }));
  EXPECT_EQ(UsedBy("one", "queued"), 0);
}

TEST_F(TenantsTest, WhoHasOneRequestMaySendTheNextAtOnce) {
  Start("tenants:\n  one: {quotas: {requests: 1}}\n");
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(Put("one", "a", /*replace=*/true).ok()) << i;
    ASSERT_TRUE(Get("one", "a").ok()) << i;
    ASSERT_TRUE(Get("one", "a").ok()) << i;
  }
  grpc::ClientContext context;
  Show(context, "one");
  auto stream = server().compute().Spmm(&context);
  const std::vector<float> b = FloatValues(pattern_.cols * 4, 2);
  for (uint64_t id = 1; id <= 200; ++id) {
    ASSERT_TRUE(stream->Write(SpmmStartOf(id, "a", pattern_.cols, 4)));
    ASSERT_TRUE(WriteArray<v1::SpmmRequest>(*stream, id, 0, BytesOf(b)));
    std::map<uint64_t, Answer> answers;
    ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
    ASSERT_EQ(answers[id].code(), 0) << id << ": " << answers[id].message();
  }
  stream->WritesDone();
  v1::ComputeReply reply;
  while (stream->Read(&reply)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(TenantsTest, WhoHasOneRequestMaySaveTheNextSnapshotAtOnce) {
  Start("tenants:\n  ops: {quotas: {requests: 1}}\n",
        [&](server::Config& config) { config.data_dir = folder_ + "/data"; });
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    Show(context, "ops");
    const auto reader = server().admin().SaveSnapshot(&context, v1::SaveSnapshotRequest());
    v1::SaveSnapshotReply reply;
    while (reader->Read(&reply)) {
    }
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << i << ": " << status.error_message();
  }
}

TEST_F(TenantsTest, WhatIsQueuedHasALimit) {
  Start("tenants:\n  one: {quotas: {queued: 0}}\n");
  ASSERT_TRUE(Put("one", "a").ok());
  grpc::ClientContext context;
  Show(context, "one");
  auto stream = server().compute().Spmm(&context);
  ASSERT_TRUE(stream->Write(SpmmStartOf(1, "a", pattern_.cols, 4)));
  const std::vector<float> b = FloatValues(pattern_.cols * 4, 2);
  ASSERT_TRUE(WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(b)));
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), static_cast<int>(Code::RESOURCE_EXHAUSTED));
  EXPECT_THAT(answers[1].message(), HasSubstr("quota queued"));
  EXPECT_TRUE(RetryDelayOf(answers[1].ends.front().status()).has_value());
}

TEST_F(TenantsTest, PreparationsHaveALimit) {
  Start("tenants:\n  one: {quotas: {preparations: 0}}\n",
        [](server::Config& config) { config.preparation_workers = 1; });
  v1::MatrixInfo info;
  ASSERT_TRUE(Put("one", "a").ok()) << "plain CSR serves";
  ASSERT_TRUE(Get("one", "a", &info).ok());
  EXPECT_EQ(info.state(), v1::MATRIX_STATE_FAILED);
  EXPECT_THAT(info.detail(), HasSubstr("quota preparations"));
  grpc::ClientContext context;
  Show(context, "one");
  v1::PrepareRequest request;
  request.set_name("a");
  v1::PrepareReply reply;
  const grpc::Status refused = server().catalog().Prepare(&context, request, &reply);
  EXPECT_EQ(refused.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
}

TEST_F(TenantsTest, RegionsAndConnectionsOfTheLocalSocketCount) {
  Start(fmt::format("peers:\n  - {{user: \"{}\", tenant: one}}\n"
                    "tenants:\n  one: {{quotas: {{regions: 1, connections: 1}}}}\n",
                    geteuid()),
        WithLocal);
  const File file(4096);
  const auto share = [&file](Peer& peer) { return peer.Share({file.fd()}); };
  auto peer = std::make_unique<Peer>(server());
  ASSERT_TRUE(peer->Receive().has_value());  // its greeting
  const v1::LocalReply first = share(*peer);
  EXPECT_EQ(first.status().code(), kOk) << first.status().message();
  const v1::LocalReply second = share(*peer);
  EXPECT_EQ(second.status().code(), kExhausted);
  EXPECT_THAT(second.status().message(), HasSubstr("quota regions"));
  Peer other(server());
  ASSERT_TRUE(other.Receive().has_value());
  EXPECT_THAT(share(other).status().message(), HasSubstr("quota connections"));
  peer.reset();
  EXPECT_TRUE(Eventually([&] { return share(other).status().code() == 0; }));
}

TEST_F(TenantsTest, ASharedMatrixIsReadAndWrittenAsItsOwnerSays) {
  Start("");
  ASSERT_TRUE(Put("one", "a").ok());
  EXPECT_EQ(Share("looks", "a", "two").error_code(), Code::PERMISSION_DENIED);
  ASSERT_TRUE(Share("one", "a", "two").ok());
  v1::MatrixInfo info;
  ASSERT_TRUE(Get("two", "one~a", &info).ok());
  EXPECT_EQ(info.name(), "one~a");
  EXPECT_EQ(info.owner(), "one");
  EXPECT_THAT(info.shares(), IsEmpty()) << "told to the owner alone";
  ASSERT_TRUE(Get("one", "a", &info).ok());
  EXPECT_EQ(info.name(), "a");
  ASSERT_EQ(info.shares_size(), 1);
  EXPECT_EQ(info.shares(0).with(), "two");

  const auto list = [&](const std::string& token, bool shared) {
    grpc::ClientContext context;
    Show(context, token);
    v1::ListMatricesRequest request;
    request.set_shared(shared);
    v1::ListMatricesReply reply;
    EXPECT_TRUE(server().catalog().List(&context, request, &reply).ok());
    std::vector<std::string> names;
    for (const v1::MatrixInfo& matrix : reply.matrices()) names.push_back(matrix.name());
    return names;
  };
  EXPECT_THAT(list("two", true), testing::ElementsAre("one~a"));
  EXPECT_THAT(list("two", false), IsEmpty());
  EXPECT_THAT(list("one", true), IsEmpty());

  const auto product = [&] {
    grpc::ClientContext context;
    Show(context, "two");
    auto stream = server().compute().Spmm(&context);
    stream->Write(SpmmStartOf(1, "one~a", pattern_.cols, 4));
    const std::vector<float> b = FloatValues(pattern_.cols * 4, 2);
    WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(b));
    std::map<uint64_t, Answer> answers;
    ReadUntilEnds(*stream, 1, &answers);
    stream->WritesDone();
    return answers[1].code();
  };
  const auto update = [&] {
    grpc::ClientContext context;
    Show(context, "two");
    v1::UpdateValuesReply reply;
    auto writer = server().catalog().UpdateValues(&context, &reply);
    v1::UpdateValuesRequest request;
    request.mutable_header()->set_name("one~a");
    request.mutable_header()->set_type(v1::ELEMENT_TYPE_F32);
    writer->Write(request);
    WriteArray<v1::UpdateValuesRequest>(*writer, 0, 0, BytesOf(FloatValues(pattern_.nnz(), 3)));
    writer->WritesDone();
    return writer->Finish().error_code();
  };
  EXPECT_EQ(product(), 0);
  EXPECT_EQ(update(), Code::PERMISSION_DENIED);
  ASSERT_TRUE(Share("one", "a", "*", /*write=*/true).ok());
  EXPECT_EQ(update(), Code::OK);
  ASSERT_TRUE(Get("one", "a", &info).ok());
  EXPECT_EQ(info.version(), 2);

  // Who watches it does so no more once it is not his to see.
  grpc::ClientContext context;
  Show(context, "two");
  v1::WatchRequest request;
  request.set_name("one~a");
  request.set_follow(true);
  auto watch = server().catalog().Watch(&context, request);
  v1::WatchReply reply;
  ASSERT_TRUE(watch->Read(&reply));
  ASSERT_TRUE(Share("one", "a", "*", false, /*revoke=*/true).ok());
  EXPECT_EQ(product(), 0) << "the other share is there";
  ASSERT_TRUE(Share("one", "a", "two", false, /*revoke=*/true).ok());
  while (watch->Read(&reply)) {
  }
  EXPECT_EQ(watch->Finish().error_code(), Code::NOT_FOUND);
  EXPECT_EQ(product(), static_cast<int>(Code::NOT_FOUND));
  EXPECT_EQ(update(), Code::NOT_FOUND);
  EXPECT_EQ(Share("one", "a", "two", false, true).error_code(), Code::NOT_FOUND);
}

TEST_F(TenantsTest, WhereTheTimeOfRequestsGoesIsToldToTheOwnerAlone) {
  Start("", [](server::Config& config) { config.preparation_workers = 1; });
  ASSERT_TRUE(Put("one", "s").ok());
  ASSERT_NO_FATAL_FAILURE(PrepareAndMultiply("one", "s"));
  ASSERT_TRUE(server().engine().catalog().Share("one", "s", {"two", engine::Right::kRead}).ok());
  const auto explained = [&](const std::string& token, const std::string& name) {
    grpc::ClientContext context;
    Show(context, token);
    v1::ExplainRequest request;
    request.set_name(name);
    v1::ExplainReply reply;
    const grpc::Status status = server().catalog().Explain(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  };
  // Its record ends after its answer.
  EXPECT_TRUE(Eventually([&] { return explained("one", "s").has_requests(); }));
  const v1::ExplainReply others = explained("two", "one~s");
  EXPECT_GT(others.operations_size(), 0);
  EXPECT_FALSE(others.has_requests());
}

TEST_F(TenantsTest, OperatorsListTheMatricesOfAllTenants) {
  Start("");
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(Put("one", name).ok());
    ASSERT_TRUE(Put("two", name).ok());
  }
  ASSERT_TRUE(Put("ops", "c").ok());
  v1::ListMatricesRequest request;
  request.set_all(true);
  v1::ListMatricesReply reply;
  const auto list = [&](const std::string& token) {
    grpc::ClientContext context;
    Show(context, token);
    reply.Clear();
    return server().catalog().List(&context, request, &reply);
  };
  const auto names = [&] {
    std::vector<std::string> all;
    for (const v1::MatrixInfo& matrix : reply.matrices()) all.push_back(matrix.name());
    return all;
  };
  EXPECT_EQ(list("one").error_code(), Code::PERMISSION_DENIED);
  ASSERT_TRUE(list("ops").ok());
  EXPECT_THAT(names(), testing::ElementsAre("one~a", "one~b", "ops~c", "two~a", "two~b"));
  EXPECT_EQ(reply.matrices(0).owner(), "one");
  request.set_prefix("two~");
  ASSERT_TRUE(list("ops").ok());
  EXPECT_THAT(names(), testing::ElementsAre("two~a", "two~b"));
  request.clear_prefix();
  request.set_page_size(3);
  ASSERT_TRUE(list("ops").ok());
  EXPECT_EQ(reply.next_page_token(), "ops~c");
  request.set_page_token(reply.next_page_token());
  ASSERT_TRUE(list("ops").ok());
  EXPECT_THAT(names(), testing::ElementsAre("two~a", "two~b"));
  EXPECT_EQ(reply.next_page_token(), "");
  request.set_shared(true);
  EXPECT_EQ(list("ops").error_code(), Code::INVALID_ARGUMENT);
}

TEST_F(TenantsTest, TheAuditLogHasWhoChangedWhatAndWhoWasRefused) {
  const std::string file = folder_ + "/audit.jsonl";
  Start("", [&](server::Config& config) {
    config.audit_log = file;
    WithPages(config);
  });
  const auto lines = [](const std::string& path) {
    std::vector<std::string> all;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  };
  ASSERT_TRUE(Put("one", "a").ok());
  ASSERT_TRUE(Get("one", "a").ok());  // changes nothing
  EXPECT_EQ(Put("one", "a").error_code(), Code::ALREADY_EXISTS);
  EXPECT_EQ(Share("looks", "a", "two").error_code(), Code::PERMISSION_DENIED);
  EXPECT_EQ(Share("nobody", "a", "two").error_code(), Code::UNAUTHENTICATED);
  ASSERT_TRUE(Eventually([&] { return lines(file).size() == 4; }));
  const std::vector<std::string> all = lines(file);
  EXPECT_THAT(all[0], AllOf(HasSubstr("\"tenant\":\"one\",\"caller\":\"token one\","
                                      "\"operation\":\"upload\",\"name\":\"a\",\"status\":\"OK\""),
                            HasSubstr("{\"time\":\"20"), HasSubstr("\"request_id\":\""),
                            testing::Not(HasSubstr("\"id\":"))));
  EXPECT_THAT(all[1], HasSubstr("\"status\":\"ALREADY_EXISTS\""));
  EXPECT_THAT(all[2], AllOf(HasSubstr("token looks"), HasSubstr("\"operation\":\"share\""),
                            HasSubstr("\"name\":\"a\""), HasSubstr("PERMISSION_DENIED")));
  EXPECT_THAT(all[3], AllOf(HasSubstr("\"tenant\":\"\""), HasSubstr("UNAUTHENTICATED"),
                            testing::Not(HasSubstr("\"name\":\"\""))));

  std::filesystem::rename(file, file + ".1");
  ASSERT_TRUE(Share("one", "a", "two").ok());
  EXPECT_TRUE(Eventually([&] { return lines(file).size() == 1; })) << "opened anew";
  EXPECT_EQ(lines(file + ".1").size(), 4);

  // A result that stays.
  grpc::ClientContext context;
  Show(context, "one");
  auto stream = server().compute().Spgemm(&context);
  v1::SpgemmRequest request;
  request.mutable_start()->set_request_id(7);
  request.mutable_start()->set_left("a");
  request.mutable_start()->set_right("a");
  request.mutable_start()->set_keep_as("kept");
  stream->Write(request);
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  ASSERT_TRUE(Eventually([&] { return lines(file).size() == 2; }));
  EXPECT_THAT(lines(file)[1],
              AllOf(HasSubstr("\"operation\":\"spgemm\",\"name\":\"a\",\"result\":\"kept\""),
                    testing::ContainsRegex("\"request_id\":\"[0-9a-f]+/7\"")));

  // Where a matrix of another name comes from.
  grpc::ClientContext copy_context;
  Show(copy_context, "one");
  v1::CopyMatrixRequest copy;
  copy.set_name("a");
  copy.set_new_name("again");
  v1::MatrixInfo info;
  ASSERT_TRUE(server().catalog().Copy(&copy_context, copy, &info).ok());
  ASSERT_TRUE(Eventually([&] { return lines(file).size() == 3; }));
  EXPECT_THAT(lines(file)[2],
              HasSubstr("\"operation\":\"copy\",\"name\":\"a\",\"result\":\"again\""));

  // To an operator it says NOT_FOUND, as to anybody, where another has what he may not delete.
  const auto remove = [&](const std::string& token, const std::string& name) {
    grpc::ClientContext call;
    Show(call, token);
    v1::DeleteMatrixRequest request;
    request.set_name(name);
    v1::DeleteMatrixReply reply;
    return server().catalog().Delete(&call, request, &reply).error_code();
  };
  for (const char* name : {"one~a", "one~none"}) EXPECT_EQ(remove("ops", name), Code::NOT_FOUND);
  ASSERT_TRUE(Eventually([&] { return lines(file).size() == 5; }));
  EXPECT_THAT(lines(file)[3],
              AllOf(HasSubstr("\"name\":\"one~a\",\"status\":\"PERMISSION_DENIED\""),
                    HasSubstr("matrix 'a' of tenant 'one' is not shared with tenant 'ops'")));
  EXPECT_THAT(lines(file)[4], HasSubstr("\"name\":\"one~none\",\"status\":\"NOT_FOUND\""));

  // A file that cannot be written is no reason to refuse anything.
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_TRUE(Put("one", "b").ok());
  EXPECT_TRUE(Eventually([&] {
    return server().Page("/metrics").find("sparsed_audit_entries_total{result=\"lost\"} 1") !=
           std::string::npos;
  }));
}

/// Every string of a message, also of those within it, one after the other.
void AppendStrings(const google::protobuf::Message& message, std::string& to) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->type() == FieldDescriptor::TYPE_STRING) {
        to += (field->is_repeated() ? reflection.GetRepeatedString(message, field, i)
                                    : reflection.GetString(message, field)) +
              '\n';
      } else if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
        AppendStrings(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                           : reflection.GetMessage(message, field),
                      to);
      } else if (field->name() == "code") {
        to += std::to_string(reflection.GetInt32(message, field)) + '\n';
      }
    }
  }
}

/// Fills every field: strings with `text`, of each oneof the `choice`th part, the rest with ones.
void Fill(google::protobuf::Message& message, const std::string& text, int choice, int depth = 0) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count() && depth < 6; ++i) {
    const FieldDescriptor* const field = type.field(i);
    const auto* const oneof = field->real_containing_oneof();
    if (oneof != nullptr && field->index_in_oneof() != choice % oneof->field_count()) continue;
    const bool many = field->is_repeated();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        if (field->type() == FieldDescriptor::TYPE_BYTES) break;
        many ? reflection.AddString(&message, field, text)
             : reflection.SetString(&message, field, text);
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (field->is_map()) break;
        Fill(many ? *reflection.AddMessage(&message, field)
                  : *reflection.MutableMessage(&message, field),
             text, choice, depth + 1);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        many ? reflection.AddInt64(&message, field, 1) : reflection.SetInt64(&message, field, 1);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        many ? reflection.AddUInt64(&message, field, 1) : reflection.SetUInt64(&message, field, 1);
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        many ? reflection.AddInt32(&message, field, 1) : reflection.SetInt32(&message, field, 1);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        many ? reflection.AddEnumValue(&message, field, 1)
             : reflection.SetEnumValue(&message, field, 1);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        // A matrix that is watched for ever says nothing more.
        if (!many && field->name() != "follow" && field->name() != "all") {
          reflection.SetBool(&message, field, choice % 2 == 0);
        }
        break;
      default:
        break;
    }
  }
}

/// All that a stranger is told who calls the method with the message: strings, codes, status.
std::string Transcript(grpc::Channel& channel, const google::protobuf::MethodDescriptor& method,
                       const google::protobuf::Message& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  Show(context, "two");
  const std::string path =
      "/" + std::string(method.service()->full_name()) + "/" + std::string(method.name());
  const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING);
  context.AddMetadata("x-request-id", "the-same-each-time");
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          &channel, rpc, &context));
  const grpc::Slice bytes(request.SerializeAsString());
  stream->Write(grpc::ByteBuffer(&bytes, 1));
  stream->WritesDone();
  std::string told;
  const std::unique_ptr<google::protobuf::Message> reply(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(method.output_type())
          ->New());
  for (grpc::ByteBuffer answer; stream->Read(&answer);) {
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(answer.Dump(&slices).ok());
    std::string whole;
    for (const grpc::Slice& slice : slices) {
      whole.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    EXPECT_TRUE(reply->ParseFromString(whole));
    AppendStrings(*reply, told);
  }
  const grpc::Status status = stream->Finish();
  EXPECT_NE(status.error_code(), Code::DEADLINE_EXCEEDED) << path;
  EXPECT_NE(status.error_code(), Code::INTERNAL) << path << ": " << status.error_message();
  return fmt::format("{}{}: {}", told, static_cast<int>(status.error_code()),
                     status.error_message());
}

std::string Replaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
  return text;
}

TEST_F(TenantsTest, AStrangerIsToldTheSameOfWhatIsThereAndWhatIsNot) {
  Start("");
  ASSERT_TRUE(Put("one", "secret").ok());
  {
    grpc::ClientContext context;
    Show(context, "one");
    ASSERT_TRUE(PutZeros(server().buffers(), context, "secret").ok());
  }
  v1::MatrixInfo before, after;
  ASSERT_TRUE(Get("one", "secret", &before).ok());
  constexpr int kChoices = 18;  // more than any oneof has parts
  int told = 0;
  for (const char* name : {"Catalog", "Compute", "Buffers", "Admin"}) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
        std::string("sparsed.v1.") + name);
    ASSERT_NE(service, nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *service->method(i);
      SCOPED_TRACE(method.full_name());
      for (int choice = 0; choice < kChoices; ++choice) {
        const auto told_of = [&](const std::string& text) {
          const std::unique_ptr<google::protobuf::Message> request(
              google::protobuf::MessageFactory::generated_factory()
                  ->GetPrototype(method.input_type())
                  ->New());
          Fill(*request, text, choice);
          std::string names;
          AppendStrings(*request, names);
          // One that names nothing asks for nothing; chunks without a request are waited with.
          if (names.empty()) return std::string();
          return Transcript(*server().channel(), method, *request);
        };
        for (const std::string prefix : {"", "one~"}) {
          const std::string foreign = told_of(prefix + "secret"),
                            missing = told_of(prefix + "nosuch");
          EXPECT_EQ(Replaced(foreign, "secret", "nosuch"), missing)
              << prefix << ", part " << choice;
          told += foreign.find("secret") != std::string::npos ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(told, 20) << "names came through";
  ASSERT_TRUE(Get("one", "secret", &after).ok());
  EXPECT_EQ(after.version(), before.version());
  EXPECT_EQ(after.created_unix_ns(), before.created_unix_ns());
  EXPECT_EQ(QuotaOf("one", "buffers").used(), 1);
}

}  // namespace
}  // namespace sparsed::test
