#include <optional>
#include <string>
#include <utility>

#include "client/src/catalog_calls.h"
#include "client/src/compute_calls.h"
#include "client/src/connection.h"
#include "client/src/nodes.h"
#include "client/src/row_blocks.h"
#include "client/src/sharded.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {
std::optional<std::string> Matrix::RedirectedTo() const {
  const std::shared_ptr<Connection> there = RouteOf(connection_, name_);
  if (there == connection_) return std::nullopt;
  return there->address();
}

absl::StatusOr<MatrixInfo> Matrix::Info(const CallOptions& options) const {
  return InfoAsync(options).Wait();
}
Call<MatrixInfo> Matrix::InfoAsync(const CallOptions& options) const {
  return client::GetMatrix(RouteOf(connection_, name_), name_, options);
}

absl::StatusOr<MatrixFeatures> Matrix::Features(const CallOptions& options) const {
  return FeaturesAsync(options).Wait();
}
Call<MatrixFeatures> Matrix::FeaturesAsync(const CallOptions& options) const {
  return client::GetFeatures(RouteOf(connection_, name_), name_, options);
}

absl::Status Matrix::Prepare(const PrepareOptions& prepare, const CallOptions& options) const {
  return PrepareAsync(prepare, options).Wait();
}
Call<void> Matrix::PrepareAsync(const PrepareOptions& prepare, const CallOptions& options) const {
  return client::Prepare(RouteOf(connection_, name_), name_, prepare, options);
}

absl::Status Matrix::WaitReady(ProgressCallback progress, const CallOptions& options) const {
  return WaitReadyAsync(std::move(progress), options).Wait();
}
Call<void> Matrix::WaitReadyAsync(ProgressCallback progress, const CallOptions& options) const {
  return WaitReadyOrSharded(connection_, name_, std::move(progress), options);
}

absl::Status Matrix::Watch(ProgressCallback progress, const CallOptions& options) const {
  return WatchAsync(std::move(progress), options).Wait();
}
Call<void> Matrix::WatchAsync(ProgressCallback progress, const CallOptions& options) const {
  return client::Watch(RouteOf(connection_, name_), name_, /*follow=*/true, std::move(progress),
                       options);
}

absl::StatusOr<uint64_t> Matrix::UpdateValues(ConstValues values, const UpdateOptions& update,
                                              const CallOptions& options) const {
  return UpdateValuesAsync(values, update, options).Wait();
}
Call<uint64_t> Matrix::UpdateValuesAsync(ConstValues values, const UpdateOptions& update,
                                         const CallOptions& options) const {
  return client::UpdateValues(RouteOf(connection_, name_), name_, values, update, options);
}

absl::StatusOr<CsrMatrix> Matrix::Download(const CallOptions& options) const {
  return DownloadAsync(options).Wait();
}
Call<CsrMatrix> Matrix::DownloadAsync(const CallOptions& options) const {
  return DownloadOrSharded(connection_, name_, options);
}

absl::Status Matrix::Delete(const CallOptions& options) const {
  return DeleteAsync(options).Wait();
}
Call<void> Matrix::DeleteAsync(const CallOptions& options) const {
  return client::DeleteMatrix(RouteOf(connection_, name_), name_, options);
}

absl::StatusOr<Matrix> Matrix::Rename(const std::string& new_name,
                                      const CallOptions& options) const {
  const absl::StatusOr<MatrixInfo> info = RenameAsync(new_name, options).Wait();
  if (!info.ok()) return info.status();
  return Matrix(connection_, new_name);
}
Call<MatrixInfo> Matrix::RenameAsync(const std::string& new_name,
                                     const CallOptions& options) const {
  return client::RenameMatrix(RouteOf(connection_, name_), name_, new_name, options);
}

absl::StatusOr<Matrix> Matrix::Copy(const std::string& new_name, const CopyOptions& copy,
                                    const CallOptions& options) const {
  const absl::StatusOr<MatrixInfo> info = CopyAsync(new_name, copy, options).Wait();
  if (!info.ok()) return info.status();
  return Matrix(connection_, new_name);
}
Call<MatrixInfo> Matrix::CopyAsync(const std::string& new_name, const CopyOptions& copy,
                                   const CallOptions& options) const {
  return client::CopyMatrix(RouteOf(connection_, name_), name_, new_name, copy, options);
}

