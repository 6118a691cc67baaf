add_executable(bench_shards shards.cc)
target_link_libraries(bench_shards PRIVATE sparsed_client sparsed_formats fmt::fmt CLI11::CLI11)
