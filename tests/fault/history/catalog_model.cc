#include "tests/fault/history/catalog_model.h"

#include <fmt/format.h>

#include <algorithm>

namespace sparsed::test {
namespace {

using State = CatalogModel::State;
using Operation = CatalogModel::Operation;
using Call = CatalogModel::Call;
using Outcome = CatalogModel::Outcome;

/// `version` was seen to be that of the present content, or the content is impossible.
bool Learn(State& state, uint64_t version) {
  if (version == 0) return true;
  MatrixContent& now = state.now;
  if (now.version != 0) return now.version == version;
  if (version < now.least) return false;
  const MatrixContent before = now;
  now.version = version;
  if (state.stored == before) state.stored = now;
  state.last_used = std::max(state.last_used, version);
  return true;
}

/// New content of this version, or one that nobody has seen if 0; false if it was used before.
bool Put(State& state, MatrixContent content, uint64_t version, bool durable) {
  if (version != 0 && version <= state.last_used) return false;
  content.present = true;
  content.version = version;
  content.least = version != 0 ? version : state.last_used + 1;
  state.last_used = content.least;
  state.now = content;
  if (durable) state.stored = content;
  return true;
}

std::vector<State> AfterUpload(State state, const Operation& operation) {
  switch (operation.outcome) {
    case Outcome::kExists:
      return state.now.present ? std::vector<State>{state} : std::vector<State>{};
    case Outcome::kOk:
    case Outcome::kUnknown:
      if (state.now.present && !operation.replace) return {};
      if (!Put(state, {.degree = operation.degree, .value = operation.value}, operation.version,
               /*durable=*/true)) {
        return {};
      }
      return {state};
    default:
      return {state};
  }
}

std::vector<State> AfterUpdate(State state, const Operation& operation) {
  switch (operation.outcome) {
    case Outcome::kAbsent:
      return state.now.present ? std::vector<State>{} : std::vector<State>{state};
    case Outcome::kOk:
    case Outcome::kUnknown:
      if (!state.now.present || !Learn(state, operation.if_version)) return {};
      if (!Put(state, {.degree = state.now.degree, .value = operation.value}, operation.version,
               operation.durable)) {
        return {};
      }
      return {state};
    default:
      return {state};
  }
}

std::vector<State> AfterDelete(State state, const Operation& operation) {
  switch (operation.outcome) {
    case Outcome::kAbsent:
      return state.now.present ? std::vector<State>{} : std::vector<State>{state};
    case Outcome::kOk:
    case Outcome::kUnknown:
      if (!state.now.present) return {};
      state.now = state.stored = {};
      return {state};
    default:
      return {state};
  }
}

std::vector<State> AfterLook(State state, const Operation& operation) {
  if (operation.outcome == Outcome::kAbsent) {
    return state.now.present ? std::vector<State>{} : std::vector<State>{state};
  }
  if (operation.outcome != Outcome::kOk) return {state};
  const MatrixContent& now = state.now;
  if (!now.present) return {};
  const bool same = operation.call == Call::kProduct
                        ? operation.value == now.degree * now.value
                        : operation.degree == now.degree &&
                              (operation.call == Call::kInfo || operation.value == now.value);
  if (!same || !Learn(state, operation.version)) return {};
  return {state};
}

std::string WhatWasAsked(const Operation& operation) {
  switch (operation.call) {
    case Call::kUpload:
      return fmt::format("upload ({} nonzeros a row, value {}{})", operation.degree,
                         operation.value, operation.replace ? ", replace" : "");
    case Call::kUpdate:
      return fmt::format(
          "update (value {}{}{})", operation.value, operation.durable ? ", durable" : "",
          operation.if_version == 0 ? "" : fmt::format(", if version is {}", operation.if_version));
    case Call::kDelete:
      return "delete";
    case Call::kInfo:
      return "info";
    case Call::kRead:
      return "download";
    case Call::kProduct:
      return "product";
    case Call::kCrash:
      return "the server ends and starts again";
  }
  return "?";
}

std::string WhatCame(const Operation& operation) {
  switch (operation.outcome) {
    case Outcome::kUnknown:
      return "no answer";
    case Outcome::kAbsent:
      return "NOT_FOUND";
    case Outcome::kExists:
      return "ALREADY_EXISTS";
    case Outcome::kNothing:
      return "refused";
    case Outcome::kOk:
      break;
  }
  switch (operation.call) {
    case Call::kInfo:
      return fmt::format("{} nonzeros a row, version {}", operation.degree, operation.version);
    case Call::kRead:
      return fmt::format("{} nonzeros a row, value {}", operation.degree, operation.value);
    case Call::kProduct:
      return fmt::format("{} in each row", operation.value);
    case Call::kUpdate:
      return fmt::format("version {}", operation.version);
    default:
      return "done";
  }
}

}  // namespace

std::vector<State> CatalogModel::After(const State& state, const Operation& operation) {
  switch (operation.call) {
    case Call::kUpload:
      return AfterUpload(state, operation);
    case Call::kUpdate:
      return AfterUpdate(state, operation);
    case Call::kDelete:
      return AfterDelete(state, operation);
    case Call::kCrash: {
      State older = state;
      older.now = older.stored;
      if (older == state) return {state};
      return {state, older};
    }
    default:
      return AfterLook(state, operation);
  }
}

bool CatalogModel::OnlyLooks(const Operation& operation) {
  return operation.call == Call::kInfo || operation.call == Call::kRead ||
         operation.call == Call::kProduct || operation.outcome == Outcome::kAbsent ||
         operation.outcome == Outcome::kExists || operation.outcome == Outcome::kNothing;
}

std::string ToString(const CatalogEvent& event, int64_t begin) {
  return EventText(event, begin, WhatWasAsked(event.operation), event.operation.way,
                   WhatCame(event.operation));
}

std::string ToString(const State& state) {
  if (!state.now.present) return fmt::format("no matrix, versions to {} used", state.last_used);
  return ToString(state.now) +
         (state.stored == state.now ? "" : fmt::format(" (stored: value {})", state.stored.value));
}

std::string ToString(const CatalogCheck::Verdict& verdict) { return VerdictText(verdict); }

}  // namespace sparsed::test
