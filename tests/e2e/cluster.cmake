# Three servers and an etcd; skipped where no etcd is installed.
add_test(NAME cluster_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/cluster_test.py $<TARGET_FILE:sparsed> $<TARGET_FILE:sparsectl>)
set_tests_properties(cluster_test PROPERTIES LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77)
# An etcd of three members, of which one and then another is killed.
add_test(NAME etcd_members_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/etcd_members_test.py $<TARGET_FILE:sparsed> $<TARGET_FILE:sparsectl>)
set_tests_properties(etcd_members_test PROPERTIES LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77)
# Rows of one matrix on three nodes.
add_test(NAME shards_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/shards_test.py $<TARGET_FILE:sparsed> $<TARGET_FILE:sparsectl>)
set_tests_properties(shards_test PROPERTIES LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77)
# A gateway that alone knows the nodes' names.
add_test(NAME gateway_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/gateway_test.py $<TARGET_FILE:sparsed> $<TARGET_FILE:sparsectl>)
set_tests_properties(gateway_test PROPERTIES LABELS e2e TIMEOUT 300 SKIP_RETURN_CODE 77)
# What is said of other nodes' matrices, and of nodes that are gone.
add_test(NAME one_replica_test
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/one_replica_test.py $<TARGET_FILE:sparsed> $<TARGET_FILE:sparsectl>)
set_tests_properties(one_replica_test PROPERTIES LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77)
