#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include "engine/engine.h"
#include "server/cluster/shards.h"
#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/page.h"
#include "server/rpc/reactors.h"
#include "server/rpc/routes.h"
#include "server/rpc/unary.h"
#include "server/security/access.h"
#include "server/telemetry/call_origin.h"
#include "sparsed/v1/catalog.grpc.pb.h"

namespace sparsed::server {
namespace {

using Streams =
    v1::Catalog::WithRawCallbackMethod_Upload<v1::Catalog::WithRawCallbackMethod_UpdateValues<
        v1::Catalog::WithRawCallbackMethod_Download<v1::Catalog::WithRawCallbackMethod_Watch<
            v1::Catalog::WithRawCallbackMethod_ListMeasurements<v1::Catalog::Service>>>>>;
using Service = v1::Catalog::WithRawCallbackMethod_Get<v1::Catalog::WithRawCallbackMethod_List<
    v1::Catalog::WithRawCallbackMethod_Prepare<v1::Catalog::WithRawCallbackMethod_Delete<
        v1::Catalog::WithRawCallbackMethod_Share<v1::Catalog::WithRawCallbackMethod_Rename<
            v1::Catalog::WithRawCallbackMethod_Copy<v1::Catalog::WithRawCallbackMethod_MakeSharded<
                v1::Catalog::WithRawCallbackMethod_Explain<Streams>>>>>>>>>;

engine::Requester RequesterOf(const Caller& caller, const std::string& matrix) {
  return {caller.tenant, caller.name, caller.origin == nullptr ? "" : caller.origin->request_id,
          matrix};
}

class CatalogService final : public Service {
 public:
  explicit CatalogService(const ServiceContext& service) : service_(service) {}

  BytesBidiReactor* Upload(grpc::CallbackServerContext* context) override {
    return StartUpload(service_, context);
  }
  BytesReadReactor* UpdateValues(grpc::CallbackServerContext* context,
                                 grpc::ByteBuffer* response) override {
    return StartUpdateValues(service_, context, response);
  }
  BytesWriteReactor* Download(grpc::CallbackServerContext* context,
                              const grpc::ByteBuffer* request) override {
    return StartDownload(service_, context, *request);
  }
  BytesWriteReactor* Watch(grpc::CallbackServerContext* context,
                           const grpc::ByteBuffer* request) override {
    return StartWatch(service_, context, *request);
  }
  BytesWriteReactor* ListMeasurements(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request) override {
    return StartListMeasurements(service_, context, *request);
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                grpc::ByteBuffer* response) override {
    return Answer<v1::GetMatrixRequest, v1::MatrixInfo>(
        Op::kGet, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::MatrixInfo& reply) {
          const auto matrix = FindToLookAt(service_, caller.tenant, caller.role, request.name());
          // Features are what a node has measured of a matrix that it has.
          if (IsInShards(matrix.status()) && !request.features()) {
            return GetSharded(request.name(), caller, reply);
          }
          if (!matrix.ok()) return matrix.status();
          reply = ToMatrixInfo(**matrix, caller.tenant, service_.engine.executor());
          if (request.features()) AddFeatures(**matrix, reply);
          if ((*matrix)->tenant() == caller.tenant) AddShares(**matrix, *reply.mutable_shares());
          AddNodes(service_, reply);
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* bytes,
                                 grpc::ByteBuffer* response) override {
    return Answer<v1::ListMatricesRequest, v1::ListMatricesReply>(
        Op::kList, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::ListMatricesReply& reply) {
          if (request.all()) {
            absl::Status allowed = service_.access.Require(caller, Role::kOperator,
                                                           "the list of all tenants' matrices");
            if (!allowed.ok()) return allowed;
            if (request.shared()) {
              return absl::Status(
                  absl::InvalidArgumentError("shared: `all` has those that are shared, too"));
            }
          }
          Page page(request.page_size());
          const engine::Catalog& catalog = service_.engine.catalog();
          // Nobody's own are those of all tenants.
          const std::string_view looks = request.all() ? std::string_view() : caller.tenant;
          std::map<engine::NameKey, v1::MatrixInfo> elsewhere = Elsewhere(request, caller);
          // False: it goes onto the next page, and so does what follows.
          const auto add = [&](v1::MatrixInfo info) {
            if (!page.Take(info)) {
              reply.set_next_page_token(reply.matrices().rbegin()->name());
              return false;
            }
            *reply.add_matrices() = std::move(info);
            return true;
          };
          const auto add_elsewhere_before = [&](const engine::NameKey* name) {
            while (!elsewhere.empty() && (name == nullptr || elsewhere.begin()->first < *name)) {
              auto first = elsewhere.extract(elsewhere.begin());
              if (!add(std::move(first.mapped()))) return false;
            }
            return true;
          };
          for (const auto& matrix :
               request.all() ? catalog.ListAll(request.prefix(), request.page_token())
               : request.shared()
                   ? catalog.ListShared(caller.tenant, request.prefix(), request.page_token())
                   : catalog.List(caller.tenant, request.prefix(), request.page_token())) {
            // One that is not current any more is shown as the directory has it.
            if (IsStale(*matrix) || IsShard(*matrix)) continue;
            v1::MatrixInfo info = ToMatrixInfo(*matrix, looks, service_.engine.executor());
            info.clear_detail();
            info.clear_measurements();
            info.clear_decisions();
            AddNodes(service_, info);
            const engine::NameKey name(matrix->tenant(), matrix->name());
            if (!add_elsewhere_before(&name)) return absl::OkStatus();
            elsewhere.erase(name);
            if (!add(std::move(info))) return absl::OkStatus();
          }
          add_elsewhere_before(nullptr);
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* Prepare(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* bytes,
                                    grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::PrepareRequest, v1::PrepareReply>(
        Op::kPrepare, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::PrepareReply&) {
          const auto matrix =
              FindMatrix(service_, caller.tenant, request.name(), engine::Right::kWrite);
          if (!matrix.ok()) return matrix.status();
          auto signatures = ToSignatures((*matrix)->type(), request.expected());
          if (!signatures.ok()) return signatures.status();
          std::optional<engine::Asked> asked;
          const bool names_one = !request.recipe().empty() || !request.kernel().empty();
          if (request.explore() && names_one) {
            return absl::Status(absl::InvalidArgumentError(
                "explore: it times every candidate, and goes with neither pipeline nor kernel"));
          }
          if (request.explore()) asked.emplace();
          if (names_one) {
            auto parsed = engine::ParseAsked(request.recipe(), request.kernel());
            if (!parsed.ok()) return parsed.status();
            asked = *std::move(parsed);
          }
          return service_.engine.preparation().Request(*matrix, *std::move(signatures),
                                                       request.again(), asked,
                                                       RequesterOf(caller, request.name()));
        });
  }

  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* bytes,
                                   grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::DeleteMatrixRequest, v1::DeleteMatrixReply>(
        Op::kDelete, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::DeleteMatrixReply&) {
          absl::Status status = MayChange(caller, request.name());
          const bool in_shards = IsInShards(status);
          if (!status.ok() && !in_shards) return status;
          const engine::NameKey key = engine::Named(caller.tenant, request.name());
          if (in_shards && key.first != caller.tenant) return OfOthers(key, "deleted");
          // Another's is not his to delete, as the catalog says.
          status = service_.cluster == nullptr || key.first != caller.tenant
                       ? service_.engine.catalog().Delete(caller.tenant, request.name())
                       : service_.cluster->Delete(key);
          if (status.ok()) service_.live_streams.MatrixChanged(caller.tenant, request.name());
          return status;
        });
  }

