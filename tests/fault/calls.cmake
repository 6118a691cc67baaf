# System calls of the server that fail.
set(calls_dir ${CMAKE_CURRENT_LIST_DIR}/calls)
add_library(sparsed_failing_calls SHARED ${calls_dir}/failing_calls.cc)
target_link_libraries(sparsed_failing_calls PRIVATE sparsed_options ${CMAKE_DL_LIBS})
sparsed_attack(calls DEPS sparsed_attached sparsed_client sparsed_kernels fmt::fmt)
target_sources(attack_calls PRIVATE ${calls_dir}/visitor.cc)
target_compile_definitions(attack_calls PRIVATE
  SPARSED_FAILING_CALLS_LIBRARY="$<TARGET_FILE:sparsed_failing_calls>")
add_dependencies(attack_calls sparsed_failing_calls)
