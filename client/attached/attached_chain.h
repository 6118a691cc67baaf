// A chain of the caller's, as it runs on what is attached.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/attached/attachment.h"
#include "client/attached/exported_chain.h"
#include "client/src/connection.h"
#include "sparsed/attached.h"
#include "sparsed/chain.h"

namespace sparsed {
inline namespace client {

/// Checks a chain as the server does, looks up what its steps run on, and lays out its values:
/// those of nonzeros in the order of CSR, except where the caller has them. Used once, by one
/// thread.
class AttachedChain {
 public:
  using Deadline = LocalSocket::Clock::time_point;

  /// All of them outlive it.
  AttachedChain(Attachment& attachment, const Chain& chain, const std::string& matrix,
                Deadline deadline)
      : attachment_(attachment), chain_(chain), name_(matrix), deadline_(deadline) {}

  /// Whether it can run here; what cannot, and what is wrong, is for the server. An error only if
  /// the deadline passed while the server said nothing.
  absl::StatusOr<bool> Build();

  // Of one that can.
  const ChainProgram& program() const { return program_; }
  /// Of the values.
  uint64_t version() const { return matrix_->version; }
  /// What each step runs.
  std::vector<std::string>& plans() { return plans_; }
  uint64_t bytes_in() const { return bytes_in_; }
  uint64_t bytes_out() const { return bytes_out_; }

  /// Runs it on the server, with copies of what is in the GPU's memory. FAILED_PRECONDITION while
  /// the stream is captured.
  static absl::StatusOr<ComputeResult> RunOverHost(const std::shared_ptr<Connection>& connection,
                                                   const Chain& chain, int gpu, GpuStream stream);

 private:
  static constexpr size_t kNone = ChainProgram::kNone;
  /// As the server has it.
  static constexpr int64_t kMostHeads = 1024;
  using Product = Attachment::Product;
  using Step = ChainProgram::Step;
  using Kind = ChainProgram::Kind;

  /// What is known of a value of the program, besides where it is.
  struct Facts {
    int64_t rows = 0, cols = 0;
    bool csr = false;  ///< of nonzeros in CSR's order, which is not the upload's
    /// Unspecified: the matrix's. i64 is for results alone.
    v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
    /// The same in CSR's order, in that of the upload, and without gaps, if there is one.
    size_t to_csr = kNone, to_upload = kNone, packed = kNone;
  };

  // False: it cannot run here.
  bool Lower();
  bool TakeOutputs();
  bool Lower(size_t operand, size_t value);
  bool Lower(const Chain::SpmmStep& spmm, size_t value);
  bool Lower(const Chain::SddmmStep& sddmm, size_t value);
  bool Lower(const Chain::SoftmaxStep& softmax, size_t value);
  bool Lower(const Chain::ReduceStep& reduce, size_t value);
  bool Lower(const Chain::ScaleStep& scale, size_t value);
  bool Lower(const Chain::TotalStep& total, size_t value);
  bool Lower(const Chain::SumStep& sum, size_t value);
  bool Lower(const Chain::AttentionStep& attention, size_t value);
  bool Lower(const Chain::AttentionGradientStep& backward, size_t value);
  bool Lower(const Chain::FurtherValue& /*made*/, size_t /*value*/) { return true; }
  /// A step of attention or its gradients, with their operands; nothing if it cannot run here.
  std::optional<Step> Attend(Kind kind, const Chain::AttentionStep& attention, size_t value);
  /// Of sums over elements of the matrix's type, as attention's log_sums.
  v1::ElementType SumType() const;
  /// Values are of the types that steps take them as.
  bool CheckTypes() const;
  bool WriteOutputs();

  /// Null: there is none, or it is of another version than those before it.
  const Product* Find(v1::ProblemClass::Operation operation, bool transposed, int64_t k,
                      bool allow_tf32 = false);
  /// Plain CSR.
  const Product* FindRows(bool transposed) {
    return Find(v1::ProblemClass::OPERATION_UNSPECIFIED, transposed, 0);
  }
  Step StepOf(Kind kind, const Product& product, std::string plan);
  void Add(Step step) { program_.steps.push_back(std::move(step)); }

  /// A value that a step may use, kNone if it may not.
  size_t Use(Chain::Value value, size_t user) const;
  bool Is(size_t value, int64_t rows, int64_t cols) const {
    return facts_[value].rows == rows && facts_[value].cols == cols;
  }
  /// One of nonzeros.
  bool IsOfNonzeros(size_t value, const Product& product) const;
  // The value as steps use it, which may be another.
  size_t InCsr(size_t value);
  size_t InUpload(size_t value);
  size_t WithoutGaps(size_t value);
  /// A step that makes the same value otherwise; that one.
  size_t AddCopy(Kind kind, size_t value, bool csr);
  size_t AddTemporary(const Facts& facts);
  /// Sets what a step makes: at its destination, if that is as the step computes it, or a
  /// temporary.
  bool Make(size_t value, Facts facts);
  bool FitsOutput(const MutableDenseView& view, const Facts& facts) const;

  Attachment& attachment_;
  const Chain& chain_;
  const std::string& name_;
  const Deadline deadline_;

  ChainProgram program_;
  std::vector<Facts> facts_;  ///< of program_.values, which begin with those of the chain
  std::vector<const MutableDenseView*> outputs_;
  std::vector<size_t> first_output_;  ///< of each value of the chain
  std::vector<bool> written_;         ///< each output is computed where it goes
  std::vector<const DenseView*> operands_;
  std::vector<std::shared_ptr<const Product>> products_;
  const Product* matrix_ = nullptr;  ///< the first of them
  std::vector<std::string> plans_;
  uint64_t bytes_in_ = 0, bytes_out_ = 0;
  bool changed_ = false;
  absl::Status late_;
};

}  // namespace client
}  // namespace sparsed
