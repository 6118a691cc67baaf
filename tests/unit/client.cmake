foreach(test array_formats bench completion doctor half matrix_market npy output permutation request_log round_trip snapshot_file terminal
    text_formats)
  sparsed_test(client_${test}_test ${CMAKE_CURRENT_LIST_DIR}/client/${test}_test.cc
    DEPS sparsed_cli LABELS unit)
endforeach()

# The library against the real program, and against servers that do not keep to the protocol.
sparsed_test(client_test ${CMAKE_CURRENT_LIST_DIR}/client/client_test.cc
  DEPS sparsed_client LABELS unit)
sparsed_test(client_chain_test ${CMAKE_CURRENT_LIST_DIR}/client/chain_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/client/attention_products.cc
  ${CMAKE_CURRENT_LIST_DIR}/client/chain_products.cc DEPS sparsed_client LABELS unit)
sparsed_test(client_attached_test ${CMAKE_CURRENT_LIST_DIR}/client/attached_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/client/shared_products.cc DEPS sparsed_attached LABELS unit)
sparsed_test(client_attached_chain_test ${CMAKE_CURRENT_LIST_DIR}/client/attached_chain_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/client/attention_products.cc
  ${CMAKE_CURRENT_LIST_DIR}/client/chain_products.cc DEPS sparsed_attached LABELS unit)
sparsed_test(client_chain_program_test ${CMAKE_CURRENT_LIST_DIR}/client/chain_program_test.cc
  DEPS sparsed_attached sparsed_wire LABELS unit)
sparsed_test(client_shared_memory_test ${CMAKE_CURRENT_LIST_DIR}/client/shared_memory_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/client/shared_products.cc DEPS sparsed_client LABELS unit)
sparsed_test(client_ring_test ${CMAKE_CURRENT_LIST_DIR}/client/ring_test.cc
  DEPS sparsed_client LABELS unit)
sparsed_test(client_local_socket_test ${CMAKE_CURRENT_LIST_DIR}/client/local_socket_test.cc
  DEPS sparsed_client sparsed_wire LABELS unit)
sparsed_test(client_examples_test ${CMAKE_CURRENT_LIST_DIR}/client/examples_test.cc
  DEPS sparsed_examples LABELS unit)
sparsed_test(client_retry_test ${CMAKE_CURRENT_LIST_DIR}/client/retry_test.cc
  DEPS sparsed_client sparsed_wire LABELS unit)
sparsed_test(client_nodes_test ${CMAKE_CURRENT_LIST_DIR}/client/nodes_test.cc
  DEPS sparsed_client sparsed_wire LABELS unit)
sparsed_test(client_sharded_test ${CMAKE_CURRENT_LIST_DIR}/client/sharded_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/client/shard_cut_test.cc
  DEPS sparsed_client sparsed_wire LABELS unit)
sparsed_test(client_hostile_server_test ${CMAKE_CURRENT_LIST_DIR}/client/hostile_server_test.cc
  DEPS sparsed_client sparsed_wire LABELS unit)
sparsed_test(client_streams_test ${CMAKE_CURRENT_LIST_DIR}/client/streams_test.cc
  DEPS sparsed_client sparsed_wire LABELS unit)
# The command line, run as people do.
sparsed_test(client_sparsectl_test ${CMAKE_CURRENT_LIST_DIR}/client/sparsectl_test.cc
  DEPS sparsed_client LABELS unit)
target_compile_definitions(client_sparsectl_test PRIVATE
  SPARSECTL_PROGRAM="$<TARGET_FILE:sparsectl>")
add_dependencies(client_sparsectl_test sparsectl)
sparsed_test(client_snapshot_test ${CMAKE_CURRENT_LIST_DIR}/client/snapshot_test.cc
  DEPS sparsed_client fmt::fmt LABELS unit)
target_compile_definitions(client_snapshot_test PRIVATE
  SPARSECTL_PROGRAM="$<TARGET_FILE:sparsectl>")
add_dependencies(client_snapshot_test sparsectl)
sparsed_test(client_model_test ${CMAKE_CURRENT_LIST_DIR}/client/model_test.cc
  DEPS sparsed_client fmt::fmt LABELS unit)
target_compile_definitions(client_model_test PRIVATE
  SPARSECTL_PROGRAM="$<TARGET_FILE:sparsectl>")
add_dependencies(client_model_test sparsectl)
foreach(test client_test client_model_test client_snapshot_test client_streams_test client_chain_test client_attached_test client_attached_chain_test client_shared_memory_test client_ring_test client_examples_test client_retry_test client_sparsectl_test)
  target_compile_definitions(${test} PRIVATE SPARSED_PROGRAM="$<TARGET_FILE:sparsed>")
  add_dependencies(${test} sparsed)
endforeach()
