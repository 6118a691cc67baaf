sparsed_test(unit_chunk_codec ${CMAKE_CURRENT_LIST_DIR}/wire/chunk_codec_test.cc DEPS sparsed_wire)
sparsed_test(unit_ring ${CMAKE_CURRENT_LIST_DIR}/wire/ring_test.cc DEPS sparsed_wire)
