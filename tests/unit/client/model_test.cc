// sparsectl model: from nothing to a model that is used, and every refusal.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/unit/client/client_testing.h"
#include "tests/unit/client/said.h"

namespace sparsed::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class ModelCommand : public SparsectlTest {
 protected:
  ModelCommand() { Start({"--data-dir=" + folder_ + "/data"}); }
  void Start(const std::vector<std::string>& flags) {
    server_.reset();
    server_ = std::make_unique<ServerProcess>(flags);
    Connect(*server_);
    Use(*server_);
  }
  /// Copies the model of tests/data/model to a directory of the working one.
  void Copy(const std::string& name) const {
    const std::string directory = folder_ + "/" + name;
    std::filesystem::copy(SPARSED_TEST_DATA "/model/tiny", directory);
    std::stringstream text;
    text << std::ifstream(directory + "/manifest.json").rdbuf();
    std::string manifest = text.str();
    const std::string was = "\"name\": \"tiny\"";
    manifest.replace(manifest.find(was), was.size(), "\"name\": \"" + name + "\"");
    std::ofstream(directory + "/manifest.json") << manifest;
  }
  /// False, and the test skipped, where the server has no library for models.
  bool PutsModels() {
    Copy("tiny");
    const Said said = Run("model put tiny");
    return said.text.find("libxgboost") == std::string::npos;
  }
  void MakeTrainer(const std::string& name, const std::string& script) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << script;
    chmod(path.c_str(), 0755);
  }

  std::unique_ptr<ServerProcess> server_;
};

TEST_F(ModelCommand, FromNothingToAModelThatIsUsed) {
  ExpectSays("model list --sort=name", 0, "rules  cpu     used");
  ExpectSays("-o json model list", 0, R"("name":"rules")");
  if (!PutsModels()) GTEST_SKIP() << "libxgboost0 is not installed";
  ExpectSays("model list", 0, "tiny   cpu");
  ExpectSays("model show tiny", 0, "cpu, trained on a CPU of tests");
  ExpectSays("model show tiny", 0, "8 patterns of 2 families, 96 measurements");
  ExpectSays("model show tiny", 0, "spmm^T");
  ExpectSays("-o json model show tiny", 0, R"("manifest":{)");
  ExpectSays("model watch tiny", 0, "watched   tiny, on cpu: sparsed_model_choice_share");
  ExpectSays("model list", 0, "watched");
  ExpectSays("model activate tiny", 0, "chooses   tiny, on cpu");
  ExpectSays("model activate tiny", 0, "it learned from 8 patterns, which is little");
  EXPECT_THAT(Run("model list").text, Not(HasSubstr("rules")));
  ExpectSays("-o json model list", 0, R"("used":true,"watched":false)");
  Copy("other");
  const std::string put_other = Run("model put other").text;
  EXPECT_THAT(put_other, HasSubstr("sparsectl model watch other"));
  EXPECT_THAT(put_other, HasSubstr("it learned from 8 patterns, which is little"));
  ExpectSays("model activate other --device=cpu", 0, "chooses   other, on cpu");
  Start({"--data-dir=" + folder_ + "/data"});
  ExpectSays("-o json model show other", 0, R"("used":true)");
  ExpectSays("model rollback", 0, "chooses   tiny, again");
  ExpectSays("model activate rules", 0, "chooses   rules, on cpu");
  ExpectSays("model rollback --device=cpu", 0, "chooses   tiny, again");
  ExpectSays("model rollback", 0, "chooses   rules, again");
  ExpectSays("model watch other", 0, "watched   other, on cpu");
  ExpectSays("model watch none", 0, "watched   none, on cpu");
  ExpectSays("model remove other", 0, "removed other");
  ExpectSays("model put tiny --replace", 0, "put       tiny");
  ExpectSays("model list --sort=name", 0, "tiny");
}

