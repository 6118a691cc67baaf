// Of chains whose values lie in rows, all steps at once: a part for each GPU.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "engine/execution/chain_call.h"
#include "engine/execution/row_phases.h"

namespace sparsed::engine {

struct RowPhases::Together {
  /// A product, of a step.
  struct Divided {
    std::shared_ptr<RowDistribution> rows;
    std::vector<RowDistribution::Matrices> matrices;  ///< by part
  };
  std::shared_ptr<PartExchange> exchange;
  std::map<size_t, Divided> products;                  ///< by step
  std::vector<std::shared_ptr<BlockResults>> results;  ///< by result
  /// Operands' blocks, by how they are cut.
  std::map<std::pair<size_t, std::vector<int64_t>>, std::vector<DenseBlock>> blocks;
  /// By part: the chain's step that each of the part's is of.
  std::vector<std::vector<size_t>> steps_of;
};

RowPhases::RowPhases(std::shared_ptr<Executor::Impl> impl, ChainSpec spec)
    : impl_(std::move(impl)), spec_(std::move(spec)), time_(spec_.timeout_ns) {}

RowPhases::~RowPhases() { LeaveTogether(); }

std::shared_ptr<PartExchange> RowPhases::exchange() const {
  return together_ == nullptr ? nullptr : together_->exchange;
}

void RowPhases::LeaveTogether() {
  if (together_ == nullptr) return;
  together_.reset();
  impl_->parts_meet = false;
}

void RowPhases::GoApart() {
  for (size_t i = 0; i < writes_.size(); ++i) {
    if (!spec_.results[i].place.held.empty()) writes_[i] = together_->results[i]->TakeWrite();
  }
  published_.clear();
  exchanged_bytes_ = 0;
  apart_ = true;
  LeaveTogether();
}

bool RowPhases::CanRunTogether() {
  // One step has nobody to wait for; of others there are up to three for each.
  if (spec_.steps.size() < 2 || 3 * spec_.steps.size() > ChainSpec::kMostSteps) return false;
  for (const GpuBackend& gpu : impl_->gpus) {
    for (const GpuBackend& other : impl_->gpus) {
      if (&gpu != &other && !gpu.device().Reads(other.device())) return false;
    }
    if (!gpu.status().ok()) return false;
  }
  return std::ranges::none_of(
      spec_.steps, [](const ChainStep& step) { return std::holds_alternative<SddmmStep>(step); });
}

bool RowPhases::BeginTogether() {
  if (!CanRunTogether()) return false;
  auto together = std::make_unique<Together>();
  for (size_t i = 0; i < spec_.steps.size(); ++i) {
    const std::optional<Product> product = ProductOf(spec_.steps[i]);
    if (!product) continue;
    const std::shared_ptr<Pattern>& pattern = product->matrix->pattern();
    std::shared_ptr<RowDistribution> rows =
        impl_->derived->FindRows(pattern, product->problem.transposed, values_[product->b].bounds);
    // A phase finds it out.
    if (rows == nullptr || !HasPlans(*product, PlanOf(*product), *rows)) return false;
    values_[spec_.operands.size() + i].bounds = rows->result_bounds();
    std::vector<RowDistribution::Matrices> matrices =
        rows->MatricesOf(product->matrix, impl_->budget);
    together->products.emplace(i, Together::Divided{std::move(rows), std::move(matrices)});
  }
  if (impl_->parts_meet.exchange(true)) return false;
  together->exchange = std::make_shared<PartExchange>(impl_->gpus.size());
  together->steps_of.resize(impl_->gpus.size());
  for (size_t i = 0; i < spec_.results.size(); ++i) {
    const Value& value = values_[spec_.results[i].value];
    std::vector<DenseBlock> blocks = BlocksOfRows(value.shape, value.bounds);
    if (writes_[i]) {
      together->results.push_back(std::make_shared<BlockResults>(
          *std::exchange(writes_[i], std::nullopt), std::move(blocks)));
      published_.push_back(together->results.back());
    } else {
      together->results.push_back(std::make_shared<BlockResults>(std::move(blocks)));
    }
  }
  for (const auto& [i, divided] : together->products) {
    const DenseShape& b = values_[ProductOf(spec_.steps[i])->b].shape;
    exchanged_bytes_ +=
        divided.rows->fetched_rows() * b.cols * static_cast<int64_t>(SizeOf(b.type));
  }
  together_ = std::move(together);
  return true;
}

ChainSpec RowPhases::PartTogether(size_t i) {
  ChainSpec part;
  part.tenant = spec_.tenant;
  part.priority = spec_.priority;
  part.timeout_ns = time_.nanoseconds();
  part.part.device = impl_->gpus[i].id();
  part.part.exchange = together_->exchange;
  part.part.index = i;

  // Its operands come before what its steps make.
  std::map<std::pair<size_t, std::vector<int64_t>>, size_t> operands;
  const auto blocks_of = [&](size_t value, const std::vector<int64_t>& bounds) -> auto& {
    const auto key = std::pair(value, bounds);
    const auto known = together_->blocks.find(key);
    if (known != together_->blocks.end()) return known->second;
    return together_->blocks.emplace(key, BlocksOf(value, bounds)).first->second;
  };
  const auto add_operand = [&](size_t value, const std::vector<int64_t>& bounds) {
    const auto key = std::pair(value, bounds);
    if (values_[value].held == nullptr || operands.contains(key)) return;
    operands.emplace(key, part.operands.size());
    part.operands.push_back({.block = blocks_of(value, bounds)[i]});
  };
  std::map<size_t, size_t> fetched_operands;  // by step
  for (size_t s = 0; s < spec_.steps.size(); ++s) {
    const std::vector<int64_t>& bounds = values_[spec_.operands.size() + s].bounds;
    if (const auto* const spmm = std::get_if<SpmmStep>(&spec_.steps[s])) {
      rows_ = together_->products.at(s).rows;
      add_operand(spmm->b, rows_->operand_bounds());
      if (spmm->beta != 0) add_operand(*spmm->accumulate, bounds);
      if (values_[spmm->b].held != nullptr && rows_->parts()[i].fetched != nullptr) {
        fetched_operands.emplace(s, part.operands.size());
        part.operands.push_back(FetchedFor(i, blocks_of(spmm->b, rows_->operand_bounds())));
      }
    } else {
      for (const SumStep::Term& term : std::get<SumStep>(spec_.steps[s]).terms) {
        add_operand(term.value, bounds);
      }
    }
  }
  size_t next = part.operands.size();
  std::vector<size_t> values;  // by step of the chain
  const auto value_of = [&](size_t value, const std::vector<int64_t>& bounds) {
    return values_[value].held == nullptr ? values[value - spec_.operands.size()]
                                          : operands.at({value, bounds});
  };
  std::vector<size_t>& steps_of = together_->steps_of[i];
  steps_of.clear();
  const auto add_step = [&](ChainStep step, size_t of) {
    part.steps.push_back(std::move(step));
    steps_of.push_back(of);
  };
  for (size_t s = 0; s < spec_.steps.size(); ++s) {
    const std::vector<int64_t>& bounds = values_[spec_.operands.size() + s].bounds;
    if (const auto* const sum = std::get_if<SumStep>(&spec_.steps[s])) {
      SumStep own;
      for (const SumStep::Term& term : sum->terms) {
        own.terms.push_back({value_of(term.value, bounds), term.factor});
      }
      add_step(own, s);
      values.push_back(next++);
      continue;
    }
    const auto& spmm = std::get<SpmmStep>(spec_.steps[s]);
    const Together::Divided& divided = together_->products.at(s);
    const RowDistribution::Part& rows = divided.rows->parts()[i];
    // No matrix has such names.
    SpmmStep own = spmm;
    own.matrix = fmt::format(" {}", s);
    own.transpose = false;
    own.b = value_of(spmm.b, divided.rows->operand_bounds());
    if (spmm.beta != 0) own.accumulate = value_of(*spmm.accumulate, bounds);
    part.part.matrices.emplace(own.matrix, divided.matrices[i].own);
    size_t fetched = 0;
    if (values_[spmm.b].held == nullptr) {
      FetchStep fetch;
      fetch.value = own.b;
      fetch.rows = rows.fetched_rows;
      for (const RowDistribution::Fetched& from : rows.from) {
        fetch.from.push_back({from.rows, from.count});
      }
      add_step(std::move(fetch), s);
      if (rows.fetched != nullptr) fetched = next++;
    } else if (rows.fetched != nullptr) {
      fetched = fetched_operands.at(s);
    }
    add_step(own, s);
    values.push_back(next++);
    if (rows.fetched == nullptr) continue;
    SpmmStep of_fetched = own;
    of_fetched.matrix += " fetched";
    part.part.matrices.emplace(of_fetched.matrix, divided.matrices[i].fetched);
    of_fetched.b = fetched;
    of_fetched.beta = 1;
    of_fetched.accumulate = values.back();
    add_step(of_fetched, s);
    values.back() = next++;
  }
  for (size_t r = 0; r < spec_.results.size(); ++r) {
    ChainSpec::Result result;
    result.value = values[spec_.results[r].value - spec_.operands.size()];
    result.place = {.blocks = together_->results[r], .block = i};
    part.results.push_back(std::move(result));
  }
  return part;
}

void RowPhases::EndTogether(const std::vector<StepEnd>& took) {
  for (size_t r = 0; r < spec_.results.size(); ++r) {
    values_[spec_.results[r].value].blocks = together_->results[r]->blocks();
  }
  // Of the slowest part, or one with as many steps.
  const auto steps_of = std::ranges::find_if(
      together_->steps_of, [&](const auto& of) { return of.size() == took.size(); });
  steps_.assign(spec_.steps.size(), StepEnd());
  for (size_t j = 0; steps_of != together_->steps_of.end() && j < took.size(); ++j) {
    StepEnd& step = steps_[(*steps_of)[j]];
    if (step.plan.empty() && took[j].plan != "fetch") step.plan = took[j].plan;
    step.nanoseconds += took[j].nanoseconds;
  }
  step_ = spec_.steps.size();
  at_once_ = true;
  LeaveTogether();
}

}  // namespace sparsed::engine
