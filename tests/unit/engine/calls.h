// What tests do with calls: send the operands, collect the result, compare it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/execution/call.h"
#include "kernels/reference/reference.h"

namespace sparsed::engine {

/// A call's result and its end.
class Result final : public ResultSink {
 public:
  void OnBegin(CallBegin begin) override {
    plan = begin.plan;
    began = true;
  }
  void OnArray(uint32_t, uint64_t offset, Array part) override {
    bytes.resize(offset + part.bytes());
    if (part.bytes() > 0) std::memcpy(bytes.data() + offset, part.buffer.data(), part.bytes());
  }
  void OnBlock(ResultBlock block) override {
    EXPECT_EQ(block.rows.begin, static_cast<int64_t>(row_offsets.size()) - 1);
    EXPECT_EQ(block.nnz_begin, static_cast<int64_t>(column_indices.size()));
    const auto ends = std::as_const(block.row_offsets).As<int64_t>();
    const auto columns = std::as_const(block.column_indices).As<int32_t>();
    row_offsets.insert(row_offsets.end(), ends.begin(), ends.end());
    column_indices.insert(column_indices.end(), columns.begin(), columns.end());
    OnArray(0, bytes.size(), std::move(block.values));
  }
  void OnEnd(CallEnd end) override {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "it ended twice";
    end_ = std::move(end);
    ended_ = true;
    changed_.notify_all();
  }
  absl::Status Wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(1), [this] { return ended_; }));
    return end_.status;
  }
  /// After Wait.
  const CallEnd& end() const { return end_; }
  /// Of a dense result, or the values of a sparse one.
  template <typename T>
  std::vector<T> Elements() const {
    std::vector<T> elements(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
    return elements;
  }

  std::string plan;
  std::atomic<bool> began = false;
  std::vector<std::byte> bytes;
  std::vector<int64_t> row_offsets = {0};  ///< of a sparse result
  std::vector<int32_t> column_indices;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  CallEnd end_;
};

/// Sends one operand in chunks.
template <typename T>
absl::Status FeedAndCommit(Call& call, uint32_t array, const std::vector<T>& data) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data.data());
  constexpr size_t kChunk = 30'001;
  for (size_t at = 0; at < data.size() * sizeof(T); at += kChunk) {
    const size_t size = std::min(kChunk, data.size() * sizeof(T) - at);
    absl::StatusOr<ClaimedBytes> to = call.Claim(array, at, size);
    if (!to.ok()) return to.status();
    std::memcpy(to->data(), bytes + at, size);
    if (absl::Status s = to->Commit(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

/// Each element within the error of a sum of `terms` products in T whose magnitudes sum up to
/// `magnitudes`, and of a scaling before and after it.
template <typename T>
void ExpectSums(std::span<const T> got, const std::vector<double>& expected,
                const std::vector<double>& magnitudes, int64_t terms) {
  ASSERT_EQ(got.size(), expected.size());
  const double epsilon = std::numeric_limits<T>::epsilon() * static_cast<double>(terms + 4);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - expected[i]), epsilon * magnitudes[i])
        << "element " << i << " is " << got[i] << ", not " << expected[i];
  }
}

}  // namespace sparsed::engine
