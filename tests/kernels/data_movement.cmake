# What products move, by model, and the order of rows for it.
sparsed_test(data_movement_test data_movement_test.cc DEPS sparsed_test_matrices LABELS kernels)
sparsed_test(breadth_first_test breadth_first_test.cc DEPS sparsed_dense_harness LABELS kernels)
