sparsed_test(corpus_patterns_test ${CMAKE_CURRENT_LIST_DIR}/corpus/patterns_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/corpus/derived_test.cc
  DEPS sparsed_patterns PkgConfig::XXHASH OpenMP::OpenMP_CXX fmt::fmt)
sparsed_test(corpus_list_test ${CMAKE_CURRENT_LIST_DIR}/corpus/list_test.cc
  DEPS sparsed_corpus_list)
sparsed_test(corpus_measure_test ${CMAKE_CURRENT_LIST_DIR}/corpus/journal_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/corpus/measure_test.cc
  DEPS sparsed_corpus_measure)
