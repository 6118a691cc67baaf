// A server's part in a cluster: who the other nodes are, who has which matrix, and who serves what.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "server/cluster/copies.h"
#include "server/cluster/directory.h"
#include "server/cluster/matrix_records.h"
#include "server/cluster/record.h"
#include "server/cluster/transport.h"
#include "sparsed/v1/catalog.pb.h"

namespace sparsed::server {

/// The detail of a status that ended what is not to be asked of a matrix in shards: its name and
/// sizes, as a sparsed.v1.MatrixInfo. Not its shards, of which there may be more than fit a header.
using wire::kInShardsUrl;
/// Whether the status has it.
bool IsInShards(const absl::Status& status);

struct ShardName;
struct ShardRows;

/// Bytes of rows that go from node to node, and of those that are copied on one.
struct RowTraffic {
  std::atomic<int64_t> received = 0, sent = 0, copied = 0;
};

/// Thread-safe. What the directory holds is known here from a watch of it, so that to route a
/// request asks nobody; what it says of a change reaches other nodes within milliseconds.
class Cluster {
 public:
  struct Options {
    NodeRecord self;
    int replicas = 1;                   ///< nodes that have each matrix, if there are so many
    int64_t copy_bytes_per_second = 0;  ///< of copies that are made again; 0: as fast as it goes
    int threads = 1;                    ///< for a copy that arrives
    /// That what is known of the directory may be old when reads are served by it; 0: no bound.
    std::chrono::duration<double> staleness{0};
    /// For so long nodes have to stay the same before matrices move to those that placement names
    /// by now; 0: they stay.
    std::chrono::duration<double> settle{0};
    /// For so long shards of no matrix are kept; one can be made of them in the first half of it.
    std::chrono::milliseconds stray_patience = std::chrono::hours(24);
    Peers::Options peers;
  };
  struct Node {
    NodeRecord record;
    bool alive = false, draining = false;
    int64_t matrices = 0, copies = 0;
  };
  struct Counts {
    int64_t redirects = 0;
    int64_t directory_errors = 0;
    int64_t copies_made = 0, copies_failed = 0, copy_bytes = 0;
    double copy_seconds = 0;
    /// That matrices of this node have fewer of, on nodes that are there, than ReplicasOf them.
    int64_t copies_missing = 0;
    int64_t takeovers = 0;
    int64_t moves = 0;          ///< of copies, to nodes that placement names by now
    int64_t moves_waiting = 0;  ///< of matrices, now, the one under way included
    int64_t in_shards = 0;      ///< matrices of the cluster
    /// Of operands' rows that came from other nodes, and went to them.
    int64_t row_bytes_received = 0, row_bytes_sent = 0;
    int64_t row_bytes_copied = 0;  ///< of this node's own, into operands
    int64_t shards_dropped = 0;    ///< of this node: their matrix is gone, or never came
    double directory_silence = 0;  ///< seconds since the directory answered
    double view_age = 0;           ///< seconds since which what is known may have changed
  };
  struct Forgotten {
    int64_t records = 0;  ///< that named the node
    int64_t lost = 0;     ///< of these, of matrices that it alone had
  };
  /// What a matrix in shards is made of.
  struct Shards {
    int64_t rows = 0, cols = 0;
    std::string upload;
    int count = 0;
    bool partitioned = false;
  };
  /// Of a matrix that a change makes.
  struct Wishes {
    /// How many nodes are to have it, up to kMostReplicas; 0: as Options say; none: as many as that
    /// which it replaces, else 0.
    std::optional<int> replicas = std::nullopt;
    std::string placed_by = {};  ///< of a new one: PlacedBy
  };
  enum class Need : uint8_t {
    kRead,   ///< any node that has what is current
    kChange  ///< its owner
  };

  /// Registers the node, and knows who else is there when it returns. UNAVAILABLE without a
  /// directory; ALREADY_EXISTS if another server, elsewhere, has that name and is alive. One that
  /// loses its place later, to a server that was started in it or because it was forgotten, serves
  /// nothing from then on.
  /// `on_changed` is told what a copy that arrived, or was dropped, changed here.
  static absl::StatusOr<std::unique_ptr<Cluster>> Join(
      Options options, std::unique_ptr<Directory> directory, engine::Engine& engine,
      std::function<void(const std::string& tenant, const std::string& name)> on_changed);
  ~Cluster();
  /// Leaves at once: its lease ends, so that others take over, and what waits for them fails. What
  /// clients ask is answered from what was known last.
  void Leave();

