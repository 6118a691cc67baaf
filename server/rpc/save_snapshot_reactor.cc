// Admin.SaveSnapshot: what the data directory holds at one moment, piece by piece, so that it takes
// its turns on the workers and on the disk with everybody else.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/engine.h"
#include "engine/memory/budget.h"
#include "engine/retry.h"
#include "engine/store/snapshot.h"
#include "proto/wire/chunk_codec.h"
#include "proto/wire/snapshot_archive.h"
#include "server/rpc/admit.h"
#include "server/rpc/client_wait.h"
#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/reactors.h"
#include "server/rpc/worker_pool.h"
#include "server/telemetry/telemetry.h"
#include "sparsed/v1/admin.pb.h"

namespace sparsed::server {
namespace {

/// Of a reply.
constexpr size_t kPieceBytes = size_t{1} << 20;

/// A file that is made here.
struct TextFile {
  std::string_view name;
  std::string text;
  engine::Budget::Charge charge = nullptr;  ///< for the text, if there may be much of it
};

/// The archive of a snapshot, piece by piece.
class SnapshotBytes {
 public:
  SnapshotBytes(std::unique_ptr<engine::StoreSnapshot> snapshot, TextFile contents,
                const ServiceContext& service)
      : snapshot_(std::move(snapshot)),
        expected_bytes_(facts().array_bytes + static_cast<int64_t>(contents.text.size())) {
    const engine::SnapshotFacts& facts = snapshot_->facts();
    const nlohmann::ordered_json json = {{"format", wire::kSnapshotFormat},
                                         {"created_unix_ns", facts.created_unix_ns},
                                         {"server_version", SPARSED_VERSION},
                                         {"server_id", service.server_id},
                                         {"catalog_version", facts.schema_version},
                                         {"matrices", facts.matrices},
                                         {"patterns", facts.patterns},
                                         {"layouts", facts.layouts},
                                         {"buffers", facts.buffers},
                                         {"arrays", facts.arrays},
                                         {"array_bytes", facts.array_bytes}};
    texts_.push_back({wire::kSnapshotFacts, json.dump(2) + "\n"});
    texts_.push_back(std::move(contents));
  }

  const engine::SnapshotFacts& facts() const { return snapshot_->facts(); }
  int64_t expected_bytes() const { return expected_bytes_; }
  const std::vector<std::string>& damaged() const { return snapshot_->damaged(); }

  /// Empty after the last.
  absl::StatusOr<std::string> Next() {
    std::string piece;
    while (piece.size() < kPieceBytes && !ended_) {
      absl::Status status = open_ ? AddBytes(piece) : Begin(piece);
      if (!status.ok()) return status;
    }
    return piece;
  }

 private:
  /// Of the next file, or the archive's end.
  absl::Status Begin(std::string& piece) {
    if (texts_.empty()) {
      const auto file = snapshot_->Next();
      if (!file.ok()) return file.status();
      if (file->has_value()) {
        // With room for damaged.txt.
        if (writer_.files() >= wire::kMostSnapshotFiles - 1) {
          return absl::FailedPreconditionError(
              fmt::format("a snapshot holds {} files at most", wire::kMostSnapshotFiles));
        }
        piece += writer_.Begin((*file)->name, (*file)->bytes);
        open_ = true;
        return absl::OkStatus();
      }
      if (damaged().empty() || told_damage_) {
        const std::string end = writer_.Finish();
        ended_ = end.empty();
        piece += end;
        return absl::OkStatus();
      }
      told_damage_ = true;
      std::string lines;
      for (const std::string& sentence : damaged()) lines += sentence + "\n";
      texts_.push_back({wire::kSnapshotDamaged, std::move(lines)});
    }
    piece += writer_.Begin(texts_.front().name, static_cast<int64_t>(texts_.front().text.size()));
    open_ = true;
    return absl::OkStatus();
  }

  /// Of the open file, as many as there is room for.
  absl::Status AddBytes(std::string& piece) {
    const size_t begin = piece.size();
    const size_t room = kPieceBytes - begin;
    if (!texts_.empty()) {
      const std::string& text = texts_.front().text;
      piece.append(text, text_given_, room);
      text_given_ += piece.size() - begin;
    } else {
      piece.resize(kPieceBytes);
      const auto n = snapshot_->Read(std::as_writable_bytes(std::span(piece.data() + begin, room)));
      if (!n.ok()) return n.status();
      piece.resize(begin + *n);
    }
    writer_.Add(std::as_bytes(std::span(piece.data() + begin, piece.size() - begin)));
    if (piece.size() == kPieceBytes) return absl::OkStatus();
    piece += writer_.End();
    open_ = false;
    if (!texts_.empty()) texts_.pop_front();
    text_given_ = 0;
    return absl::OkStatus();
  }

