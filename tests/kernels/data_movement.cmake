# What products move, by model.
sparsed_test(data_movement_test data_movement_test.cc DEPS sparsed_test_matrices LABELS kernels)