  const NodeRecord& self() const { return options_.self; }

  /// OK: it is to be served here, or it is nowhere. FAILED_PRECONDITION with a redirect;
  /// UNAVAILABLE if no node that has it is there, or it is a change and the directory is away. Asks
  /// the directory of a change of what is not known to be there.
  absl::Status Route(std::string_view tenant, std::string_view reference, Need need);
  /// The same of what is computed with several matrices: FAILED_PRECONDITION without a redirect if
  /// they are not on one node.
  absl::Status RouteAll(std::string_view tenant, const std::vector<std::string>& references);
  /// Of an upload: to who owns the name; of a new name, to who has a matrix of the tenant's with
  /// that pattern, or whom placement names for the pattern's hash; without a hash, for the name.
  /// UNAVAILABLE if it is known and no node that has it is there.
  absl::Status RouteUpload(const std::string& tenant, const std::string& name,
                           const std::string& pattern_hash);
  /// What RouteUpload went by, for the record of a new matrix; empty for a shard, whose place is
  /// its upload's.
  std::string PlacedBy(const std::string& tenant, const std::string& name,
                       const std::string& pattern_hash) const;
  /// FAILED_PRECONDITION if another node owns the name. What is made of it here has a version that
  /// nobody has used, as far as is known.
  absl::Status CheckFree(const std::string& tenant, const std::string& name);

  // Buffers of matrices in shards: the rows of each shard are a buffer at the node that owns it.

  /// OK: what is of that name is to be here, or it is a buffer by itself. FAILED_PRECONDITION with
  /// a redirect; NOT_FOUND if the tenant has no such shard; UNAVAILABLE if its owner is not there.
  absl::Status RouteBuffer(const std::string& tenant, std::string_view buffer);
  /// FAILED_PRECONDITION if it is of such a name, and not here.
  absl::Status CheckBuffer(const std::string& tenant, std::string_view buffer) const;
  /// What lies around a buffer of that shape in operands, if it is rows of an operand that are a
  /// shard's, and products are to multiply with them where they lie. May read the disk.
  absl::StatusOr<engine::Halo> HaloOf(const std::string& tenant, std::string_view buffer,
                                      const engine::DenseShape& shape);
  /// If `operand` names the rows of a buffer that are the shard `matrix`'s: makes it those rows of
  /// all of the buffer that are the shard's columns, in their order, and waits for those that come
  /// from other nodes. Where the buffer has room for these, they are asked for once for each of its
  /// versions, and none of its own is copied. INVALID_ARGUMENT, FAILED_PRECONDITION, UNAVAILABLE;
  /// CANCELLED soon after `stopped` says so, which is asked often.
  absl::Status GatherOperand(const std::string& tenant, const std::string& matrix,
                             engine::OperandSpec& operand, const std::function<bool()>& stopped);
  /// Such bytes go to another node.
  void CountRowsSent(int64_t bytes) { rows_.sent += bytes; }

  /// What is here of that name is to be dropped: it stands in nobody's way.
  bool IsDropped(const engine::NameKey& key) const;
  /// Its time to live was over, and it is gone here: so it is everywhere soon, if it was this
  /// node's.
  void Expired(const std::string& tenant, const std::string& name);

  // What follows may block for as long as a copy takes. Nothing else, such as a copy that arrives,
  // changes the matrix of that name here from before `change` until it returns.

