# Where clients come in.
sparsed_test(http2_guard_test listener/http2_guard_test.cc DEPS sparsed_server sparsed_raw_http2
  LABELS unit)
