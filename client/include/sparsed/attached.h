// Products and chains that a process on the server's machine computes itself: with the kernels,
// layouts and plans of the server, which it maps, on operands of its own. Nothing is sent, nothing
// is copied.
//
//   auto client = sparsed::Client::Connect("unix:/run/sparsed.sock");
//   auto graph = sparsed::AttachedMatrix::Attach(*client, "cora");
//   auto result = graph->Spmm(sparsed::DenseView(b, n, k), sparsed::MutableDenseView(c, m, k));
//
// or, on a GPU that the server serves from, queued in a stream like any other kernel:
//
//   auto graph = sparsed::AttachedMatrix::Attach(*client, "cora", {.gpu = 0});
//   graph->Spmm(sparsed::GpuStream{stream}, sparsed::DenseView(b, n, k), ...);
//
// A library of its own (CMake's sparsed::attached), which brings the kernels along.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsed/chain.h"
#include "sparsed/client.h"
#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

struct AttachOptions {
  static constexpr int kMostThreads = 1024;
  /// Of each product, in a team of the thread that calls; 0: one for each core that this process
  /// may use.
  int threads = 0;
  /// The GPU that products run on, as this process counts those that it sees (cudaGetDevice); none:
  /// they run on the CPU. The server must serve from the same card.
  std::optional<int> gpu = {};
  /// After which attaching ends with DEADLINE_EXCEEDED or UNAVAILABLE; none: a server that says
  /// nothing is waited for some ten seconds at each step.
  std::optional<std::chrono::nanoseconds> timeout = {};
};

/// A stream (cudaStream_t) of the GPU that a matrix is attached on; null: CUDA's default stream.
struct GpuStream {
  void* handle = nullptr;
};

/// A matrix on a server of this machine, attached to. Products run here for as long as they can,
/// and on the server where they cannot: with operands or results in its buffers, with a result that
/// overlaps an operand, when the server is gone for good or has other kernels than this process.
/// Both ways give the same errors. New values, a better plan and a deletion are seen by the next
/// product that begins; what a server had when it died serves on until one answers at its address,
/// which is then attached to. What a server that hangs does not answer within
/// ten seconds goes to it as a request. A cheap handle, usable from many threads; its products may
/// run at once. Not to be used in a child after fork().
class AttachedMatrix {
 public:
  /// Asks the server, and returns once the matrix is attached. NOT_FOUND; FAILED_PRECONDITION, with
  /// what is in the way, if the server is on another machine, has no local socket, other kernels or
  /// another GPU; PERMISSION_DENIED if its socket is not this user's to open; RESOURCE_EXHAUSTED;
  /// UNAVAILABLE.
  static absl::StatusOr<AttachedMatrix> Attach(const Client& client, const std::string& name,
                                               const AttachOptions& attach = {});

  const std::string& name() const;
  /// The same matrix, whose products run on the server.
  const Matrix& matrix() const;
  /// OK while products can run here, else why they run on the server, or the last one did.
  absl::Status status() const;
  /// Products and chains that ran here, through this handle and its copies; not those that a graph
  /// runs.
  int64_t runs() const;

  /// As Matrix::Spmm. `options.timeout` bounds all that waits for the server, and no more: a kernel
  /// that has begun here runs to its end.
  absl::StatusOr<ComputeResult> Spmm(const Operand& b, const Destination& c,
                                     const SpmmOptions& spmm = {},
                                     const CallOptions& options = {}) const;
  /// As Matrix::Sddmm, likewise.
  absl::StatusOr<ComputeResult> Sddmm(const Operand& a, const Operand& b, const Destination& values,
                                      const SddmmOptions& sddmm = {},
                                      const CallOptions& options = {}) const;

  /// Of a matrix that is attached on a GPU: queues the product in the stream and returns, or makes
  /// it part of the graph that the stream is captured into. All operands, also those among the
  /// options, and the result are in memory of that GPU. A graph multiplies with the values that the
  /// matrix had when it was captured, and keeps them. What cannot run here (see above) is copied to
  /// the host, computed by the server and copied back: then it is done when this returns, and a
  /// graph cannot have it (FAILED_PRECONDITION). Timings of the result are zero where it was only
  /// queued; the first product of its kind asks the server. FAILED_PRECONDITION if the matrix is
  /// not attached on a GPU; INVALID_ARGUMENT for operands that are not views.
  absl::StatusOr<ComputeResult> Spmm(GpuStream stream, const DenseView& b,
                                     const MutableDenseView& c, const SpmmOptions& spmm = {}) const;
  absl::StatusOr<ComputeResult> Sddmm(GpuStream stream, const DenseView& a, const DenseView& b,
                                      const MutableDenseView& values,
                                      const SddmmOptions& sddmm = {}) const;

  /// As Client::Run, of a chain whose steps are all of this matrix, on operands and results in this
  /// process's memory; any other runs on the server. All steps use one version of the values.
  absl::StatusOr<ComputeResult> Run(const Chain& chain, const CallOptions& options = {}) const;
  /// Of a matrix that is attached on a GPU: queued in the stream, or part of the graph that the
  /// stream is captured into, as Spmm above. All operands and results that are views are in memory
  /// of that GPU. What the steps make in between lies in memory that is kept for the stream's next
  /// chain; a stream's chains run one after the other.
  absl::StatusOr<ComputeResult> Run(GpuStream stream, const Chain& chain) const;

  /// What is left where nobody can attach: copies the operands that are views, in that GPU's
  /// memory, to the host in the stream, has the server run the chain, and copies its results back.
  /// Done when it returns. FAILED_PRECONDITION while the stream is captured into a graph.
  static absl::StatusOr<ComputeResult> RunOverHost(const Client& client, const Chain& chain,
                                                   int gpu, GpuStream stream);

 private:
  class State;
  explicit AttachedMatrix(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace client
}  // namespace sparsed
