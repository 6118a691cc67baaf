# Nodes of a cluster that fail, in network namespaces; histories of what clients of any node saw.
set(nodes_dir ${CMAKE_CURRENT_LIST_DIR}/nodes)
sparsed_library(sparsed_nodes_model ${nodes_dir}/nodes_model.cc DEPS fmt::fmt)
sparsed_test(fault_nodes_model ${nodes_dir}/nodes_model_test.cc DEPS sparsed_nodes_model LABELS fault)
sparsed_attack(nodes DEPS sparsed_nodes_model sparsed_client fmt::fmt)
target_sources(attack_nodes PRIVATE
  ${nodes_dir}/network.cc ${nodes_dir}/nodes_client.cc ${nodes_dir}/program.cc)
target_compile_definitions(attack_nodes PRIVATE SPARSED_PROGRAM="$<TARGET_FILE:sparsed>")
