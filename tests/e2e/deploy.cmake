# How the programs are built, deployed and started.
add_test(NAME gpu_architectures_test COMMAND ${CMAKE_CURRENT_LIST_DIR}/gpu_architectures_test)
add_test(NAME list_skipped_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/list_skipped_test ${CMAKE_CTEST_COMMAND})
add_test(NAME deploy_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/deploy_test.py
    $<TARGET_FILE:sparsed> ${CMAKE_COMMAND} ${CMAKE_CURRENT_BINARY_DIR}/deploy_test)
# The Helm chart by Helm's own library, dashboards by Grafana's models, the Dockerfile by hadolint; tests/deploy/image
# builds the image.
add_test(NAME chart_test COMMAND ${PROJECT_SOURCE_DIR}/tests/deploy/run ${PROJECT_BINARY_DIR})

add_library(sparsed_broken_driver MODULE broken_driver.cc)
set_target_properties(sparsed_broken_driver PROPERTIES
  PREFIX "" OUTPUT_NAME libcuda SUFFIX .so.1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/broken_driver)
add_test(NAME start_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/start_test.py
    $<TARGET_FILE:sparsed> $<TARGET_FILE_DIR:sparsed_broken_driver> $<TARGET_FILE:sparsectl>)
set_tests_properties(gpu_architectures_test list_skipped_test deploy_test chart_test start_test PROPERTIES
  LABELS e2e SKIP_RETURN_CODE 77 TIMEOUT 300)
