# The main job: what the service's own plans reach, beside Eigen and plain loops.
find_package(Eigen3 CONFIG QUIET)
if(Eigen3_FOUND)
  add_executable(bench_plans plans.cc)
  target_link_libraries(bench_plans PRIVATE sparsed_engine sparsed_test_matrices
    Eigen3::Eigen nlohmann_json::nlohmann_json CLI11::CLI11)
  # The rivals get the best code that the compiler makes for this machine.
  target_compile_options(bench_plans PRIVATE -march=native)
else()
  message(STATUS "bench_plans is not built: Eigen was not found")
endif()
