#include "tests/bench/bare_stream.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <mutex>
#include <vector>

namespace sparsed::bench {
namespace {

constexpr int64_t kMessage = 2 << 20;

/// Bytes that nobody writes to: every message refers to them.
const std::vector<char>& Bytes() {
  static const std::vector<char> bytes(kMessage, 1);
  return bytes;
}

grpc::ByteBuffer Message(int64_t bytes) {
  const grpc::Slice slice(Bytes().data(), bytes, grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

constexpr char kStreamMethod[] = "/bare/Stream";
constexpr char kEchoMethod[] = "/bare/Echo";

class ServedStream final : public grpc::ServerGenericBidiReactor {
 public:
  ServedStream() { StartRead(&in_); }

  void OnReadDone(bool ok) override {
    if (ok) {
      if (first_) {
        first_ = false;
        std::vector<grpc::Slice> slices;
        if (in_.Dump(&slices).ok() && !slices.empty() && slices[0].size() >= sizeof(left_)) {
          std::memcpy(&left_, slices[0].begin(), sizeof(left_));
        }
      }
      StartRead(&in_);
      return;
    }
    OnWriteDone(true);
  }

  void OnWriteDone(bool ok) override {
    if (!ok || left_ == 0) {
      Finish(grpc::Status::OK);
      return;
    }
    const int64_t bytes = std::min(left_, kMessage);
    left_ -= bytes;
    out_ = Message(bytes);
    StartWrite(&out_);
  }

  void OnDone() override { delete this; }

 private:
  bool first_ = true;
  int64_t left_ = 0;
  grpc::ByteBuffer in_, out_;
};

/// Sends each message back.
class ServedEcho final : public grpc::ServerGenericBidiReactor {
 public:
  ServedEcho() { StartRead(&message_); }
  void OnReadDone(bool ok) override {
    if (ok) {
      StartWrite(&message_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&message_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer message_;
};

class Service final : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    if (context->method() == kEchoMethod) return new ServedEcho;
    return new ServedStream;
  }
};

class Exchange final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Exchange(grpc::GenericStub& stub, int64_t in, int64_t out) : left_(in) {
    stub.PrepareBidiStreamingCall(&context_, kStreamMethod, {}, this);
    const grpc::Slice size(&out, sizeof(out));
    message_ = grpc::ByteBuffer(&size, 1);
    StartWrite(&message_);
    StartRead(&reply_);
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return;
    if (left_ == 0) {
      StartWritesDone();
      return;
    }
    const int64_t bytes = std::min(left_, kMessage);
    left_ -= bytes;
    message_ = Message(bytes);
    StartWrite(&message_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    received_ += static_cast<int64_t>(reply_.Length());
    StartRead(&reply_);
  }

  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mutex_);
    status_ = status;
    done_ = true;
    changed_.notify_all();
  }

  /// Bytes received; exits if the stream failed.
  int64_t Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
    if (!status_.ok()) {
      std::cerr << "bare stream: " << status_.error_message() << "\n";
      std::exit(1);
    }
    return received_;
  }

 private:
  grpc::ClientContext context_;
  int64_t left_;
  int64_t received_ = 0;
  grpc::ByteBuffer message_, reply_;
  std::mutex mutex_;
  std::condition_variable changed_;
  grpc::Status status_;
  bool done_ = false;
};

}  // namespace

class BareEcho::Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Stream(const std::string& address)
      : stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())) {
    stub_.PrepareBidiStreamingCall(&context_, kEchoMethod, {}, this);
    AddHold();  // messages are sent from outside
    StartCall();
  }
  ~Stream() override {
    StartWritesDone();
    RemoveHold();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }

  void SendAndWait() {
    message_ = Message(kEchoBytes);
    answered_ = false;
    StartRead(&reply_);
    StartWrite(&message_);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return answered_; });
    if (failed_) {
      std::cerr << "bare stream: no echo\n";
      std::exit(1);
    }
  }

  void OnReadDone(bool ok) override {
    std::lock_guard lock(mutex_);
    answered_ = true;
    failed_ = !ok;
    changed_.notify_all();
  }
  void OnDone(const grpc::Status& /*status*/) override {
    std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr int64_t kEchoBytes = 64;

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer message_, reply_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool answered_ = false, failed_ = false, done_ = false;
};

BareEcho::BareEcho(const std::string& address) : stream_(std::make_unique<Stream>(address)) {}
BareEcho::~BareEcho() = default;

double BareEcho::Milliseconds() {
  const auto begin = std::chrono::steady_clock::now();
  stream_->SendAndWait();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

int ServeBareStreams(const std::string& address) {
  Service service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  server->Wait();
  return 0;
}

double BareStreamMilliseconds(const std::string& address, int64_t in, int64_t out) {
  static const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  const auto begin = std::chrono::steady_clock::now();
  Exchange exchange(stub, in, out);
  if (exchange.Wait() != out) {
    std::cerr << "bare stream: the reply is too short\n";
    std::exit(1);
  }
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace sparsed::bench
