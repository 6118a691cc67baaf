// How reports are written: tables that fit, listings that are sorted, YAML, and what was meant.
#include "client/cli/output.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/quota_waits.h"
#include "client/cli/report.h"
#include "client/cli/server_address.h"
#include "client/cli/suggestion.h"
#include "client/cli/yaml.h"

namespace sparsed::cli {
namespace {

using testing::HasSubstr;

/// Styles are the process's: as they were again, afterwards.
class Output : public testing::Test {
 protected:
  ~Output() override { Style() = TextStyle(); }
};

Listing Matrices() {
  Listing listing(
      "matrices", "no matrices",
      {{"NAME", "name"}, {"TIME TO LIVE", "ttl"}, {"STATE", "state"}, {"PATTERN", "hash", true}});
  listing.Add({{"name", "b"}, {"ttl", 9}, {"state", "ready"}, {"hash", "x"}},
              {"b", "9 s", "ready", "x"});
  listing.Add({{"name", "a"}, {"ttl", 10}, {"state", "queued"}, {"hash", "y"}},
              {"a", "10 s", "queued", "y"});
  listing.Add({{"name", "c"}, {"state", "ready"}, {"hash", "z"}}, {"c", "", "ready", "z"});
  return listing;
}

std::string Order(Listing listing, const std::string& by) {
  EXPECT_TRUE(listing.Sort(by).ok()) << by;
  std::string names;
  const Json json = listing.ToJson();
  for (const Json& item : json["matrices"]) names += item["name"].get<std::string>();
  return names;
}

TEST_F(Output, ListingsAreSortedByWhatIsMeantNotByHowItIsWritten) {
  EXPECT_EQ(Order(Matrices(), "name"), "abc");
  EXPECT_EQ(Order(Matrices(), "-NAME"), "cba");
  EXPECT_EQ(Order(Matrices(), "time-to-live"), "bac") << "9 is less than 10, nothing comes last";
  EXPECT_EQ(Order(Matrices(), "ttl"), "bac");
  EXPECT_EQ(Order(Matrices(), "state"), "abc") << "equal ones stay in their order: b before c";
  Listing listing = Matrices();
  const absl::Status unknown = listing.Sort("size");
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("name, time-to-live, state, pattern"));
}

TEST(ServerAddress, TheRightFormIsSaidOfOneThatGrpcWouldNotFind) {
  for (const char* good :
       {"127.0.0.1:7470", "node-1:7470", "[::1]:7470", "unix:/run/sparsed/socket", "dns:///n:1",
        "unix:///run/sparsed/socket", "a:1,b:2"}) {
    EXPECT_EQ(AddressProblem(good), "") << good;
  }
  const std::vector<std::pair<std::string, std::string>> meant = {
      {"http://127.0.0.1:7470", "127.0.0.1:7470"},
      {"https://node-1:7470/", "node-1:7470"},
      {"grpc://node-1", "node-1:7470"},
      {"http://[::1]:7470/page", "[::1]:7470"},
      {"127.0.0.1:7470/", "127.0.0.1:7470"},
      {"localhost", "localhost:7470"},
      {"localhost:", "localhost:7470"},
      {":7470", "127.0.0.1:7470"},
      {"8470", "127.0.0.1:8470"},
      {"::1", "[::1]:7470"},
      {"[::1]", "[::1]:7470"},
      {" node-1:7470", "node-1:7470"},
      {"/run/sparsed/socket", "unix:/run/sparsed/socket"},
      {"::1:7470", "[::1]:7470"},
      {"::1:17470", "[::1]:17470"},
      {"fe80::1:2:abcd", "[fe80::1:2:abcd]:7470"},
      {"1:2:3:4:5:6:7:8:8080", "[1:2:3:4:5:6:7:8]:8080"},
      // All of them, to be pasted.
      {"a:1,http://b:2", "a:1,b:2"},
      {"http://a:1,b,c:3", "a:1,b:7470,c:3"}};
  for (const auto& [typed, address] : meant) {
    EXPECT_THAT(AddressProblem(typed), testing::EndsWith("did you mean \"" + address + "\"?"));
  }
  // Of ::1:8080 the last group may be a port, and a part of the address.
  for (const char* nonsense : {"node-1:grpc", "node-1:0", "node-1:74700", "", "http://", "::1:8080",
                               "a:b:c", "[x]y]:1", "http://a:1,node-1:grpc"}) {
    EXPECT_THAT(AddressProblem(nonsense), testing::EndsWith("HOST:PORT or unix:/path")) << nonsense;
  }
  EXPECT_THAT(AddressProblem("https://node-1:7470"), HasSubstr("--tls-ca turns TLS on"));
}

TEST(QuotaWaits, AreSaidOfEachQuotaOnce) {
  QuotaWaits waits;
  EXPECT_EQ(waits.Text(), "");
  const QuotaWaits::Clock::time_point now{};
  const absl::Status rate = absl::ResourceExhaustedError(
      "tenant 'bob' may begin no more (quota requests_per_second); wait");
  waits.Add(absl::UnavailableError("gone"), std::chrono::seconds(9), now);
  EXPECT_EQ(waits.Text(), "") << "that is no quota";
  waits.Add(rate, std::chrono::milliseconds(600), now);
  EXPECT_EQ(waits.Text(), "waited 600 ms for the quota requests_per_second (refused once)\n");
  // Side by side with the first for 400 ms.
  waits.Add(rate, std::chrono::milliseconds(1000), now + std::chrono::milliseconds(200));
  waits.Add(rate, std::chrono::milliseconds(50), now + std::chrono::milliseconds(300));
  waits.Add(absl::ResourceExhaustedError("the server's memory is full"),
            std::chrono::milliseconds(200), now);
  EXPECT_EQ(waits.Text(),
            "waited 200 ms for room at the server (refused once)\n"
            "waited 1.20 s for the quota requests_per_second (refused 3 times)\n");
}

TEST_F(Output, WideListingsHaveAllColumns) {
  EXPECT_EQ(Matrices().Text().find("PATTERN"), std::string::npos);
  Style().wide = true;
  EXPECT_THAT(Matrices().Text(), HasSubstr("PATTERN"));
  EXPECT_EQ(Listing("x", "no matrices", {{"NAME", "name"}}).Text(), "no matrices\n");
}

/// Lines of at most so many bytes.
void ExpectFits(const std::string& text, size_t most) {
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
    EXPECT_LE(text.find('\n', begin) - begin, most) << text;
  }
}

