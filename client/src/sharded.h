// Matrices in shards: what is asked of one is asked of its shards, each a matrix on a node of its
// own, and put together here. Each shard gets of a dense operand the rows that are its columns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/src/connection.h"
#include "client/src/shard_work.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

/// Which rows and columns of the whole a shard's are.
struct ShardNumbers {
  std::vector<int32_t> columns;  ///< by the shard's, each once
  std::vector<int32_t> rows;     ///< ascending; empty: consecutive ones
  /// Of these, where each one's nonzeros begin in the order of the whole's upload.
  std::vector<int64_t> begins;
};

/// One, as a client knows it. Thread-safe.
class ShardedMatrix {
 public:
  explicit ShardedMatrix(MatrixInfo info);

  const MatrixInfo& info() const { return info_; }
  bool partitioned() const { return !info_.shards.front().row_numbers.empty(); }
  /// The first nonzero of each shard in the order of the upload, of shards of consecutive rows.
  const std::vector<int64_t>& first_nonzeros() const { return first_nonzeros_; }
  /// Of a shard; asked for once, and checked, as no server is trusted with them.
  absl::StatusOr<std::shared_ptr<const ShardNumbers>> Numbers(Connection& connection,
                                                              ShardWork& work, size_t shard);
  /// Where they are known already.
  void SetNumbers(size_t shard, ShardNumbers numbers);
  /// Where the nonzeros of each row begin in the order of the upload, and behind the last: of
  /// shards by a partition.
  absl::StatusOr<std::shared_ptr<const std::vector<int64_t>>> Begins(Connection& connection,
                                                                     ShardWork& work);

 private:
  const MatrixInfo info_;
  std::vector<int64_t> first_nonzeros_;
  Mutex mutex_;
  std::vector<std::shared_ptr<const ShardNumbers>> numbers_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const std::vector<int64_t>> begins_ ABSL_GUARDED_BY(mutex_);
};

/// Parts of buffers.
struct ShardBuffers {
  /// Of a matrix's buffer of that name, the rows that `shard` has.
  static DenseMatrix PartOf(const DenseMatrix& whole, const ShardInfo& shard) {
    return DenseMatrix(whole.connection_, shard.matrix + "/" + whole.name(), "");
  }
  /// Uses its parts and says what they make. NOT_FOUND; FAILED_PRECONDITION unless all are there,
  /// of one version.
  static absl::StatusOr<DenseInfo> Renew(Connection& home, ShardWork& work, ShardedMatrix& sharded,
                                         const DenseMatrix& buffer);
  /// FAILED_PRECONDITION for a matrix of another tenant's, whose nodes keep buffers for their
  /// tenants alone.
  static absl::Status CheckOwn(const ShardedMatrix& sharded);
  /// For all parts of what is put, or kept of a product: so that those of another put, or of a
  /// product that failed on some nodes, never have the same. At random, of 52 bits.
  static uint64_t NewVersion();
};

/// Rows of an operand that each shard's node has, if it has as many rows as the matrix has columns,
/// which are not as many as its rows: [first, behind the last) of shard `i` of `count`.
std::pair<int64_t, int64_t> EvenPart(int64_t rows, size_t i, size_t count);

/// A server said what `name` is: further calls need not ask.
void NoteShards(Nodes& nodes, const std::string& name, const MatrixInfo& info);

// Each of these takes what the call of the whole takes. They ask `connection` for what `name` is
// by now, each time.

Call<Matrix> UploadSharded(const std::shared_ptr<Connection>& connection, const Matrix& handle,
                           const CsrView& matrix, const UploadOptions& upload,
                           const CallOptions& options);
Call<ComputeResult> SpmmOrSharded(const std::shared_ptr<Connection>& connection,
                                  const std::string& name, const Operand& b, const Destination& c,
                                  const SpmmOptions& spmm, const CallOptions& options);
Call<ComputeResult> SddmmOrSharded(const std::shared_ptr<Connection>& connection,
                                   const std::string& name, const Operand& a, const Operand& b,
                                   const Destination& values, const SddmmOptions& sddmm,
                                   const CallOptions& options);
// Of buffers whose DenseMatrix::matrix() is in shards: each shard's node has a part, a buffer by
// itself (ShardBuffers).
Call<DenseMatrix> PutDenseOrSharded(const std::shared_ptr<Connection>& connection,
                                    const DenseMatrix& handle, const DenseView& matrix, bool zeros,
                                    const PutOptions& put, const CallOptions& options);
Call<DenseInfo> ReadDenseOrSharded(const std::shared_ptr<Connection>& connection,
                                   const DenseMatrix& buffer, const MutableDenseView& into,
                                   const CallOptions& options);
Call<DenseInfo> RenewDenseOrSharded(const std::shared_ptr<Connection>& connection,
                                    const DenseMatrix& buffer, const CallOptions& options);
Call<void> DeleteDenseOrSharded(const std::shared_ptr<Connection>& connection,
                                const DenseMatrix& buffer, const CallOptions& options);
Call<CsrMatrix> DownloadOrSharded(const std::shared_ptr<Connection>& connection,
                                  const std::string& name, const CallOptions& options);
Call<void> WaitReadyOrSharded(const std::shared_ptr<Connection>& connection,
                              const std::string& name, ProgressCallback progress,
                              const CallOptions& options);

}  // namespace client
}  // namespace sparsed
