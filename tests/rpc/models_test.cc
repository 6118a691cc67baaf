// Admin's calls for models: put, listed, activated, rolled back, removed, and what is refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/planning/model.h"
#include "server/telemetry/metrics.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using engine::Model;
using testing::HasSubstr;
using testing::Not;

/// The model of tests/data/model under another name.
Model::Files TinyNamed(const std::string& name) {
  Model::Files files = *Model::ReadFiles(SPARSED_TEST_DATA "/model/tiny");
  nlohmann::json manifest = nlohmann::json::parse(files["manifest.json"]);
  manifest["name"] = name;
  files["manifest.json"] = manifest.dump();
  return files;
}

v1::PutModelRequest HeaderOf(const std::string& name, const Model::Files& files,
                             bool replace = false) {
  v1::PutModelRequest request;
  request.mutable_header()->set_name(name);
  request.mutable_header()->set_replace(replace);
  for (const auto& [file, contents] : files) {
    v1::ModelFile& message = *request.mutable_header()->add_files();
    message.set_name(file);
    message.set_bytes(contents.size());
  }
  return request;
}

class Models : public testing::Test {
 protected:
  Models() {
    std::string folder = testing::TempDir() + "rpc_models_XXXXXX";
    folder_ = mkdtemp(folder.data());
    Start();
  }
  ~Models() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  void SetUp() override {
    if (absl::IsUnimplemented(Model::FromFiles(TinyNamed("tiny")).status())) {
      GTEST_SKIP() << "libxgboost0 is not installed";
    }
  }
  void Start() {
    server_.reset();
    server_ = std::make_unique<TestServer>([this](server::Config& config) {
      WithPages(config);
      config.data_dir = folder_ + "/data";
      config.audit_log = folder_ + "/audit.jsonl";
    });
  }

