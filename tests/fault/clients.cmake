sparsed_attack(clients DEPS sparsed_attached sparsed_client fmt::fmt)
