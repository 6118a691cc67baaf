#include "server/page/pages.h"

#include <algorithm>
#include <array>
#include <string>

#include "server/page/files.h"

namespace sparsed::server {
namespace {

struct PageFile {
  std::string_view path, content_type;
  const std::string_view* text;
};

constexpr std::array<PageFile, 7> kFiles = {{
    {"/", "text/html; charset=utf-8", &page_files::kIndexHtml},
    {"/style.css", "text/css; charset=utf-8", &page_files::kStyleCss},
    {"/page.js", "text/javascript; charset=utf-8", &page_files::kPageJs},
    {"/icon.svg", "image/svg+xml", &page_files::kIconSvg},
    {"/runbooks", "text/html; charset=utf-8", &page_files::kRunbooksHtml},
    {"/runbooks.js", "text/javascript; charset=utf-8", &page_files::kRunbooksJs},
    {"/runbooks.md", "text/plain; charset=utf-8", &page_files::kRunbooksMd},
}};

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    default:
      return 503;
  }
}

HttpReply ToReply(const Answer& answer) {
  const nlohmann::json body =
      answer.ok() ? *answer : nlohmann::json{{"error", std::string(answer.status().message())}};
  return {.status = answer.ok() ? 200 : HttpStatusOf(answer.status()),
          .content_type = "application/json",
          // What clients chose may be anything.
          .body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"};
}

}  // namespace

bool IsPageFile(std::string_view path) {
  return std::ranges::any_of(kFiles, [&](const PageFile& file) { return file.path == path; });
}

HttpPort::Pages StatusPages(const std::shared_ptr<PageTables>& tables) {
  HttpPort::Pages pages;
  for (const PageFile& file : kFiles) {
    pages[std::string(file.path)] = [&file](const HttpRequest&) {
      return HttpReply{.content_type = std::string(file.content_type),
                       .body = std::string(*file.text)};
    };
  }
  const auto answer = [&](const char* path, Answer (*make)(PageTables&, const HttpRequest&)) {
    pages[path] = [tables, make](const HttpRequest& request) {
      // Where answers are of a tenant's, no name would be all names.
      if (!request.viewer.all && request.viewer.tenant.empty()) {
        return ToReply(absl::PermissionDeniedError("nobody knows whose page this is"));
      }
      return ToReply(make(*tables, request));
    };
  };
  answer("/api/status", StatusAnswer);
  answer("/api/matrices", MatricesAnswer);
  answer("/api/matrix", MatrixAnswer);
  answer("/api/candidates", CandidatesAnswer);
  answer("/api/picture", PictureAnswer);
  answer("/api/preparations", PreparationsAnswer);
  answer("/api/buffers", BuffersAnswer);
  answer("/api/requests", RequestsAnswer);
  answer("/api/tenants", TenantsAnswer);
  answer("/api/configuration", ConfigurationAnswer);
  return pages;
}

}  // namespace sparsed::server