TEST_F(ModelCommand, WhatIsRefusedSaysWhy) {
  if (!PutsModels()) GTEST_SKIP() << "libxgboost0 is not installed";
  ExpectSays("model", 2, "model lacks its COMMAND");
  ExpectSays("model put", 2, "DIR is missing");
  ExpectSays("model put nowhere", 3, "nowhere/manifest.json: No such file");
  ExpectSays("model put tiny", 6, "there is a model named tiny already");
  std::filesystem::create_directory(folder_ + "/bad");
  const auto manifest = [&](const std::string& text) {
    std::ofstream(folder_ + "/bad/manifest.json") << text;
  };
  manifest("{");
  ExpectSays("model put bad", 3, "is no object of JSON");
  manifest("{}");
  ExpectSays("model put bad", 3, "has no name");
  manifest(R"({"name": "bad"})");
  ExpectSays("model put bad", 3, "names no files");
  manifest(R"({"name": "bad", "files": {"../tiny/spmm.ubj": ""}})");
  ExpectSays("model put bad", 3, "not beside it");
  manifest(R"({"name": "bad", "files": {"gone.ubj": ""}})");
  ExpectSays("model put bad", 3, "bad/gone.ubj: No such file");
  manifest(R"({"name": "bad", "files": {}})");
  ExpectSays("model put bad", 3, "manifest.json: ");
  Copy("damaged");
  std::ofstream(folder_ + "/damaged/spmm.ubj") << "x";
  ExpectSays("model put damaged", 3, "its file spmm.ubj is damaged");
  ExpectSays("model show tin", 4, "there is no model named 'tin'; did you mean 'tiny'?");
  ExpectSays("model activate nobody", 4, "there is no model named 'nobody'");
  ExpectSays("model watch nobody", 4, "there is no model named 'nobody'");
  ExpectSays("model remove nobody", 4, "there is no model named 'nobody'");
  ExpectSays("model activate tiny --device=tpu", 2, "--device");
  ExpectSays("model activate tiny --device=cuda", 6, "no device of kind cuda serves here");
  ExpectSays("model rollback", 6, "nothing was used for cpu before");
  ExpectSays("model activate tiny", 0, "chooses   tiny");
  ExpectSays("model watch tiny", 6, "model tiny is used");
  ExpectSays("model remove tiny", 6, "model tiny is used");
  for (const char* flags : {"--in-memory", "--models=off"}) {
    Start({flags});
    ExpectSays("model list", 0, "rules  cpu     used");
    ExpectSays("model put tiny", 6, "keeps no models of its own");
  }
}

TEST_F(ModelCommand, AFolderOfModelsTakesThePlaceOfTheInstalledOnes) {
  if (!PutsModels()) GTEST_SKIP() << "libxgboost0 is not installed";
  std::filesystem::create_directory(folder_ + "/models");
  std::filesystem::rename(folder_ + "/tiny", folder_ + "/models/tiny");
  Start({"--models=" + folder_ + "/models"});
  ExpectSays("-o json model list", 0, R"("own":false,"used":true)");
  ExpectSays("model remove tiny", 6, "is installed with the server");
  ExpectSays("model activate rules", 0, "chooses   rules, on cpu");
  ExpectSays("model rollback", 0, "chooses   tiny, again");
}

TEST_F(ModelCommand, TrainingExportsTrainsAndPuts) {
  if (!PutsModels()) GTEST_SKIP() << "libxgboost0 is not installed";
  ExpectSays("generate matrix 300x300 --row-nonzeros=5 --out=s.mtx", 0, "1500 nonzeros");
  ExpectSays("upload s.mtx --wait", 0, "s is ready");
  // Sees what it is given, and makes the model that it is to make.
  Copy("mine");
  MakeTrainer("trainer",
              "echo \"$@\" > words\n"
              "gzip -dc \"$3\" > measured\n"
              "out=${4#--out=}\n"
              "echo learning\n"
              "cp -r mine \"$out\"\n");
  ExpectSays("model train mine --trainer=./trainer --warm-start=/a/b", 0,
             "sparsectl model watch mine");
  std::stringstream words, measured;
  words << std::ifstream(folder_ + "/words").rdbuf();
  EXPECT_THAT(words.str(), testing::StartsWith("train --data "));
  EXPECT_THAT(words.str(), HasSubstr("--name=mine --warm-start=/a/b\n"));
  measured << std::ifstream(folder_ + "/measured").rdbuf();
  EXPECT_THAT(measured.str(), HasSubstr("\"measurements\""));
  const std::string out = words.str().substr(words.str().find("--out=") + 6);
  EXPECT_FALSE(std::filesystem::exists(out.substr(0, out.find("/mine")))) << "left behind";
  ExpectSays("model train mine --trainer=./trainer", 6, "there is a model named mine already");
  ExpectSays("model train mine --trainer=./trainer --replace", 0, "put       mine");
  // Standard output is the report's.
  const Said json =
      Run("-o json model train mine --trainer=./trainer --replace > out 2> said; cat out");
  EXPECT_THAT(json.text, testing::StartsWith("{\"name\":\"mine\""));

  MakeTrainer("refuses", "echo 'too few measurements: 12, at least 500 are needed' >&2\nexit 9\n");
  ExpectSays("model train more --trainer=./refuses", 9, "too few measurements: 12");
  ExpectSays("model train more --trainer=./refuses", 9, "no model was trained");
  ExpectSays("model list", 0, "mine");
  EXPECT_THAT(Run("model list").text, Not(HasSubstr("more")));
  MakeTrainer("nothing", "exit 0\n");
  ExpectSays("model train more --trainer=./nothing", 3, "manifest.json: No such file");
  ExpectSays("model train more --trainer=./nobody", 3, "--trainer=PROGRAM says where it is");
  ExpectSays("model train more", 3, "share/sparsed/train/run");
  ExpectSays("model train", 2, "NAME is missing");
}

}  // namespace
}  // namespace sparsed::test
