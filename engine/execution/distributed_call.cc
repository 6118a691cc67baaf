#include "engine/execution/distributed_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "engine/execution/chain_call.h"
#include "engine/execution/chain_columns.h"
#include "engine/execution/dense_call.h"
#include "engine/execution/time_left.h"

namespace sparsed::engine {
namespace {

/// The buffer that an operand is; null: it is something else.
absl::StatusOr<HeldDenseLease> HeldOperand(const Executor::Impl& impl, std::string_view what,
                                           const OperandSpec& spec, const std::string& tenant) {
  const bool is_buffer = spec.found != nullptr || !spec.held.empty();
  if (!is_buffer || spec.shared.size() > 0) return nullptr;
  return FindHeld(impl, what, spec, tenant);
}

/// By columns.
bool IsDistributed(const HeldDenseLease& held) {
  return held != nullptr && held->distribution() == Distribution::kColumns;
}
bool IsInRows(const HeldDenseLease& held) {
  return held != nullptr && held->distribution() == Distribution::kRows;
}

/// All of it, for each part: of the version that was found.
DenseBlock WholeOf(const HeldDenseLease& held) { return {0, 0, held->shape, held->elements}; }

/// Values of S that each GPU takes whole, as a part's spec has them: they are held, or there are
/// none. False: they come from elsewhere.
absl::StatusOr<bool> FindValues(const Executor::Impl& impl, std::optional<OperandSpec>& values,
                                const std::string& tenant, std::vector<HeldDenseLease>& used) {
  if (!values.has_value()) return true;
  absl::StatusOr<HeldDenseLease> held = HeldOperand(impl, "values", *values, tenant);
  if (!held.ok()) return held.status();
  if (*held == nullptr) return false;
  values->block = WholeOf(*held);
  used.push_back(*std::move(held));
  return true;
}

/// That was found before the call, or is the tenant's by its name.
absl::StatusOr<MatrixLease> FindMatrix(const Executor::Impl& impl, const SpmmSpec& spec) {
  const auto given = spec.part.matrices.find(spec.matrix);
  if (given != spec.part.matrices.end()) return given->second;
  return impl.catalog.Find(spec.tenant, spec.matrix);
}

/// The GPU of block `i`: there is one for each.
DeviceId GpuOf(const Executor::Impl& impl, size_t i) { return impl.gpus[i].id(); }

}  // namespace

/// What a part tells.
class DistributedCall::Part final : public ResultSink {
 public:
  explicit Part(std::shared_ptr<DistributedCall> whole) : whole_(std::move(whole)) {}
  void OnBegin(CallBegin begin) override { whole_->PartBegan(begin.plan); }
  // Results of parts stay where they are.
  void OnArray(uint32_t /*index*/, uint64_t /*offset*/, Array /*part*/) override {}
  void OnBlock(ResultBlock /*block*/) override {}
  void OnEnd(CallEnd end) override { whole_->PartEnded(std::move(end)); }

 private:
  const std::shared_ptr<DistributedCall> whole_;
};

/// Passes on what the last call sends.
class DistributedCall::Last final : public ResultSink {
 public:
  Last(std::shared_ptr<DistributedCall> whole, CallBegin begin)
      : whole_(std::move(whole)), begin_(std::move(begin)) {}
  void OnBegin(CallBegin begin) override {
    begin_.arrays = std::move(begin.arrays);
    for (ArrayFacts& array : begin_.arrays) array.name = whole_->last_name_;
    whole_->sink_->OnBegin(begin_);
  }
  void OnArray(uint32_t index, uint64_t offset, Array part) override {
    whole_->sink_->OnArray(index, offset, std::move(part));
  }
  void OnBlock(ResultBlock /*block*/) override {}
  void OnEnd(CallEnd end) override { whole_->LastEnded(std::move(end)); }

