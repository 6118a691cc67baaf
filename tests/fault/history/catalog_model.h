// What one name of the catalog promises to clients that use it at the same time.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "tests/fault/history/history_text.h"
#include "tests/fault/history/linearizability.h"

namespace sparsed::test {

struct CatalogModel {
  struct State {
    MatrixContent now;
    MatrixContent stored;    ///< what a crash may bring back
    uint64_t last_used = 0;  ///< no version up to this is given again

    auto Key() const { return std::tie(now, stored, last_used); }
    bool operator<(const State& other) const { return Key() < other.Key(); }
    bool operator==(const State& other) const { return Key() == other.Key(); }
  };

  enum class Call {
    kUpload,   ///< of `degree` and `value`
    kUpdate,   ///< to `value`
    kDelete,   ///
    kInfo,     ///< saw `degree` and `version`
    kRead,     ///< all of it: saw `degree` and `value`
    kProduct,  ///< with ones: saw `degree` * `value` in each row
    kCrash,    ///< of the server, or its orderly end, and its next start
  };
  enum class Outcome {
    kOk,
    kUnknown,  ///< nobody knows; the event may be lost
    kAbsent,   ///< NOT_FOUND
    kExists,   ///< ALREADY_EXISTS
    kNothing,  ///< refused for another reason: nothing was changed
  };
  struct Operation {
    Call call = Call::kInfo;
    Outcome outcome = Outcome::kUnknown;
    int degree = 0;
    int64_t value = 0;         ///< kProduct: times the degree
    bool replace = false;      ///< kUpload
    bool durable = false;      ///< kUpdate
    uint64_t if_version = 0;   ///< kUpdate: 0, or the version that it may replace
    uint64_t version = 0;      ///< kUpdate, kInfo: as the server said; 0: it said none
    const char* way = "call";  ///< how it was made, for people
  };

  static std::vector<State> After(const State& state, const Operation& operation);
  static bool OnlyLooks(const Operation& operation);
};

using CatalogEvent = Event<CatalogModel>;
using CatalogHistory = std::vector<CatalogEvent>;
using CatalogCheck = Linearizability<CatalogModel>;

/// "12.345 .. 13.001 ms  client 3  update value=17 durable: version 5"; times since `begin`.
std::string ToString(const CatalogEvent& event, int64_t begin);
/// "3 nonzeros a row, value 17, version 5".
std::string ToString(const CatalogModel::State& state);
/// The verdict's failing calls and states, for people; empty if there are none.
std::string ToString(const CatalogCheck::Verdict& verdict);

}  // namespace sparsed::test
