# The program that makes and measures the corpus.
add_test(NAME corpus_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/corpus_test.py $<TARGET_FILE:sparsed_corpus>)
set_tests_properties(corpus_test PROPERTIES LABELS e2e TIMEOUT 300)