  grpc::ServerUnaryReactor* Rename(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* bytes,
                                   grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::RenameMatrixRequest, v1::MatrixInfo>(
        Op::kRename, service_, context, bytes, response,
        [this](const v1::RenameMatrixRequest& request, const Caller& caller, v1::MatrixInfo& reply,
               engine::Store::Stop stop) {
          absl::Status status = MayChange(caller, request.name());
          const engine::NameKey from = engine::Named(caller.tenant, request.name());
          if (IsInShards(status)) {
            return RenameSharded(from, request.new_name(), caller, reply);
          }
          if (status.ok()) status = IsFree(caller, request.new_name());
          if (!status.ok()) return status;
          if (service_.cluster != nullptr && ParseShardName(from.second).has_value()) {
            return absl::Status(absl::FailedPreconditionError(
                fmt::format("\"{}\" is a shard: it has the name of its upload", from.second)));
          }
          const auto rename = [&]() -> absl::StatusOr<engine::MatrixLease> {
            auto done =
                service_.engine.catalog().Rename(caller.tenant, request.name(), request.new_name(),
                                                 service_.threads_per_worker, stop);
            if (done.ok()) service_.live_streams.MatrixChanged(caller.tenant, from.second);
            return done;
          };
          const absl::StatusOr<engine::MatrixLease> renamed =
              service_.cluster == nullptr || from.first != caller.tenant
                  ? rename()
                  : service_.cluster->Rename(from, {caller.tenant, request.new_name()}, rename);
          if (!renamed.ok()) return renamed.status();
          return Describe(**renamed, caller, reply);
        });
  }

