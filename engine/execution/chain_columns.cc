#include "engine/execution/chain_columns.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace sparsed::engine {
namespace {

/// Goes through a chain's steps. Each value is either of columns, of which each part has its own,
/// or needed whole by all parts; those that steps make are of columns.
class Splitter {
 public:
  Splitter(std::span<const int64_t> columns, int64_t parts)
      : parts_(parts), columns_(columns.begin(), columns.end()), uses_(columns.size()) {}

  /// Each turns the step into that of one part. False: it cannot be computed so.
  bool Split(SpmmStep& spmm) {
    const int64_t heads = spmm.values ? ColumnsOf(*spmm.values) : 1;
    return Columns(spmm.b) && ColumnsIf(spmm.beta != 0 ? spmm.accumulate : std::nullopt) &&
           Divide(heads, spmm.b) && OneOrHeads(spmm.values, heads) && Makes(ColumnsOf(spmm.b));
  }
  bool Split(SddmmStep& sddmm) {
    const int64_t heads = sddmm.heads;
    return Heads(sddmm.heads) && Columns(sddmm.a) && Columns(sddmm.b) && Divide(heads, sddmm.a) &&
           OneOrHeads(sddmm.values, heads) && Makes(heads);
  }
  bool Split(SumStep& sum) {
    return !sum.terms.empty() && std::ranges::all_of(sum.terms, [&](const SumStep::Term& term) {
      return Columns(term.value);
    }) && Makes(ColumnsOf(sum.terms[0].value));
  }
  bool Split(SoftmaxStep& softmax) {
    return OfHeads(softmax.value) && ColumnsIf(softmax.gradient) && Makes(ColumnsOf(softmax.value));
  }
  bool Split(ReduceStep& reduce) {
    // Which nonzero a greatest is of is for results that are sent.
    return !reduce.arguments && Columns(reduce.b) && OneOrHeads(reduce.values, 1) &&
           Makes(ColumnsOf(reduce.b));
  }
  bool Split(ScaleStep& scale) {
    if (!scale.value.has_value()) return false;
    const int64_t heads = ColumnsOf(*scale.value);
    return OfHeads(*scale.value) && OneOrHeads(scale.rows, heads) &&
           OneOrHeads(scale.cols, heads) && Makes(heads);
  }
  // Of parts alone.
  bool Split(PlaceStep& /*place*/) { return false; }
  bool Split(FetchStep& /*fetch*/) { return false; }
  bool Split(TotalStep& total) {
    return total.value.has_value() && OfHeads(*total.value) && Makes(ColumnsOf(*total.value));
  }
  bool Split(AttentionStep& attention) {
    const int64_t heads = attention.scores.heads;
    return Scores(attention.scores) && Columns(attention.values) &&
           Divide(heads, attention.values) && Makes(ColumnsOf(attention.values)) && Makes(heads);
  }
  bool Split(AttentionGradientStep& of) {
    const int64_t heads = of.scores.heads;
    if (!Scores(of.scores) || !Columns(of.values) || !Divide(heads, of.values) ||
        !Columns(of.result) || !Columns(of.log_sums) || !Columns(of.gradient)) {
      return false;
    }
    // A bias for all heads has a gradient that is a sum over them.
    if (of.of_bias && !(of.scores.bias && ColumnsOf(*of.scores.bias) > 1)) return false;
    if (of.of_left) Makes(ColumnsOf(of.scores.left));
    if (of.of_right) Makes(ColumnsOf(of.scores.right));
    if (of.of_values) Makes(ColumnsOf(of.values));
    if (of.of_bias) Makes(ColumnsOf(*of.scores.bias));
    if (of.of_att) Makes(of.scores.att ? ColumnsOf(*of.scores.att) : 1);
    return true;
  }

  bool Columns(size_t value) { return Use(value, Role::kColumns); }
  std::vector<bool> by_columns() const {
    std::vector<bool> by_columns;
    for (const Role role : uses_) by_columns.push_back(role == Role::kColumns);
    return by_columns;
  }

 private:
  enum class Role : uint8_t { kUnused, kColumns, kWhole };

  /// Of values that there are not, a call of all of it speaks.
  int64_t ColumnsOf(size_t value) const { return value < columns_.size() ? columns_[value] : 1; }
  bool Makes(int64_t columns) {
    columns_.push_back(columns);
    return true;
  }
  bool Use(size_t value, Role role) {
    if (value >= uses_.size()) return role == Role::kColumns;
    if (uses_[value] != Role::kUnused && uses_[value] != role) return false;
    if (role == Role::kColumns && columns_[value] < parts_) return false;
    uses_[value] = role;
    return true;
  }
  bool ColumnsIf(const std::optional<size_t>& value) { return !value || Columns(*value); }
  /// A column for each head.
  bool OfHeads(size_t value) { return ColumnsOf(value) % parts_ == 0 && Columns(value); }
  /// That, or one column for all `heads`.
  bool OneOrHeads(const std::optional<size_t>& value, int64_t heads) {
    if (!value) return true;
    if (ColumnsOf(*value) == 1) return Use(*value, Role::kWhole);
    return ColumnsOf(*value) == heads && OfHeads(*value);
  }
  /// As many columns for each of them.
  bool Divide(int64_t heads, size_t value) const {
    return heads >= 1 && ColumnsOf(value) % heads == 0;
  }
  bool Heads(int64_t& heads) {
    if (heads < 1 || heads % parts_ != 0) return false;
    heads /= parts_;
    return true;
  }
  bool Scores(AttentionScores& scores) {
    const int64_t heads = scores.heads;
    return Heads(scores.heads) && Columns(scores.left) && Columns(scores.right) &&
           Divide(heads, scores.left) && ColumnsIf(scores.att) && OneOrHeads(scores.bias, heads);
  }

  const int64_t parts_;
  std::vector<int64_t> columns_;  ///< of each value so far
  std::vector<Role> uses_;        ///< of each operand
};

}  // namespace

std::optional<ColumnChain> ByColumns(const ChainSpec& spec, std::span<const int64_t> columns,
                                     int64_t parts) {
  Splitter splitter(columns, parts);
  ColumnChain chain{{}, spec.steps};
  for (ChainStep& step : chain.steps) {
    if (!std::visit([&](auto& of) { return splitter.Split(of); }, step)) return std::nullopt;
  }
  for (const ChainSpec::Result& result : spec.results) {
    if (!splitter.Columns(result.value)) return std::nullopt;
  }
  chain.by_columns = splitter.by_columns();
  return chain;
}

const std::string* MatrixOf(const ChainStep& step) {
  return std::visit(
      [](const auto& of) -> const std::string* {
        using Step = std::decay_t<decltype(of)>;
        if constexpr (std::is_same_v<Step, SumStep> || std::is_same_v<Step, PlaceStep> ||
                      std::is_same_v<Step, FetchStep>) {
          return nullptr;
        } else {
          return &of.matrix;
        }
      },
      step);
}

}  // namespace sparsed::engine
