# Sparse times sparse.
sparsed_test(spgemm_test spgemm_test.cc DEPS sparsed_test_matrices LABELS kernels)
sparsed_test(spgemm_blocks_test spgemm_blocks_test.cc DEPS sparsed_test_matrices LABELS kernels)
