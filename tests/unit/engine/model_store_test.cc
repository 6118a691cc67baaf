// The models that a server has: found, kept, activated, rolled back, and what is refused.
#include "engine/planning/model_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace sparsed::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kTiny[] = SPARSED_TEST_DATA "/model/tiny";

/// The tiny model's files with another name, and whatever `change` makes of the manifest.
Model::Files TinyNamed(
    const std::string& name,
    const std::function<void(nlohmann::json&)>& change = [](nlohmann::json&) {}) {
  Model::Files files = *Model::ReadFiles(kTiny);
  nlohmann::json manifest = nlohmann::json::parse(files["manifest.json"]);
  manifest["name"] = name;
  change(manifest);
  files["manifest.json"] = manifest.dump();
  return files;
}

void WriteTo(const std::string& directory, const Model::Files& files) {
  std::filesystem::create_directories(directory);
  for (const auto& [name, contents] : files) {
    std::ofstream(directory + "/" + name, std::ios::binary) << contents;
  }
}

bool HasLibrary() { return !absl::IsUnimplemented(Model::FromFiles(TinyNamed("tiny")).status()); }

class ModelStoreTest : public testing::Test {
 protected:
  ModelStoreTest() {
    std::string folder = testing::TempDir() + "model_store_XXXXXX";
    folder_ = mkdtemp(folder.data());
    options_.installed = folder_ + "/installed";
    options_.own = folder_ + "/own";
    options_.devices = {{DeviceKind::kCpu, "a CPU"}};
    std::filesystem::create_directories(options_.installed);
  }
  ~ModelStoreTest() override { std::filesystem::remove_all(folder_); }
  void SetUp() override {
    if (!HasLibrary()) GTEST_SKIP() << "libxgboost0 is not installed";
  }

  /// As after a restart.
  ModelStore& Open() {
    said_.clear();
    selector_ = std::make_unique<Selector>();
    store_ = std::make_unique<ModelStore>(
        PosixFileSystem(), options_, *selector_,
        [this](const std::string& sentence) { said_.push_back(sentence); });
    return *store_;
  }
  void Install(
      const std::string& name,
      const std::function<void(nlohmann::json&)>& change = [](nlohmann::json&) {}) {
    WriteTo(options_.installed + "/" + name, TinyNamed(name, change));
  }
  std::string Used(DeviceKind kind = DeviceKind::kCpu) const {
    const auto model = selector_->used(kind);
    return model == nullptr ? "rules" : model->name();
  }
  std::string Watched() const {
    const auto model = selector_->watched(DeviceKind::kCpu);
    return model == nullptr ? "none" : model->name();
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const ModelFacts& facts : store_->List()) names.push_back(facts.name);
    return names;
  }

  std::string folder_;
  ModelStoreOptions options_;
  std::unique_ptr<Selector> selector_;
  std::unique_ptr<ModelStore> store_;
  std::vector<std::string> said_;
};

std::function<void(nlohmann::json&)> TrainedOn(const std::string& model) {
  return [model](nlohmann::json& manifest) { manifest["device"]["model"] = model; };
}

TEST_F(ModelStoreTest, WithoutModelsRulesChooseAndNothingIsSaid) {
  Open();
  EXPECT_EQ(Used(), "rules");
  EXPECT_THAT(said_, IsEmpty());
  options_.installed = folder_ + "/nowhere";
  Open();
  EXPECT_THAT(said_, IsEmpty());
  options_.installed = options_.own = "";
  EXPECT_THAT(Open().List(), IsEmpty());
}

