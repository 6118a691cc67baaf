# SpGEMM next to SuiteSparse:GraphBLAS.
find_path(GRAPHBLAS_INCLUDE_DIR GraphBLAS.h)
find_library(GRAPHBLAS_LIBRARY graphblas)
add_executable(bench_spgemm spgemm.cc)
target_link_libraries(bench_spgemm PRIVATE sparsed_engine sparsed_test_matrices CLI11::CLI11
  nlohmann_json::nlohmann_json)
if(GRAPHBLAS_INCLUDE_DIR AND GRAPHBLAS_LIBRARY)
  target_include_directories(bench_spgemm SYSTEM PRIVATE ${GRAPHBLAS_INCLUDE_DIR})
  target_link_libraries(bench_spgemm PRIVATE ${GRAPHBLAS_LIBRARY})
  target_compile_definitions(bench_spgemm PRIVATE SPARSED_HAS_GRAPHBLAS)
endif()
# As docs/results-cpu.md has it, for a moment: a line of JSON for each section.
add_test(NAME bench_spgemm_test
  COMMAND bench_spgemm --sections --generated none --threads 1 --repeats=1 --seconds=0.001 --min-nnz=10000
    ${PROJECT_SOURCE_DIR}/tests/data/delaunay_n16.mtx.gz)
set_tests_properties(bench_spgemm_test PROPERTIES LABELS bench TIMEOUT 300 ENVIRONMENT OMP_WAIT_POLICY=passive
  PASS_REGULAR_EXPRESSION "cpu.incsr.sections S=8 b=8")
