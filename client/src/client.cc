#include "sparsed/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "client/src/admin_calls.h"
#include "client/src/catalog_calls.h"
#include "client/src/compute_calls.h"
#include "client/src/connection.h"
#include "client/src/convert.h"
#include "client/src/dense_transfer.h"
#include "client/src/model_calls.h"
#include "client/src/nodes.h"
#include "client/src/sharded.h"
#include "client/src/shared_memory.h"

namespace sparsed {
inline namespace client {

absl::StatusOr<Client> Client::Connect(const std::string& address, const ClientOptions& options) {
  // Nodes of one cluster, of which any will do.
  absl::StatusOr<std::shared_ptr<Connection>> connection = absl::UnavailableError("no address");
  for (size_t begin = 0; begin <= address.size() && !connection.ok();) {
    const size_t comma = std::min(address.find(',', begin), address.size());
    connection = Connection::Open(address.substr(begin, comma - begin), options);
    begin = comma + 1;
  }
  if (!connection.ok()) return connection.status();
  return Client(*std::move(connection));
}

absl::StatusOr<Matrix> Client::Upload(const std::string& name, const CsrView& matrix,
                                      const UploadOptions& upload,
                                      const CallOptions& options) const {
  return UploadAsync(name, matrix, upload, options).Wait();
}
Call<Matrix> Client::UploadAsync(const std::string& name, const CsrView& matrix,
                                 const UploadOptions& upload, const CallOptions& options) const {
  if (upload.shards != 1 || !upload.partition.empty()) {
    return UploadSharded(connection_, MatrixNamed(name), matrix, upload, options);
  }
  return client::Upload(RouteOf(connection_, name), name, MatrixNamed(name), matrix, upload,
                        options);
}

absl::StatusOr<SharedMatrix> Client::AllocateShared(int64_t rows, int64_t cols,
                                                    ValueType type) const {
  const int64_t element = static_cast<int64_t>(SizeOf(type));
  if (rows < 0 || cols < 1 ||
      rows > std::numeric_limits<int64_t>::max() / element / std::max<int64_t>(cols, 1)) {
    return absl::InvalidArgumentError(
        fmt::format("{} x {} {} make no dense matrix", rows, cols, Name(type)));
  }
  const int64_t bytes = std::max<int64_t>(rows * cols * element, 1);
  absl::StatusOr<SharedBytes> made = AllocateSharedBytes(static_cast<size_t>(bytes));
  if (!made.ok()) return made.status();
  return SharedMatrix(*std::move(made), type, rows, cols);
}

absl::StatusOr<SharedBytes> Client::AllocateSharedBytes(size_t bytes) const {
  if (bytes == 0) return absl::InvalidArgumentError("no bytes of memory to share");
  absl::StatusOr<std::shared_ptr<SharedBlock>> block =
      connection_->shared_memory()->Allocate(bytes);
  if (!block.ok()) return block.status();
  void* const data = (*block)->data();
  return SharedBytes(*std::move(block), data, bytes);
}

absl::StatusOr<std::vector<MatrixInfo>> Client::ListMatrices(const std::string& prefix,
                                                             const CallOptions& options) const {
  return ListMatricesAsync(prefix, options).Wait();
}
Call<std::vector<MatrixInfo>> Client::ListMatricesAsync(const std::string& prefix,
                                                        const CallOptions& options) const {
  return client::ListMatrices(connection_, prefix, client::Listed::kOwn, options);
}

absl::StatusOr<std::vector<MatrixInfo>> Client::ListShared(const std::string& prefix,
                                                           const CallOptions& options) const {
  return ListSharedAsync(prefix, options).Wait();
}
Call<std::vector<MatrixInfo>> Client::ListSharedAsync(const std::string& prefix,
                                                      const CallOptions& options) const {
  return client::ListMatrices(connection_, prefix, client::Listed::kShared, options);
}

absl::StatusOr<std::vector<MatrixInfo>> Client::ListAll(const std::string& prefix,
                                                        const CallOptions& options) const {
  return ListAllAsync(prefix, options).Wait();
}
Call<std::vector<MatrixInfo>> Client::ListAllAsync(const std::string& prefix,
                                                   const CallOptions& options) const {
  return client::ListMatrices(connection_, prefix, client::Listed::kAll, options);
}

absl::StatusOr<std::vector<PatternMeasurements>> Client::ListMeasurements(
    const std::string& name, const MeasurementsOptions& which, const CallOptions& options) const {
  return ListMeasurementsAsync(name, which, options).Wait();
}
Call<std::vector<PatternMeasurements>> Client::ListMeasurementsAsync(
    const std::string& name, const MeasurementsOptions& which, const CallOptions& options) const {
  return client::ListMeasurements(connection_, name, which, options);
}

absl::StatusOr<DenseMatrix> Client::PutDense(const std::string& name, const DenseView& matrix,
                                             const PutOptions& put,
                                             const CallOptions& options) const {
  return PutDenseAsync(name, matrix, put, options).Wait();
}
Call<DenseMatrix> Client::PutDenseAsync(const std::string& name, const DenseView& matrix,
                                        const PutOptions& put, const CallOptions& options) const {
  return PutDenseOrSharded(connection_, DenseNamed(name, put.rows_of), matrix, /*zeros=*/false, put,
                           options);
}

absl::StatusOr<DenseMatrix> Client::PutZeros(const std::string& name, ValueType type, int64_t rows,
                                             int64_t cols, const PutOptions& put,
                                             const CallOptions& options) const {
  return PutZerosAsync(name, type, rows, cols, put, options).Wait();
}
Call<DenseMatrix> Client::PutZerosAsync(const std::string& name, ValueType type, int64_t rows,
                                        int64_t cols, const PutOptions& put,
                                        const CallOptions& options) const {
  return PutDenseOrSharded(connection_, DenseNamed(name, put.rows_of),
                           DenseView(nullptr, type, rows, cols), /*zeros=*/true, put, options);
}

absl::StatusOr<ComputeResult> Client::Run(const Chain& chain, const CallOptions& options) const {
  return RunAsync(chain, options).Wait();
}
Call<ComputeResult> Client::RunAsync(const Chain& chain, const CallOptions& options) const {
  return client::Run(connection_, chain, options);
}

absl::StatusOr<std::vector<DenseInfo>> Client::ListDense(const std::string& prefix,
                                                         const CallOptions& options) const {
  return ListDenseAsync(prefix, options).Wait();
}
Call<std::vector<DenseInfo>> Client::ListDenseAsync(const std::string& prefix,
                                                    const CallOptions& options) const {
  return client::ListDense(connection_, prefix, /*all=*/false, options);
}

absl::StatusOr<std::vector<DenseInfo>> Client::ListAllDense(const std::string& prefix,
                                                            const CallOptions& options) const {
  return ListAllDenseAsync(prefix, options).Wait();
}
Call<std::vector<DenseInfo>> Client::ListAllDenseAsync(const std::string& prefix,
                                                       const CallOptions& options) const {
  return client::ListDense(connection_, prefix, /*all=*/true, options);
}

absl::StatusOr<ServerInfo> Client::GetServerInfo(const CallOptions& options) const {
  return GetServerInfoAsync(options).Wait();
}
Call<ServerInfo> Client::GetServerInfoAsync(const CallOptions& options) const {
  return client::GetServerInfo(connection_, options);
}

absl::StatusOr<ClusterInfo> Client::ListNodes(const CallOptions& options) const {
  return ListNodesAsync(options).Wait();
}
Call<ClusterInfo> Client::ListNodesAsync(const CallOptions& options) const {
  return client::ListNodes(connection_, options);
}

absl::StatusOr<int64_t> Client::DrainNode(const std::string& node, bool undo,
                                          const CallOptions& options) const {
  return DrainNodeAsync(node, undo, options).Wait();
}
absl::StatusOr<ForgottenNode> Client::ForgetNode(const std::string& node, bool lose_matrices,
                                                 const CallOptions& options) const {
  return ForgetNodeAsync(node, lose_matrices, options).Wait();
}
Call<ForgottenNode> Client::ForgetNodeAsync(const std::string& node, bool lose_matrices,
                                            const CallOptions& options) const {
  return client::ForgetNode(connection_, node, lose_matrices, options);
}
Call<int64_t> Client::DrainNodeAsync(const std::string& node, bool undo,
                                     const CallOptions& options) const {
  return client::DrainNode(connection_, node, undo, options);
}

absl::StatusOr<Stats> Client::GetStats(const CallOptions& options) const {
  return GetStatsAsync(options).Wait();
}
Call<Stats> Client::GetStatsAsync(const CallOptions& options) const {
  return client::GetStats(connection_, options);
}

absl::StatusOr<std::vector<TenantInfo>> Client::ListTenants(bool all,
                                                            const CallOptions& options) const {
  return ListTenantsAsync(all, options).Wait();
}
Call<std::vector<TenantInfo>> Client::ListTenantsAsync(bool all, const CallOptions& options) const {
  return client::ListTenants(connection_, all, options);
}

absl::StatusOr<SlowList> Client::ListSlow(const SlowOptions& slow,
                                          const CallOptions& options) const {
  return ListSlowAsync(slow, options).Wait();
}
Call<SlowList> Client::ListSlowAsync(const SlowOptions& slow, const CallOptions& options) const {
  return client::ListSlow(connection_, slow, options);
}

absl::Status Client::WatchRequests(bool all, RequestsCallback on_requests,
                                   const CallOptions& options) const {
  return WatchRequestsAsync(all, std::move(on_requests), options).Wait();
}
Call<void> Client::WatchRequestsAsync(bool all, RequestsCallback on_requests,
                                      const CallOptions& options) const {
  return client::WatchRequests(connection_, all, std::move(on_requests), options);
}

absl::Status Client::SaveSnapshot(SnapshotCallback on_bytes, const CallOptions& options) const {
  return SaveSnapshotAsync(std::move(on_bytes), options).Wait();
}
Call<void> Client::SaveSnapshotAsync(SnapshotCallback on_bytes, const CallOptions& options) const {
  return client::SaveSnapshot(connection_, std::move(on_bytes), options);
}

absl::StatusOr<std::vector<ModelInfo>> Client::ListModels(const CallOptions& options) const {
  return ListModelsAsync(options).Wait();
}
Call<std::vector<ModelInfo>> Client::ListModelsAsync(const CallOptions& options) const {
  return client::ListModels(connection_, options);
}

absl::StatusOr<ModelInfo> Client::GetModel(const std::string& name,
                                           const CallOptions& options) const {
  return GetModelAsync(name, options).Wait();
}
Call<ModelInfo> Client::GetModelAsync(const std::string& name, const CallOptions& options) const {
  return client::GetModel(connection_, name, options);
}

absl::StatusOr<DeviceInfo> Client::Calibrate(const std::string& device,
                                             const CallOptions& options) const {
  return CalibrateAsync(device, options).Wait();
}
Call<DeviceInfo> Client::CalibrateAsync(const std::string& device,
                                        const CallOptions& options) const {
  return client::Calibrate(connection_, device, options);
}

absl::StatusOr<ModelInfo> Client::PutModel(const std::string& name, std::vector<ModelFile> files,
                                           bool replace, const CallOptions& options) const {
  return PutModelAsync(name, std::move(files), replace, options).Wait();
}
Call<ModelInfo> Client::PutModelAsync(const std::string& name, std::vector<ModelFile> files,
                                      bool replace, const CallOptions& options) const {
  return client::PutModel(connection_, name, std::move(files), replace, options);
}

absl::StatusOr<std::string> Client::ActivateModel(const std::string& name,
                                                  const std::string& device, bool watch,
                                                  const CallOptions& options) const {
  return ActivateModelAsync(name, device, watch, options).Wait();
}
Call<std::string> Client::ActivateModelAsync(const std::string& name, const std::string& device,
                                             bool watch, const CallOptions& options) const {
  return client::ActivateModel(connection_, name, device, watch, options);
}

absl::StatusOr<std::string> Client::RollbackModel(const std::string& device,
                                                  const CallOptions& options) const {
  return RollbackModelAsync(device, options).Wait();
}
Call<std::string> Client::RollbackModelAsync(const std::string& device,
                                             const CallOptions& options) const {
  return client::RollbackModel(connection_, device, options);
}

absl::Status Client::RemoveModel(const std::string& name, const CallOptions& options) const {
  return RemoveModelAsync(name, options).Wait();
}
Call<void> Client::RemoveModelAsync(const std::string& name, const CallOptions& options) const {
  return client::RemoveModel(connection_, name, options);
}

absl::StatusOr<DenseInfo> DenseMatrix::Info(const CallOptions& options) const {
  // Of parts there is no list: to look at them uses them.
  if (!matrix_.empty() && connection_->nodes().in_cluster()) return Renew(options);
  auto matrices = client::ListDense(connection_, name_, /*all=*/false, options).Wait();
  if (!matrices.ok()) return matrices.status();
  for (DenseInfo& info : *matrices) {
    if (info.name == name_) return std::move(info);
  }
  return absl::NotFoundError(fmt::format("there is no buffer named '{}'", name_));
}

absl::StatusOr<DenseInfo> DenseMatrix::Read(const MutableDenseView& into,
                                            const CallOptions& options) const {
  return ReadAsync(into, options).Wait();
}
Call<DenseInfo> DenseMatrix::ReadAsync(const MutableDenseView& into,
                                       const CallOptions& options) const {
  return ReadDenseOrSharded(connection_, *this, into, options);
}

absl::StatusOr<DenseInfo> DenseMatrix::Renew(const CallOptions& options) const {
  return RenewAsync(options).Wait();
}
Call<DenseInfo> DenseMatrix::RenewAsync(const CallOptions& options) const {
  return RenewDenseOrSharded(connection_, *this, options);
}

absl::Status DenseMatrix::Delete(const CallOptions& options) const {
  return DeleteAsync(options).Wait();
}
Call<void> DenseMatrix::DeleteAsync(const CallOptions& options) const {
  return DeleteDenseOrSharded(connection_, *this, options);
}

}  // namespace client
}  // namespace sparsed
