#include "server/local/attached_caller.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "kernels/kernels_id.h"
#include "server/rpc/convert.h"

namespace sparsed::server {
namespace {

constexpr size_t kUsageBytes = 4096;
/// What one caller may have at once, of different widths and operations.
constexpr size_t kMostRuns = 1024;

absl::StatusOr<Descriptor> Copy(int file) {
  Descriptor copy(fcntl(file, F_DUPFD_CLOEXEC, 0));
  if (!copy.open()) return absl::ResourceExhaustedError("the server has no descriptors left");
  return copy;
}

absl::StatusOr<const uint64_t*> MapUsage(const Descriptor& file) {
  struct stat facts = {};
  const int seals = file.open() ? fcntl(file.fd(), F_GET_SEALS) : -1;
  // What could become smaller would be a signal.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file.fd(), &facts) != 0 ||
      facts.st_size != kUsageBytes) {
    return absl::InvalidArgumentError(fmt::format(
        "who attaches sends a memory file of {} bytes, sealed with F_SEAL_SHRINK, to count in",
        kUsageBytes));
  }
  void* const at = mmap(nullptr, kUsageBytes, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (at == MAP_FAILED) return absl::ResourceExhaustedError("4096 bytes cannot be mapped");
  return static_cast<const uint64_t*>(at);
}

void Describe(const engine::Matrix& matrix, v1::AttachedMatrix& to) {
  to.set_rows(matrix.pattern()->rows());
  to.set_cols(matrix.pattern()->cols());
  to.set_nnz(matrix.pattern()->nnz());
  to.set_type(ToProto(matrix.type()));
}

void Describe(const Layout& layout, v1::ExportedLayout& to) {
  to.set_kind(layout.kind);
  to.set_recipe(layout.pipeline);
  for (const auto& [name, value] : layout.parameters) {
    v1::ExportedLayout::Parameter& parameter = *to.add_parameters();
    parameter.set_name(name);
    parameter.set_value(value);
  }
  to.set_rows(layout.rows);
  to.set_cols(layout.cols);
  to.set_nnz(layout.nnz);
  to.set_transposed(layout.transposed);
  to.set_value_slots(layout.value_slots);
  for (const Array& array : layout.arrays) {
    AddArrayHeader(array.name, array.type, array.length, *to.mutable_arrays());
  }
}

void Describe(const engine::ExportedMemory& memory, v1::ExportedMemory& to) {
  to.set_id(memory.id());
  to.set_bytes(memory.bytes());
}

}  // namespace

AttachedCaller::AttachedCaller(std::shared_ptr<engine::Attachment> attachment,
                               const uint64_t* usage)
    : attachment_(std::move(attachment)), usage_(usage) {}

AttachedCaller::~AttachedCaller() { munmap(const_cast<uint64_t*>(usage_), kUsageBytes); }

absl::StatusOr<std::unique_ptr<AttachedCaller>> AttachedCaller::Attach(
    engine::Engine& engine, std::string tenant, const v1::AttachMatrix& request,
    const Descriptor& usage) {
  if (KernelsId().empty() || request.kernels() != KernelsId()) {
    return absl::FailedPreconditionError(
        "the caller has other kernels than this server; its program must use the kernels' library "
        "of the same build (lib/sparsed)");
  }
  absl::StatusOr<std::shared_ptr<engine::Attachment>> attachment =
      engine.executor().Attach(tenant, request.matrix(), request.gpu());
  if (!attachment.ok()) return attachment.status();
  if (absl::Status s = (*attachment)->Current().status(); !s.ok()) return s;
  const absl::StatusOr<const uint64_t*> page = MapUsage(usage);
  if (!page.ok()) return page.status();
  return std::unique_ptr<AttachedCaller>(new AttachedCaller(*std::move(attachment), *page));
}

absl::StatusOr<Descriptor> AttachedCaller::Sequence() const {
  return Copy(attachment_->sequence().file());
}

absl::StatusOr<engine::ExportedRun> AttachedCaller::ExportOf(const v1::ExportRun& request) {
  const v1::ProblemClass& problem = request.problem();
  if (request.plain_rows()) return attachment_->ExportRows(problem.transposed());
  Problem exact;
  switch (problem.operation()) {
    case v1::ProblemClass::SPMM:
      exact.operation = Operation::kSpmm;
      break;
    case v1::ProblemClass::SDDMM:
      exact.operation = Operation::kSddmm;
      break;
    default:
      return absl::InvalidArgumentError(
          "callers run SpMM, SDDMM and what has no plan themselves, nothing else");
  }
  exact.transposed = problem.transposed();
  exact.k = problem.k();
  exact.allow_tf32 = problem.allow_tf32();
  return attachment_->Export(exact);
}

absl::StatusOr<v1::ExportedRun> AttachedCaller::Export(const v1::ExportRun& request) {
  if (runs_.size() >= kMostRuns) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} runs were exported to this caller, which is the most; let some go", runs_.size()));
  }
  absl::StatusOr<engine::ExportedRun> run = ExportOf(request);
  if (!run.ok()) return run.status();
  v1::ExportedRun message;
  message.set_run(next_);
  message.set_sequence(run->sequence);
  message.set_contents(run->contents);
  message.set_version(run->version);
  message.set_plan(run->plan);
  message.set_kernel(run->kernel);
  Describe(*run->matrix, *message.mutable_matrix());
  Describe(*run->layout, *message.mutable_layout());
  Describe(*run->arrays, *message.mutable_arrays());
  Describe(*run->values, *message.mutable_values());
  if (run->order != nullptr) Describe(*run->order, *message.mutable_order());
  run->matrix = nullptr;  // the caller needs what is exported of it, and no more
  runs_.emplace(next_++, *std::move(run));
  return message;
}

absl::StatusOr<Descriptor> AttachedCaller::Get(uint64_t id) const {
  for (const auto& [name, run] : runs_) {
    for (const auto* memory : {&run.arrays, &run.values, &run.order}) {
      if (*memory != nullptr && (*memory)->id() == id) return Copy((*memory)->file());
    }
  }
  return absl::NotFoundError("no run that was exported to this caller has such memory");
}

absl::Status AttachedCaller::Release(uint64_t run) {
  if (runs_.erase(run) > 0) return absl::OkStatus();
  return absl::NotFoundError("no such run was exported to this caller");
}

void AttachedCaller::Collect(const std::function<void(const AttachedRuns&)>& use) {
  constexpr size_t kOfOne = 4;
  constexpr std::array<std::string_view, kCounters / kOfOne> kOperations = {"spmm", "sddmm",
                                                                            "chain"};
  for (size_t first = 0; first < kCounters; first += kOfOne) {
    std::array<uint64_t, kOfOne> now, since;
    for (size_t i = 0; i < kOfOne; ++i) {
      // It counts up; what does not is no count.
      now[i] = std::max(__atomic_load_n(usage_ + first + i, __ATOMIC_RELAXED), seen_[first + i]);
      since[i] = now[i] - seen_[first + i];
    }
    // What belongs to a call that is not counted yet is told with it.
    if (since[0] == 0) continue;
    std::ranges::copy(now, seen_.begin() + first);
    use({.tenant = attachment_->tenant(),
         .operation = kOperations[first / kOfOne],
         .device = attachment_->device(),
         .calls = since[0],
         .seconds = static_cast<double>(since[1]) * 1e-9,
         .bytes_in = since[2],
         .bytes_out = since[3]});
  }
}

}  // namespace sparsed::server
