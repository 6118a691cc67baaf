#include "tests/fault/calls/visitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "sparsed/attached.h"

namespace sparsed::test {
namespace {

/// Arrays of more than 128 KiB: those have pages of their own.
constexpr int64_t kRows = 40000;
constexpr CallOptions kPatience{.timeout = std::chrono::seconds(20)};
const ClientOptions kOptions{.connect_timeout = std::chrono::seconds(20)};

/// A diagonal.
struct Diagonal {
  std::vector<int64_t> offsets{0};
  std::vector<int32_t> columns;
  std::vector<float> values;

  explicit Diagonal(int64_t value) {
    for (int64_t row = 0; row < kRows; ++row) {
      columns.push_back(static_cast<int32_t>(row));
      offsets.push_back(row + 1);
    }
    values.assign(kRows, static_cast<float>(value));
  }
  CsrView View() const {
    return {.rows = kRows,
            .cols = kRows,
            .row_offsets = std::span<const int64_t>(offsets),
            .column_indices = columns,
            .values = std::span<const float>(values)};
  }
};

/// Of values that are all the same; -1 of others.
int64_t OneValue(std::span<const float> values) {
  if (values.empty()) return -1;
  const bool same =
      std::all_of(values.begin(), values.end(), [&](float value) { return value == values[0]; });
  return same ? static_cast<int64_t>(values[0]) : -1;
}

/// A product with ones in the caller's memory, or in memory shared with the server.
template <typename Multiplier>
absl::StatusOr<int64_t> Multiply(const Multiplier& by) {
  const std::vector<float> b(kRows, 1.0F);
  std::vector<float> c(kRows, -1.0F);
  const auto done =
      by.Spmm(DenseView(b.data(), kRows, 1), MutableDenseView(c.data(), kRows, 1), {}, kPatience);
  if (!done.ok()) return done.status();
  return OneValue(c);
}

absl::StatusOr<int64_t> MultiplyShared(const Client& client, const std::string& name) {
  const auto b = client.AllocateShared(kRows, 1), c = client.AllocateShared(kRows, 1);
  if (!b.ok()) return b.status();
  if (!c.ok()) return c.status();
  std::fill_n(static_cast<float*>(b->data()), kRows, 1.0F);
  const auto done = client.MatrixNamed(name).Spmm(b->ConstView(), c->View(), {}, kPatience);
  if (!done.ok()) return done.status();
  return OneValue({static_cast<const float*>(c->data()), static_cast<size_t>(kRows)});
}

absl::StatusOr<int64_t> Download(const Client& client, const std::string& name) {
  const auto matrix = client.MatrixNamed(name).Download(kPatience);
  if (!matrix.ok()) return matrix.status();
  const Diagonal expected(0);
  if (matrix->row_offsets != expected.offsets || matrix->column_indices != expected.columns) {
    return -1;
  }
  return OneValue(std::get<std::vector<float>>(matrix->values));
}

}  // namespace

void Visitor::Note(const std::string& what, const absl::Status& status,
                   std::vector<absl::Status>& failed) {
  if (status.ok()) return;
  failed.push_back(absl::Status(status.code(), what + ": " + std::string(status.message())));
  if (absl::IsDeadlineExceeded(status)) mistakes_.push_back(what + ": no answer");
  if (status.message().empty()) mistakes_.push_back(what + ": an error without a sentence");
}

void Visitor::Change(const std::string& what, const std::string& name, int64_t value,
                     const absl::Status& status, std::vector<absl::Status>& failed) {
  std::set<int64_t>& may_be = matrices_[name];
  if (may_be.empty()) may_be.insert(0);
  if (status.ok()) may_be.clear();
  may_be.insert(value);
  Note(what, status, failed);
}

absl::Status Visitor::PutOld(const std::string& address, int64_t value) {
  const auto client = Client::Connect(address, kOptions);
  if (!client.ok()) return client.status();
  const auto old = client->Upload("old", Diagonal(value).View());
  return old.ok() ? old->WaitReady() : old.status();
}

std::vector<absl::Status> Visitor::Visit(const std::string& address) {
  std::vector<absl::Status> failed;
  const auto client = Client::Connect(address, kOptions);
  Note("connect", client.status(), failed);
  if (!client.ok()) return failed;
  const auto see = [&](const std::string& what, const std::string& name,
                       const absl::StatusOr<int64_t>& value) {
    if (value.ok() && !matrices_[name].contains(*value)) {
      mistakes_.push_back(fmt::format("{}: {}", what, *value));
    }
    const bool may_be_gone = matrices_[name].empty() || matrices_[name].contains(0);
    if (absl::IsNotFound(value.status()) && !may_be_gone) {
      mistakes_.push_back(what + ": it is gone");
    }
    if (!absl::IsNotFound(value.status()) || !may_be_gone) Note(what, value.status(), failed);
  };
  see("download", "old", Download(*client, "old"));

  int64_t value = next_value_++;
  Change("upload", "a", value,
         client->Upload("a", Diagonal(value).View(), {.replace = true}, kPatience).status(),
         failed);
  see("product", "a", Multiply(client->MatrixNamed("a")));
  value = next_value_++;
  const std::vector<float> values(kRows, static_cast<float>(value));
  const auto updated = client->MatrixNamed("a").UpdateValues(std::span<const float>(values),
                                                             {.durable = true}, kPatience);
  // Of a matrix that is not there nothing can change.
  if (!absl::IsNotFound(updated.status())) Change("update", "a", value, updated.status(), failed);

  value = next_value_++;
  Change("upload", "b", value,
         client->Upload("b", Diagonal(value).View(), {.replace = true}, kPatience).status(),
         failed);
  const absl::Status deleted = client->MatrixNamed("b").Delete(kPatience);
  if (!absl::IsNotFound(deleted)) Change("delete", "b", 0, deleted, failed);

  std::vector<float> held(kRows, static_cast<float>(next_value_++));
  const auto put =
      client->PutDense("c", DenseView(held.data(), kRows, 1), {.durable = true}, kPatience);
  Note("put", put.status(), failed);
  if (put.ok()) {
    std::vector<float> read(kRows);
    const auto info = put->Read(MutableDenseView(read.data(), kRows, 1), kPatience);
    Note("read", info.status(), failed);
    if (info.ok() && read != held) mistakes_.push_back("read: other values than were put");
  }

  see("product in shared memory", "a", MultiplyShared(*client, "a"));
  ClientOptions with_ring = kOptions;
  with_ring.ring = true;
  const auto ring = Client::Connect(address, with_ring);
  Note("connect with a ring", ring.status(), failed);
  if (ring.ok()) see("product through the ring", "a", MultiplyShared(*ring, "a"));
  const auto attached = AttachedMatrix::Attach(*client, "old", {.threads = 1});
  Note("attach", attached.status(), failed);
  if (attached.ok()) see("attached product", "old", Multiply(*attached));
  see("download", "a", Download(*client, "a"));
  return failed;
}

std::vector<absl::Status> Visitor::CheckStored(const std::string& address) const {
  std::vector<absl::Status> wrong;
  const auto client = Client::Connect(address, kOptions);
  if (!client.ok()) return {client.status()};
  for (const auto& [name, may_be] : matrices_) {
    const auto value = Download(*client, name);
    if (absl::IsNotFound(value.status()) && may_be.contains(0)) continue;
    if (!value.ok()) {
      wrong.push_back(value.status());
    } else if (!may_be.contains(*value)) {
      wrong.push_back(absl::DataLossError(fmt::format("'{}' is {}", name, *value)));
    }
  }
  return wrong;
}

}  // namespace sparsed::test