  grpc::ServerUnaryReactor* Copy(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* bytes,
                                 grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::CopyMatrixRequest, v1::MatrixInfo>(
        Op::kCopy, service_, context, bytes, response,
        [this](const v1::CopyMatrixRequest& request, const Caller& caller, v1::MatrixInfo& reply,
               engine::Store::Stop stop) {
          absl::Status status = MayChange(caller, request.name());
          if (status.ok()) status = IsFree(caller, request.new_name());
          if (!status.ok()) return status;
          const auto make = [&] {
            auto made = service_.engine.catalog().Copy(caller.tenant, request.name(),
                                                       request.new_name(), request.replace(),
                                                       service_.threads_per_worker, stop);
            if (made.ok()) service_.live_streams.MatrixChanged((*made)->tenant(), (*made)->name());
            return made;
          };
          const absl::StatusOr<engine::MatrixLease> copy =
              service_.cluster == nullptr
                  ? make()
                  : service_.cluster->Copy(engine::Named(caller.tenant, request.name()),
                                           {caller.tenant, request.new_name()}, make);
          if (!copy.ok()) return copy.status();
          return Describe(**copy, caller, reply);
        });
  }

  grpc::ServerUnaryReactor* Share(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* bytes,
                                  grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::ShareRequest, v1::ShareReply>(
        Op::kShare, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::ShareReply& reply) {
          engine::Catalog& catalog = service_.engine.catalog();
          const v1::MatrixShare& share = request.share();
          absl::Status status = MayChange(caller, request.name());
          if (IsInShards(status)) return ShareSharded(request, caller, reply);
          if (!status.ok()) return status;
          const auto matrix = Changed(
              service_, {caller.tenant, request.name()},
              [&]() -> absl::StatusOr<engine::MatrixLease> {
                // Who has no such matrix is told so, and nothing of tenants.
                absl::StatusOr<engine::MatrixLease> own =
                    catalog.Find(caller.tenant, request.name());
                if (!own.ok()) return own;
                if (absl::Status may = MayShare(request); !may.ok()) return may;
                absl::Status done =
                    request.revoke()
                        ? catalog.Unshare(caller.tenant, request.name(), share.with())
                        : catalog.Share(caller.tenant, request.name(),
                                        {share.with(), share.write() ? engine::Right::kWrite
                                                                     : engine::Right::kRead});
                if (!done.ok()) return done;
                // Who watches it may not do so any more.
                if (request.revoke()) {
                  service_.live_streams.MatrixChanged(caller.tenant, request.name());
                }
                return catalog.Find(caller.tenant, request.name());
              });
          if (!matrix.ok()) return matrix.status();
          AddShares(**matrix, *reply.mutable_shares());
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* MakeSharded(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* bytes,
                                        grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::MakeShardedRequest, v1::MatrixInfo>(
        Op::kMakeSharded, service_, context, bytes, response,
        [this](const v1::MakeShardedRequest& request, const Caller& caller, v1::MatrixInfo& reply) {
          if (service_.cluster == nullptr) {
            return absl::Status(absl::FailedPreconditionError(
                "shards are for the nodes of a cluster, and this server is none (--etcd)"));
          }
          const engine::NameKey key(caller.tenant, request.name());
          const auto made = service_.cluster->MakeSharded(key,
                                                          {.rows = request.rows(),
                                                           .cols = request.cols(),
                                                           .upload = request.upload(),
                                                           .count = request.shards(),
                                                           .partitioned = request.partitioned()},
                                                          request.replace());
          if (!made.ok()) return made.status();
          service_.live_streams.MatrixChanged(key.first, key.second);
          return DescribeSharded(*made, caller, reply);
        });
  }

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* bytes,
                                    grpc::ByteBuffer* response) override {
    return StartExplain(service_, context, *bytes, *response, explanations_);
  }

 private:
  /// Whether this node makes changes of the matrix.
  absl::Status MayChange(const Caller& caller, const std::string& name) const {
    return Routed(service_, caller.tenant, name, Cluster::Need::kChange);
  }
  absl::Status IsFree(const Caller& caller, const std::string& name) const {
    return service_.cluster == nullptr ? absl::OkStatus()
                                       : service_.cluster->CheckFree(caller.tenant, name);
  }
  /// Part of another one, which is listed.
  bool IsShard(const engine::Matrix& matrix) const {
    return service_.cluster != nullptr && ParseShardName(matrix.name()).has_value();
  }
  /// The cluster knows it, and not as one that this node has.
  bool IsStale(const engine::Matrix& matrix) const {
    if (service_.cluster == nullptr) return false;
    const auto record = service_.cluster->RecordOf({matrix.tenant(), matrix.name()});
    return record.has_value() &&
           (record->deleted || record->CopyAt(service_.cluster->self().name) == nullptr);
  }
  /// Those of the cluster that are not here, by what the caller calls them.
  std::map<engine::NameKey, v1::MatrixInfo> Elsewhere(const v1::ListMatricesRequest& request,
                                                      const Caller& caller) const {
    std::map<engine::NameKey, v1::MatrixInfo> infos;
    if (service_.cluster == nullptr || request.here()) return infos;
    const std::string looks = request.all() ? "" : caller.tenant;
    const bool own = !request.all() && !request.shared();
    for (const MatrixRecord& record :
         service_.cluster->Records(own ? std::optional(caller.tenant) : std::nullopt)) {
      if (record.CopyAt(service_.cluster->self().name) != nullptr) continue;
      if (ParseShardName(record.key.second).has_value()) continue;
      const bool shared = std::ranges::any_of(record.shares, [&](const engine::Share& share) {
        return share.with == caller.tenant || share.with == engine::kEverybody;
      });
      if (request.shared() && (!shared || record.key.first == caller.tenant)) continue;
      v1::MatrixInfo info = service_.cluster->InfoOf(record, looks);
      if (!info.name().starts_with(request.prefix()) ||
          (!request.page_token().empty() &&
           record.key <= engine::Named(looks, request.page_token()))) {
        continue;
      }
      infos.emplace(record.key, std::move(info));
    }
    return infos;
  }

  /// Of one that belongs to the caller. OK.
  absl::Status Describe(const engine::Matrix& matrix, const Caller& caller,
                        v1::MatrixInfo& reply) const {
    reply = ToMatrixInfo(matrix, caller.tenant, service_.engine.executor());
    AddShares(matrix, *reply.mutable_shares());
    AddNodes(service_, reply);
    return absl::OkStatus();
  }

  using MatrixShares = google::protobuf::RepeatedPtrField<v1::MatrixShare>;
  static void AddShares(const std::vector<engine::Share>& from, MatrixShares& shares) {
    for (const engine::Share& share : from) {
      v1::MatrixShare& message = *shares.Add();
      message.set_with(share.with);
      message.set_write(share.right == engine::Right::kWrite);
    }
  }
  void AddShares(const engine::Matrix& matrix, MatrixShares& shares) const {
    AddShares(service_.engine.catalog().SharesOf(matrix), shares);
  }

  // Of one in shards, in the directory alone; but for GetSharded one that belongs to the caller.

  absl::Status DescribeSharded(const MatrixRecord& record, const Caller& caller,
                               v1::MatrixInfo& reply) const {
    reply = service_.cluster->InfoOf(record, caller.tenant);
    AddShares(record.shares, *reply.mutable_shares());
    return absl::OkStatus();
  }
  /// Who may see it is told by now.
  absl::Status GetSharded(const std::string& name, const Caller& caller,
                          v1::MatrixInfo& reply) const {
    const auto record = service_.cluster->RecordOf(engine::Named(caller.tenant, name));
    if (!record.has_value() || !record->in_shards()) return engine::NoMatrix(name);
    absl::Status described = DescribeSharded(*record, caller, reply);
    if (record->key.first != caller.tenant) reply.clear_shares();
    return described;
  }
  absl::Status RenameSharded(const engine::NameKey& from, const std::string& new_name,
                             const Caller& caller, v1::MatrixInfo& reply) const {
    if (from.first != caller.tenant) return OfOthers(from, "renamed");
    const auto renamed = service_.cluster->RenameSharded(from, {caller.tenant, new_name});
    if (!renamed.ok()) return renamed.status();
    service_.live_streams.MatrixChanged(from.first, from.second);
    return DescribeSharded(*renamed, caller, reply);
  }
  /// Not with who is no tenant. What was shared with one that is gone can be taken back.
  absl::Status MayShare(const v1::ShareRequest& request) const {
    const std::string& with = request.share().with();
    if (request.revoke() || with == engine::kEverybody) return absl::OkStatus();
    return service_.access.CheckTenant(with);
  }
  absl::Status ShareSharded(const v1::ShareRequest& request, const Caller& caller,
                            v1::ShareReply& reply) const {
    const engine::NameKey key = engine::Named(caller.tenant, request.name());
    if (key.first != caller.tenant) return OfOthers(key, "shared");
    if (absl::Status may = MayShare(request); !may.ok()) return may;
    const v1::MatrixShare& share = request.share();
    const auto shared = service_.cluster->ShareSharded(
        key, {share.with(), share.write() ? engine::Right::kWrite : engine::Right::kRead},
        request.revoke());
    if (!shared.ok()) return shared.status();
    AddShares(shared->shares, *reply.mutable_shares());
    return absl::OkStatus();
  }
  static absl::Status OfOthers(const engine::NameKey& key, const char* what) {
    return absl::PermissionDeniedError(
        fmt::format("\"{}\" is {}'s, and {} by its owner alone", key.second, key.first, what));
  }

  const ServiceContext& service_;
  std::atomic<int> explanations_{0};  ///< under way
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCatalogService(const ServiceContext& context) {
  return std::make_unique<CatalogService>(context);
}

}  // namespace sparsed::server
