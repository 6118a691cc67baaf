// Who goes next of those that wait for a device: start-time fair queuing (Goyal, Vin and Cheng,
// SIGCOMM 1996) of tenants by weighted device seconds. Knows no clock, no threads and no jobs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace sparsed::engine {

/// What waits, and all that the queue needs to know of it. It does not change while it waits.
struct FairEntry {
  /// Of a request among its tenant's: from 0 on, the highest goes first.
  static constexpr int kPriorities = 8;

  FairEntry() = default;
  explicit FairEntry(std::string tenant) : tenant_name(std::move(tenant)) {}
  virtual ~FairEntry() = default;

  const std::string tenant_name;
  int priority = 0;
  /// It takes many turns: of these a tenant's go one after the other, beside its short ones.
  bool is_long = false;
  double next_seconds = 0;  ///< predicted, of its next turn
  /// Predicted from measurements, of all its turns that are left; 0: there are none.
  double rest_seconds = 0;

 private:
  friend class FairQueue;
  uint64_t order_ = 0;  ///< of coming; kept when it comes back. 0: it has not come yet
};

/// Of tenants, relative to one another; what is not above 0 counts as 1.
struct TenantWeights {
  std::map<std::string, double, std::less<>> named;
  double others = 1;

  double Of(std::string_view tenant) const {
    const auto found = named.find(tenant);
    const double weight = found == named.end() ? others : found->second;
    return weight > 0 ? weight : 1;
  }
};

/// Each tenant has a virtual time: the device seconds that it was given, divided by its weight.
/// Whoever has the least goes next. Who comes back is put at the present virtual time: idle time
/// saves nothing up, and what a turn took too much is owed while others wait and no longer.
///
/// Of one tenant the highest priority goes first; of equal ones, as they came. Long ones and short
/// ones among these have equal parts of the tenant's time while both wait, so that a short one
/// waits for one turn of a long one. Not thread-safe.
class FairQueue {
  struct Tenant;

 public:
  /// A turn on the device, from Pop to End.
  class Turn {
   public:
    Turn() = default;

   private:
    friend class FairQueue;
    Tenant* tenant = nullptr;
    int priority = 0;
    bool is_long = false;
    double charged = 0;  ///< seconds
    double ran = 0;
    double rest = 0;

    double ahead() const { return charged - ran; }
  };

  /// In the place of those before.
  void SetWeights(TenantWeights weights);

  void Push(std::shared_ptr<FairEntry> entry);
  /// False if it does not wait here.
  bool Remove(const FairEntry& entry);
  bool empty() const { return size() == 0; }
  int64_t size() const { return sizes_[kShort] + sizes_[kLong]; }
  int64_t short_ones() const { return sizes_[kShort]; }

  /// The next, whose turn begins: its tenant is charged what was predicted. There is one.
  std::shared_ptr<FairEntry> Pop(Turn& turn);
  /// Device seconds by which a long one's tenant may be ahead of those that are passed over for it.
  static constexpr double kMostAheadSeconds = 0.004;
  /// Whether there is a long one to be taken next, if tenants whose next is a short one are passed
  /// over: not by a tenant that has had kMostAheadSeconds more than they, each by its weight. Short
  /// ones have one worker slot while long ones run, and would have no more than that slot's part.
  bool HasLong() const { return FindLong() != nullptr; }
  /// That one, whose turn begins; there is one.
  std::shared_ptr<FairEntry> PopLong(Turn& turn);
  /// The next short one that may begin beside these turns of long ones: of a tenant that has had no
  /// more than one of theirs, or, where there are none, of any. `known`: whose cost was predicted.
  /// Null: there is none.
  const FairEntry* NextShort(std::span<const Turn* const> beside, bool known) const;
  /// Likewise; its turn begins. Time changes who may go, so that there may be none any more.
  std::shared_ptr<FairEntry> PopShort(Turn& turn, std::span<const Turn* const> beside, bool known);
  /// Takes into the turn those of its tenant's that wait with its priority, short or long as it is,
  /// and `joins` wants, of `most` at most that it is asked about, in their order.
  std::vector<std::shared_ptr<FairEntry>> PopWith(
      Turn& turn, size_t most, const std::function<bool(const FairEntry&)>& joins);
  /// It ran for so much longer.
  void Ran(Turn& turn, double seconds);
  /// Seconds of all turns, and of those of its tenant, as far as Ran was told; the tenant waits or
  /// has a turn.
  double had() const { return had_; }
  double HadBy(const FairEntry& entry) const;
  /// Seconds that a long one has before another tenant's long one passes it: each fills the caches
  /// anew.
  static constexpr double kLongTurnSeconds = 0.016;

