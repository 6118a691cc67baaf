# What many cards would exchange and take, as people ask for it.
add_test(NAME scale_tool_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/scale_test.py $<TARGET_FILE:sparsed_scale>)
set_tests_properties(scale_tool_test PROPERTIES LABELS e2e TIMEOUT 300)
