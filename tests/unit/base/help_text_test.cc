#include "base/help_text.h"

#include <gtest/gtest.h>

namespace sparsed {
namespace {

constexpr const char* kHelp =
    "Multiplies, and says how long it took\n"
    "Usage: multiply [OPTIONS] NAME\n"
    "\n"
    "Options:\n"
    "  -b,--operand TEXT           B: a file, converted to the matrix's type if need be\n"
    "  --a-long-flag TEXT Excludes: --other\n"
    "                              What it is for\n"
    "Examples:\n"
    "  multiply g --operand=B.npy --a-long-flag=and-its-long-value --other=more\n"
    "Exit codes:\n"
    "   3  bad input: a file that is not there, or what one holds\n";

TEST(HelpText, LinesAreBrokenBelowTheDescription) {
  EXPECT_EQ(WrappedHelp(kHelp, 54),
            "Multiplies, and says how long it took\n"
            "Usage: multiply [OPTIONS] NAME\n"
            "\n"
            "Options:\n"
            "  -b,--operand TEXT           B: a file, converted to\n"
            "                              the matrix's type if\n"
            "                              need be\n"
            "  --a-long-flag TEXT Excludes: --other\n"
            "                              What it is for\n"
            "Examples:\n"
            "  multiply g --operand=B.npy --a-long-flag=and-its-long-value --other=more\n"
            "Exit codes:\n"
            "   3  bad input: a file that is not there, or what one\n"
            "      holds\n");
}

TEST(HelpText, NothingIsLostWhateverTheWidth) {
  const auto words = [](std::string text) {
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    return text;
  };
  for (size_t columns = 0; columns < 100; ++columns) {
    EXPECT_EQ(words(WrappedHelp(kHelp, columns)), words(kHelp)) << columns;
  }
  EXPECT_EQ(WrappedHelp(kHelp, 0), kHelp);
  EXPECT_EQ(WrappedHelp(kHelp, 200), kHelp);
  EXPECT_EQ(WrappedHelp("", 10), "");
}

}  // namespace
}  // namespace sparsed
