#include "client/attached/attachment.h"

#include <utility>

namespace sparsed {
inline namespace client {

namespace {

/// Of different widths, mostly: each is a round trip, and its workspaces.
constexpr size_t kMostProducts = 256;

}  // namespace

Attachment::Attachment(std::optional<int> gpu, std::shared_ptr<LocalSocket> socket,
                       std::unique_ptr<UsagePage> usage, std::shared_ptr<const MappedFile> sequence)
    : gpu_(gpu),
      usage_(std::move(usage)),
      sequence_(std::move(sequence)),
      socket_(std::move(socket)) {}

absl::StatusOr<std::shared_ptr<Attachment>> Attachment::Open(const LocalAddress& address,
                                                             const std::string& matrix,
                                                             std::optional<int> gpu) {
  std::string uuid;
  if (gpu) {
    absl::StatusOr<std::string> found = GpuUuid(*gpu);
    if (!found.ok()) return absl::FailedPreconditionError(found.status().message());
    uuid = *std::move(found);
  }
  absl::StatusOr<std::shared_ptr<LocalSocket>> socket = LocalSocket::Connect(address);
  if (!socket.ok()) return socket.status();
  absl::StatusOr<std::unique_ptr<UsagePage>> usage = UsagePage::Make();
  if (!usage.ok()) return usage.status();
  v1::LocalRequest request;
  request.mutable_attach()->set_matrix(matrix);
  request.mutable_attach()->set_kernels(KernelsHere());
  request.mutable_attach()->set_gpu(uuid);
  const absl::StatusOr<LocalSocket::Reply> reply =
      (*socket)->Ask(std::move(request), (*usage)->file());
  if (!reply.ok()) return reply.status();
  absl::StatusOr<std::shared_ptr<const MappedFile>> sequence =
      MappedFile::Map(reply->file, sizeof(uint64_t));
  if (!sequence.ok()) return sequence.status();
  return std::shared_ptr<Attachment>(
      new Attachment(gpu, *std::move(socket), *std::move(usage), *std::move(sequence)));
}

absl::StatusOr<std::shared_ptr<const Attachment::Product>> Attachment::Find(
    const v1::ProblemClass& problem) {
  const Key key = KeyOf(problem);
  const auto known = [&] {
    const MutexLock lock(mutex_);
    const auto found = products_.find(key);
    return found == products_.end() ? nullptr : found->second;
  };
  const auto present = [&](const std::shared_ptr<const Product>& product) {
    return product != nullptr && product->sequence >= sequence();
  };
  if (std::shared_ptr<const Product> product = known(); present(product)) return product;

  const MutexLock lock(asking_);
  const std::shared_ptr<const Product> last = known();
  if (present(last)) return last;  // another thread asked meanwhile
  absl::StatusOr<std::shared_ptr<const Product>> fresh = AskLocked(problem);
  // The server's own UNAVAILABLE, of a GPU that it lost, is an answer.
  if (absl::IsUnavailable(fresh.status()) && !Alive() && last != nullptr) return last;
  const MutexLock products_lock(mutex_);
  // What is not up to date is asked for again, by who needs it: until then nobody keeps its memory.
  std::erase_if(products_, [&](const auto& entry) { return entry.second->sequence < sequence(); });
  if (products_.size() >= kMostProducts) products_.clear();
  if (fresh.ok()) products_[key] = *fresh;
  return fresh;
}

absl::StatusOr<std::shared_ptr<const Attachment::Product>> Attachment::AskLocked(
    const v1::ProblemClass& problem) {
  v1::LocalRequest request;
  *request.mutable_export_()->mutable_problem() = problem;
  const absl::StatusOr<LocalSocket::Reply> reply = socket_->Ask(std::move(request));
  if (!reply.ok()) return reply.status();
  const v1::ExportedRun& run = reply->message.exported();
  // The server counts it as this caller's until it is told, which is when nothing uses it any more:
  // products may outlive the attachment.
  ExportedProduct::Memory memory;
  memory.lease =
      std::shared_ptr<const void>(nullptr, [socket = socket_, id = run.run()](const void*) {
        v1::LocalRequest release;
        release.mutable_release()->set_run(id);
        socket->Send(std::move(release));
      });
  for (const auto& [from, to] :
       {std::pair(&run.arrays(), &memory.arrays), std::pair(&run.values(), &memory.values),
        std::pair(&run.order(), &memory.order)}) {
    if (from == &run.order() && !run.has_order()) continue;
    absl::StatusOr<std::shared_ptr<const MappedMemory>> mapped = MapLocked(*from);
    if (!mapped.ok()) return mapped.status();
    *to = *std::move(mapped);
  }
  if (clocks_.size() >= kMostProducts) clocks_.clear();
  absl::StatusOr<std::shared_ptr<const ExportedProduct>> runs =
      ExportedProduct::Make(run, problem, gpu_, std::move(memory), clocks_[KeyOf(problem)]);
  if (!runs.ok()) return runs.status();
  auto product = std::make_shared<Product>();
  product->runs = *std::move(runs);
  product->rows = run.matrix().rows();
  product->cols = run.matrix().cols();
  product->nnz = run.matrix().nnz();
  product->type = run.matrix().type();
  product->plan = run.plan();
  product->version = run.version();
  product->sequence = run.sequence();
  return product;
}

absl::StatusOr<std::shared_ptr<const MappedMemory>> Attachment::MapLocked(
    const v1::ExportedMemory& memory) {
  std::weak_ptr<const MappedMemory>& known = mapped_[memory.id()];
  if (std::shared_ptr<const MappedMemory> mapped = known.lock()) return mapped;
  v1::LocalRequest request;
  request.mutable_get()->set_id(memory.id());
  const absl::StatusOr<LocalSocket::Reply> reply = socket_->Ask(std::move(request));
  if (!reply.ok()) return reply.status();
  absl::StatusOr<std::shared_ptr<const MappedMemory>> mapped =
      gpu_ ? MapGpuMemory(reply->file, memory.bytes(), *gpu_)
           : MappedFile::Map(reply->file, memory.bytes());
  if (mapped.ok()) known = *mapped;
  std::erase_if(mapped_, [](const auto& entry) { return entry.second.expired(); });
  return mapped;
}

}  // namespace client
}  // namespace sparsed