  /// Makes a matrix, or changes one, in the catalog.
  using LocalChange = std::function<absl::StatusOr<engine::MatrixLease>()>;
  /// Calls `change` if this node may make it, has the directory know, and returns when all copies
  /// are made, durably. `change`'s errors; FAILED_PRECONDITION with a redirect if another node
  /// owned the matrix before it was called, ABORTED if one owns it by now; UNAVAILABLE: it may be
  /// changed here, and may be elsewhere later.
  absl::StatusOr<engine::MatrixLease> Change(const engine::NameKey& key, const LocalChange& change,
                                             const Wishes& wishes);
  absl::StatusOr<engine::MatrixLease> Change(const engine::NameKey& key,
                                             const LocalChange& change) {
    return Change(key, change, Wishes());
  }
  /// Likewise, of one that `change` gives another name, the same tenant's: the directory knows both
  /// names' changes at once.
  absl::StatusOr<engine::MatrixLease> Rename(const engine::NameKey& from, const engine::NameKey& to,
                                             const LocalChange& change);
  /// Likewise, of one that `change` makes of what is here of `from`, which is an acknowledged
  /// version and stays one meanwhile. UNAVAILABLE if it is not.
  absl::StatusOr<engine::MatrixLease> Copy(const engine::NameKey& from, const engine::NameKey& to,
                                           const LocalChange& change);
  /// A product has made it here, as CheckFree allowed: has the directory know, and returns when all
  /// copies are made. ABORTED if another node owns the name by now: it is dropped here. UNAVAILABLE
  /// as of Change.
  absl::Status Enter(const engine::NameKey& key);
  /// It is nowhere from now on, and then it is deleted here. The catalog's errors; ABORTED,
  /// UNAVAILABLE.
  absl::Status Delete(const engine::NameKey& key);
  /// Enters a matrix that is made of shards, all of which are there. NOT_FOUND, INVALID_ARGUMENT
  /// (they do not fit together), ALREADY_EXISTS, FAILED_PRECONDITION (one of that name is in no
  /// shards, or a shard is old), UNAVAILABLE, ABORTED.
  absl::StatusOr<MatrixRecord> MakeSharded(const engine::NameKey& key, const Shards& shards,
                                           bool replace);
  /// Of one in shards, and so of these: its name, or whom it is shared with, in the directory
  /// alone. NOT_FOUND, ALREADY_EXISTS, UNAVAILABLE, ABORTED.
  absl::StatusOr<MatrixRecord> RenameSharded(const engine::NameKey& from,
                                             const engine::NameKey& to);
  absl::StatusOr<MatrixRecord> ShareSharded(const engine::NameKey& key, const engine::Share& share,
                                            bool revoke);
  /// Whom it is shared with; of a shard, whom its matrix is, for reading.
  std::vector<engine::Share> SharesOf(const MatrixRecord& record) const;
  /// The name of the matrix that this one is a shard of; empty: of none.
  std::string WholeOf(const engine::NameKey& key) const;
  /// Adds the names of nodes that have copies, each once, and which of them are not there.
  void AddNodes(const std::vector<MatrixCopy>& copies, v1::MatrixInfo& info) const;
  /// What the directory knows of it, for a caller of tenant `looks`.
  v1::MatrixInfo InfoOf(const MatrixRecord& record, std::string_view looks) const;

  /// Has the cluster look at what is here soon: something changed by itself.
  void LookSoon();
  /// What another node asks for.
  absl::StatusOr<v1::CopyHereReply> CopyHere(const v1::CopyHereRequest& request);

  /// By name.
  std::vector<Node> Nodes() const;
  /// Addresses of nodes that are there, this one's included.
  std::vector<std::string> Addresses() const;
  /// Empty, or what is wrong with the directory.
  std::string Problem() const;
  /// NOT_FOUND; UNAVAILABLE. How many matrices it still owns.
  absl::StatusOr<int64_t> Drain(const std::string& node, bool undo);
  /// Takes a node that does not come back out of all records; what it alone has is deleted, if
  /// `lose`. FAILED_PRECONDITION if it is there, or has something alone; NOT_FOUND; UNAVAILABLE.
  absl::StatusOr<Forgotten> Forget(const std::string& node, bool lose);
  /// How many fewer nodes than ReplicasOf it have it and are there; 0 of what is not known.
  int CopiesMissing(const engine::NameKey& key) const;
  /// How many nodes are to have it, if there are so many: its own number, or Options::replicas. Of
  /// a matrix in shards that of its shards.
  int ReplicasOf(const MatrixRecord& record) const;
  /// Likewise, Options::replicas of what is not known.
  int ReplicasOf(const engine::NameKey& key) const;
  /// Of a tenant's matrices, or of all tenants' (none), by key.
  std::vector<MatrixRecord> Records(const std::optional<std::string>& tenant) const;
  std::optional<MatrixRecord> RecordOf(const engine::NameKey& key) const;
  Counts counts() const;

