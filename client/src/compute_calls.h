// The calls of the Compute service.
#pragma once

#include <memory>
#include <string>

#include "client/src/connection.h"
#include "client/src/remote_call.h"
#include "sparsed/chain.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

/// `queue`: the request's place in one (SpmmStart.queue); empty: it runs when it comes. One in a
/// queue is sent once. `version`: that a buffer gets with the result (Destination.version).
Call<ComputeResult> Spmm(const std::shared_ptr<Connection>& connection, const std::string& matrix,
                         const Operand& b, const Destination& c, const SpmmOptions& spmm,
                         const CallOptions& options, const std::string& queue = "",
                         InShards<ComputeResult> in_shards = {}, uint64_t version = 0);
Call<ComputeResult> Sddmm(const std::shared_ptr<Connection>& connection, const std::string& matrix,
                          const Operand& a, const Operand& b, const Destination& values,
                          const SddmmOptions& sddmm, const CallOptions& options,
                          const std::string& queue = "", InShards<ComputeResult> in_shards = {});
Call<ComputeResult> Run(const std::shared_ptr<Connection>& connection, const Chain& chain,
                        const CallOptions& options);
/// Streams the result to `on_block`.
Call<SpgemmResult> Spgemm(const std::shared_ptr<Connection>& connection, const std::string& left,
                          const std::string& right, RowBlockCallback on_block,
                          const SpgemmOptions& spgemm, const CallOptions& options);
/// Keeps the result on the server.
Call<SpgemmResult> SpgemmKeep(const std::shared_ptr<Connection>& connection,
                              const std::string& left, const std::string& right,
                              const std::string& name, const SpgemmKeepOptions& keep,
                              const CallOptions& options);

}  // namespace client
}  // namespace sparsed
