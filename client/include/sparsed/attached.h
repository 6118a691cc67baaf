// Products that a process on the server's machine computes itself: with the kernels, layouts and
// plans of the server, which it maps, on operands of its own. Nothing is sent, nothing is copied.
//
//   auto client = sparsed::Client::Connect("unix:/run/sparsed.sock");
//   auto graph = sparsed::AttachedMatrix::Attach(*client, "cora");
//   auto result = graph->Spmm(sparsed::DenseView(b, n, k), sparsed::MutableDenseView(c, m, k));
//
// A library of its own (CMake's sparsed::attached), which brings the kernels along.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsed/client.h"
#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

struct AttachOptions {
  /// Of each product, in a team of the thread that calls; 0: one for each core that this process
  /// may use.
  int threads = 0;
};

/// A matrix on a server of this machine, attached to. Products run here for as long as they can,
/// and on the server where they cannot: with operands or results that it holds, with values of the
/// call's own, with a result that overlaps an operand, when the server is gone for good or has
/// other kernels than this process. Both ways give the same errors. New values, a better plan and a
/// deletion are seen by the next product that begins; what a server had when it died serves on
/// until one answers at its address, which is then attached to. A cheap handle, usable from many
/// threads; its products may run at once. Not to be used in a child after fork().
class AttachedMatrix {
 public:
  /// Asks the server, and returns once the matrix is attached. NOT_FOUND; FAILED_PRECONDITION, with
  /// what is in the way, if the server is on another machine, has no local socket or other kernels;
  /// PERMISSION_DENIED if its socket is not this user's to open; RESOURCE_EXHAUSTED; UNAVAILABLE.
  static absl::StatusOr<AttachedMatrix> Attach(const Client& client, const std::string& name,
                                               const AttachOptions& attach = {});

  const std::string& name() const;
  /// The same matrix, whose products run on the server.
  const Matrix& matrix() const;
  /// OK while products can run here, else why they run on the server.
  absl::Status status() const;
  /// Products that ran here, through this handle and its copies.
  int64_t runs() const;

  /// As Matrix::Spmm. Here `options.timeout` does not end it: a kernel that has begun runs to its
  /// end.
  absl::StatusOr<ComputeResult> Spmm(const Operand& b, const Destination& c,
                                     const SpmmOptions& spmm = {},
                                     const CallOptions& options = {}) const;
  /// As Matrix::Sddmm, likewise.
  absl::StatusOr<ComputeResult> Sddmm(const Operand& a, const Operand& b, const Destination& values,
                                      const SddmmOptions& sddmm = {},
                                      const CallOptions& options = {}) const;

 private:
  class State;
  explicit AttachedMatrix(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace client
}  // namespace sparsed
