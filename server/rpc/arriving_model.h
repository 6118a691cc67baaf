// A model whose files come in chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/coverage.h"
#include "engine/memory/budget.h"
#include "engine/planning/model.h"
#include "sparsed/v1/admin.pb.h"

namespace sparsed::server {

/// Not thread-safe: one stream feeds it.
class ArrivingModel {
 public:
  /// INVALID_ARGUMENT if there cannot be such files. `budget` outlives this.
  static absl::StatusOr<std::unique_ptr<ArrivingModel>> Begin(engine::Budget& budget,
                                                              const v1::PutModelHeader& header);

  /// Where `size` bytes at `offset` of the header's file `file` go. INVALID_ARGUMENT if there are
  /// none, or they came already; RESOURCE_EXHAUSTED.
  absl::StatusOr<std::byte*> Claim(uint32_t file, uint64_t offset, uint64_t size);
  /// Bytes that are to come, and those of memory that what came takes.
  size_t announced() const { return announced_; }
  size_t counted() const { return charge_ == nullptr ? 0 : announced_; }

  const std::string& name() const { return name_; }
  bool replace() const { return replace_; }
  /// All of them; INVALID_ARGUMENT names one that is not whole. This is empty afterwards.
  absl::StatusOr<engine::Model::Files> Finish();

 private:
  struct File {
    std::string name, contents;
    Coverage received;
  };

  explicit ArrivingModel(engine::Budget& budget) : budget_(budget) {}

  engine::Budget& budget_;
  std::string name_;
  bool replace_ = false;
  size_t announced_ = 0;
  std::vector<File> files_;
  engine::Budget::Charge charge_ = nullptr;  ///< for all, once something came
};

}  // namespace sparsed::server
