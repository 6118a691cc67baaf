# Completion, by a bash that somebody types into.
add_test(NAME completion_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/completion_test.py $<TARGET_FILE:sparsed>
    $<TARGET_FILE:sparsectl>)
set_tests_properties(completion_test PROPERTIES LABELS e2e TIMEOUT 300)
