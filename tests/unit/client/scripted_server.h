// A server that answers as the test says, whatever was asked.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/chunk_codec.h"
#include "sparsed/v1/admin.pb.h"

namespace sparsed::test {

/// How a call of one method goes.
struct Answer {
  std::vector<grpc::ByteBuffer> replies{};
  /// Sent behind the replies; none: the call stays open until the client ends it.
  std::optional<grpc::Status> end = grpc::Status::OK;
  /// Answers when the client has closed its sending side; otherwise at its first message, after
  /// which nothing is read any more.
  bool after_all = false;
};

/// By method ("/sparsed.v1.Catalog/Get"); the others are UNIMPLEMENTED, but for GetServerInfo.
using Answers = std::map<std::string, Answer>;

class ScriptedServer {
 public:
  enum class Place : uint8_t { kSocket, kPort };  ///< a Unix socket; one of loopback's ports

  explicit ScriptedServer(Answers answers, Place place = Place::kSocket)
      : service_(std::move(answers)) {
    static std::atomic<int> number = 0;
    address_ = "unix:" + testing::TempDir() + "sparsed_scripted_" + std::to_string(getpid()) + "_" +
               std::to_string(number++);
    grpc::ServerBuilder builder;
    int port = 0;
    if (place == Place::kPort) address_ = "127.0.0.1:0";
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    if (place == Place::kPort) address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~ScriptedServer() { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& address() const { return address_; }
  /// How often the method was called.
  int calls(const std::string& method) { return service_.calls(method); }
  /// What calls of the method began with.
  std::vector<grpc::ByteBuffer> first_messages(const std::string& method) {
    return service_.first_messages(method);
  }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    Reactor(Answer answer, std::function<void(const grpc::ByteBuffer&)> first)
        : answer_(std::move(answer)), first_(std::move(first)) {
      StartRead(&in_);
    }

    void OnReadDone(bool ok) override {
      if (ok && !std::exchange(begun_, true)) first_(in_);
      if (ok && answer_.after_all) return StartRead(&in_);
      WriteNext();
    }
    void OnWriteDone(bool ok) override {
      if (ok) WriteNext();
    }
    void OnCancel() override { FinishOnce(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }

   private:
    void WriteNext() {
      if (next_ < answer_.replies.size()) {
        const std::lock_guard lock(mutex_);
        if (!finished_) StartWrite(&answer_.replies[next_++]);
      } else if (answer_.end) {
        FinishOnce(*answer_.end);
      }
    }
    void FinishOnce(const grpc::Status& status) {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(finished_, true)) Finish(status);
    }

    Answer answer_;
    const std::function<void(const grpc::ByteBuffer&)> first_;
    bool begun_ = false;
    grpc::ByteBuffer in_;
    size_t next_ = 0;
    std::mutex mutex_;  // guards finished_
    bool finished_ = false;
  };

  class Service final : public grpc::CallbackGenericService {
   public:
    explicit Service(Answers answers) : answers_(std::move(answers)) {
      v1::ServerInfo info;
      info.set_max_chunk_bytes(1 << 20);
      info.set_max_requests_per_stream(4);
      answers_.insert({"/sparsed.v1.Admin/GetServerInfo", {.replies = {wire::Encode(info)}}});
    }

    int calls(const std::string& method) {
      const std::lock_guard lock(mutex_);
      return calls_[method];
    }

    std::vector<grpc::ByteBuffer> first_messages(const std::string& method) {
      const std::lock_guard lock(mutex_);
      return first_messages_[method];
    }

   private:
    grpc::ServerGenericBidiReactor* CreateReactor(
        grpc::GenericCallbackServerContext* context) override {
      {
        const std::lock_guard lock(mutex_);
        ++calls_[context->method()];
      }
      const auto answer = answers_.find(context->method());
      return new Reactor(answer == answers_.end()
                             ? Answer{.end = grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "")}
                             : answer->second,
                         [this, method = context->method()](const grpc::ByteBuffer& message) {
                           const std::lock_guard lock(mutex_);
                           first_messages_[method].push_back(message);
                         });
    }

    Answers answers_;
    std::mutex mutex_;
    std::map<std::string, int> calls_;
    std::map<std::string, std::vector<grpc::ByteBuffer>> first_messages_;
  };

  std::string address_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace sparsed::test
