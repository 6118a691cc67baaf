#include "client/c/local.h"

namespace sparsed::c {

std::shared_ptr<LocalMatrix> LocalClient::MatrixNamed(const std::string& name) {
  const MutexLock lock(mutex_);
  std::erase_if(matrices_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<LocalMatrix>& known = matrices_[name];
  std::shared_ptr<LocalMatrix> matrix = known.lock();
  if (matrix == nullptr) {
    matrix = std::make_shared<LocalMatrix>(shared_from_this(), name);
    known = matrix;
  }
  return matrix;
}

}  // namespace sparsed::c
