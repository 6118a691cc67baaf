// Where products run: in this process, with kernels of its own, or on the server. Implemented
// twice, in with_kernels.cc and without_kernels.cc, of which a library has one.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "sparsed/chain.h"
#include "sparsed/client.h"

namespace sparsed::c {

/// Whether this library brings kernels.
bool HasKernels();

struct LocalOptions {
  bool attach = true;  ///< at the first product, where that is possible
  int threads = 0;     ///< of products on the CPU; 0: as many as there are cores
};

/// Where the operands and results of a product are: in host memory or held by the server, or on a
/// GPU of this process's, used in the order of a stream (cudaStream_t).
struct Place {
  int gpu = -1;  ///< -1: none
  void* stream = nullptr;
};

class LocalMatrix;

/// A client, and what this process has to compute with for it. Thread-safe.
class LocalClient : public std::enable_shared_from_this<LocalClient> {
 public:
  LocalClient(Client client, const LocalOptions& options);
  ~LocalClient();

  const Client& client() const { return client_; }
  const LocalOptions& options() const { return options_; }
  /// The same one for all who have it at the same time, so that they attach once.
  std::shared_ptr<LocalMatrix> MatrixNamed(const std::string& name);

  /// As GpuMemory::AllocateBytes and FreeBytes. UNIMPLEMENTED without kernels.
  absl::StatusOr<void*> AllocateOnGpu(const Place& place, size_t bytes);
  absl::Status FreeOnGpu(const Place& place, void* data);

  /// A chain of whichever matrices; on the server.
  absl::StatusOr<ComputeResult> Run(const Place& place, const Chain& chain,
                                    const CallOptions& options);

  class Gpus;
  Gpus& gpus() { return *gpus_; }

 private:
  const Client client_;
  const LocalOptions options_;
  const std::unique_ptr<Gpus> gpus_;
  Mutex mutex_;
  std::map<std::string, std::weak_ptr<LocalMatrix>> matrices_ ABSL_GUARDED_BY(mutex_);
};

/// A matrix, whose products run where they are fastest. Thread-safe. Operands and results of a
/// GPU's are views.
class LocalMatrix {
 public:
  LocalMatrix(std::shared_ptr<LocalClient> client, const std::string& name);
  ~LocalMatrix();

  const std::shared_ptr<LocalClient>& client() const { return client_; }
  const Matrix& matrix() const { return matrix_; }

  /// As AttachedMatrix::Attach; on the CPU if `gpu` is -1. UNIMPLEMENTED without kernels.
  absl::Status Attach(int gpu);

  absl::StatusOr<ComputeResult> Spmm(const Place& place, const Operand& b, const Destination& c,
                                     const SpmmOptions& spmm, const CallOptions& options);
  absl::StatusOr<ComputeResult> Sddmm(const Place& place, const Operand& a, const Operand& b,
                                      const Destination& values, const SddmmOptions& sddmm,
                                      const CallOptions& options);
  /// A chain of this matrix alone.
  absl::StatusOr<ComputeResult> Run(const Place& place, const Chain& chain,
                                    const CallOptions& options);

 private:
  class Attachments;

  const std::shared_ptr<LocalClient> client_;
  const Matrix matrix_;
  const std::unique_ptr<Attachments> attachments_;
};

}  // namespace sparsed::c
