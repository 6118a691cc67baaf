// Whatever a process of this machine says at the local socket, with whatever descriptors, and
// writes into a ring: each request is answered or the connection ends, requests of a ring end, and
// the server serves the next process.
#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "base/packet.h"
#include "engine/engine.h"
#include "kernels/kernels_id.h"
#include "proto/wire/ring.h"
#include "server/log/log.h"
#include "server/server.h"
#include "sparsed/v1/compute.pb.h"
#include "sparsed/v1/local.pb.h"
#include "tests/fuzz/check.h"

extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }  // NOLINT

namespace sparsed::server {
namespace {

using fuzz::Check;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kSlots = 4, kSlotBytes = 1024;
/// What inputs have in the place of what only the server knows.
constexpr std::string_view kRegion = "rrrrrrrrrrrrrrrr", kKernels = "kkkkkkkkkkkkkkkk";

/// A server in memory with one matrix: "m", 8 x 8, a diagonal.
class TheServer {
 public:
  TheServer() {
    StartLog(LogLevel::kError, LogFormat::kText);
    const std::string folder = fmt::format("/tmp/sparsed_fuzz_local_{}", getpid());
    std::filesystem::create_directories(folder);
    path_ = folder + "/local";
    Config config;
    config.listen = {"unix:" + folder + "/server"};
    config.local_listen = "unix:" + path_;
    config.metrics_listen.clear();
    config.devices = {"cpu"};
    config.threads = 1;
    config.worker_slots = 1;
    config.preparation_workers = 0;
    config.host_memory_bytes = int64_t{256} << 20;
    config.preparation_memory_bytes = int64_t{64} << 20;
    auto server = Server::Start(config);
    Check(server.ok());
    server_ = *std::move(server);
    AddMatrix();
  }

