set(engine_tests ${CMAKE_CURRENT_LIST_DIR}/engine)
foreach(name calibration cpu_rates distribution model_store network selector upload values names chain_columns restart eviction dense_catalog dense_limits haloed_dense tenants plan preparation scrub batch fairness
    random_operations)
  sparsed_test(engine_${name} ${engine_tests}/${name}_test.cc
    DEPS sparsed_engine sparsed_test_matrices)
endforeach()
