sparsed_test(unit_chunk_codec ${CMAKE_CURRENT_LIST_DIR}/wire/chunk_codec_test.cc DEPS sparsed_wire)
