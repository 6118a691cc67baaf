# What the wire costs: streaming beside a bare gRPC stream, the latency of small queries, many clients for a while.
add_executable(bench_service service.cc bare_kernel.cc bare_stream.cc patterns.cc)
target_link_libraries(bench_service PRIVATE sparsed_options sparsed_attached sparsed_kernels gRPC::grpc++
  nlohmann_json::nlohmann_json CLI11::CLI11 sparsed_generated)
sparsed_install_program(bench_service measurement)
add_test(NAME service_plans_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/service_plans_test.py $<TARGET_FILE:sparsed>
    $<TARGET_FILE:sparsed_bench> $<TARGET_FILE:bench_service>)
set_tests_properties(service_plans_test PROPERTIES LABELS bench TIMEOUT 400)
