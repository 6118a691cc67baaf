#include "server/rpc/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <variant>

#include "proto/wire/status_details.h"
#include "server/cluster/shards.h"
#include "sparsed/v1/types.pb.h"

namespace sparsed::server {
namespace {

/// Every matrix that it computes with, once.
std::vector<std::string> MatricesOf(const ComputeSpec& spec) {
  std::vector<std::string> names;
  const auto add = [&names](const std::string& name) {
    if (!name.empty() && std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  if (const auto* spmm = std::get_if<engine::SpmmSpec>(&spec)) {
    add(spmm->matrix);
  } else if (const auto* sddmm = std::get_if<engine::SddmmSpec>(&spec)) {
    add(sddmm->matrix);
  } else if (const auto* spgemm = std::get_if<engine::SpgemmSpec>(&spec)) {
    add(spgemm->left);
    add(spgemm->right);
    add(spgemm->mask);
  } else {
    for (const engine::ChainStep& step : std::get<engine::ChainSpec>(spec).steps) {
      std::visit(
          [&add](const auto& of) {
            if constexpr (requires { of.matrix; }) add(of.matrix);
          },
          step);
    }
  }
  return names;
}

/// Every buffer that it reads or writes.
std::vector<std::string> BuffersOf(const ComputeSpec& spec) {
  std::vector<std::string> names;
  const auto add = [&names](const std::string& name) {
    if (!name.empty()) names.push_back(name);
  };
  if (const auto* spmm = std::get_if<engine::SpmmSpec>(&spec)) {
    add(spmm->b.held);
    if (spmm->accumulate.has_value()) add(spmm->accumulate->held);
    if (spmm->values.has_value()) add(spmm->values->held);
    add(spmm->result.held);
  } else if (const auto* sddmm = std::get_if<engine::SddmmSpec>(&spec)) {
    add(sddmm->a.held);
    add(sddmm->b.held);
    if (sddmm->values.has_value()) add(sddmm->values->held);
    add(sddmm->result.held);
  } else if (const auto* chain = std::get_if<engine::ChainSpec>(&spec)) {
    for (const engine::OperandSpec& of : chain->operands) add(of.held);
    for (const engine::ChainSpec::Result& of : chain->results) add(of.place.held);
  }
  return names;
}

/// A product goes to the node that has its matrix, and its buffers, which are those of `asked`, do
/// not: that node may have others of their names.
absl::Status WithoutBuffers(const absl::Status& status, const ComputeSpec& spec,
                            const std::string& asked) {
  const auto payload = status.GetPayload(wire::kRedirectUrl);
  v1::Redirect redirect;
  if (!payload || !redirect.ParseFromString(std::string(*payload))) return status;
  for (const std::string& buffer : BuffersOf(spec)) {
    if (ParseShardBuffer(buffer).has_value()) continue;
    return absl::FailedPreconditionError(fmt::format(
        "{}, and \"{}\" is a buffer of the node that was asked, {}: put it there, and "
        "multiply there (sparsectl --server={}), or have operands and results go with the request",
        std::string(status.message()), buffer, asked,
        redirect.addresses_size() > 0 ? redirect.addresses(0) : "ADDRESS"));
  }
  return status;
}

/// The operand whose rows S's columns name; null: the product has none such.
template <typename Spec>
auto* GatheredOf(Spec& spec) {
  using Operand =
      std::conditional_t<std::is_const_v<Spec>, const engine::OperandSpec, engine::OperandSpec>;
  Operand* operand = nullptr;
  if (auto* spmm = std::get_if<engine::SpmmSpec>(&spec); spmm != nullptr && !spmm->transpose) {
    operand = &spmm->b;
  } else if (auto* sddmm = std::get_if<engine::SddmmSpec>(&spec)) {
    operand = &sddmm->b;
  }
  return operand;
}

}  // namespace

absl::Status Routed(const ServiceContext& service, std::string_view tenant,
                    std::string_view reference, Cluster::Need need) {
  if (service.cluster == nullptr) return absl::OkStatus();
  return service.cluster->Route(tenant, reference, need);
}

absl::StatusOr<engine::MatrixLease> FindMatrix(const ServiceContext& service,
                                               std::string_view tenant, std::string_view reference,
                                               engine::Right right) {
  absl::Status here = Routed(service, tenant, reference, Cluster::Need::kRead);
  if (!here.ok()) return here;
  return service.engine.catalog().Find(tenant, reference, right);
}

absl::StatusOr<engine::MatrixLease> FindToLookAt(const ServiceContext& service,
                                                 const std::string& tenant, Role role,
                                                 std::string_view reference) {
  absl::StatusOr<engine::MatrixLease> found = FindMatrix(service, tenant, reference);
  if (role != Role::kOperator || !absl::IsNotFound(found.status())) return found;
  const engine::NameKey key = engine::Named(tenant, reference);
  if (key.first == tenant) return found;
  // As its owner finds it.
  const absl::Status here = Routed(service, key.first, key.second, Cluster::Need::kRead);
  if (!here.ok()) return absl::IsNotFound(here) ? found.status() : here;
  engine::MatrixLease anothers = service.engine.catalog().Look(key.first, key.second);
  if (anothers == nullptr) return found;
  return anothers;
}

absl::Status RoutedBuffer(const ServiceContext& service, const std::string& tenant,
                          std::string_view buffer) {
  if (service.cluster == nullptr) return absl::OkStatus();
  return service.cluster->RouteBuffer(tenant, buffer);
}

bool WaitsForNodes(const ServiceContext& service, const ComputeSpec& spec) {
  if (service.cluster == nullptr) return false;
  const engine::OperandSpec* const operand = GatheredOf(spec);
  return operand != nullptr && ParseShardBuffer(operand->held).has_value();
}

absl::Status RoutedProduct(const ServiceContext& service, const std::string& tenant,
                           ComputeSpec& spec, const std::function<bool()>& stopped) {
  if (service.cluster == nullptr) return absl::OkStatus();
  const std::vector<std::string> matrices = MatricesOf(spec);
  if (matrices.empty()) return absl::OkStatus();
  // Where a matrix has copies on several nodes, these say which.
  for (const std::string& buffer : BuffersOf(spec)) {
    if (absl::Status here = RoutedBuffer(service, tenant, buffer); !here.ok()) return here;
    if (absl::Status here = service.cluster->CheckBuffer(tenant, buffer); !here.ok()) return here;
  }
  if (absl::Status here = service.cluster->RouteAll(tenant, matrices); !here.ok()) {
    return WithoutBuffers(here, spec, service.cluster->self().name);
  }
  if (engine::OperandSpec* const operand = GatheredOf(spec)) {
    return service.cluster->GatherOperand(tenant, matrices.front(), *operand, stopped);
  }
  const auto* spgemm = std::get_if<engine::SpgemmSpec>(&spec);
  if (spgemm == nullptr || spgemm->keep_as.empty()) return absl::OkStatus();
  return service.cluster->CheckFree(tenant, spgemm->keep_as);
}

absl::StatusOr<engine::MatrixLease> Changed(const ServiceContext& service,
                                            const engine::NameKey& key,
                                            const Cluster::LocalChange& change,
                                            const Cluster::Wishes& wishes) {
  return service.cluster == nullptr ? change() : service.cluster->Change(key, change, wishes);
}

void AddNodes(const ServiceContext& service, v1::MatrixInfo& info) {
  if (service.cluster == nullptr) return;
  const engine::NameKey key = engine::Named(info.owner(), info.name());
  const auto record = service.cluster->RecordOf(key);
  if (!record.has_value()) return;
  service.cluster->AddNodes(record->copies, info);
  info.set_copies_missing(service.cluster->CopiesMissing(key));
  info.set_replicas(service.cluster->ReplicasOf(*record));
}

WorkerPool& WorkersFor(Op op, const ServiceContext& service, bool throttled) {
  if (service.cluster == nullptr) return service.workers;
  switch (op) {
    case Op::kUpload:
    case Op::kMakeSharded:
    case Op::kUpdateValues:
    case Op::kDelete:
    case Op::kRename:
    case Op::kCopy:
    case Op::kShare:
    case Op::kDrainNode:
    case Op::kForgetNode:
      return service.changes;
    case Op::kCopyHere:
      return throttled ? service.throttled_arrivals : service.arrivals;
    default:
      return service.workers;
  }
}

}  // namespace sparsed::server
