# What is found of a GPU and its driver.
sparsed_test(cuda_driver_test driver_test.cc DEPS sparsed_kernels LABELS kernels)
