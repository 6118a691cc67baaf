#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include "engine/engine.h"
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
using Service = v1::Catalog::WithRawCallbackMethod_Get<
    v1::Catalog::WithRawCallbackMethod_List<v1::Catalog::WithRawCallbackMethod_Prepare<
        v1::Catalog::WithRawCallbackMethod_Delete<v1::Catalog::WithRawCallbackMethod_Share<
            v1::Catalog::WithRawCallbackMethod_Rename<v1::Catalog::WithRawCallbackMethod_Copy<
                v1::Catalog::WithRawCallbackMethod_Explain<Streams>>>>>>>>;

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
          const auto matrix = FindMatrix(service_, caller.tenant, request.name());
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
          std::map<std::string, v1::MatrixInfo> elsewhere = Elsewhere(request, caller);
          // False: it goes onto the next page, and so does what follows.
          const auto add = [&](v1::MatrixInfo info) {
            if (!page.Take(info)) {
              reply.set_next_page_token(reply.matrices().rbegin()->name());
              return false;
            }
            *reply.add_matrices() = std::move(info);
            return true;
          };
          const auto add_elsewhere_before = [&](const std::string* name) {
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
            if (IsStale(*matrix)) continue;
            v1::MatrixInfo info = ToMatrixInfo(*matrix, looks, service_.engine.executor());
            info.clear_detail();
            info.clear_measurements();
            info.clear_decisions();
            AddNodes(service_, info);
            const std::string name = info.name();
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
          auto classes = ToClasses((*matrix)->type(), request.expected());
          if (!classes.ok()) return classes.status();
          std::optional<engine::Asked> asked;
          const bool names_one = !request.recipe().empty() || !request.kernel().empty();
          if (request.explore() && names_one) {
            return absl::Status(absl::InvalidArgumentError(
                "explore: it times every candidate, and goes with neither recipe nor kernel"));
          }
          if (request.explore()) asked.emplace();
          if (names_one) {
            auto parsed = engine::ParseAsked(request.recipe(), request.kernel());
            if (!parsed.ok()) return parsed.status();
            asked = *std::move(parsed);
          }
          return service_.engine.preparation().Request(*matrix, *std::move(classes),
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
          if (!status.ok()) return status;
          const engine::NameKey key = engine::Named(caller.tenant, request.name());
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
          if (status.ok()) status = IsFree(caller, request.new_name());
          if (!status.ok()) return status;
          const engine::NameKey from = engine::Named(caller.tenant, request.name());
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
          if (!status.ok()) return status;
          const auto matrix = Changed(
              service_, {caller.tenant, request.name()},
              [&]() -> absl::StatusOr<engine::MatrixLease> {
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
  /// The cluster knows it, and not as one that this node has.
  bool IsStale(const engine::Matrix& matrix) const {
    if (service_.cluster == nullptr) return false;
    const auto record = service_.cluster->RecordOf({matrix.tenant(), matrix.name()});
    return record.has_value() &&
           (record->deleted || record->CopyAt(service_.cluster->self().name) == nullptr);
  }
  /// What the directory knows of a matrix.
  v1::MatrixInfo InfoOf(const MatrixRecord& record, std::string_view looks) const {
    v1::MatrixInfo info;
    info.set_name(engine::ReferenceFor(looks, record.key));
    info.set_rows(record.rows);
    info.set_cols(record.cols);
    info.set_nnz(record.nnz);
    info.set_pattern_hash(record.pattern_hash);
    info.set_owner(record.key.first);
    const CopyIdentity& acknowledged = record.acknowledged().front().identity;
    info.set_version(acknowledged.version);
    info.set_created_unix_ns(acknowledged.created_unix_ns);
    for (const ElementType type :
         {ElementType::kF32, ElementType::kF64, ElementType::kF16, ElementType::kBF16}) {
      if (record.type == Name(type)) info.set_type(ToProto(type));
    }
    for (const MatrixCopy& copy : record.copies) info.add_nodes(copy.node);
    info.set_copies_missing(service_.cluster->CopiesMissing(record.key));
    return info;
  }
  /// Those of the cluster that are not here, by what the caller calls them.
  std::map<std::string, v1::MatrixInfo> Elsewhere(const v1::ListMatricesRequest& request,
                                                  const Caller& caller) const {
    std::map<std::string, v1::MatrixInfo> infos;
    if (service_.cluster == nullptr) return infos;
    const std::string looks = request.all() ? "" : caller.tenant;
    const bool own = !request.all() && !request.shared();
    for (const MatrixRecord& record :
         service_.cluster->Records(own ? std::optional(caller.tenant) : std::nullopt)) {
      if (record.CopyAt(service_.cluster->self().name) != nullptr) continue;
      const bool shared = std::ranges::any_of(record.shares, [&](const engine::Share& share) {
        return share.with == caller.tenant || share.with == engine::kEverybody;
      });
      if (request.shared() && (!shared || record.key.first == caller.tenant)) continue;
      v1::MatrixInfo info = InfoOf(record, looks);
      if (!info.name().starts_with(request.prefix()) || info.name() <= request.page_token()) {
        continue;
      }
      std::string name = info.name();
      infos.emplace(std::move(name), std::move(info));
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

  void AddShares(const engine::Matrix& matrix,
                 google::protobuf::RepeatedPtrField<v1::MatrixShare>& shares) const {
    for (const engine::Share& share : service_.engine.catalog().SharesOf(matrix)) {
      v1::MatrixShare& message = *shares.Add();
      message.set_with(share.with);
      message.set_write(share.right == engine::Right::kWrite);
    }
  }

  const ServiceContext& service_;
  std::atomic<int> explanations_{0};  ///< under way
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCatalogService(const ServiceContext& context) {
  return std::make_unique<CatalogService>(context);
}

}  // namespace sparsed::server
