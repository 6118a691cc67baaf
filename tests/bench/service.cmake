# What the wire costs: streaming beside a bare gRPC stream, the latency of small queries, many clients for a while.
add_executable(bench_service service.cc bare_kernel.cc bare_stream.cc patterns.cc)
target_link_libraries(bench_service PRIVATE sparsed_options sparsed_attached sparsed_kernels gRPC::grpc++
  nlohmann_json::nlohmann_json CLI11::CLI11 sparsed_generated)
sparsed_install_program(bench_service measurement)
