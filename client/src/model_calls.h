// What operators do with models.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/src/connection.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

Call<std::vector<ModelInfo>> ListModels(const std::shared_ptr<Connection>& connection,
                                        const CallOptions& options);
Call<ModelInfo> GetModel(const std::shared_ptr<Connection>& connection, const std::string& name,
                         const CallOptions& options);
Call<ModelInfo> PutModel(const std::shared_ptr<Connection>& connection, const std::string& name,
                         std::vector<ModelFile> files, bool replace, const CallOptions& options);
Call<std::string> ActivateModel(const std::shared_ptr<Connection>& connection,
                                const std::string& name, const std::string& device, bool watch,
                                const CallOptions& options);
Call<std::string> RollbackModel(const std::shared_ptr<Connection>& connection,
                                const std::string& device, const CallOptions& options);
Call<void> RemoveModel(const std::shared_ptr<Connection>& connection, const std::string& name,
                       const CallOptions& options);

}  // namespace client
}  // namespace sparsed
