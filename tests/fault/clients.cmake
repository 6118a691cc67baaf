sparsed_attack(clients DEPS sparsed_attached sparsed_client sparsed_kernels fmt::fmt)