TEST_F(ModelStoreTest, TheInstalledModelOfTheDeviceServesElseAnyOfItsKind) {
  Install("a", TrainedOn("another CPU"));
  Install("b", TrainedOn("a CPU"));
  Install("c", TrainedOn("a third CPU"));
  Open();
  EXPECT_EQ(Used(), "b");
  options_.devices = {{DeviceKind::kCpu, "of no model"}};
  Open();
  EXPECT_EQ(Used(), "a");
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(ModelStoreTest, AModelForAvx512ServesNoOtherCpu) {
  Install("cpu-avx512");
  Open();
  EXPECT_EQ(Used(), "rules");
  EXPECT_THAT(said_, IsEmpty());
  options_.devices.front().avx512 = true;
  Open();
  EXPECT_EQ(Used(), "cpu-avx512");
}

TEST_F(ModelStoreTest, TheHeldOutShareIsTheMeanOfTheGroups) {
  Install("a", [](nlohmann::json& manifest) {
    manifest["held_out"] = {{"spmm", {{"all", {{"first", 0.9}}}, {"f32 K=32", {{"first", 0.1}}}}},
                            {"sddmm", {{"all", {{"first", 0.4}}}}}};
  });
  EXPECT_NEAR(Open().List()[0].held_out_share, 0.6, 1e-9);
  Install("a", [](nlohmann::json& manifest) { manifest["held_out"] = nlohmann::json::object(); });
  EXPECT_EQ(Open().List()[0].held_out_share, 0);
}

TEST_F(ModelStoreTest, AModelForGpusServesNoCpu) {
  Install("gpu", [](nlohmann::json& manifest) {
    manifest["device"]["kind"] = "cuda";
    manifest["groups"] = nlohmann::json::array();
  });
  Open();
  EXPECT_EQ(Used(), "rules");
  options_.devices.push_back({DeviceKind::kCuda, "a card"});
  ModelStore& store = Open();
  EXPECT_EQ(Used(), "rules");
  EXPECT_EQ(Used(DeviceKind::kCuda), "gpu");
  EXPECT_THAT(said_, IsEmpty());
  // Of two kinds it has to be said for which.
  const auto which = store.Activate("rules", std::nullopt, ModelRole::kUsed);
  EXPECT_TRUE(absl::IsInvalidArgument(which.status()));
  EXPECT_THAT(which.status().message(), HasSubstr("cpu or cuda"));
  EXPECT_TRUE(absl::IsInvalidArgument(store.Rollback(std::nullopt).status()));
  const auto other = store.Activate("gpu", DeviceKind::kCpu, ModelRole::kUsed);
  EXPECT_TRUE(absl::IsInvalidArgument(other.status()));
  EXPECT_THAT(other.status().message(), HasSubstr("model gpu is for cuda, not for cpu"));
  ASSERT_TRUE(store.Activate("rules", DeviceKind::kCuda, ModelRole::kUsed).ok());
  EXPECT_EQ(Used(DeviceKind::kCuda), "rules");
  EXPECT_EQ(*store.Rollback(DeviceKind::kCuda), "gpu");
  // Where no card serves, it cannot be activated.
  options_.devices.pop_back();
  const auto none = Open().Activate("gpu", std::nullopt, ModelRole::kUsed);
  EXPECT_TRUE(absl::IsFailedPrecondition(none.status()));
  EXPECT_THAT(none.status().message(), HasSubstr("no device of kind cuda serves here"));
}

TEST_F(ModelStoreTest, WhatCannotBeUsedIsSaidOnceAndRulesChoose) {
  Install("damaged");
  std::ofstream(options_.installed + "/damaged/spmm.ubj") << "no trees";
  ModelStore& store = Open();
  EXPECT_EQ(Used(), "rules");
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_THAT(said_[0], HasSubstr("for cpu the rules choose: model damaged cannot be used: "
                                  "its file spmm.ubj is damaged"));
  ASSERT_EQ(store.List().size(), 1u);
  EXPECT_THAT(store.List()[0].problem, HasSubstr("is damaged"));
  EXPECT_EQ(store.List()[0].device, "cpu");
  const auto activated = store.Activate("damaged", std::nullopt, ModelRole::kUsed);
  EXPECT_TRUE(absl::IsFailedPrecondition(activated.status())) << activated.status();

  Install("damaged", [](nlohmann::json& manifest) { manifest["kernels"] = 1; });
  Open();
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_THAT(said_[0], HasSubstr("it was trained for version 1 of the kernels"));
  EXPECT_EQ(Used(), "rules");

  std::filesystem::remove(options_.installed + "/damaged/spmm.ubj");
  Open();
  EXPECT_THAT(said_, ElementsAre(HasSubstr("/damaged/spmm.ubj cannot be read")));
  std::ofstream(options_.installed + "/damaged/manifest.json") << "{";
  Open();
  EXPECT_THAT(said_, ElementsAre(HasSubstr("model damaged cannot be used: ")));
  std::filesystem::remove(options_.installed + "/damaged/manifest.json");
  Open();
  EXPECT_THAT(said_, ElementsAre(HasSubstr("/damaged/manifest.json cannot be read")));
  Install("damaged", [](nlohmann::json& manifest) { manifest["held_out"] = "?"; });
  Open();
  EXPECT_EQ(Used(), "damaged") << "what is for people is not needed";

  // Another one serves in its place.
  Install("damaged", [](nlohmann::json& manifest) { manifest["kernels"] = 1; });
  Install("whole");
  Open();
  EXPECT_EQ(Used(), "whole");
  EXPECT_THAT(said_, IsEmpty());
}

/// A folder whose files can be read no more once they are gone: a start that read them would know.
TEST_F(ModelStoreTest, AStartReadsNoMoreThanManifestsOfWhatItDoesNotUse) {
  Install("a", TrainedOn("a CPU"));
  Install("b", TrainedOn("another CPU"));
  Install("gpu", [](nlohmann::json& manifest) {
    manifest["device"]["kind"] = "cuda";
    manifest["groups"] = nlohmann::json::array();
  });
  ModelStore& store = Open();
  EXPECT_EQ(Used(), "a");
  EXPECT_THAT(said_, IsEmpty());
  // What becomes of the others' files before somebody asks is what they say then, ...
  std::ofstream(options_.installed + "/b/spmm.ubj") << "no trees";
  EXPECT_THAT(store.Find("b")->problem, HasSubstr("spmm.ubj is damaged"));
  EXPECT_EQ(store.Find("b")->device_model, "another CPU");
  // ... and it was read then: later ones are not looked at.
  std::filesystem::remove_all(options_.installed + "/a");
  std::filesystem::remove_all(options_.installed + "/b");
  std::filesystem::remove_all(options_.installed + "/gpu");
  EXPECT_EQ(store.Find("a")->problem, "");
  EXPECT_THAT(store.Find("b")->problem, HasSubstr("spmm.ubj is damaged"));
  const std::vector<ModelFacts> list = store.List();
  ASSERT_EQ(list.size(), 3u);
  EXPECT_THAT(list[2].problem, HasSubstr("/gpu/manifest.json cannot be read"));
  EXPECT_TRUE(list[0].used);
}

TEST_F(ModelStoreTest, WhatIsPutIsThereAfterARestartAndChoosesOnceActivated) {
  Install("installed");
  ModelStore& store = Open();
  const auto put = store.Put("mine", TinyNamed("mine"), /*replace=*/false);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_TRUE(put->own);
  EXPECT_EQ(put->patterns, 8);
  EXPECT_FALSE(put->used);
  EXPECT_EQ(Used(), "installed");
  EXPECT_EQ(*store.Activate("mine", std::nullopt, ModelRole::kWatched), DeviceKind::kCpu);
  EXPECT_EQ(Watched(), "mine");
  Open();
  EXPECT_THAT(Names(), ElementsAre("installed", "mine"));
  EXPECT_EQ(Used(), "installed");
  EXPECT_EQ(Watched(), "mine");
  ASSERT_TRUE(store_->Activate("mine", std::nullopt, ModelRole::kUsed).ok());
  EXPECT_EQ(Watched(), "none") << "it is used now";
  EXPECT_TRUE(store_->Find("mine")->used);
  EXPECT_FALSE(store_->Find("installed")->used);
  Open();
  EXPECT_EQ(Used(), "mine");
  EXPECT_EQ(Watched(), "none");
  EXPECT_THAT(said_, IsEmpty());
  const auto watched = store_->Activate("mine", std::nullopt, ModelRole::kWatched);
  EXPECT_TRUE(absl::IsFailedPrecondition(watched.status()));
  ASSERT_TRUE(store_->Activate("installed", std::nullopt, ModelRole::kWatched).ok());
  ASSERT_TRUE(store_->Activate("none", std::nullopt, ModelRole::kWatched).ok());
  EXPECT_EQ(Watched(), "none");
}

TEST_F(ModelStoreTest, RollbackGoesBackStepByStepAlsoAfterARestart) {
  Install("installed");
  ModelStore& store = Open();
  EXPECT_TRUE(absl::IsFailedPrecondition(store.Rollback(std::nullopt).status()));
  ASSERT_TRUE(store.Put("mine", TinyNamed("mine"), false).ok());
  ASSERT_TRUE(store.Activate("mine", std::nullopt, ModelRole::kUsed).ok());
  ASSERT_TRUE(store.Activate("mine", std::nullopt, ModelRole::kUsed).ok());  // no step
  ASSERT_TRUE(store.Activate("rules", std::nullopt, ModelRole::kUsed).ok());
  EXPECT_EQ(Used(), "rules");
  Open();
  EXPECT_EQ(Used(), "rules") << "although there is a model that fits";
  EXPECT_EQ(*store_->Rollback(std::nullopt), "mine");
  EXPECT_EQ(Used(), "mine");
  Open();
  EXPECT_EQ(*store_->Rollback(std::nullopt), "installed");
  EXPECT_EQ(Used(), "installed");
  const auto end = store_->Rollback(std::nullopt);
  EXPECT_TRUE(absl::IsFailedPrecondition(end.status()));
  EXPECT_THAT(end.status().message(), HasSubstr("nothing was used for cpu before"));
  EXPECT_EQ(Used(), "installed");
}

TEST_F(ModelStoreTest, OnlyOnesOwnAreRemovedAndNoneThatIsUsed) {
  Install("installed");
  ModelStore& store = Open();
  ASSERT_TRUE(store.Put("mine", TinyNamed("mine"), false).ok());
  ASSERT_TRUE(store.Activate("mine", std::nullopt, ModelRole::kUsed).ok());
  EXPECT_THAT(store.Remove("mine").message(), HasSubstr("model mine is used"));
  ASSERT_TRUE(store.Activate("installed", std::nullopt, ModelRole::kUsed).ok());
  ASSERT_TRUE(store.Activate("mine", std::nullopt, ModelRole::kWatched).ok());
  EXPECT_THAT(store.Remove("mine").message(), HasSubstr("model mine is watched"));
  ASSERT_TRUE(store.Activate("none", std::nullopt, ModelRole::kWatched).ok());
  ASSERT_TRUE(store.Remove("mine").ok());
  EXPECT_FALSE(std::filesystem::exists(options_.own + "/mine"));
  EXPECT_TRUE(absl::IsNotFound(store.Remove("mine")));
  EXPECT_TRUE(absl::IsFailedPrecondition(store.Remove("installed")));
  // Nor does a rollback lead to what is gone.
  EXPECT_EQ(*store.Rollback(std::nullopt), "installed");
  Open();
  EXPECT_THAT(Names(), ElementsAre("installed"));
  EXPECT_EQ(Used(), "installed");
}

TEST_F(ModelStoreTest, WhatIsReplacedWhileItIsUsedIsUsedAtOnce) {
  ModelStore& store = Open();
  ASSERT_TRUE(store.Put("mine", TinyNamed("mine"), false).ok());
  ASSERT_TRUE(store.Activate("mine", std::nullopt, ModelRole::kUsed).ok());
  const auto newer = [](nlohmann::json& manifest) { manifest["created"] = "2027"; };
  const auto refused = store.Put("mine", TinyNamed("mine", newer), false);
  EXPECT_TRUE(absl::IsAlreadyExists(refused.status()));
  ASSERT_TRUE(store.Put("mine", TinyNamed("mine", newer), true).ok());
  EXPECT_EQ(selector_->used(DeviceKind::kCpu)->created(), "2027");
  const auto gpus = store.Put("mine",
                              TinyNamed("mine",
                                        [](nlohmann::json& manifest) {
                                          manifest["device"]["kind"] = "cuda";
                                          manifest["groups"] = nlohmann::json::array();
                                        }),
                              true);
  EXPECT_TRUE(absl::IsFailedPrecondition(gpus.status()));
  EXPECT_THAT(gpus.status().message(), HasSubstr("is for cpu, this one for cuda"));
  Open();
  EXPECT_EQ(selector_->used(DeviceKind::kCpu)->created(), "2027");
  for (const auto& entry : std::filesystem::directory_iterator(options_.own)) {
    EXPECT_NE(entry.path().filename().string()[0], '.') << "left over";
  }
}

TEST_F(ModelStoreTest, WhatIsNoModelIsRefused) {
  Install("installed");
  ModelStore& store = Open();
  const auto put = [&](const std::string& name, const Model::Files& files) {
    return store.Put(name, files, false).status();
  };
  EXPECT_TRUE(absl::IsAlreadyExists(put("installed", TinyNamed("installed"))));
  EXPECT_TRUE(absl::IsInvalidArgument(put("other", TinyNamed("mine"))));
  for (const char* name : {"rules", "none", "active.json", "a/b", ".a", ""}) {
    EXPECT_TRUE(absl::IsInvalidArgument(put(name, TinyNamed(name)))) << name;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(put("mine", {})));
  Model::Files files = TinyNamed("mine");
  files["more.ubj"] = "x";
  EXPECT_THAT(put("mine", files).message(), HasSubstr("does not name: more.ubj"));
  files = TinyNamed("mine");
  files["../more.ubj"] = "x";
  EXPECT_THAT(put("mine", files).message(), HasSubstr("is no name for a file"));
  files = TinyNamed("mine");
  files["spmm.ubj"][100] ^= 1;
  EXPECT_THAT(put("mine", files).message(), HasSubstr("spmm.ubj is damaged"));
  files = TinyNamed("mine");
  files["manifest.json"].append(kMostManifestBytes, ' ');
  EXPECT_THAT(put("mine", files).message(), HasSubstr("manifest.json has"));
  files = TinyNamed("mine");
  files["spmm.ubj"].resize(kMostModelBytes);
  EXPECT_THAT(put("mine", files).message(), HasSubstr("at most are taken"));
  files = TinyNamed("mine");
  for (size_t i = 0; i < kMostModelFiles; ++i) files[std::to_string(i)] = "";
  EXPECT_THAT(put("mine", files).message(), HasSubstr("at most are taken"));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      put("mine", TinyNamed("mine", [](nlohmann::json& manifest) { manifest["format"] = 2; }))));
  EXPECT_THAT(Names(), ElementsAre("installed"));
  EXPECT_FALSE(std::filesystem::exists(options_.own));

  options_.own = "";
  const absl::Status nowhere = Open().Put("mine", TinyNamed("mine"), false).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(nowhere));
  EXPECT_THAT(nowhere.message(), HasSubstr("keeps no models of its own"));
  // What is installed can be chosen nevertheless, until the end.
  EXPECT_TRUE(store_->Activate("rules", std::nullopt, ModelRole::kUsed).ok());
  EXPECT_EQ(*store_->Rollback(std::nullopt), "installed");
}

