// The status page's files, as server/page/web has them, and docs/runbooks.md; made by
// embed_files.cmake.
#pragma once

#include <string_view>

namespace sparsed::server::page_files {

extern const std::string_view kIndexHtml, kStyleCss, kPageJs, kIconSvg, kRunbooksHtml, kRunbooksJs,
    kRunbooksMd;

}  // namespace sparsed::server::page_files
