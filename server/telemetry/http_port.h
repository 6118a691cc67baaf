// The HTTP port: pages that are made when they are asked for, and probes that always answer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace sparsed::server {

struct HttpReply {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

/// Who looks, as the gate found. Without a gate: nobody, who may see nothing of anybody's.
struct Viewer {
  std::string tenant;  ///< whose things he may see
  bool all = false;    ///< those of all tenants, and the server's
};

struct HttpRequest {
  std::string method;
  std::string path;
  std::string query;               ///< what is behind the '?', as it came
  std::string authorization;       ///< the header's value; empty: there is none
  std::string host;                ///< likewise
  bool from_this_machine = false;  ///< and nobody in between reads it
  Viewer viewer = {};
};

/// Serves GET and HEAD, one request a connection. Connections that send no request cost nobody
/// anything: they wait without a thread, and the oldest go first.
class HttpPort {
 public:
  /// Makes one path's reply.
  using Page = std::function<HttpReply(const HttpRequest&)>;
  using Pages = std::map<std::string, Page>;
  /// What who asks for a page gets in its place; nullopt: the page, for the viewer that it sets.
  /// Must not block.
  using Gate = std::function<std::optional<HttpReply>(HttpRequest&)>;

  /// Serves at "host:port". `pages` may take their time: they are made by threads of their own, a
  /// few at once. `probes` are answered by the thread that accepts, whatever the pages do: they
  /// must not block, and their bodies are a sentence; they are open, of pages `gate` says.
  /// FAILED_PRECONDITION with the reason if it cannot listen there.
  static absl::StatusOr<std::unique_ptr<HttpPort>> Start(const std::string& address, Pages pages,
                                                         Pages probes, Gate gate = {});
  /// Waits for pages that are being made.
  ~HttpPort();

  /// With the port that it got if port 0 was asked for.
  const std::string& address() const;

  class Impl;

 private:
  explicit HttpPort(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsed::server
