// Pages of a listing: replies that any gRPC client takes, however much there is to list.
#pragma once

#include <google/protobuf/message_lite.h>

#include <cstddef>
#include <cstdint>

namespace sparsed::server {

class Page {
 public:
  /// `max_entries` as the client asked, 0 or less for no limit of its own.
  explicit Page(int32_t max_entries) : max_entries_(max_entries) {}

  /// False if the entry belongs to the next page; the first one never does.
  bool Take(const google::protobuf::MessageLite& entry) {
    const size_t bytes = bytes_ + entry.ByteSizeLong();
    if (entries_ > 0 && (bytes > kMaxBytes || entries_ == max_entries_)) return false;
    ++entries_;
    bytes_ = bytes;
    return true;
  }

 private:
  static constexpr size_t kMaxBytes = size_t{1} << 20;
  const int32_t max_entries_;
  int32_t entries_ = 0;
  size_t bytes_ = 0;
};

}  // namespace sparsed::server