  Descriptor Connect() const {
    Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, path_.data(), path_.size());
    const timeval patience = {60, 0};
    setsockopt(fd.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    Check(connect(fd.fd(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0);
    return fd;
  }

 private:
  void AddMatrix() {
    constexpr int64_t kRows = 8;
    auto offsets = AllocateArray(HeapMemory(), "row_offsets", ElementType::kI64, kRows + 1);
    auto columns = AllocateArray(HeapMemory(), "column_indices", ElementType::kI32, kRows);
    auto values = AllocateArray(HeapMemory(), "values", ElementType::kF32, kRows);
    for (int64_t i = 0; i <= kRows; ++i) {
      offsets->MutableAs<int64_t>()[static_cast<size_t>(i)] = i;
      if (i == kRows) break;
      columns->MutableAs<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i);
      values->MutableAs<float>()[static_cast<size_t>(i)] = 1;
    }
    engine::UploadHeader header;
    header.tenant = "default";
    header.name = "m";
    header.rows = header.cols = header.nnz = kRows;
    header.type = ElementType::kF32;
    Check(server_->engine()
              .catalog()
              .Insert(header, *std::move(offsets), *std::move(columns), *std::move(values))
              .ok());
  }

  std::string path_;
  std::unique_ptr<Server> server_;
};

/// A file of so many bytes, sealed or not.
Descriptor MakeFile(size_t bytes, bool sealed) {
  Descriptor file(memfd_create("fuzz", MFD_ALLOW_SEALING | MFD_CLOEXEC));
  Check(file.open() && ftruncate(file.fd(), static_cast<off_t>(bytes)) == 0);
  if (sealed) Check(fcntl(file.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  return file;
}

template <typename Request>
bool IsCancel(const std::string& bytes) {
  Request request;
  return request.ParseFromString(bytes) && request.has_cancel();
}

void Replace(std::string& bytes, std::string_view what, std::string_view by) {
  for (size_t at = 0; !by.empty() && (at = bytes.find(what, at)) != std::string::npos;) {
    bytes.replace(at, what.size(), by);
    at += by.size();
  }
}

class Process {
 public:
  explicit Process(const TheServer& server) : socket_(server.Connect()) {
    const auto hello = Receive();
    Check(hello && hello->has_hello());
  }
  ~Process() {
    if (ring_ != nullptr) munmap(ring_, ring_bytes_);
  }

  /// False: the server has closed the connection.
  bool Say(std::string bytes, uint8_t how) {
    Replace(bytes, kRegion, region_);
    Replace(bytes, kKernels, KernelsId());
    Packet packet{bytes, {}};
    const wire::RingSize size{.slots = kSlots, .slot_bytes = kSlotBytes};
    switch (how % 6) {
      case 1:
        packet.file = MakeFile(4096, true);
        break;
      case 2:
        packet.file = MakeFile(size.file_bytes(), true);
        break;
      case 3:
        packet.file = MakeFile(4096, false);
        break;
      case 4:
        packet.file = Descriptor(open("/dev/null", O_RDWR | O_CLOEXEC));
        break;
      case 5:
        packet.file = MakeFile(0, true);
        break;
      default:
        break;
    }
    const Descriptor ring_file(how % 6 == 2 ? dup(packet.file.fd()) : -1);
    if (SendPacket(socket_.fd(), packet) != Sent::kYes) return false;
    const auto reply = Receive();
    if (!reply) return false;
    if (reply->status().code() != 0) Check(!reply->status().message().empty());
    Check(reply->status().code() != static_cast<int>(absl::StatusCode::kInternal));
    if (!reply->region().empty()) region_ = reply->region();
    v1::LocalRequest request;
    if (reply->status().code() == 0 && ring_ == nullptr && ring_file.open() &&
        request.ParseFromString(bytes) && request.has_ring()) {
      MapRing(ring_file, {request.ring().slots(), request.ring().slot_bytes()});
    }
    return true;
  }

  /// A message through the ring, or bytes anywhere in its memory.
  void UseRing(fuzz::Input& input) {
    if (ring_ == nullptr) return;
    wire::RingMemory memory(ring_, size_);
    const auto what = input.Number<uint8_t>();
    std::string bytes(input.Bytes(input.Number<uint16_t>() % size_.message_bytes()));
    Replace(bytes, kRegion, region_);
    if (what % 8 == 7) {
      const size_t at = input.Number<uint16_t>() % ring_bytes_;
      std::memcpy(ring_ + at, bytes.data(), std::min(bytes.size(), ring_bytes_ - at));
      memory.request_bell.Wake();
      wild_ = true;
      return;
    }
    const auto untaken = producer_->Untaken();
    if (memory.Ended() || !untaken.ok() || *untaken >= size_.slots) return;
    const grpc::Slice slice(bytes);
    producer_->Put(static_cast<wire::RingMessage>(what % 8), grpc::ByteBuffer(&slice, 1));
    memory.request_bell.Ring();
    if (wild_) return;
    // Each start has its end, a cancel has none, and anything else ends the ring.
    const bool is_cancel = IsCancel<v1::SpmmRequest>(bytes) || IsCancel<v1::SddmmRequest>(bytes) ||
                           IsCancel<v1::ChainRequest>(bytes);
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while (!memory.Ended()) {
      const auto reply = consumer_->Take();
      Check(reply.ok());
      if (*reply) {
        memory.request_bell.Ring(wire::RingBell::kTaken);
        CheckReply((**reply).bytes);
        return;
      }
      if (is_cancel) return;
      Check(Clock::now() < deadline);
      std::this_thread::yield();
    }
  }

 private:
  std::optional<v1::LocalReply> Receive() {
    std::string bytes(4096, '\0');
    iovec part = {bytes.data(), bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size = recvmsg(socket_.fd(), &message, MSG_CMSG_CLOEXEC);
    Check(size >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK));
    if (size <= 0) return {};
    if (const cmsghdr* const header = CMSG_FIRSTHDR(&message)) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(header), sizeof(file));
      close(file);
    }
    v1::LocalReply reply;
    Check(reply.ParseFromArray(bytes.data(), static_cast<int>(size)));
    return reply;
  }

  void MapRing(const Descriptor& file, wire::RingSize size) {
    size_ = size;
    ring_bytes_ = size.file_bytes();
    void* const mapped =
        mmap(nullptr, ring_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
    Check(mapped != MAP_FAILED);
    ring_ = static_cast<std::byte*>(mapped);
    const wire::RingMemory memory(ring_, size_);
    producer_.emplace(ring_ + 64, ring_ + wire::RingSize::kHeaderBytes, size_);
    consumer_.emplace(
        ring_ + 256,
        ring_ + wire::RingSize::kHeaderBytes + static_cast<size_t>(size.slots) * size.slot_bytes,
        size_);
  }

  static void CheckReply(const grpc::ByteBuffer& bytes) {
    std::vector<grpc::Slice> slices;
    Check(bytes.Dump(&slices).ok());
    std::string text;
    for (const grpc::Slice& slice : slices) {
      text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    v1::ComputeReply reply;
    Check(reply.ParseFromString(text) && reply.has_end());
    const v1::Status& status = reply.end().status();
    Check(status.code() == 0 || !status.message().empty());
    Check(status.code() != static_cast<int>(absl::StatusCode::kInternal));
  }

  Descriptor socket_;
  std::string region_;
  std::byte* ring_ = nullptr;
  size_t ring_bytes_ = 0;
  wire::RingSize size_;
  std::optional<wire::RingProducer> producer_;
  std::optional<wire::RingConsumer> consumer_;
  bool wild_ = false;  ///< nothing can be said of the ring any more
};

}  // namespace
}  // namespace sparsed::server

/// Each piece: what it is, its bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparsed::server;  // NOLINT(google-build-using-namespace)
  static const google::protobuf::LogSilencer silence;
  static const auto* const server = new TheServer();
  sparsed::fuzz::Input input(data, size);
  Process process(*server);
  for (int i = 0; i < 20 && !input.empty(); ++i) {
    const auto how = input.Number<uint8_t>();
    if (how >= 0x80) {
      process.UseRing(input);
    } else if (!process.Say(std::string(input.Bytes(input.Number<uint16_t>() % 4097)), how)) {
      break;
    }
  }
  return 0;
}
