// What clients are told of what went wrong: nothing that breaks a terminal or a log, and nothing of
// where the server keeps its files.
#include "server/rpc/sentence.h"

#include <gtest/gtest.h>

namespace sparsed::server {
namespace {

TEST(ForClients, PlainSentencesStayAsTheyAre) {
  for (const char* sentence :
       {"", "there is no matrix named 'a/b'", "there is no matrix named '/etc/passwd'",
        "expected [A-Za-z0-9._:/@+-]", "5 / 2 and f32/f64", "a slash at the end /",
        "Gr\xc3\xb6\xc3\x9f"
        "e \xe2\x82\xac \xf0\x9f\x99\x82"}) {
    EXPECT_EQ(ForClients(sentence), sentence);
  }
}

TEST(ForClients, FoldersOfTheServerAreLeftOut) {
  EXPECT_EQ(ForClients("values of matrix 'a': /var/lib/sparsed/blobs/000012.blob is damaged"),
            "values of matrix 'a': blobs/000012.blob is damaged");
  EXPECT_EQ(ForClients("/srv/my data/x/blobs/1.blob is missing"), "blobs/1.blob is missing");
  EXPECT_EQ(ForClients("the catalog /d/catalog.sqlite is damaged (/d/catalog.sqlite-wal: short)"),
            "the catalog catalog.sqlite is damaged (catalog.sqlite-wal: short)");
  EXPECT_EQ(ForClients("cannot sync the directory /var/lib/sparsed: No space left on device"),
            "cannot sync the directory sparsed: No space left on device");
  EXPECT_EQ(ForClients("cannot open /a/b/: x"), "cannot open : x");
}

TEST(ForClients, ControlCharactersAndWhatIsNoTextAreEscaped) {
  EXPECT_EQ(ForClients("a\nb\tc\x1b[31m\x7f"), "a\\x0ab\\x09c\\x1b[31m\\x7f");
  EXPECT_EQ(ForClients(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(ForClients("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(ForClients("\xc3"), "\\xc3");                             // half a character
  EXPECT_EQ(ForClients("\xc0\xaf"), "\\xc0\\xaf");                    // longer than needed
  EXPECT_EQ(ForClients("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // half of a pair
  EXPECT_EQ(ForClients("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond the last one
  EXPECT_EQ(ForClients("\xc2\x85"), "\\xc2\\x85");  // the control character U+0085
}

TEST(ForClients, LongOnesAreCutBetweenCharacters) {
  const std::string cut = ForClients("x" + std::string(5000, '\n'));
  EXPECT_LE(cut.size(), 1027u);
  EXPECT_EQ(cut.substr(cut.size() - 7), "\\x0a...");
  std::string snowmen;
  for (int i = 0; i < 1000; ++i) snowmen += "\u2603";
  EXPECT_EQ(ForClients(snowmen), snowmen.substr(0, 1023) + "...");
}

}  // namespace
}  // namespace sparsed::server
