# What products on many cards would exchange and take (tools/scale).
sparsed_test(scale_test ${CMAKE_CURRENT_LIST_DIR}/scale/distributions_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/scale/partition_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/scale/row_exchange_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/scale/synthetic_test.cc
  DEPS sparsed_scale_model sparsed_tool_files)
