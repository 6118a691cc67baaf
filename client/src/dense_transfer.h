// The calls of the Buffers service.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/src/connection.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

/// `handle` is what the call brings; a view without data makes zeros.
/// `version`: of a part of a buffer (PutBufferHeader.version).
Call<DenseMatrix> PutDense(const std::shared_ptr<Connection>& connection, const DenseMatrix& handle,
                           const DenseView& matrix, bool zeros, const PutOptions& put,
                           const CallOptions& options, uint64_t version = 0);
Call<DenseInfo> ReadDense(const std::shared_ptr<Connection>& connection, const std::string& name,
                          const MutableDenseView& into, const CallOptions& options);
/// `all`: of all tenants.
Call<std::vector<DenseInfo>> ListDense(const std::shared_ptr<Connection>& connection,
                                       const std::string& prefix, bool all,
                                       const CallOptions& options);
Call<DenseInfo> RenewDense(const std::shared_ptr<Connection>& connection, const std::string& name,
                           const CallOptions& options);
Call<void> DeleteDense(const std::shared_ptr<Connection>& connection, const std::string& name,
                       const CallOptions& options);

}  // namespace client
}  // namespace sparsed