  /// Somebody who waits goes before what the turn would go on with.
  bool Passes(const Turn& turn) const;
  /// It ran for as long as Ran was told; once.
  void End(Turn& turn);
  /// Seconds that a tenant had without a turn.
  void Charge(std::string_view tenant, double seconds);

  /// Seconds after which it would have ended, if nobody came any more and `slots` turns were taken
  /// at a time; those without a prediction count as nothing.
  double SecondsUntilEnd(const FairEntry& entry, int slots) const;
  /// Tenants that are remembered, for tests of bounds.
  size_t tenants() const { return tenants_.size(); }

 private:
  enum Flow : size_t { kShort = 0, kLong = 1 };
  /// Highest priority first, then as they came; what came to another device first may have an equal
  /// number.
  using Key = std::tuple<int, uint64_t, const FairEntry*>;
  using Waiting = std::map<Key, std::shared_ptr<FairEntry>>;
  struct Tenant {
    std::string name;
    double weight = 1;
    double start = 0;        ///< virtual time at which its next turn begins
    uint64_t last_turn = 0;  ///< of all turns; who had it longest ago goes first of equals
    int turns = 0;           ///< that run
    double had = 0;          ///< seconds, as had_
    std::array<Waiting, 2> waiting;
    /// Seconds of each flow, and where they are now: of these, as of tenants, virtual time.
    std::array<double, 2> used{};
    double used_now = 0;
    /// What the turns that run were charged, and have not had yet, by flow.
    std::array<double, 2> ahead{};
    /// Of those that wait, by flow and priority; and of those that run.
    std::array<std::array<double, FairEntry::kPriorities>, 2> rest{};
    double running_rest = 0;

    bool waits() const { return !waiting[kShort].empty() || !waiting[kLong].empty(); }
    /// Virtual time by what it has had.
    double position() const { return start - (ahead[kShort] + ahead[kLong]) / weight; }
    double all_rest() const;
  };
  static Flow FlowOf(bool is_long) { return is_long ? kLong : kShort; }
  static Key KeyOf(const FairEntry& entry) { return {-entry.priority, entry.order_, &entry}; }
  static int PriorityOf(const Key& key) { return -std::get<0>(key); }
  Tenant& TenantOf(std::string_view name);
  Flow NextFlow(const Tenant& tenant) const;
  Tenant* FindLong() const;
  Tenant* FindShort(std::span<const Turn* const> beside, bool known) const;
  bool MayGoBeside(const Tenant& tenant, std::span<const Turn* const> beside) const;
  std::shared_ptr<FairEntry> Begin(Tenant& tenant, Flow flow, Turn& turn);
  std::shared_ptr<FairEntry> Take(Tenant& tenant, Flow flow, Waiting::iterator entry);
  /// To where the last is of those that run or wait, of whom there are some: so that who comes goes
  /// beside whatever runs.
  void MoveNow();
  /// Moves its virtual time on, or back.
  void Move(Tenant& tenant, Flow flow, double seconds);
  /// Of a tenant that waits, among the others.
  struct Place {
    double start;
    uint64_t last_turn;
    Tenant* tenant;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  void Leave(Tenant& tenant) { order_.erase({tenant.start, tenant.last_turn, &tenant}); }
  void Enter(Tenant& tenant) { order_.insert({tenant.start, tenant.last_turn, &tenant}); }
  /// Forgets who is idle and owes nothing.
  void Sweep();

  TenantWeights weights_;
  std::map<std::string, Tenant, std::less<>> tenants_;
  std::set<Place> order_;
  std::vector<const Tenant*> running_;  ///< who have turns
  double now_ = 0;                      ///< virtual
  double had_ = 0;                      ///< seconds of all turns
  uint64_t next_order_ = 1, turns_ = 0;
  std::array<int64_t, 2> sizes_{};  ///< of each flow
  size_t sweep_at_ = 64;            ///< tenants
};

}  // namespace sparsed::engine
