// What systemd is told, by a socket that stands for its own.
#include "server/service_manager.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <string>

#include "base/descriptor.h"

namespace sparsed::server {
namespace {

class ServiceManager : public testing::Test {
 protected:
  ~ServiceManager() override { unsetenv("NOTIFY_SOCKET"); }

  /// Listens at `name`, "/path" or "@abstract", and has the environment name it.
  void Listen(const std::string& name) {
    socket_ = Descriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    ASSERT_EQ(bind(socket_.fd(), reinterpret_cast<const sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())),
              0)
        << name;
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }

  std::string Received() const {
    std::array<char, 256> buffer;
    const ssize_t bytes = recv(socket_.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    return bytes < 0 ? "nothing" : std::string(buffer.data(), static_cast<size_t>(bytes));
  }

 private:
  Descriptor socket_;
};

TEST_F(ServiceManager, IsToldByAFile) {
  const std::string path = testing::TempDir() + "notify." + std::to_string(getpid());
  Listen(path);
  EXPECT_TRUE(NotifyServiceManager("READY=1\nSTATUS=here"));
  EXPECT_EQ(Received(), "READY=1\nSTATUS=here");
  EXPECT_TRUE(NotifyServiceManager("STOPPING=1"));
  EXPECT_EQ(Received(), "STOPPING=1");
  unlink(path.c_str());
}

TEST_F(ServiceManager, IsToldByAnAbstractName) {
  Listen("@sparsed-notify-" + std::to_string(getpid()));
  EXPECT_TRUE(NotifyServiceManager("WATCHDOG=1"));
  EXPECT_EQ(Received(), "WATCHDOG=1");
}

TEST_F(ServiceManager, NobodyIsToldWhereNobodyAsks) {
  EXPECT_FALSE(NotifyServiceManager("READY=1"));
  const std::string long_name = "/" + std::string(200, 'a');
  for (const char* name : {"", "/", "relative", "/no/such/socket", long_name.c_str()}) {
    setenv("NOTIFY_SOCKET", name, 1);
    EXPECT_FALSE(NotifyServiceManager("READY=1")) << name;
  }
}

TEST_F(ServiceManager, OneThatReadsNothingHoldsNobodyUp) {
  Listen("@sparsed-silent-" + std::to_string(getpid()));
  int sent = 0;
  while (NotifyServiceManager("WATCHDOG=1") && sent < 100'000) ++sent;
  EXPECT_LT(sent, 100'000);
  EXPECT_EQ(Received(), "WATCHDOG=1");
}

}  // namespace
}  // namespace sparsed::server