TEST_F(Output, SentencesGoBelowTheirRowsWhereATableDoesNotFitTheTerminal) {
  Table table({"NAME", "WHY", "BYTES"});
  const std::string name(30, 'n');
  table.Add({name, "because it was so, and nobody asked why that is: a, b, c", "12,345"});
  table.Add({"b", "", "1"});
  const std::string whole = table.Text();
  Style().width = 100;
  EXPECT_EQ(table.Text(), whole) << "there is room";
  Style().width = 50;
  EXPECT_EQ(table.Text(), fmt::format("NAME{}BYTES\n"
                                      "{}  12,345\n"
                                      "    because it was so, and nobody asked why that\n"
                                      "    is: a, b, c\n"
                                      "b{}1\n",
                                      std::string(29, ' '), name, std::string(36, ' ')));
  Style().width = 10;  // names and numbers are never cut
  EXPECT_THAT(table.Text(), HasSubstr(name + "  12,345\n    because\n    it was\n"));
  Style().wide = true;
  EXPECT_EQ(table.Text(), whole);
}

TEST_F(Output, SentencesAreCutWhereRowsStayOnTheirLines) {
  Table table({"NAME", "BYTES", "WHY"});
  const std::string name(30, 'n');
  table.Add({name, "12,345", "because it was so, and nobody asked why that is: ä, ö, ü"});
  table.KeepToLines();
  Style().width = 60;
  EXPECT_THAT(table.Text(), HasSubstr(name + "  12,345  because it"));
  EXPECT_THAT(table.Text(), HasSubstr("...\n"));
  ExpectFits(table.Text(), 60);
  Style().width = 10;
  EXPECT_THAT(table.Text(), HasSubstr(name + "  12,345  because i..."));
}

TEST_F(Output, NarrowTablesLeaveWholeColumnsOutAndCutNoIds) {
  Table table({"TOTAL", "PLAN", "ENDED", "REQUEST", "WHY"}, {"PLAN", "ENDED"});
  table.Add({"1.2 ms", "csr/cpu.csr.row_balanced", "2026-11-26 01:23:45", "5e0c2a711f40be93",
             "it is the fastest of all that were tried"});
  Style().width = 80;
  EXPECT_THAT(table.Text(),
              HasSubstr("csr/cpu.csr.row_balanced  2026-11-26 01:23:45  5e0c2a711f40be93\n"
                        "    it is the fastest of all that were tried\n"));
  Style().width = 60;
  EXPECT_THAT(table.Text(), testing::Not(HasSubstr("PLAN")));
  EXPECT_THAT(table.Text(), HasSubstr("1.2 ms  2026-11-26 01:23:45  5e0c2a711f40be93\n    it is"));
  Style().width = 30;
  EXPECT_THAT(table.Text(), testing::Not(HasSubstr("ENDED")));
  EXPECT_THAT(table.Text(), HasSubstr("1.2 ms  5e0c2a711f40be93\n    it is the fastest of all\n"));
  ExpectFits(table.Text(), 30);
  Style().width = 10;  // there is nothing left to leave out
  EXPECT_THAT(table.Text(), HasSubstr("1.2 ms  5e0c2a711f40be93\n"));
  Style().wide = true;
  EXPECT_THAT(table.Text(), HasSubstr("csr/cpu.csr.row_balanced"));
}

