# Attacks on where clients come in: connections, reflection, bytes on the wire, the HTTP port.
sparsed_library(sparsed_raw_http2 raw_http2.cc)
sparsed_library(sparsed_attackers bystander.cc
  DEPS sparsed_raw_http2 sparsed_attack sparsed_client fmt::fmt)
foreach(name connections reflection headers resets http)
  sparsed_attack(${name} DEPS sparsed_attackers)
endforeach()
