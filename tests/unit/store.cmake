foreach(subject store posix_file_system)
  sparsed_test(unit_${subject} ${CMAKE_CURRENT_LIST_DIR}/store/${subject}_test.cc
    DEPS sparsed_store_testing)
endforeach()
