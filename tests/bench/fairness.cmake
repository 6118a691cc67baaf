# How fairly tenants share worker slots.
add_executable(bench_fairness fairness.cc)
target_link_libraries(bench_fairness PRIVATE sparsed_engine sparsed_test_matrices CLI11::CLI11
  nlohmann_json::nlohmann_json)
