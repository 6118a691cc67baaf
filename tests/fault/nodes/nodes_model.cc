#include "tests/fault/nodes/nodes_model.h"

#include <fmt/format.h>

#include <algorithm>

namespace sparsed::test {
namespace {

using State = NodesModel::State;
using Operation = NodesModel::Operation;
using Call = NodesModel::Call;
using Outcome = NodesModel::Outcome;
using States = std::vector<State>;

/// `version` was seen to be that of the present content, or the content is impossible.
bool Learn(State& state, int name, uint64_t version) {
  if (version == 0) return true;
  MatrixContent& now = state.names[name];
  if (now.version != 0) return now.version == version;
  if (version < now.least) return false;
  now.version = now.least = version;
  state.used[name] = std::max(state.used[name], version);
  return true;
}

/// New content, of a version that the name never had; false if it had.
bool Put(State& state, int name, int degree, int64_t value, uint64_t version) {
  uint64_t& used = state.used[name];
  if (version != 0 && version <= used) return false;
  const uint64_t least = version != 0 ? version : used + 1;
  state.names[name] = {true, degree, value, version, least};
  used = least;
  return true;
}

States AfterChange(State state, const Operation& operation) {
  const int name = operation.name, other = 1 - name;
  const bool there = state.names[name].present;
  const MatrixContent was = state.names[name];
  switch (operation.call) {
    case Call::kUpload:
      if (there && !operation.replace) return {};
      if (!Put(state, name, operation.degree, operation.value, operation.version)) return {};
      return {state};
    case Call::kUpdate:
      if (!there || !Learn(state, name, operation.if_version)) return {};
      if (!Put(state, name, was.degree, operation.value, operation.version)) return {};
      return {state};
    case Call::kDelete:
      if (!there) return {};
      state.names[name] = {};
      return {state};
    default:
      if (!there || state.names[other].present) return {};
      if (!Put(state, other, was.degree, was.value, operation.version)) return {};
      state.names[name] = {};
      return {state};
  }
}

States AfterLook(State state, const Operation& operation) {
  const MatrixContent& now = state.names[operation.name];
  if (!now.present) return {};
  const bool same = operation.degree == now.degree &&
                    (operation.call == Call::kInfo || operation.value == now.value);
  if (!same || !Learn(state, operation.name, operation.version)) return {};
  return {state};
}

std::string WhatWasAsked(const Operation& operation) {
  const std::string name(1, static_cast<char>('a' + operation.name));
  switch (operation.call) {
    case Call::kUpload:
      return fmt::format("upload {} ({} nonzeros a row, value {}{})", name, operation.degree,
                         operation.value, operation.replace ? ", replace" : "");
    case Call::kUpdate:
      return fmt::format(
          "update {} (value {}{})", name, operation.value,
          operation.if_version == 0 ? "" : fmt::format(", if version is {}", operation.if_version));
    case Call::kDelete:
      return "delete " + name;
    case Call::kRename:
      return fmt::format("rename {} to the other", name);
    case Call::kInfo:
      return "info " + name;
    case Call::kRead:
      return "download " + name;
    case Call::kProduct:
      return "product " + name;
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
    case Outcome::kOk:
      break;
  }
  switch (operation.call) {
    case Call::kInfo:
      return fmt::format("{} nonzeros a row, version {}", operation.degree, operation.version);
    case Call::kRead:
    case Call::kProduct:
      return fmt::format("{} nonzeros a row, value {}", operation.degree, operation.value);
    default:
      return operation.version == 0 ? "done" : fmt::format("version {}", operation.version);
  }
}

}  // namespace

States NodesModel::After(const State& state, const Operation& operation) {
  switch (operation.outcome) {
    case Outcome::kAbsent:
      return state.names[operation.name].present ? States{} : States{state};
    case Outcome::kExists:
      return state.names[operation.call == Call::kRename ? 1 - operation.name : operation.name]
                     .present
                 ? States{state}
                 : States{};
    case Outcome::kUnknown:
    case Outcome::kOk:
      break;
  }
  return IsLook(operation) ? AfterLook(state, operation) : AfterChange(state, operation);
}

bool NodesModel::IsLook(const Operation& operation) {
  return operation.call == Call::kInfo || operation.call == Call::kRead ||
         operation.call == Call::kProduct;
}

bool NodesModel::OnlyLooks(const Operation& operation) {
  return IsLook(operation) || operation.outcome == Outcome::kAbsent ||
         operation.outcome == Outcome::kExists;
}

std::array<uint64_t, 2> NodesModel::SeenVersions(const NodesHistory& history) {
  std::array<uint64_t, 2> seen{};
  for (const NodesEvent& event : history) {
    const Operation& of = event.operation;
    if (of.outcome != Outcome::kOk) continue;
    uint64_t& highest = seen[of.call == Call::kRename ? 1 - of.name : of.name];
    highest = std::max(highest, of.version);
  }
  return seen;
}

std::string ToString(const NodesEvent& event, int64_t begin) {
  return EventText(event, begin, WhatWasAsked(event.operation), event.operation.node,
                   WhatCame(event.operation));
}

std::string ToString(const State& state) {
  std::string text;
  for (int name = 0; name < 2; ++name) {
    const MatrixContent& content = state.names[name];
    text += fmt::format("{}{}: ", name == 0 ? "" : "; ", static_cast<char>('a' + name));
    text += content.present ? ToString(content)
                            : fmt::format("none, versions to {} used", state.used[name]);
  }
  return text;
}

std::string ToString(const NodesCheck::Verdict& verdict) { return VerdictText(verdict); }

}  // namespace sparsed::test
