# Request ids, slow requests and spans, by the programs.
add_test(NAME observe_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/observe_test.py $<TARGET_FILE:sparsed> $<TARGET_FILE:sparsectl>)
set_tests_properties(observe_test PROPERTIES LABELS e2e TIMEOUT 300)
