# Layouts, plain CSR, and the kernels with dense operands.
sparsed_library(sparsed_dense_harness dense_harness.cc
  DEPS sparsed_test_matrices GTest::gtest)
sparsed_test(csr_test csr_test.cc DEPS sparsed_test_matrices LABELS kernels)
sparsed_test(partition_test partition_test.cc DEPS sparsed_test_matrices LABELS kernels)
sparsed_test(spmm_test spmm_test.cc DEPS sparsed_dense_harness LABELS kernels)
sparsed_test(bcsr_test bcsr_test.cc DEPS sparsed_dense_harness LABELS kernels)
sparsed_test(sddmm_test sddmm_test.cc DEPS sparsed_dense_harness LABELS kernels)
# What has no plan.
sparsed_library(sparsed_nonzero_harness nonzero_harness.cc
  DEPS sparsed_test_matrices GTest::gtest)
sparsed_test(nonzero_test nonzero_test.cc DEPS sparsed_nonzero_harness LABELS kernels)
sparsed_library(sparsed_attention_harness attention_harness.cc
  DEPS sparsed_test_matrices GTest::gtest)
sparsed_test(attention_test attention_test.cc DEPS sparsed_attention_harness LABELS kernels)
sparsed_test(half_test half_test.cc DEPS sparsed_kernels LABELS kernels)
