#include "client/attached/attachment.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sparsed {
inline namespace client {

namespace {

/// Of different widths, mostly: each is a round trip, and its workspaces.
constexpr size_t kMostProducts = 256;
/// Before what could not run here is asked for again.
constexpr std::chrono::seconds kPause{1};
/// For what the server exports: it may copy gigabytes for that. Who waits longer is served by
/// requests.
constexpr std::chrono::seconds kPatience{10};

using Clock = LocalSocket::Clock;

}  // namespace

Attachment::Attachment(std::optional<int> gpu, std::shared_ptr<LocalSocket> socket,
                       std::unique_ptr<UsagePage> usage, std::shared_ptr<const MappedFile> sequence)
    : gpu_(gpu),
      usage_(std::move(usage)),
      sequence_(std::move(sequence)),
      socket_(std::move(socket)),
      chains_(ExportedChains::Make(gpu)) {}

absl::StatusOr<std::shared_ptr<Attachment>> Attachment::Open(std::shared_ptr<LocalSocket> socket,
                                                             const std::string& matrix,
                                                             std::optional<int> gpu,
                                                             Clock::time_point deadline) {
  std::string uuid;
  if (gpu) {
    absl::StatusOr<std::string> found = GpuUuid(*gpu);
    if (!found.ok()) return absl::FailedPreconditionError(found.status().message());
    uuid = *std::move(found);
  }
  absl::StatusOr<std::unique_ptr<UsagePage>> usage = UsagePage::Make();
  if (!usage.ok()) return usage.status();
  v1::LocalRequest request;
  request.mutable_attach()->set_matrix(matrix);
  request.mutable_attach()->set_kernels(KernelsHere());
  request.mutable_attach()->set_gpu(uuid);
  const absl::StatusOr<LocalSocket::Reply> reply = socket->Ask(
      std::move(request), (*usage)->file(), std::min(deadline, Clock::now() + kPatience));
  if (!reply.ok()) return reply.status();
  absl::StatusOr<std::shared_ptr<const MappedFile>> sequence =
      MappedFile::Map(reply->file, 2 * sizeof(uint64_t));
  if (!sequence.ok()) return sequence.status();
  return std::shared_ptr<Attachment>(
      new Attachment(gpu, std::move(socket), *std::move(usage), *std::move(sequence)));
}

std::optional<absl::Status> Attachment::KnownLocked(const Key& key,
                                                    std::shared_ptr<const Product>& product) {
  const auto found = products_.find(key);
  product = found == products_.end() ? nullptr : found->second;
  if (product != nullptr && product->sequence >= sequence()) return absl::OkStatus();
  const auto refused = refused_.find(key);
  if (refused == refused_.end() || refused->second.sequence < sequence() ||
      refused->second.until <= Clock::now()) {
    return std::nullopt;
  }
  return refused->second.why;
}

absl::Status Attachment::status() {
  const MutexLock lock(mutex_);
  const Refusal* last = nullptr;
  for (const auto& [key, refused] : refused_) {
    if (refused.sequence < sequence()) continue;
    if (last == nullptr || refused.until > last->until) last = &refused;
  }
  return last == nullptr ? absl::OkStatus() : last->why;
}

absl::StatusOr<std::shared_ptr<const Attachment::Product>> Attachment::Find(
    const v1::ProblemClass& problem, Clock::time_point deadline) {
  const Key key = KeyOf(problem);
  // To unmap what nobody uses any more may take a while: it is done after the lock.
  std::shared_ptr<const Product> last;
  std::vector<std::shared_ptr<const Product>> gone;
  MutexLock lock(mutex_);
  while (true) {
    if (const std::optional<absl::Status> known = KnownLocked(key, last)) {
      if (!known->ok()) return *known;
      return last;
    }
    if (!asking_ && *owed_ > 0) {
      return absl::DeadlineExceededError("the server's local socket is silent");
    }
    if (!asking_) break;
    gone.push_back(std::move(last));
    if (deadline == Clock::time_point::max()) {
      asked_.Wait(mutex_);
    } else if (!asked_.WaitUntil(mutex_, deadline)) {
      return absl::DeadlineExceededError("others wait for the server's local socket");
    }
  }
  asking_ = true;
  lock.Unlock();
  const uint64_t before = sequence();
  absl::StatusOr<std::shared_ptr<const Product>> fresh = Ask(problem, deadline);
  lock.Lock();
  asking_ = false;
  asked_.NotifyAll();
  // The server's own UNAVAILABLE, of a GPU that it lost, is an answer.
  if (absl::IsUnavailable(fresh.status()) && !Alive() && last != nullptr &&
      last->contents == contents()) {
    return last;
  }
  // What is not up to date is asked for again, by who needs it: until then nobody keeps its memory.
  // What only has another plan now serves on if the server goes.
  const bool full = products_.size() >= kMostProducts;
  for (auto it = products_.begin(); it != products_.end();) {
    const bool same_values = fresh.ok() && it->second->version == (*fresh)->version;
    if (full || (it->second->sequence < sequence() && !same_values)) {
      gone.push_back(std::move(it->second));
      it = products_.erase(it);
    } else {
      ++it;
    }
  }
  if (refused_.size() >= kMostProducts) refused_.clear();
  if (fresh.ok()) {
    products_[key] = *fresh;
    refused_.erase(key);
  } else {
    refused_[key] = {fresh.status(), before, Clock::now() + kPause};
  }
  return fresh;
}

std::shared_ptr<const void> Attachment::Lease(const std::shared_ptr<LocalSocket>& socket,
                                              uint64_t run) {
  return std::shared_ptr<const void>(nullptr, [socket, run](const void*) {
    v1::LocalRequest release;
    release.mutable_release()->set_run(run);
    socket->Send(std::move(release));
  });
}

absl::StatusOr<LocalSocket::Reply> Attachment::AskServer(v1::LocalRequest request,
                                                         Clock::time_point deadline,
                                                         LocalSocket::OnReply late) {
  ++*owed_;
  absl::StatusOr<LocalSocket::Reply> reply = socket_->Ask(
      std::move(request), /*file=*/-1, std::min(deadline, Clock::now() + kPatience),
      [owed = owed_, late = std::move(late)](absl::StatusOr<LocalSocket::Reply> answer) {
        --*owed;
        if (late) late(std::move(answer));
      });
  // No answer has that status.
  if (!absl::IsDeadlineExceeded(reply.status())) --*owed_;
  return reply;
}

absl::StatusOr<std::shared_ptr<const Attachment::Product>> Attachment::Ask(
    const v1::ProblemClass& problem, Clock::time_point deadline) {
  v1::LocalRequest request;
  *request.mutable_export_()->mutable_problem() = problem;
  const bool plain_rows = problem.operation() == v1::ProblemClass::OPERATION_UNSPECIFIED;
  request.mutable_export_()->set_plain_rows(plain_rows);
  const auto let_go = [socket = std::weak_ptr(socket_)](absl::StatusOr<LocalSocket::Reply> late) {
    const std::shared_ptr<LocalSocket> there = socket.lock();
    if (there != nullptr && late.ok()) Lease(there, late->message.exported().run());
  };
  const absl::StatusOr<LocalSocket::Reply> reply = AskServer(std::move(request), deadline, let_go);
  if (!reply.ok()) return reply.status();
  const v1::ExportedRun& run = reply->message.exported();
  // The server counts it as this caller's until it is told, which is when nothing uses it any more:
  // products may outlive the attachment.
  ExportedProduct::Memory memory;
  memory.lease = Lease(socket_, run.run());
  for (const auto& [from, to] :
       {std::pair(&run.arrays(), &memory.arrays), std::pair(&run.values(), &memory.values),
        std::pair(&run.order(), &memory.order)}) {
    if (from == &run.order() && !run.has_order()) continue;
    absl::StatusOr<std::shared_ptr<const MappedMemory>> mapped = Map(*from, deadline);
    if (!mapped.ok()) return mapped.status();
    *to = *std::move(mapped);
  }
  auto product = std::make_shared<Product>();
  if (plain_rows) {
    absl::StatusOr<std::shared_ptr<const ExportedRows>> csr =
        ExportedRows::Make(run, gpu_, std::move(memory));
    if (!csr.ok()) return csr.status();
    product->csr = *std::move(csr);
    product->order = product->csr->order();
  } else {
    if (clocks_.size() >= kMostProducts) clocks_.clear();
    absl::StatusOr<std::shared_ptr<const ExportedProduct>> runs =
        ExportedProduct::Make(run, problem, gpu_, std::move(memory), clocks_[KeyOf(problem)]);
    if (!runs.ok()) return runs.status();
    product->runs = *std::move(runs);
    product->order = product->runs->order();
  }
  product->rows = run.matrix().rows();
  product->cols = run.matrix().cols();
  product->nnz = run.matrix().nnz();
  product->type = run.matrix().type();
  product->plan = run.plan();
  product->version = run.version();
  product->sequence = run.sequence();
  product->contents = run.contents();
  return product;
}

absl::StatusOr<std::shared_ptr<const MappedMemory>> Attachment::Map(
    const v1::ExportedMemory& memory, Clock::time_point deadline) {
  std::weak_ptr<const MappedMemory>& known = mapped_[memory.id()];
  if (std::shared_ptr<const MappedMemory> mapped = known.lock()) return mapped;
  v1::LocalRequest request;
  request.mutable_get()->set_id(memory.id());
  const absl::StatusOr<LocalSocket::Reply> reply = AskServer(std::move(request), deadline);
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
