sparsed_test(matrix_pack_test ${CMAKE_CURRENT_LIST_DIR}/matrix_pack_test.cc
  DEPS sparsed_test_matrices LibLZMA::LibLZMA)
