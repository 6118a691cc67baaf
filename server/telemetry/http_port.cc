#include "server/telemetry/http_port.h"

#include <civetweb.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>

namespace sparsed::server {

class HttpPort::Impl {
 public:
  explicit Impl(std::map<std::string, Page> pages) : pages_(std::move(pages)) {
    mg_init_library(0);
  }
  ~Impl() {
    if (context_ != nullptr) Stop();
    mg_exit_library();
  }

  absl::Status Listen(const std::string& address) {
    // Few threads and short waits: a scraper or a person, never a crowd.
    const char* options[] = {
        "listening_ports", address.c_str(),     "num_threads", "4",    "request_timeout_ms",
        "10000",           "enable_keep_alive", "no",          nullptr};
    mg_callbacks callbacks = {};
    callbacks.log_message = [](const mg_connection* connection, const char* message) {
      const auto* data = static_cast<const Impl*>(mg_get_user_data(mg_get_context(connection)));
      // The first one is the cause, what follows its consequences.
      if (data != nullptr && data->failure_.empty()) data->failure_ = message;
      return 1;
    };
    host_ = address.substr(0, address.rfind(':'));
    context_ = mg_start(&callbacks, this, options);
    if (context_ == nullptr) {
      return absl::FailedPreconditionError(
          fmt::format("cannot serve metrics at {}: {}", address,
                      failure_.empty() ? "no reason given" : failure_));
    }
    mg_set_request_handler(
        context_, "**",
        [](mg_connection* connection, void* self) {
          return static_cast<Impl*>(self)->Answer(connection);
        },
        this);
    return absl::OkStatus();
  }

  int port() const {
    mg_server_port port = {};
    return mg_get_server_ports(context_, 1, &port) == 1 ? port.port : 0;
  }

 private:
  /// civetweb's acceptor notices the end at its next connection, or after two seconds: so it gets
  /// connections until it is gone.
  void Stop() {
    const int port = this->port();
    std::atomic<bool> stopped = false;
    std::thread stopping([&] {
      mg_stop(context_);
      stopped = true;
    });
    while (!stopped) {
      std::array<char, 64> error;
      mg_connection* knock =
          mg_connect_client(host_.c_str(), port, /*use_ssl=*/0, error.data(), error.size());
      if (knock != nullptr) mg_close_connection(knock);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    stopping.join();
  }

  int Answer(mg_connection* connection) {
    const mg_request_info* request = mg_get_request_info(connection);
    const std::string_view method = request->request_method;
    HttpReply reply;
    const auto page = pages_.find(request->local_uri);
    if (method != "GET" && method != "HEAD") {
      reply.status = 405;
      reply.body = "only GET and HEAD\n";
    } else if (page == pages_.end()) {
      reply.status = 404;
      reply.body = "no such page\n";
    } else {
      reply = page->second();
    }
    mg_response_header_start(connection, reply.status);
    mg_response_header_add(connection, "Content-Type", reply.content_type.c_str(), -1);
    mg_response_header_add(connection, "Content-Length", std::to_string(reply.body.size()).c_str(),
                           -1);
    mg_response_header_add(connection, "Cache-Control", "no-store", -1);
    mg_response_header_add(connection, "X-Content-Type-Options", "nosniff", -1);
    mg_response_header_add(connection, "Content-Security-Policy",
                           "default-src 'none'; style-src 'unsafe-inline'", -1);
    mg_response_header_send(connection);
    if (method != "HEAD") mg_write(connection, reply.body.data(), reply.body.size());
    return reply.status;
  }

  const std::map<std::string, Page> pages_;
  mutable std::string failure_;  // written only while mg_start runs
  std::string host_;
  mg_context* context_ = nullptr;
};

HttpPort::HttpPort(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpPort::~HttpPort() = default;

absl::StatusOr<std::unique_ptr<HttpPort>> HttpPort::Start(const std::string& address,
                                                          std::map<std::string, Page> pages) {
  std::unique_ptr<HttpPort> http(new HttpPort(std::make_unique<Impl>(std::move(pages))));
  if (absl::Status status = http->impl_->Listen(address); !status.ok()) return status;
  http->address_ = fmt::format("{}:{}", address.substr(0, address.rfind(':')), http->impl_->port());
  return http;
}

}  // namespace sparsed::server
