// The HTTP port: pages that are made when they are asked for.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sparsed::server {

struct HttpReply {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpPort {
 public:
  /// Makes one path's page; called from the port's threads.
  using Page = std::function<HttpReply()>;

  /// Serves GET and HEAD of `pages`' paths at "host:port". FAILED_PRECONDITION with the reason if
  /// it cannot listen there.
  static absl::StatusOr<std::unique_ptr<HttpPort>> Start(const std::string& address,
                                                         std::map<std::string, Page> pages);
  /// Waits for pages that are being made.
  ~HttpPort();

  /// With the port that it got if port 0 was asked for.
  const std::string& address() const { return address_; }

  class Impl;

 private:
  explicit HttpPort(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace sparsed::server
