# The kernels side by side, on the GPU or the CPU.
sparsed_library(sparsed_generated gpu/generated.cc DEPS sparsed_test_matrices OpenMP::OpenMP_CXX)
add_executable(sparsed_bench gpu/builds.cc gpu/device.cc gpu/iterations.cc gpu/main.cc
  gpu/measure.cc gpu/spgemm.cc)
target_link_libraries(sparsed_bench PRIVATE sparsed_generated sparsed_kernels CLI11::CLI11
  nlohmann_json::nlohmann_json)
target_sources(sparsed_bench PRIVATE
  $<IF:$<BOOL:${SPARSED_HAS_CUDA}>,gpu/cusparse_spgemm.cc,gpu/without_cusparse.cc>)
sparsed_install_program(sparsed_bench measurement)

sparsed_test(bench_generated_test gpu/generated_test.cc DEPS sparsed_generated)
add_test(NAME bench_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/gpu/bench_test.py $<TARGET_FILE:sparsed_bench>
    ${CMAKE_CURRENT_LIST_DIR}/h100_tables.py)
set_tests_properties(bench_test PROPERTIES LABELS bench TIMEOUT 300)

if(SPARSED_HAS_CUDA)
  add_executable(bench_permutations gpu/cusparse_column_major.cc gpu/device.cc gpu/output_stationary.cu
    gpu/permutations.cc)
  set_target_properties(bench_permutations PROPERTIES CUDA_RUNTIME_LIBRARY Static)
  target_link_libraries(bench_permutations PRIVATE sparsed_test_matrices sparsed_kernels
    OpenMP::OpenMP_CXX CLI11::CLI11 nlohmann_json::nlohmann_json)

  add_executable(bench_attention gpu/attention.cc gpu/device.cc)
  target_link_libraries(bench_attention PRIVATE sparsed_test_matrices sparsed_kernels
    OpenMP::OpenMP_CXX CLI11::CLI11 nlohmann_json::nlohmann_json)
endif()

# METIS orders the vertices that the papers compare with.
find_path(METIS_INCLUDE_DIR metis.h)
find_library(METIS_LIBRARY metis)
if(METIS_INCLUDE_DIR AND METIS_LIBRARY)
  add_executable(bench_metis_order gpu/metis_order.cc)
  target_include_directories(bench_metis_order SYSTEM PRIVATE ${METIS_INCLUDE_DIR})
  target_link_libraries(bench_metis_order PRIVATE sparsed_test_matrices ${METIS_LIBRARY}
    CLI11::CLI11)
endif()