TEST_F(Output, WhatIsLeftOutMayBeToldBelow) {
  Table table({"KERNEL", "SINCE", "DEVICE", "WHY"}, {"SINCE", "DEVICE"}, {"DEVICE"});
  table.Add({"cpu.csr.row_balanced", "yesterday", "cpu", "1.07x over plain CSR"});
  table.Add({"cuda.csr.row_bins", "today", "cuda:0", ""});
  Style().width = 45;
  EXPECT_EQ(table.Text(),
            "KERNEL                SINCE      DEVICE\n"
            "cpu.csr.row_balanced  yesterday  cpu\n"
            "    1.07x over plain CSR\n"
            "cuda.csr.row_bins     today      cuda:0\n");
  Style().width = 35;
  EXPECT_THAT(table.Text(), HasSubstr("cpu.csr.row_balanced  cpu\n    1.07x over plain CSR\n"));
  EXPECT_THAT(table.Text(), testing::Not(HasSubstr("SINCE")));
  Style().width = 25;
  EXPECT_EQ(table.Text(),
            "KERNEL\n"
            "cpu.csr.row_balanced\n"
            "    1.07x over plain CSR;\n"
            "    device cpu\n"
            "cuda.csr.row_bins\n"
            "    device cuda:0\n");
}

TEST_F(Output, NumbersForProgramsHaveNoSeparators) {
  EXPECT_EQ(Count(-1234567), "-1,234,567");
  Style().separators = false;
  EXPECT_EQ(Count(-1234567), "-1234567");
}

TEST_F(Output, ShortTimesHaveThreeDigits) {
  EXPECT_EQ(ShortTime(std::chrono::nanoseconds(999)), "999 ns");
  EXPECT_EQ(ShortTime(std::chrono::nanoseconds(1234)), "1.23 us");
  EXPECT_EQ(ShortTime(std::chrono::nanoseconds(12'345'678)), "12.3 ms");
  EXPECT_EQ(ShortTime(std::chrono::seconds(1234)), "1234 s");
}

TEST_F(Output, YamlSaysTheSameAsJson) {
  const Json json = {{"name", "a/b"},
                     {"empty", Json::array()},
                     {"odd", {"true", "1.5", "no", "with space", "~x", "", "line\nbreak", "null"}},
                     {"list", {{{"k", 1}, {"deep", {{"x", nullptr}}}}, {1, 2}, true}},
                     {"yes", 2.5}};
  EXPECT_EQ(ToYaml(json),
            "name: a/b\n"
            "empty: []\n"
            "odd:\n"
            "  - \"true\"\n"
            "  - \"1.5\"\n"
            "  - \"no\"\n"
            "  - \"with space\"\n"
            "  - \"~x\"\n"
            "  - \"\"\n"
            "  - \"line\\nbreak\"\n"
            "  - \"null\"\n"
            "list:\n"
            "  - k: 1\n"
            "    deep:\n"
            "      x: null\n"
            "  - - 1\n"
            "    - 2\n"
            "  - true\n"
            "\"yes\": 2.5\n");
  EXPECT_EQ(ToYaml(Json::object()), "{}\n");
}

TEST_F(Output, TheNearestWordIsMeant) {
  EXPECT_EQ(Distance("list", "lsit"), 1u);
  EXPECT_EQ(Distance("", "abc"), 3u);
  EXPECT_EQ(Distance("kitten", "sitting"), 3u);
  const std::vector<std::string> known = {"list", "show", "spmm", "sddmm", "wait", "watch"};
  EXPECT_EQ(Nearest("lst", known), "list");
  EXPECT_EQ(Nearest("SPMN", known), "spmm");
  EXPECT_EQ(Nearest("wach", known), "watch");
  EXPECT_EQ(Nearest("multiply", known), "");
  EXPECT_EQ(Nearest("x", known), "") << "one letter is as near to anything";
  EXPECT_EQ(Nearest(std::string(1'000'000, 'a'), known), "");
  EXPECT_EQ(DidYouMean("shwo", known), "; did you mean \"show\"?");
  const std::vector<std::string> short_ones = {"x", "ab"};
  EXPECT_EQ(DidYouMean("y", short_ones), "") << "nothing in common";
  EXPECT_EQ(Nearest("xx", short_ones), "x");
  EXPECT_EQ(Nearest("ac", short_ones), "ab");
  EXPECT_EQ(DidYouMean("multiply", known), "");
  // Two edits where words begin alike, and what a word alone begins.
  const std::vector<std::string> commands = {"buffers", "upload", "download", "update"};
  EXPECT_EQ(Nearest("buffs", commands), "buffers");
  EXPECT_EQ(Nearest("down", commands), "download");
  EXPECT_EQ(Nearest("upx", commands), "");
  EXPECT_EQ(Nearest("up", commands), "") << "two begin so";
  const std::vector<std::string> devices = {"cpu", "cuda"};
  EXPECT_EQ(Nearest("gpu", devices), "") << "another word of three letters";
  // Of the lists of a server's sentences.
  EXPECT_EQ(NearestListed("unknown step 'dcs'; known: csr, dcsr, dia"), "dcsr");
  EXPECT_EQ(NearestListed("unknown step 'dcs'; known: csr, dcsr, dia (and more)"), "");
  EXPECT_EQ(NearestListed("'csr' cannot follow: csr, dcsr"), "") << "it is there";
  EXPECT_EQ(NearestListed("there is nothing quoted: csr, dcsr"), "");
}

}  // namespace
}  // namespace sparsed::cli
