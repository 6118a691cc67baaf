# The tool that orders rows and columns, and what the client does with its orders. Only where it is built.
if(TARGET sparsed_reorder)
  add_test(NAME reorder_test
    COMMAND ${CMAKE_CURRENT_LIST_DIR}/reorder_test.py
      $<TARGET_FILE:sparsed_reorder> $<TARGET_FILE:sparsed> $<TARGET_FILE:sparsectl>)
  set_tests_properties(reorder_test PROPERTIES LABELS e2e TIMEOUT 300)
endif()
