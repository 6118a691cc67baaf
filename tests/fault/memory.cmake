sparsed_attack(memory DEPS sparsed_client sparsed_proto)
sparsed_test(fault_memory_limit ${CMAKE_CURRENT_LIST_DIR}/memory_limit_test.cc
  DEPS sparsed_attack nlohmann_json::nlohmann_json LABELS fault)
