// The engine's modules around a catalog, for tests: in memory or over a directory that outlives
// them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/catalog/catalog.h"
#include "engine/catalog/dense_catalog.h"
#include "engine/memory/budget.h"
#include "engine/store/store.h"
#include "tests/generate.h"

namespace sparsed::engine {

inline constexpr int64_t kPlenty = int64_t{1} << 30;

/// A directory that is removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sparsed-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Catalogs over a store. `directory` empty: in memory.
struct Modules {
  explicit Modules(const std::string& directory = "", int64_t memory = kPlenty,
                   int64_t preparation_memory = kPlenty, const DenseOptions& held = {})
      : store(directory.empty() ? MakeInMemoryStore()
                                : OpenStore(PosixFileSystem(), directory).value()),
        budget(memory, preparation_memory),
        catalog(*store, budget),
        dense(*store, budget, held),
        contents(store->Load().value()) {
    EXPECT_TRUE(catalog.Restore(contents).ok());
    EXPECT_TRUE(dense.Restore(contents).ok());
  }

  std::unique_ptr<Store> store;
  Budget budget;
  Catalog catalog;
  DenseCatalog dense;
  StoreContents contents;  ///< as the store was opened
};

/// Sends an array in chunks of odd size, the last one first.
template <typename Receiver, typename T>
absl::Status Feed(Receiver& to, uint32_t array, const std::vector<T>& data) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data.data());
  const size_t size = data.size() * sizeof(T);
  constexpr size_t kChunk = 1001;
  for (size_t end = size; end > 0;) {
    const size_t begin = end > kChunk ? end - kChunk : 0;
    auto claimed = to.Claim(array, begin, end - begin);
    if (!claimed.ok()) return claimed.status();
    std::memcpy(*claimed, bytes + begin, end - begin);
    end = begin;
  }
  return absl::OkStatus();
}

inline UploadHeader HeaderOf(const std::string& name, const test::Pattern& s) {
  UploadHeader header;
  header.tenant = std::string("t");
  header.name = name;
  header.rows = s.rows;
  header.cols = s.cols;
  header.nnz = s.nnz();
  return header;
}

/// Uploads arrays of any shape, right or wrong.
template <typename Offset, typename Value>
absl::StatusOr<MatrixLease> Send(Catalog& catalog, const UploadHeader& header,
                                 const std::vector<Offset>& row_offsets,
                                 const std::vector<int32_t>& column_indices,
                                 const std::vector<Value>& values) {
  auto upload = catalog.BeginUpload(header);
  if (!upload.ok()) return upload.status();
  if (!(*upload)->pattern_known()) {
    absl::Status fed = Feed(**upload, Upload::kRowOffsets, row_offsets);
    if (fed.ok()) fed = Feed(**upload, Upload::kColumnIndices, column_indices);
    if (!fed.ok()) return fed;
  }
  if (!header.values_are_ones) {
    absl::Status fed = Feed(**upload, Upload::kValues, values);
    if (!fed.ok()) return fed;
  }
  return (*upload)->Finish(2);
}

inline std::vector<float> FloatsOf(const test::Pattern& s, uint64_t seed = 1) {
  const std::vector<double> values = test::RandomValues(s.nnz(), seed);
  return {values.begin(), values.end()};
}

/// Uploads a pattern with random f32 values.
inline absl::StatusOr<MatrixLease> SendMatrix(Catalog& catalog, const std::string& name,
                                              const test::Pattern& s, uint64_t seed = 1) {
  return Send(catalog, HeaderOf(name, s), s.row_offsets, s.column_indices, FloatsOf(s, seed));
}

template <typename T>
std::vector<T> Elements(const absl::StatusOr<Array>& array) {
  EXPECT_TRUE(array.ok()) << array.status();
  if (!array.ok()) return {};
  EXPECT_EQ(array->type, ElementTypeOf<T>());
  const auto elements = array->template As<T>();
  return {elements.begin(), elements.end()};
}

/// Waits until `condition` holds; false after a minute.
template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace sparsed::engine
