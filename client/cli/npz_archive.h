// The members of an .npz archive, several of which may be read side by side.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/byte_source.h"
#include "client/cli/npy_stream.h"

namespace sparsed::cli {

/// An array being read.
class NpzArray {
 public:
  NpyStream& operator*() { return array_; }
  NpyStream* operator->() { return &array_; }
  /// OK if all that was read of it was undamaged; INVALID_ARGUMENT names the array.
  absl::Status Finish();

 private:
  friend class NpzArchive;
  NpzArray(std::string name, std::unique_ptr<ByteStream> stream, NpyStream array)
      : name_(std::move(name)), stream_(std::move(stream)), array_(std::move(array)) {}

  std::string name_;
  std::unique_ptr<ByteStream> stream_;
  NpyStream array_;
};

class NpzArchive {
 public:
  /// What cannot be read from anywhere goes to a temporary file first.
  static absl::StatusOr<NpzArchive> Open(ByteSource source);

  /// For messages.
  const std::string& name() const { return name_; }
  /// Of all members, without ".npy".
  const std::vector<std::string>& members() const { return members_; }
  bool Has(std::string_view member) const;
  /// INVALID_ARGUMENT if there is none, or if it is not an array of numbers.
  absl::StatusOr<NpzArray> Array(const std::string& member) const;
  /// An array that is one text of a few characters.
  absl::StatusOr<std::string> Text(const std::string& member) const;

 private:
  NpzArchive() = default;
  absl::StatusOr<std::unique_ptr<ByteStream>> Member(const std::string& member) const;

  std::string name_;
  std::string path_;                       ///< where it can be opened
  std::shared_ptr<const void> temporary_;  ///< its file, if it is a temporary one
  std::vector<std::string> members_;
};

}  // namespace sparsed::cli