 private:
  const std::shared_ptr<DistributedCall> whole_;
  CallBegin begin_;
};

absl::StatusOr<ClaimedBytes> DistributedCall::Claim(uint32_t array, uint64_t /*offset*/,
                                                    uint64_t /*size*/) {
  return absl::InvalidArgumentError(
      fmt::format("no operand of the request is announced as array {}", array));
}

absl::StatusOr<std::shared_ptr<Call>> DistributedCall::Begun(std::shared_ptr<DistributedCall> call,
                                                             size_t count, const BeginPart& begin) {
  call->gpus_ = call->rows_ == nullptr ? count : call->impl_->gpus.size();
  const absl::Status begun = call->BeginParts(count, begin);
  if (begun.ok()) return call;
  for (const auto& result : call->results_) result->Release();
  if (call->rows_ != nullptr) call->rows_->Release();
  if (absl::IsInvalidArgument(begun)) return nullptr;
  return begun;
}

absl::Status DistributedCall::BeginParts(size_t count, const BeginPart& begin) {
  {
    // Some may end, by a deadline, before all have begun.
    const MutexLock lock(mutex_);
    count_ = running_ = count;
    exchange_ = rows_ == nullptr ? nullptr : rows_->exchange();
  }
  Calls calls;
  for (size_t i = 0; i < count; ++i) {
    absl::StatusOr<std::shared_ptr<Call>> part =
        begin(i, std::make_shared<Part>(shared_from_this()));
    if (part.ok()) {
      calls.push_back(*std::move(part));
      continue;
    }
    {
      const MutexLock lock(mutex_);
      running_ = 0;
    }
    for (const auto& begun : calls) begun->Cancel();
    return part.status();
  }
  absl::Status stopped;
  {
    const MutexLock lock(mutex_);
    calls_ = calls;
    stopped = stopped_;
  }
  if (!stopped.ok()) {
    for (const auto& begun : calls) begun->Fail(stopped);
  }
  return absl::OkStatus();
}

DistributedCall::Calls DistributedCall::Waiting() {
  const MutexLock lock(mutex_);
  return calls_;
}

void DistributedCall::Submit() {
  for (const auto& call : Waiting()) call->Submit();
}

void DistributedCall::Fail(absl::Status status) {
  {
    const MutexLock lock(mutex_);
    if (stopped_.ok()) stopped_ = status;
  }
  StopParts(status);
}

void DistributedCall::StopParts(const absl::Status& why) {
  std::shared_ptr<PartExchange> exchange;
  Calls calls;
  {
    const MutexLock lock(mutex_);
    exchange = exchange_;
    calls = calls_;
  }
  // Nobody waits for one that has ended.
  if (exchange != nullptr) exchange->Stop(why);
  for (const auto& call : calls) call->Fail(why);
}

void DistributedCall::PartBegan(const std::string& plan) {
  const MutexLock lock(mutex_);
  plan_ = plan;
}

void DistributedCall::PartEnded(CallEnd end) {
  const auto total = [](const CallTimings& of) {
    return of.queue_ns + of.setup_ns + of.to_device_ns + of.kernel_ns + of.from_device_ns;
  };
  const absl::Status status = end.status;
  CallEnd whole;
  bool last = false;
  {
    const MutexLock lock(mutex_);
    if (running_ == 0) return;  // Begin failed
    absl::Status first = running_ == count_ || end_.status.ok() ? status : end_.status;
    if (running_ == count_ || total(end.timings) > total(end_.timings)) end_ = std::move(end);
    end_.status = std::move(first);
    last = --running_ == 0;
    if (last) whole = std::move(end_);
  }
  // What others compute is of no use then.
  if (!status.ok() && !last) StopParts(status);
  if (last) Finish(std::move(whole));
}

bool DistributedCall::GoOn(CallEnd* end) {
  if (rows_ == nullptr) return false;
  if (absl::IsResourceExhausted(end->status) || absl::IsUnimplemented(end->status)) {
    const MutexLock lock(mutex_);
    if (exchange_ != nullptr && stopped_.ok()) {
      // One step after the other finds room where a GPU has none.
      rows_->GoApart();
      end->status = absl::OkStatus();
      end->steps.clear();
    }
  }
  if (!end->status.ok()) return false;
  const absl::StatusOr<size_t> next = rows_->Next(end->steps);
  if (!next.ok()) end->status = next.status();
  if (!next.ok() || *next == 0) return false;
  {
    const MutexLock lock(mutex_);
    Add(end->timings, before_);
  }
  end->timings = {};
  end->status = BeginParts(*next, [this](size_t i, std::shared_ptr<ResultSink> sink) {
    return rows_->BeginPart(i, std::move(sink));
  });
  if (!end->status.ok()) return false;
  Submit();
  return true;
}

void DistributedCall::Finish(CallEnd end) {
  Calls ended;  // let go of without the lock
  {
    const MutexLock lock(mutex_);
    ended.swap(calls_);
    if (end.status.ok()) end.status = stopped_;
  }
  if (GoOn(&end)) return;
  CallBegin begin = std::move(begin_);
  {
    const MutexLock lock(mutex_);
    Add(before_, end.timings);
    begin.plan = fmt::format("{}, {} over {} GPUs{}", plan_, rows_ == nullptr ? "columns" : "rows",
                             gpus_, rows_ == nullptr ? "" : rows_->Describe());
  }
  if (rows_ != nullptr) {
    end.steps = is_chain_ ? rows_->TakeSteps() : std::vector<StepEnd>();
    results_ = rows_->results();
  }
  if (end.status.ok() && begin_last_ != nullptr) {
    const BeginCall begin_last = std::exchange(begin_last_, nullptr);
    absl::StatusOr<std::shared_ptr<Call>> last =
        begin_last(std::make_shared<Last>(shared_from_this(), std::move(begin)));
    if (last.ok()) {
      absl::Status stopped;
      {
        const MutexLock lock(mutex_);
        end_ = std::move(end);
        calls_ = {*last};
        stopped = stopped_;
      }
      if (!stopped.ok()) (*last)->Fail(stopped);
      return (*last)->Submit();
    }
    end.status = last.status();
  } else if (end.status.ok()) {
    for (const auto& result : results_) {
      if (end.status.ok()) end.status = result->Publish();
    }
    if (end.status.ok()) sink_->OnBegin(std::move(begin));
  }
  End(std::move(end));
}

void DistributedCall::LastEnded(CallEnd end) {
  Calls ended;  // as above
  std::vector<StepEnd> steps;
  {
    const MutexLock lock(mutex_);
    ended.swap(calls_);
    steps = std::move(end_.steps);
    Add(end_.timings, end.timings);  // of the parts before it
    end.version = end_.version;
  }
  end.steps = std::move(steps);
  End(std::move(end));
}

void DistributedCall::End(CallEnd end) {
  // Whoever hears of it may write into the same buffers next.
  for (const auto& result : results_) result->Release();
  if (rows_ != nullptr) rows_->Release();
  used_.clear();
  begin_last_ = nullptr;
  if (end.status.ok() && !is_trial_) impl_->observer.OnDistributed(static_cast<int64_t>(gpus_));
  sink_->OnEnd(std::move(end));
}

absl::StatusOr<std::shared_ptr<Call>> DistributedCall::BeginRows(
    const std::shared_ptr<Executor::Impl>& impl, const ChainSpec& spec,
    std::vector<HeldDenseLease> held, bool is_chain, std::string_view name,
    const std::shared_ptr<ResultSink>& sink) {
  absl::StatusOr<std::unique_ptr<RowPhases>> rows = RowPhases::Begin(impl, spec, held);
  if (!rows.ok()) return rows.status();
  if (*rows == nullptr) return nullptr;
  auto call = std::make_shared<DistributedCall>(impl, sink);
  call->rows_ = *std::move(rows);
  call->used_ = std::move(held);
  call->is_chain_ = is_chain;
  call->is_trial_ = IsTrial(spec.tenant);
  const DenseShape& shape = call->rows_->shape();
  call->begin_ = {"", 0, shape.rows, shape.cols, {}};
  if (call->rows_->gathers()) {
    call->last_name_ = name;
    call->begin_last_ = [impl, of = call.get()](std::shared_ptr<ResultSink> last) {
      return ChainCall::Begin(impl, of->rows_->Gathered(), std::move(last));
    };
  }
  const absl::StatusOr<size_t> first = call->rows_->Next();
  if (!first.ok()) return first.status();
  return Begun(call, *first, [&](size_t i, std::shared_ptr<ResultSink> part) {
    return call->rows_->BeginPart(i, std::move(part));
  });
}

absl::StatusOr<std::shared_ptr<Call>> DistributedCall::BeginInRows(
    const std::shared_ptr<Executor::Impl>& impl, const SpmmSpec& spec, const HeldDenseLease& b,
    const std::shared_ptr<ResultSink>& sink) {
  if (spec.values.has_value()) return nullptr;
  ChainSpec chain;
  chain.tenant = spec.tenant;
  chain.timeout_ns = spec.timeout_ns;
  chain.priority = spec.priority;
  chain.part.matrices = spec.part.matrices;
  SpmmStep step;
  step.matrix = spec.matrix;
  step.transpose = spec.transpose;
  step.alpha = spec.alpha;
  step.beta = spec.beta;
  step.allow_tf32 = spec.allow_tf32;
  std::vector<HeldDenseLease> held = {b};
  if (spec.beta != 0) {
    if (!spec.accumulate.has_value()) return nullptr;
    absl::StatusOr<HeldDenseLease> old = HeldOperand(*impl, "C", *spec.accumulate, spec.tenant);
    if (!old.ok()) return old.status();
    step.accumulate = held.size();
    held.push_back(*std::move(old));
  }
  chain.operands.resize(held.size());
  chain.steps.emplace_back(step);
  chain.results.push_back({.value = held.size(),
                           .place = spec.result,
                           .leading_dimension = spec.result_leading_dimension});
  return BeginRows(impl, chain, std::move(held), /*is_chain=*/false, "dense", sink);
}

absl::StatusOr<std::shared_ptr<Call>> DistributedCall::BeginInRows(
    const std::shared_ptr<Executor::Impl>& impl, const SddmmSpec& spec, const HeldDenseLease& a,
    const HeldDenseLease& b, const std::shared_ptr<ResultSink>& sink) {
  if (spec.values.has_value()) return nullptr;
  ChainSpec chain;
  chain.tenant = spec.tenant;
  chain.timeout_ns = spec.timeout_ns;
  chain.priority = spec.priority;
  SddmmStep step;
  step.matrix = spec.matrix;
  step.unscaled = spec.unscaled;
  step.a = 0;
  step.b = 1;
  chain.operands.resize(2);
  chain.steps.emplace_back(step);
  chain.results.push_back({.value = 2, .place = spec.result});
  return BeginRows(impl, chain, {a, b}, /*is_chain=*/false, "values", sink);
}

absl::StatusOr<std::shared_ptr<Call>> DistributedCall::Begin(
    const std::shared_ptr<Executor::Impl>& impl, const SpmmSpec& spec,
    const std::shared_ptr<ResultSink>& sink) {
  if (impl->gpus.size() < 2 || spec.queue.queue != nullptr) return nullptr;
  const absl::StatusOr<HeldDenseLease> b = HeldOperand(*impl, "B", spec.b, spec.tenant);
  if (!b.ok()) return b.status();
  if (IsInRows(*b)) return BeginInRows(impl, spec, *b, sink);
  const bool is_trial = IsTrial(spec.tenant) && spec.result.blocks != nullptr;
  if ((spec.result.held.empty() && !is_trial) || !IsDistributed(*b)) return nullptr;
  absl::StatusOr<HeldDenseLease> old = HeldDenseLease();
  if (spec.beta != 0) {
    if (!spec.accumulate.has_value()) return nullptr;
    old = HeldOperand(*impl, "C", *spec.accumulate, spec.tenant);
    if (!old.ok()) return old.status();
    if (*old == nullptr || (*old)->shape.cols != (*b)->shape.cols) return nullptr;
  }
  const absl::StatusOr<MatrixLease> matrix = FindMatrix(*impl, spec);
  if (!matrix.ok()) return matrix.status();
  const Pattern& pattern = *(*matrix)->pattern();
  const DenseShape shape = {spec.transpose ? pattern.cols() : pattern.rows(), (*b)->shape.cols,
                            (*b)->shape.cols, (*matrix)->type()};
  const auto count = static_cast<int64_t>((*b)->blocks.size());
  std::shared_ptr<BlockResults> results = spec.result.blocks;
  if (!is_trial) {
    absl::StatusOr<DenseWrite> write = BeginWrite(*impl, spec.tenant, spec.result.held, shape);
    if (!write.ok()) return write.status();
    results = std::make_shared<BlockResults>(*std::move(write), ColumnBlocks(shape, count));
  }
  const std::vector<DenseBlock> added =
      *old == nullptr ? std::vector<DenseBlock>() : ColumnBlocksOf(*old, count, impl->budget);
  SpmmSpec each = spec;
  auto call = std::make_shared<DistributedCall>(impl, sink);
  call->used_ = {*b, *old};
  const absl::StatusOr<bool> everywhere = FindValues(*impl, each.values, spec.tenant, call->used_);
  if (!everywhere.ok()) return everywhere.status();
  if (!*everywhere) return nullptr;
  if (!is_trial) call->results_ = {results};
  call->is_trial_ = is_trial;
  call->begin_ = {"", 0, shape.rows, shape.cols, {}};
  return Begun(std::move(call), (*b)->blocks.size(),
               [&](size_t i, std::shared_ptr<ResultSink> part_sink) {
                 SpmmSpec part = each;
                 part.part = {{{spec.matrix, *matrix}}, GpuOf(*impl, i)};
                 part.b.block = (*b)->blocks[i];
                 if (*old != nullptr) part.accumulate->block = added[i];
                 part.result = {.blocks = results, .block = i};
                 return DenseCall::Begin(impl, part, std::move(part_sink));
               });
}

absl::StatusOr<std::shared_ptr<Call>> DistributedCall::Begin(
    const std::shared_ptr<Executor::Impl>& impl, const SddmmSpec& spec,
    const std::shared_ptr<ResultSink>& sink) {
  if (impl->gpus.size() < 2 || spec.queue.queue != nullptr) return nullptr;
  const absl::StatusOr<HeldDenseLease> a = HeldOperand(*impl, "A", spec.a, spec.tenant);
  if (!a.ok()) return a.status();
  const absl::StatusOr<HeldDenseLease> b = HeldOperand(*impl, "B", spec.b, spec.tenant);
  if (!b.ok()) return b.status();
  if (IsInRows(*a) || IsInRows(*b)) {
    auto in_rows = BeginInRows(impl, spec, *a, *b, sink);
    // One beside it may lie in columns.
    if (!in_rows.ok() || *in_rows != nullptr) return in_rows;
  }
  if (*a == nullptr || *b == nullptr || (*a)->shape.cols != (*b)->shape.cols ||
      !(IsDistributed(*a) || IsDistributed(*b))) {
    return nullptr;
  }
  absl::StatusOr<MatrixLease> matrix = impl->catalog.Find(spec.tenant, spec.matrix);
  if (!matrix.ok()) return matrix.status();
  const ElementType type = (*matrix)->type();
  // Parts of sums that are rounded to 16 bits are not as exact as the whole.
  if (SizeOf(type) < SizeOf(ElementType::kF32)) return nullptr;

  const size_t count = IsDistributed(*a) ? (*a)->blocks.size() : (*b)->blocks.size();
  const std::vector<DenseBlock> a_blocks =
      ColumnBlocksOf(*a, static_cast<int64_t>(count), impl->budget);
  const std::vector<DenseBlock> b_blocks =
      ColumnBlocksOf(*b, static_cast<int64_t>(count), impl->budget);
  const DenseShape shape = {(*matrix)->pattern()->nnz(), 1, 1, type};
  // Before anything is computed; it is taken when all is.
  const absl::Status found = DenseResult::Find(*impl, spec.tenant, spec.result, shape).status();
  if (!found.ok()) return found;
  const auto partials = std::make_shared<BlockResults>(
      std::vector<DenseBlock>(count, DenseBlock{0, 0, shape, nullptr}));
  SddmmSpec each = spec;
  auto call = std::make_shared<DistributedCall>(impl, sink);
  call->used_ = {*a, *b};
  const absl::StatusOr<bool> everywhere = FindValues(*impl, each.values, spec.tenant, call->used_);
  if (!everywhere.ok()) return everywhere.status();
  if (!*everywhere) return nullptr;
  call->begin_ = {"", 0, shape.rows, shape.cols, {}};
  ChainSpec sum;
  sum.tenant = spec.tenant;
  sum.priority = spec.priority;
  sum.steps = {SumStep()};
  sum.part.device = GpuOf(*impl, 0);
  sum.results = {{.value = count, .place = spec.result}};
  call->begin_last_ = [impl, sum, partials, deadline = TimeLeft(spec.timeout_ns)](
                          std::shared_ptr<ResultSink> last) mutable {
    for (const DenseBlock& block : partials->blocks()) {
      const size_t i = sum.operands.size();
      std::get<SumStep>(sum.steps[0]).terms.push_back({i, 1});
      if (i == 0) {
        sum.operands.push_back({.block = block});
        continue;
      }
      // Queued, and waited for by the sum alone.
      auto fetched = std::make_shared<FetchedRows>();
      fetched->shape = block.shape;
      fetched->parts.push_back({block, GpuOf(*impl, i), nullptr, block.shape.rows});
      sum.operands.push_back({.fetched = std::move(fetched)});
    }
    sum.timeout_ns = deadline.nanoseconds();
    return ChainCall::Begin(impl, std::move(sum), std::move(last));
  };
  return Begun(std::move(call), count, [&](size_t i, std::shared_ptr<ResultSink> part_sink) {
    SddmmSpec part = each;
    part.part = {{{spec.matrix, *matrix}}, GpuOf(*impl, i)};
    part.a.block = a_blocks[i];
    part.b.block = b_blocks[i];
    part.result = {.blocks = partials, .block = i};
    return DenseCall::Begin(impl, part, std::move(part_sink));
  });
}

absl::StatusOr<std::shared_ptr<Call>> DistributedCall::Begin(
    const std::shared_ptr<Executor::Impl>& impl, const ChainSpec& spec,
    const std::shared_ptr<ResultSink>& sink) {
  if (impl->gpus.size() < 2) return nullptr;
  std::vector<HeldDenseLease> held;
  std::vector<int64_t> columns;
  int64_t count = 0;
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    absl::StatusOr<HeldDenseLease> operand =
        HeldOperand(*impl, fmt::to_string(i), spec.operands[i], spec.tenant);
    if (!operand.ok()) return operand.status();
    if (*operand == nullptr) return nullptr;
    if (IsDistributed(*operand)) {
      count = std::max(count, static_cast<int64_t>((*operand)->blocks.size()));
    }
    columns.push_back((*operand)->shape.cols);
    held.push_back(*std::move(operand));
  }
  if (std::ranges::any_of(held, IsInRows))
    return BeginRows(impl, spec, std::move(held), /*is_chain=*/true, "dense", sink);
  const bool all_held = std::ranges::none_of(
      spec.results, [](const ChainSpec::Result& result) { return result.place.held.empty(); });
  if (count == 0 || !all_held || spec.results.empty()) return nullptr;
  const std::optional<ColumnChain> chain = ByColumns(spec, columns, count);
  if (!chain.has_value()) return nullptr;
  PartSpec found;
  for (const ChainStep& step : spec.steps) {
    const std::string* const name = MatrixOf(step);
    if (name == nullptr || found.matrices.contains(*name)) continue;
    absl::StatusOr<MatrixLease> matrix = impl->catalog.Find(spec.tenant, *name);
    if (!matrix.ok()) return matrix.status();
    found.matrices.emplace(*name, *std::move(matrix));
  }
  std::vector<std::vector<DenseBlock>> operands;
  for (size_t i = 0; i < held.size(); ++i) {
    operands.push_back(chain->by_columns[i]
                           ? ColumnBlocksOf(held[i], count, impl->budget)
                           : std::vector<DenseBlock>(static_cast<size_t>(count), WholeOf(held[i])));
  }
  auto call = std::make_shared<DistributedCall>(impl, sink);
  call->used_ = held;
  for (size_t i = 0; i < spec.results.size(); ++i) {
    const ChainSpec::Result& result = spec.results[i];
    absl::StatusOr<DenseWrite> write = impl->dense.BeginWrite(spec.tenant, result.place.held);
    if (!write.ok()) {
      return absl::Status(write.status().code(),
                          fmt::format("result {}: {}", i, std::string(write.status().message())));
    }
    const DenseShape shape = write->base()->shape;
    const bool wanted = !result.shape.has_value() ||
                        (result.shape->rows == shape.rows && result.shape->cols == shape.cols &&
                         result.shape->type == shape.type);
    if (!wanted || shape.cols < count) return nullptr;
    call->results_.push_back(
        std::make_shared<BlockResults>(*std::move(write), ColumnBlocks(shape, count)));
  }
  const DenseShape& first = call->results_[0]->whole();
  call->begin_ = {"", 0, first.rows, first.cols, {}};
  const std::vector<std::shared_ptr<BlockResults>> results = call->results_;
  return Begun(std::move(call), static_cast<size_t>(count),
               [&](size_t i, std::shared_ptr<ResultSink> part_sink) {
                 ChainSpec part = spec;
                 part.steps = chain->steps;
                 part.part = {found.matrices, GpuOf(*impl, i)};
                 for (size_t j = 0; j < operands.size(); ++j)
                   part.operands[j].block = operands[j][i];
                 for (size_t j = 0; j < results.size(); ++j) {
                   part.results[j].place = {.blocks = results[j], .block = i};
                   part.results[j].shape.reset();
                 }
                 return ChainCall::Begin(impl, std::move(part), std::move(part_sink));
               });
}

}  // namespace sparsed::engine
