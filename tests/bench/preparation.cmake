# What preparing layouts costs and brings.
add_executable(bench_preparation preparation.cc)
target_link_libraries(bench_preparation PRIVATE sparsed_test_matrices CLI11::CLI11
  nlohmann_json::nlohmann_json)
