# The status page in a real browser, headless.
add_test(NAME page_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/page_test.py
    $<TARGET_FILE:sparsed> $<TARGET_FILE:sparsectl>)
set_tests_properties(page_test PROPERTIES LABELS e2e SKIP_RETURN_CODE 77 TIMEOUT 300)
