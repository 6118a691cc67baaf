# Row reordering, adaptive sparse tiling, recipes and their kernels.
sparsed_test(reorder_test reorder_test.cc DEPS sparsed_test_matrices LABELS kernels)
sparsed_test(recipe_test recipe_test.cc DEPS sparsed_test_matrices LABELS kernels)
sparsed_test(aspt_test aspt_test.cc DEPS sparsed_dense_harness LABELS kernels)
sparsed_test(row_panels_test row_panels_test.cc DEPS sparsed_dense_harness LABELS kernels)
sparsed_test(coo_panels_test coo_panels_test.cc DEPS sparsed_dense_harness LABELS kernels)
sparsed_test(group_rows_test group_rows_test.cc DEPS sparsed_dense_harness LABELS kernels)
sparsed_test(sort_rows_test sort_rows_test.cc DEPS sparsed_dense_harness LABELS kernels)