absl::StatusOr<std::vector<MatrixShare>> Matrix::Share(const MatrixShare& share,
                                                       const CallOptions& options) const {
  return ShareAsync(share, options).Wait();
}
Call<std::vector<MatrixShare>> Matrix::ShareAsync(const MatrixShare& share,
                                                  const CallOptions& options) const {
  return ShareMatrix(RouteOf(connection_, name_), name_, share, /*revoke=*/false, options);
}
absl::StatusOr<std::vector<MatrixShare>> Matrix::Unshare(const std::string& with,
                                                         const CallOptions& options) const {
  return UnshareAsync(with, options).Wait();
}
Call<std::vector<MatrixShare>> Matrix::UnshareAsync(const std::string& with,
                                                    const CallOptions& options) const {
  return ShareMatrix(RouteOf(connection_, name_), name_, {.with = with}, /*revoke=*/true, options);
}

absl::StatusOr<ComputeResult> Matrix::Spmm(const Operand& b, const Destination& c,
                                           const SpmmOptions& spmm,
                                           const CallOptions& options) const {
  return SpmmAsync(b, c, spmm, options).Wait();
}
Call<ComputeResult> Matrix::SpmmAsync(const Operand& b, const Destination& c,
                                      const SpmmOptions& spmm, const CallOptions& options) const {
  return SpmmOrSharded(connection_, name_, b, c, spmm, options);
}

absl::StatusOr<ComputeResult> Matrix::Sddmm(const Operand& a, const Operand& b,
                                            const Destination& values, const SddmmOptions& sddmm,
                                            const CallOptions& options) const {
  return SddmmAsync(a, b, values, sddmm, options).Wait();
}
Call<ComputeResult> Matrix::SddmmAsync(const Operand& a, const Operand& b,
                                       const Destination& values, const SddmmOptions& sddmm,
                                       const CallOptions& options) const {
  return SddmmOrSharded(connection_, name_, a, b, values, sddmm, options);
}

absl::StatusOr<SpgemmResult> Matrix::Spgemm(const Matrix& right, RowBlockCallback on_block,
                                            const SpgemmOptions& spgemm,
                                            const CallOptions& options) const {
  return SpgemmAsync(right, std::move(on_block), spgemm, options).Wait();
}
Call<SpgemmResult> Matrix::SpgemmAsync(const Matrix& right, RowBlockCallback on_block,
                                       const SpgemmOptions& spgemm,
                                       const CallOptions& options) const {
  return client::Spgemm(RouteOf(connection_, name_), name_, right.name_, std::move(on_block),
                        spgemm, options);
}

absl::StatusOr<CsrMatrix> Matrix::SpgemmCollect(const Matrix& right, SpgemmResult* result,
                                                const CallOptions& options) const {
  return SpgemmCollect(right, SpgemmOptions(), result, options);
}

absl::StatusOr<CsrMatrix> Matrix::SpgemmCollect(const Matrix& right, const SpgemmOptions& spgemm,
                                                SpgemmResult* result,
                                                const CallOptions& options) const {
  CsrMatrix matrix;
  matrix.row_offsets.push_back(0);
  const absl::StatusOr<SpgemmResult> done = Spgemm(
      right, [&matrix](const RowBlock& block) { return Append(block, matrix); }, spgemm, options);
  if (!done.ok()) return done.status();
  matrix.rows = done->rows;
  matrix.cols = done->cols;
  if (result != nullptr) *result = *done;
  return matrix;
}

absl::StatusOr<SpgemmResult> Matrix::SpgemmKeep(const Matrix& right, const std::string& name,
                                                const SpgemmKeepOptions& keep,
                                                const CallOptions& options) const {
  return SpgemmKeepAsync(right, name, keep, options).Wait();
}
Call<SpgemmResult> Matrix::SpgemmKeepAsync(const Matrix& right, const std::string& name,
                                           const SpgemmKeepOptions& keep,
                                           const CallOptions& options) const {
  return client::SpgemmKeep(RouteOf(connection_, name_), name_, right.name_, name, keep, options);
}

}  // namespace client
}  // namespace sparsed
