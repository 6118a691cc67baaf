#include "server/rpc/arriving_model.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "engine/memory/array_assembler.h"
#include "engine/planning/model_store.h"

namespace sparsed::server {

absl::StatusOr<std::unique_ptr<ArrivingModel>> ArrivingModel::Begin(
    engine::Budget& budget, const v1::PutModelHeader& header) {
  if (header.files_size() > static_cast<int>(engine::kMostModelFiles)) {
    return absl::InvalidArgumentError(fmt::format("the model has {} files, {} at most are taken",
                                                  header.files_size(), engine::kMostModelFiles));
  }
  if (!engine::IsModelName(header.name())) {
    return absl::InvalidArgumentError("that is no name of a model");
  }
  std::map<std::string, size_t> bytes;
  for (const v1::ModelFile& file : header.files()) {
    if (!bytes.emplace(file.name(), file.bytes()).second) {
      return absl::InvalidArgumentError(fmt::format("the file {} is there twice", file.name()));
    }
  }
  if (absl::Status status = engine::CheckModelFiles(bytes); !status.ok()) return status;
  std::unique_ptr<ArrivingModel> model(new ArrivingModel(budget));
  model->name_ = header.name();
  model->replace_ = header.replace();
  for (const v1::ModelFile& file : header.files()) {
    model->announced_ += file.bytes();
    model->files_.push_back({file.name(), {}, Coverage(file.bytes())});
  }
  return model;
}

absl::StatusOr<std::byte*> ArrivingModel::Claim(uint32_t file, uint64_t offset, uint64_t size) {
  if (file >= files_.size()) {
    return absl::InvalidArgumentError(
        fmt::format("chunk of array {}: the header names {} files", file, files_.size()));
  }
  File& of = files_[file];
  if (of.received.intervals() >= engine::ArrayAssembler::kMaxRanges &&
      !of.received.Touches(offset, size)) {
    return absl::InvalidArgumentError(fmt::format("the chunks of {} leave more than {} gaps",
                                                  of.name, engine::ArrayAssembler::kMaxRanges));
  }
  if (!of.received.Add(offset, size)) {
    return absl::InvalidArgumentError(
        fmt::format("a chunk of {} bytes at {} of {} is outside of it, or came already", size,
                    offset, of.name));
  }
  if (charge_ == nullptr) {
    auto charge = budget_.Count(announced_, engine::MemoryUse::kRequests);
    if (!charge.ok()) return charge.status();
    charge_ = *std::move(charge);
  }
  // Where it has its place until the end.
  if (of.contents.empty()) of.contents.resize(of.received.size());
  return reinterpret_cast<std::byte*>(of.contents.data() + offset);
}

absl::StatusOr<engine::Model::Files> ArrivingModel::Finish() {
  engine::Model::Files files;
  for (File& file : files_) {
    if (!file.received.complete()) {
      return absl::InvalidArgumentError(fmt::format("{} is not whole: {} of its {} bytes came",
                                                    file.name, file.received.covered(),
                                                    file.received.size()));
    }
    files.emplace(std::move(file.name), std::move(file.contents));
  }
  files_.clear();
  return files;
}

}  // namespace sparsed::server
