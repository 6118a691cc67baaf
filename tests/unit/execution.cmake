sparsed_test(memory_test memory_test.cc DEPS sparsed_engine)
sparsed_test(residency_test residency_test.cc DEPS sparsed_engine)
sparsed_test(scheduler_test scheduler_test.cc DEPS sparsed_engine)
sparsed_test(executor_test executor_test.cc DEPS sparsed_engine sparsed_test_matrices)