 private:
  struct Known {
    MatrixRecords matrices;
    std::map<std::string, NodeRecord> nodes;  ///< that are alive
    std::set<std::string> draining;
  };
  /// A matrix that somebody changes or copies; others wait.
  class Busy;

  Cluster(Options options, std::unique_ptr<Directory> directory, engine::Engine& engine,
          std::function<void(const std::string&, const std::string&)> on_changed);

  // The node's threads.
  void KeepLease(const std::stop_token& stop);
  void Follow(const std::stop_token& stop);
  void Settle(const std::stop_token& stop);
  /// False once `stop` is requested.
  bool Sleep(const std::stop_token& stop, std::chrono::milliseconds time);

  absl::Status Register(bool first);
  /// Tells when the next watch begins.
  absl::Status Load();
  absl::Status Reload(const engine::NameKey& key);
  void TakeLocked(const Directory::Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The directory is, or was, at that revision.
  void SawLocked(int64_t revision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    highest_revision_ = std::max(highest_revision_, revision);
  }
  /// Writes this node's record, and knows by when the watch brings it back how old the view is.
  /// ABORTED if it is not this node's any more.
  absl::Status Beat();
  int CopiesMissingLocked(const MatrixRecord& record) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// `status` of asking the directory.
  void Note(const absl::Status& status);

  absl::Status Redirect(std::string_view reference, std::vector<std::string> nodes, uint64_t epoch);
  bool IsCurrentHere(const MatrixRecord& record) const;
  bool IsMine(const MatrixRecord& record) const {
    return !record.deleted && record.owner() == options_.self.name;
  }
  /// The directory is silent for so long that leases of nodes that are there may have ended.
  bool IsSilentLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsAliveLocked(const std::string& node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return known_.nodes.contains(node);
  }
  /// It is there, and is not being drained.
  bool StaysLocked(const std::string& node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return IsAliveLocked(node) && !known_.draining.contains(node);
  }
  /// Copies of the present version on nodes that stay.
  size_t LastingCopiesLocked(const MatrixRecord& record) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// This node as it is now.
  NodeRecord Self() const;
  bool IsAlive(const std::string& node) const {
    const MutexLock lock(mutex_);
    return IsAliveLocked(node);
  }
  std::vector<std::string> PlacementLocked(std::string_view key) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Of a matrix with that pattern: by its hash, or its name where there is none; of a shard by the
  /// others of its upload, so that each is on another node, if there are so many.
  std::vector<std::string> PlacementLocked(const engine::NameKey& key,
                                           std::string_view pattern_hash) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int ReplicasOfLocked(const MatrixRecord& record) const {
    return record.replicas > 0 ? record.replicas : options_.replicas;
  }
  std::vector<std::string> PlacementLocked(const MatrixRecord& record) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// How many copies a matrix should have, by the nodes that may have some.
  size_t WantedCopies(const MatrixRecord& record) const;
  /// Writes the record in the place of what it was read from, and knows it then.
  absl::Status Write(MatrixRecord& record);
  absl::Status Erase(const MatrixRecord& record);

  // With the matrix busy.
  absl::StatusOr<engine::MatrixLease> ChangeBusy(Busy& busy, const engine::NameKey& key,
                                                 const LocalChange& change, const Wishes& wishes);
  /// What is new here: until the directory and the nodes that are to have copies know.
  absl::Status TellBusy(const engine::NameKey& key);
  /// A redirect, if a node that is there owns it by now: it was handed over while a change waited,
  /// of which nothing is done yet.
  absl::Status IfMoved(const engine::NameKey& key);
  /// Whether this node may change it, which it can then, to a version that nobody has used.
  absl::Status MayChange(const engine::NameKey& key);
  /// Of a matrix that this node owns by its record: what the record says of it counts until this
  /// was OK, and what this node makes of it counts from then on. UNAVAILABLE if others have what is
  /// current: they own it then.
  absl::Status Own(MatrixRecord record);
  /// In the record: others own it, if others have it.
  bool GiveUp(MatrixRecord& record) const;
  absl::Status PublishBusy(const engine::NameKey& key);
  /// Sets what the record says of a version that is here, and that nobody else has yet.
  void Describe(const engine::Matrix& here, MatrixRecord& record) const;
  absl::Status WithdrawBusy(const engine::NameKey& key);
  /// As deleted: all nodes but this one are to drop it.
  void MarkDeleted(MatrixRecord& record) const;
  /// What was made here of a name that another node has.
  void DropLoser(const engine::NameKey& key);
  /// Nodes that are to have copies of this one's matrix.
  std::vector<std::string> TargetsFor(const MatrixRecord& record) const;
  /// Copies to other nodes until there are enough; to `to`, if it is given, though there are.
  absl::Status Replicate(const engine::NameKey& key, bool background, const std::string& to = {});
  /// Another node that has it and stays is its owner, and this one has no copy of it any more.
  absl::Status HandOver(MatrixRecord record);
  /// A copy that is to be made, or that there is too much of when all are made; one of them is
  /// empty.
  struct Move {
    std::string to, from;
  };
  /// Of a matrix of this node. None: it is where it belongs, or it is not the time to move it.
  std::optional<Move> MoveOf(const MatrixRecord& record) const;
  /// Makes the copies that it is to have, and drops one that there is too much of.
  absl::Status MoveBusy(const engine::NameKey& key);
  /// Its owner is gone.
  void TakeOver(MatrixRecord record);
  void SettleMatrix(const MatrixRecord& record);
  void SettleMine(MatrixRecord record);
  /// This node is drained, and others have enough copies.
  bool IsSpare(const MatrixRecord& record) const;
  void SettleDeleted(MatrixRecord record);
  /// Takes a name that is free before the disk has it; of a new matrix `from` is `to`, too.
  absl::Status Reserve(const engine::NameKey& from, const engine::NameKey& to);
  /// It is free again; what is here of it goes.
  void Unreserve(const engine::NameKey& to);
  /// Both names at once: the disk has it by the new one. ABORTED: others have one of them by now.
  absl::Status PublishRenamed(const engine::NameKey& from, const engine::NameKey& to,
                              const engine::Matrix& made);
  // Matrices in shards.

  /// FAILED_PRECONDITION, with kInShardsUrl.
  absl::Status InShardsError(std::string_view tenant, std::string_view reference,
                             const MatrixRecord& record) const;
  /// Its record; NOT_FOUND; INVALID_ARGUMENT unless its sizes are these (-1: whatever they are).
  absl::StatusOr<MatrixRecord> PartOf(const engine::NameKey& key, int64_t rows, int64_t cols);
  /// The record of a matrix that is made of these; it is not written. MakeSharded's errors.
  absl::StatusOr<MatrixRecord> Assemble(const engine::NameKey& key, const Shards& shards);
  /// The shards of a record that is no more, or another, are no matrix's from now on.
  void RetireLocked(const MatrixRecord& before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// A shard of what is no more, or another by now: who still knows it is to ask anew.
  bool IsRetired(const engine::NameKey& key) const;
  /// Shards that this node owns and that no matrix is made of.
  void DropStrays();

  /// Rows of buffers that were put for a shard.
  void DropBuffersOf(const engine::NameKey& shard);
  /// Of a shard of `whole` whose columns this node has: read once. UNAVAILABLE if it has
  /// not got them yet; ReadShardRows' errors.
  absl::StatusOr<std::shared_ptr<const ShardRows>> RowsOfShard(const std::string& tenant,
                                                               const MatrixRecord& whole,
                                                               const ShardName& shard);
  /// If the directory says so, too, when it is asked now.
  void DropHere(const engine::NameKey& key);
  void CopyInBackground(const std::stop_token& stop);
  /// Those that the record says, and no others.
  absl::Status TakeShares(const engine::NameKey& key, const std::vector<engine::Share>& shares);
  /// For a request that comes before this node, which owns it by now, has looked at it.
  void TakeSharesOfNew(const engine::NameKey& key);

  const Options options_;
  const std::unique_ptr<Directory> directory_;
  engine::Engine& engine_;
  const std::function<void(const std::string&, const std::string&)> on_changed_;
  const std::shared_ptr<Peers> peers_;
  const std::unique_ptr<Transport> transport_;
  RowTraffic rows_;
  struct KnownRows {
    std::weak_ptr<const engine::Matrix> columns;  ///< that say so
    std::shared_ptr<const ShardRows> rows;
  };
  Mutex shard_rows_mutex_;
  /// By the matrix of the shard's columns.
  std::map<engine::NameKey, KnownRows> shard_rows_ ABSL_GUARDED_BY(shard_rows_mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  Known known_ ABSL_GUARDED_BY(mutex_);
  int64_t next_revision_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t highest_revision_ ABSL_GUARDED_BY(mutex_) = 0;  ///< that the directory is known to have
  struct Written {
    int64_t revision = 0;
    std::chrono::steady_clock::time_point asked;  ///< before that
  };
  /// This node's records that the watch has yet to bring back.
  std::deque<Written> beats_ ABSL_GUARDED_BY(mutex_);
  /// All that the directory had then is known.
  std::chrono::steady_clock::time_point viewed_ ABSL_GUARDED_BY(mutex_);
  std::stop_source watch_ ABSL_GUARDED_BY(mutex_);  ///< ends the one under way
  int64_t lease_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t self_revision_ ABSL_GUARDED_BY(mutex_) = 0;  ///< of this node's record, as it wrote it
  /// Why the cluster does not let this node back in. Empty: it does.
  std::string expelled_ ABSL_GUARDED_BY(mutex_);
  bool unsettled_ ABSL_GUARDED_BY(mutex_) = true;
  /// Tenants and numbers of uploads whose shards were a matrix's, and are no more.
  std::set<engine::NameKey> retired_ ABSL_GUARDED_BY(mutex_);
  /// Those of which this node has shards, and knows no matrix, since when.
  std::map<engine::NameKey, std::chrono::steady_clock::time_point> strays_since_
      ABSL_GUARDED_BY(mutex_);
  std::set<engine::NameKey> busy_ ABSL_GUARDED_BY(mutex_);
  /// Of these, those that change here while others have what was acknowledged: they serve it.
  std::set<engine::NameKey> changing_ ABSL_GUARDED_BY(mutex_);
  std::deque<engine::NameKey> incomplete_ ABSL_GUARDED_BY(mutex_);  ///< to be copied, one by one
  std::deque<engine::NameKey> moves_ ABSL_GUARDED_BY(mutex_);       ///< to be moved, after these
  /// Since when no node came or went, or was drained.
  std::chrono::steady_clock::time_point quiet_since_ ABSL_GUARDED_BY(mutex_);
  /// Matrices that were to move, and of which no copy could be made then: others go on.
  std::map<engine::NameKey, std::chrono::steady_clock::time_point> unmoved_ ABSL_GUARDED_BY(mutex_);
  /// A record names a node that is not there, as it was looked at last.
  bool somebody_gone_ ABSL_GUARDED_BY(mutex_) = true;
  struct Arrival {
    std::chrono::steady_clock::time_point time;
    CopyIdentity source, here;  ///< of its owner's, and of the copy; all 0: it is on its way
  };
  /// Copies that came, and that their owner has yet to put into the record.
  std::map<engine::NameKey, Arrival> arrived_ ABSL_GUARDED_BY(mutex_);
  /// Of Own: what is here of them is current whatever it is.
  std::set<engine::NameKey> owned_ ABSL_GUARDED_BY(mutex_);
  /// Of what was changed here, until the directory knows.
  std::map<engine::NameKey, Wishes> wishes_ ABSL_GUARDED_BY(mutex_);
  /// Of this node's: they are not here any more because their time to live was over.
  std::set<engine::NameKey> expired_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point answered_ ABSL_GUARDED_BY(mutex_);  ///< by the directory
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> turn_ = 0;  ///< so that readers are sent to all copies
  std::atomic<bool> stopping_ = false;

  std::vector<std::jthread> threads_;  ///< last
};

}  // namespace sparsed::server
