foreach(test matrix_market npy terminal)
  sparsed_test(client_${test}_test ${CMAKE_CURRENT_LIST_DIR}/client/${test}_test.cc
    DEPS sparsed_cli LABELS unit)
endforeach()
