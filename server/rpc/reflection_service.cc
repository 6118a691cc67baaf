// Server reflection: which services there are, and the .proto files that describe them.
//
// gRPC has one of its own, which keeps a thread for each stream.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpc/reflection/v1alpha/reflection.grpc.pb.h>

#include <algorithm>
#include <list>
#include <optional>
#include <set>

#include "base/mutex.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/client_wait.h"
#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/reactors.h"
#include "server/rpc/service.h"

namespace sparsed::server {
namespace {

namespace reflection = grpc::reflection::v1alpha;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using Request = reflection::ServerReflectionRequest;
using Response = reflection::ServerReflectionResponse;
using Service = reflection::ServerReflection::WithRawCallbackMethod_ServerReflectionInfo<
    reflection::ServerReflection::Service>;

/// Open at once; past it the one that was silent for longest ends.
constexpr size_t kMaxStreams = 64;

constexpr const char* kServices[] = {
    "sparsed.v1.Catalog", "sparsed.v1.Compute",    "sparsed.v1.Buffers",
    "sparsed.v1.Admin",   "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"};

void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>& added,
             reflection::FileDescriptorResponse& response) {
  if (!added.insert(&file).second) return;
  google::protobuf::FileDescriptorProto described;
  file.CopyTo(&described);
  described.SerializeToString(response.add_file_descriptor_proto());
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddFile(*file.dependency(i), added, response);
  }
}

void AnswerFile(const FileDescriptor* file, Response& response) {
  if (file == nullptr) {
    response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
    response.mutable_error_response()->set_error_message("no file declares that");
    return;
  }
  std::set<const FileDescriptor*> added;
  AddFile(*file, added, *response.mutable_file_descriptor_response());
}

const FileDescriptor* FileOfExtension(const reflection::ExtensionRequest& request) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const auto* type = pool.FindMessageTypeByName(request.containing_type());
  if (type == nullptr) return nullptr;
  const auto* extension = pool.FindExtensionByNumber(type, request.extension_number());
  return extension == nullptr ? nullptr : extension->file();
}

Response AnswerTo(const Request& request) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  Response response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      AnswerFile(pool.FindFileByName(request.file_by_filename()), response);
      break;
    case Request::kFileContainingSymbol:
      AnswerFile(pool.FindFileContainingSymbol(request.file_containing_symbol()), response);
      break;
    case Request::kFileContainingExtension:
      AnswerFile(FileOfExtension(request.file_containing_extension()), response);
      break;
    case Request::kAllExtensionNumbersOfType:
      // None of ours has any.
      response.mutable_all_extension_numbers_response()->set_base_type_name(
          request.all_extension_numbers_of_type());
      break;
    case Request::kListServices:
      for (const char* name : kServices) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    default:
      response.mutable_error_response()->set_error_code(grpc::StatusCode::UNIMPLEMENTED);
      response.mutable_error_response()->set_error_message("an unknown question");
  }
  return response;
}

class Reactor;

/// Those that are open, the one that was silent for longest first. The lock is held while one is
/// told to end, so that it is there.
class OpenReactors {
 public:
  void Add(Reactor* reactor);
  void Touch(Reactor* reactor);
  void Remove(Reactor* reactor);

 private:
  Mutex mutex_;
  std::list<Reactor*> reactors_ ABSL_GUARDED_BY(mutex_);
};

class Reactor final : public BytesBidiReactor, public LiveStream {
 public:
  Reactor(const ServiceContext& service, grpc::CallbackServerContext& context, OpenReactors& open)
      : LiveStream(std::nullopt), service_(service), context_(context), open_(open) {
    open_.Add(this);
    if (!service_.live_streams.Add(this)) {
      OnDrain();
      return;
    }
    StartRead(&in_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    open_.Touch(this);
    Request request;
    if (const absl::Status status = wire::ParseRequest(in_, request); !status.ok()) {
      return End(ToGrpc(status));
    }
    out_ = wire::Encode(AnswerTo(request));
    {
      const MutexLock lock(mutex_);
      if (end_.has_value()) return;
      writing_ = true;
    }
    delivery_.Begin(0, [this] { StartWrite(&out_); });
  }

  void OnWriteDone(bool ok) override {
    delivery_.End(ok).IgnoreError();
    {
      const MutexLock lock(mutex_);
      writing_ = false;
    }
    if (!ok) End({grpc::StatusCode::CANCELLED, "the caller is gone"});
    if (!FinishIfEnded()) StartRead(&in_);
  }

  void OnCancel() override { End({grpc::StatusCode::CANCELLED, "the caller is gone"}); }
  void OnDrain() override { End({grpc::StatusCode::UNAVAILABLE, "the server is shutting down"}); }
  void OnTick(const Patience& patience) override { delivery_.Tick(patience, context_); }
  void OnDone() override {
    service_.live_streams.Remove(this);
    open_.Remove(this);
    delete this;
  }

  /// After what is being written; the first reason stays.
  void End(const grpc::Status& status) {
    {
      const MutexLock lock(mutex_);
      if (!end_.has_value()) end_ = status;
    }
    FinishIfEnded();
  }

 private:
  /// True if it ends; `this` may be gone then.
  bool FinishIfEnded() {
    MutexLock lock(mutex_);
    if (!end_.has_value()) return false;
    if (writing_ || finished_) return true;
    finished_ = true;
    const grpc::Status status = *end_;
    lock.Unlock();
    Finish(status);
    return true;
  }

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  OpenReactors& open_;
  grpc::ByteBuffer in_, out_;
  Delivery delivery_;
  Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
};

void OpenReactors::Add(Reactor* reactor) {
  const MutexLock lock(mutex_);
  reactors_.push_back(reactor);
  if (reactors_.size() <= kMaxStreams) return;
  reactors_.front()->End({grpc::StatusCode::RESOURCE_EXHAUSTED,
                          "too many reflection streams are open, and this one is silent"});
  reactors_.pop_front();
}

void OpenReactors::Touch(Reactor* reactor) {
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find(reactors_, reactor);
  if (found != reactors_.end()) reactors_.splice(reactors_.end(), reactors_, found);
}

void OpenReactors::Remove(Reactor* reactor) {
  const MutexLock lock(mutex_);
  reactors_.remove(reactor);
}

class ReflectionService final : public Service {
 public:
  explicit ReflectionService(const ServiceContext& service) : service_(service) {}

  BytesBidiReactor* ServerReflectionInfo(grpc::CallbackServerContext* context) override {
    return new Reactor(service_, *context, open_);
  }

 private:
  const ServiceContext& service_;
  OpenReactors open_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReflectionService(const ServiceContext& context) {
  return std::make_unique<ReflectionService>(context);
}

}  // namespace sparsed::server
