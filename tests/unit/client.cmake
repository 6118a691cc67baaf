foreach(test matrix_market npy terminal)
  sparsed_test(client_${test}_test ${CMAKE_CURRENT_LIST_DIR}/client/${test}_test.cc
    DEPS sparsed_cli LABELS unit)
endforeach()

# The library against the real program.
sparsed_test(client_test ${CMAKE_CURRENT_LIST_DIR}/client/client_test.cc
  DEPS sparsed_client LABELS unit)
target_compile_definitions(client_test PRIVATE SPARSED_PROGRAM="$<TARGET_FILE:sparsed>")
add_dependencies(client_test sparsed)
