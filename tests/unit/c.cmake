# The C interface, used by C programs, and what its libraries show.
if(NOT TARGET sparsed_client_c)
  return()
endif()
foreach(library client attached)
  set(name c_${library}_test)
  add_executable(${name} c/arguments_test.c c/attention_test.c c/calls_test.c c/catalog_test.c c/chains_test.c c/check.c
    c/main.c c/products_test.c c/spgemm_test.c)
  target_link_libraries(${name} PRIVATE sparsed_options sparsed_${library}_c Threads::Threads m)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/client/include)
  target_compile_options(${name} PRIVATE -pedantic)
  target_compile_definitions(${name} PRIVATE SPARSED_EXPECTED_VERSION="${PROJECT_VERSION}")
  add_dependencies(${name} sparsed)
  string(COMPARE EQUAL ${library} attached has_kernels)
  add_test(NAME ${name} COMMAND ${name} $<TARGET_FILE:sparsed> ${has_kernels})
  add_test(NAME c_${library}_exports_test
    COMMAND ${CMAKE_CURRENT_LIST_DIR}/c/exports_test ${CMAKE_NM} ${CMAKE_READELF}
      ${PROJECT_SOURCE_DIR}/client/include/sparsed/c.h $<TARGET_FILE:sparsed_${library}_c>)
  set_tests_properties(${name} c_${library}_exports_test PROPERTIES LABELS unit TIMEOUT 300)
endforeach()
