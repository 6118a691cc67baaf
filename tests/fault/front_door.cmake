# Attacks on where clients come in: connections, reflection, bytes on the wire, the HTTP port,
# threads.
sparsed_library(sparsed_raw_http2 raw_http2.cc)
sparsed_library(sparsed_attackers bystander.cc
  DEPS sparsed_raw_http2 sparsed_attack sparsed_client fmt::fmt)
foreach(name connections reflection headers messages resets http threads)
  sparsed_attack(${name} DEPS sparsed_attackers)
endforeach()
sparsed_test(fault_unreachable_test unreachable_test.cc DEPS sparsed_attack LABELS fault)
set_tests_properties(fault_unreachable_test PROPERTIES
  ENVIRONMENT "${SPARSED_WIRE_TEST_ENVIRONMENT}")
