#include "tests/fault/history/recording_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

namespace sparsed::test {
namespace {

using Call = CatalogModel::Call;
using Outcome = CatalogModel::Outcome;

constexpr int64_t kRows = 300;
constexpr int kMostDegree = 4;
constexpr int64_t kWidth = 2;

/// `degree` nonzeros in each row. A value times a degree is a whole number that f32 has exactly.
struct Content {
  std::vector<int64_t> offsets;
  std::vector<int32_t> columns;
  std::vector<float> values;

  Content(int degree, int64_t value) : offsets{0} {
    for (int64_t row = 0; row < kRows; ++row) {
      for (int i = 0; i < degree; ++i) {
        columns.push_back(static_cast<int32_t>(row % (kRows / kMostDegree)) +
                          i * static_cast<int32_t>(kRows / kMostDegree));
      }
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
  const auto other =
      std::find_if(values.begin(), values.end(), [&](float v) { return v != values[0]; });
  if (other == values.end()) return static_cast<int64_t>(values[0]);
  return absl::InternalError(fmt::format("{} at 0 and {} at {}: of two matrices", values[0], *other,
                                         other - values.begin()));
}

}  // namespace

const char* Name(Way way) {
  switch (way) {
    case Way::kStream:
      return "stream";
    case Way::kShared:
      return "shared memory";
    case Way::kRing:
      return "ring";
    case Way::kAttached:
      return "attached";
  }
  return "?";
}

int64_t NowNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

RecordingClient::RecordingClient(Shared& shared, int number, Way way, uint32_t seed, Client client,
                                 std::map<std::string, CatalogHistory>& histories)
    : shared_(shared),
      number_(number),
      way_(way),
      random_(seed),
      client_(std::move(client)),
      histories_(histories) {}

absl::Status RecordingClient::Run(Shared& shared, int number, Way way, uint32_t seed,
                                  std::map<std::string, CatalogHistory>& histories) {
  // One attempt: a call takes effect once, while it lasts.
  const ClientOptions options{.max_attempts = 1, .ring = way == Way::kRing};
  auto connected = Client::Connect(shared.address, options);
  // The server may be gone already.
  while (absl::IsUnavailable(connected.status()) && !shared.ending) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    connected = Client::Connect(shared.address, options);
  }
  if (absl::IsUnavailable(connected.status())) return absl::OkStatus();
  if (!connected.ok()) return connected.status();
  RecordingClient client(shared, number, way, seed, *std::move(connected), histories);
  while (!shared.ending) {
    if (!shared.serving || !client.Reaches()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    if (absl::Status status = client.Once(); !status.ok()) {
      return absl::InternalError(
          fmt::format("client {} ({}): {}", number, Name(way), std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

bool RecordingClient::Reaches() {
  if (!reaches_) reaches_ = client_.ListMatrices().ok();
  return reaches_;
}

absl::Status RecordingClient::Once() {
  const std::string& name = shared_.names[random_() % shared_.names.size()];
  const uint32_t what = random_() % 100;
  if (what < 20) return Upload(name);
  if (what < 40) return Update(name);
  if (what < 50) return Delete(name);
  if (what < 60) return Info(name);
  if (what < 75) return Read(name);
  return Product(name);
}

CatalogEvent RecordingClient::Begin(Call call) const {
  CatalogEvent event;
  event.client = number_;
  event.operation.call = call;
  event.operation.way = Name(Way::kStream);
  event.invoked = NowNanoseconds();
  return event;
}

absl::Status RecordingClient::End(const std::string& name, CatalogEvent event,
                                  const absl::Status& status) {
  event.returned = NowNanoseconds();
  CatalogModel::Operation& operation = event.operation;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      operation.outcome = Outcome::kOk;
      break;
    case absl::StatusCode::kNotFound:
      // Also of a pattern that was to be known.
      operation.outcome = operation.call == Call::kUpload ? Outcome::kNothing : Outcome::kAbsent;
      break;
    case absl::StatusCode::kAlreadyExists:
      operation.outcome = Outcome::kExists;
      break;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kResourceExhausted:
      operation.outcome = Outcome::kNothing;
      break;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      operation.outcome = Outcome::kUnknown;
      event.may_be_lost = true;
      reaches_ = false;
      break;
    default:
      return absl::InternalError(ToString(event, event.invoked) + ": " + status.ToString());
  }
  if (operation.outcome == Outcome::kExists &&
      (operation.call != Call::kUpload || operation.replace)) {
    return absl::InternalError(ToString(event, event.invoked) + ": " + status.ToString());
  }
  // Nothing can be learned of those.
  if (operation.outcome == Outcome::kNothing) return absl::OkStatus();
  if (event.may_be_lost && CatalogModel::OnlyLooks(operation)) return absl::OkStatus();
  histories_[name].push_back(std::move(event));
  return absl::OkStatus();
}

absl::Status RecordingClient::Upload(const std::string& name) {
  UploadOptions options;
  options.replace = random_() % 3 != 0;
  const int degree = 1 + static_cast<int>(random_() % kMostDegree);
  const int64_t value = shared_.next_value++;
  const Content content(degree, value);
  if (random_() % 3 == 0) {
    // Perhaps the server need not be sent the pattern.
    const auto info = client_.MatrixNamed(name).Info();
    if (info.ok() && info->nnz == kRows * degree) options.pattern_hash = info->pattern_hash;
  }
  CatalogEvent event = Begin(Call::kUpload);
  event.operation.degree = degree;
  event.operation.value = value;
  event.operation.replace = options.replace;
  const absl::Status status = client_.Upload(name, content.View(), options).status();
  return End(name, std::move(event), status);
}

absl::Status RecordingClient::Update(const std::string& name) {
  // The length is the matrix's: what is there now is asked for first.
  const auto info = client_.MatrixNamed(name).Info();
  if (!info.ok()) return absl::OkStatus();
  UpdateOptions options;
  options.durable = random_() % 2 == 0;
  if (random_() % 4 == 0) {
    options.if_version = random_() % 2 == 0 ? info->version : versions_[name];
  }
  const int64_t value = shared_.next_value++;
  const auto length = static_cast<size_t>(info->nnz);
  std::vector<float> own(length, static_cast<float>(value));
  std::span<const float> values(own);
  absl::StatusOr<SharedBytes> bytes = absl::CancelledError();
  if (way_ != Way::kStream) {
    bytes = client_.AllocateSharedBytes(length * sizeof(float));
    if (bytes.ok()) {
      auto* const data = static_cast<float*>(bytes->data());
      std::copy(own.begin(), own.end(), data);
      values = {data, length};
    }
  }
  CatalogEvent event = Begin(Call::kUpdate);
  event.operation.value = value;
  event.operation.durable = options.durable;
  event.operation.if_version = options.if_version;
  if (bytes.ok()) event.operation.way = Name(Way::kShared);
  const auto version = client_.MatrixNamed(name).UpdateValues(values, options);
  if (version.ok()) versions_[name] = event.operation.version = *version;
  // It was replaced between the question and the call.
  if (absl::IsInvalidArgument(version.status())) return absl::OkStatus();
  return End(name, std::move(event), version.status());
}

absl::Status RecordingClient::Delete(const std::string& name) {
  CatalogEvent event = Begin(Call::kDelete);
  const absl::Status status = client_.MatrixNamed(name).Delete();
  return End(name, std::move(event), status);
}

absl::Status RecordingClient::Info(const std::string& name) {
  CatalogEvent event = Begin(Call::kInfo);
  if (random_() % 2 == 0) {
    const auto list = client_.ListMatrices(name);
    if (!list.ok()) return End(name, std::move(event), list.status());
    event.operation.way = "list";
    for (const MatrixInfo& info : *list) {
      if (info.name != name) continue;
      event.operation.degree = static_cast<int>(info.nnz / kRows);
      event.operation.version = info.version;
      return End(name, std::move(event), absl::OkStatus());
    }
    return End(name, std::move(event), absl::NotFoundError("not in the list"));
  }
  const auto info = client_.MatrixNamed(name).Info();
  if (info.ok()) {
    event.operation.degree = static_cast<int>(info->nnz / kRows);
    event.operation.version = info->version;
    versions_[name] = info->version;
  }
  return End(name, std::move(event), info.status());
}

absl::Status RecordingClient::Read(const std::string& name) {
  CatalogEvent event = Begin(Call::kRead);
  const auto matrix = client_.MatrixNamed(name).Download();
  if (matrix.ok()) {
    const auto value = OneValue(std::get<std::vector<float>>(matrix->values));
    if (!value.ok()) return value.status();
    event.operation.degree = static_cast<int>(matrix->nnz() / kRows);
    event.operation.value = *value;
    const Content expected(event.operation.degree, *value);
    if (matrix->row_offsets != expected.offsets || matrix->column_indices != expected.columns) {
      return absl::InternalError("a pattern that nobody uploaded");
    }
  }
  return End(name, std::move(event), matrix.status());
}

absl::StatusOr<int64_t> RecordingClient::Multiply(const std::string& name) {
  std::vector<float> own_b(kRows * kWidth, 1.0F), own_c(kRows * kWidth, -1.0F);
  if (way_ == Way::kStream) {
    const auto done = client_.MatrixNamed(name).Spmm(DenseView(own_b.data(), kRows, kWidth),
                                                     MutableDenseView(own_c.data(), kRows, kWidth));
    if (!done.ok()) return done.status();
    return OneValue(own_c);
  }
  if (way_ == Way::kAttached) {
    const AttachedMatrix& attached = attached_.at(name);
    const int64_t before = attached.runs();
    const auto done = attached.Spmm(DenseView(own_b.data(), kRows, kWidth),
                                    MutableDenseView(own_c.data(), kRows, kWidth));
    if (!done.ok()) return done.status();
    shared_.attached_runs += attached.runs() - before;
    return OneValue(own_c);
  }
  const auto b = client_.AllocateShared(kRows, kWidth), c = client_.AllocateShared(kRows, kWidth);
  if (!b.ok()) return b.status();
  if (!c.ok()) return c.status();
  std::copy(own_b.begin(), own_b.end(), static_cast<float*>(b->data()));
  const auto done = client_.MatrixNamed(name).Spmm(b->ConstView(), c->View());
  if (!done.ok()) return done.status();
  return OneValue({static_cast<const float*>(c->data()), own_c.size()});
}

absl::Status RecordingClient::Product(const std::string& name) {
  if (way_ == Way::kAttached && !attached_.contains(name)) {
    auto attached = AttachedMatrix::Attach(client_, name, {.threads = 1});
    if (absl::IsNotFound(attached.status()) || absl::IsUnavailable(attached.status())) {
      return absl::OkStatus();
    }
    if (!attached.ok()) return attached.status();
    attached_.emplace(name, *std::move(attached));
  }
  CatalogEvent event = Begin(Call::kProduct);
  event.operation.way = Name(way_);
  const absl::StatusOr<int64_t> sum = Multiply(name);
  if (absl::IsInternal(sum.status())) return sum.status();
  if (sum.ok()) event.operation.value = *sum;
  return End(name, std::move(event), sum.status());
}

}  // namespace sparsed::test
