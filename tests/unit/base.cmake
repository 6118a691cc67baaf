sparsed_test(coverage_test ${CMAKE_CURRENT_LIST_DIR}/base/coverage_test.cc)
