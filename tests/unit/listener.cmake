# Where clients come in.
foreach(name http2_guard_test connections_test)
  sparsed_test(${name} listener/${name}.cc DEPS sparsed_server sparsed_raw_http2 LABELS unit)
endforeach()
sparsed_test(worker_pool_test worker_pool_test.cc DEPS sparsed_server LABELS unit)
