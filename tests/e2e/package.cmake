# The tarball, unpacked somewhere else, and what is in the Debian packages (tests/packages/run installs
# them). Only for builds that anyone would ship.
if(NOT SPARSED_SANITIZER)
  add_test(NAME package_test
    COMMAND ${CMAKE_CURRENT_LIST_DIR}/package_test ${CMAKE_CPACK_COMMAND} ${PROJECT_BINARY_DIR})
  add_test(NAME debian_packages_test
    COMMAND ${PROJECT_SOURCE_DIR}/tests/packages/contents ${CMAKE_CPACK_COMMAND} ${PROJECT_BINARY_DIR})
  set_tests_properties(package_test debian_packages_test PROPERTIES
    LABELS e2e SKIP_RETURN_CODE 77 TIMEOUT 300 RESOURCE_LOCK cpack)
endif()
