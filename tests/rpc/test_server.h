// The whole server on a Unix socket of its own, spoken to through ordinary generated stubs.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/config/config.h"
#include "server/server.h"
#include "sparsed/v1/admin.grpc.pb.h"
#include "sparsed/v1/buffers.grpc.pb.h"
#include "sparsed/v1/catalog.grpc.pb.h"
#include "sparsed/v1/compute.grpc.pb.h"
#include "tests/generate.h"

namespace sparsed::test {

class TestServer {
 public:
  /// In memory, on the CPU, one worker slot, no preparation, no HTTP port; `adjust` may change
  /// that.
  explicit TestServer(const std::function<void(server::Config&)>& adjust = {});
  ~TestServer();

  /// A connection of its own each time.
  std::shared_ptr<grpc::Channel> Connect(grpc::ChannelArguments arguments = {}) const;

  server::Server& server() { return *server_; }
  engine::Engine& engine() { return server_->engine(); }
  const std::string& address() const { return server_->addresses().front(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  v1::Catalog::Stub& catalog() { return *catalog_; }
  v1::Compute::Stub& compute() { return *compute_; }
  v1::Buffers::Stub& buffers() { return *buffers_; }
  v1::Admin::Stub& admin() { return *admin_; }

  /// The body of a page of the HTTP port; its head goes to `*head` if that is not null.
  std::string Page(const std::string& path, std::string* head = nullptr) const;
  /// What a metric says, by its name with labels; -1 if it is not there.
  double Sample(const std::string& name) const;
  /// True once no request is in flight and no more than `bytes` of memory are in use.
  bool ComesBackTo(int64_t bytes);

 private:
  std::string folder_;
  std::unique_ptr<server::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Catalog::Stub> catalog_;
  std::unique_ptr<v1::Compute::Stub> compute_;
  std::unique_ptr<v1::Buffers::Stub> buffers_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

/// For `adjust`: with the HTTP port.
void WithPages(server::Config& config);

/// Polls until `condition` holds; false after half a minute.
bool Eventually(const std::function<bool()>& condition);

/// A chunk envelope: `Request` is any streamed request.
template <typename Request>
Request ChunkOf(uint64_t id, uint32_t array, uint64_t offset, std::string_view data) {
  Request request;
  v1::Chunk& chunk = *request.mutable_chunk();
  chunk.set_request_id(id);
  chunk.set_array(array);
  chunk.set_offset(offset);
  chunk.set_data(std::string(data));
  return request;
}

template <typename T>
std::string_view BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Writes an array in chunks of `chunk_bytes`.
template <typename Request, typename Writer>
bool WriteArray(Writer& writer, uint64_t id, uint32_t array, std::string_view bytes,
                size_t chunk_bytes = 1 << 20) {
  for (size_t offset = 0; offset < bytes.size(); offset += chunk_bytes) {
    if (!writer.Write(ChunkOf<Request>(id, array, offset, bytes.substr(offset, chunk_bytes)))) {
      return false;
    }
  }
  return true;
}

v1::UploadHeader HeaderOf(const std::string& name, const Pattern& pattern);
/// Values are f32.
std::vector<float> FloatValues(int64_t count, uint64_t seed);
/// Uploads header, arrays, closes; the last reply's matrix goes to `*info`.
grpc::Status Upload(v1::Catalog::Stub& stub, const v1::UploadHeader& header, const Pattern& pattern,
                    const std::vector<float>& values, v1::MatrixInfo* info = nullptr);
/// Likewise, of values of the header's type.
grpc::Status UploadBytes(v1::Catalog::Stub& stub, const v1::UploadHeader& header,
                         const Pattern& pattern, std::string_view values, size_t chunk_bytes,
                         v1::MatrixInfo* info = nullptr);
/// A matrix named `name` with values from seed 1; fails the test if it is refused.
std::vector<float> MustUpload(TestServer& server, const std::string& name, const Pattern& pattern);
/// New values for it.
void MustUpdate(TestServer& server, const std::string& name, const std::vector<float>& values);

/// What came back for one request.
struct Answer {
  std::vector<v1::Begin> begins;
  std::vector<v1::RowBlock> blocks;
  std::vector<std::string> arrays;  ///< by index, as the chunks say
  std::vector<v1::End> ends;

  int code() const { return ends.size() == 1 ? ends.front().status().code() : -1; }
  std::string message() const { return ends.empty() ? "no end" : ends.front().status().message(); }
  template <typename T>
  std::vector<T> Values(size_t index) const {
    const std::string& bytes = arrays.at(index);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values.data()));
    return values;
  }
  void Add(const v1::ComputeReply& reply);
};
/// The request that a reply belongs to.
uint64_t RequestOf(const v1::ComputeReply& reply);

using SpmmStream = grpc::ClientReaderWriter<v1::SpmmRequest, v1::ComputeReply>;
v1::SpmmRequest SpmmStartOf(uint64_t id, const std::string& matrix, int64_t rows, int64_t k);
/// Reads until `ends` requests have ended; replies of request `id` go to (*answers)[id].
template <typename Stream>
bool ReadUntilEnds(Stream& stream, size_t ends, std::map<uint64_t, Answer>* answers) {
  v1::ComputeReply reply;
  for (size_t seen = 0; seen < ends;) {
    if (!stream.Read(&reply)) return false;
    (*answers)[RequestOf(reply)].Add(reply);
    if (reply.has_end()) ++seen;
  }
  return true;
}
/// One SpMM with a streamed operand on a stream of its own; checks nothing.
Answer Spmm(v1::Compute::Stub& stub, const std::string& matrix, int64_t rows, int64_t k,
            const std::vector<float>& b);
/// The server does what it should: a small product comes out right. Needs matrix "good", made by
/// MakeGood.
void MakeGood(TestServer& server);
void ExpectGood(TestServer& server);

}  // namespace sparsed::test
