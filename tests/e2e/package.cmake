# The tarball, unpacked somewhere else. Only for builds that anyone would ship.
if(NOT SPARSED_SANITIZER)
  add_test(NAME package_test
    COMMAND ${CMAKE_CURRENT_LIST_DIR}/package_test ${CMAKE_CPACK_COMMAND} ${PROJECT_BINARY_DIR})
  set_tests_properties(package_test PROPERTIES LABELS e2e TIMEOUT 300)
endif()
