// The dense operands of one request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/execution/executor_impl.h"
#include "engine/execution/operand.h"

namespace sparsed::engine {

/// INVALID_ARGUMENT unless `memory`, which a caller shares, may hold a matrix of `shape`: from its
/// first byte on, at a multiple of Buffer::kAlignment.
absl::StatusOr<Array> SharedArray(std::string_view what, const Buffer& memory,
                                  const DenseShape& shape);

/// One that is held. NOT_FOUND; INVALID_ARGUMENT if it is announced as another.
absl::StatusOr<HeldDenseLease> FindHeld(const Executor::Impl& impl, std::string_view what,
                                        const OperandSpec& spec, std::string_view tenant);

/// Looks them up and checks them when the request begins, has those that come in its stream put
/// together, and says what is to be read from the disk. Used as the call is
/// (engine/execution/call.h).
class RequestOperands {
 public:
  /// `impl` and `owner`, who pays for their memory, outlive this.
  RequestOperands(Executor::Impl& impl, MemoryOwner& owner) : impl_(impl), owner_(owner) {}

  /// Finds one among the tenant's and checks it. NOT_FOUND, INVALID_ARGUMENT.
  absl::Status Add(std::string_view what, const OperandSpec& spec, const std::string& tenant);
  /// Makes ready for those that come in the stream, which are put together on `gpu` (null: on the
  /// host). RESOURCE_EXHAUSTED if one cannot fit there.
  absl::Status ExpectStreams(GpuBackend* gpu);

  bool empty() const { return operands_.empty(); }
  size_t size() const { return operands_.size(); }
  const Operand& operator[](size_t i) const { return operands_[i]; }
  const Operand& back() const { return operands_.back(); }
  auto begin() const { return operands_.begin(); }
  auto end() const { return operands_.end(); }
  std::vector<Operand::Held> held() const;
  /// That most of those shared in a GPU's memory are on; null: none is.
  GpuBackend* gpu() const;
  /// Bytes of those that come in the stream.
  size_t streamed_bytes() const;

  // As Call's.
  absl::StatusOr<ClaimedBytes> Claim(uint32_t array, uint64_t offset, uint64_t size);
  bool complete() const;
  /// Empty: nothing.
  std::string Missing() const;
  size_t announced() const;
  size_t counted() const;

  /// What reads the held ones that are neither in memory nor on `gpu` (null: the CPU runs it).
  void AppendLoaders(GpuBackend* gpu, std::vector<Job::Loader>& loaders) const;
  /// None of those that came in the stream is in a GPU's memory.
  bool on_host() const;
  absl::Status MoveToHost(const Token& token);
  /// The stream of the worker slot that they were placed for has passed.
  void Settled();
  void Clear() { operands_.clear(); }

 private:
  Executor::Impl& impl_;
  MemoryOwner& owner_;
  std::vector<Operand> operands_;
};

}  // namespace sparsed::engine
