#include "client/src/compute_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "client/src/arrays.h"
#include "client/src/convert.h"
#include "client/src/dense_call.h"
#include "client/src/dense_rows.h"

namespace sparsed {
inline namespace client {
namespace {

template <typename View>
std::pair<const std::byte*, const std::byte*> Extent(const View& view) {
  const int64_t stride = Stride(view);
  const auto* begin = static_cast<const std::byte*>(view.data);
  return {begin, begin + view.rows * stride * static_cast<int64_t>(SizeOf(view.type))};
}

/// Gathers what a request sends and where its result goes, and the first thing that is wrong.
class RequestBuilder {
  /// Around a start, with the largest id and timeout.
  static constexpr size_t kEnvelopeBytes = 64;

 public:
  /// Null: everything goes in the stream.
  explicit RequestBuilder(SharedMemory* shared_memory) : shared_memory_(shared_memory) {
    request_.repeatable = true;
  }

  v1::Operand Add(const Operand& operand, const char* what) {
    v1::Operand proto;
    if (const auto* held = std::get_if<DenseMatrix>(&operand)) {
      proto.set_buffer(held->name());
      held_.push_back(held->name());
      return proto;
    }
    const auto& view = std::get<DenseView>(operand);
    const auto bytes = BytesOf(view, what);
    if (!bytes.ok()) {
      Refuse(bytes.status());
      return proto;
    }
    CheckType(view.type, what);
    views_.push_back(view);
    // Values of S may have no gaps; on their way they lose them.
    const bool has_gaps = view.cols == 1 && view.leading_dimension > 1;
    if (!has_gaps && FindShared(view, *proto.mutable_shared())) {
      SetShape(view, *proto.mutable_shape());
      return proto;
    }
    CheckOnHost(view, what);
    // Rows are sent without the gaps between them.
    proto.mutable_shape()->set_rows(view.rows);
    proto.mutable_shape()->set_cols(view.cols);
    proto.mutable_shape()->set_type(ToProto(view.type));
    proto.set_stream_array(static_cast<uint32_t>(request_.operands.size()));
    request_.operands.push_back(*bytes);
    return proto;
  }

  v1::Destination Into(const Destination& destination, const char* what) {
    v1::Destination proto;
    if (const auto* held = std::get_if<DenseMatrix>(&destination)) {
      proto.set_buffer(held->name());
      // What was an operand too may have been overwritten already.
      if (std::find(held_.begin(), held_.end(), held->name()) != held_.end()) {
        request_.repeatable = false;
      }
      return proto;
    }
    const auto& view = std::get<MutableDenseView>(destination);
    const auto bytes = BytesOf(view, what);
    if (!bytes.ok()) {
      Refuse(bytes.status());
      return proto;
    }
    CheckType(view.type, what);
    if (FindShared(view, *proto.mutable_shared()->mutable_memory())) {
      SetShape(view, *proto.mutable_shared()->mutable_shape());
    } else {
      CheckOnHost(view, what);
      proto.set_stream(true);
      request_.results.push_back({*bytes, view.type});
    }
    const auto extent = Extent(view);
    for (const auto& [begin, end] : results_) {
      if (begin >= extent.second || extent.first >= end) continue;
      Refuse(absl::InvalidArgumentError(fmt::format("{} shares memory with another result", what)));
    }
    results_.push_back(extent);
    for (const DenseView& other : views_) {
      const auto [begin, end] = Extent(other);
      // Half overwritten already.
      if (begin < extent.second && extent.first < end) request_.repeatable = false;
    }
    return proto;
  }

  /// A place in a queue is used up by the first attempt.
  template <typename Start>
  void SetQueue(const std::string& queue, Start& start) {
    start.set_queue(queue);
    if (!queue.empty()) request_.repeatable = false;
  }

  /// Which types go together is the server's business, as in chains.
  void AllowTypes() { one_type_ = false; }

  DenseRequest& request() { return request_; }
  /// All of it, opened with `start`.
  template <typename Request, typename Start>
  absl::StatusOr<DenseRequest> Take(Start start, wire::RingMessage message,
                                    size_t reply_bytes = 0) {
    if (!status_.ok()) return status_;
    request_.message = message;
    request_.message_bytes = std::max(start.ByteSizeLong() + kEnvelopeBytes, reply_bytes);
    request_.encode_start = [start = std::move(start)](uint64_t id, uint64_t timeout_ns,
                                                       uint32_t priority,
                                                       const std::vector<std::string>& carriers,
                                                       const TraceHeaders& trace) {
      Request request;
      *request.mutable_start() = start;
      request.mutable_start()->set_request_id(id);
      request.mutable_start()->set_timeout_ns(timeout_ns);
      request.mutable_start()->set_priority(priority);
      SetTrace(trace, *request.mutable_start());
      for (const std::string& name : carriers) request.mutable_start()->add_carriers(name);
      return wire::Encode(request);
    };
    return std::move(request_);
  }

 private:
  template <typename View>
  static void SetShape(const View& view, v1::DenseShape& shape) {
    shape.set_rows(view.rows);
    shape.set_cols(view.cols);
    shape.set_leading_dimension(view.leading_dimension);
    shape.set_type(ToProto(view.type));
  }
  /// Whether all of it lies in memory that the server maps, and where.
  template <typename View>
  bool FindShared(const View& view, v1::SharedMemory& place) {
    if (view.rows == 0 || shared_memory_ == nullptr) return false;
    const int64_t stride = Stride(view);
    const auto bytes =
        static_cast<size_t>((view.rows - 1) * stride + view.cols) * SizeOf(view.type);
    std::optional<SharedMemory::Place> found = shared_memory_->Find(view.data, bytes);
    if (!found) return false;
    place.set_region(found->region);
    place.set_offset(found->offset);
    request_.shared.push_back(*std::move(found));
    return true;
  }
  /// What the server does not find in shared memory is read and written here.
  template <typename View>
  void CheckOnHost(const View& view, const char* what) {
    if (view.rows == 0 || shared_memory_ == nullptr || !shared_memory_->OnGpu(view.data)) return;
    Refuse(absl::FailedPreconditionError(fmt::format(
        "{} is in memory of a GPU that the server cannot use: it begins at no multiple of {} bytes "
        "of its allocation, has gaps between its values, leaves its allocation, the server that it "
        "came from has gone, or it came from none (see --trust-caller-gpu-memory)",
        what, SharedMemory::kAlignment)));
  }
  void Refuse(const absl::Status& status) { status_.Update(status); }
  void CheckType(ValueType type, const char* what) {
    if (one_type_ && type_ && *type_ != type) {
      Refuse(absl::InvalidArgumentError(
          fmt::format("{} is {}, what came before it {}", what, Name(type), Name(*type_))));
    }
    type_ = type;
  }

  SharedMemory* const shared_memory_;
  DenseRequest request_;
  std::vector<DenseView> views_;
  std::vector<std::pair<const std::byte*, const std::byte*>> results_;  ///< their memory
  std::vector<std::string> held_;
  bool one_type_ = true;
  std::optional<ValueType> type_;
  absl::Status status_;
};

/// `build` makes the request with a RequestBuilder.
template <typename Build>
Call<ComputeResult> LaunchDense(const std::shared_ptr<Connection>& connection,
                                ComputeStream& (Connection::*stream)(), const Build& build,
                                const CallOptions& options,
                                InShards<ComputeResult> in_shards = {}) {
  absl::StatusOr<DenseRequest> request = build(RequestBuilder(connection->shared_memory().get()));
  if (!request.ok()) return Refused<ComputeResult>(request.status());
  std::optional<DenseRequest> streamed;
  const bool on_gpu = std::any_of(request->shared.begin(), request->shared.end(),
                                  [](const auto& place) { return place.block->on_gpu(); });
  if (!request->shared.empty() && request->repeatable && !on_gpu) {
    absl::StatusOr<DenseRequest> same = build(RequestBuilder(nullptr));
    if (same.ok()) streamed = *std::move(same);
  }
  auto state = std::make_shared<CallState<ComputeResult>>();
  auto call = std::make_shared<DenseCall>(*connection, stream, options, *std::move(request),
                                          std::move(streamed), state);
  if (connection->options().ring || connection->options().ring_spin.count() > 0) {
    state->WaitWith([weak = std::weak_ptr<DenseCall>(call)](const auto& end) {
      if (const auto waited = weak.lock()) waited->Await(end);
    });
  }
  return Launch<ComputeResult>(connection, call, std::move(state), std::move(in_shards));
}

/// Without an `accumulate`, what the destination holds.
Operand AccumulateOf(const SpmmOptions& spmm, const Destination& c) {
  if (spmm.accumulate) return *spmm.accumulate;
  if (const auto* held = std::get_if<DenseMatrix>(&c)) return *held;
  const auto& view = std::get<MutableDenseView>(c);
  return DenseView(view.data, view.type, view.rows, view.cols, view.leading_dimension);
}

}  // namespace

Call<ComputeResult> Spmm(const std::shared_ptr<Connection>& connection, const std::string& matrix,
                         const Operand& b, const Destination& c, const SpmmOptions& spmm,
                         const CallOptions& options, const std::string& queue,
                         InShards<ComputeResult> in_shards, uint64_t version) {
  const auto build = [&](RequestBuilder builder) {
    v1::SpmmStart start;
    start.set_matrix(matrix);
    start.set_transpose(spmm.transpose);
    start.set_alpha(spmm.alpha);
    start.set_beta(spmm.beta);
    start.set_allow_tf32(spmm.allow_tf32);
    builder.SetQueue(queue, start);
    *start.mutable_b() = builder.Add(b, "b");
    if (spmm.beta != 0) {
      *start.mutable_accumulate() = builder.Add(AccumulateOf(spmm, c), "accumulate");
    }
    if (spmm.values) *start.mutable_values() = builder.Add(*spmm.values, "SpmmOptions::values");
    *start.mutable_result() = builder.Into(c, "c");
    start.mutable_result()->set_version(version);
    if (const auto* view = std::get_if<MutableDenseView>(&c)) {
      builder.request().result_rows = view->rows;
      builder.request().result_cols = view->cols;
    }
    return builder.Take<v1::SpmmRequest>(std::move(start), wire::RingMessage::kSpmm);
  };
  return LaunchDense(connection, &Connection::spmm, build, options, std::move(in_shards));
}

Call<ComputeResult> Sddmm(const std::shared_ptr<Connection>& connection, const std::string& matrix,
                          const Operand& a, const Operand& b, const Destination& values,
                          const SddmmOptions& sddmm, const CallOptions& options,
                          const std::string& queue, InShards<ComputeResult> in_shards) {
  const auto build = [&](RequestBuilder builder) {
    v1::SddmmStart start;
    start.set_matrix(matrix);
    start.set_unscaled(sddmm.unscaled);
    builder.SetQueue(queue, start);
    *start.mutable_a() = builder.Add(a, "a");
    *start.mutable_b() = builder.Add(b, "b");
    if (sddmm.values) {
      *start.mutable_values() = builder.Add(*sddmm.values, "SddmmOptions::values");
    }
    *start.mutable_result() = builder.Into(values, "values");
    return builder.Take<v1::SddmmRequest>(std::move(start), wire::RingMessage::kSddmm);
  };
  return LaunchDense(connection, &Connection::sddmm, build, options, std::move(in_shards));
}

/// Makes the request of a chain.
class ChainEncoder {
 public:
  /// The first matrix that it names; empty: none.
  static std::string FirstMatrix(const Chain& chain) {
    std::string first;
    for (const Chain::Source& value : chain.values_) {
      std::visit(
          [&first](const auto& step) {
            if constexpr (requires { step.matrix; }) {
              first = step.matrix;
            } else if constexpr (requires { step.of.matrix; }) {
              first = step.of.matrix;
            }
          },
          value);
      if (!first.empty()) break;
    }
    return first;
  }

  /// An operand or a result is one that the server keeps.
  static bool HasBuffers(const Chain& chain) {
    const auto held = [](const auto& given) { return std::holds_alternative<DenseMatrix>(given); };
    return std::ranges::any_of(chain.operands_, held) ||
           std::ranges::any_of(chain.outputs_,
                               [&held](const auto& output) { return held(output.second); });
  }

  static absl::StatusOr<DenseRequest> Build(const Chain& chain, RequestBuilder builder) {
    v1::ChainStart start;
    builder.AllowTypes();
    // On the wire operands come first.
    std::vector<uint32_t> numbers;
    uint32_t made = 0;
    for (const Chain::Source& value : chain.values_) {
      const auto* const operand = std::get_if<size_t>(&value);
      numbers.push_back(operand != nullptr
                            ? static_cast<uint32_t>(*operand)
                            : static_cast<uint32_t>(chain.operands_.size()) + made++);
    }
    bool foreign = false;
    absl::Status wrong;
    const auto number = [&](Chain::Value value) {
      // One of a copy that went on by itself may have no number here.
      foreign = foreign || value.chain_ != chain.id_ || value.number_ >= numbers.size();
      return foreign ? 0 : numbers[value.number_];
    };
    const auto heads = [&](int64_t count) {
      if (count < 1 || count > std::numeric_limits<uint32_t>::max()) {
        wrong.Update(absl::InvalidArgumentError(
            fmt::format("step {}: {} heads, expected 1 or more", start.steps_size() - 1, count)));
      }
      return static_cast<uint32_t>(count);
    };
    /// What attention and its gradients are given alike.
    const auto attend = [&](const Chain::AttentionStep& from, auto& step) {
      step.set_matrix(from.matrix);
      step.set_values(number(from.values));
      v1::AttentionScores& scores = *step.mutable_scores();
      scores.set_kind(static_cast<v1::ScoreKind>(from.options.scores));
      scores.set_heads(heads(from.options.heads));
      scores.set_left(number(from.left));
      scores.set_right(number(from.right));
      scores.set_scale(from.options.scale);
      scores.set_slope(from.options.slope);
      if (from.options.bias) scores.set_bias(number(*from.options.bias));
      if (from.options.att) scores.set_att(number(*from.options.att));
    };
    for (size_t i = 0; i < chain.operands_.size(); ++i) {
      *start.add_operands() = builder.Add(chain.operands_[i], fmt::format("operand {}", i).c_str());
    }
    for (const Chain::Source& value : chain.values_) {
      if (const auto* const spmm = std::get_if<Chain::SpmmStep>(&value)) {
        v1::SpmmStep& step = *start.add_steps()->mutable_spmm();
        step.set_matrix(spmm->matrix);
        step.set_transpose(spmm->options.transpose);
        step.set_alpha(spmm->options.alpha);
        step.set_beta(spmm->options.beta);
        step.set_b(number(spmm->b));
        if (spmm->options.accumulate) step.set_accumulate(number(*spmm->options.accumulate));
        if (spmm->options.values) step.set_values(number(*spmm->options.values));
        step.set_allow_tf32(spmm->options.allow_tf32);
      } else if (const auto* const sddmm = std::get_if<Chain::SddmmStep>(&value)) {
        v1::SddmmStep& step = *start.add_steps()->mutable_sddmm();
        step.set_matrix(sddmm->matrix);
        step.set_unscaled(sddmm->options.unscaled);
        step.set_a(number(sddmm->a));
        step.set_b(number(sddmm->b));
        if (sddmm->options.values) step.set_values(number(*sddmm->options.values));
        step.set_heads(heads(sddmm->options.heads));
      } else if (const auto* const softmax = std::get_if<Chain::SoftmaxStep>(&value)) {
        v1::SoftmaxStep& step = *start.add_steps()->mutable_softmax();
        step.set_matrix(softmax->matrix);
        step.set_scale(softmax->scale);
        step.set_value(number(softmax->value));
        if (softmax->gradient) step.set_gradient(number(*softmax->gradient));
      } else if (const auto* const reduce = std::get_if<Chain::ReduceStep>(&value)) {
        v1::ReduceStep& step = *start.add_steps()->mutable_reduce();
        step.set_matrix(reduce->matrix);
        step.set_transpose(reduce->options.transpose);
        step.set_reduction(static_cast<v1::Reduction>(reduce->reduction));
        step.set_b(number(reduce->b));
        if (reduce->options.values) step.set_values(number(*reduce->options.values));
        step.set_unscaled(reduce->options.unscaled);
        step.set_arguments(reduce->arguments);
      } else if (const auto* const scale = std::get_if<Chain::ScaleStep>(&value)) {
        v1::ScaleStep& step = *start.add_steps()->mutable_scale();
        step.set_matrix(scale->matrix);
        if (scale->options.values) step.set_value(number(*scale->options.values));
        if (scale->options.rows) step.set_rows(number(*scale->options.rows));
        if (scale->options.cols) step.set_cols(number(*scale->options.cols));
      } else if (const auto* const total = std::get_if<Chain::TotalStep>(&value)) {
        v1::TotalStep& step = *start.add_steps()->mutable_total();
        step.set_matrix(total->matrix);
        step.set_transpose(total->options.transpose);
        if (total->options.values) step.set_value(number(*total->options.values));
      } else if (const auto* const attention = std::get_if<Chain::AttentionStep>(&value)) {
        attend(*attention, *start.add_steps()->mutable_attention());
      } else if (const auto* const gradient = std::get_if<Chain::AttentionGradientStep>(&value)) {
        v1::AttentionGradientStep& step = *start.add_steps()->mutable_attention_gradient();
        attend(gradient->of, step);
        step.set_result(number(gradient->made.value));
        step.set_log_sums(number(gradient->made.log_sums));
        step.set_gradient(number(gradient->gradient));
        step.set_of_left(gradient->wanted.left);
        step.set_of_right(gradient->wanted.right);
        step.set_of_values(gradient->wanted.values);
        step.set_of_bias(gradient->wanted.bias);
        step.set_of_att(gradient->wanted.att);
      } else if (const auto* const sum = std::get_if<Chain::SumStep>(&value)) {
        v1::SumStep& step = *start.add_steps()->mutable_sum();
        for (const Chain::Term& term : *sum) {
          v1::SumTerm& message = *step.add_terms();
          message.set_value(number(term.value));
          message.set_factor(term.factor);
        }
      }
    }
    for (size_t i = 0; i < chain.outputs_.size(); ++i) {
      v1::ChainResult& result = *start.add_results();
      result.set_value(number(chain.outputs_[i].first));
      *result.mutable_place() =
          builder.Into(chain.outputs_[i].second, fmt::format("result {}", i).c_str());
      if (const auto* view = std::get_if<MutableDenseView>(&chain.outputs_[i].second)) {
        v1::DenseShape& shape = *result.mutable_shape();
        shape.set_rows(view->rows);
        shape.set_cols(view->cols);
        shape.set_type(ToProto(view->type));
      }
    }
    if (foreign) {
      return absl::InvalidArgumentError("a step or a result is of a value of another chain");
    }
    if (!wrong.ok()) return wrong;
    // The reply has each step's plan.
    const size_t reply_bytes = 512 + 128 * static_cast<size_t>(start.steps_size());
    return builder.Take<v1::ChainRequest>(std::move(start), wire::RingMessage::kChain, reply_bytes);
  }
};

Call<ComputeResult> Run(const std::shared_ptr<Connection>& connection, const Chain& chain,
                        const CallOptions& options) {
  const auto build = [&](RequestBuilder builder) {
    return ChainEncoder::Build(chain, std::move(builder));
  };
  // Buffers are the home's, which says so where the matrix is elsewhere.
  return LaunchDense(ChainEncoder::HasBuffers(chain)
                         ? connection
                         : RouteOf(connection, ChainEncoder::FirstMatrix(chain)),
                     &Connection::chain, build, options);
}

}  // namespace client
}  // namespace sparsed
