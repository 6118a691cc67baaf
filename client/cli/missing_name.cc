#include "client/cli/missing_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/status.h"
#include "client/cli/suggestion.h"

namespace sparsed::cli {
namespace {

/// Between a tenant and what it calls its own: TENANT~NAME.
constexpr char kOwnerMark = '~';

/// What stands between the first two quotation marks; empty: there are none.
std::string_view QuotedIn(std::string_view sentence) {
  const size_t begin = sentence.find_first_of("'\"");
  const size_t end = begin == sentence.npos ? begin : sentence.find(sentence[begin], begin + 1);
  return end == sentence.npos ? "" : sentence.substr(begin + 1, end - begin - 1);
}

/// What a sentence says is missing. The name may be one of a matrix or of a buffer.
constexpr std::string_view kMatrix = "matrix named ", kBuffer = "buffer named ",
                           kEither = "matrix or buffer named ";

/// Nothing if the server did not say.
template <typename Info>
void AddNames(const absl::StatusOr<std::vector<Info>>& infos, std::vector<std::string>& names) {
  if (!infos.ok()) return;
  for (const Info& info : *infos) names.push_back(info.name);
}

bool Says(std::string_view sentence, std::string_view words) {
  return sentence.find(words) != std::string_view::npos;
}

/// Of what is another tenant's, for an operator of `tenant`.
std::string AnothersText(std::string_view sentence, std::string_view reference,
                         std::string_view tenant) {
  const size_t mark = reference.find(kOwnerMark);
  if (!Says(sentence, kMatrix)) {
    return fmt::format(
        "buffer '{}' is tenant {}'s, who alone reads, writes and deletes it; an operator sees its "
        "size and owner (`sparsectl buffers list --all`)",
        reference, reference.substr(0, mark));
  }
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

}  // namespace

std::vector<std::string> NamesLike(const Client& client, std::string_view sentence) {
  std::vector<std::string> names;
  if (Says(sentence, kMatrix) || Says(sentence, kEither)) {
    AddNames(client.ListMatrices("", kSoon), names);
    AddNames(client.ListShared("", kSoon), names);
  }
  if (Says(sentence, kBuffer)) AddNames(client.ListDense("", kSoon), names);
  if (Says(sentence, "model named ")) AddNames(client.ListModels(kSoon), names);
  return names;
}

Hints::Hints(std::string server, ClientOptions options)
    : server_(std::move(server)), options_(std::move(options)) {
  // Who failed shall not wait for them.
  options_.max_attempts = 1;
  options_.on_retry = nullptr;
  options_.connect_timeout =
      std::min(options_.connect_timeout,
               std::chrono::duration_cast<std::chrono::milliseconds>(*kSoon.timeout));
}

const Client* Hints::Connected() {
  if (!client_.has_value()) client_.emplace(Client::Connect(server_, options_));
  return client_->ok() ? &**client_ : nullptr;
}

const std::vector<std::string>& Hints::NamesOfKind(std::string_view sentence) {
  const auto [names, asked] =
      names_.try_emplace(std::string(sentence.substr(0, sentence.find_first_of("'\""))));
  if (asked && Connected() != nullptr) names->second = NamesLike(*Connected(), sentence);
  return names->second;
}

const std::vector<std::string>& Hints::NamesOfAllTenants(std::string_view sentence) {
  const auto [names, asked] =
      all_names_.try_emplace(std::string(sentence.substr(0, sentence.find_first_of("'\""))));
  if (!asked || Connected() == nullptr) return names->second;
  if (Says(sentence, kMatrix) || Says(sentence, kEither)) {
    AddNames(Connected()->ListAll("", kSoon), names->second);
  }
  if (Says(sentence, kBuffer)) AddNames(Connected()->ListAllDense("", kSoon), names->second);
  return names->second;
}

const std::optional<std::string>& Hints::OperatorsTenant() {
  if (!operators_tenant_.has_value()) {
    operators_tenant_.emplace();
    if (Connected() == nullptr) return *operators_tenant_;
    const absl::StatusOr<ServerInfo> server = Connected()->GetServerInfo(kSoon);
    if (server.ok() && server->role == "operator") *operators_tenant_ = server->tenant;
  }
  return *operators_tenant_;
}

std::string Hints::HintOfPresent(std::string_view sentence) {
  std::string hint = HintOfNames(NamesOfKind(sentence), sentence);
  if (!Says(sentence, kMatrix) || Says(hint, "did you mean")) return hint;
  const std::string buffer = Nearest(QuotedIn(sentence), NamesOfKind(kBuffer));
  if (buffer.empty()) return hint;
  return fmt::format("; did you mean the buffer '{}' (`sparsectl buffers --help`)?", buffer);
}

absl::Status Hints::SuggestedToOperator(const absl::Status& status, const std::string& tenant) {
  const std::string sentence(status.message());
  const std::string missing(QuotedIn(sentence));
  const bool anothers = missing.find(kOwnerMark) != std::string::npos;
  const std::string hint = anothers ? "" : HintOfPresent(sentence);
  if (Says(hint, "did you mean")) return Reworded(status, sentence + hint);
  std::vector<std::string> names = NamesOfAllTenants(sentence);
  std::erase_if(names, [&](const std::string& name) {
    const size_t mark = name.find(kOwnerMark);
    return name.substr(0, mark) == tenant || (!anothers && name.substr(mark + 1) != missing);
  });
  if (std::ranges::find(names, missing) != names.end()) {
    return Reworded(status, absl::StatusCode::kPermissionDenied,
                    AnothersText(sentence, missing, tenant));
  }
  const std::string of_others = HintOfNames(names, sentence);
  return Reworded(status, sentence + (of_others.empty() ? hint : of_others));
}

absl::Status Hints::Suggested(const absl::Status& status) {
  const std::string text(status.message());
  std::string hint;
  if (absl::IsNotFound(status)) {
    if (Says(text, kMatrix) || Says(text, kBuffer)) {
      if (const auto& tenant = OperatorsTenant(); tenant.has_value()) {
        return SuggestedToOperator(status, *tenant);
      }
    }
    hint = HintOfPresent(text);
  }
  if (absl::IsInvalidArgument(status)) {
    if (const std::string meant = NearestListed(text); !meant.empty()) {
      hint = fmt::format("; did you mean '{}'?", meant);
    }
    if (text.find("name has byte 0x7e") != std::string::npos) {
      hint =
          "; TENANT~NAME is another tenant's, who alone makes, keeps and deletes anything under "
          "NAME";
    }
  }
  return hint.empty() ? status : Reworded(status, text + hint);
}

size_t Hints::OfOthers(std::string_view kind) {
  const auto& tenant = OperatorsTenant();
  if (!tenant.has_value()) return 0;
  const std::string own = *tenant + kOwnerMark;
  return static_cast<size_t>(std::ranges::count_if(
      NamesOfAllTenants(kind), [&own](const std::string& name) { return !name.starts_with(own); }));
}

size_t Hints::MatricesOfOthers() { return OfOthers(kMatrix); }
size_t Hints::BuffersOfOthers() { return OfOthers(kBuffer); }

}  // namespace sparsed::cli