TEST_F(ModelStoreTest, OnesOwnHidesAnInstalledOneOfItsNameUntilItIsRemoved) {
  ASSERT_TRUE(Open().Put("same", TinyNamed("same"), false).ok());
  // A package brings one of that name.
  Install("same", TrainedOn("another CPU"));
  ModelStore& store = Open();
  EXPECT_THAT(said_, ElementsAre(HasSubstr("model same of the data directory hides")));
  EXPECT_TRUE(store.Find("same")->own);
  EXPECT_EQ(Used(), "rules") << "nobody activated it";
  ASSERT_TRUE(store.Remove("same").ok());
  ASSERT_TRUE(store.Find("same").ok());
  EXPECT_FALSE(store.Find("same")->own);
  EXPECT_EQ(store.Find("same")->device_model, "another CPU");
  EXPECT_TRUE(store.Activate("same", std::nullopt, ModelRole::kUsed).ok());
}

TEST_F(ModelStoreTest, ThereIsAnEndToHowManyAreKept) {
  ModelStore& store = Open();
  for (size_t i = 0; i < kMostModels; ++i) {
    const std::string name = fmt::format("m{}", i);
    ASSERT_TRUE(store.Put(name, TinyNamed(name), false).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(store.Put("mine", TinyNamed("mine"), false).status()));
  EXPECT_TRUE(store.Put("m0", TinyNamed("m0"), true).ok());
}

TEST_F(ModelStoreTest, WhatWasActivatedAndIsGoneOrDamagedIsSaid) {
  ModelStore& store = Open();
  ASSERT_TRUE(store.Put("mine", TinyNamed("mine"), false).ok());
  ASSERT_TRUE(store.Activate("mine", std::nullopt, ModelRole::kUsed).ok());
  std::filesystem::rename(options_.own + "/mine", folder_ + "/away");
  Open();
  EXPECT_THAT(said_, ElementsAre(HasSubstr("there is no model named 'mine'")));
  EXPECT_EQ(Used(), "rules");
  std::filesystem::rename(folder_ + "/away", options_.own + "/mine");
  Open();
  EXPECT_EQ(Used(), "mine");
  std::ofstream(options_.own + "/active.json") << "{";
  Open();
  EXPECT_THAT(said_, ElementsAre(HasSubstr("active.json is damaged")));
  EXPECT_EQ(Used(), "rules");
}

TEST_F(ModelStoreTest, AChangeThatWasCutOffIsFinishedAtTheNextStart) {
  ASSERT_TRUE(Open().Put("mine", TinyNamed("mine"), false).ok());
  // Between the two renames of a replacement.
  std::filesystem::rename(options_.own + "/mine", options_.own + "/.old-mine");
  WriteTo(options_.own + "/.new-mine", TinyNamed("mine"));
  Open();
  EXPECT_THAT(Names(), ElementsAre("mine"));
  // After them.
  WriteTo(options_.own + "/.old-mine", TinyNamed("mine"));
  Open();
  EXPECT_THAT(Names(), ElementsAre("mine"));
  EXPECT_FALSE(std::filesystem::exists(options_.own + "/.old-mine"));
  EXPECT_FALSE(std::filesystem::exists(options_.own + "/.new-mine"));
}

}  // namespace
}  // namespace sparsed::engine
