// A file that has its name only once it is complete; until then a signal that ends the program
// removes it.
#pragma once

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsed::cli {

class OutputFile {
 public:
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  /// Removes what was written unless it was committed.
  ~OutputFile();

  /// Appends.
  absl::Status Write(const void* data, size_t size);
  absl::Status Write(std::string_view text) { return Write(text.data(), text.size()); }
  /// Overwrites bytes that were written before.
  absl::Status Patch(size_t offset, std::string_view text);
  /// For its owner alone; before anything is written.
  absl::Status KeepPrivate();
  /// Returns when what was written would survive a power cut.
  absl::Status Sync();
  /// Flushes and renames to `path`.
  absl::Status Commit();

  const std::string& path() const { return path_; }
  /// Where the bytes are until Commit().
  const std::string& temporary_path() const { return temporary_path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  /// Its place in the list that signals' handlers read; null if there is none left.
  struct ForgetPartial {
    void operator()(void* place) const;
  };
  using PartialPlace = std::unique_ptr<void, ForgetPartial>;
  static PartialPlace RememberPartial(const std::string& path);

  OutputFile(std::string path, std::string temporary_path, std::FILE* file, PartialPlace partial)
      : path_(std::move(path)),
        temporary_path_(std::move(temporary_path)),
        partial_(std::move(partial)),
        file_(file) {}
  absl::Status Failed(std::string_view doing) const;

  std::string path_;
  std::string temporary_path_;
  PartialPlace partial_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace sparsed::cli
