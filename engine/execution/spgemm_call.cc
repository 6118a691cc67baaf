#include "engine/execution/spgemm_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "engine/execution/piece_run.h"
#include "kernels/formats/csr.h"

namespace sparsed::engine {
namespace {

Problem ProblemOf(const SpgemmSpec& spec, ElementType type) {
  return {.operation = Operation::kSpgemm,
          .type = type,
          .semiring = spec.semiring,
          .masked = !spec.mask.empty()};
}

bool Serves(const SpgemmKernel& kernel, const Problem& problem) {
  return kernel.device == problem.device && kernel.supports(problem);
}

/// Whether another kernel may serve where one failed so: the matrices don't suit it, or there is no
/// memory for it.
bool MayFallBack(const absl::Status& why) {
  return absl::IsFailedPrecondition(why) || absl::IsResourceExhausted(why);
}

int64_t EntryBytes(ElementType type) {
  return static_cast<int64_t>(sizeof(int32_t) + SizeOf(type));
}

/// Of a matrix as the product sees it.
struct Shape {
  int64_t rows, cols;
  std::string sentence;  ///< "'web' transposed is 20 x 30"
};

Shape ShapeOf(const Matrix& matrix, bool transpose) {
  Shape shape = {matrix.pattern()->rows(), matrix.pattern()->cols(), ""};
  if (transpose) std::swap(shape.rows, shape.cols);
  shape.sentence = fmt::format("'{}'{} is {} x {}", matrix.name(), transpose ? " transposed" : "",
                               shape.rows, shape.cols);
  return shape;
}

}  // namespace

SpgemmCall::SpgemmCall(std::shared_ptr<Executor::Impl> impl, Backend& backend, SpgemmSpec spec,
                       std::shared_ptr<ResultSink> sink, MatrixLease left, MatrixLease right,
                       MatrixLease mask)
    : Job(impl->scheduler, spec.tenant, std::move(sink), backend.id()),
      impl_(std::move(impl)),
      backend_(&backend),
      spec_(std::move(spec)),
      left_(std::move(left)),
      right_(std::move(right)),
      mask_(std::move(mask)),
      owner_(impl_->budget.OwnerOf(spec_.tenant)),
      problem_(ProblemOf(spec_, left_->type())) {
  if (!spec_.keep_as.empty()) kept_.emplace(spec_.keep_as, problem_.type, impl_->budget, owner_);
  end_.version = left_->version();
}

absl::StatusOr<ClaimedBytes> SpgemmCall::Claim(uint32_t array, uint64_t /*offset*/,
                                               uint64_t /*size*/) {
  return absl::InvalidArgumentError(
      fmt::format("SpGEMM has no operands in the stream, but array {} came", array));
}

Job::Cost SpgemmCall::Predict() const {
  if (left_ == nullptr || right_ == nullptr) return {};
  const Pattern& s = *left_->pattern();
  const Pattern& t = *right_->pattern();
  // As if rows of T were of equal length, and met equally often.
  const double products = static_cast<double>(s.nnz()) * static_cast<double>(t.nnz()) /
                          static_cast<double>(std::max<int64_t>(t.rows(), 1));
  // Such a multiplication takes longer than one of a dense operand.
  constexpr double kHarder = 4;
  const double work = kHarder * products;
  const DeviceKind device = backend_->id().kind;
  // What has taken long on a GPU is long, whatever was thought of it.
  const double taken = 1e-9 * static_cast<double>(end_.timings.kernel_ns);
  const bool took_long = device != DeviceKind::kCpu && taken > kShortOnGpuSeconds;
  return {.is_long = took_long || work >= LongWork(backend_->constants(), device)};
}

Job::Next SpgemmCall::Run(WorkerSlot& slot, absl::Status* end) {
  if (blocks_ == nullptr) {
    const absl::StatusOr<bool> factors = FindFactors(slot);
    if (!factors.ok()) {
      *end = factors.status();
      return Next::kEnded;
    }
    const DeviceId next = *factors ? backend_->id() : DeviceId{};
    if (next != slot.backend->id()) {
      MoveTo(next);
      return Next::kAgain;
    }
    *end = Begin(slot);
    AddTimes();
    if (!end->ok()) return TryElsewhere(slot, *end);
  }
  if (!begun_) return FindSizes(slot, end);
  if (blocks_->next_row() == blocks_->rows()) return End(end);
  absl::StatusOr<std::optional<ResultBlock>> block = blocks_->Next(slot);
  AddTimes();
  if (!block.ok()) {
    *end = CheckedOn(*slot.backend, token(), block.status());
    return Next::kEnded;
  }
  return block->has_value() ? TakeBlock(**std::move(block), end) : Next::kAgain;
}

Job::Next SpgemmCall::TryElsewhere(const WorkerSlot& slot, const absl::Status& why) {
  blocks_.reset();
  const bool elsewhere = absl::IsResourceExhausted(why) || absl::IsUnimplemented(why);
  if (slot.gpu == nullptr || token().stopped() || !elsewhere) return Next::kEnded;
  backend_ = &impl_->cpu;
  MoveTo(backend_->id());
  return Next::kAgain;
}

Job::Next SpgemmCall::FindSizes(WorkerSlot& slot, absl::Status* end) {
  const absl::StatusOr<bool> found = blocks_->FindSizes(slot);
  AddTimes();
  if (!found.ok()) {
    *end = CheckedOn(*slot.backend, token(), found.status());
    return TryElsewhere(slot, *end);
  }
  if (!*found) return Next::kAgain;
  begun_ = true;
  SendBegin();
  if (kept_ && blocks_->sizes().exact) *end = kept_->MayHave(ExactNonzeros(), "");
  return end->ok() ? Next::kAgain : Next::kEnded;
}

Job::Next SpgemmCall::TakeBlock(ResultBlock block, absl::Status* end) {
  int64_t sent = 0;
  if (kept_) {
    kept_->Add(std::move(block));
    *end = kept_->MayHave(blocks_->nnz(), "at least ");
    if (!end->ok()) return Next::kEnded;
  } else {
    sent = static_cast<int64_t>(block.row_offsets.bytes() + block.column_indices.bytes() +
                                block.values.bytes());
    sink().OnBlock(std::move(block));
  }
  if (blocks_->next_row() == blocks_->rows()) return End(end);
  return sent > 0 && Charge(sent) ? Next::kPaused : Next::kAgain;
}

Job::Next SpgemmCall::End(absl::Status* end) {
  end_.nnz = blocks_->nnz();
  const ProductSizes& sizes = blocks_->sizes();
  // A library's counts are its own.
  if (!found_sizes_ && !choice_.kernel->from_library) {
    impl_->derived->KeepSizes(Patterns(), {sizes.rows, sizes.products});
  }
  Observe(/*share=*/1);
  if (!kept_) {
    *end = absl::OkStatus();
    return Next::kEnded;
  }
  *end = Keep();
  // From here on another thread may have ended it.
  return end->ok() ? Next::kLeft : Next::kEnded;
}

Job::Loader SpgemmCall::ToLoad() const {
  std::vector<Loader> loaders = {LoaderOf(left_), LoaderOf(right_)};
  // A mask's values are never read.
  if (mask_ != nullptr && !mask_->pattern()->resident()) {
    loaders.emplace_back([mask = mask_](Store::Stop stop) -> Held {
      const absl::StatusOr<std::shared_ptr<const Layout>> csr = mask->pattern()->Csr(stop);
      if (!csr.ok()) return {};
      return {*csr};
    });
  }
  if (HasPlans()) {
    const std::optional<Planned> planned = FindPlanned(
        left_->pattern()->plans().Find(SignatureOf(ProblemOnBackend()), Patterns().pair()));
    if (planned && MayHaveRoom(planned->layouts)) {
      loaders.push_back(LoaderOfFactor(left_->pattern(), planned->layouts.left));
      loaders.push_back(LoaderOfFactor(right_->pattern(), planned->layouts.right));
    }
  }
  return LoaderOf(std::move(loaders));
}

Job::Loader SpgemmCall::LoaderOfFactor(const std::shared_ptr<Pattern>& pattern,
                                       const std::shared_ptr<LazyLayout>& layout) const {
  if (layout == nullptr || layout->resident()) return nullptr;
  return [impl = impl_, device = backend_->id(), pattern, layout](Store::Stop stop) -> Held {
    const absl::StatusOr<std::shared_ptr<const Layout>> read = layout->Get(stop);
    if (read.ok()) return {*read};
    if (absl::IsResourceExhausted(read.status())) impl->no_room.Note(device, layout);
    if (absl::IsDataLoss(read.status())) {
      impl->observer.OnDamage(std::string(read.status().message()));
      // The next product asks for it anew.
      pattern->DropLayout(layout);
    }
    return {};
  };
}

void SpgemmCall::Drop() {
  // Of one that was stopped, the rows that it computed count, roughly.
  if (!observed_ && blocks_ != nullptr && blocks_->next_row() > 0) Observe(ShareOfNonzeros());
  blocks_.reset();
  kept_.reset();
  found_sizes_.reset();
  choice_ = {};
  left_csr_.reset();
  right_csr_.reset();
  mask_csr_.reset();
  left_.reset();
  right_.reset();
  mask_.reset();
}

PatternProduct SpgemmCall::Patterns() const {
  return {left_->pattern(), right_->pattern(), spec_.transpose_left, spec_.transpose_right,
          mask_ == nullptr ? nullptr : mask_->pattern()};
}

absl::StatusOr<bool> SpgemmCall::FindFactors(WorkerSlot& slot) {
  const auto find = [&](const Matrix& matrix, bool transpose,
                        std::shared_ptr<const Layout>& csr) -> absl::StatusOr<bool> {
    if (csr != nullptr) return true;
    if (!transpose) {
      absl::StatusOr<std::shared_ptr<const Layout>> plain = matrix.pattern()->Csr();
      if (plain.ok()) csr = *std::move(plain);
      return plain.ok() ? absl::StatusOr<bool>(true) : plain.status();
    }
    csr = impl_->derived->FindTransposed(matrix.pattern());
    if (csr != nullptr) return true;
    if (slot.gpu != nullptr) return false;
    BuildContext context;
    context.threads = slot.threads;
    context.stop = token().flag();
    absl::StatusOr<std::shared_ptr<const Layout>> built =
        impl_->derived->Transposed(matrix.pattern(), context);
    if (built.ok()) csr = *std::move(built);
    return built.ok() ? absl::StatusOr<bool>(true) : built.status();
  };
  absl::StatusOr<bool> found = find(*left_, spec_.transpose_left, left_csr_);
  if (found.ok() && *found) found = find(*right_, spec_.transpose_right, right_csr_);
  if (!found.ok() || !*found || mask_ == nullptr) return found;
  return find(*mask_, /*transpose=*/false, mask_csr_);
}

Problem SpgemmCall::ProblemOnBackend() const {
  Problem problem = problem_;
  problem.device = backend_->id().kind;
  return problem;
}

std::optional<SpgemmCall::Planned> SpgemmCall::FindPlanned(const PlanTable::Found& found) const {
  const SpgemmKernel* const kernel =
      found.plan == nullptr ? nullptr : FindSpgemmKernel(found.plan->plan.kernel);
  if (kernel == nullptr || !Serves(*kernel, ProblemOnBackend())) return std::nullopt;
  std::optional<FactorLayouts> layouts =
      FindFactorLayouts(Patterns(), *kernel, found.plan->plan.pipeline);
  if (!layouts) return std::nullopt;
  return Planned{kernel, *std::move(layouts)};
}

bool SpgemmCall::MayHaveRoom(const FactorLayouts& layouts) const {
  const auto has_none = [&](const std::shared_ptr<LazyLayout>& layout) {
    return layout != nullptr && impl_->no_room.Has(backend_->id(), layout);
  };
  return !has_none(layouts.left) && !has_none(layouts.right);
}

void SpgemmCall::NoteNoRoom(const FactorLayouts& layouts) {
  for (const std::shared_ptr<LazyLayout>& layout : {layouts.left, layouts.right}) {
    if (layout != nullptr) impl_->no_room.Note(backend_->id(), layout);
  }
}

absl::StatusOr<std::vector<SpgemmCall::Choice>> SpgemmCall::Choose() const {
  const Problem problem = ProblemOnBackend();
  const auto first = std::ranges::find_if(
      SpgemmKernels(), [&](const SpgemmKernel& kernel) { return Serves(kernel, problem); });
  if (first == SpgemmKernels().end()) {
    return absl::UnimplementedError(
        fmt::format("no kernel serves {}", ToString(SignatureOf(problem))));
  }
  std::vector<Choice> choices;
  if (HasPlans()) {
    const PlanTable::Found found =
        left_->pattern()->plans().Find(SignatureOf(problem), Patterns().pair());
    const std::optional<Planned> planned = FindPlanned(found);
    const bool lost = found.exact && !planned;
    if ((found.due() || lost) && impl_->on_unknown_pair) {
      impl_->on_unknown_pair(Patterns(), problem);
    }
    // A library computes whole products, whatever is known of their rows.
    if (planned && !(found_sizes_ && planned->kernel->from_library) &&
        MayHaveRoom(planned->layouts)) {
      // From now on it counts as used: what is used least is evicted first.
      const auto used = [](const std::shared_ptr<LazyLayout>& layout) {
        if (layout == nullptr || !layout->resident()) return std::shared_ptr<const Layout>();
        return layout->Get().value_or(nullptr);
      };
      const Choice choice = {planned->kernel, used(planned->layouts.left),
                             used(planned->layouts.right), planned->layouts};
      // What could not be read, for want of memory say.
      const bool whole = (planned->layouts.left == nullptr || choice.left != nullptr) &&
                         (planned->layouts.right == nullptr || choice.right != nullptr);
      if (whole) {
        left_->CountUse(found.plan->plan);
        choices.push_back(choice);
      }
    }
  }
  if (choices.empty() || choices.front().kernel != &*first) {
    choices.push_back({&*first, nullptr, nullptr});
  }
  return choices;
}

absl::StatusOr<SpgemmFactors> SpgemmCall::PlaceFor(const Choice& choice, int threads) {
  MemorySource& host = impl_->budget.Source(MemoryUse::kRequests, &owner_);
  const auto factor_of =
      [&](const Matrix& matrix, const std::shared_ptr<const Layout>& csr,
          const std::shared_ptr<const Layout>& format) -> absl::StatusOr<SpgemmFactor> {
    absl::StatusOr<Array> values = backend_->ValuesFor(matrix, *csr, host, threads);
    if (!values.ok()) return values.status();
    SpgemmFactor factor = {csr, *std::move(values)};
    if (format == nullptr) return factor;
    const absl::Status set = SetFormat(*backend_, matrix, format, host, threads, factor);
    if (!set.ok()) return set;
    return factor;
  };
  const absl::StatusOr<SpgemmFactor> left = factor_of(*left_, left_csr_, choice.left);
  if (!left.ok()) return left.status();
  const absl::StatusOr<SpgemmFactor> right = factor_of(*right_, right_csr_, choice.right);
  if (!right.ok()) return right.status();
  const auto placing = std::chrono::steady_clock::now();
  absl::StatusOr<SpgemmFactors> factors = PlaceFactors(*backend_, *left, *right, mask_csr_, host);
  if (!backend_->shares_host_memory()) end_.timings.to_device_ns += NanosecondsSince(placing);
  if (!factors.ok()) return CheckedOn(*backend_, token(), factors.status());
  return factors;
}

absl::Status SpgemmCall::Begin(WorkerSlot& slot) {
  if (!looked_for_sizes_) {
    looked_for_sizes_ = true;
    if (std::optional<RowSizes> sizes = impl_->derived->FindSizes(Patterns())) {
      found_sizes_ = {std::move(sizes->row_nnz), /*exact=*/true, sizes->products};
    }
  }
  const absl::StatusOr<std::vector<Choice>> choices = Choose();
  if (!choices.ok()) return choices.status();
  const RowBlockOptions options = {
      .host = impl_->budget,
      .owner = owner_,
      .token = token(),
      .wanted = wanted(),
      .count_first = spec_.count_first,
      .most_entries = std::max<int64_t>(
          scheduler().options().block_credit_bytes / EntryBytes(problem_.type), 1)};
  absl::Status status;
  for (const Choice& choice : *choices) {
    AddTimes();
    blocks_.reset();  // What the one before has makes room.
    absl::StatusOr<SpgemmFactors> factors = PlaceFor(choice, slot.threads);
    status = factors.status();
    if (factors.ok()) {
      choice_ = choice;
      blocks_ = RowBlocks::Of(
          BoundSpgemm(*backend_, *choice.kernel, ProblemOnBackend(), *std::move(factors)),
          found_sizes_, options);
      status = blocks_->Begin(slot);
    }
    if (!MayFallBack(status)) break;
    if (absl::IsResourceExhausted(status)) NoteNoRoom(choice.planned);
  }
  return CheckedOn(*backend_, token(), std::move(status));
}

int64_t SpgemmCall::ExactNonzeros() const {
  const auto sizes = blocks_->sizes().rows.As<int64_t>();
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

void SpgemmCall::SendBegin() {
  const int64_t exact = blocks_->sizes().exact ? ExactNonzeros() : int64_t{-1};
  const std::string& left = (choice_.left == nullptr ? left_csr_ : choice_.left)->pipeline;
  const std::string& right = (choice_.right == nullptr ? right_csr_ : choice_.right)->pipeline;
  CallBegin message{fmt::format("{} * {} / {}", left, right, choice_.kernel->name),
                    exact,
                    blocks_->rows(),
                    right_csr_->cols,
                    {}};
  if (!kept_) {
    message.arrays = {{"row_offsets", ElementType::kI64, blocks_->rows() + 1},
                      {"column_indices", ElementType::kI32, exact},
                      {"values", problem_.type, exact}};
  }
  sink().OnBegin(std::move(message));
}

absl::Status SpgemmCall::Keep() {
  absl::StatusOr<KeptProduct::Arrays> arrays = kept_->Assemble(blocks_->rows(), blocks_->nnz());
  if (!arrays.ok()) return arrays.status();
  UploadHeader header;
  header.tenant = spec_.tenant;
  header.name = spec_.keep_as;
  header.rows = blocks_->rows();
  header.cols = right_csr_->cols;
  header.nnz = blocks_->nnz();
  header.type = problem_.type;
  header.replace = spec_.replace;
  header.requester = spec_.requester;
  scheduler().RunBlocking([self = std::static_pointer_cast<SpgemmCall>(shared_from_this()), header,
                           arrays = *std::move(arrays)]() {
    self->Finish(self->impl_->catalog
                     .Insert(header, arrays.row_offsets, arrays.column_indices, arrays.values)
                     .status());
  });
  return absl::OkStatus();
}

void SpgemmCall::AddTimes() {
  if (blocks_ == nullptr) return;
  const auto nanoseconds = static_cast<uint64_t>(blocks_->TakeKernelMilliseconds() * 1e6);
  end_.timings.kernel_ns += nanoseconds;
  AddBusy(nanoseconds);
  end_.timings.from_device_ns += blocks_->TakeFromDeviceNanoseconds();
}

void SpgemmCall::Observe(double share) {
  observed_ = true;
  impl_->RecordRun(device(), problem_.operation, choice_.kernel->name, end_.timings.kernel_ns,
                   2.0 * static_cast<double>(blocks_->sizes().products) * share,
                   RooflineBytes() * share);
}

/// Of S's nonzeros, those in the rows that are computed: about the share of the products, which
/// whoever cancels has at once.
double SpgemmCall::ShareOfNonzeros() const {
  const auto row_offsets = ViewCsr(*left_csr_).row_offsets;
  const int64_t all = row_offsets[left_csr_->rows];
  return all == 0
             ? 0
             : static_cast<double>(row_offsets[blocks_->next_row()]) / static_cast<double>(all);
}

/// Both matrices and the mask read once, C written once.
double SpgemmCall::RooflineBytes() const {
  const double mask =
      mask_csr_ == nullptr ? 0 : static_cast<double>(mask_csr_->nnz) * sizeof(int32_t);
  return CompulsoryBytes(problem_.type, ViewCsr(*left_csr_), ViewCsr(*right_csr_), blocks_->nnz()) +
         mask;
}

absl::StatusOr<std::shared_ptr<Call>> SpgemmCall::Begin(std::shared_ptr<Executor::Impl> impl,
                                                        SpgemmSpec spec,
                                                        std::shared_ptr<ResultSink> sink) {
  absl::StatusOr<MatrixLease> left = impl->catalog.Find(spec.tenant, spec.left);
  if (!left.ok()) return left.status();
  absl::StatusOr<MatrixLease> right = impl->catalog.Find(spec.tenant, spec.right);
  if (!right.ok()) return right.status();
  const Shape s = ShapeOf(**left, spec.transpose_left);
  const Shape t = ShapeOf(**right, spec.transpose_right);
  if (s.cols != t.rows) {
    return absl::InvalidArgumentError(
        fmt::format("{} and {}: the columns of the left must be the rows of the right", s.sentence,
                    t.sentence));
  }
  MatrixLease mask;
  if (!spec.mask.empty()) {
    absl::StatusOr<MatrixLease> found = impl->catalog.Find(spec.tenant, spec.mask);
    if (!found.ok()) return found.status();
    mask = *std::move(found);
    const Shape m = ShapeOf(*mask, /*transpose=*/false);
    if (m.rows != s.rows || m.cols != t.cols) {
      return absl::InvalidArgumentError(
          fmt::format("the mask {}, but the result is {} x {}", m.sentence, s.rows, t.cols));
    }
  }
  if ((*left)->type() != (*right)->type()) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is {} and '{}' is {}: both must be of one type", spec.left,
                    Name((*left)->type()), spec.right, Name((*right)->type())));
  }
  if (IsHalf((*left)->type())) {
    return absl::UnimplementedError(
        fmt::format("'{}' is {}: the sparse-sparse product is computed in f32 and f64 alone",
                    spec.left, Name((*left)->type())));
  }
  if (!spec.keep_as.empty()) {
    if (absl::Status status = ValidateName("matrix", spec.keep_as); !status.ok()) return status;
    if (!spec.replace && impl->catalog.Find(spec.tenant, spec.keep_as).ok()) {
      return NameIsTaken(spec.keep_as);
    }
  }
  const uint64_t timeout_ns = spec.timeout_ns;
  const int priority = spec.priority;
  Problem problem = ProblemOf(spec, (*left)->type());
  absl::StatusOr<Backend*> backend =
      impl->Place(/*given=*/{}, (*left)->pattern()->resident_csr(), /*held=*/{});
  if (!backend.ok()) return backend.status();
  problem.device = (*backend)->id().kind;
  if (std::ranges::none_of(SpgemmKernels(),
                           [&](const SpgemmKernel& kernel) { return Serves(kernel, problem); })) {
    backend = &impl->cpu;
  }
  auto call =
      std::make_shared<SpgemmCall>(std::move(impl), **backend, std::move(spec), std::move(sink),
                                   *std::move(left), *std::move(right), std::move(mask));
  call->priority = priority;
  if (absl::Status status = call->Start(timeout_ns); !status.ok()) return status;
  return call;
}

}  // namespace sparsed::engine
