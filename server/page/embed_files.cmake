# cmake -DOUT=FILE.cc -DROOT=REPOSITORY -P embed_files.cmake: the page's files, and the runbooks, as string
# literals.
set(source "#include \"server/page/files.h\"\n\nnamespace sparsed::server::page_files {\n\n")
set(web server/page/web)
foreach(file ${web}/index.html:kIndexHtml ${web}/style.css:kStyleCss ${web}/page.js:kPageJs ${web}/icon.svg:kIconSvg
             ${web}/runbooks.html:kRunbooksHtml ${web}/runbooks.js:kRunbooksJs docs/runbooks.md:kRunbooksMd)
  string(REPLACE ":" ";" file "${file}")
  list(GET file 0 name)
  list(GET file 1 variable)
  file(READ "${ROOT}/${name}" text)
  string(APPEND source "const std::string_view ${variable} = R\"sparsed(${text})sparsed\";\n")
endforeach()
file(WRITE "${OUT}" "${source}\n}  // namespace sparsed::server::page_files\n")
