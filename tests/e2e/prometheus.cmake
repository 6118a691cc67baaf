# What Prometheus and the dashboard make of the server's metrics.
add_test(NAME prometheus_config_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/prometheus_config_test)
add_test(NAME prometheus_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/prometheus_test.py
    $<TARGET_FILE:sparsed> $<TARGET_FILE:sparsectl>)
set_tests_properties(prometheus_config_test prometheus_test PROPERTIES
  LABELS e2e SKIP_RETURN_CODE 77 TIMEOUT 600)
