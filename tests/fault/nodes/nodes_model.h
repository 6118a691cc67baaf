// What two names of a cluster's catalog promise to clients of any node, where matrices are renamed
// from one to the other.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "tests/fault/history/history_text.h"
#include "tests/fault/history/linearizability.h"

namespace sparsed::test {

struct NodesModel {
  struct State {
    std::array<MatrixContent, 2> names;
    std::array<uint64_t, 2> used{};  ///< no version up to this is given again

    auto Key() const { return std::tie(names, used); }
    bool operator<(const State& other) const { return Key() < other.Key(); }
    bool operator==(const State& other) const { return Key() == other.Key(); }
  };

  enum class Call {
    kUpload,   ///< of `degree` and `value`
    kUpdate,   ///< to `value`
    kDelete,   ///
    kRename,   ///< to the other name
    kInfo,     ///< saw `degree` and `version`
    kRead,     ///< all of it: saw `degree` and `value`
    kProduct,  ///< with ones: saw them, too
  };
  enum class Outcome {
    kOk,
    kUnknown,  ///< nobody knows; the event may be lost
    kAbsent,   ///< NOT_FOUND
    kExists,   ///< ALREADY_EXISTS
  };
  struct Operation {
    Call call = Call::kInfo;
    Outcome outcome = Outcome::kUnknown;
    int name = 0;  ///< which of the two
    int degree = 0;
    int64_t value = 0;
    bool replace = false;
    uint64_t if_version = 0;  ///< kUpdate: 0, or the version that it may replace
    uint64_t version = 0;     ///< as the server said; 0: it said none
    std::string node;         ///< that was asked
  };

  static std::vector<State> After(const State& state, const Operation& operation);
  /// It was not to change anything.
  static bool IsLook(const Operation& operation);
  /// It changed nothing.
  static bool OnlyLooks(const Operation& operation);
  /// The highest that servers said of each name.
  static std::array<uint64_t, 2> SeenVersions(const std::vector<Event<NodesModel>>& history);
};

using NodesEvent = Event<NodesModel>;
using NodesHistory = std::vector<NodesEvent>;
using NodesCheck = Linearizability<NodesModel>;

/// For people; times since `begin`.
std::string ToString(const NodesEvent& event, int64_t begin);
std::string ToString(const NodesModel::State& state);
std::string ToString(const NodesCheck::Verdict& verdict);

}  // namespace sparsed::test
