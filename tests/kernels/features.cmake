# Features of patterns.
sparsed_test(features_test features_test.cc DEPS sparsed_test_matrices LABELS kernels)
