# SpMM and SDDMM kernels from CSR next to Eigen and plain loops.
find_package(Eigen3 CONFIG QUIET)
add_executable(bench_kernels spmm_kernels.cc dense_rivals.cc)
target_link_libraries(bench_kernels PRIVATE sparsed_test_matrices CLI11::CLI11
  nlohmann_json::nlohmann_json)
# The rivals get the best code that the compiler makes for this machine.
set_source_files_properties(dense_rivals.cc PROPERTIES COMPILE_OPTIONS "-O3;-march=native")
if(Eigen3_FOUND)
  target_link_libraries(bench_kernels PRIVATE Eigen3::Eigen)
  target_compile_definitions(bench_kernels PRIVATE SPARSED_HAS_EIGEN)
endif()
# SpMM from dense blocks of every shape.
add_executable(bench_block_shapes block_shapes.cc)
target_link_libraries(bench_block_shapes PRIVATE sparsed_test_matrices CLI11::CLI11
  nlohmann_json::nlohmann_json)
# Attention along edges on the CPU.
add_executable(bench_attention_cpu attention_cpu.cc)
target_link_libraries(bench_attention_cpu PRIVATE sparsed_test_matrices CLI11::CLI11
  nlohmann_json::nlohmann_json)
