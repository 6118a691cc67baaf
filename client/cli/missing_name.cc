#include "client/cli/missing_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/status.h"
#include "client/cli/suggestion.h"

namespace sparsed::cli {
namespace {

const CallOptions kSoon = {.timeout = std::chrono::seconds(2)};
/// Between a tenant and what it calls its own: TENANT~NAME.
constexpr char kOwnerMark = '~';

/// What stands between the first two quotation marks; empty: there are none.
std::string_view QuotedIn(std::string_view sentence) {
  const size_t begin = sentence.find_first_of("'\"");
  const size_t end = begin == sentence.npos ? begin : sentence.find(sentence[begin], begin + 1);
  return end == sentence.npos ? "" : sentence.substr(begin + 1, end - begin - 1);
}

bool IsOfMatrix(std::string_view sentence) {
  return sentence.find("matrix named") != std::string_view::npos;
}

/// As `list --all` writes them.
std::vector<std::string> NamesOfAllTenants(const Client& client) {
  std::vector<std::string> names;
  const auto infos = client.ListAll("", kSoon);
  if (!infos.ok()) return names;
  for (const MatrixInfo& info : *infos) names.push_back(info.name);
  return names;
}

/// The same, with the id of the request, as what the caller may not do.
absl::Status NotAllowed(const absl::Status& status, const std::string& sentence) {
  absl::Status denied = absl::PermissionDeniedError(sentence);
  status.ForEachPayload([&denied](absl::string_view type, const absl::Cord& payload) {
    denied.SetPayload(type, payload);
  });
  return denied;
}

/// The tenant of an operator who calls; none: somebody else does, or the server does not say.
std::optional<std::string> OperatorsTenant(const Client& client) {
  const absl::StatusOr<ServerInfo> server = client.GetServerInfo(kSoon);
  if (!server.ok() || server->role != "operator") return std::nullopt;
  return server->tenant;
}

/// Of another tenant's matrix, for an operator of `tenant`.
std::string AnothersText(std::string_view reference, std::string_view tenant) {
  const size_t mark = reference.find(kOwnerMark);
  return fmt::format(
      "matrix '{0}' is tenant {1}'s: an operator may look at it (`sparsectl show {0}`, `sparsectl "
      "explain {0}`); {1} may share it (`sparsectl share {2} --with={3} [--write]`), and alone "
      "deletes, renames, copies and shares it",
      reference, reference.substr(0, mark), reference.substr(mark + 1), tenant);
}

/// What to say of a name that is not there: the nearest one, or all if they are few.
std::string HintOfNames(const std::vector<std::string>& names, std::string_view sentence) {
  constexpr size_t kFew = 4;
  const std::string_view missing = QuotedIn(sentence);
  if (missing.empty()) return "";
  const char quote = sentence[sentence.find_first_of("'\"")];
  const std::string meant = Nearest(missing, names);
  if (!meant.empty()) return fmt::format("; did you mean {}{}{}?", quote, meant, quote);
  if (names.empty() || names.size() > kFew) return "";
  std::string all;
  for (const std::string& name : names) {
    all += fmt::format("{}{}{}{}",
                       all.empty()              ? ""
                       : &name == &names.back() ? " and "
                                                : ", ",
                       quote, name, quote);
  }
  return fmt::format("; there {} {}", names.size() == 1 ? "is" : "are", all);
}

/// Of a matrix that an operator of `tenant` does not have: it may be another tenant's.
absl::Status SuggestedToOperator(const Client& client, const absl::Status& status,
                                 const std::string& tenant) {
  const std::string sentence(status.message());
  const std::string missing(QuotedIn(sentence));
  const bool anothers = missing.find(kOwnerMark) != std::string::npos;
  const std::string hint = anothers ? "" : HintOfNames(NamesLike(client, sentence), sentence);
  if (hint.find("did you mean") != std::string::npos) return Reworded(status, sentence + hint);
  std::vector<std::string> names = NamesOfAllTenants(client);
  std::erase_if(names, [&](const std::string& name) {
    const size_t mark = name.find(kOwnerMark);
    return name.substr(0, mark) == tenant || (!anothers && name.substr(mark + 1) != missing);
  });
  if (std::ranges::find(names, missing) != names.end()) {
    return NotAllowed(status, AnothersText(missing, tenant));
  }
  const std::string of_others = HintOfNames(names, sentence);
  return Reworded(status, sentence + (of_others.empty() ? hint : of_others));
}

}  // namespace

std::vector<std::string> NamesLike(const Client& client, std::string_view sentence) {
  std::vector<std::string> names;
  const auto add = [&names](const auto& infos) {
    if (!infos.ok()) return;
    for (const auto& info : *infos) names.push_back(info.name);
  };
  if (sentence.find("buffer named") != std::string_view::npos) {
    add(client.ListDense("", kSoon));
  } else if (sentence.find("model named") != std::string_view::npos) {
    add(client.ListModels(kSoon));
  } else if (IsOfMatrix(sentence)) {
    add(client.ListMatrices("", kSoon));
    add(client.ListShared("", kSoon));
  }
  return names;
}

absl::Status Suggested(const Client& client, const absl::Status& status) {
  const std::string text(status.message());
  std::string hint;
  if (absl::IsNotFound(status)) {
    if (IsOfMatrix(text)) {
      if (const auto tenant = OperatorsTenant(client); tenant.has_value()) {
        return SuggestedToOperator(client, status, *tenant);
      }
    }
    hint = HintOfNames(NamesLike(client, text), text);
  }
  if (absl::IsInvalidArgument(status)) {
    if (const std::string meant = NearestListed(text); !meant.empty()) {
      hint = fmt::format("; did you mean '{}'?", meant);
    }
    if (text.find("name has byte 0x7e") != std::string::npos) {
      hint = "; TENANT~NAME is another tenant's, who alone makes or keeps anything under NAME";
    }
  }
  return hint.empty() ? status : Reworded(status, text + hint);
}

size_t MatricesOfOthers(const Client& client) {
  const auto tenant = OperatorsTenant(client);
  if (!tenant.has_value()) return 0;
  const std::vector<std::string> names = NamesOfAllTenants(client);
  const std::string own = *tenant + kOwnerMark;
  return static_cast<size_t>(std::ranges::count_if(
      names, [&own](const std::string& name) { return !name.starts_with(own); }));
}

}  // namespace sparsed::cli
