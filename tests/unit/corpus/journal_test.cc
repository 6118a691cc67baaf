// A journal goes on where the run before it ended, however that ended.
#include "tools/corpus/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace sparsed::corpus {
namespace {

using Json = Journal::Json;

class JournalTest : public testing::Test {
 protected:
  JournalTest() { std::filesystem::remove(path_); }
  std::string Content() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  void Write(const std::string& text, std::ios::openmode mode = std::ios::trunc) const {
    std::ofstream(path_, mode) << text;
  }

  const std::string path_ = testing::TempDir() + "/journal.jsonl";
  const Json run_ = {{"device", "cpu"}};
};

TEST_F(JournalTest, GoesOnAfterWhatIsDone) {
  {
    Journal journal = Journal::Open(path_, run_).value();
    EXPECT_TRUE(journal.Begin("a").ok());
    EXPECT_TRUE(journal.AddMeasurement("a", {{"k", 32}}).ok());
    EXPECT_TRUE(journal.End("a", {{"seconds", 0.5}}).ok());
    EXPECT_TRUE(journal.IsDone("a"));
  }
  const Journal journal = Journal::Open(path_, run_).value();
  EXPECT_TRUE(journal.IsDone("a"));
  EXPECT_FALSE(journal.IsDone("b"));
  EXPECT_EQ(Content(),
            "{\"line\":\"run\",\"device\":\"cpu\"}\n{\"line\":\"begin\",\"pattern\":\"a\"}\n"
            "{\"line\":\"measurement\",\"pattern\":\"a\",\"k\":32}\n"
            "{\"line\":\"pattern\",\"pattern\":\"a\",\"seconds\":0.5}\n");
}

TEST_F(JournalTest, DropsWhatWasNotFinished) {
  std::string whole;
  {
    Journal journal = Journal::Open(path_, run_).value();
    EXPECT_TRUE(journal.Begin("a").ok());
    EXPECT_TRUE(journal.End("a", Json::object()).ok());
    EXPECT_TRUE(journal.Begin("b").ok());
    whole = Content();
    EXPECT_TRUE(journal.AddMeasurement("b", {{"k", 32}}).ok());
  }
  const std::string more = Content();
  // Wherever within the last two lines the process was killed.
  for (size_t length = whole.size(); length <= more.size(); ++length) {
    Write(more.substr(0, length));
    const absl::StatusOr<Journal> journal = Journal::Open(path_, run_);
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_EQ(Content(), whole);
    EXPECT_TRUE(journal->IsDone("a"));
    EXPECT_FALSE(journal->IsDone("b"));
    EXPECT_EQ(journal->attempts("b"), 1);
  }
}

TEST_F(JournalTest, MayHaveBeenKilledAnywhere) {
  {
    Journal journal = Journal::Open(path_, run_).value();
    for (const char* const name : {"a", "b"}) {
      EXPECT_TRUE(journal.Begin(name).ok());
      EXPECT_TRUE(journal.AddMeasurement(name, {{"k", 32}}).ok());
      EXPECT_TRUE(journal.End(name, Json::object()).ok());
    }
  }
  const std::string all = Content();
  for (size_t length = 0; length < all.size(); ++length) {
    Write(all.substr(0, length));
    absl::StatusOr<Journal> journal = Journal::Open(path_, run_);
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_EQ(journal->done(),
              (all.substr(0, length).find("\"a\"}\n{\"line\":\"begin\"") == std::string::npos
                   ? journal->IsDone("a") ? 1U : 0U
                   : 1U));
    for (const char* const name : {"a", "b"}) {
      if (journal->IsDone(name)) continue;
      EXPECT_TRUE(journal->Begin(name).ok());
      EXPECT_TRUE(journal->End(name, Json::object()).ok());
    }
    // Each line is whole, and each pattern is done once.
    std::istringstream lines(Content());
    int ends = 0;
    for (std::string line; std::getline(lines, line);) {
      const Json object = Json::parse(line, nullptr, false);
      ASSERT_TRUE(object.is_object()) << line;
      ends += object["line"] == "pattern" ? 1 : 0;
    }
    EXPECT_EQ(ends, 2);
  }
}

TEST_F(JournalTest, CountsAttempts) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    Journal journal = Journal::Open(path_, run_).value();
    EXPECT_EQ(journal.attempts("a"), attempt);
    EXPECT_TRUE(journal.Begin("a").ok());
  }
}

using JournalDeathTest = JournalTest;

TEST_F(JournalDeathTest, AnInterruptedPatternIsNoAttempt) {
  for (const int signal : {SIGINT, SIGTERM}) {
    std::filesystem::remove(path_);
    std::string before;
    {
      Journal journal = Journal::Open(path_, run_).value();
      EXPECT_TRUE(journal.Begin("b").ok());  // this attempt counts
      before = Content();
    }
    EXPECT_EXIT(
        {
          Journal journal = Journal::Open(path_, run_).value();
          const bool ok = journal.ForgetWhenInterrupted().ok() && journal.Begin("b").ok() &&
                          journal.AddMeasurement("b", {{"k", 32}}).ok();
          if (ok) raise(signal);
        },
        testing::KilledBySignal(signal), "");
    EXPECT_EQ(Content(), before);
    EXPECT_EQ(Journal::Open(path_, run_)->attempts("b"), 1);
    // What is done stays.
    EXPECT_EXIT(
        {
          Journal journal = Journal::Open(path_, run_).value();
          const bool ok = journal.ForgetWhenInterrupted().ok() && journal.Begin("b").ok() &&
                          journal.End("b", Json::object()).ok();
          if (ok) raise(signal);
        },
        testing::KilledBySignal(signal), "");
    EXPECT_TRUE(Journal::Open(path_, run_)->IsDone("b"));
  }
}

TEST_F(JournalTest, RefusesOtherRuns) {
  { EXPECT_TRUE(Journal::Open(path_, run_).ok()); }
  const absl::Status other = Journal::Open(path_, {{"device", "cuda:0"}}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(other));
  EXPECT_THAT(std::string(other.message()),
              testing::HasSubstr("device is \"cuda:0\", not \"cpu\""));
}

TEST_F(JournalTest, RefusesOtherFiles) {
  for (const char* const text :
       {"hello\n", "{}\n", "{\"line\":\"begin\",\"pattern\":\"a\"}\n", "[1]\n",
        // Without an end of line, which only the beginning of the run's own line may lack.
        "hello", "{}", "{\"line\":\"run\",\"device\":\"cuda", " "}) {
    Write(text);
    EXPECT_TRUE(absl::IsInvalidArgument(Journal::Open(path_, run_).status())) << text;
    EXPECT_EQ(Content(), text) << "what is not ours stays";
  }
  std::filesystem::remove(path_);
  { EXPECT_TRUE(Journal::Open(path_, run_).ok()); }
  Write("hello\n", std::ios::app);
  const absl::Status broken = Journal::Open(path_, run_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(broken));
  EXPECT_THAT(std::string(broken.message()), testing::HasSubstr(":2:"));
  EXPECT_TRUE(absl::IsInvalidArgument(Journal::Open("/nowhere/file", run_).status()));
}

TEST_F(JournalTest, IsOneProcesssAlone) {
  const Journal journal = Journal::Open(path_, run_).value();
  EXPECT_TRUE(absl::IsFailedPrecondition(Journal::Open(path_, run_).status()));
}

}  // namespace
}  // namespace sparsed::corpus
