// Whether calls that overlapped could have happened one after the other: Wing and Gong's search
// ("Testing and verifying concurrent objects", 1993) with Lowe's memory of what was tried ("Testing
// for linearizability", 2017), as Porcupine and etcd's robustness tests have it.
//
// A Model says what one object is and what calls do to it:
//   State            has <, == and copies
//   Operation        a call with what came of it
//   static std::vector<State> After(const State&, const Operation&)
//                    where that call may lead from there; none: it cannot have come out so
//   static bool OnlyLooks(const Operation&)
//                    it changes nothing wherever it comes, but for what is known of the state
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace sparsed::test {

/// One call: it took effect at one moment between `invoked` and `returned`, in nanoseconds of one
/// clock. One that `may_be_lost` (nobody knows what came of it) perhaps never did.
template <typename Model>
struct Event {
  int client = 0;
  int64_t invoked = 0;
  int64_t returned = 0;
  bool may_be_lost = false;
  typename Model::Operation operation;
};

template <typename Model>
class Linearizability {
 public:
  using State = typename Model::State;
  using History = std::vector<Event<Model>>;

  struct Verdict {
    std::set<State> after;  ///< all states that may be at the end; empty: not linearizable
    /// If not: calls that cannot be ordered whatever happened later, by their beginnings, and the
    /// states that may have been before them. Looks that the contradiction does not need are left
    /// out.
    History failing;
    std::set<State> before;
  };

  /// `before`: the states that the object may be in at the beginning.
  static Verdict Check(std::set<State> before, History history) {
    SortByInvocation(history);
    // Where every earlier call has returned before the next begins, the states are all that later
    // calls see of the earlier ones.
    size_t begin = 0;
    while (begin < history.size()) {
      size_t end = begin + 1;
      int64_t latest = history[begin].returned;
      while (end < history.size() && history[end].invoked <= latest) {
        latest = std::max(latest, history[end++].returned);
      }
      const History part(history.begin() + static_cast<ptrdiff_t>(begin),
                         history.begin() + static_cast<ptrdiff_t>(end));
      std::set<State> after = StatesAfter(before, part);
      if (after.empty()) return {{}, Shorten(before, part), before};
      before = std::move(after);
      begin = end;
    }
    return {std::move(before), {}, {}};
  }

  /// A state that some order of all calls leads to, of which there may be more; none: not
  /// linearizable, or it takes more than `most` steps to find one. Faster than to find them all,
  /// where many calls overlap.
  static std::optional<State> FindOne(const std::set<State>& before, History history, size_t most) {
    SortByInvocation(history);
    return FindEnd(before, history, most);
  }
  /// Of a history that is not linearizable: as Verdict::failing.
  static History FindFailing(const std::set<State>& before, History history) {
    SortByInvocation(history);
    return Shorten(before, history);
  }

 private:
  /// Calls that took effect, of a history that is ordered by `invoked`: all before `first`, and
  /// `later[i]` of number first + i; and where they led.
  struct Point {
    size_t first = 0;
    std::vector<bool> later;
    State state;

    bool Has(size_t i) const { return i < first || (i - first < later.size() && later[i - first]); }
    Point With(size_t i, State next) const {
      Point point{first, later, std::move(next)};
      if (point.later.size() <= i - first) point.later.resize(i - first + 1);
      point.later[i - first] = true;
      size_t done = 0;
      while (done < point.later.size() && point.later[done]) ++done;
      point.later.erase(point.later.begin(), point.later.begin() + static_cast<ptrdiff_t>(done));
      point.first += done;
      return point;
    }
    auto Key() const { return std::tie(first, later, state); }
    bool operator<(const Point& other) const { return Key() < other.Key(); }
  };

  static void SortByInvocation(History& history) {
    std::stable_sort(history.begin(), history.end(),
                     [](const auto& a, const auto& b) { return a.invoked < b.invoked; });
  }

  static std::vector<State> After(const State& state, const Event<Model>& event) {
    std::vector<State> after = Model::After(state, event.operation);
    if (event.may_be_lost && std::find(after.begin(), after.end(), state) == after.end()) {
      after.push_back(state);
    }
    return after;
  }

  /// Every state that some order of all calls leads to.
  static std::set<State> StatesAfter(const std::set<State>& before, const History& history) {
    std::set<State> ends;
    std::set<Point> seen;
    std::vector<Point> open;
    for (const State& state : before) open.push_back({0, {}, state});
    while (!open.empty()) {
      const Point point = std::move(open.back());
      open.pop_back();
      if (point.first == history.size()) {
        ends.insert(point.state);
        continue;
      }
      for (Point& next : Next(point, history)) {
        if (seen.insert(next).second) open.push_back(std::move(next));
      }
    }
    return ends;
  }

  /// Likewise, the first of them that is found.
  static std::optional<State> FindEnd(const std::set<State>& before, const History& history,
                                      size_t most = std::numeric_limits<size_t>::max()) {
    std::set<Point> seen;
    std::vector<Point> open;
    for (const State& state : before) open.push_back({0, {}, state});
    while (!open.empty() && most-- > 0) {
      const Point point = std::move(open.back());
      open.pop_back();
      if (point.first == history.size()) return point.state;
      for (Point& next : Next(point, history)) {
        if (seen.insert(next).second) open.push_back(std::move(next));
      }
    }
    return std::nullopt;
  }

  /// Those last that return first: they are looked at first.
  static std::vector<Point> Next(const Point& point, const History& history) {
    // The next call began before any that is left has returned.
    int64_t earliest = std::numeric_limits<int64_t>::max();
    std::vector<std::pair<int64_t, Point>> ways;
    for (size_t i = point.first; i < history.size() && history[i].invoked <= earliest; ++i) {
      if (!point.Has(i)) earliest = std::min(earliest, history[i].returned);
    }
    for (size_t i = point.first; i < history.size() && history[i].invoked <= earliest; ++i) {
      if (point.Has(i)) continue;
      std::vector<State> after = After(point.state, history[i]);
      // A look may as well come as soon as it can. What changes nothing now, but could later, may
      // not.
      if (!history[i].may_be_lost && Model::OnlyLooks(history[i].operation) && after.size() == 1 &&
          after[0] == point.state) {
        return {point.With(i, std::move(after[0]))};
      }
      for (State& state : after) {
        ways.emplace_back(history[i].returned, point.With(i, std::move(state)));
      }
    }
    std::stable_sort(ways.begin(), ways.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<Point> next;
    for (auto& way : ways) next.push_back(std::move(way.second));
    return next;
  }

  /// What was known at `moment`: calls that had not returned then may be lost.
  static History Until(const History& history, int64_t moment) {
    History known;
    for (const Event<Model>& event : history) {
      if (event.invoked > moment) continue;
      known.push_back(event);
      if (event.returned > moment) known.back().may_be_lost = true;
    }
    return known;
  }

  static History Shorten(const std::set<State>& before, const History& history) {
    std::vector<int64_t> moments;
    for (const Event<Model>& event : history) moments.push_back(event.returned);
    std::sort(moments.begin(), moments.end());
    // A history that can be ordered can be so at every moment.
    const auto failed = std::partition_point(moments.begin(), moments.end(), [&](int64_t moment) {
      return FindEnd(before, Until(history, moment)).has_value();
    });
    History shortest = Until(history, failed == moments.end() ? moments.back() : *failed);
    // A long one need not be the shortest: each try is a search of its own.
    const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (size_t i = shortest.size(); i-- > 0 && std::chrono::steady_clock::now() < enough;) {
      // Without a call that may have changed something the rest would prove nothing.
      if (!Model::OnlyLooks(shortest[i].operation) && !NeverHappens(shortest[i])) continue;
      History without = shortest;
      without.erase(without.begin() + static_cast<ptrdiff_t>(i));
      if (!FindEnd(before, without)) shortest = std::move(without);
    }
    return shortest;
  }

  /// A look whose answer nobody got.
  static bool NeverHappens(const Event<Model>& event) {
    return event.may_be_lost && Model::OnlyLooks(event.operation);
  }
};

}  // namespace sparsed::test
