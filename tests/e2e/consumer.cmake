# The client library as another project sees it, once it is installed.
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(consumer_options -DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
add_test(NAME consumer_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/consumer_test ${PROJECT_BINARY_DIR} ${CMAKE_GENERATOR}
    ${CMAKE_C_COMPILER} ${CMAKE_CXX_COMPILER} ${consumer_options})
set_tests_properties(consumer_test PROPERTIES LABELS e2e TIMEOUT 300)
