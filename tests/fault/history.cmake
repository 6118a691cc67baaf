# Histories of calls that overlapped, and whether they could have happened one after the other.
set(history_dir ${CMAKE_CURRENT_LIST_DIR}/history)
sparsed_library(sparsed_catalog_model ${history_dir}/catalog_model.cc DEPS fmt::fmt)
sparsed_test(fault_history ${history_dir}/history_test.cc DEPS sparsed_catalog_model LABELS fault)
sparsed_attack(catalog DEPS
  sparsed_catalog_model sparsed_attached sparsed_client sparsed_kernels fmt::fmt)
target_sources(attack_catalog PRIVATE ${history_dir}/recording_client.cc)