  /// Writes the messages and closes.
  grpc::Status PutMessages(const std::vector<v1::PutModelRequest>& messages,
                           v1::ModelInfo* info = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    v1::ModelInfo reply;
    const auto writer = server_->admin().PutModel(&context, &reply);
    for (const v1::PutModelRequest& message : messages) {
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    if (info != nullptr) *info = reply;
    return status;
  }
  grpc::Status Put(const std::string& name, const Model::Files& files, bool replace = false,
                   v1::ModelInfo* info = nullptr) {
    std::vector<v1::PutModelRequest> messages = {HeaderOf(name, files, replace)};
    uint32_t file = 0;
    for (const auto& [file_name, contents] : files) {
      // In pieces, the last one first.
      const size_t half = contents.size() / 2;
      const std::string_view bytes = contents;
      messages.push_back(ChunkOf<v1::PutModelRequest>(0, file, half, bytes.substr(half)));
      messages.push_back(ChunkOf<v1::PutModelRequest>(0, file++, 0, bytes.substr(0, half)));
    }
    return PutMessages(messages, info);
  }
  grpc::Status Activate(const std::string& name, bool watch = false,
                        const std::string& device = "") {
    grpc::ClientContext context;
    v1::ActivateModelRequest request;
    request.set_name(name);
    request.set_watch(watch);
    request.set_device(device);
    v1::ActivateModelReply reply;
    grpc::Status status = server_->admin().ActivateModel(&context, request, &reply);
    EXPECT_EQ(reply.device(), status.ok() ? "cpu" : "");
    return status;
  }
  grpc::Status Rollback(std::string* chooses = nullptr, const std::string& device = "") {
    grpc::ClientContext context;
    v1::RollbackModelRequest request;
    request.set_device(device);
    v1::RollbackModelReply reply;
    grpc::Status status = server_->admin().RollbackModel(&context, request, &reply);
    if (chooses != nullptr) *chooses = reply.name();
    return status;
  }
  grpc::Status Remove(const std::string& name) {
    grpc::ClientContext context;
    v1::RemoveModelRequest request;
    request.set_name(name);
    v1::RemoveModelReply reply;
    return server_->admin().RemoveModel(&context, request, &reply);
  }
  v1::ListModelsReply List(const v1::ListModelsRequest& request = {}) {
    grpc::ClientContext context;
    v1::ListModelsReply reply;
    const grpc::Status status = server_->admin().ListModels(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

  std::string folder_;
  std::unique_ptr<TestServer> server_;
};

void ExpectRefused(const grpc::Status& status, grpc::StatusCode code, const std::string& sentence) {
  EXPECT_EQ(status.error_code(), code) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr(sentence));
}

TEST_F(Models, ArePutListedActivatedWatchedRolledBackAndRemoved) {
  EXPECT_EQ(List().models_size(), 0);
  EXPECT_THAT(server_->Page("/metrics"),
              HasSubstr("sparsed_model_info{device=\"cpu\",model=\"rules\",role=\"used\"} 1"));
  v1::ModelInfo info;
  grpc::Status status = Put("mine", TinyNamed("mine"), false, &info);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(info.name(), "mine");
  EXPECT_EQ(info.device(), "cpu");
  EXPECT_EQ(info.patterns(), 8);
  EXPECT_TRUE(info.own());
  EXPECT_TRUE(info.problem().empty());
  ASSERT_TRUE(Put("other", TinyNamed("other")).ok());
  ASSERT_TRUE(Activate("mine").ok());
  ASSERT_TRUE(Activate("other", /*watch=*/true).ok());
  Start();
  const v1::ListModelsReply list = List();
  ASSERT_EQ(list.models_size(), 2);
  EXPECT_TRUE(list.models(0).used());
  EXPECT_TRUE(list.models(1).watched());
  EXPECT_TRUE(list.models(0).manifest().empty());
  const std::string metrics = server_->Page("/metrics");
  EXPECT_THAT(metrics,
              HasSubstr("sparsed_model_info{device=\"cpu\",model=\"mine\",role=\"used\"} 1"));
  EXPECT_THAT(metrics,
              HasSubstr("sparsed_model_info{device=\"cpu\",model=\"other\",role=\"watched\"} 1"));
  v1::ListModelsRequest of_one;
  of_one.set_name("mine");
  ASSERT_EQ(List(of_one).models_size(), 1);
  EXPECT_EQ(List(of_one).models(0).manifest(), TinyNamed("mine")["manifest.json"]);
  ExpectRefused(Remove("mine"), grpc::StatusCode::FAILED_PRECONDITION, "model mine is used");
  std::string chooses;
  ASSERT_TRUE(Rollback(&chooses).ok());
  EXPECT_EQ(chooses, "rules");
  // The audit log says what it came to, which the request does not.
  EXPECT_TRUE(Eventually([&] {
    std::ifstream in(folder_ + "/audit.jsonl");
    const std::string lines(std::istreambuf_iterator<char>(in), {});
    return lines.find(R"("operation":"rollback_model","name":"rules")") != std::string::npos;
  }));
  ASSERT_TRUE(Remove("mine").ok());
  ASSERT_TRUE(Activate("none", /*watch=*/true, "cpu").ok());
  ASSERT_TRUE(Remove("other").ok());
  EXPECT_EQ(List().models_size(), 0);
}

/// Networks in the place of trees: what else a server does with a model is the same.
TEST_F(Models, NetworksAreModelsLikeOthers) {
  const Model::Files files = *Model::ReadFiles(SPARSED_TEST_DATA "/model/network");
  v1::ModelInfo info;
  const grpc::Status put = Put("network", files, false, &info);
  ASSERT_TRUE(put.ok()) << put.error_message();
  EXPECT_TRUE(info.problem().empty()) << info.problem();
  EXPECT_NEAR(info.held_out_share(), 0.5, 1e-6);
  ASSERT_TRUE(Put("trees", TinyNamed("trees")).ok());
  ASSERT_TRUE(Activate("trees").ok());
  ASSERT_TRUE(Activate("network", /*watch=*/true).ok());
  ASSERT_TRUE(Activate("network").ok());
  Start();
  v1::ListModelsRequest of_one;
  of_one.set_name("network");
  ASSERT_EQ(List(of_one).models_size(), 1);
  EXPECT_TRUE(List(of_one).models(0).used());
  std::string chooses;
  ASSERT_TRUE(Rollback(&chooses).ok());
  EXPECT_EQ(chooses, "trees");
  Model::Files damaged = files;
  damaged["spgemm.network"].back() ^= 1;
  ExpectRefused(Put("network", damaged, true), grpc::StatusCode::INVALID_ARGUMENT,
                "spgemm.network is damaged");
  // One whose checksums fit is no network either.
  damaged = files;
  nlohmann::json manifest = nlohmann::json::parse(damaged["manifest.json"]);
  manifest["groups"][0]["file"] = "sddmm.network";
  damaged["manifest.json"] = manifest.dump();
  ExpectRefused(Put("network", damaged, true), grpc::StatusCode::INVALID_ARGUMENT,
                "2 outputs, where 3 are said");
}

TEST_F(Models, AListComesInPages) {
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(Put(name, TinyNamed(name)).ok());
  v1::ListModelsRequest request;
  request.set_page_size(2);
  const v1::ListModelsReply first = List(request);
  ASSERT_EQ(first.models_size(), 2);
  EXPECT_EQ(first.next_page_token(), "b");
  request.set_page_token("b");
  const v1::ListModelsReply second = List(request);
  ASSERT_EQ(second.models_size(), 1);
  EXPECT_EQ(second.models(0).name(), "c");
  EXPECT_TRUE(second.next_page_token().empty());
}

TEST(ModelMetrics, ChoicesAreCountedByModelAndRole) {
  server::Metrics metrics;
  metrics.OnModelChoice("h100", "used", 1);
  metrics.OnModelChoice("mine", "watched", 0.72);
  metrics.OnModelChoice("mine", "watched", 0.99);
  const std::string text = prometheus::TextSerializer().Serialize(metrics.Collect());
  const std::string mine = "{model=\"mine\",role=\"watched\"";
  EXPECT_THAT(text, HasSubstr("sparsed_model_choices_total{model=\"h100\",role=\"used\"} 1"));
  EXPECT_THAT(text, HasSubstr("sparsed_model_choices_total" + mine + "} 2"));
  EXPECT_THAT(text, HasSubstr("sparsed_model_choice_share_count" + mine + "} 2"));
  EXPECT_THAT(text, HasSubstr("sparsed_model_choice_share_bucket" + mine + ",le=\"0.7\"} 0"));
  EXPECT_THAT(text, HasSubstr("sparsed_model_choice_share_bucket" + mine + ",le=\"0.8\"} 1"));
  metrics.OnModelRemoved("mine");
  const std::string after = prometheus::TextSerializer().Serialize(metrics.Collect());
  EXPECT_THAT(after, HasSubstr("sparsed_model_choices_total{model=\"h100\",role=\"used\"} 1"));
  EXPECT_THAT(after, Not(HasSubstr("model=\"mine\"")));
  metrics.OnModelRemoved("nobody");
  metrics.OnModelChoice("mine", "used", 0.5);  // one of that name was put again
  EXPECT_THAT(prometheus::TextSerializer().Serialize(metrics.Collect()),
              HasSubstr("sparsed_model_choices_total{model=\"mine\",role=\"used\"} 1"));
}

TEST_F(Models, WhatIsNoModelIsRefusedWithASentence) {
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  const Model::Files files = TinyNamed("mine");
  const auto chunk = [](uint32_t file, uint64_t offset, const std::string& bytes) {
    return ChunkOf<v1::PutModelRequest>(0, file, offset, bytes);
  };
  ExpectRefused(PutMessages({}), kInvalid, "the put has no header");
  ExpectRefused(PutMessages({v1::PutModelRequest()}), kInvalid, "neither header nor chunk");
  ExpectRefused(PutMessages({chunk(0, 0, "x")}), kInvalid, "before the put's header");
  const v1::PutModelRequest header = HeaderOf("mine", files);
  ExpectRefused(PutMessages({header, header}), kInvalid, "two headers");
  ExpectRefused(PutMessages({header}), kInvalid, "is not whole: 0 of its");
  ExpectRefused(PutMessages({header, chunk(99, 0, "x")}), kInvalid, "the header names 6 files");
  ExpectRefused(PutMessages({header, chunk(0, 0, "x"), chunk(0, 0, "x")}), kInvalid,
                "or came already");
  ExpectRefused(PutMessages({header, chunk(0, uint64_t{1} << 60, "x")}), kInvalid,
                "is outside of it");
  ExpectRefused(PutMessages({HeaderOf("mine", {{"manifest.json", ""}})}), kInvalid, "no JSON");
  ExpectRefused(PutMessages({HeaderOf("mine", {{"a.ubj", ""}})}), kInvalid, "no manifest.json");
  v1::PutModelRequest large = header;
  large.mutable_header()->mutable_files(0)->set_bytes(~uint64_t{0});
  ExpectRefused(PutMessages({large}), kInvalid, "at most are taken");
  v1::PutModelRequest twice = header;
  *twice.mutable_header()->add_files() = header.header().files(0);
  ExpectRefused(PutMessages({twice}), kInvalid, "is there twice");
  v1::PutModelRequest elsewhere = header;
  elsewhere.mutable_header()->mutable_files(0)->set_name("../a");
  ExpectRefused(PutMessages({elsewhere}), kInvalid, "no name for a file");
  ExpectRefused(Put("other", files), kInvalid, "is named mine in its manifest, not other");
  Model::Files damaged = files;
  damaged["spmm.ubj"][50] ^= 1;
  ExpectRefused(Put("mine", damaged), kInvalid, "spmm.ubj is damaged");
  EXPECT_EQ(List().models_size(), 0);
  ASSERT_TRUE(Put("mine", files).ok());
  ExpectRefused(Put("mine", files), grpc::StatusCode::ALREADY_EXISTS, "a model named mine");
  EXPECT_TRUE(Put("mine", files, /*replace=*/true).ok());
}

TEST_F(Models, WhatIsNotThereOrCannotServeIsRefused) {
  constexpr auto kNotFound = grpc::StatusCode::NOT_FOUND;
  ExpectRefused(Activate("nobody"), kNotFound, "there is no model named 'nobody'");
  ExpectRefused(Activate(""), kNotFound, "there is no model named ''");
  ExpectRefused(Remove("nobody"), kNotFound, "there is no model named 'nobody'");
  ExpectRefused(Activate("rules", false, "tpu"), grpc::StatusCode::INVALID_ARGUMENT,
                "device is \"tpu\", expected cpu or cuda");
  ExpectRefused(Activate("rules", false, "cuda"), grpc::StatusCode::FAILED_PRECONDITION,
                "no device of kind cuda serves here");
  ExpectRefused(Rollback(nullptr, "x"), grpc::StatusCode::INVALID_ARGUMENT, "device is \"x\"");
  ExpectRefused(Rollback(), grpc::StatusCode::FAILED_PRECONDITION, "nothing was used for cpu");
  grpc::ClientContext context;
  v1::ListModelsRequest request;
  request.set_name("nobody");
  v1::ListModelsReply reply;
  ExpectRefused(server_->admin().ListModels(&context, request, &reply), kNotFound, "nobody");
}

TEST_F(Models, AClientThatVanishesLeavesNothingBehind) {
  const Model::Files files = TinyNamed("mine");
  const int64_t before = server_->engine().budget().used();
  {
    grpc::ClientContext context;
    v1::ModelInfo reply;
    const auto writer = server_->admin().PutModel(&context, &reply);
    ASSERT_TRUE(writer->Write(HeaderOf("mine", files)));
    ASSERT_TRUE(writer->Write(ChunkOf<v1::PutModelRequest>(0, 0, 0, "x")));
    context.TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(server_->ComesBackTo(before));
  EXPECT_EQ(List().models_size(), 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/data/models"));
}

}  // namespace
}  // namespace sparsed::test
