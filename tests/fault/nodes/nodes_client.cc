#include "tests/fault/nodes/nodes_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

namespace sparsed::test {
namespace {

using Kind = NodesModel::Call;
using Outcome = NodesModel::Outcome;
using std::chrono::milliseconds;

constexpr int64_t kRows = 200;
constexpr int kMostDegree = 4;
/// Values are one more than a multiple, so that the degree is the remainder of a sum of so many.
constexpr int64_t kValueStep = kMostDegree + 1;
constexpr int64_t kWidth = 2;
constexpr std::chrono::seconds kPatience(4);
/// Each doubles, at worst, what may have happened: a client that has so many in a round only reads.
constexpr int kMostUnknown = 6;
/// In which a name has to answer when nothing fails any more.
constexpr std::chrono::seconds kAnswers(10);

/// `degree` nonzeros in each row. A value times a degree is a whole number that f32 has exactly.
struct Content {
  std::vector<int64_t> offsets;
  std::vector<int32_t> columns;
  std::vector<float> values;

  Content(int degree, int64_t value) : offsets{0} {
    constexpr int32_t kStride = kRows / kMostDegree;
    for (int32_t row = 0; row < kRows; ++row) {
      for (int i = 0; i < degree; ++i) columns.push_back(row % kStride + i * kStride);
      offsets.push_back(static_cast<int64_t>(columns.size()));
    }
    values.assign(columns.size(), static_cast<float>(value));
  }
  CsrView View() const {
    return {.rows = kRows,
            .cols = kRows,
            .row_offsets = std::span<const int64_t>(offsets),
            .column_indices = columns,
            .values = std::span<const float>(values)};
  }
};

absl::StatusOr<int64_t> OneValue(std::span<const float> values) {
  if (values.empty()) return absl::InternalError("no values");
  const auto other = std::ranges::find_if(values, [&](float v) { return v != values[0]; });
  if (other == values.end()) return static_cast<int64_t>(values[0]);
  return absl::InternalError(fmt::format("{} at 0 and {} at {}: of two matrices", values[0], *other,
                                         other - values.begin()));
}

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string NodesClient::NameOf(int pair, int name) {
  return fmt::format("pair{}{}", pair, static_cast<char>('a' + name));
}

Client* NodesClient::At(size_t node) {
  const auto known = clients_.find(node);
  if (known != clients_.end()) return &known->second;
  ClientOptions options;
  options.connect_timeout = milliseconds(1000);
  options.default_timeout = kPatience;
  auto client = Client::Connect(shared_.addresses[node], options);
  if (!client.ok()) return nullptr;
  return &clients_.emplace(node, *std::move(client)).first->second;
}

absl::Status NodesClient::Run() {
  while (!shared_.ending) {
    absl::Status status = Once();
    if (!status.ok()) return status;
    std::this_thread::sleep_for(milliseconds(random_() % 20));
  }
  return absl::OkStatus();
}

absl::Status NodesClient::Once() {
  const size_t node = random_() % shared_.nodes.size();
  Client* const client = At(node);
  if (client == nullptr) return absl::OkStatus();
  const int pair = static_cast<int>(random_() % static_cast<uint32_t>(shared_.pairs));
  NodesModel::Operation operation;
  operation.name = static_cast<int>(random_() % 2);
  operation.replace = random_() % 3 != 0;
  operation.degree = 1 + static_cast<int>(random_() % kMostDegree);
  constexpr Kind kCalls[] = {Kind::kUpload, Kind::kUpload, Kind::kUpdate, Kind::kUpdate,
                             Kind::kUpdate, Kind::kDelete, Kind::kRename, Kind::kRead,
                             Kind::kRead,   Kind::kRead,   Kind::kInfo,   Kind::kProduct,
                             Kind::kProduct};
  operation.call = kCalls[random_() % std::size(kCalls)];
  const bool looks = NodesModel::OnlyLooks(operation);
  if (!looks && unknown_ >= kMostUnknown) operation.call = Kind::kRead;
  return Call(*client, node, pair, operation);
}

absl::Status NodesClient::ReadAll() {
  for (size_t node = 0; node < shared_.nodes.size(); ++node) {
    clients_.erase(node);
    Client* const client = At(node);
    if (client == nullptr) return absl::UnavailableError("a node cannot be connected to");
    for (int pair = 0; pair < shared_.pairs; ++pair) {
      for (int name = 0; name < 2; ++name) {
        for (const Kind call : {Kind::kRead, Kind::kInfo}) {
          NodesModel::Operation operation;
          operation.call = call;
          operation.name = name;
          // What is lost may answer that it is away for ever: that is no answer.
          const NodesHistory& history = histories_[static_cast<size_t>(pair)];
          const size_t answers = history.size();
          const auto deadline = std::chrono::steady_clock::now() + kAnswers;
          while (history.size() == answers) {
            absl::Status read = Call(*client, node, pair, operation);
            if (!read.ok()) return read;
            if (history.size() > answers) break;
            if (std::chrono::steady_clock::now() > deadline) {
              return absl::InternalError(
                  fmt::format("{} does not say what {} is, though nothing fails: {}",
                              shared_.nodes[node], NameOf(pair, name), last_refusal_.ToString()));
            }
            std::this_thread::sleep_for(milliseconds(200));
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status NodesClient::Call(Client& client, size_t node, int pair,
                               NodesModel::Operation operation) {
  const std::string name = NameOf(pair, operation.name);
  const Matrix matrix = client.MatrixNamed(name);
  NodesEvent event;
  event.client = number_;
  event.operation = std::move(operation);
  NodesModel::Operation& of = event.operation;
  of.node = shared_.nodes[node];
  const auto begin = [&] { event.invoked = NowNs(); };
  switch (of.call) {
    case Kind::kUpload: {
      of.value = (shared_.next_value += kValueStep);
      const Content content(of.degree, of.value);
      begin();
      return End(pair, event,
                 client.Upload(name, content.View(), {.replace = of.replace}).status());
    }
    case Kind::kUpdate: {
      // The length is the matrix's: what is there now is asked for first.
      const auto info = matrix.Info();
      if (!info.ok()) return absl::OkStatus();
      of.degree = 0;
      of.value = (shared_.next_value += kValueStep);
      if (random_() % 3 == 0) {
        of.if_version = random_() % 2 == 0 ? info->version : versions_[name];
      }
      const std::vector<float> values(static_cast<size_t>(info->nnz), static_cast<float>(of.value));
      begin();
      const auto version =
          matrix.UpdateValues(std::span<const float>(values), {.if_version = of.if_version});
      if (version.ok()) versions_[name] = of.version = *version;
      return End(pair, event, version.status());
    }
    case Kind::kDelete:
      begin();
      return End(pair, event, matrix.Delete());
    case Kind::kRename: {
      begin();
      const auto info = matrix.RenameAsync(NameOf(pair, 1 - of.name)).Wait();
      if (info.ok()) of.version = info->version;
      return End(pair, event, info.status());
    }
    case Kind::kInfo: {
      begin();
      const auto info = matrix.Info();
      if (info.ok()) {
        of.degree = static_cast<int>(info->nnz / kRows);
        versions_[name] = of.version = info->version;
      }
      return End(pair, event, info.status());
    }
    case Kind::kRead: {
      begin();
      const auto whole = matrix.Download();
      if (!whole.ok()) return End(pair, event, whole.status());
      const auto value = OneValue(std::get<std::vector<float>>(whole->values));
      if (!value.ok()) return value.status();
      of.degree = static_cast<int>(whole->nnz() / kRows);
      of.value = *value;
      const Content expected(of.degree, of.value);
      if (whole->row_offsets != expected.offsets || whole->column_indices != expected.columns) {
        return absl::InternalError("a pattern that nobody uploaded");
      }
      return End(pair, event, absl::OkStatus());
    }
    case Kind::kProduct: {
      std::vector<float> b(kRows * kWidth, 1.0F), c(kRows * kWidth, -1.0F);
      begin();
      const auto done = matrix.Spmm(DenseView(b.data(), kRows, kWidth),
                                    MutableDenseView(c.data(), kRows, kWidth));
      if (!done.ok()) return End(pair, event, done.status());
      const auto value = OneValue(c);
      if (!value.ok()) return value.status();
      of.degree = static_cast<int>(*value % kValueStep);
      if (of.degree == 0) return absl::InternalError(fmt::format("{} of no matrix", *value));
      of.value = *value / of.degree;
      return End(pair, event, absl::OkStatus());
    }
  }
  return absl::OkStatus();
}

absl::Status NodesClient::End(int pair, NodesEvent event, const absl::Status& status) {
  event.returned = NowNs();
  NodesModel::Operation& operation = event.operation;
  const bool changes = !NodesModel::OnlyLooks(operation);
  if (!status.ok()) last_refusal_ = status;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      operation.outcome = Outcome::kOk;
      break;
    case absl::StatusCode::kNotFound:
      operation.outcome = Outcome::kAbsent;
      break;
    case absl::StatusCode::kAlreadyExists:
      operation.outcome = Outcome::kExists;
      if ((operation.call == Kind::kUpload && !operation.replace) ||
          operation.call == Kind::kRename) {
        break;
      }
      return absl::InternalError(ToString(event, event.invoked) + ": " + status.ToString());
    // Nothing was changed, and nothing can be learned.
    case absl::StatusCode::kInvalidArgument:  // it was replaced between question and call
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
      ++shared_.refused;
      refusals_.push_back({pair, std::move(event), status});
      return absl::OkStatus();
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      ++shared_.refused;
      operation.outcome = Outcome::kUnknown;
      event.may_be_lost = true;
      if (!changes) return absl::OkStatus();
      ++unknown_;
      break;
    default:
      return absl::InternalError(ToString(event, event.invoked) + ": " + status.ToString());
  }
  if (operation.call == Kind::kUpload && operation.outcome == Outcome::kAbsent) {
    return absl::OkStatus();
  }
  if (changes && operation.outcome == Outcome::kOk) ++shared_.changed;
  histories_[static_cast<size_t>(pair)].push_back(std::move(event));
  return absl::OkStatus();
}

}  // namespace sparsed::test