  std::unique_ptr<engine::StoreSnapshot> snapshot_;
  const int64_t expected_bytes_;
  wire::SnapshotWriter writer_;
  std::deque<TextFile> texts_;
  size_t text_given_ = 0;  ///< of the first
  bool open_ = false;      ///< a file: the first text, or the store's
  bool told_damage_ = false;
  bool ended_ = false;
};

class SaveSnapshotReactor final : public BytesWriteReactor, public LiveStream {
 public:
  SaveSnapshotReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
                      absl::Status status, const Caller& caller, std::atomic<bool>& under_way)
      : LiveStream(caller),
        service_(service),
        context_(*context),
        under_way_(under_way),
        record_(service.telemetry.Begin(Op::kSaveSnapshot, caller, "")),
        tenant_(record_.tenant) {
    if (!service_.live_streams.Add(this)) {
      status = absl::UnavailableError("the server is shutting down");
    }
    if (status.ok()) {
      taking_ = !under_way_.exchange(true);
      if (!taking_) {
        status = engine::RetryLater(
            absl::ResourceExhaustedError("another snapshot is being taken; retry later"),
            std::chrono::seconds(10));
      }
    }
    if (status.ok()) {
      Queue();
    } else {
      Conclude(std::move(status));
    }
  }

  void OnWriteDone(bool ok) override {
    if (absl::Status status = delivery_.End(ok); !status.ok()) return Conclude(std::move(status));
    Queue();
  }
  void OnCancel() override { stop_ = true; }
  void OnRefused(const absl::Status& why) override { CancelCall(context_, why); }
  void OnDrain() override {
    draining_ = true;
    stop_ = true;
  }
  void OnTick(const Patience& patience) override {
    delivery_.Tick(patience, context_);
    if (waits_.exchange(false)) Queue();
  }
  void Count(InFlightTable& table) override {
    table[{Op::kSaveSnapshot, Activity::kSending}].Add(bytes_left_, begun_);
  }
  void OnDone() override {
    service_.live_streams.Remove(this);
    delete this;
  }

 private:
  /// The next piece on a worker; where others have filled their queue, at the next tick.
  void Queue() {
    const absl::Status queued = service_.workers.Run(tenant_, [this] {
      if (absl::Status status = Send(); !status.ok()) Conclude(std::move(status));
    });
    if (!queued.ok()) waits_ = true;
  }

  absl::Status Stopped() const {
    return draining_ ? absl::UnavailableError("the server is shutting down")
                     : absl::CancelledError("the reader is gone");
  }

  absl::Status Begin() {
    auto snapshot = service_.engine.Snapshot(&stop_);
    if (!snapshot.ok()) return stop_ ? Stopped() : snapshot.status();
    TextFile contents{wire::kSnapshotContents, (*snapshot)->TakeContents()};
    // It is of all tenants.
    auto charge =
        service_.engine.budget().Count(contents.text.size(), engine::MemoryUse::kRequests);
    if (!charge.ok()) return charge.status();
    contents.charge = *std::move(charge);
    bytes_.emplace(*std::move(snapshot), std::move(contents), service_);
    record_.parameters = fmt::format("matrices={} buffers={} arrays={}", bytes_->facts().matrices,
                                     bytes_->facts().buffers, bytes_->facts().arrays);
    bytes_left_ = bytes_->expected_bytes();
    return absl::OkStatus();
  }

  /// On a worker. Unless this fails, `this` may be gone afterwards.
  absl::Status Send() {
    if (stop_) return Stopped();
    v1::SaveSnapshotReply reply;
    if (!bytes_.has_value()) {
      if (absl::Status status = Begin(); !status.ok()) return status;
      reply.set_expected_bytes(bytes_->expected_bytes());
    }
    absl::StatusOr<std::string> piece = bytes_->Next();
    if (!piece.ok()) return piece.status();
    for (; damage_told_ < bytes_->damaged().size(); ++damage_told_) {
      service_.telemetry.metrics().OnDamage(bytes_->damaged()[damage_told_]);
    }
    if (piece->empty()) {
      service_.telemetry.metrics().OnSnapshot(static_cast<int64_t>(record_.stream_bytes_out));
      Conclude(absl::OkStatus());
      return absl::OkStatus();
    }
    record_.stream_bytes_out += piece->size();
    bytes_left_ = std::max<int64_t>(0, bytes_left_ - static_cast<int64_t>(piece->size()));
    reply.set_data(*std::move(piece));
    out_ = wire::Encode(reply);
    delivery_.Begin(bytes_left_, [this] { StartWrite(&out_); });
    return absl::OkStatus();
  }

  /// The terminal transition; `this` may be gone afterwards.
  void Conclude(absl::Status status) {
    bytes_.reset();
    if (taking_) under_way_ = false;
    record_.status = status;
    service_.telemetry.End(std::move(record_));
    EndCount();
    Finish(ToGrpc(status));
  }

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  std::atomic<bool>& under_way_;
  bool taking_ = false;  ///< this is the one
  StageRecord record_;
  const StageRecord::Clock::time_point begun_ = record_.begun;
  const std::string tenant_;
  std::optional<SnapshotBytes> bytes_;
  size_t damage_told_ = 0;
  grpc::ByteBuffer out_;
  Delivery delivery_;
  std::atomic<int64_t> bytes_left_ = 0;
  std::atomic<bool> waits_ = false;  ///< for room in the workers' queue
  std::atomic<bool> stop_ = false, draining_ = false;
};

}  // namespace

BytesWriteReactor* StartSaveSnapshot(const ServiceContext& service,
                                     grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer& bytes, std::atomic<bool>& under_way) {
  v1::SaveSnapshotRequest request;
  const absl::Status status = wire::ParseRequest(bytes, request);
  return ForCaller<BytesWriteReactor>(
      Op::kSaveSnapshot, service, *context, [&](const Caller& caller) {
        return new SaveSnapshotReactor(service, context, status, caller, under_way);
      });
}

}  // namespace sparsed::server
