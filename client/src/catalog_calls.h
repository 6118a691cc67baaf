// The calls of the Catalog service.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/src/connection.h"
#include "client/src/remote_call.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

/// `handle` is what the call brings.
Call<Matrix> Upload(const std::shared_ptr<Connection>& connection, const std::string& name,
                    const Matrix& handle, const CsrView& matrix, const UploadOptions& upload,
                    const CallOptions& options);
Call<uint64_t> UpdateValues(const std::shared_ptr<Connection>& connection, const std::string& name,
                            const ConstValues& values, const UpdateOptions& update,
                            const CallOptions& options);
Call<CsrMatrix> Download(const std::shared_ptr<Connection>& connection, const std::string& name,
                         const CallOptions& options, InShards<CsrMatrix> in_shards = {});
Call<void> Prepare(const std::shared_ptr<Connection>& connection, const std::string& name,
                   const PrepareOptions& prepare, const CallOptions& options);
Call<void> Watch(const std::shared_ptr<Connection>& connection, const std::string& name,
                 bool follow, ProgressCallback progress, const CallOptions& options,
                 InShards<void> in_shards = {});
Call<MatrixInfo> GetMatrix(const std::shared_ptr<Connection>& connection, const std::string& name,
                           const CallOptions& options);
Call<MatrixFeatures> GetFeatures(const std::shared_ptr<Connection>& connection,
                                 const std::string& name, const CallOptions& options);
/// The caller's own; those that other tenants share with it; those of all tenants.
enum class Listed : uint8_t { kOwn, kShared, kAll };
/// In a cluster other nodes are asked for theirs, too.
Call<std::vector<MatrixInfo>> ListMatrices(const std::shared_ptr<Connection>& connection,
                                           const std::string& prefix, Listed listed,
                                           const CallOptions& options);
Call<std::vector<MatrixShare>> ShareMatrix(const std::shared_ptr<Connection>& connection,
                                           const std::string& name, const MatrixShare& share,
                                           bool revoke, const CallOptions& options);
Call<std::vector<PatternMeasurements>> ListMeasurements(
    const std::shared_ptr<Connection>& connection, const std::string& name,
    const MeasurementsOptions& which, const CallOptions& options);
Call<MatrixInfo> RenameMatrix(const std::shared_ptr<Connection>& connection,
                              const std::string& name, const std::string& new_name,
                              const CallOptions& options);
Call<MatrixInfo> CopyMatrix(const std::shared_ptr<Connection>& connection, const std::string& name,
                            const std::string& new_name, const CopyOptions& copy,
                            const CallOptions& options);
Call<void> DeleteMatrix(const std::shared_ptr<Connection>& connection, const std::string& name,
                        const CallOptions& options);

}  // namespace client
}  // namespace sparsed
