// A thread that the operating system does not start is waited for, and counted.
#include "server/thread_starts.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <thread>

namespace sparsed::server {
namespace {

/// Asks for a stack that there is no room for.
int StartTooLarge() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, size_t{1} << 46);
  pthread_t thread;
  const auto nothing = [](void* argument) { return argument; };
  const int error = pthread_create(&thread, &attributes, nothing, nullptr);
  pthread_attr_destroy(&attributes);
  return error;
}

TEST(ThreadStarts, OrdinaryOnesDoNotWait) {
  const uint64_t before = CountThreadStarts().delayed;
  std::atomic<bool> ran = false;
  std::thread([&] { ran = true; }).join();
  EXPECT_TRUE(ran);
  EXPECT_EQ(CountThreadStarts().waiting, 0);
  EXPECT_EQ(CountThreadStarts().delayed, before);
}

TEST(ThreadStarts, ThatNeverComeEndTheProcessWithASentence) {
  EXPECT_EXIT(
      {
        SetThreadPatience(std::chrono::seconds(1));
        StartTooLarge();
      },
      testing::ExitedWithCode(1), "starts no more threads: raise pids.max");
}

TEST(ThreadStarts, ThatWaitAreCounted) {
  EXPECT_EXIT(
      {
        SetThreadPatience(std::chrono::seconds(60));
        std::thread([] { StartTooLarge(); }).detach();
        while (CountThreadStarts().waiting == 0) std::this_thread::yield();
        _exit(CountThreadStarts().delayed == 1 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sparsed::server
