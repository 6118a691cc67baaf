sparsed_test(coverage_test ${CMAKE_CURRENT_LIST_DIR}/base/coverage_test.cc)
sparsed_test(help_text_test ${CMAKE_CURRENT_LIST_DIR}/base/help_text_test.cc)
