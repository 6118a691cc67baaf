# What a start costs with many small matrices on the disk.
add_executable(bench_restart restart.cc)
target_link_libraries(bench_restart PRIVATE sparsed_engine CLI11::CLI11 nlohmann_json::nlohmann_json)
