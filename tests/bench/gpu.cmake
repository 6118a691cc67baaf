# The GPU kernels side by side.
add_executable(sparsed_bench gpu/generated.cc gpu/main.cc)
target_link_libraries(sparsed_bench PRIVATE sparsed_test_gpu sparsed_test_matrices CLI11::CLI11
  nlohmann_json::nlohmann_json)
sparsed_install_program(sparsed_bench measurement)
