// main() of the test programs. What was skipped is listed at the end, a line a case with its
// reason, which tests/run counts; and a program that could run nothing says so by its exit status,
// so that ctest calls it skipped and not passed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace {

/// ctest's SKIP_RETURN_CODE, as automake has it.
constexpr int kExitSkipped = 77;

class SkippedCases : public testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.skipped()) reason_ = result.message();
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (test.result()->Skipped()) {
      std::ranges::replace(reason_, '\n', ' ');
      lines_.push_back(std::string("SKIPPED ") + test.test_suite_name() + "." + test.name() + ": " +
                       reason_);
    }
    reason_.clear();
  }
  void OnTestProgramEnd(const testing::UnitTest& /*program*/) override {
    for (const std::string& line : lines_) std::puts(line.c_str());
  }

 private:
  std::string reason_;
  std::vector<std::string> lines_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  testing::UnitTest& program = *testing::UnitTest::GetInstance();
  program.listeners().Append(new SkippedCases);  // the list owns it
  const int status = RUN_ALL_TESTS();
  const bool nothing_ran = program.skipped_test_count() > 0 && program.successful_test_count() == 0;
  return status == 0 && nothing_ran ? kExitSkipped : status;
}
