# What the documents say: their commands run, what is made from sources is current.
add_test(NAME docs_commands_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/docs_test.py $<TARGET_FILE:sparsed> $<TARGET_FILE:sparsectl>)
add_test(NAME named_commands_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/named_commands_test.py $<TARGET_FILE:sparsed>
    $<TARGET_FILE:sparsectl>)
add_test(NAME docs_reference_test
  COMMAND ${PROJECT_SOURCE_DIR}/docs/reference --check $<TARGET_FILE:sparsed>
    $<TARGET_FILE:sparsectl>)
add_test(NAME docs_tables_test
  COMMAND ${PROJECT_SOURCE_DIR}/tests/bench/pages.py --check)
set_tests_properties(docs_commands_test named_commands_test docs_reference_test docs_tables_test PROPERTIES
  LABELS e2e TIMEOUT 600)
# README.md's first ten minutes, from git clone to a dashboard, by the programs of this build.
add_test(NAME ten_minutes_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/ten_minutes_test.py $<TARGET_FILE:sparsed>
    $<TARGET_FILE:sparsectl>)
set_tests_properties(ten_minutes_test PROPERTIES LABELS e2e SKIP_RETURN_CODE 77 TIMEOUT 300)
